"""Futures before and after a change: against what can be reckoned by hand, and against the whole simulation."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from lightning_core.core.commands import Pause, SetDevices
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.reported import MemoryUse
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.asking.prospects import Assumed, Prospects, Resized
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.simulation.what_if import Chances, Change, chances, finish, refusal

ELASTIC = frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE})


def known(settings: Settings, jobs: list[Job], throughputs: list[float]) -> Scheduler:
    """A scheduler that has heard of one batch of each job, so that it knows how fast each is."""
    scheduler = Scheduler(settings)
    scheduler.handle(Submit(tuple(jobs)), 0.0)
    for job, throughput in zip(jobs, throughputs, strict=True):
        scheduler.handle(Report(job.name, 1, number=1, version=9, batches=1, busy=1 / throughput), 0.0)
    scheduler.handle(Tick(), 0.0)
    return scheduler


def asked(scheduler: Scheduler, change: Change, futures: int = 8) -> tuple[dict[str, float], dict[str, float]]:
    found: Chances = chances(scheduler.prospects(), change, lambda played: played < futures)
    assert found.futures == futures
    return dict(zip(found.names, found.before, strict=True)), dict(zip(found.names, found.after, strict=True))


def two_jobs(policy: str = "edf") -> Scheduler:
    jobs = [Job("a", 150.0, BatchTarget(100)), Job("b", 260.0, BatchTarget(100)), Job("free", inf, BatchTarget(50))]
    return known(Settings(policy=policy), jobs, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("policy", ["edf", "triage", "fifo", "laira", "rr"])
def test_nothing_differs_without_a_change(policy: str) -> None:
    before, after = asked(two_jobs(policy), Change(), 3)
    assert before == after
    assert set(before) == {"a", "b"}


def test_two_jobs_cannot_both_have_the_device_by_the_sooner_deadline() -> None:
    scheduler = two_jobs()
    assert asked(scheduler, Change("b", 150.0)) == ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0})
    assert asked(scheduler, Change("b", 150.0, devices=2))[1] == {"a": 1.0, "b": 1.0}
    assert scheduler.last("b").deadline == 260.0  # it was thought of, and not done


def test_fewer_devices_and_no_deadline_are_changes_too() -> None:
    jobs = [Job(name, 150.0, BatchTarget(100)) for name in "abc"]
    scheduler = known(Settings(policy="edf", devices=3), jobs, [1.0] * 3)
    before, after = asked(scheduler, Change(devices=1))
    assert (sum(before.values()), sum(after.values())) == (3.0, 1.0)
    before, after = asked(scheduler, Change("a", inf))
    assert np.isnan(after["a"])
    assert before["a"] == after["b"] == after["c"] == 1.0


def test_a_job_of_which_nothing_is_known_is_taken_to_be_like_the_others() -> None:
    jobs = [Job("a", 250.0, BatchTarget(100)), Job("new", 1000.0, LossTarget("loss", 0.1))]
    scheduler = known(Settings(policy="edf"), jobs, [1.0, 1.0])
    found = chances(scheduler.prospects(), Change(), lambda played: played < 8)
    assert found.known == [True, False]
    assert found.before == [1.0, 1.0]
    with pytest.raises(ValueError, match="nothing is known yet"):
        chances(Scheduler(Settings()).prospects(), Change(), lambda _: False)


def test_a_deadline_at_the_middle_of_a_forecast_is_met_in_half_of_the_futures() -> None:
    scheduler = known(Settings(policy="edf"), [Job("a", 1e6, LossTarget("loss", 0.5))], [10.0])
    rng = np.random.default_rng(1)
    cells = [Cell(k, 10 * k, 2.0 * (10 * k) ** -0.2 * float(np.exp(rng.normal(0, 0.03)))) for k in range(1, 40)]
    scheduler.handle(Report("a", 1, number=2, version=9, batches=390, busy=39.0, cells=tuple(cells)), 39.0)
    scheduler.handle(Tick(), 40.0)
    early, likely, late = scheduler.last("a").finish or (inf, inf, inf)
    parts = [asked(scheduler, Change("a", deadline), 40)[1]["a"] for deadline in (early, likely, late)]
    assert parts == pytest.approx([0.15, 0.5, 0.85], abs=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_the_whole_simulation_where_all_work_is_known(seed: int) -> None:
    """Futures leave out much; where nothing of that is there, the same jobs must be in time."""
    rng = np.random.default_rng(seed)
    work = rng.integers(20, 200, 12)
    jobs = [Job(f"j{k}", float(rng.uniform(60, 900)), BatchTarget(int(n)), on_miss=OnMiss.STOP)
            for k, n in enumerate(work)]  # fmt: skip
    settings = Settings(policy="edf", devices=2, stay=0.0)
    outcome = Simulation(settings, [SimulatedJob(job, [1], [1.0], 1.0) for job in jobs]).run()
    really = {job.name: float(str(job.verdict) == "met") for job in outcome.jobs}
    before, _ = asked(known(settings, jobs, [1.0] * len(jobs)), Change(), 10)
    told = [name for name, chance in before.items() if chance in (0.0, 1.0)]
    assert len(told) >= 6  # work that is known varies by some per cent, so some are not certain
    wrong = [name for name in told if before[name] != really[name]]
    assert len(wrong) <= 1


def test_a_paused_job_is_not_served() -> None:
    scheduler = two_jobs()
    scheduler.handle(Pause("a"), 0.0)
    assert asked(scheduler, Change())[0] == {"a": 0.0, "b": 1.0}


def test_what_cannot_be_simulated_is_refused() -> None:
    scheduler = two_jobs()
    with pytest.raises(KeyError):
        asked(scheduler, Change("unknown", 10.0))
    with pytest.raises(ValueError, match="devices must be 1 to 4096, got 0"):
        asked(scheduler, Change(devices=0))
    assert refusal(Settings()) == ""
    assert "calendar" in refusal(Settings(controllers={"calendar": {"closed": ["not between 08:00 and 18:00"]}}))


def owned(owners: dict[str, dict[str, float]], devices: int, *jobs: tuple[str, str, float]) -> Scheduler:
    """A pool of jobs of a hundred seconds, each with its name, its owner and its deadline."""
    settings = Settings(policy="edf", devices=devices, owners=owners)
    made = [Job(name, deadline, BatchTarget(100), owner=owner) for name, owner, deadline in jobs]
    return known(settings, made, [1.0] * len(made))


def test_a_quota_holds_in_the_futures() -> None:
    jobs = ("a1", "ann", 140.0), ("a2", "ann", 150.0), ("b", "bob", 160.0)
    assert asked(owned({}, 2, *jobs), Change())[0] == {"a1": 1.0, "a2": 1.0, "b": 0.0}
    before, after = asked(owned({"bob": {"devices": 1}}, 2, *jobs), Change(devices=3))
    assert before == {"a1": 1.0, "a2": 0.0, "b": 1.0}
    assert after == {"a1": 1.0, "a2": 1.0, "b": 1.0}
    with pytest.raises(ValueError, match="quotas of all owners must be at most the pool's 1 devices, got 2"):
        asked(owned({"bob": {"devices": 2}}, 2, *jobs), Change(devices=1))


def test_a_cap_and_a_spent_budget_hold_in_the_futures() -> None:
    jobs = ("a1", "ann", 140.0), ("a2", "ann", 150.0)
    assert asked(owned({"ann": {"max_devices": 1}}, 2, *jobs), Change())[0] == {"a1": 1.0, "a2": 0.0}
    both = ("a", "ann", 140.0), ("b", "bob", 160.0)
    assert asked(owned({"ann": {"device_hours": 0.0}}, 1, *both), Change())[0] == {"a": 0.0, "b": 1.0}


def test_owners_take_turns_in_the_futures() -> None:
    """Each has a third of the device, so the first jobs of all are over before anyone's second, whatever is due."""
    owners = {name: {"weight": 1.0} for name in ("ann", "bob", "eve")}
    jobs = [(f"{name}{k}", name, 500.0 + 10 * k + 200 * at) for at, name in enumerate(owners) for k in range(2)]
    ends = finish(owned(owners, 1, *jobs).prospects(), np.full(6, 100.0))
    first = dict(zip([name for name, *_ in jobs], ends.tolist(), strict=True))
    assert max(first["ann0"], first["bob0"], first["eve0"]) < 390.0


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
        return chances(scheduler.prospects(), Change(), lambda _: False).assumed

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
    before, after = asked(two_sizes(), Change("a", own=2))
    assert (before, after) == ({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0})
    before, after = asked(two_sizes(), Change("a", 175.0, own=3))  # it takes two of them, and 167 s
    assert after == {"a": 1.0, "b": 1.0}


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
