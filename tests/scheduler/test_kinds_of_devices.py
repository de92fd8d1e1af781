"""Pools of several kinds of devices: what is known of each, where jobs train, and what survives a restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lightning_core.core.commands import SetDevices
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import DevicesFound, DevicesUnavailable, EarlierRuns, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.targets import BatchTarget
from lightning_core.policies import POLICIES
from lightning_core.policies.triage import Triage
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.builders import job

KINDS = ("fast", "slow")
POOL = Settings("triage", devices=2, locations=KINDS, stay=0.0, resize=1.0, resident=2)


def rates(**by_kind: float) -> EarlierRun:
    return EarlierRun("before", (), (), on_kinds=tuple((kind, 1, rate) for kind, rate in by_kind.items()))


def submitted(*jobs: Job, settings: Settings = POOL, **by_kind: float) -> Scheduler:
    scheduler = Scheduler(settings)
    scheduler.handle(Submit(jobs), 0.0)
    if by_kind:
        scheduler.handle(EarlierRuns((rates(**by_kind),), tuple((one.name, (0,)) for one in jobs)), 0.0)
    scheduler.check()
    return scheduler


def where(scheduler: Scheduler) -> dict[str, tuple[str, ...]]:
    return {one.name: tuple(KINDS[device] for device in one.devices if one.share) for one in scheduler.status()}


def test_an_urgent_job_trains_where_it_is_fast_and_the_other_where_it_suffices() -> None:
    urgent, easy = job("urgent", 120.0, 1000, model="net"), job("easy", 900.0, 1000, model="net")
    assert where(submitted(easy, urgent, fast=10.0, slow=2.0)) == {"easy": ("slow",), "urgent": ("fast",)}


def test_a_job_may_say_which_kinds_it_can_use() -> None:
    one = job("one", 900.0, 1000, model="net", kinds=("slow",))
    assert where(submitted(one, fast=10.0, slow=2.0)) == {"one": ("slow",)}
    with pytest.raises(ValueError, match="a kind of devices"):
        job("one", kinds=("k" * 10_000,))


def test_verdicts_count_with_the_fastest_kind_that_a_job_may_be_on() -> None:
    for kinds, verdict in (((), "feasible"), (("slow",), "infeasible")):
        scheduler = submitted(job("one", 200.0, 1000, model="net", kinds=kinds), fast=10.0, slow=2.0)
        scheduler.handle(Tick(), 1.0)
        assert scheduler.last("one").verdict == verdict
    words = "needs at least 7m20s alone on slow, its kind of devices, and has 3m19s"
    assert str(scheduler.last("one").reason) == words


def test_a_job_is_not_divided_among_kinds() -> None:
    pool = replace(POOL, devices=4, locations=("fast", "fast", "slow", "slow"), resident=4)
    scheduler = Scheduler(pool)
    scheduler.handle(Submit((job("one", 900.0, 1000), job("pair", 900.0, 1000, devices=2))), 0.0)
    scheduler.check()
    assert len({pool.locations[device] for device in scheduler.last("pair").devices}) == 1


def test_a_job_that_waits_for_a_lost_device_is_not_put_on_devices_of_two_kinds() -> None:
    pool = replace(POOL, devices=3, locations=("fast", "slow", "slow"), resident=6)
    scheduler = submitted(job("pair", 900.0, 1000, devices=2), settings=pool)
    assert scheduler.last("pair").devices == (1, 2)
    scheduler.handle(DevicesUnavailable((2,), "draining"), 1.0)
    assert scheduler.last("pair").devices == ()
    scheduler.handle(DevicesUnavailable(()), 2.0)
    scheduler.check()
    assert scheduler.last("pair").devices == (1, 2)


def test_what_one_job_shows_on_a_kind_counts_for_the_next_of_its_family() -> None:
    scheduler = submitted(job("a", 900.0, 10_000, model="net"))
    kind = where(scheduler)["a"][0]
    for number in range(1, 20):
        scheduler.handle(Report("a", 1, number, version=9, batches=10 * number, busy=float(number)), float(number))
    known, doubt = scheduler._state.rates.expect("net", 1, KINDS)
    at = KINDS.index(kind)
    assert np.exp(known[at]) == pytest.approx(10.0, rel=0.05)
    assert doubt[at] < 0.2 < doubt[1 - at]
    scheduler.handle(Submit((job("b", 900.0, 1000, model="net", kinds=(kind,)),)), 21.0)
    assert scheduler._state.rates.measured("net")[0][:2] == (kind, 1)


def test_a_kind_never_seen_is_estimated_from_what_others_gained_there() -> None:
    seen = KindRates()
    for number in range(6):
        seen.observe(f"net{number}", 1, "fast", 400.0, 100.0)
        seen.observe(f"net{number}", 1, "slow", 100.0, 100.0)
    seen.observe("new", 1, "slow", 200.0, 100.0)
    known, doubt = seen.expect("new", 1, KINDS)
    assert np.exp(known) == pytest.approx([8.0, 2.0], rel=0.15)
    assert doubt[0] > 10 * doubt[1] > 0
    level, _ = seen.expect("never seen", 1, KINDS)
    assert np.exp(level[0] - level[1]) == pytest.approx(4.0, rel=0.15)


def simulated(policy: str, kinds: tuple[str, ...] = KINDS, *, chooses: bool = False) -> dict[str, str]:
    """Play three jobs, of which all can be in time only if the urgent one is on the fast device."""
    can = frozenset({Capability.HOLD, Capability.RELEASE, *([Capability.RESIZE] if chooses else [])})
    jobs = [
        SimulatedJob(
            Job(name, deadline, BatchTarget(1000), can=can, model="net", sizes=(1,) if chooses else ()),
            [*range(50, 1001, 50)], [1.0 - 0.03 * k for k in range(20)], 10.0,
            throughputs=(10.0,) if chooses else (), paces={"slow": 0.2}, earlier=(rates(fast=10.0, slow=2.0),),
        )
        for name, deadline in (("easy", 700.0), ("urgent", 130.0), ("next", 260.0))
    ]  # fmt: skip
    settings = Settings(policy, devices=2, locations=kinds, stay=0.0, resident=2, estimator="posterior")
    outcome = Simulation(settings, jobs, Delays(report_every=1.0), check=True, kinds=KINDS).run(2000.0)
    return {one.name: str(one.verdict) for one in outcome.jobs}


@pytest.mark.parametrize("policy", ["triage", "guarded_edf", "edf", "lara", "decor"])
def test_policies_meet_all_deadlines_on_two_kinds(policy: str) -> None:
    assert set(simulated(policy, chooses=policy == "decor").values()) == {"met"}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_works_on_several_kinds(policy: str) -> None:
    if policy != "fixed":  # its shares are given for each job
        assert len(simulated(policy)) == 3


def test_kinds_that_the_pool_finds_are_used_from_then_on_and_survive_a_restart() -> None:
    scheduler = Scheduler(replace(POOL, locations=()))
    scheduler.handle(Submit((job("a", 120.0, 1000, model="net"), job("b", 900.0, 1000, model="net"))), 0.0)
    scheduler.handle(DevicesFound(KINDS, ("m1", "m2")), 1.0)
    scheduler.handle(EarlierRuns((rates(fast=10.0, slow=2.0),), (("a", (0,)), ("b", (0,)))), 2.0)
    scheduler.handle(Tick(), 3.0)
    scheduler.check()
    assert where(scheduler) == {"a": ("fast",), "b": ("slow",)}
    other = Scheduler(replace(POOL, locations=()))
    other.restore(scheduler.state())
    for now in (4.0, 5.0):
        assert other.handle(Tick(), now) == scheduler.handle(Tick(), now)
    assert other.state() == scheduler.state()


def test_kinds_come_and_stay_known_while_a_node_is_away() -> None:
    scheduler = Scheduler(replace(POOL, locations=()))
    scheduler.handle(Submit((job("a", 120.0, 1000, model="net"), job("b", 900.0, 1000, model="net"))), 0.0)
    scheduler.handle(DevicesFound(("slow", "fast")), 1.0)
    scheduler.handle(Report("a", 1, 1, version=9, batches=20, busy=2.0), 3.0)
    for now, found in enumerate((("slow", ""), (), ("", "fastest"), ("slow", "fast"), ("fast", "fast")), 4):
        scheduler.handle(DevicesFound(found), float(now))
        scheduler.handle(Tick(), now + 0.5)
        scheduler.check()
        other = Scheduler(scheduler.settings)
        other.restore(scheduler.state())
        assert other.handle(Tick(), now + 0.6) == scheduler.handle(Tick(), now + 0.6)
    assert scheduler._state.devices.names == ("slow", "fast", "fastest")  # a number means the same kind for good


def test_what_is_known_of_the_devices_is_not_journalled_again() -> None:
    scheduler = Scheduler(replace(POOL, locations=()))
    event = DevicesFound(KINDS, ("m1", "m2"))
    assert scheduler.answers_to_no_op(event, 1.0) is None
    scheduler.handle(event, 1.0)
    assert scheduler.answers_to_no_op(event, 2.0) == []
    assert scheduler.answers_to_no_op(DevicesFound(), 2.0) == []


def test_a_job_for_kinds_that_the_pool_lacks_is_refused() -> None:
    scheduler = submitted(job("one", 900.0, 1000, kinds=("a100", "h100")))
    assert scheduler.last("one").verdict == "cancelled"
    assert str(scheduler.last("one").reason) == "requires a device of kind a100 or h100, where the pool has none"


def test_a_job_that_needs_more_devices_than_there_are_of_one_kind_is_refused() -> None:
    pool = replace(POOL, devices=4, locations=("fast", "slow", "slow", "slow"), resident=4)
    most = job("most", 900.0, 1000, max_devices=9, model="net")
    scheduler = submitted(job("one", 900.0, 1000, devices=4), most, settings=pool)
    assert str(scheduler.last("one").reason) == "needs 4 devices, but the pool has 3 of one kind"
    assert len(scheduler.last("most").devices) == 3
    scheduler = submitted(job("one", 900.0, 1000, devices=2, kinds=("fast",)), settings=pool)
    assert str(scheduler.last("one").reason) == "needs 2 devices, but the pool has 1 of one kind"
    with pytest.raises(ValueError, match="devices must be at most the pool's 3 of one kind, got 4"):
        submitted(most, settings=pool).check_command(SetDevices("most", 4), 1.0)


def test_rates_on_kinds_that_the_pool_lacks_say_nothing_of_how_long_a_job_takes() -> None:
    scheduler = submitted(job("one", 900.0, 1000, model="net"), h100=10.0)
    scheduler.handle(Tick(), 1.0)
    assert scheduler.last("one").verdict is None


def test_jobs_that_can_be_nowhere_wait_and_disturb_no_plan_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = submitted(job("here", 900.0, 1000), job("gone", 900.0, 1000, kinds=("slow",)))
    calls, plan = list[int](), Triage.plan

    def counted(policy: Triage, jobs: JobView, now: float) -> Plan:
        calls.append(len(jobs))
        return plan(policy, jobs, now)

    monkeypatch.setattr(Triage, "plan", counted)
    scheduler.handle(DevicesUnavailable((1,), "lost"), 1.0)
    scheduler.check()
    assert where(scheduler) == {"here": ("fast",), "gone": ()}
    assert calls == [1]


def test_names_in_the_settings_stand_above_what_is_found() -> None:
    scheduler = Scheduler(POOL)
    scheduler.handle(DevicesFound(("a100", "t4")), 0.0)
    assert scheduler._state.devices.names == KINDS


def test_an_event_of_other_devices_than_the_pool_has_is_not_believed() -> None:
    scheduler = Scheduler(replace(POOL, locations=()))
    scheduler.handle(DevicesFound(("a100", "t4", "t4")), 0.0)
    assert not scheduler._state.devices.differ
