"""Files that a pool has written in its folder, which only its own machine can read."""

from __future__ import annotations

from pathlib import Path

from lightning_core.core.jobs import Capability
from lightning_core.core.names import check_name, did_you_mean
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.pool.pool_errors import AgedOutError, NotOnThisMachineError, UnknownJobError
from lightning_core.run.ageing import aged_out, have_aged_out
from lightning_core.storage.job_specs import home_of
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.why import JobMoment, rows


def reasons_of(folder: Path, job: str) -> list[JobMoment]:
    """Return everything that happened to a job, read from the journal of its pool.

    Raises:
        NotOnThisMachineError: If the pool is on another machine.
        UnknownJobError: If the journal has no such job.
    """
    return rows(_history(folder, job).of(job))


def log_of(folder: Path, job: str) -> Path:
    """Return the path of the log of a launched job, which may have ended before the pool was last started.

    Raises:
        NotOnThisMachineError: If the pool is on another machine, or the job is a script, which prints in its shell.
        AgedOutError: If the job ended so long ago that its log is gone.
        UnknownJobError: If there is no log, and the journal has no such job.
    """
    path = home_of(folder, check_name(job)) / "log.txt"
    if is_there(path):
        return path
    history = _history(folder, job)
    if loses_files(history, job) and have_aged_out(folder, job):
        raise AgedOutError(f"{job}: its log has {aged_out(history.settings.keep_ended)}")
    raise NotOnThisMachineError(f"{job} has printed nothing here: a script prints in its own shell")


def loses_files(history: History, job: str) -> bool:
    """Return whether the newest job of a name was launched and has ended, so that its files age out."""
    found = history.of(job)
    return history.part_of is None and found.ended is not None and Capability.RELEASE in found.terms.can


def _history(folder: Path, job: str) -> History:
    """Return the history of a pool, of which a job has been read completely."""
    path = folder / "journal.db"
    if not is_there(path):
        raise NotOnThisMachineError(f"{folder} is not on this machine; run this command on the pool's own machine")
    with Journal.open(path, read_only=True) as journal:
        history = History.read(journal, job)
    find_job(history, job)
    return history


def find_job(history: History, job: str) -> JobHistory:
    """Return the newest job of a name, or with ``name@1`` the first one of that name.

    Raises:
        UnknownJobError: If there is none; the message has the closest name.
    """
    try:
        return history.of(job)
    except KeyError:
        raise UnknownJobError(f"no job {job!r}{did_you_mean(job, map(history.label, history.jobs))}") from None


def is_there(path: Path) -> bool:
    """Return whether there is a file of a pool.

    Raises:
        NotOnThisMachineError: If it is of an account whose folder this one cannot enter.
    """
    try:
        path.stat()
    except PermissionError:
        raise NotOnThisMachineError(
            f"{path}: only the pool's own account can read its files; ask its owner for a token and for "
            "the https:// address of the pool, which shows curves, reasons and logs"
        ) from None
    except OSError:
        return False
    return True
