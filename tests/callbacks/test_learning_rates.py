"""Learning rates that a training reports are those that it then has, under each of torch's schedulers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch.optim import Optimizer
from torch.optim import lr_scheduler as lrs

from lightning_core.agent.reporting.lr_points import seen_points
from lightning_core.agent.reporting.outbox import Outbox
from lightning_core.callbacks import CoreCallback
from lightning_core.core.events import Report
from lightning_core.core.limits import MAX_RATES
from lightning_core.core.reported import LearningRates, fewer
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from tests.callbacks.test_callback import Script, grant, steered
from tests.examples import day_and_night
from tests.tiny import QUIET, Points

Make = Callable[[Optimizer], Any]
PEAK = 0.01
NEVER = LossTarget("loss", 1e-9)
EPOCHS, PER_EPOCH = 5, 16


class Untouchable(torch.nn.Parameter):
    """A parameter that no one may copy."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("parameters must not be copied")

    def __copy__(self) -> Any:
        raise AssertionError("parameters must not be copied")


class Scheduled(pl.LightningModule):
    """A line whose parameter cannot be copied, with two parameter groups and any learning-rate scheduler."""

    def __init__(self, make: Make | None, **config: Any) -> None:
        super().__init__()
        self.weight = Untouchable(torch.zeros(3))
        self.small = torch.nn.Parameter(torch.zeros(1))
        self.make, self.config = make, config

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss: torch.Tensor = ((self.weight.sum() * x + self.small - y) ** 2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", 1.0)

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [{"params": [self.small], "lr": 0.5}, {"params": [self.weight]}]
        optimizer = torch.optim.AdamW(groups, lr=PEAK)
        if self.make is None:
            return optimizer
        made = self.make(optimizer)
        made = made if isinstance(made, list) else [made]
        return [optimizer], [{"scheduler": one, "interval": "step", **self.config} for one in made]


class Watched(pl.Callback):
    """Records the learning rate of each batch, and what is to be reported behind each.

    Args:
        core: Callback whose reports are looked at.
        at: What to do before a batch, by its number; it gets the parameter group.
    """

    def __init__(self, core: CoreCallback, at: Mapping[int, Callable[[Any], None]] | None = None) -> None:
        self.core, self.at = core, at or {}
        self.rates: dict[int, float] = {}
        self.reported: list[LearningRates | None] = []

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        group, batch = trainer.optimizers[0].param_groups[1], trainer.global_step + 1
        self.at.get(batch, lambda _: None)(group)
        self.rates[batch] = group["lr"]

    def on_train_batch_end(self, *_: Any) -> None:
        outbox = self.core._fit.mailbox.outbox
        if not self.reported or outbox.learning_rates != self.reported[-1]:
            self.reported.append(outbox.learning_rates)


def fit(
    make: Make | None,
    at: Mapping[int, Callable[[Any], None]] | None = None,
    target: Target = NEVER,
    config: Any = None,
    ckpt_path: Any = None,
    callbacks: Any = (),
    **options: Any,
) -> Watched:
    torch.manual_seed(0)
    core = CoreCallback("a", "10m", target, pool="local")
    watched = Watched(core, at)
    options = QUIET | {"max_epochs": EPOCHS} | options
    trainer = pl.Trainer(**options, callbacks=[core, watched, *callbacks])
    trainer.fit(Scheduled(make, **(config or {})), datamodule=Points(), ckpt_path=ckpt_path)
    return watched


def check(rates: LearningRates | None, real: dict[int, float]) -> LearningRates:
    """Check that the rates at all points, and between them, are those of the training."""
    assert rates is not None
    assert rates.are_valid
    peak = max(real.values())
    assert max(rates.rates) == 1.0
    known = {batch: rate for batch, rate in zip(*rates, strict=True) if batch in real}
    assert {batch: pytest.approx(real[batch] / peak, abs=2e-6) for batch in known} == known
    np.testing.assert_allclose(np.interp(list(real), *rates), np.array(list(real.values())) / peak, atol=2e-3)
    return rates


def warm_up(then: Callable[[Optimizer], Any], steps: int = 10) -> Make:
    return lambda optimizer: lrs.SequentialLR(
        optimizer, [lrs.LinearLR(optimizer, 0.1, total_iters=steps), then(optimizer)], [steps]
    )


KINDS: dict[str, Make] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda step: 1.0 / (1.0 + 0.1 * step)),
    "LambdaLR of each group": lambda o: lrs.LambdaLR(o, [lambda step: 1.0, lambda step: 0.98**step]),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda step: 0.9 if step % 7 == 0 else 0.99),
    "StepLR": lambda o: lrs.StepLR(o, 21, 0.3),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [13, 40, 40, 60], 0.2),
    "ConstantLR": lambda o: lrs.ConstantLR(o, 0.25, 17),
    "LinearLR": lambda o: lrs.LinearLR(o, 0.1, 0.8, 33),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 55, 2.0),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 80),
    "CosineAnnealingLR to a minimum, and up again": lambda o: lrs.CosineAnnealingLR(o, 25, 1e-3),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 11, 2, 1e-4),
    "CosineAnnealingWarmRestarts alike": lambda o: lrs.CosineAnnealingWarmRestarts(o, 9),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, [0.5, PEAK], 80),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 1e-3, PEAK, 15, 10, cycle_momentum=False),
    "CyclicLR by the user": lambda o: lrs.CyclicLR(o, 1e-3, PEAK, 15, scale_fn=lambda x: 0.9**x, cycle_momentum=False),
    "warm-up, then cosine": warm_up(lambda o: lrs.CosineAnnealingLR(o, 70, 1e-4)),
    "warm-up, then restarts": warm_up(lambda o: lrs.CosineAnnealingWarmRestarts(o, 20)),
    "warm-up, then steps": warm_up(lambda o: lrs.StepLR(o, 20, 0.5)),
    "warm-up, then a function": warm_up(lambda o: lrs.LambdaLR(o, lambda step: 0.97**step)),
    "three in sequence": lambda o: lrs.SequentialLR(
        o, [lrs.ConstantLR(o, 0.2, 100), lrs.LinearLR(o, 0.3, total_iters=10), lrs.ExponentialLR(o, 0.9)], [15, 40]
    ),
    "chained": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o, 0.3, 12), lrs.ExponentialLR(o, 0.97)], o),
    "chained with a cosine": lambda o: lrs.ChainedScheduler(
        [lrs.LinearLR(o, 0.2, total_iters=12), lrs.CosineAnnealingLR(o, 60, 1e-3)], o
    ),
    "chained with values": lambda o: lrs.ChainedScheduler(
        [lrs.CosineAnnealingWarmRestarts(o, 20), lrs.ExponentialLR(o, 0.97)], o
    ),
    "two configured": lambda o: [lrs.StepLR(o, 20, 0.5), lrs.ExponentialLR(o, 0.99)],
}


# One of each kind of course: a function of the user's, one per group, in steps, periodic, in sequence, chained, two.
BY_DAY = (
    "LambdaLR of each group", "MultiStepLR", "CosineAnnealingWarmRestarts", "OneCycleLR", "warm-up, then cosine",
    "chained with a cosine", "two configured",
)  # fmt: skip


@pytest.mark.parametrize("kind", day_and_night(KINDS, BY_DAY))
def test_reported_learning_rates_are_those_that_the_training_has(kind: str) -> None:
    watched = fit(KINDS[kind])
    assert len(watched.reported) == 1
    rates = check(watched.reported[0], watched.rates)
    assert (rates.batches[0], rates.batches[-1]) == (1, EPOCHS * PER_EPOCH)


COSINE = KINDS["CosineAnnealingLR to a minimum, and up again"]
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "each epoch": ({"interval": "epoch"}, {}),
    "every other epoch": ({"interval": "epoch", "frequency": 2}, {"max_epochs": 8}),
    "every third batch": ({"frequency": 3}, {}),
    "accumulated": ({}, {"accumulate_grad_batches": 5, "max_epochs": 16}),
    "accumulated, every tenth batch": ({"frequency": 10}, {"accumulate_grad_batches": 5, "max_epochs": 30}),
    "accumulated, every fourth batch": ({"frequency": 4}, {"accumulate_grad_batches": 5, "max_epochs": 40}),
    "accumulated, each epoch": ({"interval": "epoch"}, {"accumulate_grad_batches": 7, "max_epochs": 15}),
    "a part of each epoch": ({"interval": "epoch"}, {"limit_train_batches": 0.5, "max_epochs": 8}),
    "until a step": ({}, {"max_steps": 37, "max_epochs": -1}),
}


@pytest.mark.parametrize("layout", day_and_night(LAYOUTS, ("every other epoch", "accumulated", "until a step")))
def test_schedulers_are_stepped_as_lightning_steps_them(layout: str) -> None:
    config, options = LAYOUTS[layout]
    watched = fit(lambda o: lrs.CosineAnnealingLR(o, 6 if "epoch" in layout else 25, 1e-3), config=config, **options)
    assert len(watched.reported) == 1
    rates = check(watched.reported[0], watched.rates)
    assert rates.batches[-1] == max(watched.rates)


def test_a_resumed_training_reports_its_past_too(tmp_path: Any) -> None:
    path = tmp_path / "half.ckpt"

    class Save(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 23:
                trainer.save_checkpoint(path)

    for kind in ("warm-up, then cosine", "CosineAnnealingWarmRestarts", "chained with a cosine", "OneCycleLR"):
        whole = fit(KINDS[kind], callbacks=[Save()])
        again = fit(KINDS[kind], ckpt_path=path)
        assert min(again.rates) == 24
        assert len(again.reported) == 1
        rates = check(again.reported[0], whole.rates)
        assert rates.batches[0] == 1


def test_a_rate_that_the_user_changes_is_reported_anew() -> None:
    """It is looked at after 20 batches and after 40."""
    change = {31: lambda group: group.update(lr=0.1 * group["lr"])}
    watched = fit(lambda o: lrs.PolynomialLR(o, 300), change, max_epochs=20)
    before, after = watched.reported
    check(after, {batch: rate for batch, rate in watched.rates.items() if not 31 <= batch <= 40})
    assert before is not None
    assert after is not None
    assert before.batches[-1] == after.batches[-1] == 20 * PER_EPOCH


def test_a_constant_rate_is_not_reported_until_it_changes() -> None:
    assert fit(None).reported == [None]
    assert fit(lambda o: lrs.LambdaLR(o, lambda step: 0.5)).reported == [None]
    nothing, after = fit(None, {31: lambda group: group.update(lr=0.25 * PEAK)}, max_epochs=20).reported
    assert nothing is None
    assert after == LearningRates((1, 40, 41), (1.0, 1.0, 0.25))


def test_a_rate_that_something_else_sets_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    changes = {batch: partial(_set_rate, rate=PEAK / batch) for batch in range(1, 800)}
    watched = fit(KINDS["StepLR"], changes, max_epochs=50)
    assert watched.reported[-1] == LearningRates((1,), (1.0,))
    assert len(watched.reported) <= 25
    assert "its schedulers are not all that changes its learning rate" in caplog.text


def _set_rate(group: Any, rate: float) -> None:
    group["lr"] = rate


def raises(step: int) -> float:
    if step > 40:
        raise ZeroDivisionError("no such step")
    return 1.0


class Own(lrs.ExponentialLR):
    """A scheduler of the user's own."""


REMEMBERS = "<lambda>, which may remember its calls"
SILENT: dict[str, tuple[Make, dict[str, Any], str]] = {
    "a metric": (
        lambda o: lrs.ReduceLROnPlateau(o), {"monitor": "loss", "interval": "epoch"}, "ReduceLROnPlateau waits",
    ),
    "a function that raises": (lambda o: lrs.LambdaLR(o, raises), {}, "which may remember its calls"),
    "a function that draws": (lambda o: lrs.LambdaLR(o, lambda _: random.random()), {}, REMEMBERS),
    "NumPy draws": (lambda o: lrs.LambdaLR(o, lambda _: np.random.rand()), {}, REMEMBERS),
    "torch draws": (lambda o: lrs.MultiplicativeLR(o, lambda _: float(torch.rand(1))), {}, REMEMBERS),
    "another class": (lambda o: Own(o, 0.9), {}, "the course of Own is not known"),
    "in a sequence": (warm_up(lambda o: lrs.MultiplicativeLR(o, lambda _: 0.9)), {}, "within SequentialLR"),
    "to and fro": (
        lambda o: lrs.CyclicLR(o, 1e-3, PEAK, 2, cycle_momentum=False), {}, "its learning rate goes up and down too",
    ),
    "infinite": (lambda o: lrs.LambdaLR(o, lambda step: float("inf") if step > 40 else 1.0), {}, "is inf"),
    "a length that is unknown": (KINDS["StepLR"], {}, "the length of the training is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("why", SILENT)
def test_a_training_whose_rates_are_unknown_goes_on_without(why: str, caplog: pytest.LogCaptureFixture) -> None:
    make, config, words = SILENT[why]

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 30

    epochs = -1 if why == "a length that is unknown" else 40
    watched = fit(make, config=config, max_epochs=epochs, callbacks=[Stop()])
    assert watched.reported == [None]
    told = [line for line in caplog.messages if "do without the learning rates to come" in line]
    assert len(told) == 1
    assert words in told[0]


LENGTHS: dict[str, tuple[Make, int]] = {
    "OneCycleLR": (lambda o: lrs.OneCycleLR(o, [0.5, PEAK], 60), 61),
    "CosineAnnealingLR": (lambda o: lrs.CosineAnnealingLR(o, 50), 51),
    "warm-up, then cosine": (warm_up(lambda o: lrs.CosineAnnealingLR(o, 70)), 81),
    "MultiStepLR": (KINDS["MultiStepLR"], 61),
    "two configured": (lambda o: [lrs.LinearLR(o, 0.1, total_iters=5), lrs.CosineAnnealingLR(o, 50)], 51),
}


@pytest.mark.parametrize("kind", day_and_night(LENGTHS, ("OneCycleLR", "two configured")))
def test_a_scheduler_may_know_the_length_that_the_training_has_not(kind: str) -> None:
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 40

    make, last = LENGTHS[kind]
    watched = fit(make, max_epochs=-1, callbacks=[Stop()])
    [rates] = watched.reported
    assert rates is not None
    assert rates.batches[-1] == last
    peak = max(watched.rates.values())
    assert np.interp(30, *rates) * peak == pytest.approx(watched.rates[30], abs=2e-3 * peak)


def test_a_target_in_batches_needs_no_learning_rates(caplog: pytest.LogCaptureFixture) -> None:
    assert fit(KINDS["CosineAnnealingLR"], target=BatchTarget(1000)).reported == [None]
    assert fit(lambda o: Own(o, 0.9), target=BatchTarget(1000)).reported == [None]
    assert "learning rates to come" not in caplog.text


def test_random_state_and_warnings_are_as_without_a_schedule(recwarn: pytest.WarningsRecorder) -> None:
    """The training draws the same numbers, whatever is worked out for its schedulers."""
    drawn: list[tuple[float, ...]] = []

    class Draw(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            drawn.append((random.random(), np.random.rand(), float(torch.rand(1))))

    def draws(step: int) -> float:
        return random.random() * np.random.rand() * float(torch.rand(1)) if step else 1.0

    first = []
    for make in (None, KINDS["chained with a cosine"], lambda o: lrs.LambdaLR(o, draws)):
        random.seed(0)
        np.random.seed(0)
        drawn.clear()
        fit(make, callbacks=[Draw()], max_epochs=2, config={"interval": "epoch"})
        first.append(drawn[: PER_EPOCH - 1])  # then the epoch ends, and the training itself draws for its rate
    assert first[0] == first[1] == first[2]
    said = [str(one.message) for one in recwarn]
    assert [words for words in said if "lr_scheduler" in words or "get_l" in words] == []


def test_manual_optimization_is_told_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Manual(Scheduled):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss

    core = CoreCallback("a", "10m", NEVER, pool="local")
    watched, model = Watched(core), Manual(KINDS["StepLR"])
    model.automatic_optimization = False
    pl.Trainer(**QUIET, max_epochs=2, callbacks=[core, watched]).fit(model, datamodule=Points())
    assert watched.reported == [None]
    assert "manual optimization steps its schedulers when it wants" in caplog.text


def test_a_module_that_steps_its_schedulers_its_own_way_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class OwnStep(Scheduled):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            scheduler.step()

    core = CoreCallback("a", "10m", NEVER, pool="local")
    pl.Trainer(**QUIET, max_epochs=2, callbacks=[core]).fit(OwnStep(KINDS["StepLR"]), datamodule=Points())
    assert "the module has a lr_scheduler_step of its own" in caplog.text


def test_learning_rates_are_reported_until_they_have_arrived() -> None:
    outbox, one, other = Outbox(), LearningRates((1, 9), (1.0, 0.5)), LearningRates((1, 9), (1.0, 0.25))
    outbox.progress = (0, 0.0, 0)

    def report() -> Report:
        made: Report | None = outbox.make_report("a", 1, 1)
        assert made is not None
        return made

    assert report().learning_rates is None
    outbox.learning_rates = one
    lost, arrives = report(), report()
    assert lost.learning_rates is arrives.learning_rates is one
    outbox.learning_rates = other
    outbox.note_arrival(arrives)
    arrives = report()
    assert arrives.learning_rates is other
    outbox.note_arrival(arrives)
    outbox.note_arrival(report())
    assert report().learning_rates is None
    outbox.start_over()
    assert report().learning_rates is other


def test_a_course_of_any_length_is_worked_out_at_a_bounded_number_of_batches() -> None:
    asked = []

    def rate(batch: int) -> float:
        asked.append(batch)
        return 1.0 if batch < 10**6 // 3 else 0.3 + 0.2 * float(np.sin(batch))

    points, distance = fewer(seen_points(rate, 1, 10**6))
    assert len(asked) < 6000
    assert len(points) <= MAX_RATES
    assert distance > 0.05


def test_a_scheduler_hears_the_learning_rates_once_from_a_script_and_from_a_launched_job() -> None:
    for launched in (False, True):
        script = Script(grant(1, 1.0))
        core = steered(script, NEVER, launched=launched)
        pl.Trainer(**QUIET, max_epochs=EPOCHS, callbacks=[core]).fit(Scheduled(KINDS["StepLR"]), datamodule=Points())
        told = [report.learning_rates for report in script.reports if report.learning_rates is not None]
        assert [(rates.batches[0], rates.batches[-1]) for rates in told] == [(1, EPOCHS * PER_EPOCH)]
