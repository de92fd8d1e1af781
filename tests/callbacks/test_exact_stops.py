"""A training stops in the hook that saw its target met: after the same batch in every run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.agent.reporting import loss_meter
from lightning_core.core.answers import Directive, Grant, JobStatus, Verdict
from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.commands import Pause, SetTerms
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget, Met, Target, TargetJudge, parse_target
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.local_client import LocalClient
from lightning_core.storage.manifests import read_manifest
from tests.callbacks.test_callback import ConnectedScript, Script, fit, grant, steered
from tests.callbacks.test_epochs import Streamed
from tests.examples import examples
from tests.tiny import Line, Points, ValidatedPoints


class SlowClient(LocalClient):
    """A scheduler that takes a while over each report."""

    def report(self, report: Report) -> Directive | None:
        time.sleep(0.05)
        return super().report(report)


class Hooks(pl.Callback):
    """Counts hooks, and the batches at each evaluation."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.evaluated_at: list[int] = []

    def _count(self, hook: str) -> None:
        self.seen[hook] = self.seen.get(hook, 0) + 1

    def on_train_batch_start(self, *_: Any) -> None:
        self._count("batch starts")

    def on_train_batch_end(self, *_: Any) -> None:
        self._count("batch ends")

    def on_train_epoch_start(self, *_: Any) -> None:
        self._count("epoch starts")

    def on_train_epoch_end(self, *_: Any) -> None:
        self._count("epoch ends")

    def on_validation_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if not trainer.sanity_checking:
            self.evaluated_at.append(trainer.global_step)


def trained(
    target: str, model: Line | None = None, data: Points | None = None, **options: Any
) -> tuple[pl.Trainer, JobStatus, Hooks]:
    """Train to a target, with a scheduler that is slow."""
    client, hooks = SlowClient(), Hooks()
    own = {name: options.pop(name) for name in ("keep_best", "every", "stop_when_met") if name in options}
    callback = ConnectedScript("job", target, client=client, **own)
    client.join(callback._options.job, "cpu")
    trainer = fit(callback, model, data, **{"max_epochs": 50, **options, "callbacks": [callback, hooks]})
    [status] = client._host.scheduler.status()
    return trainer, status, hooks


def test_a_loss_ends_the_training_after_the_same_batch_in_every_run() -> None:
    """Fifty batches are the first that fill a window; the scheduler hears of it when the training is over."""
    found = []
    for pause in (0.0, 0.002):
        pl.seed_everything(1, verbose=False)
        model = Line(lr=0.02, pause=pause)
        trainer, status, hooks = trained("loss<=0.2", model)
        assert status.verdict is Verdict.MET
        assert status.batches == trainer.global_step == model.steps == hooks.seen["batch starts"]
        assert status.best is not None
        found.append((trainer.global_step, status.best, model.layer.weight.item()))
    assert found[0] == found[1]
    assert found[0][0] % 10 == 0
    assert found[0][1] <= 0.2


@pytest.mark.parametrize("target", ["20 batches", "32 batches"])
@pytest.mark.parametrize("launched", [False, True])
def test_batches_are_counted_to_the_last(target: str, launched: bool) -> None:
    script, hooks = Script(grant(1, 1.0)), Hooks()
    callback = steered(script, parse_target(target), launched=launched)
    trainer = fit(callback, callbacks=[callback, hooks])
    batches = int(target.split()[0])
    assert trainer.global_step == batches == script.reports[-1].batches
    assert hooks.seen == {"batch starts": batches, "batch ends": batches, "epoch starts": 2, "epoch ends": 2}


@pytest.mark.parametrize(
    ("data", "accumulated", "epochs", "steps"), [(Points, 1, 3, 48), (Points, 3, 2, 12), (Streamed, 1, 1, 12),
                                                 (Streamed, 1, 3, 36)],
)  # fmt: skip
def test_epochs_are_counted_to_the_last(data: Callable[[], Points], accumulated: int, epochs: int, steps: int) -> None:
    target = f"{epochs} epochs"
    trainer, status, hooks = trained(target, data=data(), accumulate_grad_batches=accumulated)
    assert (trainer.global_step, status.batches, status.verdict) == (steps, steps, Verdict.MET)
    assert (hooks.seen["epoch starts"], hooks.seen["epoch ends"], trainer.current_epoch) == (epochs, epochs, epochs)
    assert hooks.seen["batch starts"] == hooks.seen["batch ends"]


class Falling(Line):
    """Validates, and ends each epoch, to the values of a list."""

    def __init__(self, values: list[float]) -> None:
        super().__init__(pause=0.0005)
        self.values, self.evaluations, self.epochs = values, 0, 0

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_score", self.values[self.evaluations])
            self.evaluations += 1

    def on_train_epoch_end(self) -> None:
        self.log("epoch_score", self.values[self.epochs])
        self.epochs += 1


VALUES = [0.9, 0.7, 0.6, 0.3, 0.5, 0.2, *[0.1] * 50]


@pytest.mark.parametrize(("interval", "at"), [(4, [4, 8, 12, 16]), (16, [16, 32, 48, 64])])
def test_a_validation_that_meets_the_target_is_the_last_one(tmp_path: Path, interval: int, at: list[int]) -> None:
    """The best value and the best model are those of the validation that met it."""
    trainer, status, hooks = trained(
        "val_score<=0.4", Falling(VALUES), ValidatedPoints(), val_check_interval=interval, keep_best=tmp_path
    )
    assert hooks.evaluated_at == at
    assert trainer.global_step == at[-1] == hooks.seen["batch starts"]
    assert (status.verdict, status.batches, status.cells) == (Verdict.MET, at[-1], 4)
    assert status.best == pytest.approx(0.3)
    manifest = read_manifest(tmp_path / "job-best.ckpt")
    assert manifest is not None
    assert manifest.batches == at[-1]
    assert manifest.value == pytest.approx(0.3)


def test_a_metric_of_the_epoch_ends_the_training_before_the_next_epoch(tmp_path: Path) -> None:
    trainer, status, hooks = trained("epoch_score<=0.4", Falling(VALUES), keep_best=tmp_path)
    assert hooks.seen == {"batch starts": 64, "batch ends": 64, "epoch starts": 4, "epoch ends": 4}
    assert (trainer.current_epoch, status.verdict) == (4, Verdict.MET)
    assert status.best == pytest.approx(0.3)
    assert torch.load(tmp_path / "job-best.ckpt", weights_only=False)["global_step"] == 64


@pytest.mark.parametrize(("least", "steps"), [({"min_epochs": 5}, 80), ({"min_steps": 70}, 70)])
def test_the_trainer_s_own_minimum_stays(least: dict[str, int], steps: int) -> None:
    options: dict[str, Any] = least
    trainer, status, _ = trained("20 batches", **options)
    assert trainer.global_step == steps
    assert (status.verdict, status.batches) == (Verdict.MET, steps)


def test_a_training_that_does_not_stop_at_its_target_goes_on_to_its_end() -> None:
    trainer, status, _ = trained("loss<=0.2", Line(lr=0.02), stop_when_met=False, max_epochs=20)
    assert (trainer.global_step, status.batches, status.verdict) == (320, 320, Verdict.MET)


def test_without_any_scheduler_it_stops_as_well() -> None:
    away = Script()
    away.away = True
    callback = ConnectedScript("job", "32 batches", client=away)
    assert fit(callback, max_epochs=4).global_step == 32


# ------------------------------------------------------------------------------------------ what the scheduler says


def job_of(target: Target) -> Scheduler:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((Job("a", 1e6, target),)), 0.0)
    return scheduler


TARGETS = [LossTarget("loss", 0.5), LossTarget("acc", at_least=0.5), LossTarget("acc", at_least=0.5, for_evaluations=3)]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(TARGETS), st.booleans(),
    st.lists(st.sampled_from([0.2, 0.45, 0.5, 0.55, 0.9, 1e301]), min_size=1, max_size=20), st.data(),
)  # fmt: skip
def test_reports_cut_anywhere_are_judged_as_the_training_judges_itself(
    target: Target, evaluated: bool, values: list[float], data: st.DataObject
) -> None:
    """Cells may come one by one, together, twice or late; the cell that meets the target is the same one."""
    judge, scheduler = TargetJudge(target, Settings().window), job_of(target)
    cells = [Cell(number, 10 * number, value) for number, value in enumerate(values, start=1)]
    meets = next((cell for cell in cells if judge.see(cell.batches, cell.value, evaluated=evaluated)), None)
    trained_to = cells if meets is None else cells[: meets.number]  # it stops there
    sent, number = 0, 0
    while sent < len(trained_to):
        first = data.draw(st.integers(0, sent))
        sent = data.draw(st.integers(sent + 1, len(trained_to)))
        number += 1
        part = tuple(data.draw(st.permutations(trained_to[first:sent])))
        scheduler.handle(Report("a", 1, number, 0, 10 * sent, float(number), part, evaluated=evaluated), float(number))
    [status] = scheduler.status()
    assert (status.verdict is Verdict.MET) == (meets is not None)
    if meets is not None and judge.met is not None:
        assert status.batches == meets.batches == judge.met.batches
        assert status.value == pytest.approx(judge.met.value)


def test_what_a_training_was_met_by_counts_where_its_cells_are_unknown() -> None:
    """A scheduler that has begun since, or an incarnation that repeats batches, lacks some of them."""
    scheduler = job_of(LossTarget("loss", 0.5))
    report = Report("a", 1, 1, 0, 70, 1.0, (Cell(1, 70, 0.4),), met=Met(70, 0.45))
    assert decode_event(encode_event(report)) == report
    scheduler.handle(report, 1.0)
    [status] = scheduler.status()
    assert (status.verdict, status.best) == (Verdict.MET, 0.45)


def test_a_target_that_was_changed_is_not_met_by_a_value_that_does_not_reach_it() -> None:
    scheduler = job_of(LossTarget("loss", 0.5))
    scheduler.handle(SetTerms("a", target=LossTarget("loss", 0.1)), 0.5)
    scheduler.handle(Report("a", 1, 1, 0, 70, 1.0, (Cell(1, 70, 0.4),), met=Met(70, 0.45)), 1.0)
    assert scheduler.status()[0].verdict is not Verdict.MET


def test_a_process_is_told_of_its_new_target_and_later_grants_say_it_too() -> None:
    scheduler, new = job_of(LossTarget("loss", 0.5)), LossTarget("loss", 0.1)
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0), 1.0)
    before = scheduler.directive("a")
    answers = scheduler.handle(SetTerms("a", target=new), 2.0)
    held = scheduler.handle(Pause("a"), 3.0)
    grants = [answer for answer in (*answers, *held) if isinstance(answer, Grant)]
    assert isinstance(before, Grant)
    assert before.target is None
    assert [grant.target for grant in grants] == [new, new]
    assert grants[0].version > before.version
    assert decode_answers(encode_answers(grants)) == grants
    assert "target" not in encode_answers([before])
    assert not [answer for answer in scheduler.handle(SetTerms("a", weight=2.0), 4.0) if isinstance(answer, Grant)]


@pytest.mark.parametrize(
    ("first", "then", "steps"),
    [("loss<=10", "loss<=1e-30", 160), ("loss<=1e-30", "loss<=10", 50), ("100 batches", "30 batches", 30),
     ("loss<=10", "other<=10", 160)],
)  # fmt: skip
def test_a_training_judges_by_the_target_that_it_was_given_last(first: str, then: str, steps: int) -> None:
    script = Script(grant(1, 1.0)._replace(target=parse_target(then)))
    assert fit(steered(script, parse_target(first))).global_step == steps


# ------------------------------------------------------------------------------------------ on a GPU


@pytest.mark.gpu
def test_on_a_gpu_a_loss_ends_the_training_after_the_same_batch_in_every_run() -> None:
    found = []
    for pause in (0.0, 0.002):
        pl.seed_everything(1, verbose=False)
        model = Line(lr=0.02, pause=pause)
        trainer, status, _ = trained("loss<=0.2", model, accelerator="gpu", devices=1)
        assert (status.verdict, status.batches) == (Verdict.MET, trainer.global_step)
        found.append((trainer.global_step, model.layer.weight.item()))
    assert found[0] == found[1]
    assert found[0][0] % 10 == loss_meter.READ_AFTER
