"""Published policies, rule by rule, against values worked by hand.

AHAP, AHANP and the selector are those of Kong et al., all-or-nothing Uniform Progress and the rule of the next lifetime
those of Wu et al., "Can't Be Late".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster, Perfect
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import Observation, SpotForecast
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.programs.window_planner import WindowPlanner
from lightning_core.parts.market.selector import Selector, normalised
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import Ahanp, Ahap, AllOrNothing, NextLifetime, OnDemand, UniformProgress
from lightning_core.parts.market.spot_policies.ahap import Mode

JOB = SpotJob(work=80.0, deadline=10, min_nodes=2, max_nodes=12)


def seen(
    progress: Sequence[float],
    *,
    interval: int = 4,
    before: int = 0,
    counts: Sequence[int] = (0,),
    prices: Sequence[float] = (0.5,),
    held: int = 0,
    held_on_demand: int = 0,
    on_demand: float = 1.0,
    job: SpotJob = JOB,
) -> Observation:
    """Return what a policy sees of equal jobs that differ in their progress; an even pace is 8 in an interval."""
    jobs, ahead = len(progress), max(len(counts), len(prices))
    forecast = SpotForecast(np.array([np.resize(prices, ahead)] * jobs), np.array([np.resize(counts, ahead)] * jobs))
    done, none = np.array(progress, float), np.zeros(jobs, np.int64)
    batch = JobBatch([job] * jobs, Market(np.full(10, 0.5), np.full(10, before), on_demand), [0] * jobs)
    return Observation(batch, interval, done, none + held, none + held_on_demand, forecast, done, done)


# ------------------------------------------------------------------------------------------------- AHANP, algorithm 3


@pytest.mark.parametrize(
    ("progress", "before", "available", "price", "held", "total"),
    [
        (32, 8, 0, 0.5, 5, 0),  # ahead, no spot nodes: nothing
        (32, 8, 4, 0.5, 5, 3),  # half of them are gone: half the fleet, rounded up
        (32, 8, 4, 0.5, 6, 3),
        (32, 8, 1, 0.5, 6, 3),
        (32, 8, 4, 0.5, 2, 2),  # ... and at least the minimum
        (32, 8, 5, 0.5, 6, 6),  # fewer are there, but more than half: the fleet stays
        (32, 8, 8, 0.5, 6, 6),
        (32, 4, 8, 0.61, 5, 5),  # more are there, but dear
        (32, 4, 8, 0.6, 5, 8),  # ... and cheap up to sigma: all of them
        (32, 4, 8, 0.5, 9, 9),
        (31.9, 0, 3, 0.5, 4, 8),  # behind, and the first appear: twice the fleet
        (31.9, 0, 3, 0.5, 0, 2),
        (31.9, 3, 3, 0.5, 3, 6),  # behind: twice the fleet
        (31.9, 3, 0, 0.5, 3, 6),
        (31.9, 3, 3, 0.5, 7, 12),  # ... and at most the maximum
        (32, 8, 6, 0.5, 0, 0),  # idle, and nothing to gain: it stays idle
    ],
)
def test_ahanp_follows_its_rules(
    progress: float, before: int, available: int, price: float, held: int, total: int
) -> None:
    """At interval 4 an even pace has done 32 of 80."""
    observation = seen([progress], before=before, counts=[available], prices=[price], held=held)
    spot, on_demand = Ahanp().decide(observation)
    assert spot.tolist() == [min(available, total)]
    assert (spot + on_demand).tolist() == [total]


def test_a_price_is_cheap_in_relation_to_the_on_demand_price() -> None:
    for price, total in ((1.2, 8), (1.21, 5)):
        decided = Ahanp(0.6).decide(seen([32], before=4, counts=[8], prices=[price], held=5, on_demand=2.0))
        assert np.sum(decided, axis=0).tolist() == [total]


def test_ahanp_as_printed_takes_spot_nodes_first_however_dear() -> None:
    """Lines 5 to 7: as many spot nodes as are there, the rest on demand."""
    dear = seen([31.9], before=3, counts=[4], prices=[1.2], held=3)
    assert pair(Ahanp(mode="paper").decide(dear)) == [[4], [2]]
    assert pair(Ahanp().decide(dear)) == [[0], [6]]
    costly = JobBatch([JOB], Market(np.full(10, 1.2), np.full(10, 12)), [0])
    printed, repaired = backtest([Ahanp(mode="paper"), Ahanp()], costly, MarketForecaster(LastValue()), guarded=False)
    assert printed.spot.sum() > 0 == printed.on_demand.sum()
    assert repaired.on_demand.sum() > 0 == repaired.spot.sum()


def test_without_the_safety_net_a_last_interval_is_trimmed_all_the_same() -> None:
    """Nine of the twelve nodes that it plans end the job."""
    job = replace(JOB, work=9.0, min_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, overhead="total")
    batch = JobBatch([job], Market(np.full(10, 0.5), np.full(10, 12)), [0])
    printed = Ahap(1, mode="paper", planner=Fixed(*([[12], [0]] for _ in range(10)), end="literal"))
    [ledger] = backtest([printed], batch, MarketForecaster(LastValue()), guarded=False)
    assert ledger.spot[0].tolist() == [9, *[0] * 9]


def test_ahanp_as_printed_falls_to_the_minimum() -> None:
    """When the first spot nodes appear, and where it is idle though some are there."""
    printed = Ahanp(mode="paper")
    assert np.sum(printed.decide(seen([31.9], before=0, counts=[1], held=4)), axis=0).tolist() == [2]
    assert np.sum(printed.decide(seen([31.9], before=0, counts=[3], held=4)), axis=0).tolist() == [2]
    assert np.sum(printed.decide(seen([32], before=8, counts=[6], held=0)), axis=0).tolist() == [2]
    assert np.sum(printed.decide(seen([31.9], before=0, counts=[0], held=4)), axis=0).tolist() == [8]  # none appear


def test_before_the_first_interval_there_were_no_spot_nodes() -> None:
    assert np.sum(Ahanp().decide(seen([0], interval=0, before=9, counts=[3])), axis=0).tolist() == [3]


def test_a_price_limit_is_above_zero() -> None:
    for policy in (Ahanp, Ahap):
        with pytest.raises(ValueError, match="sigma must be above 0, got 0"):
            policy(sigma=0.0)


# -------------------------------------------------------------------------------------------------- AHAP, algorithm 1


class Fixed(WindowPlanner):
    """Plans what it was given, whatever it sees."""

    def __init__(self, *plans: Sequence[Sequence[int]], end: str = "target") -> None:
        super().__init__(end)  # type: ignore[arg-type]
        self.plans = list(plans)

    def plan(self, observation: Observation, horizon: int, steps: int) -> tuple[IntArray, IntArray]:
        spot, on_demand = (np.array([one] * len(observation.batch)) for one in self.plans.pop(0))
        return spot[:, :steps], on_demand[:, :steps]


def pair(decided: tuple[IntArray, IntArray]) -> list[list[int]]:
    return [column.tolist() for column in decided]


def test_ahap_follows_the_mean_of_its_last_plans_for_the_interval() -> None:
    """Three plans of two steps: 4 and 1 alone, then the mean of 8 and 5, and of 3 and 2, rounded half up."""
    plans = [[4, 5], [1, 2]], [[8, 1], [3, 0]], [[6, 0], [4, 0]]
    behind = [seen([0], interval=interval) for interval in (0, 1, 2)]
    policy = Ahap(3, 2, planner=Fixed(*plans))
    assert [pair(policy.decide(one)) for one in behind] == [[[4], [1]], [[7], [3]], [[4], [2]]]
    printed = Ahap(3, 2, mode="paper", planner=Fixed(*plans, end="literal"))
    assert [pair(printed.decide(one)) for one in behind] == [[[4], [1]], [[13], [5]], [[7], [4]]]


def test_the_first_interval_begins_anew() -> None:
    policy = Ahap(3, 2, planner=Fixed([[4, 5], [1, 2]], [[8, 1], [3, 0]]))
    policy.decide(seen([0], interval=5))
    assert pair(policy.decide(seen([0], interval=0))) == [[8], [3]]


def test_a_job_that_is_ahead_takes_cheap_spot_nodes_only() -> None:
    """At interval 4 with a window of 3 more, 64 of 80 are due at its end; sigma counts as cheap, 2 as enough."""
    for price in (1.0, 2.0):  # of an on-demand node
        policy, prices = Ahap(3, 4, planner=Fixed([[7] * 4, [1] * 4])), [price * part for part in (0.6, 0.61, 0.6, 0.6)]
        spot, on_demand = policy._plan(seen([64, 63.9], counts=[20, 9, 1, 2], prices=prices, on_demand=price))
        assert spot.tolist() == [[12, 0, 0, 2], [7] * 4]
        assert on_demand.tolist() == [[0] * 4, [1] * 4]


def test_progress_can_be_compared_with_an_even_pace_now() -> None:
    policy = Ahap(2, ahead="now", planner=Fixed([[7], [1]]))
    assert pair(policy.decide(seen([32, 31.9], counts=[9]))) == [[9, 7], [0, 1]]


def test_as_printed_no_job_is_ahead_in_its_last_intervals() -> None:
    """Of 10 intervals, a window of 3 that begins in interval 7 is the last that ends within them."""
    policy = Ahap(2, mode="paper", planner=Fixed([[7], [1]], [[7], [1]], end="literal"))
    assert pair(policy.decide(seen([80], interval=7, counts=[9]))) == [[9], [0]]
    assert pair(policy.decide(seen([80], interval=8, counts=[9]))) == [[7], [1]]


def test_ahap_s_defaults_and_words() -> None:
    assert (Ahap().omega, Ahap().horizon, Ahap().commitment) == (2, 2, 1)
    assert Ahap(mode="paper").planner.end == "literal"
    known = r"\('default', 'paper'\), \(.*'target'.*\) and \('window_end', 'now'\)"
    with pytest.raises(ValueError, match=f"mode, end and ahead must be of {known}, got 'papers', 'target'"):
        Ahap(mode="papers")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'default', 'end' and 'now'"):
        Ahap(end="end", ahead="now")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'default', 'target' and 'later'"):
        Ahap(ahead="later")  # type: ignore[arg-type]


def test_the_bound_of_theorem_1_does_not_hold() -> None:
    """Forecasts are perfect and no price is at most sigma: it says 0. On-demand nodes are bought all the same."""
    market = Market(np.full(10, 0.5), np.repeat([0, 12], 5))
    batch = JobBatch([SpotJob(50.0, 10, overhead="total")], market, [0])
    policies = [Ahap(2, sigma=0.4, mode=mode) for mode in get_args(Mode)]
    for ledger in backtest(policies, batch, MarketForecaster(Perfect()), guarded=False):
        assert optimum(batch)[0] == pytest.approx(120.0 - 0.5 * (12 + 12 + 12 + 12 + 4))  # 10.8 of work in the first
        assert ledger.utility[0] < optimum(batch)[0] - 5.0


# --------------------------------------------------------------------------- Uniform Progress and the next lifetime


@pytest.mark.parametrize(
    ("spot", "on_demand", "progress", "available", "expected"),
    [
        (0, 0, 0.0, 12, (12, 0)),  # idle: spot nodes, even if it is behind
        (0, 0, 0.0, 11, (0, 12)),  # ... but all that it can use, or none
        (0, 0, 31.9, 0, (0, 12)),  # idle and behind: on-demand nodes
        (0, 0, 32.0, 0, (0, 0)),
        (12, 0, 0.0, 12, (12, 0)),  # spot nodes are kept
        (12, 0, 31.9, 11, (0, 12)),  # ... until they are preempted: then it is idle
        (12, 0, 32.0, 11, (0, 0)),
        (0, 1, 33.5, 12, (0, 12)),
        (0, 12, 33.5, 0, (0, 12)),  # on demand it stays until it is ahead by two changes
        (0, 12, 33.5, 12, (0, 12)),  # ... whatever is on offer
        (0, 12, 33.6, 12, (12, 0)),
        (0, 12, 33.6, 11, (0, 0)),
    ],
)
def test_uniform_progress_as_published(
    spot: int, on_demand: int, progress: float, available: int, expected: tuple[int, int]
) -> None:
    """At interval 4 an even pace has done 32; a change costs 0.1 intervals, two of them 1.6 of even progress."""
    state = seen([progress], counts=[available], held=spot, held_on_demand=on_demand)
    assert pair(AllOrNothing().decide(state)) == [[one] for one in expected]


def test_uniform_progress_stays_on_the_on_demand_nodes_that_it_has_asked_for() -> None:
    policy = AllOrNothing()
    assert pair(policy.decide(seen([31.9, 32]))) == [[0, 0], [12, 0]]
    assert pair(policy.decide(seen([41.5, 41.5], interval=5, counts=[12]))) == [[0, 12], [12, 0]]
    assert pair(policy.decide(seen([0, 0], interval=0, counts=[12]))) == [[12, 12], [0, 0]]  # anew


@pytest.mark.parametrize(
    ("price", "on_demand", "held", "held_on_demand", "least"),
    [
        (0.5, 1.0, 0, 0, 3),  # k = 2, d = 1: longer than 2 intervals
        (0.5, 1.0, 0, 12, 5),  # ... and from on-demand nodes than 4
        (0.25, 1.0, 0, 0, 2),  # k = 4: longer than 4/3
        (0.25, 1.0, 0, 12, 3),
        (0.5, 2.0, 0, 12, 3),
        (0.5, 1.0, 12, 0, 1),  # those that it has it keeps
        (0.5, 1.0, 1, 0, 1),
        (1.0, 1.0, 0, 0, 99),  # they cost as much: never
    ],
)
def test_the_lifetime_that_spot_nodes_must_have(
    price: float, on_demand: float, held: int, held_on_demand: int, least: int
) -> None:
    for lives in range(6):
        counts = [12] * lives + [11] * (6 - lives)
        job = replace(JOB, launch_time=1.0)
        state = seen(
            [0], counts=counts, prices=[price], held=held, held_on_demand=held_on_demand, on_demand=on_demand, job=job
        )
        expected = [[12], [0]] if lives >= least else [[0], [held_on_demand]]
        assert pair(NextLifetime(5).decide(state)) == expected


def test_spot_nodes_that_outlive_the_forecast_live_long_enough() -> None:
    state = seen([0, 0], job=replace(JOB, launch_time=3.0))
    state = replace(state, forecast=SpotForecast(np.full((2, 3), 0.5), np.array([[12, 12, 0], [12, 12, 12]])))
    assert pair(NextLifetime(1).decide(state)) == [[12, 12], [0, 0]]
    assert pair(NextLifetime(2).decide(state)) == [[0, 12], [0, 0]]
    assert NextLifetime().horizon == 5


def test_uniform_progress_buys_the_fewest_nodes_that_make_up_for_what_is_due() -> None:
    """At the end of interval 4, 40 are due; a launch leaves 0.9 of it. 20 lacking are more than 12 nodes can do."""
    decided = UniformProgress().decide(seen([40, 39.1, 39, 29.2, 20]))
    assert pair(decided) == [[0] * 5, [0, 1, 2, 12, 12]]
    assert pair(UniformProgress().decide(seen([40, 20], counts=[3]))) == [[3, 3], [0, 0]]


# --------------------------------------------------------------------------------- utilities and weights, algorithm 2


@pytest.mark.parametrize("price", [1.0, 2.0])
def test_utilities_are_fractions_of_their_range(price: float) -> None:
    """From the worth of doing nothing by the deadline to completion at no cost."""
    least = JOB.worth_of_rest(80.0, 0, price)
    utilities = np.array([least - 9, least, (least + JOB.value) / 2, JOB.value, JOB.value + 9])
    assert normalised(utilities, JOB, price).tolist() == pytest.approx([0, 0, 0.5, 1, 1])


def test_the_printed_step_and_update() -> None:
    """Three policies and 8 jobs: a weight grows by e^(step u), and the step is sqrt(2 ln 3 / 8) = 0.52407."""
    selector = Selector(["a", "b", "c"], jobs=8)
    assert selector.step == pytest.approx(0.52407, abs=1e-5)
    for utilities in ([1.0, 0.5, 0.0], [0.0, 0.5, 0.0]):
        selector.update(np.array(utilities))
    raised = np.array([1.68889, 1.68889, 1.0])  # e^step, and e^(step / 2) twice
    assert selector.weights.tolist() == pytest.approx((raised / raised.sum()).tolist(), abs=1e-5)


def test_the_fixed_share_of_all_weight_is_spread_evenly() -> None:
    """Weights e^(step u), normalised, times 0.8, plus 0.2 / 2 each; the step is sqrt(2 ln 2 / 50)."""
    selector = Selector(["a", "b"], jobs=50, share=0.2)
    selector.update(np.array([1.0, 0.0]))
    raised = np.exp(np.sqrt(2 * np.log(2) / 50) * np.array([1.0, 0.0]))
    assert selector.weights.tolist() == pytest.approx((0.8 * raised / raised.sum() + 0.1).tolist())


class Short(Selector):
    """Weights that do not quite add up to 1, as rounded ones may."""

    @property
    def weights(self) -> FloatArray:
        return np.array([0.1, 0.1])


def test_a_draw_beyond_the_sum_of_the_weights_is_the_last_policy() -> None:
    assert {Short(["a", "b"]).choose(number) for number in range(9)} <= {"a", "b"}


def test_what_is_left_after_the_deadline_costs_on_demand_nodes() -> None:
    """It is done on all 12 nodes, which cost 3 each for each interval."""
    job, market = SpotJob(work=80.0, deadline=1, max_nodes=12), Market(np.array([0.5]), np.array([0]), on_demand=3.0)
    [ledger] = backtest([OnDemand()], JobBatch([job], market, [0]), MarketForecaster(LastValue()), guarded=False)
    paid, late = float(ledger.paid.sum()), int(ledger.late[0])
    assert late > 0
    assert ledger.cost.tolist() == [paid + late * 12 * 3.0]
