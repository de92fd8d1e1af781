"""Kinds on which a training was never seen: who tries them, for how long, and what comes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_core.core.arrays import NORMAL
from lightning_core.core.events import Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.kinds import by_kind
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.kinds.places import come_to
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.builders import job

KINDS = ("old", "new")


def pool(of_each: int, *given: tuple[Job, dict[str, float]]) -> Scheduler:
    """Return a pool with some devices of each kind and some jobs, each with its rates by kind as far as known."""
    n = 2 * of_each
    kinds = tuple(kind for kind in KINDS for _ in range(of_each))
    scheduler = Scheduler(Settings("triage", devices=n, locations=kinds, stay=0.0, resize=1.0, resident=n))
    for one, rates in given:
        for kind, rate in rates.items():
            scheduler._state.rates.recall(one.family, 1, kind, rate)
    scheduler.handle(Submit(tuple(one for one, _ in given)), 0.0)
    return scheduler


def where(scheduler: Scheduler) -> dict[str, str]:
    scheduler.check()
    kinds = scheduler.settings.locations
    return {one.name: kinds[one.devices[0]] for one in scheduler.status() if one.share}


def trains(scheduler: Scheduler, name: str, now: float, batches: int, busy: float) -> None:
    """Report what the present process of a job has done, under its newest grant; then let the pool plan."""
    directive = scheduler.directive(name)
    assert directive is not None
    number = 2 * round(10 * now) + 1
    for at, (done, seconds) in enumerate(((0, 0.0), (batches, busy))):
        scheduler.handle(
            Report(name, max(scheduler.incarnation(name), 1), number + at, directive.version, done, seconds), now
        )
    scheduler.handle(Tick(), now)


def urgent(name: str = "urgent", deadline: float = 300.0) -> tuple[Job, dict[str, float]]:
    """Return a job that takes 500 s on an old device; on a new one its rate is unknown."""
    return job(name, deadline, 1000, model="net"), {"old": 2.0}


def easy(name: str = "easy") -> tuple[Job, dict[str, float]]:
    """Return a job with much time, which keeps a new device busy."""
    return job(name, 5000.0, 1000, model="other", kinds=("new",)), {"new": 10.0}


def test_a_job_that_would_be_late_tries_an_unknown_kind_though_it_is_not_idle() -> None:
    assert where(pool(1, easy(), urgent())) == {"urgent": "new"}


def test_a_kind_that_even_hope_makes_no_better_is_not_tried() -> None:
    # As fast as one hopes it takes 140 s there, and it has 100.
    assert where(pool(1, easy(), urgent(deadline=100.0))) == {"easy": "new", "urgent": "old"}


def test_who_tries_a_kind_stays_until_it_is_known() -> None:
    scheduler = pool(1, easy(), urgent())
    for now in (1.0, 2.0, 3.0):
        scheduler.handle(Tick(), now)
        assert where(scheduler)["urgent"] == "new"
    trains(scheduler, "urgent", 9.0, 40, 5.0)
    for now in (10.0, 11.0, 60.0):  # 8 batches per second: it has found its place
        scheduler.handle(Tick(), now)
        assert where(scheduler)["urgent"] == "new"


def test_one_that_has_moved_is_not_moved_away_before_it_has_trained() -> None:
    # What it did on the old device says nothing of the new one, where it has been for no second.
    scheduler = pool(1, easy(), urgent(deadline=900.0))
    at = seen(scheduler).row.tolist().index(scheduler._state.table.row_of["urgent"])
    trains(scheduler, "urgent", 9.0, 10, 5.0)
    table = scheduler._state.table
    table.home[row := table.row_of["urgent"]] = (KINDS.index("new"),)
    come_to(table, row, scheduler._state.devices, scheduler._state.rates)
    assert seen(scheduler).doubt[at, 1] > by_kind.MEASURED > seen(scheduler).doubt[at, 0]


def seen(scheduler: Scheduler) -> JobView:
    """Return the jobs as the policy of all kinds sees them."""
    views = list[JobView]()
    policy = scheduler._state.policy
    assert isinstance(policy, by_kind.ByKind)
    plan = policy.plan

    def kept(jobs: JobView, now: float) -> Plan:
        views.append(jobs)
        return plan(jobs, now)

    policy.plan = kept  # type: ignore[method-assign]
    scheduler.handle(Tick(), scheduler.now + 1.0)
    policy.plan = plan  # type: ignore[method-assign]
    return views[0]


def test_a_kind_that_disappoints_is_left_for_one_that_suffices() -> None:
    anywhere = job("anywhere", 5000.0, 1000, model="third"), {"old": 10.0, "new": 10.0}
    scheduler = pool(1, anywhere, urgent(deadline=700.0))
    assert where(scheduler) == {"anywhere": "old", "urgent": "new"}
    trains(scheduler, "urgent", 9.0, 5, 5.0)  # 1000 s there, 500 s on the old one
    assert where(scheduler) == {"anywhere": "new", "urgent": "old"}


def test_one_at_a_time_of_jobs_that_are_alike_tries_a_kind() -> None:
    scheduler = pool(2, easy("e1"), easy("e2"), urgent("u1"), urgent("u2"))
    first = where(scheduler)
    assert sorted(first[name] for name in ("u1", "u2")) == ["new", "old"]
    tries = next(name for name in ("u1", "u2") if first[name] == "new")
    scheduler.handle(Tick(), 1.0)
    assert where(scheduler) == first
    trains(scheduler, tries, 9.0, 50, 5.0)  # what it has found counts for the other
    assert {where(scheduler).get(name, "new") for name in ("u1", "u2")} == {"new"}


def test_a_job_that_has_not_begun_tries_a_kind_before_one_that_would_have_to_move() -> None:
    hope = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    view = seen(pool(2, easy("e1"), easy("e2"), urgent("u1"), urgent("u2")))
    view = replace(view, training=np.full(4, 7), deadline=np.array([1.0, 2.0, 3.0, 4.0]))
    some = replace(view, kind=np.array([0, 0, -1, 1]), batches=np.array([9, 9, 0, 9]))
    placed = np.array([1, 1, 1, 0])
    assert by_kind._second_trials(some, placed, hope).tolist() == [True, True, False, False]
    there = replace(some, kind=np.array([1, 0, -1, 1]))
    assert by_kind._second_trials(there, placed, hope).tolist() == [False, True, True, False]
    assert not by_kind._second_trials(replace(there, training=np.arange(4)), placed, hope).any()


def test_nothing_is_hoped_where_rates_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(job(f"j{k}", 200.0 + 60 * k, 1000, model=f"m{k}"), {"old": 2.0 + k, "new": 9.0 - k}) for k in range(4)]
    before = where(pool(2, *jobs))
    monkeypatch.setattr(by_kind, "HOPE", 9.0)
    assert where(pool(2, *jobs)) == before


def test_a_forecast_on_a_kind_that_is_known_is_not_widened_by_another_that_is_not() -> None:
    # Other trainings are faster on new devices: so that is its fastest kind, and how fast is unknown.
    runs = [(job(f"o{k}", 5000.0, 10, model=f"o{k}", kinds=("old",)), {"old": 2.0, "new": 8.0}) for k in range(3)]
    scheduler = pool(3, *runs, (job("one", 5000.0, 1000, model="net"), {"old": 2.0}))
    view = seen(scheduler)
    row = view.row.tolist().index(scheduler._state.table.row_of["one"])
    widest = view.quantiles[row, -1] / view.quantiles[row, 0]
    assert view.pace[row].argmax() == 1
    old = by_kind._on_kind(view, np.array([row]), 0, 3).quantiles[0]
    new = by_kind._on_kind(view, np.array([row]), 1, 3).quantiles[0]
    assert new[-1] / new[0] == pytest.approx(widest)
    spread = np.log(old[-1] / old[0]) / (NORMAL[-1] - NORMAL[0])
    assert spread == pytest.approx(0.05 + view.doubt[row, 0], rel=0.02)


def test_rates_of_many_are_those_of_each() -> None:
    rates = KindRates()
    for number, seconds in enumerate((1.0, 10.0, 100.0)):
        rates.observe(f"net{number}", 1, "old", 3.0 * seconds, seconds)
        rates.observe(f"net{number}", 1, "new", (4.0 + number) * seconds, seconds)
    rates.observe("new", 2, "old", 5.0, 1.0)
    some = [("new", 2), ("net1", 1), ("unknown", 4)]
    expected, spread = rates.expect_all(some, KINDS)
    for at, (family, devices) in enumerate(some):
        one, of_one = rates.expect(family, devices, KINDS)
        assert np.allclose(expected[at], one)
        assert np.allclose(spread[at], of_one)
    none, _ = rates.expect_all([], KINDS)
    assert none.shape == (0, 2)


def test_a_simulated_worker_soon_tells_how_fast_it_is_where_kinds_differ() -> None:
    seen = dict[bool, float]()
    for differ in (True, False):
        kinds = KINDS if differ else ("old", "old")
        given = SimulatedJob(Job("one", 9000.0, BatchTarget(9000), model="net"), [9000], [1.0], 10.0)
        play = Simulation(Settings("triage", devices=2, locations=kinds), [given], Delays(), kinds=kinds)
        play.run(15.0)
        seen[differ] = play._scheduler.last("one").batches
    assert seen == {True: 100, False: 0}
