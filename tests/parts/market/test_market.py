"""A market, its jobs and the decisions of policies: checked against values worked by hand and every possible plan."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.parts.edge_cloud.placement.predictor import PREDICTORS
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import (
    Arima,
    Autoregressive,
    LastValue,
    MarketForecaster,
    Noisy,
    Perfect,
    Seasonal,
    make_forecaster,
)
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.observation import Observation, SpotForecast, SpotPolicy
from lightning_core.parts.market.programs.optimum import by_labels, optimum
from lightning_core.parts.market.programs.progress_grid import grid_of
from lightning_core.parts.market.safety_net import SafetyNet
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import (
    SPOT_POLICIES,
    Ahanp,
    Ahap,
    AllOrNothing,
    Chain,
    MaxSpot,
    OnDemand,
    SemiMarkov,
    UniformProgress,
)
from lightning_core.parts.market.spot_policies.chain import transitions
from lightning_core.parts.market.spot_policies.on_demand import fewest_in_time, on_demand_cost
from lightning_core.parts.market.spot_policies.paper_pool import PAPER_POOL, REPAIRED_POOL, pool_of
from lightning_core.parts.market.spot_policies.semi_markov import _lose
from lightning_core.parts.market.spot_policy_conformance import CHECKS, check_spot_policy
from lightning_core.planning.time_series import LiveForecaster, errors
from tests.examples import examples

PAPER = SpotJob(work=80.0, deadline=10, overhead="total")
LAST, PERFECT = MarketForecaster(LastValue()), MarketForecaster(Perfect())

# Every registered policy, and variants of some.
POLICIES: dict[str, Any] = {
    **SPOT_POLICIES,
    "max-spot-last-2": lambda: MaxSpot(2),
    "ahanp-paper": lambda: Ahanp(0.4, mode="paper"),
    "ahap-5-3": lambda: Ahap(5, 3, 0.5),
    "ahap-now": lambda: Ahap(3, 2, 0.7, ahead="now"),
    "ahap-rollout": lambda: Ahap(4, 1, end="rollout"),
    "ahap-paper": lambda: Ahap(5, 5, 0.3, mode="paper"),
}


def alone(policy: SpotPolicy, job: SpotJob, market: Market, forecasts: Any = LAST, **how: Any) -> Ledger:
    """One policy, one job, from the market's first interval on."""
    [ledger] = backtest([policy], JobBatch([job], market, [0]), forecasts, **how)
    return ledger


def totals(ledger: Ledger) -> list[int]:
    held: list[int] = (ledger.spot + ledger.on_demand)[0].tolist()
    return held


def flat(available: list[int], price: float = 0.4) -> Market:
    return Market(np.full(len(available), price), np.array(available))


def test_a_job_holds_nothing_and_does_nothing_after_its_deadline_while_others_go_on() -> None:
    job = SpotJob(80.0, 3, max_nodes=2, value=20.0, growth_fraction=0.5, shrink_fraction=0.5)
    for policy in (MaxSpot(), OnDemand()):
        batch = JobBatch([job, replace(job, deadline=6)], flat([2] * 6), [0, 0])
        [ledger] = backtest([policy], batch, LAST, guarded=False)
        assert (ledger.spot + ledger.on_demand)[0].tolist() == [2, 2, 2, 0, 0, 0]
        assert ledger.progress[0].tolist() == [1.0, 3.0, 5.0, 5.0, 5.0, 5.0]
        assert ledger.progress[1].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


# ------------------------------------------------------------------------------------------------------ jobs, money


def test_value_of_the_remaining_work_after_the_deadline() -> None:
    assert (PAPER.intervals_after(80.0, 0), PAPER.worth_of_rest(80.0, 0)) == (7, -84.0)
    assert PAPER.worth_of_rest(0.8, 8) == pytest.approx(84.0)  # an interval late: 96 less 12
    assert PAPER.worth_of_rest(10.0, 12) == pytest.approx(84.0)  # as it is on all already
    assert PAPER.worth_of_rest(11.5, 8) == pytest.approx(120 * 0.6 - 24)  # two intervals, for the first loses a tenth
    assert PAPER.worth_of_rest(0.0, 3) == 120.0
    assert [PAPER.value_at(interval) for interval in (9, 10, 12, 15, 20)] == pytest.approx([120, 120, 72, 0, 0])


def test_feasibility_of_a_job() -> None:
    assert SpotJob(work=118.8, deadline=10).feasible
    assert not SpotJob(work=118.9, deadline=10).feasible


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"work": 0.0}, "work must be positive"),
        ({"deadline": 0}, "deadline must be at least 1 interval"),
        ({"min_nodes": 13}, "min_nodes must be at least 1 and at most max_nodes 12"),
        ({"throughput": (0.0, 1.0)}, "throughput must have 13 numbers"),
        ({"max_nodes": 2, "throughput": (0.0, 2.0, 1.0)}, "not fall with more"),
        ({"max_nodes": 2, "throughput": (1.0, 2.0, 3.0)}, "throughput must be 0 on 0 nodes"),
        ({"growth_fraction": 0.95, "shrink_fraction": 0.9}, "fractions must satisfy"),
        ({"grace": 1.0}, "grace must be above 1"),
        ({"value": math.nan}, "value must be at least 0"),
    ],
)
def test_invalid_jobs_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpotJob(**{"work": 80.0, "deadline": 10} | wrong)


@pytest.mark.parametrize(
    ("price", "available", "words"),
    [([0.1], [1, 2], "length"), ([-0.1], [1], "price must be at least 0"), ([0.1], [1.5], "must be whole"),
     ([], [], "must have the same length"), ([math.inf], [1], "price must be at least 0 and finite")],
)  # fmt: skip
def test_invalid_markets_are_refused(price: Any, available: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Market(price, available)


def test_a_spot_node_may_be_free_and_an_on_demand_node_not() -> None:
    assert Market(np.zeros(1), np.ones(1, np.int64)).price.tolist() == [0.0]
    for rule in ("on_demand", "seconds"):
        with pytest.raises(ValueError, match=f"^{rule} must be positive and finite, got 0"):
            Market(np.ones(1), np.ones(1, np.int64), **{rule: 0.0})  # type: ignore[arg-type]


def test_a_job_must_lie_within_its_market() -> None:
    with pytest.raises(ValueError, match="must begin at 0 to 2 of market, got 3"):
        JobBatch([PAPER], flat([1] * 12), [3])


# ------------------------------------------------------------------------------------------------------ policies


def test_on_demand_holds_the_fewest_nodes_that_suffice() -> None:
    ledger = alone(OnDemand(), PAPER, flat([4] * 10))
    assert totals(ledger) == [9] * 9 + [0]
    assert (ledger.cost[0], ledger.utility[0]) == (81.0, 39.0)


def test_the_published_rule_without_forecasts_interval_by_interval() -> None:
    """Spot nodes appear after four intervals: as printed the fleet shrinks to one, by default it grows on."""
    market = flat([0] * 4 + [16] * 6)
    printed = alone(Ahanp(0.9, mode="paper"), PAPER, market, guarded=False)
    assert totals(printed)[1:] == [1, 2, 4, 1, 2, 4, 8, 12, 12]
    grows = alone(Ahanp(0.9), PAPER, market, guarded=False)
    assert totals(grows) == [0, 1, 2, 4, 8, 12, 12, 12, 12, 12]
    assert grows.progress[0, -1] == pytest.approx(72.3)
    nothing = alone(Ahanp(0.9), PAPER, flat([0] * 10), guarded=False)
    assert (totals(nothing), nothing.utility[0]) == ([0, 1, 2, 4, 8, 12, 12, 12, 12, 12], pytest.approx(9.0))
    assert alone(Ahanp(0.9), PAPER, flat([0] * 10)).on_time.all()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be default or paper, got 'printed'"):
        Ahanp(mode="printed")  # type: ignore[arg-type]


def test_uniform_progress_buys_on_demand_nodes_without_spot() -> None:
    ledger = alone(UniformProgress(), PAPER, flat([0, 0, 12, 12, 12, 12, 12, 12, 12, 12]), guarded=False)
    assert ledger.on_demand[0, :2].tolist() == [9, 9]  # 8 an interval are due; 9 of them do 8.1 in the first
    assert not ledger.on_demand[0, 2:].any()


def test_all_or_nothing_stays_on_demand_until_it_is_ahead() -> None:
    ledger = alone(AllOrNothing(), PAPER, flat([11] * 10), guarded=False)
    assert set(totals(ledger)) <= {0, 12}
    assert ledger.spot.sum() == 0
    on = totals(ledger)
    assert on[0] == 0  # nothing is missing yet
    assert on[1] == 12


@pytest.mark.parametrize(("interval", "on_demand"), [(0, 0), (1, 0), (2, 9), (3, 9)])
def test_max_spot_adds_what_is_lacking_on_demand_in_the_last_intervals(interval: int, on_demand: int) -> None:
    job, none, zero = SpotJob(work=30.0, deadline=4), np.zeros(1, np.int64), np.zeros(1)
    forecast = SpotForecast(np.array([[0.4]]), np.array([[3]]))
    state = Observation(JobBatch([job], flat([3] * 4), [0]), interval, zero, none, none, forecast, zero, zero)
    assert [nodes.tolist() for nodes in MaxSpot(last=2).decide(state)] == [[3], [on_demand]]


def test_the_fewest_nodes_that_are_in_time() -> None:
    """Ten intervals less 0.1 for the launch: n nodes do 9.9 n. The reserve of a plan is for spot nodes."""
    jobs = [SpotJob(work, 10, least) for work, least in ((79.2, 1), (79.3, 1), (79.2, 8), (79.2, 9), (500.0, 1))]
    batch = JobBatch(jobs, flat([4] * 10), [0] * 5)
    assert fewest_in_time(batch).tolist() == [8, 9, 8, 9, 12]
    costly = JobBatch([replace(jobs[0], preemption_cost=1.0)], flat([4] * 10), [0])
    assert fewest_in_time(costly.with_reserve()).tolist() == [8]


def test_a_word_stands_for_the_paper_s_pool_as_printed_or_repaired() -> None:
    assert pool_of(["on-demand", "paper", "max-spot"]) == ("on-demand", *PAPER_POOL, "max-spot")
    assert pool_of(["repaired"]) == REPAIRED_POOL
    assert MarketTerms(policies=("paper",)).policies == PAPER_POOL
    for pool, as_printed in ((PAPER_POOL, True), (REPAIRED_POOL, False)):
        assert len(pool) == len(set(pool)) == 112
        made = [SPOT_POLICIES.make(spec) for spec in pool]
        assert {one.paper for one in made if isinstance(one, Ahap | Ahanp)} == {as_printed}


def test_a_transition_is_as_likely_as_it_was_frequent_beside_the_prior() -> None:
    """Counts 0, 1, 1, 3, 0 of at most 2, so 0, 1, 1, 2, 0; belief 2 that a count stays at 0.5, else is a usual one."""
    usual = (np.array([2, 2, 1]) + 1 / 3) / 6
    weights = np.array([[0, 1, 0], [0, 1, 1], [1, 0, 0]]) + 2.0 * (0.5 * np.eye(3) + 0.5 * usual)
    rows = transitions(np.array([0, 1, 1, 3, 0]), 2, stays=0.5, belief=2.0)
    assert rows == pytest.approx(weights / weights.sum(1, keepdims=True))


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("work", [1.0, 4.5, 9.0, 14.0, 25.0])
def test_where_counts_stay_a_markov_chain_plans_the_optimum(work: float, count: int) -> None:
    """Jobs that end early, in time on all nodes, and late; of a price and a value at which the last is given up."""
    for value in (8.0, 40.0):
        job = SpotJob(work, 4, 1, 3, value=value, overhead="total")
        batch = JobBatch([job], flat([count] * 4), [0])
        [ledger] = backtest([Chain(stays=1.0)], batch, LAST, guarded=False)
        assert ledger.utility[0] == pytest.approx(optimum(batch)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 1}, "window must be at least 2 intervals, got 1"),
        ({"stays": 1.1}, "stays must be at least 0 and at most 1, got 1.1"),
        ({"belief": 0.0}, "belief must be positive and finite, got 0.0"),
    ],
)
def test_wrong_arguments_of_a_markov_chain_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chain(**arguments)  # type: ignore[arg-type]
    assert Chain(window=2, stays=0.0).window == 2


def test_a_preempted_job_that_is_done_loses_nothing() -> None:
    """Others lose 1.5 cells, down to none: the worth at 0.5, 1.5 is halfway between two cells."""
    worth = np.tile([0.0, 1.0, 4.0, 9.0, 16.0], (1, 1, 2, 1))
    _lose(worth, np.array([[False, True]]), 1.5)
    assert worth[0, 0].tolist() == [[0, 1, 4, 9, 16], [0, 0, 0.5, 2.5, 16]]


def test_a_markov_chain_learns_transitions_of_counts() -> None:
    rows = transitions(np.array([0, 12, 0, 12, 0, 12, 0, 16, 0, 16, 0]), 12)
    assert rows.sum(1) == pytest.approx(np.ones(13))
    assert (rows.argmax(1)[[0, 12, 5]] == [12, 0, 5]).all()
    market = Market(np.full(300, 0.4), np.tile([0, 0, 12], 100))
    batch = JobBatch([PAPER] * 3, market, [200, 201, 202])
    chain, full, blind = (
        backtest([policy], batch, forecasts)[0].utility.mean()
        for policy, forecasts in ((Chain(), LAST), (Ahap(9, end="literal"), PERFECT), (Ahap(9, end="literal"), LAST))
    )
    assert full >= chain > full - 2
    assert chain > blind + 2


def test_spot_nodes_dearer_than_on_demand_are_never_held() -> None:
    dear = flat([16] * 10, price=1.2)
    for name in ("max-spot", "ahanp", "ahap", "uniform-progress"):
        assert alone(POLICIES[name](), PAPER, dear).spot.sum() == 0, name


def test_published_mode_adds_plans_up_and_default_mode_averages_them() -> None:
    market = flat([3, 9, 0, 12, 2, 7, 12, 0, 5, 12])
    modes: tuple[Any, Any] = ("default", "paper")
    mean, printed = (alone(Ahap(5, 5, mode=mode), PAPER, market, PERFECT, guarded=False) for mode in modes)
    assert sum(totals(printed)[:3]) > sum(totals(mean)[:3])
    one, same = (alone(Ahap(5, 1, end="literal", mode=mode), PAPER, market, PERFECT) for mode in modes)
    assert totals(one) == totals(same)


# ------------------------------------------------------------------------------------------------- the safety net


@st.composite
def worlds(draw: st.DrawFn, intervals: int = 10) -> tuple[SpotJob, Market]:
    """A job that can be ended in time, and a market of any kind."""
    max_nodes = draw(st.integers(1, 16))
    throughput = np.concatenate(
        [[0.0], np.cumsum(draw(st.lists(st.floats(0.05, 1.0), min_size=max_nodes, max_size=max_nodes)))]
    )
    growth_fraction = draw(st.floats(0.3, 1.0))
    shrink_fraction = draw(st.floats(growth_fraction, 1.0))
    deadline = draw(st.integers(1, intervals))
    work = draw(st.floats(0.05, 1.0)) * (growth_fraction + deadline - 1) * float(throughput[-1])
    preemption_cost = draw(st.sampled_from([0.0, 0.4, 1.5]))
    job = SpotJob(
        work,
        deadline,
        draw(st.integers(1, max_nodes)),
        max_nodes,
        tuple(throughput.tolist()),
        growth_fraction,
        shrink_fraction,
        preemption_cost=preemption_cost,
    )
    prices = draw(st.lists(st.floats(0.05, 1.3), min_size=intervals, max_size=intervals))
    counts = draw(st.lists(st.integers(0, 16), min_size=intervals, max_size=intervals))
    return job, Market(np.array(prices), np.array(counts))


@pytest.mark.stories
@pytest.mark.parametrize("name", POLICIES)
@given(world=worlds(), seed=st.integers(0, 99))
@settings(max_examples=examples(5), deadline=None)
def test_every_policy_conforms(name: str, world: tuple[SpotJob, Market], seed: int) -> None:
    for check in CHECKS:
        check(POLICIES[name], world, seed)


@given(world=worlds(), overhead=st.sampled_from(["total", "launches"]))
@settings(max_examples=examples(30), deadline=None)
def test_ledgers_add_up(world: tuple[SpotJob, Market], overhead: Any) -> None:
    job, market = world
    job, terms = replace(job, overhead=overhead), {"preemption_cost": job.preemption_cost}
    ledger = alone(MaxSpot(), job, market, **terms)
    assert job.preemption_cost or np.all(np.diff(ledger.progress[0]) >= 0)
    assert ledger.cost[0] == pytest.approx(ledger.paid.sum())
    free = alone(MaxSpot(), job, market, guarded=False, **terms)
    kept = free.on_demand[0, -1] + (free.spot[0, -1] if overhead == "total" else 0)
    assert free.late[0] == job.intervals_after(job.work - free.progress[0, -1], int(kept))


class Wrong(MaxSpot):
    """MaxSpot with one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.intervals = 0

    def decide(self, observation: Observation) -> tuple[Any, Any]:
        self.intervals += 1
        spot, on_demand = super().decide(observation)
        match self.mistake:
            case "half":
                return spot / 2, on_demand
            case "negative":
                return spot - 99, on_demand
            case "shape":
                return spot[:1], on_demand
            case "changes":
                observation.progress[:] = 0.0
            case "counts on":
                return spot, on_demand + self.intervals
            case "looks ahead":
                return spot, on_demand + observation.batch.available[:, -1]
            case "neighbours":
                return spot, on_demand + len(observation.batch)
        return spot, on_demand


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("half", "spot nodes must be whole, got float64"),
        ("negative", "spot nodes must be at least 0"),
        ("shape", r"spot nodes must have shape \(2,\), got \(1,\)"),
        ("changes", "must not change the observation"),
        ("counts on", "interval 0 must reset the policy"),
        ("looks ahead", "must not look at prices and counts after the interval"),
        ("neighbours", "a job must get the same nodes whatever plays beside it"),
    ],
)
def test_the_suite_names_the_rule_that_a_policy_breaks(mistake: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_spot_policy(lambda: Wrong(mistake))


def test_preempted_spot_nodes_lose_their_work_of_the_interval() -> None:
    """Four were held: a preemption costs 2.8 of work, of which the change to three is 0.3 already."""
    job = SpotJob(30.0, 10, max_nodes=4)
    ledger = alone(MaxSpot(), job, flat([4, 3, 3, 4, 0, 0, 0, 0, 0, 0]), preemption_cost=0.7)
    done = np.diff(ledger.progress[0, :5], prepend=0.0)
    assert done == pytest.approx([0.9 * 4, 0.9 * 3 - 2.5, 3.0, 0.9 * 4, -2.8])
    assert ledger.late == [1]  # the job did not expect preemptions
    known = replace(job, preemption_cost=0.7)
    assert alone(MaxSpot(), known, flat([4, 3, 3, 4, 0, 0, 0, 0, 0, 0]), preemption_cost=0.7).on_time.all()


def test_nodes_held_at_the_start_cost_no_launch() -> None:
    job = SpotJob(8.0, 4, max_nodes=4, growth_fraction=0.5, shrink_fraction=0.5)

    def first(job: SpotJob) -> list[float]:
        ledgers = [alone(OnDemand(), job, flat([0] * 4), held=held) for held in ((0, 0), (1, 2), (0, 3))]
        return [float(ledger.progress[0, 0]) for ledger in ledgers]

    assert first(replace(job, overhead="total")) == [1.5, 3.0, 3.0]
    assert first(job) == [1.5, 1.5, 3.0]  # an on-demand node in place of the spot node is launched


def test_preemption_costs_count_only_where_a_preemption_is_possible() -> None:
    job, market = (
        SpotJob(38.0, 12, max_nodes=4, growth_fraction=0.2, shrink_fraction=0.2, preemption_cost=0.2, overhead="total"),
        flat([4] * 12),
    )
    # On-demand nodes alone are as many as without preemption costs.
    assert totals(alone(OnDemand(), job, market)) == totals(
        alone(OnDemand(), replace(job, preemption_cost=0.0), market)
    )
    assert on_demand_cost(job, 1.0) == on_demand_cost(replace(job, preemption_cost=0.0), 1.0)
    # Spot nodes stay if they can; and a job without preemption costs gets the same beside one that has them.
    held = np.array([3])
    row = LAST.look(JobBatch([job], market, [0]), 10, 0)
    for preemption_cost, beside in ((0.2, False), (0.0, False), (0.0, True)):
        batch = JobBatch([replace(job, preemption_cost=preemption_cost)] + [job] * beside, market, [0] * (1 + beside))
        several = [np.repeat(column, 1 + beside) for column in (np.array([33.0]), held, held * 0)]
        now = SpotForecast(np.repeat(row.prices, 1 + beside, 0), np.repeat(row.counts, 1 + beside, 0))
        net = SafetyNet(Observation(batch, 10, several[0], several[1], several[2], now, several[0], several[0]))
        wanted = np.array([4] * (1 + beside))
        assert [one[0] for one in net.guarded(wanted, wanted * 0)] == [3, 0]


@pytest.mark.parametrize("growth_fraction", [0.05, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("overhead", ["total", "launches"])
def test_the_safety_net_leaves_safe_jobs_alone(growth_fraction: float, overhead: Any) -> None:
    """Where a change costs nearly a whole interval, nine that stay are worth more than twelve that are launched."""
    part = growth_fraction
    job = SpotJob(work=80.0, deadline=10, growth_fraction=part, shrink_fraction=part, overhead=overhead)
    for policy in (OnDemand, MaxSpot):
        netted = alone(policy(), job, flat([9] * 10))
        free = alone(policy(), job, flat([9] * 10), guarded=False)
        if overhead == "total" or policy is OnDemand:  # else it is not safe that spot instances stay
            assert totals(netted) == totals(free)
        assert netted.on_time.all()


# ----------------------------------------------------------------------------------------------- windows, optimum


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_the_plan_of_a_window_is_optimal(data: st.DataObject) -> None:
    """With the whole future known and its end at the deadline, the plan is worth what the best of all plans is."""
    intervals, max_nodes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    min_nodes = data.draw(st.integers(1, max_nodes))
    growth_fraction, shrink_fraction = data.draw(st.sampled_from([(0.9, 0.9), (0.8, 0.9), (1.0, 1.0), (0.5, 1.0)]))
    # Rounded: work that is above a whole number by the tolerance alone is done for one and not for another.
    work = round(data.draw(st.floats(0.3, 1.2)), 3) * intervals * max_nodes
    job = SpotJob(
        work,
        intervals,
        min_nodes,
        max_nodes,
        growth_fraction=growth_fraction,
        shrink_fraction=shrink_fraction,
        value=10.0,
        grace=data.draw(st.sampled_from([1.5, 4.0])),
        overhead="total",
        soft_deadline=data.draw(st.sampled_from([None, *range(1, intervals + 1)])),
    )
    prices = data.draw(st.lists(st.floats(0.1, 1.3), min_size=intervals, max_size=intervals))
    counts = data.draw(st.lists(st.integers(0, 4), min_size=intervals, max_size=intervals))
    market = Market(np.array(prices), np.array(counts))
    numbers = (0, *range(min_nodes, max_nodes + 1))
    best = -math.inf
    for plan in itertools.product(numbers, repeat=intervals):
        held, done, cost, lost = 0, 0.0, 0.0, 0.0
        for interval, total in enumerate(plan):
            if done >= job.work - 1e-9:
                lost = job.value_at(intervals) - job.value_at(interval)
                break
            part = growth_fraction if total > held else shrink_fraction if total < held else 1.0
            spot = min(total, int(market.available[interval])) if prices[interval] <= 1 else 0
            held, done, cost = total, done + part * total, cost + spot * prices[interval] + total - spot
        best = max(best, job.worth_of_rest(max(job.work - done, 0.0), held) - lost - cost)
    ledger = alone(Ahap(max(intervals - 1, 1), 1, end="literal"), job, market, PERFECT, guarded=False)
    assert ledger.utility[0] == pytest.approx(best)
    assert optimum(JobBatch([job], market, [0]))[0] == pytest.approx(best)
    assert by_labels(job, market.price, market.available) == pytest.approx(best)


def test_the_grid_is_as_coarse_as_the_job_allows() -> None:
    assert grid_of(np.arange(13.0), 0.9, 0.9) == 0.1
    assert grid_of(np.arange(13.0), 1.0, 1.0) == 1.0
    assert grid_of(np.array([0.0, 1.5, 3.0]), 0.5, 1.0) == 0.25
    assert grid_of(np.array([0.0, math.pi]), 0.9, 0.9) == pytest.approx(math.pi / 1000)


@pytest.mark.nightly
def test_results_do_not_depend_on_the_unit_of_work() -> None:
    """A net that is a hair too strict, or too lax, would show: half of these can just be ended."""
    draw = np.random.default_rng(4)
    market = Market(draw.uniform(0.3, 0.9, 400), draw.integers(0, 14, 400))
    throughput = tuple(np.concatenate([[0.0], np.cumsum(draw.uniform(0.6, 1.1, 12))]).tolist())
    works = [(0.9 + 9) * throughput[-1] * part for part in (1.0, 1.0, 0.7, 0.8)] * 5
    starts = list(range(0, 200, 10))

    def ledger(made: Any, scale: float) -> Any:
        jobs = [SpotJob(scale * work, 10, 2, 12, tuple(scale * one for one in throughput)) for work in works]
        return backtest([made()], JobBatch(jobs, market, starts), LAST)[0]

    for made in (OnDemand, MaxSpot, Chain, Ahap):
        one = ledger(made, 1.0)
        assert one.on_time.all()
        for scale in (1e-6, 0.37, 1e6):
            other = ledger(made, scale)
            assert other.on_time.all(), scale
            assert other.utility == pytest.approx(one.utility, abs=1e-6), scale
            assert other.progress == pytest.approx(scale * one.progress, rel=1e-6), scale


def test_unreachable_work_costs_no_memory() -> None:
    job = SpotJob(1e12, 10)
    for policy in (Ahap(5, 1), Chain(), SemiMarkov()):
        assert alone(policy, job, flat([6] * 10)).late[0] > 1e9
    assert optimum(JobBatch([job], flat([6] * 10), [0]))[0] < -1e11


def test_policies_do_not_affect_each_other_with_random_forecasts() -> None:
    market = Market(np.full(40, 0.5), np.random.default_rng(2).integers(0, 16, 40))
    batch, noise = JobBatch([PAPER] * 3, market, [0, 7, 20]), MarketForecaster(Noisy(2.0), Noisy(2.0, seed=1))
    [one] = backtest([Ahap(1, 1)], batch, noise)
    two, _ = backtest([Ahap(1, 1), Ahap(5, 1)], batch, noise)
    assert np.array_equal(one.spot, two.spot)


# ---------------------------------------------------------------------------------------------------- forecasters


def test_artificial_errors_are_of_their_size_and_the_same_for_any_horizon() -> None:
    values = np.full(400, 2.0)
    for tails, largest in (("uniform", 1.0), ("heavy", 6.0)):
        noisy = Noisy(0.5, scale=4.0, tails=tails, seed=3)  # type: ignore[arg-type]
        errors = (noisy.table(values, 5) - 2.0) / (0.5 * 4.0)
        assert np.abs(errors).max() <= largest
        assert np.abs(errors).max() > 0.95 * largest
        assert np.array_equal(noisy.table(values, 3), noisy.table(values, 5)[:, :3])
        relative = replace(noisy, scale=None).table(values, 5)
        np.testing.assert_allclose((relative - 2.0) / (0.5 * 2.0), errors)
        # Half of them are within half of 1, or within half of the quartile .8726 of Student's t with 1.5 degrees.
        middle = float(np.median(np.abs(errors)))
        assert middle == pytest.approx(0.5 if tails == "uniform" else 0.4363, rel=0.06)


@pytest.mark.parametrize(
    "forecaster",
    [LastValue(), Seasonal(4), Autoregressive(2, 20, 5), Arima((1, 1, 0), 20, 10)],
    ids=lambda one: type(one).__name__,
)
def test_forecasts_do_not_use_the_future(forecaster: Any) -> None:
    draw = np.random.default_rng(1)
    values = draw.uniform(0, 16, 60)
    other = values.copy()
    other[40:] = draw.uniform(0, 16, 20)
    one, two = forecaster.table(values, 11), forecaster.table(other, 11)  # also further than a season is long
    assert np.array_equal(one[:40], two[:40])
    assert one.shape == (60, 11)
    assert np.isfinite(one).all()
    assert forecaster.table(np.full(60, 7.0), 3) == pytest.approx(np.full((60, 3), 7.0))


@pytest.mark.parametrize(
    "text",
    ["last", "seasonal:period=4", "seasonal", "autoregressive:order=2,window=20,refit=5", "arima:window=20,refit=5"],
)
def test_the_newest_forecast_is_the_last_of_the_table_to_the_bit(text: str) -> None:
    """A pool asks for that one, at each length of what it has seen."""
    values, forecaster = np.random.default_rng(2).uniform(0, 16, 60), make_forecaster(text, 3 * 3600.0)
    assert isinstance(forecaster, LiveForecaster)
    table = forecaster.table(values, 9)
    for now, row in enumerate(table):
        assert np.array_equal(forecaster.newest(values[: now + 1], 9), row)


def test_arima_goes_on_from_its_last_fit_which_is_made_every_so_many_values() -> None:
    """(1, 1, 0) is fitted from 8 values before on, every 5: after 31 values the last fit is to 20 up to the 29th."""
    arima = pytest.importorskip("statsmodels.tsa.arima.model").ARIMA
    values = np.random.default_rng(3).uniform(0, 16, 31)
    following = arima(values[9:29], order=(1, 1, 0)).fit().append(values[29:]).forecast(3)
    assert Arima(window=20, refit=5).newest(values, 3) == pytest.approx(np.clip(following, values.min(), values.max()))


def test_seasons_are_days_unless_said_otherwise() -> None:
    assert make_forecaster("seasonal:decay=2", 1800.0) == Seasonal(48, 2.0)
    assert make_forecaster("seasonal:period=7", 1800.0) == Seasonal(7)


def test_the_trend_predictor_extrapolates() -> None:
    rising = np.concatenate([np.full(10, 2.0), np.arange(2.0, 12.0)])
    table = PREDICTORS["trend"].table(rising, 2)
    assert table[-1] == pytest.approx([12.0, 13.0])
    other = np.concatenate([rising[:15], np.zeros(5)])
    assert np.array_equal(PREDICTORS["trend"].table(other, 2)[:15], table[:15])
    wrong = {name: errors(one.table(rising, 2), rising)[1] for name, one in PREDICTORS.items()}
    assert wrong["trend"] < wrong["persistence"]
