"""The benchmark of one node under a deadline: the published rules, pinned one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.market.late.hour_slots import HourSlots, hours_seen
from benchmarks.market.late.late_baselines import (
    Greedy,
    LifetimeOracle,
    OnDemand,
    UniformProgress,
    UniformProgressCode,
    must_run,
)
from benchmarks.market.late.node_play import Job, Kind, Policy, State, on_demand_cost, play
from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.spot_policies import MaxSpot
from tests.benchmarks.test_late_play import market

HOUR = 3600.0
# The deadline is twice the work, so that an even pace is half a second a second.
JOB = Job(48 * HOUR, 96 * HOUR, 720.0, 600.0, spot_price=0.25)
NONE, SPOT, ON_DEMAND = Kind


def state(held: Kind, done: float, *, spot: bool, elapsed: float = 20 * HOUR, job: Job = JOB) -> State:
    return State(job, elapsed, done, 0.0, held, np.array([spot]))


UP: tuple[Policy, Policy] = (UniformProgress(), UniformProgressCode())


@pytest.mark.parametrize("policy", UP)
def test_an_idle_job_takes_spot_nodes_and_is_on_demand_only_if_it_is_behind(policy: Policy) -> None:
    even = 10 * HOUR
    assert policy.decide(state(NONE, even - 5 * HOUR, spot=True)) is SPOT
    assert policy.decide(state(NONE, even - 1, spot=False)) is ON_DEMAND
    assert policy.decide(state(NONE, even, spot=False)) is NONE


@pytest.mark.parametrize("policy", [*UP, Greedy(), LifetimeOracle()])
def test_a_spot_node_is_kept(policy: Policy) -> None:
    assert policy.decide(state(SPOT, 30 * HOUR, spot=True)) is SPOT
    assert policy.decide(state(SPOT, 0.0, spot=True)) is SPOT
    # Even where the safety net would take an on-demand node if there were none.
    assert policy.decide(state(SPOT, 48 * HOUR - 600, spot=True, elapsed=96 * HOUR - 1800)) is SPOT


def test_on_demand_a_job_stays_until_it_is_two_start_ups_ahead() -> None:
    text, code = UP
    enough = (20 * HOUR + 2 * 720) / 2
    for policy in UP:
        assert policy.decide(state(ON_DEMAND, enough - 1, spot=True)) is ON_DEMAND
        assert policy.decide(state(ON_DEMAND, enough + 1, spot=True)) is SPOT
        assert policy.decide(state(ON_DEMAND, enough - 1, spot=False)) is ON_DEMAND
    # Then the text idles without a spot node, and the code does not. They differ where the job is exactly as far, too.
    assert text.decide(state(ON_DEMAND, enough + 1, spot=False)) is NONE
    assert code.decide(state(ON_DEMAND, enough + 1, spot=False)) is ON_DEMAND
    assert text.decide(state(ON_DEMAND, enough, spot=True)) is SPOT
    assert code.decide(state(ON_DEMAND, enough, spot=True)) is ON_DEMAND


@pytest.mark.parametrize(
    ("start_up", "slack"),
    [
        (720.0, 1440.0),  # two start-ups
        (72.0, 672.0),  # one start-up after a tick of idling
    ],
)
def test_the_safety_net_leaves_time_for_two_start_ups_or_a_tick_and_one(start_up: float, slack: float) -> None:
    job = replace(JOB, start_up=start_up)
    for more, expected in ((0.0, False), (-1.0, True)):
        at = state(NONE, 40 * HOUR, spot=True, elapsed=88 * HOUR - slack - more, job=job)
        assert must_run(at) is expected
        for policy in (Greedy(), UniformProgress(), LifetimeOracle()):
            if isinstance(policy, LifetimeOracle):
                policy.reveal(np.ones(job.ticks, np.bool_))
            assert policy.decide(at) is (ON_DEMAND if expected else SPOT)


def test_the_safety_net_of_the_code_counts_whole_ticks() -> None:
    code = UniformProgressCode()
    # An hour of work and two start-ups of 720 s are 8.4 ticks: it waits while ten are left, and not with nine.
    for ticks, idle, spot in ((10, SPOT, SPOT), (9, ON_DEMAND, SPOT), (8, ON_DEMAND, SPOT)):
        elapsed = 96 * HOUR - ticks * 600
        assert code.decide(state(NONE, 47 * HOUR, spot=True, elapsed=elapsed)) is idle
        assert code.decide(state(SPOT, 47 * HOUR, spot=True, elapsed=elapsed)) is spot
    # A spot node that has not started yet is given up once there is time for one start-up only.
    starting = replace(state(SPOT, 47 * HOUR, spot=True, elapsed=96 * HOUR - 8 * 600), start_up=120.0)
    assert code.decide(starting) is ON_DEMAND


def test_greedy_waits_for_the_safety_net_and_then_stays_on_demand() -> None:
    job = Job(3000.0, 6000.0, 720.0, 600.0)
    outcome = play(Greedy(), job, market("++---" + "+" * 5), 0)
    letters = "".join(kind.name[0] for kind in outcome.held)
    # It has 480 s of work after two ticks. After four, 3600 s are left for 2520 s: less than two start-ups beside them.
    assert letters == "SSNNOOOOOO"
    assert outcome.on_time
    assert play(Greedy(), job, market("++--------"), 0).held == outcome.held


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("held", "needed"), [(NONE, 2), (ON_DEMAND, 3)])
def test_the_lifetime_that_a_spot_node_must_have(held: Kind, needed: int, waits: bool) -> None:
    job = replace(JOB, start_up=450.0)  # k = 4, so that k d / (k - 1) is a tick
    policy = LifetimeOracle(waits=waits)
    for lives in range(1, 5):
        policy.reveal(np.array([*[False] * 120, *[True] * lives, *[False] * 400]))
        at = state(held, 0.0, spot=True, job=job)
        assert policy.lifetime(at) == 600.0 * lives
        assert policy.decide(at) is (SPOT if lives >= needed else ON_DEMAND)


def test_with_lifetimes_known_the_code_waits_on_demand_and_the_text_idles() -> None:
    ahead = state(ON_DEMAND, 30 * HOUR, spot=False)
    for waits, then in ((False, NONE), (True, ON_DEMAND)):
        policy = LifetimeOracle(waits=waits)
        policy.reveal(np.zeros(JOB.ticks, np.bool_))
        assert policy.decide(ahead) is then
        assert policy.decide(replace(ahead, held=NONE)) is NONE
        assert policy.decide(replace(ahead, held=NONE, done=0.0)) is ON_DEMAND


def test_on_demand_alone_is_the_unit_of_cost() -> None:
    available = np.ones(JOB.ticks, np.bool_)
    outcome = play(OnDemand(), JOB, available, 0)
    assert (outcome.cost, outcome.launches) == (on_demand_cost(JOB), 1)


# ---------------------------------------------------------------------------------------------- policies by the hour


def test_an_hour_had_a_spot_node_if_each_of_its_ticks_had_one() -> None:
    job = Job(2 * HOUR, 5 * HOUR, 600.0, 1200.0)  # three ticks an hour
    seen = market("-" + "+++" + "+-+" + "+++" + "--+" + "+")  # 7 ticks before the start, and two hours after it
    assert hours_seen(State(job, 2 * HOUR, 0.0, 0.0, NONE, seen), 2)[0] == 2
    assert hours_seen(State(job, 2 * HOUR, 0.0, 0.0, NONE, seen), 2)[1].tolist() == [1, 0, 1, 0]
    # In the middle of an hour, the ticks of that hour are not among those that have passed.
    later = State(job, 2 * HOUR + 1200, 0.0, 0.0, NONE, np.append(seen, False))
    assert hours_seen(later, 2)[1].tolist() == [1, 0, 1, 0]


def test_hours_need_not_be_whole_ticks() -> None:
    job = Job(48 * HOUR, 70 * HOUR, 720.0, 585.0)
    seen = np.ones(1000, np.bool_)
    seen[500] = False  # the tick that begins 100 s before the job's fifth hour
    before, counts = hours_seen(State(job, 585.0 * 510, 0.0, 0.0, NONE, seen[:987]), 82)
    begin = 987 - 1 - 510
    assert before == int(begin * 585 / HOUR)
    [hour] = np.flatnonzero(counts == 0)
    assert hour - before == (500 - begin) * 585 // HOUR


class Asks:
    """Requests a spot node, keeping what it observes."""

    horizon = 2

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[int], int, int]] = []

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        batch, at = observation.batch, int(observation.batch.starts[0]) + observation.interval
        counts = batch.markets[0].available[: at + 1].tolist()
        self.seen.append((observation.interval, counts, int(observation.spot[0]), int(observation.on_demand[0])))
        return np.ones(1, np.int64), np.zeros(1, np.int64)


def test_it_decides_each_hour_and_once_its_node_is_preempted() -> None:
    job = Job(2 * HOUR, 6 * HOUR, 600.0, 1200.0)
    policy = Asks()
    outcome = play(HourSlots(policy), job, market("+++" + "++++-++++" + "+" * 9), 3)
    # Preempted in the second tick of the second hour, it waits for the third, in which it ends.
    assert [kind.name[0] for kind in outcome.held] == list("SSSSNNSSS")
    assert policy.seen[:4] == [
        (0, [1, 1], 0, 0),
        (1, [1, 1, 1], 1, 0),
        (1, [1, 1, 0], 0, 0),
        (2, [1, 1, 0, 1], 0, 0),
    ]


def test_max_spot_by_the_hour_is_on_demand_where_there_are_no_spot_nodes() -> None:
    job = Job(5 * HOUR, 8 * HOUR, 720.0, 600.0)
    outcome = play(HourSlots(MaxSpot()), job, np.zeros(48, np.bool_), 0)
    assert outcome.on_time
    assert outcome.cost == on_demand_cost(job)
    assert outcome.held[0] is NONE
