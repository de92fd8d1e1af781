"""Answers about a pool that pages, programs and assistants get, made of what the pool says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_core.history.job_history import JobHistory
from lightning_core.pool.shapes import CurveAnswer, Moment, PoolAnswer
from lightning_core.server.access.people import Person, Right
from lightning_core.server.discovery import kind_of
from lightning_core.view.why import JobMoment


def pool_answer(about: Mapping[str, Any], person: Person, *, takes_bundles: bool) -> PoolAnswer:
    """Return a pool and its user as JSON values.

    Args:
        about: Description of the pool.
        person: The user.
        takes_bundles: Whether that user may submit where this is asked.
    """
    return {
        "pid": about["pid"], "folder": about["folder"], "kind": kind_of(about),
        "devices": about["devices"], "kinds": about["kinds"], "unavailable": about["unavailable"],
        "manager_silent": about["manager_silent"], "settings": about["settings"],
        "failed": about["failed"], "controllers": about["controllers"], "shares": about["shares"],
        "waiting": about["waiting"],
        "person": {"name": person.name, "rights": [right for right in Right if right in person.rights]},
        "takes_bundles": takes_bundles,
    }  # fmt: skip


def moment_entry(row: JobMoment) -> Moment:
    """Return an event of a job as JSON values."""
    devices = None if row.devices is None else list(row.devices)
    return {"time": row.time, "what": row.what, "share": row.share, "devices": devices, "kind": row.kind,
            "reason": row.reason}  # fmt: skip


def curve_answer(job: JobHistory, limit: int) -> CurveAnswer:
    """Return the curve of a job as JSON values.

    Args:
        job: History of the job.
        limit: Points at most, evenly spaced, the first and the last among them.
    """
    curve = job.curve()
    kept = np.unique(np.linspace(0, max(len(curve) - 1, 0), min(limit, len(curve))).round().astype(int))
    points = (curve[kept] - [job.submitted, 0.0]).tolist()
    return {
        "run": job.run_number, "metric": job.job.target.quantity, "goal": job.goal, "seen": len(curve),
        "points": [{"time": time, "value": value} for time, value in points],
    }  # fmt: skip
