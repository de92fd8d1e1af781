"""A job that leaves its device while it is held trains as if it had stayed. Here the device is a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.steering.offload import (
    MAX_WAIT_FOR_ROOM,
    SILENT_WAIT,
    Offload,
)
from lightning_core.callbacks import CoreCallback, fit, held_state
from lightning_core.callbacks.checkpointing import job_checkpointer
from lightning_core.callbacks.held_state import check_offload, state_holders
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Directive, End, Grant, Verdict
from lightning_core.core.jobs import Job, OnHold
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from tests.callbacks.test_callback import AlwaysFree, Script, grant
from tests.cluster.test_release import equal, release
from tests.examples import day_and_night
from tests.tiny import QUIET, Net, NoisyPoints

CPU = torch.device("cpu")


# Stands for the first batch of validation among the batches during which a job is held.
VALIDATION = 0


class Tied(Net):
    """Has weights that share memory, a metric's numbers outside its buffers, and what only a closure knows."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = torch.nn.Linear(4, 8)
        layer: Any = self.body[0]
        self.twice.weight = layer.weight
        self.total = [torch.zeros(3)]
        first = layer.weight.detach()[0]
        self.first: Callable[[], torch.Tensor] = lambda: first

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(batch, batch_idx) + 0.1 * self.twice(batch[1]).square().mean()
        self.total[0] += loss.detach()
        return loss

    @property
    def is_tied(self) -> bool:
        """Whether all see the same weights."""
        layer: Any = self.body[0]
        return torch.equal(self.first(), layer.weight[0]) and layer.weight.data_ptr() == self.twice.weight.data_ptr()

    def on_train_batch_end(self, *arguments: Any) -> None:
        super().on_train_batch_end(*arguments)
        assert self.is_tied


class Watched(Offload):
    """Says what a job does next as soon as its state is out, and what it has seen there."""

    def __init__(self, trainer: pl.Trainer, module: Tied, then: list[Directive]) -> None:
        super().__init__("job", lambda: state_holders(trainer, module), CPU)
        self.trainer, self.module, self.then = trainer, module, then
        self.left: list[int] = []
        self.log: list[str] = []

    def move_out(self) -> None:
        if self.is_out:
            return
        parts = [*self.module.parameters(), *self.module.buffers(), *self.module.total]
        parts += [part for state in self.trainer.optimizers[0].state.values() for part in state.values()]
        parts += [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        super().move_out()
        assert all(part.untyped_storage().nbytes() == 0 for part in parts)
        self.left.append(self.frees())
        inbox_of(self.trainer).directive = self.then.pop(0)


def core_of(trainer: pl.Trainer) -> CoreCallback:
    return next(callback for callback in trainer.callbacks if isinstance(callback, CoreCallback))  # type: ignore[attr-defined]


def inbox_of(trainer: pl.Trainer) -> Any:
    current = core_of(trainer)._fit
    assert current is not None
    assert current.mailbox is not None
    return current.mailbox.inbox


class HeldAt(pl.Callback):
    """Holds the job during some batches."""

    def __init__(self, batches: Iterable[int]) -> None:
        self.batches = set(batches)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        batch = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        if batch in self.batches:
            inbox_of(trainer).directive = grant(100 + batch, 0.0)

    def on_validation_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if VALIDATION in self.batches and not trainer.sanity_checking:
            self.batches.remove(VALIDATION)
            inbox_of(trainer).directive = grant(100, 0.0)


class Training:
    """A training from its beginning to its end, held on the way.

    Args:
        folder: Folder of its checkpoint.
        held: Batches during which it is held.
        then: What it is told when its state is out.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, held: Iterable[int] = (),
        then: Iterable[Directive] = (), **options: Any,
    ) -> None:  # fmt: skip
        self.offloads: list[Watched] = []
        directives = list(then)

        def watched(trainer: pl.Trainer, module: Tied, _: Job) -> Watched:
            self.offloads.append(Watched(trainer, module, directives))
            return self.offloads[-1]

        monkeypatch.setattr(fit, "offload_of", watched)
        self.folder, self.options, self.held = folder, options, held
        self.device_lock, self.script = AlwaysFree(), Script()

    def run(
        self, ckpt: Path | None = None, data: pl.LightningDataModule | None = None, first: Directive | None = None,
        hang: float = 300.0,
    ) -> dict[str, Any]:  # fmt: skip
        pl.seed_everything(7, verbose=False)
        self.script.directive = first or grant(1, 1.0)
        core = LaunchedCallback(
            "job", BatchTarget(10**9), client=self.script, device_lock=self.device_lock, folder=self.folder,
            hang=hang, on_hold="offload",
        )  # fmt: skip
        self.model = Tied()
        precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3))
        options: dict[str, Any] = {"max_epochs": 3, "plugins": [precision], **QUIET, **self.options}
        trainer: Any = pl.Trainer(**options)
        trainer.callbacks += [core, HeldAt(self.held)]
        trainer.fit(self.model, datamodule=data or NoisyPoints(), ckpt_path=ckpt)
        return {
            "model": self.model.state_dict(),
            "total": self.model.total,
            "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "schedules": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
            "scaler": precision.state_dict(),
            "metrics": dict(trainer.callback_metrics),
            "random": torch.rand(3),
        }


OPTIONS: tuple[dict[str, Any], ...] = ({}, {"accumulate_grad_batches": 2}, {"val_check_interval": 5})


@pytest.mark.parametrize(
    ("options", "placed"),
    day_and_night(
        list(product(OPTIONS, [True, False])),
        [({}, True), ({"accumulate_grad_batches": 2}, False), ({"val_check_interval": 5}, True)],
    ),
)
def test_a_training_that_was_moved_several_times_is_the_same_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any], placed: bool
) -> None:
    whole = Training(monkeypatch, tmp_path, **options).run(data=NoisyPoints(placed))
    held = (2, 3, 5, 10, 17, 26)
    training = Training(monkeypatch, tmp_path, held, [grant(200 + batch, 1.0) for batch in held], **options)
    result = training.run(data=NoisyPoints(placed))
    for part, theirs in whole.items():
        assert equal(result[part], theirs), part
    [moved] = training.offloads
    assert len(moved.left) == len(held)
    assert min(moved.left) > 4 * (8 * 4 + 8 + 8 + 8 + 8 + 1)  # at least the parameters
    assert training.device_lock.log.count("release") >= len(held)
    assert training.model.is_tied


def test_a_job_that_is_told_to_leave_while_it_is_out_is_saved_from_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It does not need its device any more, and resumes exactly."""
    whole = Training(monkeypatch, tmp_path / "whole").run()
    training = Training(monkeypatch, tmp_path, [3], [release(200)])
    with pytest.raises(JobReleased):
        training.run()
    [moved] = training.offloads
    assert moved.is_out
    assert training.device_lock.log[-1] == "release"
    assert not any(line.startswith("acquire") for line in training.device_lock.log[1:])
    resumed = Training(monkeypatch, tmp_path).run(ckpt=tmp_path / "last.ckpt")
    for part in whole.keys() - {"total"}:  # no buffer, so that no checkpoint has it
        assert equal(resumed[part], whole[part]), part


@pytest.mark.parametrize("then", [grant(200, 1.0), release(200)])
def test_a_job_can_be_held_in_a_validation_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: Directive
) -> None:
    """It leaves after the next batch, for which it moves back."""
    options: dict[str, Any] = {"val_check_interval": 5}  # batches follow in the epoch
    whole = Training(monkeypatch, tmp_path / "whole", **options).run()
    training = Training(monkeypatch, tmp_path, [VALIDATION], [then], **options)
    if isinstance(then, Grant) and then.share:
        result = training.run()
    else:
        with pytest.raises(JobReleased):
            training.run()
        assert len(training.offloads[0].left) == 1
        result = Training(monkeypatch, tmp_path, **options).run(ckpt=tmp_path / "last.ckpt")
    for part in whole.keys() - {"total"}:
        assert equal(result[part], whole[part]), part


def test_a_job_that_cannot_be_saved_where_it_is_held_moves_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its loader has no state: it leaves after the epoch, for which it needs its device."""
    training = Training(monkeypatch, tmp_path, [3], [release(200)])
    with pytest.raises(JobReleased):
        training.run(data=NoisyPoints(placed=False))
    [moved] = training.offloads
    assert not moved.is_out
    assert (tmp_path / "last.ckpt").exists()


def test_a_job_whose_checkpoint_cannot_be_written_moves_back_and_trains_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = Training(monkeypatch, tmp_path).run()

    def full(*_: Any, **__: Any) -> None:
        raise job_checkpointer.CheckpointNotSavedError(28, "no space left on device")

    monkeypatch.setattr(job_checkpointer, "write", full)
    training = Training(monkeypatch, tmp_path, [3, 10], [release(200), release(300)])
    result = training.run()
    assert equal(result, whole)
    assert not training.offloads[0].is_out


def test_a_job_that_is_ended_while_it_is_out_leaves_a_model_that_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    training = Training(monkeypatch, tmp_path, [3], [End("job", 200, Verdict.MISSED, Reason("deadline_passed"))])
    with pytest.raises(JobEnded):
        training.run()
    assert training.offloads[0].is_out
    assert torch.isfinite(training.model.twice.weight).all()
    assert all(tensor.untyped_storage().nbytes() for tensor in training.model.state_dict().values())


def test_the_first_hold_is_before_the_first_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job that is built ahead of its start keeps no memory either."""
    training = Training(monkeypatch, tmp_path, then=[grant(2, 1.0)], limit_train_batches=1, max_epochs=1)
    training.run(first=grant(1, 0.0))
    assert len(training.offloads[0].left) == 1


@pytest.mark.nightly
def test_moving_is_neither_counted_as_training_nor_taken_for_a_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    move = Offload._synchronize

    def slowly(self: Offload) -> None:
        time.sleep(0.5)  # three times for each hold
        move(self)

    training = Training(monkeypatch, tmp_path, [22, 27], [grant(200, 1.0), grant(300, 1.0)])
    monkeypatch.setattr(Offload, "_synchronize", slowly)
    training.run(hang=0.2)
    reports = training.script.reports
    assert reports[-1].batches == 30
    assert reports[-1].busy < 1.5
    assert all(report.hang is None for report in reports)


class Net2(torch.nn.Module):
    """A recurrent layer, whose weights are flattened into one memory, and a layer without a gradient yet."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 8, num_layers=2)
        self.head = torch.nn.Linear(8, 2)


def moved(*roots: object, clock: Callable[[], float] = lambda: 0.0) -> Offload:
    return Offload("job", lambda: roots, CPU, clock)


def test_views_of_one_memory_stay_views_of_one_memory() -> None:
    base = torch.arange(12.0)
    rows, transposed = base.view(3, 4), base.view(3, 4).t()
    state = moved([rows, transposed, base[2:5]])
    state.move_out()
    assert state.frees() == 48  # counted once
    assert base.untyped_storage().nbytes() == 0
    state.read_on_host()
    assert torch.equal(rows, torch.arange(12.0).view(3, 4))
    assert torch.equal(transposed, torch.arange(12.0).view(3, 4).t())
    assert state.move_back()
    base[0] = 7.0  # not found by itself
    assert rows[0, 0] == transposed[0, 0] == 7.0
    assert not state.is_out


def test_gradients_are_recorded_after_a_hold_in_inference_mode() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    state = moved([weight])
    with torch.inference_mode():
        state.move_out()
        state.read_on_host()
        state.move_back()
    torch.autograd.backward((weight * weight).sum())
    assert torch.equal(weight.grad, torch.full((4,), 2.0))  # type: ignore[arg-type]


def test_what_torch_keeps_for_later_leaves_with_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    state = moved([torch.ones(4)])
    reserved = iter([100, 20])
    monkeypatch.setattr(state, "_reserved", lambda: next(reserved))
    assert state.frees() == 16
    state.move_out()
    assert state.frees() == 80
    state.move_back()
    assert state.frees() == 80


def test_everything_that_a_training_has_is_found() -> None:
    net = Net2()
    optimizer = torch.optim.Adam(net.parameters())
    net.lstm(torch.randn(3, 1, 4))[0].sum().backward()
    optimizer.step()
    state = moved(net, optimizer)
    parameters = sum(4 * parameter.numel() for parameter in net.lstm.parameters())
    head = sum(4 * parameter.numel() for parameter in net.head.parameters())
    steps = 4 * len(optimizer.state)
    assert state.frees() == 3 * parameters + head + steps  # with two moments
    state.move_out()
    assert state.frees() == 4 * parameters + head + steps  # and the gradients


class Unread(torch.Tensor):
    """A tensor whose gradient another thread must not read: autograd replaces it without Python's lock."""

    @property
    def grad(self) -> Any:  # type: ignore[override]
        raise AssertionError("a gradient was read")


def test_no_gradient_is_read_beside_the_training() -> None:
    state = moved([torch.ones(4).as_subclass(Unread)])
    state.frees()
    with pytest.raises(AssertionError, match="a gradient was read"):
        state.move_out()  # the training thread itself may


def test_without_room_on_the_device_the_state_waits_and_then_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    weights = torch.ones(4), torch.ones(5)
    state = moved(list(weights), clock=lambda: now[0])
    state.move_out()
    full = [True]

    class Storage:
        """Grows only if there is room."""

        def __init__(self, storage: Any) -> None:
            self.storage = storage

        def resize_(self, size: int) -> None:
            if size and full[0]:
                raise torch.cuda.OutOfMemoryError("no room")
            self.storage.resize_(size)

        def copy_(self, host: Any, non_blocking: bool) -> None:
            self.storage.copy_(host)

    last = state._away[-1]
    full_device: Any = Storage(last.storage)
    state._away[-1] = last._replace(storage=full_device)
    assert not state.move_back()
    assert all(weight.untyped_storage().nbytes() == 0 for weight in weights)  # no half of it takes the room of others
    assert not caplog.text
    now[0] = SILENT_WAIT + 1
    assert not state.move_back()
    assert not state.move_back()
    assert caplog.text.count("job: waits until its device has room for its state") == 1
    now[0] = MAX_WAIT_FOR_ROOM + 1
    with pytest.raises(torch.cuda.OutOfMemoryError):
        state.move_back()
    full[0] = False
    assert state.move_back()
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in weights)


def test_what_finds_no_room_on_the_host_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = [torch.ones(4), torch.ones(5)]
    state = moved(weights)
    found = iter([torch.empty(20, dtype=torch.uint8).untyped_storage()])

    def host_memory(size: int) -> torch.UntypedStorage:
        try:
            return next(found)
        except StopIteration:
            raise RuntimeError("can't allocate memory") from None

    monkeypatch.setattr(state, "_host_memory", host_memory)
    monkeypatch.setattr(state, "_storages", lambda: [(w.untyped_storage(), [w]) for w in reversed(weights)])
    state.move_out()
    assert [weight.untyped_storage().nbytes() for weight in weights] == [16, 0]
    assert "not all of its state fits the host's memory: can't allocate memory" in caplog.text
    assert state.move_back()
    assert torch.equal(weights[1], torch.ones(5))


class OnGpu:
    """A Trainer whose strategy has a GPU."""

    def __init__(self, strategy: Any, device: str) -> None:
        self.strategy, self.world_size = strategy, 2
        strategy.__class__ = type(type(strategy).__name__, (type(strategy),), {"root_device": torch.device(device)})


def test_a_strategy_with_memory_of_its_own_is_refused_before_anything_starts() -> None:
    job = Job("job", 60.0, BatchTarget(1), on_hold=OnHold.OFFLOAD)
    check: Any = check_offload
    with pytest.raises(MisconfigurationException, match=r"training of one process.* got DDPStrategy with 2 processes"):
        check(OnGpu(DDPStrategy(), "cuda:0"), job)
    check(OnGpu(DDPStrategy(), "cuda:0"), Job("job", 60.0, BatchTarget(1)))
    check(OnGpu(SingleDeviceStrategy("cpu"), "cuda:0"), job)


def test_on_a_cpu_it_changes_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(held_state, "inform", told.append)
    core = CoreCallback("line", "10m", BatchTarget(2), pool="local", on_hold="offload")
    trainer = pl.Trainer(**QUIET, max_epochs=1, callbacks=[core])
    trainer.fit(Net(), datamodule=NoisyPoints())
    assert told == ["line: on_hold=offload changes nothing on CPUs"]
    assert core._terms.job.on_hold is OnHold.OFFLOAD


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="on_hold must be one of keep, offload, suspend, got 'swap'"):
        CoreCallback("job", "60s", BatchTarget(1), on_hold="swap")
