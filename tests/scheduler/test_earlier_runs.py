"""Earlier runs of a task: who gets them, and what is planned with them before a job's first batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray, kept_by_row
from lightning_core.core.codec import decode_event, encode_event, status_from_dict, status_to_dict
from lightning_core.core.commands import Cancel
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import Cell, EarlierRuns, Report, Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.plans import JobView
from lightning_core.core.protocols import Estimator, UsesHistory
from lightning_core.core.saved_state import Stateful
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.estimators import ESTIMATORS
from lightning_core.scheduler.forecasting import forecast
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.history_checks import check_history
from lightning_core.testing.sample_curves import Make

RUN = EarlierRun("before", (10, 20, 40), (2.0, 1.0, 0.5), met_at=40, throughputs=((1, 10.0), (2, 16.0)))
FASTER, FASTEST = (RUN._replace(name=name, throughputs=((1, rate),)) for name, rate in (("b", 14.0), ("c", 90.0)))
LOSS = Job("a", 600.0, LossTarget("loss", 0.5))
EXACT = Job("exact", 600.0, BatchTarget(140))


class Repeats(Stateful):
    """An estimator that forecasts what an earlier run did, and knows nothing else."""

    STATE: ClassVar[tuple[str, ...]] = ("curves", "seen")
    any_loss = True

    def __init__(self) -> None:
        self.curves: dict[int, Any] = {}
        self.seen: dict[int, int] = {}

    def grow(self, rows: int) -> None:
        pass

    def keep(self, stays: BoolArray) -> None:
        self.curves, self.seen = kept_by_row(self.curves, stays), kept_by_row(self.seen, stays)

    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        self.curves[row] = [[list(curve.batches), list(curve.losses)] for curve in curves]

    def ready(self, rows: IntArray) -> BoolArray:
        return np.array([row in self.curves for row in rows.tolist()], np.bool_)

    def history_share(self, rows: IntArray) -> FloatArray:
        return np.where(self.ready(rows), 1.0, 0.0)

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        for row in rows.tolist():
            self.seen[row] = self.seen.get(row, 0) + 1

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        return np.full(len(rows), np.nan)

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        found = np.full((len(rows), len(LEVELS)), np.nan)
        for k, (row, goal) in enumerate(zip(rows.tolist(), threshold.tolist(), strict=True)):
            if row in self.curves:
                batches, losses = self.curves[row][0]
                found[k] = min((s for s, loss in zip(batches, losses, strict=True) if loss <= goal), default=math.inf)
        return found


@pytest.fixture(autouse=True)
def repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "repeats", Repeats)


def with_history(*jobs: Job, runs: tuple[EarlierRun, ...] = (RUN,), policy: str = "edf", **more: Any) -> Scheduler:
    """A scheduler with jobs that were given runs right after they were submitted."""
    scheduler = Scheduler(Settings(policy, estimator="repeats", **more))
    scheduler.handle(Submit(jobs), 0.0)
    places = tuple(range(len(runs)))
    scheduler.handle(EarlierRuns(runs, tuple((job.name, places) for job in jobs)), 0.0)
    return scheduler


def view(scheduler: Scheduler, now: float = 0.0, *, sizes: bool = False) -> JobView:
    state = scheduler._state
    this = Round(state.table, state.settings, now, frozenset(), closing=False)
    return forecast(this, state.curves, chooses_sizes=sizes)


def test_the_tiny_estimator_is_one() -> None:
    assert isinstance(Repeats(), Estimator)
    assert isinstance(Repeats(), UsesHistory)


def test_the_tiny_estimator_keeps_the_rules_of_history() -> None:
    check_history(Repeats)


class Forgets(Repeats):
    STATE: ClassVar[tuple[str, ...]] = ("seen",)


class Spills(Repeats):
    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        super().history(row, curves)
        super().history(0, curves)


class Drops(Repeats):
    def keep(self, stays: BoolArray) -> None:
        self.seen = kept_by_row(self.seen, stays)


class Ignores(Repeats):
    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        pass


class Boasts(Repeats):
    def history_share(self, rows: IntArray) -> FloatArray:
        return np.full(len(rows), 1.5)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (Forgets, "bring all that is remembered back"),
        (Spills, "to know of them"),
        (Drops, "stay with their row"),
        (Boasts, "in \\[0, 1\\]"),
        (Ignores, "must change the forecast of their row"),
    ],
)
def test_an_estimator_that_breaks_a_rule_of_history_is_named(make: Make, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_history(make)


def test_a_job_with_earlier_runs_is_ready_and_has_work_before_its_first_batch() -> None:
    jobs = view(with_history(LOSS, Job("new", 600.0, LossTarget("loss", 0.5)), runs=(RUN, FASTER, FASTEST)))
    assert jobs.ready.tolist() == [True, True]
    assert jobs.throughput.tolist() == [14.0, 14.0]  # the median
    assert jobs.work == pytest.approx([40 / 14.0, 40 / 14.0])
    alone = Scheduler(Settings("edf", estimator="repeats"))
    alone.handle(Submit((LOSS,)), 0.0)
    assert view(alone).ready.tolist() == [False]
    assert np.isnan(view(alone).work).all()


def test_a_target_in_batches_is_planned_with_the_throughput_of_earlier_runs() -> None:
    scheduler = with_history(EXACT)
    assert view(scheduler).work == pytest.approx([14.0])
    scheduler.handle(Report("exact", 1, 1, 1, 40, 2.0), 2.0)  # 20 batches a second: its own count from here on
    assert view(scheduler, 2.0).work == pytest.approx([5.0])


def test_what_the_user_says_takes_precedence() -> None:
    said = Job("a", 600.0, BatchTarget(140), work=99.0)
    assert view(with_history(said)).work == pytest.approx([99.0])
    elastic = frozenset(Capability)
    known = Job("b", 600.0, BatchTarget(140), max_devices=2, can=elastic, sizes=(1, 2), throughputs=(7.0, 14.0))
    assert view(with_history(known, devices=2), sizes=True).throughput.tolist() == [14.0]


def test_throughputs_by_size_are_those_of_earlier_runs_until_they_are_measured() -> None:
    job = Job("a", 600.0, BatchTarget(140), max_devices=2, can=frozenset(Capability), sizes=(1, 2))
    scheduler = with_history(job, policy="decor", devices=2)
    speed = scheduler.speedup("a")
    assert [speed.throughput(n) for n in (1, 2)] == pytest.approx([10.0, 16.0], rel=0.02)
    for _ in range(5):
        speed.observe(1, 200, 10.0)
    assert speed.throughput(1) == pytest.approx(20.0, rel=0.02)


def test_other_numbers_of_devices_say_nothing() -> None:
    two = Job("a", 600.0, BatchTarget(140), min_devices=2, max_devices=2)
    assert view(with_history(two, devices=2)).throughput.tolist() == [16.0]
    assert np.isnan(view(with_history(two, devices=2, runs=(FASTER,))).throughput).all()


def test_what_a_job_did_is_known_once_it_has_ended() -> None:
    elastic = Job("a", 600.0, LossTarget("loss", 0.5), max_devices=4, can=frozenset(Capability), sizes=(1, 2, 4))
    scheduler = Scheduler(Settings("edf", devices=4, window=2))
    scheduler.handle(Submit((elastic,)), 5.0)
    cells = (Cell(1, 10, 0.9), Cell(2, 20, 0.4), Cell(3, 30, 0.3))
    scheduler.handle(Report("a", 1, 1, 1, 10, 2.0, cells[:1]), 7.0)
    assert scheduler.ended_runs() == []
    scheduler.speedup("a").observe(2, 5, 0.5)
    scheduler.handle(Report("a", 1, 2, 1, 30, 6.0, cells[1:]), 11.0)
    [run] = scheduler.ended_runs()
    assert (run.job, run.verdict, run.batches, run.losses) == (elastic, Verdict.MET, (10, 20, 30), (0.9, 0.4, 0.3))
    assert (run.met_at, run.trained, run.submitted, run.ended, run.memory) == (30, 6.0, 5.0, 11.0, None)
    assert [size for size, _ in run.throughputs] == [2, 4]  # not 1, on which it never trained
    assert scheduler.ended_runs(["a"]) == [run]
    assert scheduler.ended_runs(["stranger"]) == []


def test_a_cancelled_job_has_done_something_if_it_has_a_curve() -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((LOSS, EXACT)), 0.0)
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0, (Cell(1, 10, 2.0),)), 1.0)
    scheduler.handle(Report("exact", 1, 1, 1, 10, 1.0), 1.0)
    for name in ("a", "exact"):
        scheduler.handle(Cancel(name), 2.0)
    [run] = scheduler.ended_runs()
    assert (run.job.name, run.verdict, run.met_at) == ("a", Verdict.CANCELLED, None)


def test_a_job_with_cells_or_earlier_runs_keeps_what_it_has() -> None:
    scheduler = with_history(LOSS)
    scheduler.handle(EarlierRuns((FASTEST,), (("a", (0,)),)), 1.0)
    assert scheduler.accepted == []
    assert scheduler._table.earlier[0] == ("before",)
    late = Scheduler(Settings("edf", estimator="repeats"))
    late.handle(Submit((LOSS,)), 0.0)
    late.handle(Report("a", 1, 1, 1, 10, 1.0, (Cell(1, 10, 2.0),)), 1.0)
    late.handle(EarlierRuns((RUN,), (("a", (0,)),)), 1.0)
    assert view(late, 1.0).ready.tolist() == [False]


def test_a_curve_above_a_floor_does_without() -> None:
    below = Job("a", 600.0, LossTarget("loss", -3.0))
    jobs = view(with_history(below, Job("b", 600.0, LOSS.target)))
    assert jobs.ready.tolist() == [False, True]


def test_losses_at_or_below_zero_do_not_reach_the_estimator() -> None:
    crossing = EarlierRun("x", (1, 2, 3, 4), (2.0, 0.0, -1.0, 0.5))
    scheduler = with_history(LOSS, runs=(crossing, EarlierRun("y", (1, 2), (1.0, -1.0))))
    bank = scheduler._state.curves.bank
    assert isinstance(bank, Repeats)
    assert bank.curves == {0: [[[1, 4], [2.0, 0.5]]]}


def test_status_says_what_a_forecast_rests_on() -> None:
    scheduler = with_history(LOSS, EXACT, runs=(RUN, FASTER))
    like = scheduler.last("a").like
    assert str(like) == "like before and b, 100%"
    assert scheduler.last("exact").like is None
    status = scheduler.last("a")
    assert status_from_dict(status_to_dict(status)) == status


def test_the_event_comes_back_from_its_line() -> None:
    event = EarlierRuns((RUN, RUN._replace(met_at=None, throughputs=())), (("a", (1, 0)), ("b", ())))
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    ("run", "rule"),
    [
        (RUN._replace(batches=(10, 20)), "one loss for each of 2 positions, got 3"),
        (RUN._replace(batches=(0, 20, 40)), "batches must increase from 1"),
        (RUN._replace(batches=(20, 20, 40)), "batches must increase"),
        (RUN._replace(losses=(2.0, math.nan, 1.0)), "losses must be finite"),
        (RUN._replace(met_at=0), "met_at must be 1 to"),
        (RUN._replace(throughputs=((1, 0.0),)), "throughputs must be positive"),
        (RUN._replace(throughputs=((2, 1.0), (1, 1.0))), "numbers of devices must increase"),
        (RUN._replace(throughputs=((9999, 1.0),)), "numbers of devices must increase"),
        (EarlierRun("x", tuple(range(1, 130)), (1.0,) * 129), "points must be at most 128"),
        (RUN._replace(name="x" * 201), "at most 200 characters"),
    ],
)
def test_runs_out_of_range_are_refused(run: EarlierRun, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        EarlierRuns((run,), (("a", (0,)),))


@pytest.mark.parametrize("places", [(1,), (-1,), (0, 0, 0, 0)])
def test_places_without_a_run_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a: "):
        EarlierRuns((RUN,), (("a", places),))


def test_what_was_measured_stays_apart() -> None:
    assert np.isnan(with_history(EXACT)._table.throughput(np.array([0]))).all()
