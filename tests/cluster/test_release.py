"""A job that was released and resumed equals, bit for bit, a job that was never interrupted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_core.agent.steering.fit_signals import JobReleased
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.checkpointing.job_checkpointer import JobCheckpointer
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Grant
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.storage.job_specs import MIN_TRAINING_PER_SAVE
from tests.callbacks.test_callback import Script, grant
from tests.tiny import QUIET, Net, NoisyPoints
from tests.waiting import until

HERE, NOWHERE = (0,), ()


def release(version: int, devices: tuple[int, ...] = NOWHERE) -> Grant:
    return Grant("job", version, 0.0, devices, Reason("fixed_share"))


class ReleasedAt(pl.Callback):
    """Releases the job after a number of batches, as a scheduler would."""

    def __init__(self, core: CoreCallback, batches: int | None) -> None:
        self.core, self.batches = core, batches

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.total_batch_idx + 1 == self.batches:
            box = self.core._fit.mailbox if self.core._fit else None
            assert box is not None
            box.inbox.directive = release(10)  # at a known batch; how it gets here is the mailbox's business


def launched(folder: Path, script: Script | None = None, **more: Any) -> CoreCallback:
    return LaunchedCallback("job", BatchTarget(10**9), client=script or Script(grant(1, 1.0)), folder=folder, **more)


class Run:
    """A training from its beginning to its end that is released on the way."""

    def __init__(
        self, folder: Path, releases: Iterable[int], make: Callable[[], tuple[Net, Any]], **options: Any
    ) -> None:
        pl.seed_everything(7, verbose=False)
        self.seen: list[list[int]] = []
        self.epochs_started: list[int] = []
        self.validations = 0
        self.left_at: list[int] = []
        ckpt = None
        for batches in [*releases, None]:
            if ckpt is not None:
                pl.seed_everything(1000 + len(self.seen), verbose=False)  # a new process has a random state of its own
            core = launched(folder)
            self.model, data = make()
            trainer: Any = pl.Trainer(**{**QUIET, **options})
            trainer.callbacks += [core, ReleasedAt(core, batches)]
            releases_before = len(self.left_at)
            try:
                trainer.fit(self.model, datamodule=data, ckpt_path=ckpt)
            except JobReleased:
                assert batches is not None
                self.left_at.append(trainer.fit_loop.epoch_loop.batch_progress.total.processed)
                ckpt = folder / "last.ckpt"
            self.seen += self.model.seen
            self.epochs_started += self.model.epochs_started
            self.validations += self.model.validations
            if batches is not None and len(self.left_at) == releases_before:
                break  # it has come to its end first
        self.result: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "schedules": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "steps": (trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped),
            "random": (random.random(), np.random.rand(), torch.rand(3)),
            "seen": self.seen,
            "epochs": self.epochs_started,
            "validations": self.validations,
        }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def assert_same(run: Run, whole: Run) -> None:
    for part, theirs in whole.result.items():
        assert equal(run.result[part], theirs), (part, run.result[part], theirs)


EPOCHS = {"max_epochs": 3, "num_sanity_val_steps": 2}


@pytest.mark.promise("R7", "R8")
@pytest.mark.parametrize(
    ("releases", "left_at", "options", "model"),
    [
        ((3,), [3], {}, {}),
        ((10,), [10], {}, {}),  # between two epochs
        ((11,), [11], {}, {}),
        ((2, 5, 9, 14, 15, 20, 27), [2, 5, 9, 14, 15, 20, 27], {}, {}),
        ((7,), [7], {"max_steps": 25, "max_epochs": -1}, {}),
        ((10, 20), [10, 20], {"max_steps": 25, "max_epochs": -1}, {}),
        ((3, 5, 16), [3, 6, 16], {"val_check_interval": 5}, {}),  # validation in the middle of the epoch
        ((3, 13), [3, 13], {}, {"plateau": True}),
        ((3, 15), [4, 16], {"accumulate_grad_batches": 2}, {}),  # no gradient is half gathered
        ((4,), [4], {"gradient_clip_val": 0.5, "precision": "bf16-mixed"}, {}),
        ((3, 12), [3, 12], {}, {"manual": True}),
        ((3, 12), [3, 12], {"limit_val_batches": 0}, {}),
    ],
)  # fmt: skip
def test_a_stateful_loader_resumes_bit_for_bit(
    tmp_path: Path, releases: tuple[int, ...], left_at: list[int], options: dict[str, Any], model: dict[str, Any]
) -> None:
    def make() -> tuple[Net, Any]:
        return Net(**model), NoisyPoints()

    whole = Run(tmp_path / "whole", (), make, **{**EPOCHS, **options})
    run = Run(tmp_path / "run", releases, make, **{**EPOCHS, **options})
    assert run.left_at == left_at
    assert_same(run, whole)


@pytest.mark.promise("R7", "R8")
@pytest.mark.parametrize(
    ("releases", "left_at", "options", "model", "placed"),
    [
        ((3,), [10], {}, {}, False),
        ((3, 12), [10, 20], {}, {}, False),
        ((3, 12), [10, 20], {}, {"plateau": True}, False),
        ((10,), [10], {"max_steps": 25, "max_epochs": -1}, {}, False),
        ((1, 11), [10, 20], {"limit_val_batches": 0}, {}, False),
        ((1, 2), [1, 2], {"limit_train_batches": 1}, {}, False),
        ((3, 14), [10, 20], {"val_check_interval": 1}, {}, True),  # validation after every batch leaves no other place
        ((5,), [6], {"limit_train_batches": 5}, {}, True),  # the loader would go on with its sixth batch
        ((3, 14), [10, 20], {}, {}, None),  # of an unknown size: a batch is always fetched ahead
    ],
)
def test_any_loader_resumes_at_the_end_of_an_epoch(
    tmp_path: Path,
    releases: tuple[int, ...],
    left_at: list[int],
    options: dict[str, Any],
    model: dict[str, Any],
    placed: bool | None,
) -> None:
    def make() -> tuple[Net, Any]:
        return Net(**model), NoisyPoints(placed is not False, sized=placed is not None)

    whole = Run(tmp_path / "whole", (), make, **{**EPOCHS, **options})
    run = Run(tmp_path / "run", releases, make, **{**EPOCHS, **options})
    assert run.left_at == left_at
    assert_same(run, whole)


class Accumulating(Net):
    """Accumulates more batches in later epochs, as a callback sets at their start."""

    def configure_callbacks(self) -> Any:
        return [pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2, 2: 5})]


@pytest.mark.promise("R7", "R8")
def test_what_a_callback_sets_for_an_epoch_is_not_lost(tmp_path: Path) -> None:
    """Lightning does not call it when it resumes within the epoch."""

    def make() -> tuple[Net, Any]:
        return Accumulating(), NoisyPoints()

    whole = Run(tmp_path / "whole", (), make, **EPOCHS)
    run = Run(tmp_path / "run", (3, 14), make, **EPOCHS)
    assert run.left_at == [10, 20]
    assert_same(run, whole)


class Estimating(Net):
    """Asks for the length of the training, for which Lightning makes its loaders before anything is loaded."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        by_step = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
        return [optimizer], [{"scheduler": by_step, "interval": "step"}]


@pytest.mark.promise("R8")
@pytest.mark.parametrize(("placed", "left_at"), [(True, [3, 13]), (False, [10, 20])])
def test_a_job_that_estimates_its_steps_resumes_bit_for_bit(tmp_path: Path, placed: bool, left_at: list[int]) -> None:
    def make() -> tuple[Net, Any]:
        return Estimating(), NoisyPoints(placed)

    whole = Run(tmp_path / "whole", (), make, **EPOCHS)
    run = Run(tmp_path / "run", (3, 13), make, **EPOCHS)
    assert run.left_at == left_at
    assert_same(run, whole)


def stored(folder: Path) -> dict[str, Any]:
    """Read the file as an untrusted one."""
    checkpoint: dict[str, Any] = torch.load(folder / "last.ckpt", weights_only=True)
    return checkpoint


def fit(core: CoreCallback, model: pl.LightningModule | None = None, data: Any = None, **more: Any) -> pl.Trainer:
    trainer = pl.Trainer(**{**QUIET, "max_epochs": -1, **more, "callbacks": [core, *more.get("callbacks", ())]})
    trainer.fit(model or Net(), datamodule=data or NoisyPoints())
    return trainer


def test_a_job_held_at_its_first_batch_leaves_no_checkpoint(tmp_path: Path) -> None:
    script = Script(grant(1, 0.0))
    threading.Timer(0.5, script.say, [release(2)]).start()
    with pytest.raises(JobReleased):
        fit(launched(tmp_path, script))
    assert not list(tmp_path.iterdir())
    assert script.reports[-1].batches == 0


def test_a_job_held_within_an_epoch_is_saved_at_that_batch(tmp_path: Path) -> None:
    script = Script(grant(1, 1.0))
    model = Net()
    model.pause = 0.01

    def say() -> None:
        until(lambda: script.reports and script.reports[-1].batches > 5)
        script.say(grant(2, 0.0))
        until(lambda: script.waits)
        script.say(release(3))

    threading.Thread(target=say).start()
    with pytest.raises(JobReleased):
        fit(launched(tmp_path, script), model)
    assert stored(tmp_path)["global_step"] == script.reports[-1].batches
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.ckpt", "last.ckpt.json"]


def test_a_job_held_in_validation_leaves_after_the_next_training_batch(tmp_path: Path) -> None:
    script = Script(grant(1, 1.0))

    class Told(pl.Callback):
        def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
            if not trainer.sanity_checking:
                core._fit.mailbox.inbox.directive = script.directive = grant(2, 0.0)
                threading.Timer(0.3, script.say, [release(3)]).start()

    core = launched(tmp_path, script)
    with pytest.raises(JobReleased):
        fit(core, callbacks=[Told()], val_check_interval=4)
    assert stored(tmp_path)["global_step"] == 5


def test_a_job_that_gets_its_device_back_in_time_stays(tmp_path: Path) -> None:
    script = Script(grant(1, 1.0))
    data = NoisyPoints(placed=False)

    class Told(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            box: Any = core._fit.mailbox if core._fit else None
            if trainer.global_step == 2:
                box.inbox.directive = release(2)
            elif trainer.global_step == 6:
                box.inbox.directive = grant(3, 1.0)

    core = launched(tmp_path, script)
    trainer = fit(core, data=data, callbacks=[Told()], max_epochs=3)
    assert trainer.global_step == 30


@pytest.mark.parametrize("placed", [True, False])
def test_a_power_cut_is_survived_by_periodic_checkpoints(tmp_path: Path, placed: bool) -> None:
    class Cut(pl.Callback):
        """The power fails once, without time to save."""

        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 17:
                raise SystemError

    def train(folder: Path, core: CoreCallback, cut: bool, ckpt: Path | None = None) -> Net:
        model = Net()
        trainer = pl.Trainer(**{**QUIET, **EPOCHS}, callbacks=[core, *([Cut()] if cut else [])])
        trainer.fit(model, datamodule=NoisyPoints(placed), ckpt_path=ckpt)
        return model

    pl.seed_everything(7, verbose=False)
    whole = train(tmp_path, launched(tmp_path / "none", save_every=1e9), cut=False)
    pl.seed_everything(7, verbose=False)
    with pytest.raises(SystemError):
        train(tmp_path, launched(tmp_path, save_every=1e-9), cut=True)
    step = stored(tmp_path)["global_step"]
    assert 0 < step <= 17
    assert placed or step == 10
    pl.seed_everything(8, verbose=False)
    back = train(tmp_path, launched(tmp_path), cut=False, ckpt=tmp_path / "last.ckpt")
    assert equal(back.state_dict(), whole.state_dict())
    assert back.seen == whole.seen[step:]


def test_periodic_checkpoints_take_little_of_the_time(tmp_path: Path) -> None:
    saver = JobCheckpointer(tmp_path, every=1e-9)
    checkpoints: list[float] = []

    class WorkerMonitor(pl.Callback):
        def on_save_checkpoint(self, *_: Any) -> None:
            checkpoints.append(time.monotonic())
            time.sleep(0.02)

    began = time.monotonic()
    model = Net()
    model.pause = 0.01
    core = launched(tmp_path, save_every=1e-9)
    fit(core, model, max_epochs=20, limit_val_batches=0, callbacks=[WorkerMonitor()])
    assert saver.due()
    assert 1 <= len(checkpoints) <= 1 + (time.monotonic() - began) / (0.02 * MIN_TRAINING_PER_SAVE)


def test_a_user_s_own_checkpoints_are_unchanged(tmp_path: Path) -> None:
    own = ModelCheckpoint(tmp_path / "own", every_n_train_steps=4, save_top_k=-1)
    core = launched(tmp_path, save_every=1e-9)
    fit(core, callbacks=[own], enable_checkpointing=True, max_epochs=1)
    assert "LaunchedCallback" in stored(tmp_path)["callbacks"]
    files = list((tmp_path / "own").iterdir())
    assert len(files) >= 2
    assert all("LaunchedCallback" not in torch.load(file, weights_only=True)["callbacks"] for file in files)


def test_a_file_in_progress_is_not_mistaken_for_a_checkpoint(tmp_path: Path) -> None:
    class Full(pl.Callback):
        def on_save_checkpoint(self, *_: Any) -> None:
            if trainers[0].global_step > 3:
                raise OSError("no space left on device")

        def on_fit_start(self, trainer: pl.Trainer, *_: Any) -> None:
            trainers.append(trainer)

    trainers: list[pl.Trainer] = []
    fit(launched(tmp_path, save_every=1e-9), callbacks=[Full()], max_epochs=20)
    assert trainers[0].global_step > 3
    assert stored(tmp_path)["global_step"] <= 3


@pytest.mark.gpu
def test_a_job_on_a_gpu_resumes_bit_for_bit(tmp_path: Path) -> None:
    def make() -> tuple[Net, Any]:
        return Net(), NoisyPoints()

    options = {**EPOCHS, "accelerator": "gpu", "devices": 1, "deterministic": "warn"}
    whole = Run(tmp_path / "whole", (), make, **options)
    run = Run(tmp_path / "run", (3, 14), make, **options)
    assert run.left_at == [3, 14]
    assert_same(run, whole)
