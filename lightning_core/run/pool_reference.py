"""The folder of a run whose jobs are in a pool: a reference to the pool, and copies of the results.

Rules

1. Only the pool writes its folder, and it needs nothing from this one: the command that follows a run may end and start
   again.
2. The results outlive the pool's folder: they are copies or, for checkpoints, which are never changed, hard links where
   the file system supports them. There are no symbolic links: files written here must stay here.
3. The folder of a pool on another machine is not read. One on this machine is identified by the submission in its
   journal.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.validation import checked
from lightning_core.run.ageing import aged_out, have_aged_out
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import home_of
from lightning_core.storage.journals import excerpt
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalPart
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.private_files import NotOursError, check_ours, is_ours, owner_only, read_own

FILE = "pool.json"
JOURNAL = "journal.db"
MAX_REFERENCE_BYTES = 2**20


@dataclass(frozen=True)
class PoolReference:
    """Reference from the folder of a run to the pool that its jobs are in.

    Args:
        pool: Address of the pool: its folder, or ``host:port`` of its Ray.
        folder: Folder of the pool, on the pool's machine.
        jobs: Names of the jobs.
        submitted_at: Scheduler time of the submission, which identifies it; None before the submission.
        ended: Whether all jobs have ended and their results have been copied.
    """

    pool: str
    folder: str
    jobs: tuple[str, ...]
    submitted_at: float | None = None
    ended: bool = False

    @classmethod
    def read(cls, run_dir: Path) -> Self | None:
        """Read the reference in a folder; None if the run is in no pool, or the folder is none of a run.

        Raises:
            NotOursError: If another user could have written it.
            ValueError: If the reference is malformed.
        """
        try:
            body = json.loads(read_own(run_dir, FILE, MAX_REFERENCE_BYTES))
            return checked(body, cls)  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NotOursError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{run_dir / FILE} is no reference to a pool: {error}") from None

    def write(self, run_dir: Path) -> None:
        """Write the reference atomically."""
        with owner_only():
            write_whole(run_dir / FILE, json.dumps(asdict(self), indent=2))

    @property
    def journal_part(self) -> JournalPart:
        """Part of the pool's journal that belongs to the run.

        Raises:
            JournalError: If nothing has been submitted yet.
        """
        if self.submitted_at is None:
            raise JournalError("nothing has been submitted yet")
        return JournalPart(self.folder, self.jobs, self.submitted_at)

    def own_jobs(self, jobs: Iterable[JobStatus]) -> list[JobStatus]:
        """Return the jobs of this run; other jobs may have used the same names before or after."""
        found = {job.name: job for job in jobs if job.submitted_at == self.submitted_at}
        return [found[name] for name in self.jobs if name in found]


def journal_path(path: Path) -> Path:
    """Return the path of the journal of a run or a pool, brought up to date if possible.

    A folder of another user is only read: no file in it can name another folder, and nothing is written.

    Args:
        path: Folder of a run or a pool, or its journal.

    Raises:
        JournalError: If the jobs of the run are in a pool whose journal is not on this machine.
    """
    if not path.is_dir():
        return path
    journal = path / JOURNAL
    if not is_ours(path):
        return journal
    note = PoolReference.read(path)
    if note is None or note.ended:
        return journal
    try:
        with owner_only():
            excerpt.write(note.journal_part, journal)
    except (JournalError, OSError, sqlite3.DatabaseError) as error:
        if not journal.exists():
            raise JournalError(f"{path}: its jobs are in the pool at {note.pool}: {error}") from None
    return journal


def copy_results(
    run_dir: Path, note: PoolReference, jobs: Sequence[JobStatus], newest: Iterable[JobStatus]
) -> list[str]:
    """Copy the results of a run from the folder of its pool: journal, logs and checkpoints.

    Args:
        run_dir: Folder of the run.
        note: Reference to the pool.
        jobs: Current status of the jobs of the run. The checkpoints of a job are copied once it has ended.
        newest: The newest job of each name in the pool, which owns the folder of that name.

    Returns:
        A line for each thing that could not be copied.
    """
    try:
        check_ours(Path(note.folder))
        with owner_only():
            excerpt.write(note.journal_part, run_dir / JOURNAL)
    except (JournalError, NotOursError) as error:
        return [f"no journal, logs or checkpoints can be copied: {error}"]
    again = {job.name for job in newest} - {job.name for job in note.own_jobs(newest)}
    problems = []
    for job in jobs:
        source, target = home_of(Path(note.folder), job.name), home_of(run_dir, job.name)
        if job.name in again:
            if not target.exists():
                problems.append(
                    f"{job.name}: its name was used again; its results are in {note.folder}/old, until they age out"
                )
            continue
        if job.state is State.ENDED and have_aged_out(Path(note.folder), job.name):
            problems.append(f"{job.name}: its logs, spec and resume checkpoints have {_aged_out(run_dir)}")
            if target.exists() or not source.exists():  # earlier copies are more than the pool still has
                continue
        try:
            with owner_only():
                _copy(source, target, whole=job.state is State.ENDED)
        except (OSError, shutil.Error) as error:
            problems.append(f"{job.name}: its results cannot be copied from {source}: {error}")
    return problems


def _aged_out(run_dir: Path) -> str:
    """Return a text that explains why files of an ended job are gone from the pool of a run."""
    with Journal.open(run_dir / JOURNAL, read_only=True) as journal:
        return aged_out(journal.settings().keep_ended)


def _copy(source: Path, target: Path, *, whole: bool) -> None:
    """Copy the folder of a job: all of it, or only its logs and its spec."""
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if whole:
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
        return
    target.mkdir()
    for path in [*source.glob("log*.txt"), source / "spec.json"]:
        with suppress(FileNotFoundError):  # it has not started
            shutil.copy2(path, target / path.name)


def _link_or_copy(source: str, target: str) -> None:
    if not source.endswith(".txt"):  # logs still grow
        with suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)
