"""Will a bundle fit, by what its author says and by what earlier runs took?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.core.answers import Verdict
from lightning_core.core.durations import format_duration
from lightning_core.planning.feasibility import JobRequest, check_feasibility


def plan_bundle(bundle: BundleSpec, history: Path | None = None) -> tuple[list[str], bool]:
    """What to tell a person, and whether all jobs of known work fit.

    Args:
        bundle: to be run.
        history: folder below which earlier runs lie; None for none.
    """
    runs = list(earlier_runs(history)) if history is not None else []
    wishes, lines = [], []
    for spec in bundle.jobs:
        job = spec.job
        work, origin = expected_work(spec, runs)
        # The scheduler gives a job as many devices as the pool has, up to the most it can use.
        size = min(job.max_devices, bundle.settings.devices)
        wishes.append(JobRequest(job.name, work, job.deadline, size, job.weight, job.begin))
        if work is not None:
            lines.append(f"{job.name}: needs {format_duration(work)} of {format_duration(job.deadline)} ({origin})")
    answer = check_feasibility(wishes, bundle.settings.devices)
    first, *rest = answer.lines()
    return [first, *lines, *rest], not answer.late


def expected_work(spec: JobSpec, runs: list[dict[str, Any]]) -> tuple[float | None, str]:
    """Seconds alone on its devices, and who says so: the job's ``work``, else the newest run that met its target.

    Args:
        spec: of the job.
        runs: what became of earlier ones, the newest first: their ``summary.json``, read.
    """
    if spec.job.work is not None:
        return spec.job.work, "its work as given"
    for run in runs:
        jobs = run.get("jobs")
        job = jobs.get(spec.job.name) if isinstance(jobs, dict) else None
        if not isinstance(job, dict) or job.get("verdict") != Verdict.MET or job.get("target") != str(spec.job.target):
            continue
        busy = job.get("busy")
        if isinstance(busy, int | float) and 0 < busy < math.inf:
            return float(busy), "as in an earlier run"
    return None, ""


def earlier_runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Every readable ``summary.json`` below a folder, the newest first."""
    for path in sorted(folder.rglob("summary.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            yield content
