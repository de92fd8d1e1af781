"""Saves killed before every call and at every byte; disks that are full, read-only or slow: no checkpoint is lost."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from lightning_core.agent.steering.fit_signals import JobReleased
from lightning_core.callbacks import SafeCheckpointIO
from lightning_core.callbacks.checkpointing import job_checkpointer
from lightning_core.storage import generations, manifests
from lightning_core.storage.generations import newest_valid
from lightning_core.storage.job_checkpoints import FILE, adopt, checkpoint_folder, find
from lightning_core.storage.manifests import is_valid
from lightning_core.worker.process_group import Rank, free_port, joined_ranks
from tests.callbacks.test_callback import Script, grant
from tests.cluster.test_release import launched, release
from tests.faults.test_checkpoints import Broken, cut, flip, state
from tests.tiny import QUIET, Line, Net, NoisyPoints, Points

Figure = Callable[[str, object], None]
# What Python tells of before the kernel does it; syncing and writing, of which it does not, are wrapped.
CALLS = frozenset({"open", "os.rename", "os.link", "os.remove", "os.mkdir", "fcntl.flock"})


def in_child(work: Callable[[], object]) -> int:
    """Run a function in its own process; return its wait status."""
    return os.waitpid(start(work), 0)[1]


def start(work: Callable[[], object]) -> int:
    """Start a function in its own process, which has imported torch; return the process."""
    if pid := os.fork():
        return pid
    try:
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed_before(call: int, work: Callable[[], object]) -> Callable[[], object]:
    """Kill the process before a call, counted from 0."""

    def run() -> None:
        left = call

        def count(*_: Any) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        sync, write = os.fsync, generations._HashingFile.write

        def counted_sync(fd: Any) -> None:
            count()
            sync(fd)

        def counted_write(self: Any, data: Any) -> int:
            count()
            return write(self, data)

        setattr(os, "fsync", counted_sync)  # noqa: B010
        setattr(generations._HashingFile, "write", counted_write)  # noqa: B010
        sys.addaudithook(lambda event, _: count() if event in CALLS else None)
        work()

    return run


def killed_at(size: int, work: Callable[[], object]) -> Callable[[], object]:
    """Kill the process when one of its files grows beyond a number of bytes."""

    def run() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        work()

    return run


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory, because hundreds of saves would take long on a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def save(path: Path, number: int) -> None:
    SafeCheckpointIO().save_checkpoint(state(number), path)


def loaded(path: Path) -> int:
    """Return the number of the checkpoint that loads, and check that it is complete."""
    content = SafeCheckpointIO().load_checkpoint(path)
    assert torch.equal(content["weights"], state(content["number"])["weights"])
    return int(content["number"])


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if ".part-" in name]


def theirs(path: Path) -> None:
    """Save like Lightning: a file without a manifest."""
    torch.save(state(1), path)


def one(path: Path) -> None:
    save(path, 1)


def two(path: Path) -> None:
    save(path, 2)


def gone(path: Path) -> None:
    path.unlink()


def cut_older(path: Path) -> None:
    cut(generations.generation_path(path, 1))


# State before the save, and the checkpoint that loads then.
BEGINNINGS: dict[str, tuple[list[Callable[[Path], None]], int | None]] = {
    "nothing": ([], None),
    "one": ([one], 1),
    "two": ([one, two], 2),
    "newest damaged": ([one, two, flip], 1),
    "newest gone": ([one, two, gone], 1),
    "older damaged": ([one, two, cut_older], 2),
    "without a manifest": ([theirs], 1),
}


def begin(path: Path, beginning: str) -> int | None:
    """Return the checkpoint that is there at the beginning."""
    actions, number = BEGINNINGS[beginning]
    path.parent.mkdir()
    for action in actions:
        action(path)
    return number


def check_after(path: Path, before: int | None, died: bool) -> None:
    """Check that one of the two loads, verified if one was before, and that the next save works."""
    if not died:
        assert loaded(path) == 9
    elif before is None and not path.exists():
        assert not is_valid(path)
    else:
        assert loaded(path) in (before, 9)
    save(path, 10)
    assert loaded(path) == 10
    assert is_valid(path)
    assert not leftovers(path.parent)


@pytest.mark.promise("R6", "F6")
@pytest.mark.parametrize(
    "beginning",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name not in ("one", "newest damaged"))) for name in BEGINNINGS],
)
def test_a_save_killed_before_any_call_loses_no_checkpoint(
    quick: Path, beginning: str, record_property: Figure
) -> None:
    """R6, F6: the process is killed between any two calls, until a save has no more calls."""
    call = 0
    died = True
    while died:
        path = quick / str(call) / FILE
        before = begin(path, beginning)
        verified = newest_valid(path) is not None
        died = in_child(killed_before(call, partial(save, path, 9))) != 0
        assert not verified or newest_valid(path) is not None
        check_after(path, before, died)
        call += 1
    record_property("figure", f"killed before each of {call - 1} calls ({beginning}): the old or the new one loads")
    assert call > 15


@pytest.mark.promise("R6", "F6")
@pytest.mark.parametrize("pairs", [40, pytest.param(1000, marks=pytest.mark.nightly)])
def test_two_killed_saves_lose_no_checkpoint(quick: Path, pairs: int, record_property: Figure) -> None:
    """R6, F6: the second kill hits a save that follows a killed one."""
    draw = random.Random(pairs)
    for number in range(pairs):
        path = quick / str(number) / FILE
        before = begin(path, "two")
        seen: list[int | None] = [before]
        for saved_now in (7, 9):
            in_child(killed_before(draw.randrange(30), partial(save, path, saved_now)))
            assert newest_valid(path) is not None
            seen.append(loaded(path))
        assert seen[1] in (2, 7)
        assert seen[2] in (seen[1], 9)
        shutil.rmtree(path.parent)
    record_property("figure", f"two saves one after the other killed, {pairs} times: a verified one loads")


@pytest.mark.promise("R6", "F6")
@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_save_killed_at_any_byte_loses_no_checkpoint(quick: Path, step: int, record_property: Figure) -> None:
    """R6, F6: the kernel kills the process when the file has a number of bytes; every 97th unless nightly."""
    path = quick / FILE
    save(path, 9)
    size = path.stat().st_size
    tried = 0
    for offset in range(0, size, step):
        save(path, 1)
        assert in_child(killed_at(offset, partial(save, path, 9))) == signal.SIGXFSZ
        assert loaded(path) == 1
        assert is_valid(path)
        tried += 1
    assert not leftovers(quick)
    record_property("figure", f"killed at {tried} byte offsets of {size}: the one before loads")


def save_for_ever(path: Path, number: int, pipe: int) -> None:
    """Save again and again, and report each save."""
    io = SafeCheckpointIO()
    while True:
        number += 1
        content = {"number": number, "global_step": number, "weights": torch.full((1_000_000,), number)}
        io.save_checkpoint(content, path)
        os.write(pipe, number.to_bytes(8, "big"))


@pytest.mark.promise("R6", "F6")
@pytest.mark.nightly
def test_fifty_kills_at_random_moments_lose_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Figure
) -> None:
    """R6, F6: with the temporary folder on another file system, where Lightning's own way loses the last good one."""
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    path, draw, said, inside = tmp_path / FILE, random.Random(1), 0, 0
    elsewhere = set(os.listdir("/dev/shm"))
    for _ in range(50):
        answers, mine = os.pipe()
        pid = start(partial(save_for_ever, path, said, mine))
        os.close(mine)
        first = os.read(answers, 8)
        time.sleep(draw.random() * 0.08)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(answers, "rb") as rest:
            words = first + rest.read()
        said = int.from_bytes(words[-8:], "big")
        inside += bool(leftovers(tmp_path))
        assert newest_valid(path) is not None
        found = SafeCheckpointIO().load_checkpoint(path)
        assert found["number"] in (said, said + 1)
        assert (found["weights"] == found["number"]).all()
        said = found["number"]
        assert not leftovers(tmp_path)
    assert inside >= 10  # the kills do hit saves
    assert set(os.listdir("/dev/shm")) <= elsewhere
    record_property("figure", f"50 kills, {inside} while a file was written: the newest verified one loaded 50 times")


@pytest.mark.promise("R5", "R6")
def test_an_adoption_killed_before_any_call_is_finished_later(quick: Path) -> None:
    """The next pool manager finishes what a killed one had begun."""
    call, died = 0, True
    while died:
        job = quick / str(call)
        for number in (1, 2):
            save(checkpoint_folder(job, 1) / FILE, number)
        accepted = {
            manifests.verify(path).sha256 for path in generations.generation_paths(job / "checkpoints/1" / FILE)
        }
        died = in_child(killed_before(call, partial(adopt, job, 2, accepted))) != 0
        path = adopt(job, 2, accepted)
        assert path == job / "checkpoints/2" / FILE
        assert loaded(path) == 2
        assert loaded(checkpoint_folder(job, 1) / FILE) == 2
        call += 1
    assert call > 10


# ------------------------------------------------------------------------------------------ disks


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a separate file system of a number of bytes in a folder."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def refusal(path: Path, number: int) -> str | None:
    """Return the error if there is no space; None if it is saved."""
    try:
        save(path, number)
    except OSError as error:
        return str(error) if error.errno == errno.ENOSPC else repr(error)
    return None


@pytest.mark.promise("R6", "F7")
def test_a_full_disk_loses_no_checkpoint(tmp_path: Path, record_property: Figure) -> None:
    """F7: from no free space at all to just enough, on a separate file system."""
    disk, page, tried, failed = tmp_path / "disk", 4096, 0, 0
    with small_disk(disk, 64 * page):
        path = disk / FILE
        for number in (1, 2):
            save(path, number)
        before = 2
        for room in range(8):
            filler = disk / "filler"
            filler.unlink(missing_ok=True)
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - room * page))
            tried += 1
            said = refusal(path, before + 1)
            if said is None:
                before += 1
            else:
                failed += 1
                assert f"{path} cannot be saved: No space left on device (about 0.004 MB needed, " in said
                assert f"{room * page / 1e6:.3g} MB free)" in said
            assert loaded(path) == before
            assert is_valid(path)
            assert is_valid(generations.generation_path(path, 1))
            assert not leftovers(disk)
        assert 0 < failed < tried
        filler.unlink()
        save(path, 99)
        assert loaded(path) == 99
    record_property(
        "figure", f"{failed} of {tried} saves failed for want of room, two verified ones were there each time"
    )


@pytest.mark.promise("F7")
def test_a_limit_on_the_size_of_files_loses_no_checkpoint(tmp_path: Path) -> None:
    """F7 without the right to mount: the kernel refuses more than a number of bytes in a file."""
    path = tmp_path / FILE
    save(path, 1)
    save(path, 2)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        # The second is more than fits into a buffer: torch meets the error, and would tell of it in terms of its own.
        for weights in (torch.zeros(1000), torch.zeros(100_000)):
            with pytest.raises(OSError, match="cannot be saved: File too large"):
                SafeCheckpointIO().save_checkpoint({"weights": weights}, path)

    assert in_child(work) == 0
    assert (loaded(path), loaded(generations.generation_path(path, 1)), leftovers(tmp_path)) == (2, 1, [])


@pytest.mark.promise("F8")
def test_a_read_only_folder_loads_and_refuses_to_save(tmp_path: Path) -> None:
    """F8: existing checkpoints load, and new ones are refused with a clear error."""
    disk = tmp_path / "disk"
    with small_disk(disk, 1 << 20):
        save(disk / FILE, 1)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(OSError, match="cannot be saved: Read-only file system") as error:
            save(disk / FILE, 2)
        assert error.value.errno == errno.EROFS
        assert loaded(disk / FILE) == 1


# ------------------------------------------------------------------------------------------ trainings


class Tell(pl.Callback):
    """Reports each batch."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        os.write(self.pipe, trainer.global_step.to_bytes(8, "big"))


def train_for_ever(folder: Path, every: float, pipe: int) -> None:
    """Train batches of a hundredth of a second, saved at the given period however long that takes."""
    setattr(job_checkpointer, "MIN_TRAINING_PER_SAVE", 0.0)  # noqa: B010
    model = Net()
    model.pause = 0.01
    callbacks = [launched(folder, save_every=every), Tell(pipe)]
    trainer = pl.Trainer(**QUIET, max_epochs=-1, limit_val_batches=0, callbacks=callbacks)
    trainer.fit(model, datamodule=NoisyPoints())


@pytest.mark.promise("R7", "F5")
def test_a_kill_costs_at_most_one_save_interval_and_a_batch(tmp_path: Path, record_property: Figure) -> None:
    """R7: a launched job saves twice a second and is killed three times, at random."""
    draw, worst, every = random.Random(2), 0, 0.5
    for number in range(3):
        folder, (answers, mine) = tmp_path / str(number), os.pipe()
        pid = start(partial(train_for_ever, folder, every, mine))
        os.close(mine)
        os.read(answers, 8)
        while find(folder) is None:
            time.sleep(0.05)
        time.sleep(0.5 + draw.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(answers, "rb") as rest:
            done = int.from_bytes(rest.read()[-8:], "big")
        found = find(folder)
        assert found is not None
        worst = max(worst, done - found.checkpoint.batches)
    at_most = every / 0.01 + 1  # no batch is shorter than 0.01 s
    record_property(
        "figure", f"{worst} batches lost at most, where an interval that does not grow and a batch are {at_most:.0f}"
    )
    assert worst <= at_most


@pytest.mark.promise("R6", "R13", "F7")
def test_all_ranks_know_whether_the_first_could_save(tmp_path: Path) -> None:
    """R13: no rank waits in a barrier for one that failed; they leave together once saving works again."""
    port = free_port()
    ranks = [start(partial(train_as_a_rank, tmp_path, Rank(number, 2, port=port))) for number in (0, 1)]
    assert [os.waitpid(pid, 0)[1] for pid in ranks] == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["attempts"] >= 3
    assert first["steps"] == second["steps"] == first["saved"] == second["saved"]
    found = find(tmp_path)
    assert found is not None
    assert found.checkpoint.batches == first["steps"]
    assert (
        sum("Training continues, and saving is tried again" in words for words in first["said"] + second["said"]) == 1
    )


def train_as_a_rank(folder: Path, rank: Rank) -> None:
    """Train as one rank that is told to leave while the first rank's disk fails three times."""
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    job_checkpointer.log.logger.addHandler(listener)
    with pytest.MonkeyPatch.context() as patch, joined_ranks(rank):
        disk = Broken(patch)
        patch.setattr(job_checkpointer, "MIN_RETRY_DELAY", 0.05)
        script = Script(grant(1, 1.0))

        class Repair(pl.Callback):
            def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
                if trainer.global_step == 3:
                    script.say(release(2))
                disk.whole = disk.attempts >= 3

        core = launched(folder, script)
        ddp = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=20))
        trainer = pl.Trainer(**QUIET, num_nodes=2, strategy=ddp, max_epochs=-1, callbacks=[core, Repair()])
        with pytest.raises(JobReleased):
            trainer.fit(Line(pause=0.004), datamodule=Points())
        saved = core.last_checkpoint
        story = {
            "attempts": disk.attempts, "steps": trainer.global_step, "saved": saved and saved.batches, "said": said,
        }  # fmt: skip
        (folder / f"{rank.number}.json").write_text(json.dumps(story))
