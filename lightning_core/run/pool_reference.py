"""The folder of a run whose jobs run in a pool: what it notes of the pool, and what it takes from there.

Rules

1. The pool is the only one to write its folder, and needs nothing of this one: whoever looks on may go and come back.
2. What is here stays when the pool's folder goes: copies, and of checkpoints, which are never written again, hard links
   where the file system has them. No symbolic links: what is written here must stay here.
3. The folder of a pool on another machine is not read. One here is known by the submission in its journal.
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
from lightning_core.storage import excerpt
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import home_of
from lightning_core.storage.journal import JournalError, PartOf
from lightning_core.storage.private_files import owner_only

FILE = "pool.json"
JOURNAL = "journal.db"


@dataclass(frozen=True)
class PoolReference:
    """What the folder of a run notes of the pool that its jobs are in.

    Args:
        pool: where the pool is: its folder, or ``host:port`` of its Ray.
        folder: of the pool, on its own machine.
        jobs: names.
        submitted_at: scheduler time of the submission, by which it is known; None before it.
        ended: whether all of its jobs have ended, and what they left is here.
    """

    pool: str
    folder: str
    jobs: tuple[str, ...]
    submitted_at: float | None = None
    ended: bool = False

    @classmethod
    def of(cls, run_dir: Path) -> Self | None:
        """Return the note in a folder; None if its run is in no pool, or it is no folder of a run.

        Raises:
            ValueError: if the note cannot be understood.
        """
        try:
            body = json.loads((run_dir / FILE).read_text())
            return checked(cls(**body | {"jobs": tuple(body["jobs"])}), cls)  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{run_dir / FILE} is no note of a pool: {error}") from None

    def keep(self, run_dir: Path) -> None:
        """Write the note, whole or not at all."""
        with owner_only():
            write_whole(run_dir / FILE, json.dumps(asdict(self), indent=2))

    @property
    def part(self) -> PartOf:
        """Which part of the pool's journal is the run's.

        Raises:
            JournalError: if nothing has been submitted yet.
        """
        if self.submitted_at is None:
            raise JournalError("nothing has been submitted yet")
        return PartOf(self.folder, self.jobs, self.submitted_at)

    def mine(self, jobs: Iterable[JobStatus]) -> list[JobStatus]:
        """Return the jobs of this run: a name may have been used before, and since."""
        found = {job.name: job for job in jobs if job.submitted_at == self.submitted_at}
        return [found[name] for name in self.jobs if name in found]


def journal_path(path: Path) -> Path:
    """Return the path of the journal of a run or a pool, as new as can be had.

    Args:
        path: folder of a run or a pool, or its journal.

    Raises:
        JournalError: if the jobs of the run are in a pool whose journal is not here.
    """
    if not path.is_dir():
        return path
    journal = path / JOURNAL
    note = PoolReference.of(path)
    if note is None or note.ended:
        return journal
    try:
        with owner_only():
            excerpt.write(note.part, journal)
    except (JournalError, OSError, sqlite3.DatabaseError) as error:
        if not journal.exists():
            raise JournalError(f"{path}: its jobs are in the pool at {note.pool}: {error}") from None
    return journal


def take(run_dir: Path, note: PoolReference, jobs: Sequence[JobStatus], newest: Iterable[JobStatus]) -> list[str]:
    """Take from the pool's folder what concerns the run: the journal, and what each job printed and saved.

    Args:
        run_dir: folder of the run.
        note: of its pool.
        jobs: of the run, as they are now. What one saved is taken once it has ended.
        newest: the newest job of each name in the pool: the folder of a name is that job's.

    Returns:
        What could not be taken, a line each.
    """
    try:
        with owner_only():
            excerpt.write(note.part, run_dir / JOURNAL)
    except JournalError as error:
        return [f"no journal, logs or checkpoints are taken: {error}"]
    again = {job.name for job in newest} - {job.name for job in note.mine(newest)}
    problems = []
    for job in jobs:
        source, target = home_of(Path(note.folder), job.name), home_of(run_dir, job.name)
        if job.name in again:
            if not target.exists():
                problems.append(f"{job.name}: its name was used again; what it left is in {note.folder}/old")
            continue
        try:
            with owner_only():
                _copy(source, target, whole=job.state is State.ENDED)
        except (OSError, shutil.Error) as error:
            problems.append(f"{job.name}: what it left cannot be taken from {source}: {error}")
    return problems


def _copy(source: Path, target: Path, *, whole: bool) -> None:
    """Makes a job's folder again: all of it, or what it has printed and its spec alone."""
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if whole:
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
        return
    target.mkdir()
    for path in [*source.glob("log*.txt"), source / "spec.json"]:
        with suppress(FileNotFoundError):  # it has not begun
            shutil.copy2(path, target / path.name)


def _link_or_copy(source: str, target: str) -> None:
    if not source.endswith(".txt"):  # what is printed grows
        with suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)
