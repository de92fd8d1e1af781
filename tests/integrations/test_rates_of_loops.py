"""Learning rates to come of loops without Lightning: reported as Lightning's are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.optim import lr_scheduler

import lightning_core
from lightning_core.callbacks import CoreCallback
from lightning_core.core.reported import LearningRates
from lightning_core.testing.loop_conformance import NAME, ScriptedScheduler, scheduled
from tests.tiny import QUIET, Line, Points

BATCHES = 64


def schedule(optimizer: torch.optim.Optimizer, *, per_epoch: bool) -> Any:
    if per_epoch:
        return lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    return lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1.0 + math.cos(math.pi * step / 64)))


def told_by(client: ScriptedScheduler) -> LearningRates:
    found = [report.learning_rates for report in client.reports if report.learning_rates is not None]
    assert found
    return found[0]


class Scheduled(Line):
    def __init__(self, *, per_epoch: bool) -> None:
        super().__init__()
        self.per_epoch = per_epoch

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        interval = "epoch" if self.per_epoch else "step"
        return [optimizer], [{"scheduler": schedule(optimizer, per_epoch=self.per_epoch), "interval": interval}]


@pytest.mark.parametrize("per_epoch", [False, True])
def test_a_plain_loop_reports_the_rates_that_lightning_reports(per_epoch: bool) -> None:
    lightning, plain = ScriptedScheduler(), ScriptedScheduler()
    with scheduled(lightning):
        ours = CoreCallback(NAME, "1h", "loss<=0")
        trainer = pl.Trainer(max_epochs=4, callbacks=[ours], **QUIET)
        trainer.fit(Scheduled(per_epoch=per_epoch), datamodule=Points())
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=model.lr)
    scheduler = schedule(optimizer, per_epoch=per_epoch)
    interval = "epoch" if per_epoch else "step"
    with (
        scheduled(plain),
        lightning_core.track(
            NAME, "1h", "loss<=0", max_epochs=4, lr_scheduler=scheduler, lr_interval=interval
        ) as run,
    ):  # fmt: skip
        for _ in range(4):
            for batch in run.batches(Points().train_dataloader()):
                loss = model.training_step(batch, 0)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                if not per_epoch:
                    scheduler.step()
                run.log(loss=loss)
            if per_epoch:
                scheduler.step()
    assert told_by(plain) == told_by(lightning)
    assert min(told_by(plain).rates) < 1.0


def test_the_trainer_of_transformers_reports_its_linear_decay(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from lightning_core.integrations.transformers import CoreTrainerCallback
    from lightning_core.testing.loop_conformance import Exercise
    from tests.integrations.test_transformers import TaughtModel, arguments, trainer_of

    client = ScriptedScheduler()
    row = {"x": torch.zeros(1), "labels": torch.zeros(1)}
    given = arguments(str(tmp_path), max_steps=40, lr_scheduler_type="linear", warmup_steps=4)
    with scheduled(client):
        ours = CoreTrainerCallback(NAME, "1h", "loss<=0")
        trainer_of(TaughtModel(Exercise(), 0), given, [row] * 60, ours).train()
    rates = told_by(client)
    assert rates.batches[0] == 1
    assert rates.batches[-1] == 40
    assert rates.rates[-1] == pytest.approx(1 / 36, abs=0.01)
    assert max(rates.rates) == 1.0
