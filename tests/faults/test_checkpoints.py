"""Checkpoints that cannot be lost: saving, loading, and the checkpoint from which an incarnation starts."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lightning_core.agent.steering.fit_signals import JobReleased
from lightning_core.callbacks import SafeCheckpointIO
from lightning_core.callbacks.checkpointing import checkpoint_io, job_checkpointer
from lightning_core.callbacks.checkpointing.async_writer import to_host
from lightning_core.callbacks.checkpointing.checkpoint_io import CheckpointError
from lightning_core.callbacks.checkpointing.shards import CheckpointNotSavedError
from lightning_core.core.events import Checkpoint
from lightning_core.storage import generations, manifests
from lightning_core.storage.generations import Generations, newest_valid
from lightning_core.storage.job_checkpoints import FILE, CheckpointUnreadableError, adopt, checkpoint_folder, find
from lightning_core.storage.manifests import CorruptCheckpointError, is_valid, verify
from tests.bundle.test_preflight import problems_of
from tests.callbacks.test_callback import Script, grant
from tests.cluster.test_release import fit, launched, release
from tests.tiny import QUIET, Net, NoisyPoints
from tests.waiting import join, until

Damage = Callable[[Path], Any]


def state(number: int) -> dict[str, Any]:
    """Return a checkpoint of a few kilobytes, with the step as Lightning's only entry."""
    return {"number": number, "weights": torch.full((1000,), float(number)), "global_step": number}


def saved(path: Path, *numbers: int) -> SafeCheckpointIO:
    io = SafeCheckpointIO()
    for number in numbers:
        io.save_checkpoint(state(number), path)
    return io


def flip(path: Path) -> None:
    """Flip a bit of the weights, which torch alone would load."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def noted(**changed: Any) -> Damage:
    """Return a function that changes the manifest."""

    def change(path: Path) -> None:
        manifest = path.with_name(path.name + ".json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changed))

    return change


# ------------------------------------------------------------------------------------------ one file


def test_the_manifest_describes_the_file(tmp_path: Path) -> None:
    saved(tmp_path / "new" / "folder" / "a.ckpt", 7)
    manifest = json.loads((tmp_path / "new/folder/a.ckpt.json").read_text())
    size = (tmp_path / "new/folder/a.ckpt").stat().st_size
    assert manifest == {
        "format": 1,
        "sha256": manifests.verify(tmp_path / "new/folder/a.ckpt").sha256,
        "size": size,
        "step": 7,
        "batches": 7,
    }
    assert sorted(path.name for path in (tmp_path / "new/folder").iterdir()) == ["a.ckpt", "a.ckpt.json"]


def test_a_saved_checkpoint_loads_and_the_previous_one_stays(tmp_path: Path) -> None:
    io = saved(tmp_path / "a.ckpt", 1, 2, 3)
    assert io.load_checkpoint(tmp_path / "a.ckpt")["number"] == 3
    assert torch.equal(io.load_checkpoint(str(tmp_path / "a.ckpt.1"))["weights"], torch.full((1000,), 2.0))
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "a.ckpt.1", "a.ckpt.1.json", "a.ckpt.json"]


def test_the_number_of_generations_can_be_set(tmp_path: Path) -> None:
    io = SafeCheckpointIO(keep=3)
    for number in range(5):
        io.save_checkpoint(state(number), tmp_path / "a")
    assert [io.load_checkpoint(path)["number"] for path in generations.generation_paths(tmp_path / "a")] == [4, 3, 2]
    with pytest.raises(ValueError, match="keep must be at least 2, got 1"):
        SafeCheckpointIO(keep=1)


@pytest.mark.promise("R6", "F29")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "does not match its manifest"),
        (cut, r"truncated \(0\.001 of [\d.]+ MB\)"),
        (empty, r"truncated \(0 of [\d.]+ MB\)"),
        (Path.unlink, "missing"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "does not match its manifest"),
        (noted(format=2), "its manifest is of format 2, this version reads 1"),
        (noted(sha256="0" * 64), "does not match its manifest"),
        (noted(sha256="../../x"), "its manifest is damaged"),
        (noted(size=-1), "its manifest is damaged"),
        (noted(step=True), "its manifest is damaged"),
        (lambda path: path.with_name(path.name + ".json").write_text("[" * 3000), "its manifest is damaged"),
        (lambda path: path.with_name(path.name + ".json").write_text("7"), "its manifest is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Damage, words: str
) -> None:
    """F29: R6 holds for any damage of the newest file; the warning names the damage and the file that was loaded."""
    path = tmp_path / "a.ckpt"
    io = saved(path, 1, 2)
    damage(path)
    assert not is_valid(path)
    assert io.load_checkpoint(path)["number"] == 1
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(rf"checkpoint {path}: a.ckpt: {words}; loaded a.ckpt.1 instead", record.getMessage())
    # The valid one is not replaced by the damaged one.
    io.save_checkpoint(state(3), path)
    assert [io.load_checkpoint(place)["number"] for place in (path, tmp_path / "a.ckpt.1")] == [3, 1]


@pytest.mark.promise("F29")
def test_without_a_valid_generation_the_error_lists_each_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    io = saved(path, 1, 2)
    cut(path)
    flip(tmp_path / "a.ckpt.1")
    with pytest.raises(CheckpointError) as error:
        io.load_checkpoint(path)
    assert re.fullmatch(
        rf"checkpoint {path} cannot be loaded: a.ckpt: truncated \(0.001 of [\d.]+ MB\); "
        r"a.ckpt.1: does not match its manifest",
        str(error.value),
    )
    with pytest.raises(FileNotFoundError, match=r"none.ckpt: missing"):
        io.load_checkpoint(tmp_path / "none.ckpt")
    with pytest.raises(CheckpointError, match="it is a folder"):
        io.load_checkpoint(tmp_path)


def test_files_of_other_tools_load_unverified_and_hide_older_generations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.ckpt"
    TorchCheckpointIO().save_checkpoint(state(4), path)
    TorchCheckpointIO().save_checkpoint(state(3), tmp_path / "a.ckpt.1")
    io = SafeCheckpointIO()
    with caplog.at_level("INFO"):
        assert io.load_checkpoint(path)["number"] == 4
    assert [record.levelname for record in caplog.records] == ["INFO"]
    cut(path)
    with pytest.raises(CheckpointError, match=r"a.ckpt: truncated .*; a.ckpt.1: has no manifest"):
        io.load_checkpoint(path)


def test_the_last_checkpoint_may_be_a_link(tmp_path: Path) -> None:
    io = saved(tmp_path / "best.ckpt", 1, 2)
    (tmp_path / "last.ckpt").symlink_to("best.ckpt")
    flip(tmp_path / "best.ckpt")
    assert io.load_checkpoint(tmp_path / "last.ckpt")["number"] == 1
    io.save_checkpoint(state(3), tmp_path / "last.ckpt")  # in place of the link, not through it
    assert not (tmp_path / "last.ckpt").is_symlink()
    assert io.load_checkpoint(tmp_path / "best.ckpt")["number"] == 1


def test_removing_a_checkpoint_removes_its_generations_and_manifests(tmp_path: Path) -> None:
    io = saved(tmp_path / "a.ckpt", 1, 2)
    saved(tmp_path / "b.ckpt", 1)
    io.remove_checkpoint(tmp_path / "a.ckpt")
    io.remove_checkpoint(tmp_path / "a.ckpt")  # it is gone already
    assert sorted(os.listdir(tmp_path)) == ["b.ckpt", "b.ckpt.json"]
    (tmp_path / "sharded").mkdir()
    io.remove_checkpoint(tmp_path / "sharded")
    assert not (tmp_path / "sharded").exists()


@pytest.mark.promise("R6")
def test_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead, living, other = (
        tmp_path / name for name in ("a.ckpt.part-1-0123abcd", "a.ckpt.part-1-89ab4567", "a.ckpt.part-1")
    )
    for path in (dead, living, other):
        path.write_bytes(b"half")
    with living.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        io = saved(tmp_path / "b.ckpt", 1)
        assert (dead.exists(), living.exists(), other.exists()) == (False, True, True)
    io.load_checkpoint(tmp_path / "b.ckpt")
    assert (living.exists(), other.exists()) == (False, True)


def test_a_file_system_without_hard_links_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    io = saved(tmp_path / "a.ckpt", 1, 2)
    flip(tmp_path / "a.ckpt")
    assert io.load_checkpoint(tmp_path / "a.ckpt")["number"] == 1


def test_remote_checkpoints_load_safely_and_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def load(url: str, map_location: Any, weights_only: bool | None = None) -> dict[str, Any]:
        asked.append((url, weights_only))
        return {}

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", load)
    SafeCheckpointIO().load_checkpoint("https://somewhere/a.ckpt", weights_only=False)
    assert asked == [("https://somewhere/a.ckpt", True)]
    with pytest.raises(ValueError, match=r"saves to local files, got s3://bucket/a.ckpt"):
        SafeCheckpointIO().save_checkpoint({}, "s3://bucket/a.ckpt")
    with pytest.raises(TypeError, match="supports no storage_options"):
        SafeCheckpointIO().save_checkpoint({}, tmp_path / "a.ckpt", {"fast": True})


# ------------------------------------------------------------------------------------------ checkpoints with code


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Mine:
    """A user's own type."""


@pytest.mark.promise("S4")
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("told", [None, False, True])
@pytest.mark.parametrize("form", ["ours", "theirs", "legacy", "pickle"])
def test_a_checkpoint_with_code_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: bool, told: bool | None, form: str
) -> None:
    if forced:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path, proof = tmp_path / "evil.ckpt", tmp_path / "proof"
    evil = {"state_dict": {}, "evil": Evil(proof)}
    match form:
        case "ours":
            SafeCheckpointIO().save_checkpoint(state(1), path)  # an older one is no way out
            SafeCheckpointIO().save_checkpoint(evil, path)
        case "theirs":
            torch.save(evil, path)
        case "legacy":
            torch.save(evil, path, _use_new_zipfile_serialization=False)
        case _:
            path.write_bytes(pickle.dumps(evil))
    words = {
        "legacy": r"cannot be read as tensors and plain data: .*(posix|os).mkdir",
        "pickle": "cannot be read as tensors and plain data: ",
    }.get(form, r"is refused: it contains (posix|os).mkdir\. Only tensors and plain data are loaded")
    with pytest.raises(CheckpointError, match=words):
        SafeCheckpointIO().load_checkpoint(path, weights_only=told)
    assert not proof.exists()


def test_allowed_types_load_and_others_are_warned_about_on_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    io, path = SafeCheckpointIO(), tmp_path / "a.ckpt"
    for _ in range(2):
        io.save_checkpoint({"mine": Mine()}, path)
    words = "torch.serialization.add_safe_globals([tests.faults.test_checkpoints.Mine])"
    assert [words in record.getMessage() for record in caplog.records] == [True]  # once
    with pytest.raises(CheckpointError, match=re.escape(words)):
        io.load_checkpoint(path)
    with torch.serialization.safe_globals([Mine]):
        assert isinstance(io.load_checkpoint(path)["mine"], Mine)


# ------------------------------------------------------------------------------------------ asynchronous saves


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    sync = os.fsync

    def wait(descriptor: int) -> None:
        time.sleep(seconds)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", wait)


def test_a_host_copy_does_not_change_afterwards(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0))
    whole = {
        "weight": weight, "part": weight.detach()[2:].view(2, 2), "turned": torch.ones(2, 3).t(),
        "none": torch.empty(0), "sparse": torch.eye(2).to_sparse(), "half": torch.ones(2, dtype=torch.bfloat16),
        "complex": torch.ones(1) * 1j, "conjugate": torch.tensor([1j]).conj(), "list": [weight, {"count": [1]}],
    }  # fmt: skip
    held: Any = to_host(whole)
    with torch.no_grad():
        weight.zero_()
    whole["list"][1]["count"].append(2)  # type: ignore[index]
    assert held["weight"].tolist() == held["list"][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert held["part"].tolist() == [[2, 3], [4, 5]]
    assert held["part"].untyped_storage().data_ptr() == held["weight"].untyped_storage().data_ptr()
    assert held["turned"].shape == (3, 2)
    assert held["sparse"].to_dense().tolist() == [[1, 0], [0, 1]]
    assert held["half"].dtype is torch.bfloat16
    assert (held["complex"].item(), held["conjugate"].item(), held["none"].numel()) == (1j, -1j, 0)
    assert held["list"][1] == {"count": [1]}


@pytest.mark.gpu
def test_a_copy_of_gpu_tensors_is_in_host_memory() -> None:
    weight = torch.arange(4.0, device="cuda")
    held = to_host({"weight": weight, "part": weight[1:]})
    weight.zero_()
    assert {tensor.device.type for tensor in held.values()} == {"cpu"}
    assert (held["weight"].tolist(), held["part"].tolist()) == ([0, 1, 2, 3], [1, 2, 3])


def test_asynchronous_saves_are_all_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, saved = threading.Event(), list[int]()
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: disk.wait() and sync(descriptor))
    io = SafeCheckpointIO(asynchronous=True)

    def save() -> None:
        for number in range(4):
            io.save_checkpoint(state(number), tmp_path / f"{number}.ckpt")
            saved.append(number)

    saving = threading.Thread(target=save)
    saving.start()
    until(lambda: len(saved) == 2)
    time.sleep(0.05)
    assert len(saved) == 2  # at most two are in progress: a third save waits
    disk.set()
    join(saving)
    assert io.load_checkpoint(tmp_path / "3.ckpt")["number"] == 3  # loading waits for it
    io.remove_checkpoint(tmp_path / "0.ckpt")
    io.teardown()
    assert [name for name in sorted(os.listdir(tmp_path)) if name.endswith("ckpt")] == ["1.ckpt", "2.ckpt", "3.ckpt"]
    io.save_checkpoint(state(5), tmp_path / "5.ckpt")  # another fit of the same Trainer
    io.teardown()
    assert is_valid(tmp_path / "5.ckpt")


@pytest.mark.promise("R6", "F7")
def test_a_failed_asynchronous_save_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F7: a ModelCheckpoint removes the old file after it has requested the new one."""
    io = SafeCheckpointIO(asynchronous=True)
    io.save_checkpoint(state(1), tmp_path / "1.ckpt")
    io.load_checkpoint(tmp_path / "1.ckpt")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", full_disk)
        io.save_checkpoint(state(2), tmp_path / "2.ckpt")
        io.remove_checkpoint(tmp_path / "1.ckpt")
        with pytest.raises(OSError, match=r"2.ckpt cannot be saved: No space left on device \(about 0.004 MB needed"):
            io.teardown()
    assert is_valid(tmp_path / "1.ckpt")
    assert sum(r.levelname == "WARNING" for r in caplog.records) == 2
    io.save_checkpoint(state(3), tmp_path / "3.ckpt")
    io.remove_checkpoint(tmp_path / "1.ckpt")
    io.teardown()
    assert sorted(os.listdir(tmp_path)) == ["3.ckpt", "3.ckpt.json"]


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.promise("F7")
def test_a_full_disk_is_a_clear_error_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io = saved(tmp_path / "a.ckpt", 1)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"about 0.004 MB needed, \d+ MB free") as error:
        io.save_checkpoint(state(2), tmp_path / "a.ckpt")
    assert error.value.errno == errno.ENOSPC
    assert f"{tmp_path}/a.ckpt cannot be saved: No space left on device" in str(error.value)
    assert sorted(os.listdir(tmp_path)) == before
    assert io.load_checkpoint(tmp_path / "a.ckpt")["number"] == 1


# ------------------------------------------------------------------------------------------ in a Trainer


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("link", [True, "link"])
def test_any_trainer_can_use_the_plugin(
    tmp_path: Path, asynchronous: bool, link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def train(epochs: int, ckpt: Any = None) -> tuple[Net, pl.Trainer]:
        pl.seed_everything(1, verbose=False)
        model = Net()
        keep = ModelCheckpoint(tmp_path, save_last=link, save_top_k=1, monitor="val_loss", every_n_epochs=1)
        trainer = pl.Trainer(
            **{**QUIET, "enable_checkpointing": True}, max_epochs=epochs, callbacks=[keep],
            plugins=[SafeCheckpointIO(asynchronous)],
        )  # fmt: skip
        trainer.fit(model, datamodule=NoisyPoints(placed=False), ckpt_path=ckpt)
        return model, trainer

    train(3)
    last = tmp_path / "last.ckpt"
    assert last.is_symlink() == (link == "link")
    verify(last.resolve())
    if link is True:
        assert torch.load(tmp_path / "last.ckpt.1", weights_only=True)["global_step"] == 20
        flip(last)
    _, trainer = train(5, last)
    assert trainer.global_step == 50
    warned = [r.getMessage() for r in caplog.records if "loaded last.ckpt.1 instead" in r.getMessage()]
    assert len(warned) == (link is True)


@pytest.mark.promise("F8")
def test_asynchronous_saving_costs_a_batch_no_more_than_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """F8: a slow disk."""
    slow(monkeypatch, 1.0)

    class Longest(pl.Callback):
        seconds, last = 0.0, 0.0

        def on_train_batch_start(self, *_: Any) -> None:
            now = time.monotonic()
            self.seconds, self.last = max(self.seconds, now - (self.last or now)), now

    def train(asynchronous: bool) -> float:
        clock, folder = Longest(), tmp_path / str(asynchronous)
        keep = ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1, save_last=False)
        model = Net()
        model.pause = 0.05
        options = {**QUIET, "enable_checkpointing": True, "limit_val_batches": 0, "max_steps": 7}
        plugins = [SafeCheckpointIO(asynchronous)]
        pl.Trainer(**options, callbacks=[keep, clock], plugins=plugins).fit(model, datamodule=NoisyPoints())
        assert all(is_valid(path) for path in folder.glob("*.ckpt"))
        return clock.seconds

    with_, without = train(True), train(False)
    record_property("figure", f"an fsync of 1 s: longest batch of 0.05 s {with_:.2f} s, {without:.2f} s if it waits")
    assert with_ < 3.0 <= without  # three times in a batch


# ------------------------------------------------------------------------------------------ in a launched job


class Broken:
    """Makes the disk fail for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.attempts, self.whole = 0, False
        sync = os.fsync

        def fail(descriptor: int) -> None:
            if self.whole:
                return sync(descriptor)
            self.attempts += 1
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        monkeypatch.setattr(job_checkpointer, "MIN_RETRY_DELAY", 0.1)


@pytest.mark.promise("F7", "F8")
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_job_that_cannot_save_trains_on_and_leaves_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, placed: bool
) -> None:
    disk, script, model = Broken(monkeypatch, number), Script(grant(1, 1.0)), Net()
    model.pause = 0.002

    def say() -> None:
        until(lambda: disk.attempts >= 2)  # periodic checkpoints, twice
        script.say(release(2))
        told_at = disk.attempts
        until(lambda: disk.attempts >= told_at + 2)  # now it wants to leave
        disk.whole = True

    threading.Thread(target=say).start()
    core = launched(tmp_path, script, save_every=1e-3)
    with pytest.raises(JobReleased):
        fit(core, model, NoisyPoints(placed))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("Training continues, and saving is tried again" in words for words in warnings) == 1
    assert sum("could be saved again" in words for words in warnings) == 1
    assert f"{tmp_path / FILE} cannot be saved: {os.strerror(number)}" in " ".join(warnings)
    assert core.last_checkpoint == find_save(tmp_path)
    assert disk.attempts < 30


def find_save(folder: Path) -> Checkpoint:
    found = find(folder)
    assert found is not None
    return found.checkpoint


def test_pauses_between_attempts_to_save_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock, attempts = Broken(monkeypatch), SimpleNamespace(now=0.0), list[int]()
    monkeypatch.setattr(job_checkpointer, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            clock.now += 0.01
            if disk.attempts > len(attempts):
                attempts.append(trainer.global_step)
            trainer.should_stop = len(attempts) == 5

    fit(launched(tmp_path, save_every=1e-3), callbacks=[Watch()], limit_val_batches=0)
    pauses = [after - before for before, after in itertools.pairwise(attempts)]
    assert pauses[1:] == [20, 40, 80]  # batches of 0.01 s: 0.2, 0.4, 0.8 s; the first two are too close to measure it
    assert os.listdir(tmp_path) == []


def test_the_newest_checkpoint_of_a_job_is_found_with_its_manifest(tmp_path: Path) -> None:
    core = launched(tmp_path, save_every=1e-9)
    fit(core, max_epochs=2)
    assert core.last_checkpoint is not None
    assert core.last_checkpoint == find_save(tmp_path)
    assert 0 < core.last_checkpoint.batches <= 20


def test_batches_of_manual_optimization_are_calls_of_its_step(tmp_path: Path) -> None:
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1})
    trainer.fit(Net(manual=True), datamodule=NoisyPoints())
    assert job_checkpointer.write(trainer, tmp_path / FILE).batches == 10


def test_a_user_s_own_plugin_saves_the_user_s_checkpoints(tmp_path: Path) -> None:
    class Own(TorchCheckpointIO):
        written: tuple[str, ...] = ()

        def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
            self.written += (Path(path).name,)
            super().save_checkpoint(checkpoint, path, storage_options)

    own = Own()
    keep = ModelCheckpoint(tmp_path / "own", every_n_train_steps=4, save_top_k=-1)
    core = launched(tmp_path, save_every=1e-9)
    fit(core, callbacks=[keep], enable_checkpointing=True, max_epochs=1, plugins=[own])
    assert own.written
    assert FILE not in own.written
    assert is_valid(tmp_path / FILE)


@pytest.mark.promise("S4", "F29")
def test_a_job_resumes_only_from_a_valid_checkpoint(tmp_path: Path) -> None:
    class Trusting(TorchCheckpointIO):
        """A plugin that would load anything."""

        def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
            told.append(weights_only)
            return super().load_checkpoint(path, map_location, weights_only)

    told: list[Any] = []
    fit(launched(tmp_path, save_every=1e-9), max_epochs=2)
    flip(tmp_path / FILE)
    for place in generations.generation_paths(tmp_path / FILE)[1:]:
        flip(place)
    trainer = pl.Trainer(**QUIET, callbacks=[launched(tmp_path)], plugins=[Trusting()])
    with pytest.raises(CheckpointError, match="does not match its manifest"):
        trainer.fit(Net(), datamodule=NoisyPoints(), ckpt_path=tmp_path / FILE)
    assert told == []
    other = tmp_path / "other" / "a.ckpt"  # what a config says it begins with
    trainer.save_checkpoint(other)
    trainer.fit_loop.max_epochs = 1
    trainer.fit(Net(), datamodule=NoisyPoints(), ckpt_path=other)
    assert told == [True]


def test_a_job_does_not_leave_without_a_loadable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(pl.Callback):
        def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
            if trainer.global_step < 15:
                checkpoint["odd"] = Mine()

    monkeypatch.setattr(job_checkpointer, "MIN_RETRY_DELAY", 0.001)
    core = launched(tmp_path, Script(grant(1, 1.0)))
    with pytest.raises(JobReleased):
        fit(core, callbacks=[Odd(), ReleasedAtOnce(core)])
    assert core.last_checkpoint is not None
    assert core.last_checkpoint.batches >= 15
    assert "could not be loaded again: it contains tests.faults.test_checkpoints.Mine" in caplog.text


@pytest.mark.promise("R6")
def test_an_unloadable_checkpoint_replaces_no_other(tmp_path: Path) -> None:
    """Otherwise a kill right after the save would leave the job without a checkpoint."""
    place, io = tmp_path / FILE, SafeCheckpointIO()
    for number in (1, 2):
        io.write({"global_step": number}, place)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="could not be loaded again"):
            io.write({"global_step": 3, "odd": Mine()}, place, strict=True)
    assert [io.load_checkpoint(path)["global_step"] for path in (place, f"{place}.1")] == [2, 1]
    assert sorted(os.listdir(tmp_path)) == [FILE, f"{FILE}.1", f"{FILE}.1.json", f"{FILE}.json"]


class ReleasedAtOnce(pl.Callback):
    """Has the job released after its first batch."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, index: int) -> None:
        if trainer.global_step == 1:
            self.core._fit.mailbox.inbox.directive = release(10)


def test_a_checkpoint_that_cannot_be_pickled_is_not_saved_and_no_reason_to_fail(tmp_path: Path) -> None:
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1}, callbacks=[Unpicklable()])
    trainer.fit(Net(), datamodule=NoisyPoints())
    with pytest.raises(CheckpointNotSavedError, match="cannot pickle"):
        job_checkpointer.write(trainer, tmp_path / FILE)
    assert os.listdir(tmp_path) == []
    trainer.callbacks = []  # type: ignore[attr-defined]
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointNotSavedError, match=r"file/last.ckpt cannot be saved: File exists"):
        job_checkpointer.write(trainer, tmp_path / "file" / FILE)


class Unpicklable(pl.Callback):
    """Adds a lock to every checkpoint."""

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["lock"] = threading.Lock()


# ------------------------------------------------------------------------------------------ incarnations


def checkpoints_of(job: Path, incarnation: int, *numbers: int) -> list[str]:
    """Write the checkpoints of an incarnation; return the SHA-256 of each, the newest first."""
    folder = checkpoint_folder(job, incarnation)
    sums = []
    for number in numbers:
        saved(folder / FILE, number)
        sums.append(verify(folder / FILE).sha256)
    return sums[::-1]


def begins_with(path: Path | None) -> int | None:
    return None if path is None else int(SafeCheckpointIO().load_checkpoint(path)["number"])


@pytest.mark.promise("R5", "R6")
def test_an_incarnation_starts_from_the_newest_accepted_checkpoint(tmp_path: Path) -> None:
    """R5: checkpoints that the scheduler has not accepted are ignored, however new."""
    one, two = checkpoints_of(tmp_path, 1, 10, 20), checkpoints_of(tmp_path, 2, 30, 40)
    everything = {*one, *two}
    for number, (accepted, expected) in enumerate(
        [(everything, 40), ({two[1], *one}, 30), ({one[1]}, 10), (set(), None), ({"0" * 64}, None)]
    ):
        job = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "checkpoints", job / "checkpoints")
        assert begins_with(adopt(job, 3, accepted)) == expected
        assert adopt(job, 3, accepted) == (None if expected is None else job / "checkpoints/3" / FILE)
    assert find(checkpoint_folder(tmp_path / "copy-0", 3)) == (
        tmp_path / "copy-0/checkpoints/3" / FILE, Checkpoint(40, two[0])
    )  # fmt: skip


@pytest.mark.promise("R5")
def test_checkpoints_of_a_fenced_incarnation_are_never_used(tmp_path: Path) -> None:
    accepted = checkpoints_of(tmp_path, 1, 10)
    path = adopt(tmp_path, 2, accepted)
    later = checkpoints_of(tmp_path, 1, 20, 30)
    assert begins_with(path) == begins_with(adopt(tmp_path, 2, {*accepted, *later})) == 10
    saved(checkpoint_folder(tmp_path, 2) / FILE, 11)  # its own, not accepted yet: the pool manager was killed
    assert begins_with(adopt(tmp_path, 2, accepted)) == 11
    assert begins_with(adopt(tmp_path, 3, {*accepted, *checkpoints_of(tmp_path, 1, 40)[1:]})) == 10


def test_an_incarnation_never_starts_from_a_later_one(tmp_path: Path) -> None:
    accepted = [*checkpoints_of(tmp_path, 1, 10), *checkpoints_of(tmp_path, 3, 30)]
    assert begins_with(adopt(tmp_path, 2, accepted)) == 10


@pytest.mark.promise("R6", "F8")
@pytest.mark.parametrize("name", [FILE, f"{FILE}.json"])
def test_an_unreadable_checkpoint_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Starting anew would displace it; an older readable checkpoint is used instead."""
    one, two = checkpoints_of(tmp_path, 1, 10), checkpoints_of(tmp_path, 2, 20, 30)
    broken = {checkpoint_folder(tmp_path, 2) / name}

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def opens(path: Any, *more: Any, **options: Any) -> Any:
            if Path(path) in broken:
                raise OSError(errno.EIO, "Input/output error", str(path))
            return real(path, *more, **options)

        return opens

    monkeypatch.setattr(os, "open", failing(os.open))
    monkeypatch.setattr(Path, "open", failing(Path.open))
    with pytest.raises(CheckpointUnreadableError, match="Input/output error"):
        adopt(tmp_path, 3, two[:1])
    assert begins_with(adopt(tmp_path, 3, {*one, two[0]})) == 10
    broken.clear()
    assert begins_with(adopt(tmp_path, 4, two[:1])) == 30


@pytest.mark.promise("F29")
def test_damaged_checkpoints_are_skipped(tmp_path: Path) -> None:
    one, two = checkpoints_of(tmp_path, 1, 10, 20), checkpoints_of(tmp_path, 2, 30, 40)
    flip(checkpoint_folder(tmp_path, 2) / FILE)
    cut(checkpoint_folder(tmp_path, 2) / f"{FILE}.1")
    assert find(checkpoint_folder(tmp_path, 2)) is None
    path = adopt(tmp_path, 3, {*one, *two})
    assert begins_with(path) == 20
    assert path is not None
    flip(path)  # a hard link: the original is damaged too, but the one before it came along
    assert begins_with(path) == 10


def test_an_unfinished_adoption_is_repaired(tmp_path: Path) -> None:
    accepted = checkpoints_of(tmp_path, 1, 10)
    own = checkpoint_folder(tmp_path, 2)
    own.mkdir()
    os.link(checkpoint_folder(tmp_path, 1) / FILE, own / FILE)
    assert find(own) is None
    assert begins_with(adopt(tmp_path, 2, accepted)) == 10


def test_folders_of_old_incarnations_are_removed(tmp_path: Path) -> None:
    accepted = [checkpoints_of(tmp_path, number, number)[0] for number in (1, 2, 3, 4)]
    (tmp_path / "checkpoints" / "own").mkdir()
    assert begins_with(adopt(tmp_path, 5, accepted)) == 4
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["4", "5", "own"]
    assert begins_with(checkpoint_folder(tmp_path, 5) / f"{FILE}.1") == 3


@pytest.mark.promise("S7")
def test_links_out_of_the_job_s_folder_are_not_followed(tmp_path: Path) -> None:
    job, other = tmp_path / "job", tmp_path / "other"
    accepted = [*checkpoints_of(job, 1, 10), *checkpoints_of(other, 1, 99), *checkpoints_of(other, 2, 98)]
    mine = checkpoint_folder(job, 1)
    for name in (FILE, f"{FILE}.json"):
        (mine / name).unlink()
        (mine / name).symlink_to(other / "checkpoints/1" / name)
    (job / "checkpoints" / "2").symlink_to(other / "checkpoints/2")
    assert adopt(job, 3, accepted) is None
    assert find(job / "checkpoints" / "2") is None
    with pytest.raises(ValueError, match="checkpoints/2 must not be a link"):
        adopt(job, 2, accepted)
    with pytest.raises(ValueError, match="incarnation must be positive, got 0"):
        checkpoint_folder(job, 0)
    shutil.rmtree(job / "checkpoints")
    (job / "checkpoints").symlink_to(other / "checkpoints")
    with pytest.raises(ValueError, match="job/checkpoints must not be a link"):
        adopt(job, 3, accepted)


# ------------------------------------------------------------------------------------------ before anything starts


@pytest.mark.promise("F29")
def test_a_bundle_s_checkpoint_is_compared_with_its_manifest_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    io = saved(path)
    for number in (1, 2):
        io.save_checkpoint({"state_dict": {}, "number": number, "weights": torch.zeros(1000)}, path)
    assert problems_of(path) == []
    flip(path)
    assert problems_of(path) == []  # the one before it will be loaded
    cut(tmp_path / "a.ckpt.1")
    [problem] = problems_of(path)
    assert problem == f"bundle: jobs.a.ckpt_path: checkpoint {path}: does not match its manifest"


def test_nothing_is_renamed_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a file that was renamed unsynced may be empty, and renames may have happened in any order."""
    saved(tmp_path / "a", 1, 2)
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        calls.append(f"sync {kind(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        sync(descriptor)

    def replaced(source: Any, target: Any) -> None:
        calls.append(f"{kind(source)} > {kind(target)}")
        replace(source, target)

    def kind(path: Any) -> str:
        return re.sub(r"part-.*", "part", Path(path).name) if Path(path) != tmp_path else "folder"

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    Generations().save(tmp_path / "a", lambda file: file.write(b"new"))
    assert calls == [
        "sync a.part", "sync a.json.part", "a.1.part > a.1", "a.1.json.part > a.1.json", "sync folder",
        "a.part > a", "a.json.part > a.json", "sync folder",
    ]  # fmt: skip


def test_a_file_is_hashed_again_only_if_another_process_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    look = manifests.is_valid

    def watch(path: Path) -> bool:
        read.append(path)
        return look(path)

    monkeypatch.setattr(generations, "is_valid", watch)
    io = saved(tmp_path / "a", 1, 2, 3)
    assert read == []
    flip(tmp_path / "a")
    io.save_checkpoint(state(4), tmp_path / "a")
    assert read == [tmp_path / "a"]
    assert [begins_with(tmp_path / name) for name in ("a", "a.1")] == [4, 2]


def test_errors_and_names_belong_to_the_package() -> None:
    from lightning_core import callbacks

    assert callbacks.SafeCheckpointIO is checkpoint_io.SafeCheckpointIO
    with pytest.raises(CorruptCheckpointError, match="has no manifest"):
        verify(Path(__file__))
    assert newest_valid(Path(__file__)) is None
    copied = pickle.loads(pickle.dumps(SafeCheckpointIO(asynchronous=True, keep=3)))
    assert isinstance(copied, SafeCheckpointIO)
