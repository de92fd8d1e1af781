"""Ageing: the files of a job that has ended go from the folder of its run or pool some time after its end.

Rules

1. Its logs, its spec and the checkpoints from which it would have resumed go. Its best model stays, and so do files
   that its own training wrote, such as those of Lightning's loggers and of ``ModelCheckpoint``.
2. Its end is recorded in its folder, as the time of the file ``ended``: the scheduler forgets ended jobs in time, and
   the next journal has never known them. If the end is unknown, the time of discovery counts. The record is removed if
   a job of that name resumes.
3. A folder is opened once, and everything is done relative to it: a resubmission may move it away in between. No
   link is followed, and no folder of another user is entered.
4. Files that cannot be removed stay, which the log says once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from lightning_core.core.durations import format_duration
from lightning_core.scheduler.settings import Settings
from lightning_core.storage import job_checkpoints, job_specs
from lightning_core.storage.private_files import this_user

log = logging.getLogger(__name__)

# Seconds until the first sweep, which must not delay the start of a pool, and between two sweeps.
FIRST_SWEEP, SWEEP_INTERVAL = 60.0, 3600.0
# Folders that are looked at in one step. Each folder whose files go ends a step.
FOLDERS_PER_STEP = 100
# File in the folder of a job whose time of modification is the job's end.
ENDED = "ended"
# Files of a job that go, those that a writer left unfinished too; and journals of a pool's earlier times.
_GOES = re.compile(r"(spec\.json|launched|last\.ckpt|log(-\d+)?\.txt)(\.part-\d+-[0-9a-f]{8})?")
_OLD_JOURNAL = re.compile(r"journal-\d{8}-\d{6}-\d{6}\.db(-anchor|-wal|-shm)?")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MARK_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Ends = Mapping[str, float | None]
"""Seconds since the end of each job that the scheduler knows; None for one that has not ended."""


def have_aged_out(folder: Path, job: str) -> bool:
    """Return whether the files of a launched job that has ended are gone from the folder of its run or pool."""
    return (folder / "jobs").is_dir() and not (job_specs.home_of(folder, job) / job_specs.FILE).exists()


def aged_out(keep_ended: float | None) -> str:
    """Return a text that explains why the files of an ended job are gone.

    Args:
        keep_ended: See :class:`~lightning_core.scheduler.settings.Settings`.

    Example::

        >>> f"its log has {aged_out(2592000.0)}"
        'its log has aged out after 30d; keep_ended in the bundle sets how long'
    """
    if keep_ended is None:
        return "been removed"
    return f"aged out after {format_duration(keep_ended)}; keep_ended in the bundle sets how long"


async def age_out_as_time_passes(folder: Path, ask: Callable[[], Awaitable[tuple[Settings, Ends]]]) -> None:
    """Sweep the folder of a run or a pool now and then until cancelled; the event loop never waits for the disk.

    Args:
        folder: The folder.
        ask: Asks the scheduler for its settings and its jobs.
    """
    ageing = Ageing(folder)
    await asyncio.sleep(FIRST_SWEEP)
    while True:
        try:
            steps = ageing.sweep(*await ask())
            while await asyncio.to_thread(next, steps, None) is not None:
                pass
        except Exception as error:  # whatever the error, such as a restarting scheduler: there is a next time
            log.warning("the ended jobs in %s were not looked at: %s", folder, error)
        await asyncio.sleep(SWEEP_INTERVAL)


class Ageing:
    """Removes expired files from the folder of a run or a pool.

    Args:
        folder: The folder.
        clock: Wall clock, in seconds since the epoch.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._told = False

    def sweep(self, settings: Settings, ends: Ends) -> Iterator[int]:
        """Remove expired files step by step; each step returns the folders and old journals inspected so far.

        Args:
            settings: Settings of the scheduler.
            ends: Its jobs.
        """
        now = self._clock()
        if (keep := settings.keep_ended) is None:
            return
        with _entered(self._folder) as top:
            if top is None:
                return
            with _entered("jobs", top) as jobs, _entered("old", top) as old:
                looks: list[Callable[[], bool]] = []
                if jobs is not None:
                    looks += [partial(self._age, name, jobs, now, keep, ends) for name in os.listdir(jobs)]
                if old is not None:
                    looks += [partial(self._age_old, name, old, now, settings, keep) for name in os.listdir(old)]
                for looked, look in enumerate(looks, 1):
                    if look() or looked % FOLDERS_PER_STEP == 0:
                        yield looked

    def _age(self, name: str, there: int, now: float, keep: float, ends: Ends) -> bool:
        """Record the end of a job in its folder, or remove its expired files; return whether any were removed."""
        with self._tolerated(name), _entered(name, there) as home:
            if home is None:
                return False
            since = ends.get(name)
            if name in ends and since is None:
                with suppress(FileNotFoundError):
                    os.unlink(ENDED, dir_fd=home)
                return False
            end = _end_of(home, now, since)
            if end is None or end > now - keep:
                return False
            went = self._clear(name, home)
            _remove_empty(name, there, home)
            return went
        return False

    def _clear(self, job: str, home: int) -> bool:
        """Remove the files of a job that has ended; return whether there were any."""
        goes = [name for name in _names(home) if _GOES.fullmatch(name)]
        for name in goes:
            with self._tolerated(f"{job}/{name}"):
                os.unlink(name, dir_fd=home)
        with _entered(job_checkpoints.FOLDER, home) as saved:
            incarnations = [name for name in _names(saved) if job_checkpoints.NUMBER.fullmatch(name)]
            for name in incarnations:
                with self._tolerated(f"{job}/{job_checkpoints.FOLDER}/{name}"), _entered(name, saved) as own:
                    if own is not None:
                        shutil.rmtree(name, dir_fd=saved)
        if saved is not None:
            with suppress(OSError):  # it holds checkpoints of the training's own
                os.rmdir(job_checkpoints.FOLDER, dir_fd=home)
        return bool(goes or incarnations)

    def _age_old(self, name: str, there: int, now: float, settings: Settings, keep: float) -> bool:
        """Remove the expired part of a pool's earlier times: a journal, or a job whose name was used again."""
        if not _OLD_JOURNAL.fullmatch(name):
            return self._age(name, there, now, keep, {})
        with self._tolerated(name):
            status = os.lstat(name, dir_fd=there)
            is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == this_user()
            if is_ours and status.st_mtime <= now - keep and not settings.keep_all:
                os.unlink(name, dir_fd=there)
                return True
        return False

    @contextmanager
    def _tolerated(self, name: str) -> Iterator[None]:
        """Continue after an error of the file system, which is logged the first time; a missing file is no error."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            if not self._told:
                log.warning("%s: files of ended jobs cannot be removed and stay, the first of them %s: %s",
                            self._folder, name, error)  # fmt: skip
            self._told = True


@contextmanager
def _entered(path: Path | str, within: int | None = None) -> Iterator[int | None]:
    """Open a folder; None if there is none, it is a link, or it belongs to another user.

    Args:
        path: Path of the folder.
        within: Descriptor of the folder to which the path is relative.
    """
    try:
        descriptor = os.open(path, _FOLDER_FLAGS, dir_fd=within)
    except (FileNotFoundError, NotADirectoryError):  # a link is no folder either
        yield None
        return
    try:
        yield descriptor if os.fstat(descriptor).st_uid == this_user() else None
    finally:
        os.close(descriptor)


def _names(folder: int | None) -> list[str]:
    return [] if folder is None else os.listdir(folder)


def _modified(name: str, folder: int) -> float | None:
    """Return the time of a regular file in a folder; None if there is none."""
    with suppress(FileNotFoundError):
        status = os.lstat(name, dir_fd=folder)
        return status.st_mtime if stat.S_ISREG(status.st_mode) else None
    return None


def _end_of(home: int, now: float, since: float | None) -> float | None:
    """Return when the job of a folder ended, recorded there now if it was not; None if that is not known yet.

    Args:
        home: Descriptor of the folder.
        now: Wall-clock time.
        since: Seconds since its end, if the scheduler knows it.
    """
    if (recorded := _modified(ENDED, home)) is not None:
        return recorded
    submitted = _modified(job_specs.FILE, home)
    if submitted is None or submitted > now - SWEEP_INTERVAL:
        return None  # no folder of a job, or of one that the scheduler may not know yet
    end = now if since is None else max(now - since, submitted)
    descriptor = os.open(ENDED, _MARK_FLAGS, 0o600, dir_fd=home)
    try:
        os.utime(descriptor, (end, end))
    finally:
        os.close(descriptor)
    return end


def _remove_empty(name: str, there: int, home: int) -> None:
    """Remove the folder of a job in which only the record of its end is left, unless it was moved away."""
    if set(os.listdir(home)) <= {ENDED} and os.path.samestat(os.lstat(name, dir_fd=there), os.fstat(home)):
        with suppress(FileNotFoundError):
            os.unlink(ENDED, dir_fd=home)
        os.rmdir(name, dir_fd=there)
