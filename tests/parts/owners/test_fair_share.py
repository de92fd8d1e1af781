"""Fair share among owners: who may hold how many devices, under any policy."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import JobStatus, Verdict
from lightning_core.core.commands import Cancel, SetDevices
from lightning_core.core.events import DevicesUnavailable, Event, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.plans import Plan
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.owners.dealing import Dealing
from lightning_core.parts.owners.device_time import DeviceTime
from lightning_core.parts.owners.fair_share import Claims, allotments, fair_shares, max_min
from lightning_core.parts.owners.owner_terms import OwnerTerms, check_quotas, owner_terms
from lightning_core.parts.owners.owners import Owners
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.checks import saved_and_restored
from tests.driven import Curve, drive
from tests.examples import day_and_night, examples

ARGUMENTS: dict[str, dict[str, Any]] = {"fixed": {"shares": [1.0] * 60}}
SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})
ELASTIC = frozenset(Capability)


def job(name: str, owner: str, deadline: float = inf, batches: int = 10_000, devices: int = 1, **more: Any) -> Job:
    return Job(name, deadline, BatchTarget(batches), min_devices=devices, max_devices=devices, owner=owner, **more)


def pool(policy: str, devices: int, owners: dict[str, dict[str, Any]], **more: Any) -> Scheduler:
    return Scheduler(Settings(policy, ARGUMENTS.get(policy, {}), devices=devices, divider={"owners": owners}, **more))


def submit(scheduler: Scheduler, now: float, *jobs: Job) -> None:
    scheduler.handle(Submit(jobs), now)
    scheduler.check()


def held(scheduler: Scheduler) -> dict[str, float]:
    """Return the devices of each owner, counted by shares."""
    total: dict[str, float] = {}
    for one in scheduler.status():
        total[one.owner] = total.get(one.owner, 0.0) + one.share * len(one.devices)
    return {owner: round(devices, 9) for owner, devices in total.items()}


def status(scheduler: Scheduler, name: str) -> JobStatus:
    return scheduler.last(name)


def claims(demand: list[float], quota: list[float], weight: list[float], spent: tuple[int, ...] = ()) -> Claims:
    k = len(demand)
    return Claims(np.array(demand, float), np.array(quota, float), np.array(weight, float), np.isin(range(k), spent))


# ---------------------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("demand", "quota", "weight", "spent", "expected"),
    [
        ([9, 9], [0, 0], [1, 1], (), [4, 4]),
        ([9, 9], [0, 0], [3, 1], (), [6, 2]),
        ([1, 9], [0, 0], [3, 1], (), [1, 7]),  # what one does not use others may
        ([9, 9], [7, 0], [1, 1], (), [7, 1]),  # a quota above the share by weight
        ([9, 9], [3, 0], [1, 1], (), [4, 4]),  # and one below it takes nothing away
        ([2, 9], [7, 0], [1, 1], (), [2, 6]),  # a quota counts as far as it can be used
        ([9, 9, 9], [5, 3, 0], [1, 1, 1], (), [5, 3, 0]),
        ([9, 9, 9], [4, 1, 0], [1, 2, 1], (), [4, 8 / 3, 4 / 3]),
        ([9, 9, 9], [0, 0, 0], [1, 1, 1], (1,), [4, 0, 4]),  # a budget that is spent
        ([3, 9, 2], [0, 8, 0], [1, 1, 1], (1,), [3, 3, 2]),  # what no other owner can use
        ([9, 9, 1], [0, 0, 0], [1, 1, 1], (0, 1), [3.5, 3.5, 1]),
        ([0, 0], [3, 0], [1, 1], (), [0, 0]),
    ],
)
def test_shares_are_max_min_with_quotas_and_budgets(
    demand: list[float], quota: list[float], weight: list[float], spent: tuple[int, ...], expected: list[float]
) -> None:
    assert fair_shares(claims(demand, quota, weight, spent), 8.0).tolist() == pytest.approx(expected)


def test_quotas_that_lost_devices_cannot_keep_are_shared_like_devices() -> None:
    assert fair_shares(claims([9, 9], [6, 2], [1, 1]), 4.0).tolist() == pytest.approx([2, 2])


numbers = st.integers(0, 40).map(lambda n: n / 4)


@given(st.lists(st.tuples(numbers, numbers, st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 12))
@settings(max_examples=examples(300), deadline=None)
def test_max_min_is_within_its_bounds_leaves_nothing_and_lets_none_grow(
    rows: list[tuple[float, float, int]], devices: int
) -> None:
    demand, least, weight = (np.array(column, float) for column in zip(*rows, strict=True))
    least = np.minimum(least, demand)
    share = max_min(demand, least, weight, devices)
    fits = least.sum() <= devices
    assert share.sum() == pytest.approx(min(demand.sum(), devices))
    assert np.all(share <= demand + 1e-9)
    assert not fits or np.all(share >= least - 1e-9)
    level = share / weight
    for k in np.flatnonzero(share < (demand if fits else least) - 1e-6).tolist():  # it would take more
        gives = (share > least + 1e-6) if fits else share > 1e-6
        assert np.all(level[gives] <= level[k] + 1e-6)


def test_whole_devices_come_at_once_and_the_rest_in_turns() -> None:
    both = claims([9, 9], [0, 0], [1, 1])
    ones, half = np.ones(2), np.full(2, 2.5)
    assert allotments(both, half, ones, np.array([0.0, 1.0]), 5.0).tolist() == [2, 3]
    assert allotments(both, half, ones, np.array([1.0, 0.0]), 5.0).tolist() == [3, 2]
    assert allotments(claims([9, 9], [0, 0], [1, 1], (1,)), half, ones, np.array([0.0, 1.0]), 5.0).tolist() == [3, 2]
    # A job of three devices needs all of them in its owner's turn; one that asks for a part of a device has it.
    three = claims([3, 9, 9], [0, 0, 0], [1, 1, 1])
    turn = allotments(three, np.full(3, 5 / 3), np.array([3.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0]), 5.0)
    assert turn.tolist() == [3, 1, 1]
    later = allotments(three, np.full(3, 5 / 3), np.array([3.0, 1.0, 1.0]), np.array([-1.0, 0.0, 0.0]), 5.0)
    assert later.tolist() == [1, 2, 2]
    assert allotments(claims([0.4, 9], [0, 0], [1, 1]), np.array([0.4, 0.6]), ones, np.zeros(2), 1.0).tolist() == [
        0.4, pytest.approx(0.6),
    ]  # fmt: skip


def test_what_is_left_is_lent_by_weight_and_not_beyond_a_cap() -> None:
    n, of = 16, np.repeat([0, 1], 8)
    plan = Plan(np.arange(n), np.ones(n), np.full(n, np.nan), *(np.zeros(n, np.int64),) * 2, np.zeros((n, 2)))
    for caps, expected in (([inf, inf], [6.0, 2.0]), ([4.0, inf], [4.0, 4.0]), ([4.0, 3.0], [4.0, 3.0])):
        sizes, usable = np.ones(n, np.int64), np.ones(n, np.bool_)
        dealing = Dealing(plan, sizes, usable, of, np.ones(2, np.bool_), [], np.zeros((0, 2)))
        dealing.deal(np.zeros(2))
        dealing.lend(8.0, np.array([3.0, 1.0]), np.array(caps), np.zeros(2, np.bool_))
        assert dealing.held == expected
        assert sum(dealing.share) == sum(expected)


def test_what_an_owners_jobs_leave_of_a_device_is_theirs_too_and_not_lent() -> None:
    plan = Plan(np.arange(3), np.array([0.25, 0.25, 1.0]), np.full(3, np.nan), *(np.zeros(3, np.int64),) * 2,
                np.zeros((3, 2)))  # fmt: skip
    sizes, usable, of = np.ones(3, np.int64), np.ones(3, np.bool_), np.array([0, 0, 1])
    dealing = Dealing(plan, sizes, usable, of, np.ones(2, np.bool_), [], np.zeros((0, 2)))
    dealing.deal(np.array([1.0, 0.5]))
    dealing.lend(1.5, np.ones(2), np.full(2, inf), np.zeros(2, np.bool_))
    assert dealing.share == [0.5, 0.5, 0.5]
    assert dealing.held == [1.0, 0.5]


# --------------------------------------------------------------------------------------------------------- device time


def test_device_time_is_devices_times_seconds_and_is_renewed() -> None:
    time, terms = DeviceTime(20.0), [OwnerTerms(device_hours=1.0, per=7200.0), OwnerTerms()]
    time.add("ann")
    time.add("bob")
    time.held, time.share = np.array([2.0, 0.5]), np.array([1.0, 0.0])
    time.advance(terms, 100.0)
    assert time.used.tolist() == [200.0, 50.0]
    assert time.owed.tolist() == [-100.0, 0.0]  # bob has no use for a share
    assert time.used_until(terms, 110.0).tolist() == [220.0, 55.0]
    time.advance(terms, 7300.0)
    assert time.used.tolist() == [200.0, 3650.0]  # ann's is that since 7,200 s
    assert time.owed.tolist() == [-200.0, 0.0]  # ten turns at most
    time.advance(terms, 7300.0)
    assert time.used.tolist() == [200.0, 3650.0]


def test_what_was_long_ago_does_not_count() -> None:
    time = DeviceTime(20.0)
    for name in ("lags", "is_ahead"):
        time.add(name)
    time.held, time.share = np.array([0.0, 3.0]), np.array([2.0, 1.0])
    time.advance([OwnerTerms()] * 2, 1e6)
    assert time.owed.tolist() == [200.0, -200.0]  # ten turns at most


def test_usage_is_the_integral_of_what_is_held() -> None:
    scheduler = pool("edf", 3, {"ann": {}})
    submit(scheduler, 0.0, job("a", "ann", batches=100), job("b", "bob", devices=2, batches=50))
    scheduler.handle(Report("a", 1, 1, 1, 10, 10.0), 10.0)
    scheduler.handle(Report("b", 1, 1, 1, 50, 25.0), 25.5)  # it has ended
    scheduler.handle(Report("a", 1, 2, 1, 100, 60.0), 60.25)
    scheduler.handle(Tick(), 900.0)
    used = {one["owner"]: one["device_hours"] * 3600 for one in scheduler.shares()}
    assert used == {"ann": pytest.approx(60.25), "bob": pytest.approx(51.0)}


def test_an_owner_whose_budget_is_spent_has_what_no_other_owner_can_use() -> None:
    scheduler = pool("edf", 2, {"ann": {"device_hours": 1.0, "per": 4 * 3600.0}}, stay=0.0)
    submit(scheduler, 0.0, job("a1", "ann"), job("a2", "ann"))
    scheduler.handle(Tick(), 1799.0)
    assert "budget" not in str(status(scheduler, "a1").grant_reason)
    scheduler.handle(Tick(), 1800.0)
    assert held(scheduler) == {"ann": 2.0}
    assert str(status(scheduler, "a1").grant_reason) == (
        "its owner's budget of 1 device-hours is spent: uses devices that no other owner can use"
    )
    submit(scheduler, 1801.0, job("b", "bob"))
    assert held(scheduler) == {"ann": 1.0, "bob": 1.0}
    submit(scheduler, 1802.0, job("c", "carl"))
    assert held(scheduler) == {"ann": 0.0, "bob": 1.0, "carl": 1.0}
    assert str(status(scheduler, "a1").grant_reason) == (
        "its owner's budget of 1 device-hours is spent: waiting for devices that no other owner can use; the budget "
        "is renewed in 3h29m"
    )
    scheduler.handle(Tick(), 4 * 3600.0)
    assert scheduler.shares()[0]["device_hours"] == 0.0
    scheduler.handle(Tick(), 4 * 3600.0 + 20.0)  # its turn
    assert held(scheduler)["ann"] == 1.0


# -------------------------------------------------------------------------------------------------------------- pools


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_borrowed_device_comes_back_with_the_next_round(policy: str) -> None:
    scheduler = pool(policy, 4, {"ann": {"devices": 2}, "bob": {}}, stay=0.0)
    submit(scheduler, 0.0, *(job(f"b{n}", "bob", 2000.0 + n) for n in range(6)))
    assert held(scheduler) == {"bob": 4.0}
    submit(scheduler, 100.0, job("a", "ann", 4000.0))
    assert held(scheduler) == {"ann": 1.0, "bob": 3.0}
    submit(scheduler, 101.0, job("a2", "ann"), job("a3", "ann"))
    assert held(scheduler) == {"ann": 2.0, "bob": 2.0}
    [ann] = [one for one in scheduler.shares() if one["owner"] == "ann"]
    assert (ann["held"], ann["quota"], ann["borrowed"], ann["jobs"]) == (2.0, 2, 0.0, 3)
    assert json.loads(json.dumps(scheduler.shares(), allow_nan=False)) == scheduler.shares()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_cap_holds_though_devices_stay_idle(policy: str) -> None:
    scheduler = pool(policy, 4, {"*": {"max_devices": 1}})
    submit(scheduler, 0.0, *(job(f"b{n}", "bob", 2000.0 + n) for n in range(6)))
    assert held(scheduler) == {"bob": 1.0}
    reasons = {str(one.grant_reason) for one in scheduler.status() if not one.share}
    if policy in ("fifo", "edf", "rr", "fixed"):  # others give each job a part of the device, or leave some out
        assert reasons == {"waiting for other jobs of its owner, which may have 1 device at most"}
    submit(scheduler, 1.0, job("a", "ann", 2000.0))
    assert held(scheduler) == {"ann": 1.0, "bob": 1.0}


def test_one_that_needs_more_devices_than_its_owner_may_have_is_refused() -> None:
    scheduler = pool("edf", 4, {"ann": {"max_devices": 2, "devices": 1}})
    submit(scheduler, 0.0, job("a", "ann", devices=3), Job("b", inf, BatchTarget(9), max_devices=4, owner="ann"))
    assert status(scheduler, "a").verdict is Verdict.CANCELLED
    assert str(status(scheduler, "a").reason) == "needs 3 devices, but its owner may have 2 at most"
    assert status(scheduler, "b").devices == (0,)  # as many as its owner can count on


def test_a_job_that_can_be_resized_stays_within_its_owners_cap() -> None:
    scheduler = pool("edf", 4, {"ann": {"max_devices": 2}})
    wide = Job("wide", inf, BatchTarget(9), max_devices=4, can=ELASTIC, sizes=(3, 4), owner="ann")
    submit(scheduler, 0.0, wide, replace(wide, name="a", sizes=(1, 2, 4)))
    assert str(status(scheduler, "wide").reason) == "needs 3 devices, but its owner may have 2 at most"
    scheduler.handle(SetDevices("a", 4), 1.0)
    scheduler.check()
    assert len(status(scheduler, "a").devices) == 2


def test_weights_divide_a_device_in_turns() -> None:
    scheduler = pool("edf", 1, {"ann": {"weight": 3.0}})
    submit(scheduler, 0.0, *(job(f"{owner}{n}", owner) for owner in ("ann", "bob") for n in range(3)))
    turns, had = list[str](), {"ann": 0.0, "bob": 0.0}
    for now in range(1, 801):
        [holder] = {one.owner for one in scheduler.status() if one.share}
        had[holder] += 1.0
        turns += [holder] if turns[-1:] != [holder] else []
        scheduler.handle(Tick(), float(now))
        scheduler.check()
    assert had["ann"] == pytest.approx(600.0, abs=40.0)
    assert len(turns) < 800.0 / 20.0


@pytest.mark.parametrize("policy", day_and_night(["edf", "fixed"], ["fixed"]))
def test_a_gang_beyond_its_owners_share_has_its_turn(policy: str) -> None:
    """Devices that it cannot use are lent, also by a policy that gives away nothing that is left over."""
    scheduler = pool(policy, 3, {"*": {}})
    submit(scheduler, 0.0, job("gang", "ann", 9e5, devices=2), *(job(f"b{n}", "bob", 9e5) for n in range(5)))
    had = {"ann": 0.0, "bob": 0.0}
    for now in range(1, 801):
        for owner, devices in held(scheduler).items():
            had[owner] += devices
        assert sum(held(scheduler).values()) == 3.0
        scheduler.handle(Tick(), float(now))
        scheduler.check()
    assert had["ann"] == pytest.approx(1200.0, abs=100.0)


def test_scripts_on_one_of_several_devices_share_it() -> None:
    scheduler = pool("edf", 2, {"bob": {"weight": 3.0}})
    mine = job("a", "ann", can=SCRIPT, device=0)
    submit(scheduler, 0.0, mine, job("b", "bob", can=SCRIPT, device=0), job("b2", "bob", can=SCRIPT, device=1))
    assert {one.name: one.share for one in scheduler.status()} == {"a": 0.25, "b": 0.75, "b2": 1.0}


def test_a_job_that_is_late_in_its_owners_share_is_at_risk_and_says_so() -> None:
    scheduler = pool("edf", 2, {"*": {}}, beside="never")
    flood = [job(f"b{n}", "bob", 300.0) for n in range(2)]
    submit(scheduler, 0.0, job("a1", "ann", 100.0, 500), job("a2", "ann", 110.0, 800), *flood)
    for name in ("a1", "a2"):
        scheduler.handle(Report(name, 1, 1, 1, 10, 1.0), 1.0)
    scheduler.handle(Tick(), 2.0)
    assert status(scheduler, "a1").verdict is Verdict.FEASIBLE
    assert status(scheduler, "a2").verdict is Verdict.AT_RISK
    assert str(status(scheduler, "a2").reason) == "forecast to finish 20s late in its owner's share of 1 device"
    assert str(status(scheduler, "a2").grant_reason) == "waiting for its turn in its owner's fair share, 1 of 2 devices"
    for one in flood:
        scheduler.handle(Cancel(one.name), 3.0)
    assert status(scheduler, "a2").verdict is Verdict.FEASIBLE
    assert str(status(scheduler, "a2").reason).startswith("on time with ")


def test_a_job_that_is_left_out_within_its_owners_share_says_so() -> None:
    scheduler = pool("lara", 2, {"*": {}})
    submit(scheduler, 0.0, *(job(f"a{n}", "ann", 100.0, 800) for n in range(2)), job("b", "bob"))
    for name in ("a0", "a1"):
        scheduler.handle(Report(name, 1, 1, 1, 10, 1.0), 1.0)
    scheduler.handle(Tick(), 2.0)
    assert status(scheduler, "a1").verdict is Verdict.FEASIBLE
    assert str(status(scheduler, "a0").reason) == "not expected in time in its owner's share of 1 device"


def test_a_job_that_its_policy_leaves_out_does_not_wait_for_its_owners_share() -> None:
    scheduler = pool("triage", 4, {"*": {}})
    jobs = [job(f"{owner}{n}", owner, 1000.0 + n) for owner in ("ann", "bob") for n in range(3)]
    submit(scheduler, 0.0, *jobs, job("hopeless", "ann", 20.0, 9000))
    scheduler.handle(Report("hopeless", 1, 1, 1, 50, 5.0), 5.0)
    scheduler.handle(Tick(), 6.0)
    scheduler.handle(Tick(), 7.0)
    assert (
        status(scheduler, "ann2").grant_reason.code
        == status(scheduler, "bob2").grant_reason.code
        == "owners.fair_share"
    )
    assert status(scheduler, "hopeless").grant_reason.code == "not_scheduled"


def test_a_job_that_is_late_on_all_that_its_owner_may_have_is_infeasible_and_says_so() -> None:
    elastic = Job("a", 60.0, BatchTarget(100), max_devices=4, can=ELASTIC, sizes=(1, 2, 4), throughputs=(1.0, 1.9, 3.6),
                  owner="ann")  # fmt: skip
    for cap, verdict in ((4, Verdict.FEASIBLE), (1, Verdict.INFEASIBLE)):
        scheduler = pool("decor", 4, {"ann": {"max_devices": cap}})
        submit(scheduler, 0.0, elastic)
        assert status(scheduler, "a").verdict is verdict
    words = str(status(scheduler, "a").reason)
    assert words.startswith("needs at least 95s ")
    assert words.endswith("on the 1 device that its owner may have, and has 60.0s")


def test_jobs_of_unknown_owner_are_those_of_one() -> None:
    scheduler = pool("edf", 4, {"*": {}})
    submit(scheduler, 0.0, *(job(f"x{n}", "") for n in range(9)), *(job(f"a{n}", "ann") for n in range(9)))
    assert held(scheduler) == {"": 2.0, "ann": 2.0}


BY_WORK = sorted(set(POLICIES) - {"uniform", "rr", "fixed", "successive_halving"})


@pytest.mark.parametrize("policy", day_and_night(BY_WORK, ["decor", "laira", "triage"]))
def test_a_deadline_that_fits_a_quota_is_met_beside_a_flood(policy: str) -> None:
    """Under every policy that goes by deadlines or by work; the others share their owner's devices over time."""

    def played(name: str, owner: str, deadline: float, batches: int) -> SimulatedJob:
        return SimulatedJob(job(name, owner, deadline, batches), [batches], [1.0], 10.0)

    flood = [played(f"flood{n}", "bob", 50.0 + n, 200) for n in range(20)]
    mine = played("mine", "ann", 70.0, 300)
    jobs = {
        one.name: one
        for one in Simulation(
            Settings(policy, devices=2, divider={"owners": {"ann": {"devices": 1}, "bob": {}}}), [*flood, mine]
        )
        .run()
        .summary.jobs
    }
    assert jobs["mine"].verdict is Verdict.MET
    lost = {one.name: one for one in Simulation(Settings(policy, devices=2), [*flood, mine]).run().summary.jobs}
    assert policy in ("decor", "laira", "lara") or lost["mine"].verdict is Verdict.MISSED


# ------------------------------------------------------------------------------------------------------------ stories


POLICY = st.sampled_from(sorted(POLICIES))
OWNERS = ("ann", "bob", "carl", "")


@st.composite
def terms(draw: st.DrawFn, devices: int) -> dict[str, dict[str, Any]]:
    left, made = devices, dict[str, dict[str, Any]]()
    for name in ("ann", "bob", "*"):
        if draw(st.booleans()) or not made:
            quota = 0 if name == "*" else draw(st.integers(0, left))
            left -= quota
            made[name] = {"devices": quota, "weight": draw(st.sampled_from([1.0, 1.0, 3.0]))}
            if draw(st.integers(0, 2)) == 0:
                made[name]["max_devices"] = draw(st.integers(max(quota, 1), devices))
            if draw(st.integers(0, 3)) == 0:
                made[name]["device_hours"] = draw(st.sampled_from([0.0, 0.01]))
    return made


@st.composite
def stories(draw: st.DrawFn) -> tuple[Settings, list[tuple[float, Event]]]:
    """Jobs of several owners come, train, end and lose their workers, on a pool that may lose a device."""
    devices, policy = draw(st.integers(1, 5)), draw(POLICY)
    owners, stay = draw(terms(devices)), draw(st.sampled_from([0.0, 5.0]))
    chosen = Settings(policy, ARGUMENTS.get(policy, {}), devices=devices, divider={"owners": owners}, stay=stay)
    now, count, events = 0.0, 0, list[tuple[float, Event]]()
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.integers(0, 9))
        if kind < 5 or not count:
            made = []
            for _ in range(draw(st.integers(1, 4))):
                size = draw(st.sampled_from([1, 1, 1, 2]))
                deadline = draw(st.sampled_from([inf, 40.0, 400.0, 4000.0]))
                made.append(job(f"j{count}", draw(st.sampled_from(OWNERS)), deadline, 500, min(size, devices)))
                count += 1
            events.append((now, Submit(tuple(made))))
        elif kind == 5:
            events.append((now, WorkerExited(f"j{draw(st.integers(0, count - 1))}", 1, ExitCause.LOST)))
        elif kind == 6 and devices > 1:
            events.append((now, DevicesUnavailable(tuple(range(draw(st.integers(0, 1)))))))
        elif kind == 7:
            done = draw(st.sampled_from([20, 500]))
            events.append((now, Report(f"j{draw(st.integers(0, count - 1))}", 1, len(events), 1, done, done / 20.0)))
        else:
            events.append((now, Tick()))
        now += draw(st.sampled_from([0.0, 1.0, 1.0, 7.0, 30.0]))
    return chosen, [*events, (now + 100.0, Tick()), (now + 200.0, Tick())]


def waiting(scheduler: Scheduler) -> list[Job]:
    """Return the jobs that hold nothing and may train now."""
    closed = ("recovering", "not_begun", "device_gone")
    found = [one for one in scheduler.status() if one.finished_at is None and not one.share]
    return [scheduler.job(one.name) for one in found if one.grant_reason.code not in closed]


@given(stories())
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_pool_keeps_quotas_and_caps_and_leaves_no_device_idle(
    story: tuple[Settings, list[tuple[float, Event]]],
) -> None:
    chosen, events = story
    scheduler, twin = Scheduler(chosen), Scheduler(chosen)
    for number, (now, event) in enumerate(events):
        before = max(scheduler.now, now)
        answers = scheduler.handle(event, now)
        scheduler.check()  # no owner is above its cap
        assert str(answers) == str(twin.handle(event, now))
        twin = saved_and_restored(twin, Scheduler(chosen), ("answers", "accepted", "_status", "rounds"))
        if number < len(events) - 1 or before > now:
            continue
        # The last round is long after all that has moved: nothing is settling.
        devices, has = chosen.devices - len(scheduler.unavailable_devices), held(scheduler)
        waits = waiting(scheduler)
        if chosen.policy in ("decor", "fixed"):  # they leave devices unused that no plan asks for
            continue
        for one in waits:
            room = Owners(chosen.divider["owners"]).terms_of(one.owner).cap - has.get(one.owner, 0.0)
            free = devices - sum(has.values())
            assert min(room, free) < one.min_devices - 1e-6, f"{one.name} waits beside {free} free devices"
        spent = {
            one["owner"]
            for one in scheduler.shares()
            if one["budget"] is not None and one["device_hours"] >= one["budget"]
        }
        for owner in {one.owner for one in waits if one.min_devices == 1} - spent:
            quota = Owners(chosen.divider["owners"]).terms_of(owner).devices
            assert has[owner] >= min(quota, devices - 1) - 1e-6 or devices < chosen.devices


@given(st.integers(1, 4), st.sampled_from(sorted(set(POLICIES) - {"fixed", "decor"})), st.data())
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.nightly
def test_all_have_their_share_over_time(devices: int, policy: str, data: st.DataObject) -> None:
    owners = data.draw(terms(devices))
    for one in owners.values():
        one.pop("device_hours", None)
    scheduler = pool(policy, devices, owners)
    count = {name: data.draw(st.integers(0, 6)) for name in ("ann", "bob", "carl")}
    submit(scheduler, 0.0, *(job(f"{name}{n}", name, 9e5, 10**7) for name, many in count.items() for n in range(many)),
           job("last", "dora", 9e5, 10**7))  # fmt: skip
    count["dora"] = 1
    had, names, seconds = dict.fromkeys(count, 0.0), list(count), 300
    for now in range(1, seconds + 1):
        for owner, now_held in held(scheduler).items():
            had[owner] += now_held
        scheduler.handle(Tick(), float(now))
    each = [Owners(owners).terms_of(name) for name in names]
    demand = [min(count[name], one.cap) for name, one in zip(names, each, strict=True)]
    share = fair_shares(claims(demand, [one.devices for one in each], [one.weight for one in each]), devices)
    for name, fair in zip(names, share.tolist(), strict=True):
        assert had[name] >= fair * seconds - 3 * scheduler.settings.turn, (name, had, share)


def test_a_journal_of_owners_is_replayed_from_its_snapshots_too(tmp_path: Path) -> None:
    owners = {"ann": {"devices": 1, "device_hours": 0.01}, "*": {"weight": 2.0, "max_devices": 2}}
    chosen = Settings("laira", devices=3, divider={"owners": owners})
    jobs = {
        at: [
            (job(f"{owner}{at:.0f}{n}", owner, 90.0, 900), Curve(throughput=20.0)) for owner in OWNERS for n in range(2)
        ]
        for at in (0.0, 20.0)
    }
    path = tmp_path / "journal.db"
    driven = drive(path, chosen, jobs, 60.0)
    with Journal.open(path, read_only=True) as journal:
        assert journal.settings() == Settings(**chosen.to_dict())
        again = replay(journal)
    assert again.scheduler.shares() == driven.shares()
    assert again.scheduler.state() == driven.state()


# -------------------------------------------------------------------------------------------------------- one owner


def test_a_pool_says_what_each_owner_has_and_may_have() -> None:
    terms = {"weight": 2.0, "devices": 1, "max_devices": 3, "device_hours": 8.0, "per": 7200.0}
    scheduler = pool("edf", 4, {"ann": terms})
    submit(scheduler, 0.0, job("a", "ann"), job("b", "ann"), job("c", "bob"))
    scheduler.handle(Tick(), 1800.0)
    ann, bob = scheduler.shares()
    assert ann == {
        "owner": "ann", "jobs": 2, "held": 2.0, "weight": 2.0, "quota": 1, "borrowed": 1.0, "max_devices": 3,
        "device_hours": 1.0, "budget": 8.0, "per": 7200.0,
    }  # fmt: skip
    assert bob == {
        "owner": "bob", "jobs": 1, "held": 1.0, "weight": 1.0, "quota": 0, "borrowed": 1.0, "max_devices": None,
        "device_hours": 0.5, "budget": None, "per": None,
    }  # fmt: skip
    again = Scheduler(scheduler.settings)
    again.restore(json.loads(json.dumps(scheduler.state())))
    assert again.shares() == [ann, bob]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_jobs_of_one_owner_are_planned_as_without_owners(policy: str) -> None:
    alone, among = pool(policy, 2, {}), pool(policy, 2, {"ann": {"devices": 1, "weight": 2.0}})
    jobs = [job(f"a{n}", "ann", 30.0 + 10 * n, 200 + n) for n in range(6)]
    for scheduler in (alone, among):
        submit(scheduler, 0.0, *jobs)
    for now in range(1, 40):
        report = Report(f"a{now % 6}", 1, now, 1, 3 * now, float(now))
        assert str(alone.handle(report, float(now))) == str(among.handle(report, float(now)))
        assert str(alone.handle(Tick(), now + 0.5)) == str(among.handle(Tick(), now + 0.5))


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ({"ann": {"weight": 0}}, "owner 'ann': weight must be positive and finite, got 0"),
        ({"ann": {"weight": 1e10}}, r"owner 'ann': weight must be 1e-09 to 1e\+09, got 10000000000.0"),
        ({"ann": {"devices": 2000}}, "owner 'ann': devices must be at most 1,024, got 2000"),
        ({"ann": {"max_devices": 2000}}, "owner 'ann': max_devices must be at most 1,024, got 2000"),
        ({"ann": {"device_hours": 1e10}}, "owner 'ann': device_hours must be at most 1,000,000,000, got"),
        ({"ann": {"devices": -1}}, "owner 'ann': devices must be at least 0, got -1"),
        ({"ann": {"devices": 3, "max_devices": 2}}, "at least the quota of 3 devices, got 2"),
        ({"ann": {"per": 7200.0}}, "per is the period of device_hours, which are missing, got 7200.0"),
        ({"ann": {"device_hours": -1}}, "device_hours must be at least 0, got -1"),
        ({"ann": {"device_hours": 1, "per": 60.0}}, "per must be at least 3600 seconds, got 60.0"),
        ({"ann": {"devices": 3}, "bob": {"devices": 2}}, "at most the pool's 4 devices, got 5"),
        ({"*": {"devices": 1}}, r"owner '\*' must have no quota, got 1 devices"),
        ({"a b": {}}, "invalid name of a person"),
        ({"ann": {"wieght": 1}}, "owner 'ann': .*wieght"),
    ],
)
def test_terms_that_cannot_be_are_refused(owners: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_quotas(owner_terms(owners), 4)
    with pytest.raises(ValueError, match=message):
        Settings(devices=4, divider={"owners": owners})


def test_a_pool_has_no_more_owners_than_it_can_watch() -> None:
    with pytest.raises(ValueError, match="the number of owners must be at most 1,000, got 1001"):
        Settings(divider={"owners": {f"o{n}": {} for n in range(1001)}})
