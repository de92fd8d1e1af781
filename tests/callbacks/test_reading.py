"""Reading of losses and metrics: returned or logged, by batch, by evaluation or by epoch, finite or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.agent.reporting.target_reader import TargetReader
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.reading.logged_metrics import TrainerMetrics
from lightning_core.core.events import Cell
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from tests.callbacks.test_callback import Script, fit, grant, steered
from tests.tiny import QUIET, Batch, Line, ValidatedPoints


def cells(script: Script) -> list[Cell]:
    found = {cell.number: cell for report in script.reports for cell in report.cells}
    assert sorted(found) == list(range(1, len(found) + 1))
    return list(found.values())


def run(model: Line, target: Target, launched: bool = True, **more: Any) -> tuple[Script, pl.Trainer]:
    script = Script(grant(1, 1.0))
    trainer = fit(steered(script, target, launched=launched), model, ValidatedPoints(), **{"max_epochs": 4, **more})
    return script, trainer


class Logging(Line):
    """Logs by a function of the test."""

    def __init__(self, log: Callable[[Logging, Any], None]) -> None:
        super().__init__()
        self.write = log

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.write(self, loss.detach())
        return loss


@pytest.mark.parametrize(
    ("target", "options", "at"),
    [
        (LossTarget("val_loss", 1e-9), {}, [16, 32, 48, 64]),
        (LossTarget("val_loss", 1e-9), {"val_check_interval": 4, "max_epochs": 2}, [4, 8, 12, 16, 20, 24, 28, 32]),
        (LossTarget("val_loss", 1e-9), {"check_val_every_n_epoch": 2}, [32, 64]),
        (LossTarget("val_loss", 1e-9), {"accumulate_grad_batches": 4}, [4, 8, 12, 16]),
    ],
)
def test_a_validation_metric_is_one_cell_an_evaluation(target: Target, options: dict[str, Any], at: list[int]) -> None:
    script, _ = run(Line(), target, **options)
    assert [cell.batches for cell in cells(script)] == at
    assert all(report.evaluated for report in script.reports if report.cells)
    losses = [cell.value for cell in cells(script)]
    assert losses == sorted(losses, reverse=True)


def test_a_mean_over_the_epoch_is_one_cell_an_epoch() -> None:
    def log(module: Logging, loss: Any) -> None:
        module.log("mean", loss, on_step=False, on_epoch=True)

    script, _ = run(Logging(log), LossTarget("mean", 1e-9))
    assert [cell.batches for cell in cells(script)] == [16, 32, 48, 64]


def test_a_metric_by_step_and_by_epoch_is_read_by_step() -> None:
    def log(module: Logging, loss: Any) -> None:
        module.log("both", loss, on_step=True, on_epoch=True)

    script, _ = run(Logging(log), LossTarget("both", 1e-9))
    assert [cell.batches for cell in cells(script)] == [10, 20, 30, 40, 50, 60]
    assert not any(report.evaluated for report in script.reports)


def test_a_rarely_logged_metric_counts_until_its_next_value() -> None:
    def log(module: Logging, loss: Any) -> None:
        if module.steps % 5 == 1:
            module.log("rare", torch.tensor(float(module.steps)))

    script, _ = run(Logging(log), LossTarget("rare", 1e-9))
    assert cells(script)[0] == Cell(1, 10, (5 * 1 + 5 * 6) / 10)


def test_a_growing_metric_of_torchmetrics_is_read() -> None:
    class Accurate(Line):
        def __init__(self) -> None:
            super().__init__()
            self.near = torchmetrics.MeanMetric()

        def validation_step(self, batch: Batch, batch_idx: int) -> None:
            x, y = batch
            self.near(((self.layer(x) - y).abs() < 0.5).float())
            self.log("val_acc", self.near)

    script, trainer = run(Accurate(), LossTarget("val_acc", at_least=0.9, for_evaluations=9))
    found = cells(script)
    assert len(found) == 4
    assert found[-1].value == float(trainer.callback_metrics["val_acc"])


def test_an_accuracy_by_step_is_read_as_it_was_logged() -> None:
    model = Logging(lambda module, loss: module.log("acc", torch.tensor(0.75)))
    script, _ = run(model, LossTarget("acc", at_least=0.9))
    assert {cell.value for cell in cells(script)} == {0.75}
    assert script.reports[-1].rejected == 0


class Returning(Line):
    """Runs the optimizer's steps itself and returns given values."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        return {"loss": self.value(loss)} if callable(self.value) else self.value

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([parameter], lr=0.05) for parameter in self.parameters()]


@pytest.mark.promise("R15", "F10")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda loss: torch.ones(3), "must be a number, got a tensor of 3 elements"),
        (lambda loss: torch.tensor(1j), "must be a number, got a complex tensor of 1 elements"),
        (None, "training_step returned no loss"),
    ],
)
def test_a_loss_that_is_not_a_number_is_warned_about_once(
    value: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    script, trainer = run(Returning(value), LossTarget("loss", 0.1), launched=False, max_epochs=2)
    assert trainer.global_step == 64  # each optimizer's step counts for Lightning
    assert script.reports[-1].batches == 32  # and each training_step for us
    assert caplog.text.count(words) == 1
    assert not cells(script)


class Own(torch.Tensor):
    pass


class Quarter:
    def __float__(self) -> float:
        return 0.25


class Broken:
    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("value", [Quarter(), np.bool_(True), Broken(), None, {"a": 1}, [0.5], "0.5", math.nan])
def test_a_metric_that_a_user_sets_may_be_of_any_type(value: Any) -> None:
    """Some set numbers among the metrics of the Trainer, where others find them."""

    class Sets(pl.Callback):
        def on_validation_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            trainer.callback_metrics["mine"] = value

    core = CoreCallback("a", "1h", "mine<=0.1", pool="local", on_nan="continue")
    trainer = pl.Trainer(**QUIET, max_epochs=2, callbacks=[core, Sets()])
    trainer.fit(Line(), datamodule=ValidatedPoints())
    assert trainer.global_step == 32
    assert core.forecast is not None
    seen = "best" in core.forecast.reason
    assert seen == (type(value) in (Quarter, np.bool_)), core.forecast


@pytest.mark.promise("F10")
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("0.3", "the loss must be a number, got str '0.3'"),
        ([0.1, 0.2], "the loss must be a number, got list '[0.1, 0.2]'"),
        (1j, "the loss must be a number, got complex '1j'"),
        (torch.ones(2, 2), "the loss must be a number, got a tensor of 4 elements"),
        (0.25, None),
        (np.float32(0.25), None),
        (torch.tensor(0.25), None),
        (torch.tensor([0.25], dtype=torch.bfloat16), None),
        (torch.tensor([0.25]).to_sparse(), None),
        (torch.tensor([[0.25]], requires_grad=True).as_subclass(Own), None),
        (Decimal("0.25"), None),
        (Fraction(1, 4), None),
        (Quarter(), None),
        (np.array([[0.25]]), None),
        (np.array([0.25, 0.5]), "the loss must be a number, got ndarray '[0.25 0.5 ]'"),
        (torch.empty((), device="meta"), "the loss must be a number, got a tensor of 1 elements"),
        (10**400, f"the loss must be a number, got int '1{'0' * 39}'"),
        (Broken(), "the loss must be a number, got Broken"),
    ],
)
def test_unexpected_outputs_of_training_step_are_handled(loss: Any, words: str | None) -> None:
    found: list[Cell] = []
    metrics = TrainerMetrics(pl.Trainer(logger=False, accelerator="cpu"))
    reading = TargetReader(LossTarget("loss", 0.1), LossMeter(found.append, every=1), metrics)
    assert reading.read_batch({"loss": loss}, 1, 1) == words
    assert reading.read_batch({"loss": loss}, 1, 2) is None  # said once
    assert [cell.value for cell in found] == ([] if words else [0.25, 0.25])


@pytest.mark.parametrize("value", [lambda loss: loss, lambda loss: loss.reshape(1)])
def test_with_manual_optimization_the_returned_loss_counts(value: Any) -> None:
    script, _ = run(Returning(value), LossTarget("loss", 1e-9), max_epochs=2)
    found = cells(script)
    assert [cell.batches for cell in found] == [10, 20, 30]
    assert found[0].value > found[-1].value


def test_with_manual_optimization_a_logged_loss_counts() -> None:
    class Quiet(Returning):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            super().training_step(batch, batch_idx)
            self.log("loss", 0.5)

    script, _ = run(Quiet(None), LossTarget("loss", 1e-9), max_epochs=2)
    assert {cell.value for cell in cells(script)} == {0.5}


def test_early_stopping_works_in_a_run_without_limits() -> None:
    stopping = EarlyStopping("val_loss", stopping_threshold=0.05)
    script = Script(grant(1, 1.0))
    callback = steered(script)
    trainer = fit(callback, Line(), ValidatedPoints(), max_epochs=-1, callbacks=[stopping, callback])
    assert script.reports[-1].batches == trainer.global_step < 2000


def test_a_resumed_run_reports_where_it_began(tmp_path: Path) -> None:
    trainer = fit(steered(Script(grant(1, 1.0))), max_epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    script = Script(grant(1, 1.0))
    again = pl.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[steered(script)],
    )  # fmt: skip
    again.fit(Line(), datamodule=ValidatedPoints(), ckpt_path=tmp_path / "half.ckpt")
    assert {report.batches_at_start for report in script.reports} == {32}
    assert script.reports[-1].batches == 64
    assert [cell.batches for cell in cells(script)] == [42, 52, 62]


def test_saving_counts_as_busy(tmp_path: Path) -> None:
    class Slow(ModelCheckpoint):
        def on_train_epoch_end(self, *arguments: Any) -> None:
            import time

            time.sleep(0.3)
            super().on_train_epoch_end(*arguments)

    script = Script(grant(1, 1.0))
    callback = steered(script)
    saving = Slow(tmp_path)
    fit(callback, max_epochs=2, callbacks=[callback, saving], enable_checkpointing=True)
    assert script.reports[-1].busy > 0.6
    assert list(tmp_path.iterdir())


def test_reduced_precision_does_not_change_the_losses() -> None:
    script, _ = run(Line(), BatchTarget(10**9), precision="bf16-mixed", max_epochs=2)
    assert len(cells(script)) == 3
