"""The scalars of a run as TensorBoard event files, one folder a job.

| tag | value | step |
|---|---|---|
| name of the metric | loss or metric as logged | batches |
| ``batches`` | batches done | seconds since submission |
| ``share`` | share of its devices, 0 to 1 | seconds since submission |
| ``spare`` | seconds from the forecast end to the deadline | seconds since submission |
| ``verdict`` | ``Verdict.number`` | seconds since submission |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.storage.journals.journal import Journal

# Number of forecasts of each job, evenly spaced over its training.
FORECASTS = 100


class Writer(Protocol):
    """The methods of ``tensorboardX.SummaryWriter`` that are used here."""

    def add_scalar(self, tag: str, value: float, global_step: int, walltime: float) -> None: ...

    def close(self) -> None: ...


def write(path: Path, folder: Path, *, forecasts: bool = False) -> list[Path]:
    """Write the event files; ``tensorboard --logdir FOLDER`` shows them.

    Args:
        path: Path of the journal.
        folder: Folder in which to make a folder for each job.
        forecasts: Whether to have forecasts of a long run too, which takes minutes.

    Returns:
        The folders, in the order of submission.

    Raises:
        ModuleNotFoundError: If tensorboardX is not installed.
        JournalError: If the journal cannot be read.
    """
    writer = _writer()
    with Journal.open(path, read_only=True) as journal:
        history = History.read(journal)
        fill_in(journal, history, FORECASTS, always=forecasts)
        written = journal.written_at
    found: list[Path] = []
    for index, job in enumerate(history.jobs):
        run = folder / _folder_name(history.label(job))
        if run in found:  # the names differ only in characters that a folder name cannot have
            run = run.with_name(f"{run.name} ({index})")
        scalars = writer(str(run))
        _write_job(scalars, job, written - history.last)
        scalars.close()
        found.append(run)
    return found


def _writer() -> Callable[[str], Writer]:
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        words = "pip install -c constraints.txt '.[tensorboard]' in the clone for TensorBoard files"
        raise ModuleNotFoundError(words) from error
    writer: Callable[[str], Writer] = SummaryWriter
    return writer


def _write_job(scalars: Writer, job: JobHistory, opened: float) -> None:
    target = job.job.target
    if target.observes:
        for point in job.points:
            scalars.add_scalar(target.quantity, point.value, point.batches, opened + point.time)

    def add(tag: str, value: float, time: float) -> None:
        scalars.add_scalar(tag, value, round(time - job.submitted), opened + time)

    for done in job.progress:
        add("batches", done.batches, done.time)
    for held in job.grants:
        add("share", held.share, held.time)
    if job.ended is not None:
        add("share", 0.0, job.ended)
    for belief in job.beliefs:
        add("verdict", belief.verdict.number, belief.time)
    for made in job.forecasts:
        deadline = [deadline for since, deadline in job.deadlines if since <= made.time][-1]
        if made.likely < math.inf and deadline < math.inf:
            add("spare", deadline - made.likely, made.time)


def _folder_name(label: str) -> str:
    """Return a label as the name of one folder, which cannot lead out of its parent."""
    return re.sub(r"[^A-Za-z0-9._@ ()-]", "_", label).lstrip(".") or "_"
