"""What is read is a regular file of bounded size; until a file is whole, its name cannot be foreseen."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.yaml_loader import load_yaml
from lightning_core.parts.edge_cloud.demands_file import read_arrivals
from lightning_core.parts.edge_cloud.placement import Demands
from lightning_core.parts.market.traces import read_trace
from lightning_core.regular_files import open_regular, read_regular, read_text
from lightning_core.run.bundle_plan import earlier_runs
from lightning_core.scheduler.settings import Settings
from lightning_core.server.discovery import read_head
from lightning_core.simulation.recorded_curves import load_curves, read_recording
from lightning_core.storage.atomic_files import link_file, replace_link, write_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.manifests import CorruptCheckpointError, read_manifest
from tests.others import without_waiting


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 10**9)


def growing(path: Path) -> None:
    """A file whose size is 0 before it is read."""
    path.symlink_to("/proc/self/smaps")


def folder(path: Path) -> None:
    path.mkdir()


KINDS = [pipe, listener, device, hole, folder]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (pipe, "it is a pipe; expected a regular file"),
        (listener, "it is a socket; expected a regular file"),
        (device, "it is a device; expected a regular file"),
        (hole, "larger than 100 bytes"),
        (growing, "larger than 100 bytes"),
        (folder, "Is a directory"),
    ],
)
def test_what_is_no_file_of_bounded_size_is_refused_at_once(
    make: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    make(tmp_path / "file")
    with without_waiting(), pytest.raises(OSError, match=words) as said:
        read_regular(tmp_path / "file", 100)
    assert said.value.filename == str(tmp_path / "file")


def test_a_file_that_is_replaced_by_a_pipe_when_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a")
    opened = os.open

    def swapped(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        os.unlink(tmp_path / "file")
        os.mkfifo(tmp_path / "file")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    with without_waiting(), pytest.raises(OSError, match="it is a pipe"):
        open_regular(tmp_path / "file")


def test_a_regular_file_is_read_through_a_link_unless_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 7) == b"content"
    assert read_text(tmp_path / "file", 7) == "content"
    with pytest.raises(OSError, match="it is a link, which is not followed here"):
        read_regular(tmp_path / "link", 7, follow_links=False)


def journal(path: Path) -> None:
    Journal.open(path, read_only=True)


def log_of_journal(path: Path) -> None:
    """A journal whose write-ahead log is something else."""
    Journal.create(path.with_name("journal.db"), Settings()).close()
    path.rename(path.with_name("journal.db-wal"))
    Journal.open(path.with_name("journal.db"), read_only=True)


def summary(path: Path) -> None:
    path.rename(path.with_name("summary.json"))
    assert list(earlier_runs(path.parent)) == []
    raise BundleError(["it is left out"])


def index(path: Path) -> None:
    path.rename(path.with_name("index.csv"))
    load_curves(path.parent)


def manifest(path: Path) -> None:
    path.rename(path.with_name("last.ckpt.json"))
    read_manifest(path.with_name("last.ckpt"))


def head(path: Path) -> None:
    path.rename(path.with_name("head.json"))
    read_head(path.parent)


READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "bundle.yaml": (lambda path: load_yaml(path, ""), BundleError),
    "arrivals.csv": (lambda path: read_arrivals(path, cast(Demands, None)), BundleError),
    "curve.csv": (read_recording, ValueError),
    "curves": (index, ValueError),
    "market.csv": (read_trace, OSError),
    "market.json": (lambda path: read_trace(path, 0.3), OSError),
    "market.csv.gz": (read_trace, OSError),
    "journal": (journal, JournalError),
    "log": (log_of_journal, JournalError),
    "summary": (summary, BundleError),
    "manifest": (manifest, CorruptCheckpointError),
    "head": (head, ConnectionError),
}


@pytest.mark.promise("S15")
@pytest.mark.parametrize("make", [pipe, listener, device])
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_or_reads_without_end(reader: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    read, error = READERS[reader]
    make(tmp_path / reader)
    with without_waiting(), pytest.raises(error):
        read(tmp_path / reader)


@pytest.mark.promise("S15")
@pytest.mark.parametrize("reader", sorted(set(READERS) - {"journal", "log"}))  # a journal may be of any size
def test_no_reader_takes_a_file_of_any_size(reader: str, tmp_path: Path) -> None:
    read, error = READERS[reader]
    hole(tmp_path / reader)
    with without_waiting(), pytest.raises(error):
        read(tmp_path / reader)


def test_a_table_that_is_small_until_it_is_decompressed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    (tmp_path / "market.csv.gz").write_bytes(gzip.compress(b"available\n" + b"1\n" * 2**20))
    monkeypatch.setattr("lightning_core.parts.market.traces.MAX_TABLE_BYTES", 2**20)
    with pytest.raises(ValueError, match=r"larger than 1,048,576 bytes when it is decompressed"):
        read_trace(tmp_path / "market.csv.gz", 0.3)
    monkeypatch.undo()
    monkeypatch.setattr("lightning_core.parts.market.traces.MAX_ROWS", 1000)
    with pytest.raises(ValueError, match="must have at most 1,000 rows"):
        read_trace(tmp_path / "market.csv.gz", 0.3)


# ---------------------------------------------------------------------------------------------------- what is written


@pytest.mark.promise("S15")
def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """Neither at the file's own path nor at any that could be foreseen."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("report.html", "report.html.new", "report.html.tmp", f"report.html.{os.getpid()}.new"):
        (tmp_path / name).symlink_to(precious)
    write_whole(tmp_path / "report.html", "report")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "report.html").read_text() == "report"


@pytest.mark.promise("S15")
def test_no_two_writes_use_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    replace = os.replace

    def noted(source: Path, target: Path) -> None:
        names.append(Path(source).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    for text in "ab":
        write_whole(tmp_path / "file", text)
        link_file(tmp_path / "file", tmp_path / "linked")
        replace_link(tmp_path / "link", Path("file"))
    assert len(set(names)) == 6
    assert all(re.fullmatch(r"(file|linked|link)\.part-\d+-[0-9a-f]{8}", name) for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "linked"]


@pytest.mark.promise("S15")
def test_a_name_that_exists_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a name be guessed all the same."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f"file.part-{os.getpid()}-00000000").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", "text")
    with pytest.raises(FileExistsError):
        link_file(precious, tmp_path / "file")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_a_file_is_as_readable_as_the_umask_makes_it(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("make", [pipe, listener, device, folder])
def test_only_files_and_links_to_files_are_replaced(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    kind = stat.S_IFMT((tmp_path / "file").lstat().st_mode)
    with pytest.raises(OSError, match=r"expected a regular file|Is a directory"):
        write_whole(tmp_path / "file", "text")
    assert stat.S_IFMT((tmp_path / "file").lstat().st_mode) == kind
    assert len(list(tmp_path.iterdir())) == 1


def test_what_a_dead_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "file.part-1-0123abcd").write_text("half")
    (tmp_path / "other.part-1-0123abcd").write_text("half")
    write_whole(tmp_path / "file", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other.part-1-0123abcd"]


def test_a_write_that_fails_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as said:
        write_whole(tmp_path / "file", "new")
    assert said.value.filename == str(tmp_path / "file")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]
