"""Fabric: what the conformance suite does not ask."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers.logger import Logger

import lightning_core
from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import JobForecast
from lightning_core.integrations.fabric import CoreFabricCallback
from lightning_core.testing.loop_conformance import NAME, ScriptedScheduler, scheduled


def train(fabric: Fabric, batches: int, *, hooks: bool = True, accumulated: int = 1, over: Any = None) -> int:
    """Train a line; return the optimizer steps."""
    line = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(line, torch.optim.SGD(line.parameters(), lr=0.01))
    x, steps = torch.ones(4, 1), 0
    for number in range(1, batches + 1):
        loss = ((model(x) - 2) ** 2).mean()
        fabric.backward(loss / accumulated)
        if number % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        if hooks:
            fabric.call("on_train_batch_end", {"loss": loss, "steps": float(steps)}, None, number)
        if over is not None and over():
            break
    return steps


def test_a_batch_is_an_optimizer_step_with_the_mean_of_its_losses() -> None:
    client = ScriptedScheduler()
    with scheduled(client):
        ours = CoreFabricCallback(NAME, "1h", "loss<=0")
        train(Fabric(accelerator="cpu", callbacks=[ours]), 80, accumulated=4)
        ours.run.close()
    assert client.reports[-1].batches == 20
    assert len(client.cells()) == 2


def test_a_target_may_be_about_another_value_of_a_batch() -> None:
    with scheduled(ScriptedScheduler()):
        ours = CoreFabricCallback(NAME, "1h", "steps>=25 of 1000", every=1)
        done = train(Fabric(accelerator="cpu", callbacks=[ours]), 100, over=lambda: ours.over)
        ours.run.close()
    assert 25 <= done < 40


@pytest.mark.parametrize("hooks", [False, True])
def test_an_unchanged_script_joins_by_its_environment(monkeypatch: pytest.MonkeyPatch, hooks: bool) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_JOB", "unchanged")
    monkeypatch.setenv("LIGHTNING_CORE_TARGET", "12 batches")
    client = ScriptedScheduler()
    with scheduled(client):
        fabric = Fabric(accelerator="cpu")
        train(fabric, 30, hooks=hooks)
        fabric.call("on_train_end")
    assert client.jobs[0].name == "unchanged"
    assert client.jobs[0].model == "torch.nn.modules.linear.Linear"
    assert client.reports[-1].batches == 30
    assert client.reports[-1].met is not None or client.exits


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_JOB", "unchanged")
    with pytest.raises(Exception, match="LIGHTNING_CORE_TARGET must be set if LIGHTNING_CORE_JOB is"):
        Fabric(accelerator="cpu")


def test_without_variables_a_fabric_has_no_callback() -> None:
    assert not [one for one in Fabric(accelerator="cpu")._callbacks if isinstance(one, CoreFabricCallback)]


def test_the_callback_of_a_trainer_names_what_fits_a_fabric() -> None:
    fabric = Fabric(accelerator="cpu", callbacks=[CoreCallback("a", "1h", "loss<=0", pool="local")])
    with pytest.raises(TypeError, match=r"a Fabric takes lightning_core\.integrations\.fabric\.CoreFabricCallback"):
        train(fabric, 3)


def test_the_callback_of_a_fabric_names_what_fits_a_trainer() -> None:
    import lightning.pytorch as pl

    from tests.tiny import QUIET, Line, Points

    ours: Any = CoreFabricCallback("a", "1h", "loss<=0", pool="local")
    with pytest.raises(TypeError, match=r"a Trainer takes lightning_core\.callbacks\.CoreCallback"):
        pl.Trainer(callbacks=[ours], max_steps=2, **QUIET).fit(Line(), datamodule=Points())


class Kept(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    @property
    def name(self) -> str:
        return "kept"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Keep nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)


def test_forecasts_are_shown_in_the_loggers_of_a_fabric() -> None:
    class Forecasting(ScriptedScheduler):
        def job_forecast(self, job: str) -> JobForecast | None:
            return JobForecast(None, "early", 0.5, 60.0, None)

    logger, client = Kept(), Forecasting()
    fabric = Fabric(accelerator="cpu", loggers=[logger])
    with scheduled(client), lightning_core.track(NAME, "1h", "loss<=0", fabric=fabric) as run:
        for _ in range(10_000):
            run.step(loss=1.0)
            if logger.metrics:
                break
            time.sleep(0.01)
    assert logger.metrics[0]["lightning_core/share"] == 0.5
