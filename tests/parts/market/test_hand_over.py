"""Jobs that train on while nodes are launched, and nodes that are billed by the second, with a minimum."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.changeover import Changeover
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.programs.progress_grid import group_of
from lightning_core.parts.market.programs.window_planner import step_back
from lightning_core.parts.market.safety_net import SafetyNet
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import MaxSpot, OnDemand, SemiMarkov
from tests.examples import day_and_night, examples
from tests.parts.market.test_launches import flat, played

LAST = MarketForecaster(LastValue())
# A launch takes half an interval, and the last tenth of the interval of it is the hand-over.
TWO = SpotJob(
    4.0, 6, max_nodes=2, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=0.5, hand_over_time=0.1,
    minimum_charge=0.0,
)  # fmt: skip
ONE = replace(TWO, max_nodes=1, throughput=(0.0, 1.0))


class Holds:
    """Requests the same as it was told, for all jobs."""

    horizon = 0

    def __init__(self, *pairs: tuple[int, int]) -> None:
        self.pairs = pairs

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        spot, on_demand = self.pairs[min(observation.interval, len(self.pairs) - 1)]
        return np.full(len(observation.batch), spot), np.full(len(observation.batch), on_demand)


class Reckless:
    """Requests at random."""

    horizon = 0

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        spot, on_demand = self.draw.integers(0, 3, (2, len(observation.batch)))
        return spot, on_demand


def holding(job: SpotJob, available: list[int], *pairs: tuple[int, int], price: float = 0.4, **terms: float) -> Ledger:
    batch = JobBatch([job], flat(available, price), [0])
    [ledger] = backtest([Holds(*pairs)], batch, LAST, guarded=False, **terms)  # type: ignore[arg-type]
    return ledger


def test_a_swap_trains_on_the_old_node_until_the_hand_over_and_pays_for_both() -> None:
    ledger = holding(ONE, [1] * 6, (0, 1), (1, 0), (1, 0))
    assert ledger.progress[0, :3] == pytest.approx([0.5, 0.5 + 0.4 + 0.5, 2.4])  # the first start is lost
    assert ledger.paid[0, :3] == pytest.approx([1.0, 0.4 + 0.4 * 1.0, 0.4])
    stands_still = holding(replace(ONE, hand_over_time=None), [1] * 6, (0, 1), (1, 0), (1, 0))
    assert stands_still.progress[0, :3] == pytest.approx([0.5, 1.0, 2.0])
    assert stands_still.paid[0, :3] == pytest.approx([1.0, 0.4, 0.4])
    # An interval that is billed whole bills the old node for all of it.
    assert holding(replace(ONE, minimum_charge=None), [1] * 6, (0, 1), (1, 0)).paid[0, 1] == pytest.approx(1.4)


def test_growth_trains_on_what_there_is_and_giving_back_costs_the_hand_over_alone() -> None:
    ledger = holding(TWO, [2] * 6, (0, 1), (0, 2), (0, 1))
    assert ledger.progress[0, :3] == pytest.approx([0.5, 0.5 + 0.4 + 1.0, 1.9 + 0.9])
    assert ledger.paid[0, :3] == pytest.approx([1.0, 2.0, 1.0])


def test_a_preemption_costs_the_whole_launch_and_pays_for_nothing_that_is_gone() -> None:
    ledger = holding(TWO, [2, 1, 2, 2, 2, 2], (2, 0), (1, 1), (1, 1))
    assert ledger.progress[0, :3] == pytest.approx([1.0, 2.0, 4.0])
    assert ledger.paid[0, :2] == pytest.approx([0.8, 1.4])


def test_a_launch_longer_than_an_interval_is_trained_through_to_its_end() -> None:
    slow = replace(ONE, launch_time=2.3, deadline=8, work=8.0)
    ledger = holding(slow, [1] * 8, *[(0, 1)] * 4, (1, 0))
    # Three intervals of start-up, .7 of the third; at the swap one more whole interval, then 1.3 are lost.
    assert ledger.progress[0] == pytest.approx([0.0, 0.0, 0.7, 1.7, 2.7, 2.7, 3.4, 4.4])
    assert ledger.paid[0, 3:6] == pytest.approx([1.0, 1.4, 0.4])


def test_nodes_of_a_job_that_is_done_are_billed_to_the_second_but_for_the_minimum() -> None:
    short = replace(TWO, work=0.3, deadline=2)
    assert holding(short, [2] * 2, (0, 2)).paid[0].tolist() == pytest.approx([0.8, 0.0])  # two would be 1.3
    assert holding(replace(short, minimum_charge=0.9), [2] * 2, (0, 1)).cost[0] == pytest.approx(0.9)
    assert holding(replace(short, minimum_charge=None), [2] * 2, (0, 1)).cost[0] == pytest.approx(1.0)
    kept = replace(short, work=0.8, minimum_charge=0.9)  # the minimum is that of its launch
    assert holding(kept, [2] * 2, (0, 1)).paid[0].tolist() == pytest.approx([1.0, 0.3])


def test_work_that_a_preemption_loses_is_billed_until_it_is_done_again() -> None:
    job = replace(ONE, work=1.0, preemption_cost=0.7)
    ledger = holding(job, [1, 0, 0, 0, 0, 0], (1, 0), (0, 1), preemption_cost=0.7)
    # Half is done; the preemption costs .7 with the launch, so .2 of the work, and .7 are done again from .5 on.
    assert ledger.progress[0, :3] == pytest.approx([0.5, 0.8, 1.0])
    assert ledger.paid[0, :3] == pytest.approx([0.4, 1.0, 0.2])


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_backtest_does_and_bills_what_its_rules_say(data: st.DataObject) -> None:
    launch = data.draw(st.sampled_from([0.0, 0.3, 1.0, 1.7]))
    part = data.draw(st.sampled_from([None, 0.0, 0.4, 1.0]))
    job = SpotJob(
        data.draw(st.floats(0.5, 6.0)), 6, data.draw(st.integers(1, 2)), 3, (0.0, 1.0, 1.7, 2.1),
        shrink_fraction=0.95, value=0.0, launch_time=launch,
        hand_over_time=None if part is None else part * min(launch, 1.0),
        minimum_charge=data.draw(st.sampled_from([None, 0.0, 0.3, 1.0])),
    )  # fmt: skip
    counts = data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=6))
    prices = data.draw(st.lists(st.floats(0.1, 1.2), min_size=6, max_size=6))
    batch = JobBatch([job], Market(np.array(prices), np.array(counts)), [0])
    number = st.integers(0, 3)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=6, max_size=6))
    [ledger] = backtest([Holds(*pairs)], batch, LAST, guarded=data.draw(st.booleans()))
    held, wait, done = (0, 0), 0.0, 0.0
    for interval in range(6):
        now = int(ledger.spot[0, interval]), int(ledger.on_demand[0, interval])
        if done >= job.work - 1e-9:
            assert (now, ledger.paid[0, interval]) == ((0, 0), 0.0)
            continue
        terms = now, counts[interval], (prices[interval], 1.0)
        gain, wait, bill = played(batch.jobs[0], held, wait, *terms, batch.jobs[0].work - done / float(batch.units[0]))
        held, done = now, min(done + gain * float(batch.units[0]), job.work)
        assert ledger.progress[0, interval] == pytest.approx(done)
        assert ledger.paid[0, interval] == pytest.approx(bill)


@pytest.mark.parametrize(
    ("left", "launching", "minimum", "bill"),
    [
        # An on-demand node for a spot node of .4: it is launched for .5, of which the old one trains for .4.
        (4.0, 0.0, 0.0, 1.0 + 0.4 * 0.4),  # both, until the old one saves; then the new one to the end
        (0.3, 0.0, 0.0, 0.3 + 0.3 * 0.4),  # done on the old one, after .3
        (0.3, 0.1, 0.0, 0.4 + 0.4 * 0.4),  # which itself is launched for another .1, so that it does .3 by .4
        (0.3, 0.0, 0.4, 0.4 + 0.3 * 0.4),  # a minimum charge of the node that was launched for nothing
        (0.7, 0.0, 0.0, 0.8 + 0.4 * 0.4),  # .4 on the old one, and the rest on the new one
        (0.7, 0.0, 1.0, 1.0 + 0.4 * 0.4),
        (0.0, 0.0, 0.0, 0.0),
    ],
)
def test_nodes_are_billed_until_the_job_is_done_on_whichever_it_trains(
    left: float, launching: float, minimum: float, bill: float
) -> None:
    batch = JobBatch([replace(ONE, minimum_charge=minimum)], flat([1] * 6, price=0.4), [0])
    spot, on_demand, done = np.array([1]), np.array([0]), batch.work - left
    seen = Observation(batch, 2, done, spot, on_demand, LAST.look(batch, 2, 0), done, done, np.array([launching]))
    assert Changeover(seen).bill(on_demand, spot)[0] == pytest.approx(bill)


# ------------------------------------------------------------------------------------------------ the promise


@pytest.mark.parametrize("lost", [0.0, 0.75])
@pytest.mark.parametrize("launch", [0.3, 1.0, 2.4])
@pytest.mark.parametrize("throughput", [(0.0, 1.0, 2.0), (0.0, 1.0, 1.2)])
def test_no_market_and_no_request_makes_a_job_late(lost: float, launch: float, throughput: tuple[float, ...]) -> None:
    """Every market of two nodes and five intervals; what is asked for is drawn."""
    deadline = 5
    markets = [flat(list(counts)) for counts in itertools.product([0, 1, 2], repeat=deadline)]
    cost = lost + launch if lost else 0.0
    for seed, (part, hand_over) in enumerate(itertools.product((0.6, 0.8, 1.0), (0.0, 0.05, 0.2))):
        job = SpotJob(
            part * (deadline - launch) * throughput[-1], deadline, 1, 2, throughput, value=0.0, preemption_cost=cost,
            launch_time=launch, hand_over_time=hand_over, minimum_charge=0.3,
        )  # fmt: skip
        batch = JobBatch([job] * len(markets), markets, [0] * len(markets))
        for policy in (Reckless(seed), MaxSpot()):
            [ledger] = backtest([policy], batch, LAST, preemption_cost=cost)
            assert ledger.on_time.all(), [markets[row].available for row in np.flatnonzero(~ledger.on_time)[:3]]


def test_the_net_counts_on_what_an_on_demand_node_does_while_others_start() -> None:
    """Nothing but that lets the job keep one node for another interval."""
    job = replace(TWO, work=4.0, deadline=4)
    nothing, one = np.zeros(1, np.int64), np.ones(1, np.int64)

    def slack(job: SpotJob, spot: IntArray, on_demand: IntArray, held: tuple[int, int] = (0, 1)) -> float:
        batch = JobBatch([job], flat([2] * 4), [0])
        now, zero = LAST.look(batch, 1, 0), np.zeros(1)
        had = [np.array([number]) for number in held]
        observation = Observation(batch, 1, zero, had[0], had[1], now, zero, zero)
        return float(SafetyNet(observation).slack(spot, on_demand)[0])

    # One interval on a node, .4 more while the second starts, then 1.5 on both.
    assert slack(job, nothing, one) == pytest.approx(1.0 + 0.4 + 2 * 1.5 - 4.0)
    assert slack(replace(job, hand_over_time=None), nothing, one) == pytest.approx(1.0 + 2 * 1.5 - 4.0)
    # Spot nodes may go before that.
    assert slack(job, one, nothing, (1, 0)) == pytest.approx(1.0 + 2 * 1.5 - 4.0)
    assert slack(job, one, one, (1, 1)) == pytest.approx(2.0 + 2 * 1.5 - 4.0)


# ------------------------------------------------------------------------------------------------ plans


def test_windows_count_on_what_a_job_does_while_more_nodes_start() -> None:
    group = group_of(TWO, 0.1)
    assert group.meanwhile.tolist() == [0, 4, 8]
    assert group.gains(np.array([0, 1, 2])).tolist() == [[0, 5, 10], [0, 10, 14], [0, 9, 20]]
    after, cost = np.tile(np.arange(31.0), (3, 1, 1)), np.array([[0.0, 5.0, 7.0]])
    before = step_back(after, cost, group, np.zeros_like(after[0]))
    assert before[:, 0, 0].tolist() == [3.0, 7.0, 13.0]  # two nodes at last: 10 - 7, 14 - 7, 20 - 7


def test_a_swap_pays_sooner_where_the_old_node_trains_on() -> None:
    """A launch takes nearly an interval: with a spot node that may go, there is no time to stand still for it."""
    job = replace(ONE, work=2.8, deadline=4, launch_time=0.9, hand_over_time=0.05)
    for one, held in ((job, [1, 1, 1, 0]), (replace(job, hand_over_time=None), [0, 0, 0, 0])):
        batch = JobBatch([one], flat([1] * 60), [50])
        [ledger] = backtest([SemiMarkov()], batch, LAST, held=(0, 1))
        assert ledger.spot[0].tolist() == held
    assert ledger.cost[0] == pytest.approx(2.8)


@pytest.mark.parametrize("seed", day_and_night([0, 1], [0]))
def test_the_plan_costs_little_more_than_the_optimum(seed: int) -> None:
    draw = np.random.default_rng(seed)
    counts = np.repeat(draw.integers(0, 5, 60), draw.integers(1, 12, 60))
    job = SpotJob(30.0, 12, max_nodes=4, value=0.0, launch_time=0.2, hand_over_time=0.1, minimum_charge=0.1)
    starts = draw.integers(100, 200, 10).tolist()
    batch = JobBatch([job] * 10, flat(counts.tolist()), starts)
    ours, greedy, on_demand = backtest([SemiMarkov(), MaxSpot(), OnDemand()], batch, LAST)
    best = -optimum(batch)
    assert ours.on_time.all()
    assert (np.stack([ours.cost, greedy.cost, on_demand.cost]) >= best - 1e-9).all()
    assert ours.cost.mean() <= min(greedy.cost.mean() + 1e-9, 1.1 * best.mean())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"hand_over_time": 0.6}, "hand_over_time must be at least 0 and at most 0.5 intervals, got 0.6"),
     ({"launch_time": 2.0, "hand_over_time": 1.1}, "hand_over_time must be at least 0 and at most 1 intervals"),
     ({"hand_over_time": math.nan}, "hand_over_time must be at least 0"),
     ({"minimum_charge": 1.1}, "minimum_charge must be at least 0 and at most 1 intervals, got 1.1"),
     ({"minimum_charge": -0.1}, "minimum_charge must be at least 0"),
     ({"hand_over_time": None, "overhead": "total"}, "minimum_charge must be None where overhead is 'total', got 0"),
     ({"overhead": "total"}, "hand_over_time must be None where overhead is 'total', got 0.1")],
)  # fmt: skip
def test_invalid_terms_are_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(TWO, **wrong)  # type: ignore[arg-type]
