"""Journals in a folder that cannot be written to: on read-only media, or of a person who gave the right to read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_core.core.commands import Cancel
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay

OTHER_USER = 65534


def without_rights(call: Callable[[], object]) -> str:
    """Return what a call returns or raises in a process that may not write here; root may write anywhere."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(OTHER_USER)
                os.setuid(OTHER_USER)
            said = str(call())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can reach; that of ``tmp_path`` lies in one of its user's own."""
    made = Path(tempfile.mkdtemp(prefix="lc-"))
    yield made
    for place in (made, *made.rglob("*")):
        place.chmod(0o700)
    shutil.rmtree(made)


@pytest.fixture
def host(folder: Path) -> Iterator[Host]:
    """A scheduler with two events in its journal."""
    made = Host(Settings("edf"), folder / "journal.db", clock=lambda: 0.0)
    made.handle(Submit((Job("a", 900.0, BatchTarget(5)),)))
    made.handle(Cancel("a"))
    yield made
    made.close()


def only_readable(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


def events(path: Path) -> int:
    with Journal.open(path, read_only=True) as journal:
        return replay(journal).events


@pytest.mark.promise("F7")
def test_a_closed_journal_is_read_in_a_folder_that_cannot_be_written_to(host: Host, folder: Path) -> None:
    path = folder / "journal.db"
    host.close()
    only_readable(path.parent)
    assert without_rights(lambda: events(path)) == "2"


@pytest.mark.promise("F7")
def test_events_in_a_log_that_cannot_be_read_are_not_left_out(host: Host, folder: Path) -> None:
    """SQLite would read the file alone, without the newest events."""
    path = folder / "journal.db"
    copy = path.parent / "copy"
    copy.mkdir()
    for suffix in ("", "-wal", "-anchor"):  # as a killed scheduler leaves it, on another machine
        shutil.copy(f"{path}{suffix}", copy / f"{path.name}{suffix}")
    only_readable(copy)
    path.parent.chmod(0o755)
    said = without_rights(lambda: events(copy / path.name))
    assert said.startswith(f"JournalError: {copy / path.name}: its newest events are in journal.db-wal, and ")
    assert said.endswith("cannot be written to: copy the folder, and read the copy")
    copy.chmod(0o700)
    with pytest.raises(JournalError, match="no journal here"):
        events(copy / "none.db")
