"""Files that a pool has written in its folder, which only its own machine can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lightning_core.core.jobs import Capability
from lightning_core.core.names import check_name, did_you_mean
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.pool.pool_errors import AgedOutError, NotOnThisMachineError, UnknownJobError
from lightning_core.run.ageing import aged_out, have_aged_out
from lightning_core.storage.job_specs import home_of
from lightning_core.storage.journals.journal import Journal

Sees = Callable[[str], bool]
"""Tells whether the reader may see the jobs of an owner."""


def anyone(_: str) -> bool:
    """Return that the jobs of an owner may be seen: the files are the reader's own."""
    return True


def history_of(folder: Path, job: str, sees: Sees = anyone) -> JobHistory:
    """Return the history of a job, read from the journal of its pool.

    Args:
        folder: Folder of the pool.
        job: Name of the job; ``name@1`` for the first one of a name that was used again.
        sees: Whether the reader may see the jobs of an owner: a name may have been another's before.

    Raises:
        NotOnThisMachineError: If the pool is on another machine.
        UnknownJobError: If the journal has no such job that the reader may see.
    """
    return find_job(_history(folder, job), job, sees)


def log_of(folder: Path, job: str, sees: Sees = anyone) -> Path:
    """Return the path of the log of a launched job, which may have ended before the pool was last started.

    Raises:
        NotOnThisMachineError: If the pool is on another machine, or the job is a script, which prints in its shell.
        AgedOutError: If the job ended so long ago that its log is gone.
        UnknownJobError: If there is no log, and the journal has no such job; or the reader may not see the newest one
            of its name, whose log it is.
    """
    path = home_of(folder, check_name(job)) / "log.txt"
    is_here = is_there(path)
    if is_here and sees is anyone:
        return path
    history = _history(folder, job)
    find_job(history, job, sees)
    if is_here:
        return path
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
        return History.read(journal, job)


def find_job(history: History, job: str, sees: Sees = anyone) -> JobHistory:
    """Return the newest job of a name, or with ``name@1`` the first one of that name.

    Raises:
        UnknownJobError: If there is none that the reader may see; the message has the closest name.
    """
    try:
        found = history.of(job)
    except KeyError:
        found = None
    if found is None or not sees(found.terms.owner):
        known = (history.label(one) for one in history.jobs if sees(one.terms.owner))
        raise UnknownJobError(f"no job {job!r}{did_you_mean(job, known)}")
    return found


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
