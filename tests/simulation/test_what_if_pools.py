"""What holds in a pool holds in its futures: owners, starts, memory, devices of one job, calendar, plan and market."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from lightning_core.controllers.plan_data import plan_of
from lightning_core.core.commands import SetDevices
from lightning_core.core.control import Ask, Asker, PlanGiven, WallClock
from lightning_core.core.events import DevicesUnavailable, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import MemoryUse
from lightning_core.core.targets import BatchTarget
from lightning_core.placement import CLOUD, Demands, Gpu, Level, Node, PlacedJob, plan
from lightning_core.scheduler.asking.prospects import Assumed, Kept, Prospects, Resized
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.what_if import PLANS, PLANS_BY_OWNER, Assumption, chances, finish
from tests.simulation.futures import ELASTIC, HOUR, asked, known


def owned(owners: dict[str, dict[str, float]], devices: int, *jobs: tuple[str, str, float]) -> Scheduler:
    """A pool of jobs of a hundred seconds, each with its name, its owner and its deadline."""
    settings = Settings(policy="edf", devices=devices, owners=owners)
    made = [Job(name, deadline, BatchTarget(100), owner=owner) for name, owner, deadline in jobs]
    return known(settings, made, [1.0] * len(made))


def test_a_quota_holds_in_the_futures() -> None:
    jobs = ("a1", "ann", 140.0), ("a2", "ann", 150.0), ("b", "bob", 160.0)
    assert asked(owned({}, 2, *jobs), Assumption())[0] == {"a1": 1.0, "a2": 1.0, "b": 0.0}
    before, after = asked(owned({"bob": {"devices": 1}}, 2, *jobs), Assumption(devices=3))
    assert before == {"a1": 1.0, "a2": 0.0, "b": 1.0}
    assert after == {"a1": 1.0, "a2": 1.0, "b": 1.0}
    with pytest.raises(ValueError, match="quotas of all owners must be at most the pool's 1 devices, got 2"):
        asked(owned({"bob": {"devices": 2}}, 2, *jobs), Assumption(devices=1))


def test_a_cap_and_a_spent_budget_hold_in_the_futures() -> None:
    jobs = ("a1", "ann", 140.0), ("a2", "ann", 150.0)
    assert asked(owned({"ann": {"max_devices": 1}}, 2, *jobs), Assumption())[0] == {"a1": 1.0, "a2": 0.0}
    both = ("a", "ann", 140.0), ("b", "bob", 160.0)
    assert asked(owned({"ann": {"device_hours": 0.0}}, 1, *both), Assumption())[0] == {"a": 0.0, "b": 1.0}


def test_owners_take_turns_in_the_futures() -> None:
    """Each has a third of the device, so the first jobs of all are over before anyone's second, whatever is due."""
    owners = {name: {"weight": 1.0} for name in ("ann", "bob", "eve")}
    jobs = [(f"{name}{k}", name, 500.0 + 10 * k + 200 * at) for at, name in enumerate(owners) for k in range(2)]
    ends = finish(owned(owners, 1, *jobs).prospects(), np.full(6, 100.0))
    first = dict(zip([name for name, *_ in jobs], ends.tolist(), strict=True))
    assert max(first["ann0"], first["bob0"], first["eve0"]) < 390.0


def test_turns_that_are_longer_in_the_futures_still_follow_the_weights() -> None:
    """Two thirds of the device are eve's, so her ten thousand seconds take fifteen thousand, give or take a turn."""
    owners = {"ann": {"weight": 1.0}, "bob": {"weight": 1.0}, "eve": {"weight": 4.0}}
    prospects = owned(owners, 1, *((name, name, 40_000.0) for name in owners)).prospects()
    assert finish(prospects, np.full(3, 10_000.0))[2] == pytest.approx(15_000.0, abs=40_000.0 / 24 + 1.0)


@pytest.mark.parametrize("owners", [{}, {"ann": {"max_devices": 1}}])
def test_the_next_job_begins_where_many_end_under_one_plan(owners: dict[str, dict[str, float]]) -> None:
    """Each plan is for two jobs; the pool's second device is of no use to ann, who may have one."""
    n = 2 * (PLANS_BY_OWNER if owners else PLANS)
    scheduler = owned(owners, 2 if owners else 1, *((f"j{k}", "ann", 1e6 + k) for k in range(n)))
    assert finish(scheduler.prospects(), np.full(n, 100.0)) == pytest.approx(100.0 * np.arange(1, n + 1))


def moving(cost: float | None, **more: Any) -> Scheduler:
    """A device and two jobs of a hundred seconds, whose moves were measured to take some seconds."""
    jobs = [Job(name, 500.0, BatchTarget(100), resize_seconds=cost) for name in "ab"]
    return known(Settings(policy="edf", stay=0.0, **more), jobs, [1.0, 1.0])


def test_a_resume_and_a_move_take_as_long_as_moves_were_measured_to() -> None:
    needs = np.full(2, 100.0)
    assert finish(moving(None, resident=1).prospects(), needs).tolist() == pytest.approx([100.0, 200.0])
    assert finish(moving(30.0, resident=1).prospects(), needs).tolist() == pytest.approx([100.0, 230.0])
    # In memory beside the other, it has nothing to start.
    assert finish(moving(30.0).prospects(), needs).tolist() == pytest.approx([100.0, 200.0])
    assert finish(moving(30.0).prospects().with_devices(2), needs).tolist() == pytest.approx([100.0, 130.0])


def test_a_first_start_takes_as_long_and_is_hidden_where_it_happens_ahead() -> None:
    scheduler = Scheduler(Settings(policy="edf", devices=2))
    scheduler.handle(Submit((Job("a", 500.0, BatchTarget(100)), Job("b", 500.0, BatchTarget(100), work=100.0))), 0.0)
    scheduler.handle(Report("a", 1, number=1, version=9, batches=1, busy=1.0), 0.0)
    scheduler.handle(Submit((Job("c", 600.0, BatchTarget(100), resize_seconds=40.0),)), 0.0)
    # The cost of b's start is the mean of those that are known; c starts while the others train.
    assert finish(scheduler.prospects(), np.full(3, 100.0)).tolist() == pytest.approx([100.0, 140.0, 200.0])


def test_the_answer_says_what_starts_were_taken_to_cost() -> None:
    def starts(scheduler: Scheduler) -> Assumed:
        return chances(scheduler.prospects(), Assumption(), lambda _: False).assumed

    assert starts(moving(30.0)).starts == (30.0, 30.0)
    assert starts(moving(None)) == Assumed(None, True)
    script = known(Settings(), [Job("a", 500.0, BatchTarget(100), device=0)], [1.0])
    assert starts(script) == Assumed(None, False)


def one_by_one(*memory: int | None, of: int | None = 100, peak: int = 0) -> Prospects:
    """Jobs of a hundred seconds, one after the other on a device, each with the memory that it needs.

    A start takes 20 s; of a job that fits beside the one that trains it is over before its turn.
    """
    jobs = [
        Job(f"j{k}", 400.0 + k, BatchTarget(100), memory=need, resize_seconds=20.0) for k, need in enumerate(memory)
    ]
    scheduler = known(Settings(policy="edf", stay=0.0, device_memory=of), jobs, [1.0] * len(jobs))
    for job in jobs if peak else ():
        seen = MemoryUse(peak, peak)
        scheduler.handle(Report(job.name, 1, number=2, version=99, batches=1, busy=1.0, memory=seen), 0.0)
    return scheduler.prospects()


def ends(prospects: Prospects) -> list[float]:
    found: list[float] = finish(prospects, np.full(len(prospects.names), 100.0)).tolist()
    return found


def test_jobs_that_do_not_fit_on_a_device_together_are_not_there_together() -> None:
    assert ends(one_by_one(60, 60, of=None)) == pytest.approx([100.0, 200.0])
    assert ends(one_by_one(50, 50)) == pytest.approx([100.0, 200.0])
    assert ends(one_by_one(60, 60)) == pytest.approx([100.0, 220.0])
    assert ends(one_by_one(10, 10, peak=60)) == pytest.approx([100.0, 220.0])  # what was seen counts


def test_a_job_of_unknown_memory_is_tried_alone_and_then_needs_what_others_need() -> None:
    assert one_by_one(None, 60).assumed()[2:4] == (1, 60.0)
    assert ends(one_by_one(None, 60)) == pytest.approx([100.0, 220.0])
    assert ends(one_by_one(None, 30)) == pytest.approx([100.0, 200.0])
    assert one_by_one(None, None).assumed()[2:4] == (2, None)
    assert ends(one_by_one(None, None)) == pytest.approx([100.0, 220.0])


def two_sizes(policy: str = "edf") -> Scheduler:
    """A job on four devices that is 0.6 times as fast on two, and one that waits for two of them."""
    sizes: dict[str, Any] = {"sizes": (1, 2, 4), "max_devices": 4, "can": ELASTIC}
    jobs = [
        Job("a", 150.0, BatchTarget(100), throughputs=(0.3, 0.6, 1.0), **sizes),
        Job("b", 180.0, BatchTarget(100), min_devices=2, max_devices=2, work=100.0),
    ]
    return known(Settings(policy=policy, devices=4, stay=0.0), jobs, [1.0, 1.0])


def test_a_job_with_fewer_devices_leaves_some_to_others() -> None:
    before, after = asked(two_sizes(), Assumption("a", own=2))
    assert (before, after) == ({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0})
    before, after = asked(two_sizes(), Assumption("a", 175.0, own=3))  # it takes two of them, and 167 s
    assert after == {"a": 1.0, "b": 1.0}


def test_of_fewer_devices_a_job_takes_as_many_as_it_can_use() -> None:
    job = Job("a", 900.0, BatchTarget(100), sizes=(1, 2, 4), throughputs=(0.1, 0.6, 1.0), max_devices=4, can=ELASTIC)
    scheduler = known(Settings(policy="edf", devices=4, stay=0.0), [job], [1.0])
    assert finish(scheduler.prospects().with_devices(3), np.array([100.0])).tolist() == pytest.approx([100.0 / 0.6])


def test_a_market_that_is_recorded_decides_how_many_devices_there_are() -> None:
    settings = Settings(policy="edf", devices=2, market={"interval": 60.0})
    scheduler = known(settings, [Job("a", 900.0, BatchTarget(100))], [1.0])
    assert scheduler.prospects().assumed().kept == Kept(2, 0)
    with pytest.raises(ValueError, match="the market decides how many devices"):
        scheduler.prospects().with_devices(1)


def test_the_devices_of_a_job_are_those_that_the_command_would_give_it() -> None:
    job = Job("a", 900.0, BatchTarget(100), sizes=(1, 2, 4), throughputs=(0.1, 0.6, 1.0), max_devices=4, can=ELASTIC)
    scheduler = known(Settings(policy="decor", devices=4, stay=0.0), [job], [1.0])
    needs, prospects = np.array([100.0]), scheduler.prospects().with_devices_of("a", 3)
    assert prospects.assumed().resized == Resized("a", 2, True)
    assert finish(prospects, needs).tolist() == pytest.approx([100.0 / 0.6])
    scheduler.handle(SetDevices("a", 3), 0.0)
    assert len(scheduler.last("a").devices) == 2
    assert finish(scheduler.prospects(), needs).tolist() == pytest.approx([100.0 / 0.6])


def test_a_number_of_devices_that_was_never_tried_is_assumed_and_said_to_be() -> None:
    job = Job("a", 500.0, BatchTarget(100), sizes=(1, 2), max_devices=2, can=ELASTIC)
    scheduler = known(Settings(policy="edf", devices=2, stay=0.0), [job], [1.0])
    prospects = scheduler.prospects().with_devices_of("a", 1)
    assert prospects.assumed().resized == Resized("a", 1, False)
    [end] = finish(prospects, np.array([100.0])).tolist()
    assert 100.0 < end < 200.0  # not half as fast, as part of a batch is not divided
    with pytest.raises(ValueError, match="b trains on 2 devices only, as it was submitted"):
        two_sizes().prospects().with_devices_of("b", 1)


def test_the_hours_of_a_calendar_hold_in_the_futures() -> None:
    jobs = [Job("a", 9 * HOUR, BatchTarget(100), resize_seconds=10.0)]
    scheduler = Scheduler(Settings(policy="edf", controllers={"calendar": {"closed": ["not between 22:00 and 06:00"]}}))
    scheduler.handle(WallClock(22 * HOUR - 60.0), 0.0)
    scheduler.handle(Submit(tuple(jobs)), 0.0)
    scheduler.handle(Report("a", 1, number=1, version=9, batches=1, busy=1.0), 0.0)
    # A minute before ten, and the rest after six, once it is up again.
    assert finish(scheduler.prospects(), np.array([100.0])).tolist() == pytest.approx([60.0 + 8 * HOUR + 10.0 + 40.0])
    assert not scheduler.last("a").paused


def test_a_placement_plan_moves_jobs_in_the_futures() -> None:
    demands = Demands(("night", "day"), {"gpu": Gpu(2.0)}, {"fp32": Level(0.9, {"gpu": 1500.0})},
                      {"harbour": Node({"gpu": 1})}, {"cars": PlacedJob((0, 1), rate=15.0, sample=0.4)})  # fmt: skip
    settings = Settings(policy="fifo", devices=2, locations=("harbour", CLOUD), controllers={"plan": {}}, stay=0.0)
    scheduler = Scheduler(settings)
    scheduler.handle(Submit((Job("cars", 1e5, BatchTarget(100), can=ELASTIC, sizes=(1,), resize_seconds=7.0),)), 0.0)
    scheduler.handle(Report("cars", 1, number=1, version=9, batches=1, busy=1.0), 0.0)
    needs = np.array([100.0])
    assert finish(scheduler.prospects(), needs).tolist() == pytest.approx([100.0])
    scheduler.handle(PlanGiven(plan_of(plan(demands).placement, 28800.0, 0.0)), 0.0)
    assert scheduler.last("cars").paused  # the night is without it
    assert finish(scheduler.prospects(), needs).tolist() == pytest.approx([28800.0 + 7.0 + 100.0])
    with pytest.raises(ValueError, match="are at locations"):
        scheduler.prospects().with_devices(3)


def test_devices_of_a_market_stay_and_it_is_said_that_it_is_not_played() -> None:
    scheduler = Scheduler(Settings(policy="edf", devices=3, controllers={"market": {"interval": 60.0}}))
    scheduler.handle(DevicesUnavailable((1, 2)), 0.0)
    jobs = tuple(Job(name, 500.0, BatchTarget(100), work=100.0) for name in "ab")
    scheduler.handle(Submit(jobs), 0.0)
    for name in "ab":
        scheduler.handle(Report(name, 1, number=1, version=9, batches=1, busy=1.0), 0.0)
    scheduler.handle(Ask("b", Asker.MARKET, devices=1, reason=Reason("no_nodes")), 0.0)
    prospects = scheduler.prospects()
    assert finish(prospects, np.full(2, 100.0)).tolist() == pytest.approx([100.0, 200.0])  # on one device
    assert prospects.assumed().kept == Kept(1, 0)
    scheduler.handle(Ask("b", Asker.MARKET, devices=0, reason=Reason("no_nodes")), 0.0)
    without = scheduler.prospects()
    assert without.assumed().kept == Kept(1, 1)
    assert finish(without, np.full(2, 100.0)).tolist() == pytest.approx([100.0, inf])
    with pytest.raises(ValueError, match="the market decides how many devices"):
        without.with_devices(4)
