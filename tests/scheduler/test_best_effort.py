"""Jobs without a deadline: they share what jobs leave that can make their deadlines, and have nothing to miss."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from lightning_core.core.answers import Grant, Verdict
from lightning_core.core.arrays import BoolArray
from lightning_core.core.codec import (
    decode_event,
    encode_event,
    job_from_dict,
    job_to_dict,
    status_from_dict,
    status_to_dict,
)
from lightning_core.core.commands import SetDeadline
from lightning_core.core.events import Event, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.targets import BatchTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.builders import job

RESIZABLE = frozenset(Capability) - {Capability.TIME_SLICE}


def elastic(name: str, deadline: float = inf, batches: int = 1000) -> Job:
    return Job(name, deadline, BatchTarget(batches), max_devices=4, can=RESIZABLE, sizes=(1, 2, 4),
               throughputs=(1.0, 1.9, 3.6))  # fmt: skip


def played(one: Job, throughput: float = 10.0) -> SimulatedJob:
    work = one.target.work
    assert work is not None
    cells = [*range(5, work, 5), work]
    return SimulatedJob(one, cells, [1.0] * len(cells), throughput)


def grants(policy: str, devices: int, *jobs: Job) -> dict[str, Grant]:
    """Return the first grants of jobs."""
    answers = Scheduler(Settings(policy, devices=devices)).handle(Submit(jobs), 0.0)
    return {answer.job: answer for answer in answers if isinstance(answer, Grant)}


def test_no_deadline_is_null_where_it_is_written() -> None:
    submit = Submit((job("a", inf, 100),))
    assert json.loads(encode_event(submit))["jobs"][0]["deadline"] is None
    events: list[Event] = [submit, SetDeadline("a", inf), SetDeadline("a", inf, from_submission=True)]
    assert [decode_event(encode_event(event)) for event in events] == events
    assert job("a", inf, 100).is_best_effort
    assert not job("a", 9.0, 100).is_best_effort
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(submit, 0.0)
    [status] = scheduler.status()
    assert status.deadline == inf
    assert status_from_dict(json.loads(json.dumps(status_to_dict(status), allow_nan=False))) == status
    with pytest.raises(ValueError, match="weight: expected a finite number, got inf"):
        job_from_dict(job_to_dict(_with_infinite_weight()))


def _with_infinite_weight() -> Job:
    one = job("a", inf, 100)
    object.__setattr__(one, "weight", inf)
    return one


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"fixed"}))
def test_it_never_takes_from_a_job_with_a_deadline_and_ends_once_there_is_room(policy: str) -> None:
    urgent, free = played(job("urgent", 40.0, 300)), played(job("free", inf, 200))
    alone = Simulation(Settings(policy), [urgent]).run().summary.jobs[0]
    both = {one.name: one for one in Simulation(Settings(policy), [free, urgent]).run().summary.jobs}
    assert both["urgent"].finished_at == alone.finished_at
    assert both["urgent"].verdict is both["free"].verdict is Verdict.MET
    assert str(both["free"].reason) == "target met"
    assert alone.finished_at is not None
    assert both["free"].finished_at == pytest.approx(alone.finished_at + 20.0, abs=1.5)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"fixed"}))
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_job_that_cannot_make_its_deadline_comes_after_them(policy: str, devices: int) -> None:
    """One that has a chance ends no later than if there were none without a deadline."""
    hopeless, urgent = played(job("hopeless", 60.0, 2000)), played(job("urgent", 100.0, 300))
    free = [played(job(name, inf, 200)) for name in ("a", "b")]
    settings = Settings(policy, devices=devices)
    alone = Simulation(settings, [hopeless, urgent]).run().summary.jobs[1].finished_at
    ends = {one.name: one for one in Simulation(settings, [*free, hopeless, urgent]).run().summary.jobs}
    assert ends["hopeless"].verdict is Verdict.MISSED
    assert alone is not None
    assert (ends["urgent"].finished_at or inf) <= alone + 0.1
    last = max(ends[name].finished_at or inf for name in ("a", "b"))
    assert last <= 75.0 / devices  # 70 s of work beside what it took to tell that the other is hopeless
    assert devices == 1 or ends["hopeless"].busy > 20.0  # and what they leave is its own


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"fixed"}))
def test_a_job_that_is_found_feasible_again_has_its_device_back(policy: str) -> None:
    scheduler = Scheduler(Settings(policy))
    scheduler.handle(Submit((job("late", 20.0, 2000), job("free", inf, 100))), 0.0)
    for number in range(1, 5):
        scheduler.handle(Report("late", 1, number=number, version=1, batches=10 * number, busy=number), float(number))
        scheduler.handle(Tick(), number + 0.5)
    scheduler.handle(Tick(), 7.0)
    assert [one.share for one in scheduler.status()] == [0.0, 1.0]
    assert scheduler.status()[0].verdict is Verdict.INFEASIBLE
    scheduler.handle(SetDeadline("late", 500.0), 8.0)
    scheduler.handle(Tick(), 9.0)
    assert [one.share for one in scheduler.status()] == [1.0, 0.0]
    assert scheduler.status()[0].verdict in (Verdict.FEASIBLE, Verdict.AT_RISK)


class _ServesNone:
    """A policy that asks for nothing: any job may have what is left over."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        n = len(jobs)
        codes = np.full(n, index("others_first"))
        return Plan(np.arange(n), np.zeros(n), np.full(n, np.nan), codes, codes.copy(), np.zeros((n, 2)))

    def keep(self, stays: BoolArray) -> None:
        pass


class _AsksForHalf(_ServesNone):
    """A policy that asks for half a device for each job, and leaves nothing over."""

    def plan(self, jobs: JobView, now: float) -> Plan:
        return replace(super().plan(jobs, now), share=np.full(len(jobs), 0.5), work_conserving=False)


def test_what_a_policy_leaves_of_a_device_is_shared_equally() -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler._state.policy = _AsksForHalf()
    scheduler.handle(Submit((job("a", inf, 100), job("urgent", 50.0, 100), job("b", inf, 100))), 0.0)
    assert [one.share for one in scheduler.status()] == [0.25, 0.5, 0.25]


def test_what_a_policy_leaves_goes_to_jobs_with_a_chance_then_to_those_without_a_deadline() -> None:
    scheduler = Scheduler(Settings("edf", devices=3))
    scheduler.handle(
        Submit((job("hopeless", 20.0, 9000), job("free", inf, 100), job("a", 50.0, 100), job("unknown", 60.0, 100))),
        0.0,
    )
    scheduler.handle(Report("hopeless", 1, number=1, version=1, batches=50, busy=5.0), 5.0)
    scheduler.handle(Tick(), 6.0)
    scheduler._state.policy = _ServesNone()
    scheduler.handle(Tick(), 7.0)
    told = {one.name: (one.share, str(one.grant_reason)) for one in scheduler.status()}
    assert told["a"] == told["unknown"] == (1.0, "uses devices that no other job needs")
    assert told["free"] == (1.0, "best effort: equal share of the leftover devices")
    assert told["hopeless"] == (0.0, "waiting for jobs more likely to finish in time")


def test_devices_that_are_left_are_shared_equally() -> None:
    given = grants("edf", 3, job("a", inf, 100), job("b", inf, 100), job("urgent", 50.0, 100), job("c", inf, 100))
    assert {name: one.share for name, one in given.items()} == {"urgent": 1.0, "a": 0.5, "b": 0.5, "c": 1.0}
    assert str(given["a"].reason) == "best effort: equal share of the leftover devices"
    full = grants("edf", 1, job("a", inf, 100), job("urgent", 50.0, 100))
    assert full["urgent"].share == 1.0
    assert "a" not in full or str(full["a"].reason).startswith("best effort: waiting for devices")


def test_jobs_of_several_devices_take_turns() -> None:
    """Each has the devices for as long as the other, to within a turn of 20 s; none begins again every second."""
    jobs = [played(job(name, inf, devices=2)) for name in ("a", "b")]
    simulation = Simulation(Settings("edf", devices=2), jobs)
    outcome = simulation.run(until=100.0)
    done = [one.busy for one in outcome.summary.jobs]
    assert sum(done) > 90.0
    assert abs(done[0] - done[1]) <= 21.0
    assert 2 <= outcome.switches <= 8


def test_a_job_that_can_be_resized_has_the_most_devices_of_its_part() -> None:
    assert {name: len(one.devices) for name, one in grants("decor", 8, elastic("a")).items()} == {"a": 4}
    several = grants("decor", 5, elastic("a"), elastic("b"))
    assert {name: len(one.devices) for name, one in several.items()} == {"a": 2, "b": 2}
    beside = grants("decor", 4, elastic("urgent", 700.0), elastic("a"))  # it needs 2 of 4
    assert {name: len(one.devices) for name, one in beside.items()} == {"urgent": 2, "a": 2}


def test_a_deadline_comes_and_goes() -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((job("a", inf, 100), job("b", 50.0, 100))), 0.0)
    [grant, other] = [one for one in scheduler.handle(SetDeadline("a", 20.0), 1.0) if isinstance(one, Grant)]
    assert {grant.job: grant.share, other.job: other.share} == {"a": 1.0, "b": 0.0}
    scheduler.handle(SetDeadline("b", inf), 2.0)
    scheduler.handle(Report("a", 1, number=1, version=2, batches=100, busy=8.0), 9.0)
    assert scheduler.status()[1].share == 1.0
    assert scheduler.wakeup() is not None
    assert scheduler.status()[1].verdict is not Verdict.MISSED


def test_a_forecast_has_no_seconds_to_spare_and_nothing_is_slept_over() -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((job("a", inf, 100),)), 0.0)
    scheduler.handle(Report("a", 1, number=1, version=1, batches=20, busy=4.0), 4.0)
    scheduler.handle(Tick(), 5.0)
    [status] = scheduler.status()
    assert status.verdict is Verdict.FEASIBLE
    assert status.finish == pytest.approx((21.0,) * 3, abs=1.0)
    restored = Scheduler(Settings("edf"))
    restored.restore(json.loads(json.dumps(scheduler.state(), allow_nan=False)))
    assert restored.status() == scheduler.status()


@pytest.mark.parametrize("policy", ["edf", "triage", "lara", "decor"])
def test_a_part_of_the_pool_is_kept_for_them(policy: str) -> None:
    jobs = [played(job("urgent", 1000.0, 7000)), played(job("free", inf, 9000))]
    for part, least, most in ((0.0, 0.0, 0.0), (0.2, 0.15, 0.21)):
        outcome = Simulation(Settings(policy, best_effort=part), jobs).run(until=300.0)
        urgent, free = outcome.summary.jobs
        assert least <= free.busy / 300.0 <= most
        assert urgent.busy + free.busy > 290.0
    assert outcome.switches < 20


@pytest.mark.parametrize("policy", ["edf", "triage", "lara"])
def test_jobs_with_deadlines_are_planned_with_the_rest(policy: str) -> None:
    scheduler = Scheduler(Settings(policy, best_effort=0.2))
    scheduler.handle(Submit((job("urgent", 100.0, 850), job("free", inf, 100))), 0.0)
    scheduler.handle(Report("urgent", 1, number=1, version=1, batches=50, busy=5.0), 5.0)
    scheduler.handle(Tick(), 6.0)
    assert scheduler.status()[0].verdict is Verdict.AT_RISK  # 80 s of work in 94 s, of which a fifth is not its own


@pytest.mark.parametrize("part", [-0.1, 1.0, float("nan")])
def test_a_part_is_below_one(part: float) -> None:
    with pytest.raises(ValueError, match="best_effort must be at least 0 and below 1, got"):
        Settings(best_effort=part)
