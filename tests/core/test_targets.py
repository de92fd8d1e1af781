"""Targets: their text form, and that every view shows the same value for them."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.callbacks import CoreCallback
from lightning_core.core import targets
from lightning_core.core.answers import End, Grant, Verdict
from lightning_core.core.codec import status_from_dict, status_to_dict
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Cell, Event, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.targets import (
    BatchTarget,
    EpochTarget,
    LossTarget,
    Target,
    as_target,
    parse_target,
    target_from_dict,
)
from lightning_core.history.history import History
from lightning_core.report.page import page
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.job_entry import job_entry
from lightning_core.view.job_line import COLUMNS, line
from lightning_core.view.progress import print_summary
from tests.storage.test_journal import Clock

ACCURACY = LossTarget("val_acc", at_least=0.8)


def cells(values: list[float], every: int = 10) -> tuple[Cell, ...]:
    return tuple(Cell(n, every * n, value) for n, value in enumerate(values, 1))


def reporting(values: list[float], target: Target, evaluated: bool, settings: Settings | None = None) -> Scheduler:
    """Return a scheduler with a job that has reported these values."""
    scheduler = Scheduler(settings or Settings())
    scheduler.handle(Submit((Job("a", 100.0, target),)), 0.0)
    done = 10 * len(values)
    scheduler.handle(Report("a", 1, 1, 1, done, 5.0, cells(values), evaluated=evaluated), 5.0)
    return scheduler


# --------------------------------------------------------------------------------------------------- as it is written


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("train_loss<=0.35", LossTarget("train_loss", 0.35)),
        (" val/acc  >=  0.9 ", LossTarget("val/acc", at_least=0.9)),
        ("acc>=92 of 100", LossTarget("acc", at_least=92.0, best=100.0)),
        ("val_loss<=0.3 for 2 evaluations", LossTarget("val_loss", 0.3, for_evaluations=2)),
        ("acc>=92 of 100 for 3 evaluations", LossTarget("acc", at_least=92.0, best=100.0, for_evaluations=3)),
        ("val_loss<=0.3 for 1 evaluation", LossTarget("val_loss", 0.3)),
        ("6 epochs", EpochTarget(6)),
        ("6 epochs, highest val_acc", EpochTarget(6, metric="val_acc", mode="max")),
        ("2000 batches", BatchTarget(2000)),
        ("1 batch", BatchTarget(1)),
    ],
)
def test_targets_round_trip_through_text(text: str, target: Target) -> None:
    assert parse_target(text) == as_target(text) == as_target(target) == as_target(target.to_dict()) == target
    assert parse_target(str(target)) == target
    assert target_from_dict(json.loads(json.dumps(target.to_dict()))) == target
    assert Job("a", "1h30m", text, begin="90s").begin == 90.0  # type: ignore[arg-type]
    assert Job("a", 1.0, text).target == target  # type: ignore[arg-type]


FORMS = f"target must be like {targets._forms()}"
WRONG: dict[str, tuple[Any, str]] = {
    "no target": ("soon", f"{FORMS}, got 'soon'"),
    "no sign of ours": ("val_acc>0.9", f"{FORMS}, got 'val_acc>0.9'"),
    "no number": ("loss<=low", "target must be a number after <=, got 'low'"),
    "a part of a batch": ("1.5 batches", "target must be a whole number before batches, got '1.5'"),
    "a part of an epoch": ("1.5 epochs", "target must be a whole number before epochs, got '1.5'"),
    "no batches": ("0 batches", "target batches must be a whole number of at least 1, got 0"),
    "a best of a loss": ("loss<=1 of 3", "target: 'of 3' is the best that a metric with >= can be, got 'loss<=1 of 3'"),
    "in per cent": (
        "acc>=92",
        "got 92; write the best of acc, or its upper bound: 'acc >= 92 of 100'",
    ),
    "a reward": ("reward>=200", "got 200; write the best of reward, or its upper bound: 'reward >= 200 of 400'"),
    "no evaluation": ("acc>=0.9 for 0 evaluations", "for_evaluations must be a whole number from 1 to 1000, got 0"),
    "of batches": ("20 batches for 2 evaluations", f"{FORMS}, got '20 batches for 2 evaluations'"),
    "of every batch": ("loss<=1 for 2 evaluations", "got 2 of 'loss', the loss of every batch: remove it, or name"),
    "a float": (0.35, f"{FORMS}, got 0.35; did you mean 'loss<=0.35'?"),
    "a class": (LossTarget, f"{FORMS}, got <class"),
    "a metric": ({"val_loss": 0.02}, "unknown key 'val_loss'; write 'val_loss<=0.02', or >= if more is better"),
    "a metric in a row": (
        {"val_acc": "9e-1", "for_evaluations": 2},
        "unknown key 'val_acc'; write 'val_acc<=9e-1'",
    ),
    "a metric with more": ({"val_loss": {"at_most": 0.2}}, "unknown key 'val_loss'; write 'val_loss<=E', or >="),
    "a typo": ({"losss": 0.1}, "unknown key 'losss'; did you mean 'loss'?"),
    "a key too many": ({"metric": "acc", "at_least": 0.9, "patience": 3}, "unknown key 'patience'; expected one of"),
    "keys of several": ({"loss": 0.3, "metric": "val_loss"}, f"{FORMS}, or {{loss: E}}, "),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_targets_are_refused(name: str) -> None:
    given, words = WRONG[name]
    for refuse in (as_target, lambda value: Job("a", 1.0, value), lambda value: CoreCallback("a", "2h", value)):
        with pytest.raises(ValueError, match=re.escape(words)):
            refuse(given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BatchTarget(1.5), "target batches must be a whole number of at least 1, got 1.5"),  # type: ignore[arg-type]
        (lambda: BatchTarget("9"), "target batches must be a whole number of at least 1, got '9'"),  # type: ignore[arg-type]
        (lambda: BatchTarget(True), "target batches must be a whole number of at least 1, got True"),
        (
            lambda: LossTarget(0.35, "train_loss"),  # type: ignore[arg-type]
            r"target metric must be a name, got 0.35; did you mean LossTarget\('train_loss', 0.35\)\?",
        ),
        (lambda: LossTarget("loss", "0.3"), "target at_most must be a number, got '0.3'"),  # type: ignore[arg-type]
        (lambda: LossTarget("acc", at_least=True), "target at_least must be a number, got True"),
        (lambda: LossTarget("acc", at_least=0.5, for_evaluations=1.5), "whole number from 1 to 1000, got 1.5"),  # type: ignore[arg-type]
        (lambda: LossTarget("acc", at_least=0.5, for_evaluations=10**6), "from 1 to 1000, got 1000000"),
        (lambda: LossTarget("acc", at_least=-math.inf), "target at_least must be above .* and below .*, got -inf"),
        (lambda: LossTarget("acc", at_least=0.5, best=math.inf), "target best must be above .* and below .*, got inf"),
        (lambda: LossTarget("acc", at_least=1.0), "at_least must be below the best there can be, 1, got 1;"),
        (lambda: EpochTarget(MAX_COUNT, 2), f"target epochs must be at most {MAX_COUNT} batches, got {2 * MAX_COUNT}"),
    ],
)
def test_an_incomplete_target_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_an_epoch_target_may_have_as_many_batches_as_a_batch_target() -> None:
    assert EpochTarget(MAX_COUNT, 1).work == BatchTarget(MAX_COUNT).work == MAX_COUNT


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"loss": 0.3, "at_most": 0.2}, "must be like .*, got the keys at_most, loss"),
        ({"loss": 0.3, "metric": "val_loss"}, "must be like .*, got the keys loss, metric"),
        ({"epochs": 3, "for_evaluations": 2}, "for_evaluations needs a metric, and this target counts epochs; remove"),
        (
            {"epochs": 3, "for_evaluations": 2, "metric": "acc"},
            "got the keys epochs, for_evaluations, metric",
        ),
    ],
)
def test_terms_that_do_not_go_together_are_refused(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_target(terms)


def test_numpy_numbers_are_accepted() -> None:
    target = LossTarget("loss", np.float32(0.5))  # type: ignore[arg-type]
    assert json.dumps([target.to_dict(), BatchTarget(np.int64(3)).to_dict()])  # type: ignore[arg-type]


def test_the_callback_accepts_a_target_as_text() -> None:
    callback = CoreCallback("a", "2h", "val_acc>=0.9")
    assert callback._options.job.target == LossTarget("val_acc", at_least=0.9)


# ------------------------------------------------------------------------------------------------ one value everywhere


def shown_everywhere(values: list[float], target: Target, evaluated: bool, tmp_path: Path) -> set[str]:
    """Return what each view shows of a job that has reported these values."""
    clock = Clock()
    host = Host(Settings(), tmp_path / "journal.db", clock)
    done = 10 * len(values)
    events: list[Event] = [
        Submit((Job("a", 100.0, target),)),
        Report("a", 1, 1, 1, done, 5.0, cells(values), evaluated=evaluated),
    ]
    for event in events:
        clock.now += 5.0
        host.handle(event)
    [status] = host.scheduler.status()
    host.close()
    assert status_from_dict(json.loads(json.dumps(status_to_dict(status)))) == status
    seen = io.StringIO()
    summary = Summary.of(Settings(), 10.0, [status], tmp_path)
    print_summary(summary, seen)
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        history = History.read(journal)
    [job] = history.jobs
    reached = page(history).split('data-label="reached" class=n>')[1].split("<")[0]
    plain = [json.loads(json.dumps(job_entry(status, Path("nowhere")))), summary.to_dict()["jobs"]["a"]]
    assert {body["metric"] for body in plain} == {target.quantity}
    return {
        line(10.0, status)[COLUMNS.index("loss / target")].split()[0],
        dict(zip(*(row.split() for row in seen.getvalue().splitlines()[:2]), strict=False))["reached"],
        reached,
        target.show(float(job.curve()[-1][1])),
        *(target.show(body["value"]) for body in plain),
    }


@pytest.mark.parametrize(
    ("values", "target", "evaluated", "value"),
    [
        ([0.4331, 0.61, 0.8398], ACCURACY, True, "0.8398"),  # met
        ([0.4331, 0.7123], ACCURACY, True, "0.7123"),  # on its way
        ([0.2] * 4 + [0.7, 0.9, 0.9, 0.9, 0.9], LossTarget("acc", at_least=0.8), False, "0.86"),
        ([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], LossTarget("loss", 0.1), False, "2.1"),
        ([5.0, 4.0, 3.0], LossTarget("val_loss", 0.1), True, "3"),
        ([9.0] * 5, BatchTarget(500), False, "50"),
    ],
)
def test_every_view_shows_the_same_value(
    values: list[float], target: Target, evaluated: bool, value: str, tmp_path: Path
) -> None:
    assert shown_everywhere(values, target, evaluated, tmp_path) == {value}


def test_a_value_is_shown_exactly_as_it_was_logged() -> None:
    [status] = reporting([0.1, 0.8398437], ACCURACY, evaluated=True).status()
    assert (status.value, status.best, status.loss, status.verdict) == (0.8398437, 0.8398437, None, Verdict.MET)


def test_the_best_value_is_of_the_window_or_the_evaluations() -> None:
    loss = LossTarget("loss", 0.1)
    [status] = reporting([0.05, 4.0, 3.0, 2.0], loss, evaluated=False).status()
    assert status.value == pytest.approx(2.2625)
    assert status.best is None  # no whole window yet
    [status] = reporting([2.0] * 5 + [7.0] * 5, loss, evaluated=False).status()
    assert (status.value, status.best, status.loss) == (7.0, 2.0, 7.0)
    [status] = reporting([0.5, 0.79, 0.6], ACCURACY, evaluated=True).status()
    assert (status.value, status.best) == (0.6, 0.79)
    [status] = reporting([2.0] * 3, BatchTarget(100), evaluated=False).status()
    assert (status.value, status.best, status.loss) == (30.0, 30.0, 2.0)


def test_a_resumed_job_is_still_evaluated() -> None:
    """Before its first evaluation a new incarnation reports that its metric is not evaluated."""
    scheduler = reporting([0.5, 0.7], ACCURACY, evaluated=True)
    scheduler.handle(Report("a", 1, 2, 1, 30, 6.0), 6.0)
    [status] = scheduler.status()
    assert status.value == 0.7


def test_values_of_another_metric_do_not_count_after_an_amendment() -> None:
    scheduler = reporting([0.5] * 5, LossTarget("val_loss", 0.1), evaluated=True)
    answers = scheduler.handle(SetTerms("a", target=LossTarget("val_acc", at_least=0.4)), 6.0)
    assert not any(isinstance(answer, End) for answer in answers)
    [status] = scheduler.status()
    assert (status.value, status.best, status.loss) == (None, None, None)
    answers = scheduler.handle(SetTerms("a", target=LossTarget("val_acc", at_least=0.3)), 7.0)
    assert all(isinstance(answer, Grant) for answer in answers)


# ------------------------------------------------------------------------------------------------- evaluations in a row


@pytest.mark.parametrize(
    ("values", "times", "met_after"),
    [
        ([0.7, 0.9, 0.7, 0.85, 0.81], 1, 2),
        ([0.7, 0.9, 0.7, 0.85, 0.81], 2, 5),
        ([0.9, 0.9, 0.79, 0.9, 0.9], 3, None),
        ([0.9] * 9, 8, 8),  # more than the window
    ],
)
def test_one_noisy_evaluation_need_not_count_as_met(values: list[float], times: int, met_after: int | None) -> None:
    target = LossTarget("val_acc", at_least=0.8, for_evaluations=times)
    for seen in range(1, len(values) + 1):
        [status] = reporting(values[:seen], target, evaluated=True).status()
        assert (status.verdict is Verdict.MET) == (met_after is not None and seen >= met_after), seen
        assert status.value == values[min(seen, met_after or seen) - 1]


def test_an_amendment_counts_evaluations_that_were_seen() -> None:
    scheduler = reporting([0.85, 0.9], LossTarget("val_acc", at_least=0.88, for_evaluations=2), evaluated=True)
    [end] = (
        answer
        for answer in scheduler.handle(SetTerms("a", target=parse_target("val_acc>=0.8 for 2 evaluations")), 6.0)
        if isinstance(answer, End)
    )
    assert end.verdict is Verdict.MET


def test_a_float32_value_meets_the_nearest_representable_target() -> None:
    for target, value in ((LossTarget("acc", at_least=0.9), 0.9), (LossTarget("val_loss", 0.1), 0.1)):
        [status] = reporting([float(np.float32(value))], target, evaluated=True).status()
        assert status.verdict is Verdict.MET
    [status] = reporting([0.899999], LossTarget("acc", at_least=0.9), evaluated=True).status()
    assert status.verdict is not Verdict.MET
