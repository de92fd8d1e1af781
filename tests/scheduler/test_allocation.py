"""Allocation of devices: each rule by itself, and whole pools that stay busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Answer, End, Grant, State, Verdict
from lightning_core.core.events import Event, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.plans import Plan
from lightning_core.core.targets import BatchTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.allocation import Allocator, Devices, allocate_one, is_simple
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.examples import examples


def plan(share: Sequence[float], order: Sequence[int] | None = None, work_conserving: bool = True) -> Plan:
    n = len(share)
    zeros = np.zeros(n, np.int64)
    return Plan(
        np.array(range(n) if order is None else order, np.int64), np.array(share, np.float64), np.zeros(n),
        zeros, zeros, np.zeros((n, 2)), work_conserving,
    )  # fmt: skip


@dataclass
class Pool:
    """Input of an allocation; by default all jobs can move, take one device and have no process yet."""

    devices: int = 2
    slots: int | None = None
    home: list[Devices] = field(default_factory=list)
    stays: set[int] = field(default_factory=set)
    size: dict[int, int] = field(default_factory=dict)
    scripts: set[int] = field(default_factory=set)
    apart: set[int] = field(default_factory=set)

    def allocate(self, wanted: Plan) -> list[tuple[float, Devices]]:
        rows = range(len(wanted.share))
        allocator = Allocator(
            self.devices, self.slots, self.home or [()] * len(rows), [row in self.stays for row in rows],
            [self.size.get(row, 1) for row in rows], [row not in self.scripts for row in rows],
        )  # fmt: skip
        share, homes = allocator.allocate(wanted, frozenset(self.apart))
        return list(zip(share.round(6).tolist(), homes, strict=True))


# ---------------------------------------------------------------------------------------------------------- the rules


def test_the_first_job_gets_the_device_and_the_others_start_on_the_emptiest() -> None:
    assert Pool().allocate(plan([1, 1, 1, 1], order=[2, 0, 1, 3])) == [(1, (1,)), (0, (0,)), (1, (0,)), (0, (1,))]


def test_a_process_stays_on_its_device_and_a_new_one_goes_elsewhere() -> None:
    assert Pool(home=[(), (0,)]).allocate(plan([1, 1])) == [(1, (1,)), (1, (0,))]


def test_a_new_job_takes_the_device_with_the_least_urgent_waiter() -> None:
    """The second job in order waits for device 0, the third for device 1."""
    assert Pool(home=[(), (0,), (1,)]).allocate(plan([1, 1, 1]))[:2] == [(1, (1,)), (1, (0,))]


def test_movable_jobs_go_to_a_free_device() -> None:
    assert Pool(home=[(0,), (0,)]).allocate(plan([1, 1])) == [(1, (0,)), (1, (1,))]


def test_an_immovable_job_waits_and_the_free_device_goes_to_the_next() -> None:
    pool = Pool(home=[(0,), (0,), (0,)], stays={1})
    assert pool.allocate(plan([1, 1, 1])) == [(1, (0,)), (0, (0,)), (1, (1,))]


def test_a_job_that_yields_has_only_what_is_free_on_its_device() -> None:
    """Another one that does not fit takes its part of what the first has."""
    pool, wanted = Pool(home=[(0,), (0,)], stays={0, 1}), plan([0.75, 0.5], work_conserving=False)
    assert pool.allocate(wanted) == [(0.6, (0,)), (0.4, (0,))]
    yields = np.array([False, True])
    assert pool.allocate(replace(wanted, yields=yields)) == [(0.75, (0,)), (0.25, (0,))]


def test_a_job_of_several_devices_has_all_of_them_or_none() -> None:
    assert Pool(devices=3, size={1: 3}).allocate(plan([1, 1, 1])) == [(1, (0,)), (0, (0, 1, 2)), (1, (1,))]
    assert Pool(devices=3, size={0: 2}).allocate(plan([1, 1, 1])) == [(1, (0, 1)), (1, (2,)), (0, (0,))]


def test_a_job_of_several_devices_moves_as_little_as_possible() -> None:
    assert Pool(devices=4, home=[(1, 3), ()], size={0: 2}).allocate(plan([1, 1])) == [(1, (1, 3)), (1, (0,))]
    pool = Pool(devices=4, home=[(1,), (1, 3)], stays={0}, size={1: 2})
    assert pool.allocate(plan([1, 1])) == [(1, (1,)), (1, (0, 3))]
    pool.stays.add(1)
    assert pool.allocate(plan([1, 1])) == [(1, (1,)), (0, (1, 3))]


def test_a_script_of_several_devices_keeps_the_one_that_it_was_found_on() -> None:
    pool = Pool(devices=3, home=[(2,)], size={0: 2}, stays={0}, scripts={0})
    assert pool.allocate(plan([1])) == [(1, (0, 2))]


def test_shares_that_fit_lie_side_by_side_and_fill_the_device() -> None:
    assert Pool(devices=1).allocate(plan([0.5, 0.25])) == [(0.666667, (0,)), (0.333333, (0,))]
    assert Pool(devices=1).allocate(plan([0.5, 0.25], work_conserving=False)) == [(0.5, (0,)), (0.25, (0,))]


def test_shares_that_do_not_fit_are_scaled_down_in_proportion() -> None:
    assert Pool(devices=1).allocate(plan([0.6, 0.3, 0.6])) == [(0.4, (0,)), (0.2, (0,)), (0.4, (0,))]


def test_shares_that_do_not_fit_are_spread_over_the_devices() -> None:
    allocated = Pool().allocate(plan([0.6] * 6))
    assert [share for share, _ in allocated] == pytest.approx([1 / 3] * 6, abs=1e-6)


def test_an_owner_of_a_whole_device_shares_with_no_job() -> None:
    allocated = Pool().allocate(plan([1.0, 0.6, 0.6, 0.6]))
    assert allocated[0] == (1, (0,))
    assert [share for share, _ in allocated[1:]] == pytest.approx([1 / 3] * 3, abs=1e-6)


def test_the_rest_of_a_device_satisfies_a_request_for_a_whole_one() -> None:
    assert Pool(devices=1).allocate(plan([0.7, 1.0, 1.0])) == [(0.7, (0,)), (0.3, (0,)), (0, (0,))]
    assert Pool(devices=1).allocate(plan([0.99, 1.0])) == [(1, (0,)), (0, (0,))]  # a tiny rest is not worth a switch


def test_spare_time_goes_to_the_next_job_that_can_use_it() -> None:
    assert Pool(devices=1).allocate(plan([0, 0])) == [(1, (0,)), (0, (0,))]
    assert Pool(devices=3).allocate(plan([1, 0, 0.5, 0])) == [(1, (0,)), (1, (2,)), (1, (1,)), (0, (0,))]
    assert Pool(devices=1).allocate(plan([0, 0], work_conserving=False)) == [(0, (0,)), (0, (0,))]


def test_slots_are_kept_and_the_last_makes_room() -> None:
    pool = Pool(devices=1, slots=2, home=[(), (0,), (0,)])
    assert pool.allocate(plan([1, 1, 1])) == [(1, (0,)), (0, (0,)), (0, ())]
    pool.stays.add(2)
    assert pool.allocate(plan([1, 1, 1])) == [(1, (0,)), (0, ()), (0, (0,))]
    pool.stays.add(1)
    assert pool.allocate(plan([1, 1, 1])) == [(0, ()), (1, (0,)), (0, (0,))]


def test_no_job_makes_room_for_a_later_one() -> None:
    pool = Pool(devices=1, slots=1, home=[(0,), ()], apart=set())
    assert pool.allocate(plan([0.5, 0.5])) == [(1, (0,)), (0, ())]


def test_a_job_off_its_device_keeps_its_slot_until_it_is_needed() -> None:
    pool = Pool(devices=1, slots=2, home=[(0,), (0,)], apart={0})
    assert pool.allocate(plan([1, 1])) == [(0, (0,)), (1, (0,))]
    pool.home.append(())
    assert pool.allocate(plan([1, 1, 1], order=[0, 2, 1])) == [(0, ()), (0, (0,)), (1, (0,))]


def test_scripts_take_no_slot() -> None:
    pool = Pool(devices=1, slots=1, home=[(0,), (0,), ()], stays={0, 1}, scripts={0, 1})
    assert pool.allocate(plan([1, 1, 1])) == [(1, (0,)), (0, (0,)), (0, (0,))]


def test_the_next_job_starts_in_an_empty_slot() -> None:
    pool = Pool(devices=2, slots=2, home=[(0,), (1,), (), (), ()])
    assert pool.allocate(plan([1] * 5)) == [(1, (0,)), (1, (1,)), (0, (0,)), (0, (1,)), (0, ())]


# ----------------------------------------------------------------------------------------------------- one device


def _order(draw: st.DrawFn, n: int) -> list[int]:
    return draw(st.permutations(range(n)))


@st.composite
def simple_plans(draw: st.DrawFn) -> Plan:
    n = draw(st.integers(1, 12))
    if draw(st.booleans()):
        share = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))
    else:
        weights = np.array(draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
        share = (weights / max(weights.sum() / draw(st.floats(0.1, 1)), 1e-9)).tolist()
    return plan(share, _order(draw, n), draw(st.booleans()))


@given(simple_plans())
@example(plan([1 / 70] * 70))
@settings(max_examples=examples(100), deadline=None)
def test_vectorised_allocation_of_one_device_equals_the_general_one(wanted: Plan) -> None:
    assert is_simple(wanted)
    share = allocate_one(wanted)
    allocated = Pool(devices=1).allocate(wanted)
    assert share == pytest.approx([part for part, _ in allocated], abs=2e-6)
    assert share.sum() <= 1 + 1e-9


def test_plans_for_the_general_allocation_are_recognised() -> None:
    assert not is_simple(plan([0.6, 0.6]))
    assert not is_simple(plan([0.5, 1.0]))


# ------------------------------------------------------------------------------------------------- nothing stands idle


@st.composite
def pools(draw: st.DrawFn) -> tuple[Pool, Plan]:
    devices = draw(st.integers(1, 8))
    n = draw(st.integers(devices, 20))
    slots = draw(st.sampled_from([None, 1, 2, 3]))
    homes: list[Devices] = []
    for _ in range(n):
        at = draw(st.integers(-1, devices - 1))
        full = slots is not None and at >= 0 and homes.count((at,)) >= slots
        homes.append(() if at < 0 or full else (at,))
    return Pool(devices, slots, homes), plan(_requests(draw, n, devices), _order(draw, n))


def _requests(draw: st.DrawFn, n: int, devices: int) -> list[float]:
    """Shares that policies request: whole devices for some jobs, or shares that fill the pool, none above 1."""
    if draw(st.booleans()):
        return draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))
    share = np.array(draw(st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n)))
    if (lacks := devices - share.sum()) < 0:
        share *= devices / share.sum()
    elif n > devices:
        share += (1.0 - share) * lacks / (n - share.sum())
    else:
        share[:] = 1.0
    return share.tolist()  # type: ignore[no-any-return]


@given(pools())
@settings(max_examples=examples(125), deadline=None)
def test_with_as_many_movable_jobs_as_devices_no_device_stands_idle(case: tuple[Pool, Plan]) -> None:
    pool, wanted = case
    load = np.zeros(pool.devices)
    for part, home in pool.allocate(wanted):
        load[list(home)] += part
    assert load == pytest.approx(np.ones(pool.devices), abs=1e-4)


@dataclass
class Trainee:
    """A worker in virtual time: it trains at its share, leaves when granted other devices, and resumes there."""

    batches: float = 0.0
    incarnation: int = 1
    number: int = 0
    busy: float = 0.0
    began: int = 0
    version: int = 0
    share: float = 0.0
    devices: Devices = ()
    over: Verdict | None = None


SPEED = 10.0


def run_pool(jobs: Sequence[Job], settings: Settings, until: float = 4000.0) -> tuple[float, float, dict[str, Trainee]]:
    """Return granted and available device-seconds while each device could have a job, and the workers."""
    scheduler = Scheduler(settings)
    team = {job.name: Trainee() for job in jobs}
    granted = available = now = 0.0

    def handle(event: Event) -> None:
        answers: list[Answer] = scheduler.handle(event, now)
        scheduler.check()
        for answer in answers:
            worker = team[answer.job]
            if not isinstance(answer, Grant | End) or answer.version <= worker.version:
                continue
            worker.version = answer.version
            if isinstance(answer, End):
                worker.over, worker.share = answer.verdict, 0.0
                continue
            moved = answer.devices != worker.devices and worker.devices
            worker.share, worker.devices = answer.share, answer.devices
            if moved:
                leaving = WorkerExited(answer.job, worker.incarnation, ExitCause.RELEASED)
                worker.incarnation, worker.number, worker.busy = worker.incarnation + 1, 0, 0.0
                worker.began = int(worker.batches)
                handle(leaving)

    handle(Submit(tuple(jobs)))
    while any(worker.over is None for worker in team.values()) and now < until:
        if sum(worker.over is None for worker in team.values()) >= settings.devices:
            granted += sum(worker.share for worker in team.values())
            available += settings.devices
        now += 1.0
        for name, worker in team.items():
            if worker.over is None and worker.share:
                worker.batches += SPEED * worker.share
                worker.busy += worker.share
                worker.number += 1
                handle(Report(name, worker.incarnation, worker.number, worker.version, int(worker.batches + 1e-6),
                              worker.busy, batches_at_start=worker.began))  # fmt: skip
        if (wakeup := scheduler.wakeup()) is not None and wakeup <= now:
            handle(Tick())
    return granted, available, team


BUSY = ["edf", "guarded_edf", "uniform", "rr", "lara"]


def test_the_policies_of_the_busy_pools_exist() -> None:
    assert set(BUSY) <= set(POLICIES)


@pytest.mark.parametrize("resident", [None, 4, 8])
@pytest.mark.parametrize("policy", BUSY)
def test_eight_jobs_keep_four_devices_busy(policy: str, resident: int | None) -> None:
    work = [40, 70, 25, 90, 55, 130, 60, 35]
    jobs = [Job(f"job{k}", 80.0 + 25 * (k % 4), BatchTarget(int(SPEED * w))) for k, w in enumerate(work)]
    granted, available, team = run_pool(jobs, Settings(policy=policy, devices=4, resident=resident))
    assert granted >= 0.9 * available
    assert {worker.over for worker in team.values()} <= {Verdict.MET, Verdict.MISSED}
    for name, worker in team.items():
        assert worker.over is not None, f"{name} has not ended"


@pytest.mark.parametrize("policy", ["edf", "guarded_edf", "rr"])
def test_pools_with_process_groups_and_scripts_stay_busy(policy: str) -> None:
    jobs = [
        Job("wide", 300.0, BatchTarget(400), min_devices=2, max_devices=2),
        Job("all", 400.0, BatchTarget(200), min_devices=4, max_devices=4),
        Job("script", 200.0, BatchTarget(300), can=frozenset({Capability.HOLD, Capability.TIME_SLICE}), device=1),
        *(Job(f"job{k}", 150.0 + 40 * k, BatchTarget(500)) for k in range(6)),
    ]
    _, _, team = run_pool(jobs, Settings(policy=policy, devices=4, resident=8))
    assert {name: worker.over for name, worker in team.items()} == dict.fromkeys(team, Verdict.MET)
    assert team["script"].incarnation == 1


def test_a_warm_job_moves_to_a_device_that_becomes_free() -> None:
    """It was starting behind another one, and has not trained yet."""
    scheduler = Scheduler(Settings(policy="fifo", devices=2))
    scheduler.handle(Submit(tuple(Job(name, 1e3, BatchTarget(10)) for name in "abc")), 0.0)
    assert [s.devices for s in scheduler.status()] == [(0,), (1,), (0,)]
    answers = scheduler.handle(Report("b", 1, 1, 1, 10, 1.0), 1.0)
    assert [(g.job, g.share, g.devices) for g in answers if isinstance(g, Grant)] == [("c", 1.0, (1,))]


def test_a_job_is_not_moved_before_it_has_stayed() -> None:
    scheduler = Scheduler(Settings(policy="rr", policy_args={"quantum": 3.0}, devices=2, stay=10.0))
    jobs = tuple(Job(name, 1e3, BatchTarget(1000)) for name in "abc")
    scheduler.handle(Submit(jobs), 0.0)
    moves = []
    homes = {s.name: s.devices for s in scheduler.status()}
    for second in range(1, 60):
        for answer in scheduler.handle(Tick(), float(second)):
            if isinstance(answer, Grant) and answer.devices != homes[answer.job]:
                homes[answer.job] = answer.devices
                moves.append((second, answer.job))
        scheduler.check()
        assert sum(s.share for s in scheduler.status()) == pytest.approx(2.0)
    assert len(moves) <= 3 * 60 / 10
    last: dict[str, int] = {}
    for second, name in moves:
        assert second - last.get(name, -99) >= 10
        last[name] = second


def test_a_job_that_makes_room_gets_a_reason() -> None:
    scheduler = Scheduler(Settings(policy="edf", resident=1))
    scheduler.handle(Submit((Job("a", 100.0, BatchTarget(100)),)), 0.0)
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0), 1.0)
    scheduler.handle(Submit((Job("b", 50.0, BatchTarget(100)),)), 5.0)
    assert [s.share for s in scheduler.status()] == [1.0, 0.0]  # it has just begun
    answers = scheduler.handle(Tick(), 11.0)
    assert [(g.job, g.share, g.devices, str(g.reason)) for g in answers if isinstance(g, Grant)] == [
        ("a", 0.0, (), "frees its memory for jobs ahead of it"),
        ("b", 1.0, (0,), "first in line"),
    ]
    assert scheduler.status()[0].state is State.HELD  # it is being saved
    scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), 12.0)
    assert scheduler.status()[0].state is State.RELEASED
