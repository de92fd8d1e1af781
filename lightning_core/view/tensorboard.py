"""A run's scalars as TensorBoard event files, one run folder a job.

| tag | value | step |
|---|---|---|
| the metric's name | loss or metric as logged | batches |
| ``batches`` | done | seconds since submission |
| ``share`` | of its devices, 0 to 1 | seconds since submission |
| ``spare`` | seconds from the forecast end to the deadline | seconds since submission |
| ``verdict`` | :data:`NUMBERS` | seconds since submission |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from lightning_core.core.answers import Verdict
from lightning_core.core.targets import LossTarget
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.storage.journal import Journal

# The higher, the better for the job; below zero it is over without its target.
NUMBERS = {
    Verdict.MET: 3,
    Verdict.FEASIBLE: 2,
    Verdict.AT_RISK: 1,
    Verdict.INFEASIBLE: 0,
    Verdict.MISSED: -1,
    Verdict.CRASHED: -2,
    Verdict.CANCELLED: -3,
}
# Forecasts of each job, evenly over its training.
MOMENTS = 100


class Writer(Protocol):
    """What this needs of ``tensorboardX.SummaryWriter``."""

    def add_scalar(self, tag: str, value: float, global_step: int, walltime: float) -> None: ...

    def close(self) -> None: ...


def write(path: Path, folder: Path) -> list[Path]:
    """Writes the event files; ``tensorboard --logdir FOLDER`` shows them.

    Args:
        path: of the journal. When it was last written says at which wall time its last event was.
        folder: for the run folders.

    Returns:
        The run folders, one a job in the order of submission.

    Raises:
        ModuleNotFoundError: if tensorboardX is not installed.
        JournalError: if the journal cannot be read.
    """
    writer = _writer()
    beside = path.with_name(path.name + "-wal")
    written = max((file.stat().st_mtime for file in (path, beside) if file.exists()), default=0.0)
    with Journal.open(path, read_only=True) as journal:
        history = History.read(journal)
        fill_in(journal, history, MOMENTS)
    found: list[Path] = []
    for place, job in enumerate(history.jobs):
        run = folder / _folder_name(history.label(job))
        if run in found:  # two names that differ only in what no folder can be called
            run = run.with_name(f"{run.name} ({place})")
        scalars = writer(str(run))
        _write_job(scalars, job, written - history.last)
        scalars.close()
        found.append(run)
    return found


def _writer() -> Callable[[str], Writer]:
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pip install 'lightning-core-learning[tensorboard]' for TensorBoard files") from error
    writer: Callable[[str], Writer] = SummaryWriter
    return writer


def _write_job(scalars: Writer, job: JobHistory, opened: float) -> None:
    target = job.job.target
    if isinstance(target, LossTarget):
        for point in job.points:
            scalars.add_scalar(target.metric, point.value, point.batches, opened + point.time)

    def add(tag: str, value: float, time: float) -> None:
        scalars.add_scalar(tag, value, round(time - job.submitted), opened + time)

    for done in job.progress:
        add("batches", done.batches, done.time)
    for held in job.grants:
        add("share", held.share, held.time)
    if job.ended is not None:
        add("share", 0.0, job.ended)
    for belief in job.beliefs:
        add("verdict", NUMBERS[belief.verdict], belief.time)
    for made in job.forecasts:
        deadline = [deadline for since, deadline in job.deadlines if since <= made.time][-1]
        if made.likely < math.inf:
            add("spare", deadline - made.likely, made.time)


def _folder_name(label: str) -> str:
    """A label as one folder, which stays inside the one it is in."""
    return re.sub(r"[^A-Za-z0-9._ ()-]", "_", label).lstrip(".") or "_"
