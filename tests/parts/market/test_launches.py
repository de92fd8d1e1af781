"""Launches that cost time: the optimum, the safety net's promise, and the policy that plans for them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.saved_state import StateError
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, LiveMarketForecaster, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.online.online_plan import OnlinePlan
from lightning_core.parts.market.programs.node_pairs import NodePairs, OnOffer
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.programs.pair_labels import by_pair_labels
from lightning_core.parts.market.run_lengths import AGES, LASTS, RunLengths
from lightning_core.parts.market.spot_job import SpotJob, intervals_after
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES, MaxSpot, OnDemand, SemiMarkov
from tests.examples import day_and_night, examples

LAST = MarketForecaster(LastValue())
# A node does a unit of work in an interval, and a launch takes 1.25 of them.
SLOW = SpotJob(4.0, 12, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=1.25)


def flat(available: list[int], price: float = 0.4) -> Market:
    return Market(np.full(len(available), price), np.array(available))


def played(
    job: SpotJob, held: tuple[int, int], wait: float, now: tuple[int, int], offered: int, prices: tuple[float, float],
    left: float,
) -> tuple[float, float, float]:  # fmt: skip
    """Return the work of an interval, the start-up still to come after it, and its cost."""
    launched, old = max(now[0] - held[0], 0) + max(now[1] - held[1], 0), job.throughput[sum(held)]
    trains = 0.0  # until then, on the nodes that it had
    if launched:
        waits = job.launch
        if job.hand_over_time is not None and any(held) and held[0] <= offered:
            trains = min(job.launch - job.hand_over_time, 1.0)
    elif sum(now) < sum(held):
        waits = max(
            wait, min(1 - job.shrink_fraction, job.launch) if job.hand_over_time is None else job.hand_over_time
        )
    else:
        waits = wait
    waits = waits if sum(now) else 0.0
    before = max(trains - wait, 0.0) * old
    gain = before + max(1 - waits, 0.0) * job.throughput[sum(now)]
    seconds = [1.0, math.ceil(trains), 0.0]  # those held, those replaced, and how much longer those launched are billed
    if job.minimum_charge is not None:
        ends = 1.0
        if before > 0 and left <= before:
            ends = wait + left / old
        elif sum(now) and left <= gain + 1e-9:
            ends = waits + (left - before) / job.throughput[sum(now)]
        seconds = [ends, min(trains, ends), max(job.minimum_charge - ends, 0.0)]
    bill = 0.0
    for had, has, price in zip((min(held[0], offered), held[1]), now, prices, strict=True):
        billed = has * seconds[0] + max(had - has, 0) * seconds[1] + max(has - had, 0) * seconds[2]
        bill += price * billed
    return gain, max(waits - 1, 0.0), bill


def best_of_all_plans(job: SpotJob, market: Market) -> float:
    """Return the utility of the best plan, by trying each."""
    numbers = range(job.max_nodes + 1)
    pairs = [(s, o) for s in numbers for o in numbers if s + o == 0 or job.min_nodes <= s + o <= job.max_nodes]

    def best(interval: int, held: tuple[int, int], wait: float, done: float, paid: float) -> float:
        if done >= job.work - 1e-9:
            return job.value_at(interval) - paid
        if interval == job.deadline:
            left = wait if held[1] == job.max_nodes else job.launch
            late = int(intervals_after(job.work - done, job.throughput[-1], left))
            return job.value_at(interval + late) - late * job.max_nodes * market.on_demand - paid
        found = -math.inf
        for spot, on_demand in pairs:
            if spot > market.available[interval]:
                continue
            prices, now = (float(market.price[interval]), market.on_demand), (spot, on_demand)
            gain, left, bill = played(job, held, wait, now, int(market.available[interval]), prices, job.work - done)
            then = best(interval + 1, now, left, done + gain, paid + bill)
            found = max(found, then)
        return found

    return best(0, (0, 0), 0.0, 0.0, 0.0)


@pytest.mark.parametrize("on_grid", [True, False])
@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_the_optimum_is_the_best_of_all_plans(on_grid: bool, data: st.DataObject) -> None:
    max_nodes = data.draw(st.integers(1, 2))
    intervals = data.draw(st.integers(1, 4 if max_nodes == 1 else 3))
    gains = st.sampled_from([0.1, 0.2, 0.5, 1.0]) if on_grid else st.floats(0.1, 1.0)
    throughput = (0.0, *itertools.accumulate(data.draw(st.lists(gains, min_size=max_nodes, max_size=max_nodes))))
    growth_fraction = data.draw(st.sampled_from([0.5, 0.9, 1.0]))
    job = SpotJob(
        data.draw(st.floats(0.1, 1.1)) * intervals * throughput[-1], intervals,
        data.draw(st.integers(1, max_nodes)), max_nodes, throughput, growth_fraction,
        data.draw(st.sampled_from([growth_fraction, 1.0])), value=data.draw(st.sampled_from([0.0, 5.0, 20.0])),
        launch_time=data.draw(st.sampled_from([None, 0.0, 0.2, 1.0, 1.2, 2.4])),
        minimum_charge=data.draw(st.sampled_from([None, 0.0, 0.3, 1.0])), grace=data.draw(st.sampled_from([1.5, 4.0])),
        soft_deadline=data.draw(st.sampled_from([None, *range(1, intervals + 1)])),
    )  # fmt: skip
    part = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
    job = job if part is None else replace(job, hand_over_time=part * min(job.launch, 1.0))
    prices = data.draw(st.lists(st.floats(0.1, 1.2), min_size=intervals, max_size=intervals))
    counts = data.draw(st.lists(st.integers(0, 3), min_size=intervals, max_size=intervals))
    market = Market(np.array(prices), np.array(counts))
    best, batch = best_of_all_plans(job, market), JobBatch([job], market, [0])
    assert optimum(batch)[0] == pytest.approx(best)
    assert by_pair_labels(batch.jobs[0], market.price, market.available) == pytest.approx(best)


def test_a_launch_may_take_longer_than_an_interval() -> None:
    [ledger] = backtest([OnDemand()], JobBatch([SLOW], flat([0] * 12), [0]), LAST)
    assert ledger.progress[0, :6].tolist() == [0.0, 0.75, 1.75, 2.75, 3.75, 4.0]
    [ledger] = backtest([MaxSpot()], JobBatch([SLOW], flat([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]), [0]), LAST)
    # The first node never trains; the second does for two intervals; the third launches anew.
    assert ledger.progress[0, :9].tolist() == [0.0, 0.0, 0.0, 0.75, 1.75, 1.75, 1.75, 2.5, 3.5]
    assert ledger.on_time.all()
    assert SLOW.feasible
    assert not replace(SLOW, deadline=5).feasible


def test_a_swap_of_kinds_is_a_launch_but_for_the_paper() -> None:
    class Swaps:
        horizon = 0

        def decide(self, observation):  # type: ignore[no-untyped-def]
            two = np.array([2])
            return (two, two * 0) if observation.interval % 2 else (two * 0, two)

    job = SpotJob(6.0, 8, max_nodes=2, growth_fraction=0.5, shrink_fraction=0.5)
    for overhead, first in (("launches", [1.0, 2.0, 3.0]), ("total", [1.0, 3.0, 5.0])):
        batch = JobBatch([replace(job, overhead=overhead)], flat([2] * 8), [0])  # type: ignore[arg-type]
        [ledger] = backtest([Swaps()], batch, LAST, guarded=False)
        assert ledger.progress[0, :3].tolist() == first
    with pytest.raises(ValueError, match="must have the same overhead"):
        JobBatch([job, replace(job, overhead="total")], flat([2] * 8), [0, 0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"launch_time": -0.1}, "launch_time must be at least 0 intervals and finite, got -0.1"),
     ({"launch_time": math.inf}, "launch_time must be at least 0"),
     ({"overhead": "all"}, r"overhead must be one of \('launches', 'total'\), got 'all'")],
)  # fmt: skip
def test_invalid_terms_are_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpotJob(80.0, 10, **wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ the promise


@pytest.mark.parametrize("name", SPOT_POLICIES)
@pytest.mark.parametrize(
    ("launch", "lost"), day_and_night(list(itertools.product([0.3, 1.0, 2.4], [0.0, 0.75])), [(0.3, 0.75)])
)
def test_no_market_makes_a_job_late(name: str, lost: float, launch: float) -> None:
    """Every market of one node and six intervals, for jobs of which some can only just be completed in time.

    A spot node may go at the beginning of any interval, as often as the market likes, and each loss costs what the job
    was told that it costs, beside the next launch.
    """
    deadline = 6
    markets = [flat(list(counts)) for counts in itertools.product([0, 1], repeat=deadline)]
    cost = lost + launch if lost else 0.0
    for part in (0.4, 0.7, 0.9, 1.0):
        job = SpotJob(
            part * (deadline - launch), deadline, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0,
            preemption_cost=cost, launch_time=launch,
        )  # fmt: skip
        batch = JobBatch([job] * len(markets), markets, [0] * len(markets))
        [ledger] = backtest([SPOT_POLICIES[name]()], batch, LAST, preemption_cost=cost)
        assert ledger.on_time.all(), [markets[row].available for row in np.flatnonzero(~ledger.on_time)[:3]]


def test_nothing_is_promised_where_a_loss_costs_more_than_the_job_was_told() -> None:
    job = replace(SLOW, work=10.0, preemption_cost=1.25)
    market = flat([1] * 3 + [0] * 9)
    for cost, on_time in ((1.25, True), (4.0, False)):
        [ledger] = backtest([MaxSpot()], JobBatch([job], market, [0]), LAST, preemption_cost=cost)
        assert ledger.on_time[0] == on_time or ledger.spot.sum() == 0


# ------------------------------------------------------------------------------------------------ run lengths


def test_without_data_a_run_that_has_lasted_is_likely_to_last() -> None:
    hazards = RunLengths(np.array([1]), 2).hazards()
    assert hazards == pytest.approx(np.tile(LASTS / (np.array(AGES) + LASTS), (2, 1)))


def test_hazards_are_learned_from_runs_that_have_ended_and_from_the_present_one() -> None:
    ages = (1, 2, 4)
    runs = RunLengths(np.array([0] * 3 + [1] + [0] * 5 + [1] * 2), 2, ages)
    assert (runs.level, runs.age, runs.row) == (1, 2, 4)
    assert RunLengths.of(runs.state()).state() == runs.state()
    prior = LASTS / (np.array(ages) + LASTS)
    # Level 0: runs of 3 and 5; level 1: a run of 1, and one of 2 that goes on: it was exposed once only.
    exposed = np.array([[2.0, 2 + 2, 2], [2, 0, 0]])
    ended = np.array([[0.0, 1, 1], [1, 0, 0]])
    pooled = (ended.sum(0) + 5) / (exposed.sum(0) + 5 / prior)
    assert runs.hazards() == pytest.approx((ended + 5) / (exposed + 5 / pooled))


def test_a_long_recording_outweighs_the_prior() -> None:
    draw = np.random.default_rng(3)
    lengths = draw.geometric(0.25, 20_000)  # as likely to end at any age
    levels = np.repeat(np.arange(len(lengths)) % 2, lengths)
    runs = RunLengths(levels, 2, (1, 2, 3, 4))
    assert runs.hazards() == pytest.approx(np.full((2, 4), 0.25), abs=0.02)
    assert runs.goes() == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]))
    other = RunLengths(np.array([0]), 2, (1, 2, 3, 4), [levels])
    assert other.hazards() == pytest.approx(runs.hazards(), abs=1e-3)
    assert (other.level, other.age) == (0, 1)


def test_where_the_number_goes_is_learned() -> None:
    goes = RunLengths(np.array([0, 2] * 50 + [0, 1]), 3).goes()
    assert goes.sum(1) == pytest.approx(np.ones(3))
    assert np.diag(goes) == pytest.approx(np.zeros(3))
    assert goes[0].argmax() == 2
    assert goes[0, 1] > 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
@settings(max_examples=examples(30), deadline=None)
def test_transitions_add_up_and_a_run_stays_at_an_age_for_as_long_as_it_lasts(levels: list[int]) -> None:
    runs = RunLengths(np.array(levels), 3)
    chain = runs.expected(np.eye(3 * len(AGES)))
    assert chain.sum(1) == pytest.approx(np.ones(len(chain)))
    assert (chain >= 0).all()
    hazards, ages = runs.hazards(), len(AGES)
    for at, width in enumerate(np.diff(AGES)):
        assert chain[at, at + 1] == pytest.approx((1 - hazards[0, at]) / width)
    assert chain[ages - 1, ages - 1] == pytest.approx(1 - hazards[0, -1])


# ------------------------------------------------------------------------------------------------ the policy


def decided(market: Market, job: SpotJob, start: int, **terms: object) -> list[tuple[int, int]]:
    """Return the spot and on-demand nodes of each interval."""
    [ledger] = backtest([SemiMarkov(**terms)], JobBatch([job], market, [start]), LAST)  # type: ignore[arg-type]
    return list(zip(ledger.spot[0].tolist(), ledger.on_demand[0].tolist(), strict=True))


def test_nodes_that_have_just_come_are_trusted_less_than_those_that_have_lasted() -> None:
    """Half of all runs end after an interval, the others after thirty: a launch takes one, and saves little a time."""
    past = ([1, 0, 0, 0] + [1] * 30 + [0] * 4) * 6
    job = SpotJob(20.0, 32, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=1.0)
    fresh, lasted = flat([*past, 1, *[1] * 60], price=0.8), flat([*past, *[1] * 61], price=0.8)
    assert decided(fresh, job, len(past))[0] == (0, 0)  # it waits: in another interval it will know more
    assert decided(lasted, job, len(past) + 3)[0] == (1, 0)


def test_a_swap_that_does_not_pay_for_its_launch_is_not_made() -> None:
    """Two intervals are left on an on-demand node when spot nodes come, at a tenth less."""
    job = SpotJob(10.0, 11, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=0.5)
    late = flat([0] * 8 + [1] * 20, price=0.9)
    # In the last interval half a unit of work is left, which a spot node that is launched then can do.
    assert decided(late, job, 0)[-3:] == [(0, 1), (0, 1), (1, 0)]
    free = replace(job, launch_time=0.0)
    assert decided(flat([0] * 8 + [1] * 20, price=0.5), free, 0)[8] == (1, 0)


@pytest.mark.parametrize(
    ("length", "launched", "kept"),
    [(1.0, 3.0 + 0.8 - 0.4, 3.0 + 1.0 - 0.4), (0.5, 3.0 + 0.3 - 0.2, 3.0 + 0.5 - 0.2), (0.1, 3.0 - 0.1 - 0.04, 3.06)],
)
def test_the_rest_of_an_interval_is_billed_and_trained_as_such(length: float, launched: float, kept: float) -> None:
    """A unit of work is worth one, three are done; a launch takes a fifth of an interval, more than a tenth is left."""
    job = SpotJob(10.0, 11, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=0.2)
    pairs, offer = NodePairs(job, np.arange(10.0, -1.0, -1.0), 1.0), OnOffer(0.4, 1.0, np.array(1))
    after = np.broadcast_to(np.arange(11.0), (1, 2, 2, 11))
    for held, expected in ((0, launched), (1, kept)):
        worth = pairs.action_values(after, offer, held, 0, 0.0, 3.0, length)
        assert worth[:, 0] == pytest.approx([3.0, expected])
        assert worth[0, 1] == pytest.approx(launched - 0.6 * length)  # an on-demand node is launched, either way


def test_nodes_that_will_be_gone_are_not_launched_for_the_end_of_an_interval() -> None:
    """Spot nodes stay for an interval each time, and a launch takes a fifth of one."""
    job = SpotJob(5.0, 30, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=0.2)
    market, plan = flat([1, 0] * 40), OnlinePlan(SemiMarkov(), LAST)
    assert plan.decide(job, market, 40, 0, 0.0, NodeCounts(), elapsed=0.0) == (1, 0)
    assert plan.decide(job, market, 40, 0, 0.0, NodeCounts(), elapsed=0.9) == (0, 0)


def semi_markov_market(seed: int, intervals: int = 900) -> Market:
    """Return a market whose runs are short or long."""
    draw, counts = np.random.default_rng(seed), list[int]()
    while len(counts) < intervals:
        up = int(draw.choice([1, 2, 40], p=[0.4, 0.3, 0.3]))
        counts += [1] * up + [0] * int(draw.choice([1, 3, 25], p=[0.4, 0.3, 0.3]))
    return flat(counts[:intervals], price=0.35)


@pytest.mark.parametrize("seed", day_and_night([0, 1], [0]))
def test_it_costs_less_than_max_spot_and_no_less_than_the_optimum(seed: int) -> None:
    market = semi_markov_market(seed)
    job = SpotJob(60.0, 80, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=1.5)
    starts = np.random.default_rng(seed).integers(200, 800, 12).tolist()
    batch = JobBatch([job] * len(starts), market, starts)
    ours, greedy = backtest([SemiMarkov(), MaxSpot()], batch, LAST)
    assert ours.on_time.all()
    assert (ours.cost >= -optimum(batch) - 1e-6).all()
    assert ours.cost.mean() < greedy.cost.mean() - 2.0


@pytest.mark.nightly
def test_a_deadline_far_away_is_planned_for_evenly() -> None:
    job = SpotJob(500.0, 1000, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=0.2)
    market = flat(([1] * 9 + [0]) * 130)
    near, far = (decided(market, job, 0, horizon_limit=limit)[:400] for limit in (50, 1000))
    assert sum(one != other for one, other in zip(near, far, strict=True)) <= 40
    assert {on_demand for _, on_demand in near} == {0}


def test_a_restored_policy_decides_as_the_other_one() -> None:
    job = SpotJob(10.0, 20, max_nodes=2, value=0.0)
    market = Market(np.full(60, 0.4), np.array([2, 2, 0, 1] * 15))
    plan, restored = SemiMarkov(), SemiMarkov()
    held = np.zeros(1, np.int64)
    batch, now = JobBatch([job], market, [20]), LiveMarketForecaster(LastValue())
    for interval in range(12):
        forecast = now.look(batch, interval, 0)
        done = np.array([0.4 * interval])
        seen = Observation(batch, interval, done, held, held, forecast, done, done)
        assert [one.tolist() for one in plan.decide(seen)] == [one.tolist() for one in restored.decide(seen)]
        saved = json.loads(json.dumps(plan.state()))
        restored = SemiMarkov()
        restored.restore(saved)
        assert restored.state() == plan.state()
    [[_, _, begins, *_]] = plan.state()["plans"]
    assert begins < 11  # the plan is one of an earlier interval
    with pytest.raises(StateError, match="not the state of a semi-Markov policy: KeyError"):
        plan.restore({})


def test_more_nodes_than_a_plan_considers_are_still_held_in_full() -> None:
    """Of 64 nodes it considers a few numbers, and those that are on offer and held."""
    job = SpotJob(64.0 * 4, 8, max_nodes=64, value=0.0)
    assert decided(flat([37] * 8), job, 0)[0] == (37, 0)


@pytest.mark.parametrize(("terms", "words"), [({"window": 1}, "window must be at least 2"),
                                              ({"horizon_limit": 0}, "horizon_limit must be at least 2")])  # fmt: skip
def test_its_arguments_are_checked(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SemiMarkov(**terms)
