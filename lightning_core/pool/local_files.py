"""Files that a pool has written in its folder, which only its own machine can read."""

from __future__ import annotations

from pathlib import Path

from lightning_core.history.history import History
from lightning_core.pool.pool_errors import NotOnThisMachineError
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.why import Row, rows


def reasons_of(folder: Path, job: str) -> list[Row]:
    """Return everything that happened to the newest job of a name, read from the journal of its pool.

    Raises:
        NotOnThisMachineError: If the pool is on another machine.
    """
    path = folder / "journal.db"
    if not path.exists():
        raise _elsewhere(folder)
    with Journal.open(path, read_only=True) as journal:
        return rows(History.read(journal, job).of(job))


def log_of(folder: Path, job: str) -> Path:
    """Return the path of the log of a launched job.

    Raises:
        NotOnThisMachineError: If the pool is on another machine, or the job is a script, which prints in its shell.
    """
    path = folder / "jobs" / job / "log.txt"
    if path.exists():
        return path
    if folder.exists():
        raise NotOnThisMachineError(f"{job} has printed nothing here: a script prints in its own shell")
    raise _elsewhere(folder)


def _elsewhere(folder: Path) -> NotOnThisMachineError:
    return NotOnThisMachineError(f"{folder} is not on this machine; run this command on the pool's own machine")
