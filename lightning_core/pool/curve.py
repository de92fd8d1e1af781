"""The reported curve of a job, of which some points are left out if there are too many."""

from __future__ import annotations

import numpy as np

from lightning_core.history.job_history import JobHistory
from lightning_core.pool.shapes import CurveAnswer


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
