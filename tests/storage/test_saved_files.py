"""Checkpoints of scripts: files and folders of any content, complete or not there, and the choice among them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.events import Checkpoint
from lightning_core.storage import saved_files
from lightning_core.storage.generations import generation_path
from lightning_core.storage.job_checkpoints import FILE, adopt, checkpoint_folder, find, newest_written
from lightning_core.storage.manifests import CorruptCheckpointError
from lightning_core.storage.saved_files import NothingSavedError, SavedFiles, check_files


def a_folder(path: Path, content: str) -> Path:
    (path / "inner" / "empty").mkdir(parents=True)
    (path / "weights.bin").write_bytes(content.encode() * 1000)
    (path / "inner" / "state.json").write_text(content)
    return path


def a_file(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def read(path: Path | None) -> str:
    assert path is not None
    return (path / "inner" / "state.json" if path.is_dir() else path).read_text()


Write = Callable[[Path, str], Path]


def save(files: SavedFiles, batches: int, write: Write = a_folder) -> Checkpoint:
    with files.saving(batches) as path:
        assert not path.exists()
        write(path, f"after {batches}")
    assert files.newest is not None
    return files.newest


def saver(home: Path, incarnation: int = 1) -> SavedFiles:
    return SavedFiles(checkpoint_folder(home, incarnation), FILE)


@pytest.mark.parametrize("write", [a_file, a_folder])
def test_a_checkpoint_is_found_and_adopted_under_one_digest(tmp_path: Path, write: Write) -> None:
    saved = save(saver(tmp_path), 7, write)
    found = find(checkpoint_folder(tmp_path, 1))
    assert found is not None
    assert (found.checkpoint, read(found.path)) == (saved, "after 7")
    assert newest_written(checkpoint_folder(tmp_path, 1)) == found
    adopted = adopt(tmp_path, 2, {saved.sha256})
    again = find(checkpoint_folder(tmp_path, 2))
    assert again is not None
    assert again.checkpoint == saved
    assert read(again.path) == "after 7"
    assert adopted == again.path
    if write is a_folder:
        assert (again.path / "inner" / "empty").is_dir()


def test_the_name_that_a_script_chooses_is_kept_if_it_is_the_only_one(tmp_path: Path) -> None:
    with saver(tmp_path).saving(1) as path:
        path.with_name(path.name + ".npz").write_text("as numpy does")
    found = find(checkpoint_folder(tmp_path, 1))
    assert found is not None
    assert found.path.name == "checkpoint.npz"


def test_two_checkpoints_stay_and_their_files_alone(tmp_path: Path) -> None:
    files = saver(tmp_path)
    for batches in range(1, 6):
        save(files, batches)
    folder = checkpoint_folder(tmp_path, 1)
    held = {path.name for path in folder.iterdir() if path.is_dir()}
    assert len(held) == 2
    assert [read(check_files(generation_path(folder / FILE, age))) for age in (0, 1)] == ["after 5", "after 4"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a flipped bit": lambda path: flip(path / "weights.bin"),
    "a missing file": lambda path: (path / "weights.bin").unlink(),
    "a file more": lambda path: (path / "more").write_text(""),
    "a link": lambda path: replace_by_link(path / "weights.bin"),
    "all gone": lambda path: shutil.rmtree(path.parent),
    "a linked folder": lambda path: replace_by_link(path.parent),
    "a truncated listing": lambda path: os.truncate(path.parent.parent / FILE, 40),
}


@pytest.mark.promise("R6")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(tmp_path: Path, damage: str) -> None:
    files = saver(tmp_path)
    accepted = {save(files, batches).sha256 for batches in (1, 2)}
    newest = find(checkpoint_folder(tmp_path, 1))
    assert newest is not None
    DAMAGES[damage](newest.path)
    adopt(tmp_path, 2, accepted)
    found = find(checkpoint_folder(tmp_path, 2))
    assert found is not None
    assert read(found.path) == "after 1"


def test_a_damaged_checkpoint_does_not_replace_the_valid_one_before_it(tmp_path: Path) -> None:
    for batches in (1, 2):
        files = saver(tmp_path)
        save(files, batches)
    folder = checkpoint_folder(tmp_path, 1)
    flip(check_files(folder / FILE) / "weights.bin")
    save(saver(tmp_path), 3)  # by another process of the incarnation
    assert [read(check_files(generation_path(folder / FILE, age))) for age in (0, 1)] == ["after 3", "after 1"]


@pytest.mark.promise("R9")
def test_what_the_scheduler_has_not_accepted_is_not_adopted(tmp_path: Path) -> None:
    files = saver(tmp_path)
    accepted = save(files, 1)
    save(files, 2)  # after the incarnation was given up
    adopt(tmp_path, 2, {accepted.sha256})
    found = find(checkpoint_folder(tmp_path, 2))
    assert found is not None
    assert (found.checkpoint, read(found.path)) == (accepted, "after 1")
    save(files, 3)
    assert read(found.path) == "after 1"


def test_adopting_twice_and_after_an_interruption(tmp_path: Path) -> None:
    accepted = {save(saver(tmp_path), 1).sha256}
    own = checkpoint_folder(tmp_path, 2)
    (own / "unfinished-0123").mkdir(parents=True)
    for _ in range(2):
        assert read(adopt(tmp_path, 2, accepted)) == "after 1"
    (own / FILE).unlink()  # interrupted after the files, before the listing
    assert read(adopt(tmp_path, 2, accepted)) == "after 1"
    save(SavedFiles(own, FILE), 2)
    assert not (own / "unfinished-0123").exists()
    save(saver(tmp_path, 3), 3)
    adopt(tmp_path, 4, accepted)
    assert not checkpoint_folder(tmp_path, 1).exists()


def test_what_was_saved_cannot_be_overwritten_in_place(tmp_path: Path) -> None:
    files = saver(tmp_path)
    save(files, 1, a_file)
    found = find(checkpoint_folder(tmp_path, 1))
    assert found is not None
    assert found.path.stat().st_mode & 0o222 == 0


def test_a_failed_save_leaves_the_one_before_and_no_litter(tmp_path: Path) -> None:
    files = saver(tmp_path)
    first = save(files, 1)
    with pytest.raises(NotADirectoryError), files.saving(2) as path:
        a_folder(a_file(path, "half"), "within a file")
    with pytest.raises(NothingSavedError, match="nothing was saved"), files.saving(3):
        pass
    with pytest.raises(CorruptCheckpointError, match="link"), files.saving(4) as path:
        path.symlink_to("/etc/passwd")
    assert files.newest == first
    folder = checkpoint_folder(tmp_path, 1)
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 1
    assert find(folder) is not None


def test_a_copy_survives_what_its_source_becomes(tmp_path: Path) -> None:
    files, source = saver(tmp_path), tmp_path / "output" / "last.pt"
    source.parent.mkdir()
    source.write_text("after 1")
    files.copy(source, 1)
    source.write_text("half of the next one")
    found = find(checkpoint_folder(tmp_path, 1))
    assert found is not None
    assert read(found.path) == "after 1"
    files.copy(source.parent, 2)
    assert (check_files(checkpoint_folder(tmp_path, 1) / FILE) / "last.pt").read_text() == "half of the next one"


KILLED = """
import os, signal, sys
from pathlib import Path
from lightning_core.storage import saved_files
files, point = saved_files.SavedFiles(Path(sys.argv[1]), "last.ckpt"), int(sys.argv[2])
with files.saving(1) as path:
    path.write_text("after 1")
steps = 0
def step(event, arguments):
    global steps
    if event in ("os.rename", "open", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree"):
        steps += 1
        if steps == point:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(step)
with files.saving(2) as path:
    path.write_text("after 2")
"""


@pytest.mark.promise("R6")
def test_a_kill_at_any_step_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """A fork for each step, so that all of them cost little more than one start of Python."""
    code, point, seen, killed = compile(KILLED, "killed", "exec"), 0, set[str](), True
    while killed:
        point += 1
        folder = tmp_path / str(point) / "checkpoints" / "1"
        if (pid := os.fork()) == 0:
            sys.argv = ["killed", str(folder), str(point)]
            try:
                exec(code, {"__name__": "killed"})
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        found = find(folder)
        assert found is not None, point
        seen.add(read(found.path))
    assert seen == {"after 1", "after 2"}
    assert point > 10


def test_it_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys, lightning_core.agent.launched_script as one; one.launched_script();"
        "heavy = {'ray', 'torch', 'lightning'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_listing_that_names_another_folder_is_refused(tmp_path: Path) -> None:
    files = saver(tmp_path)
    save(files, 1)
    path = checkpoint_folder(tmp_path, 1) / FILE
    text = path.read_text()
    name = text.partition('"folder": "')[2].partition('"')[0]
    for other in ("..", "../2/saved-0123456789abcdef", "/etc"):
        path.write_text(text.replace(name, other))
        with pytest.raises(CorruptCheckpointError, match="listing is damaged"):
            check_files(path)
    path.write_text(text.replace('"size"', "") + "]")
    with pytest.raises(CorruptCheckpointError, match="listing is damaged"):
        check_files(path)
    assert saved_files.is_listing(path)
