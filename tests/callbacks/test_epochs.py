"""Targets in epochs: the Trainer's loader says how many batches they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, IterableDataset

from lightning_core.callbacks import CoreCallback
from lightning_core.cli.main import main
from lightning_core.core.answers import State, Verdict, Watched
from lightning_core.core.codec import status_from_dict, status_to_dict
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Cell, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, EpochTarget, as_target
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.callbacks.test_callback import Script, fit, grant, steered
from tests.cluster.test_keep_best import bumpy, kept
from tests.tiny import Line, Points


class Stream(IterableDataset[list[torch.Tensor]]):
    """Twelve batches, whose number is not known in advance."""

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        return iter([[torch.ones(4, 1), torch.ones(4, 1)]] * 12)


class Streamed(Points):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Stream(), batch_size=None)


def test_a_training_ends_after_its_epochs() -> None:
    callback = CoreCallback("line", "10m", "3 epochs", pool="local")
    trainer = fit(callback, Line(pause=0.001), max_epochs=-1)
    assert 48 <= trainer.global_step < 5000


def test_a_loader_without_a_length_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(grant(1, 1.0))
    with caplog.at_level(logging.WARNING, logger="lightning_core"):
        fit(steered(script, EpochTarget(3)), Line(pause=0.002), Streamed(), max_epochs=2)
    assert "its loader has no length: the work of 3 epochs is known after the first" in caplog.text
    known = [report for report in script.reports if report.epoch_batches is not None]
    assert known[0].epoch_batches == 12
    assert known[0].batches >= 12


@pytest.mark.parametrize(("accumulated", "steps"), [(1, 16), (3, 6)])
def test_a_length_is_reported_until_it_has_arrived_and_not_again(accumulated: int, steps: int) -> None:
    """Sixteen batches an epoch, or six steps of at most three batches each."""
    script = Script(grant(1, 1.0))
    fit(steered(script, EpochTarget(3)), Line(pause=0.005), max_epochs=2, accumulate_grad_batches=accumulated)
    said = [report.epoch_batches for report in script.reports]
    assert said.count(steps) == 1
    assert set(said) == {None, steps}


def scheduler_of(target: EpochTarget) -> Scheduler:
    scheduler = Scheduler(Settings("decor"))
    scheduler.handle(Submit((Job("a", 100.0, target),)), 0.0)
    return scheduler


def test_the_work_is_unknown_until_the_training_says_how_long_its_loader_is() -> None:
    """Ten batches a second, and 2 of 100 s: 380 of 400 batches are left, 38 s."""
    scheduler = scheduler_of(EpochTarget(4))
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0), 1.0)
    [before] = scheduler.status()
    assert before.verdict is None
    assert before.target.work is None
    scheduler.handle(Report("a", 1, 2, 1, 20, 2.0, epoch_batches=100), 2.0)
    [known] = scheduler.status()
    assert known.target.work == 400
    assert known.verdict is Verdict.FEASIBLE
    assert known.finish is not None
    assert known.finish[1] == pytest.approx(40, rel=0.1)


def test_a_target_that_is_changed_keeps_what_is_known() -> None:
    scheduler = scheduler_of(EpochTarget(4))
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0, epoch_batches=100), 1.0)
    scheduler.handle(SetTerms("a", target=EpochTarget(5)), 2.0)
    assert scheduler.status()[0].target.work == 500
    scheduler.handle(Report("a", 1, 2, 1, 499, 50.0), 50.0)
    assert scheduler.status()[0].verdict is not Verdict.MET
    scheduler.handle(Report("a", 1, 3, 1, 500, 50.1), 50.1)
    assert scheduler.status()[0].verdict is Verdict.MET


@pytest.mark.parametrize("batches", [0, -1, 2**70])
def test_a_length_that_is_none_changes_nothing(batches: int) -> None:
    scheduler = scheduler_of(EpochTarget(4))
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0, epoch_batches=batches), 1.0)
    [status] = scheduler.status()
    assert (status.target.work, status.batches) == (None, 0)


def test_a_length_is_nothing_to_other_targets() -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((Job("a", 100.0, BatchTarget(50)),)), 0.0)
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0, epoch_batches=7), 1.0)
    assert scheduler.status()[0].target == BatchTarget(50)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epochs": 0}, "must be a whole number of at least 1, got 0"),
        ({"epochs": 3, "epoch_batches": 0.5}, "must be a whole number"),
        ({"epochs": 3, "for_evaluations": 2}, "this target counts epochs; remove it"),
        ({"epochs": 10**9, "epoch_batches": 10**9}, "at most 1000000000000 batches, got 1000000000000000000"),
        ("x epochs", "a whole number before epochs, got 'x'"),
        ({"epochs": 3, "metric": "val_acc", "mode": "best"}, "target mode must be min or max, got 'best'"),
        ({"epochs": 3, "metric": 5}, "target metric must be a name, got 5"),
        ({"epochs": 3, "mode": "max"}, "target mode max is for a metric, and this target names none"),
    ],
)
def test_invalid_epochs_are_refused(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_target(given)


# ------------------------------------------------------------------------------------------ a metric that is watched


def watched_scheduler(mode: str) -> Scheduler:
    """Two epochs of ten batches, and one done."""
    scheduler = scheduler_of(EpochTarget(2, metric="val", mode=mode))
    cells = (Cell(1, 5, 0.5), Cell(2, 10, 0.7))
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0, cells, evaluated=True, epoch_batches=10), 1.0)
    return scheduler


@pytest.mark.parametrize(("mode", "best", "loss"), [("min", 0.5, 0.6), ("max", 0.7, None)])
def test_a_metric_is_watched_beside_the_epochs(mode: str, best: float, loss: float | None) -> None:
    [status] = watched_scheduler(mode).status()
    assert status.watched == Watched(10, 0.7, best)
    assert status.value == 10.0
    assert status.loss == (None if loss is None else pytest.approx(loss))
    assert status_from_dict(json.loads(json.dumps(status_to_dict(status)))) == status


def test_the_evaluation_after_the_last_epoch_is_waited_for() -> None:
    scheduler = watched_scheduler("min")
    scheduler.handle(Report("a", 1, 2, 1, 20, 2.0, evaluated=True), 2.0)
    assert scheduler.status()[0].state is State.RUNNING
    scheduler.handle(Report("a", 1, 3, 1, 20, 2.1, (Cell(3, 20, 0.4),), evaluated=True), 2.1)
    [status] = scheduler.status()
    assert (status.verdict, status.watched) == (Verdict.MET, Watched(20, 0.4, 0.4))


def test_where_it_does_not_come_the_end_of_the_training_will_do() -> None:
    scheduler = watched_scheduler("min")
    scheduler.handle(Report("a", 1, 2, 1, 20, 2.0, evaluated=True), 2.0)
    scheduler.handle(WorkerExited("a", 1, detail="max_epochs=2"), 3.0)
    assert scheduler.status()[0].verdict is Verdict.MET


def test_a_training_that_ends_before_its_epochs_has_missed_them() -> None:
    scheduler = watched_scheduler("min")
    scheduler.handle(WorkerExited("a", 1, detail="max_epochs=1"), 3.0)
    assert scheduler.status()[0].verdict is Verdict.MISSED


def test_a_training_reports_each_evaluation_and_keeps_the_best_model(tmp_path: Path) -> None:
    target = EpochTarget(4, metric="acc", mode="max")
    script = bumpy([0.1, 0.6, 0.3, 0.4], tmp_path, target)
    manifest, seen = kept(tmp_path / "job-best.ckpt")
    assert manifest.value == pytest.approx(0.6)
    assert (manifest.batches, seen) == (32, 2.0)
    assert script.forecast is not None
    assert script.forecast.verdict is Verdict.MET


def test_a_launched_job_that_never_logs_it_ends_with_what_is_logged() -> None:
    with pytest.raises(MisconfigurationException, match="target metric 'val_acc' was never logged; logged so far: not"):
        fit(steered(Script(grant(1, 1.0)), EpochTarget(2, metric="val_acc")), Line(pause=0.002), max_epochs=1)


def test_a_simulation_says_what_it_cannot_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("jobs:\n  a: {target: {epochs: 4}, deadline: 9m, work: 5m}\n")
    assert main(["simulate", str(path)])
    assert "2:3: jobs.a: the batches of an epoch are not known without training" in capsys.readouterr().err
    path.write_text("jobs:\n  a: {target: {epochs: 4, epoch_batches: 50}, deadline: 9m, work: 5m}\n")
    assert not main(["simulate", str(path)])
