"""Plans over several zones: where nodes are, and backtests in which they move."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.offers import Offer, region_of
from lightning_core.parts.market.run_lengths import RunLengths
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import AllOrNothing, MaxSpot, OnDemand, SemiMarkov, UniformProgress
from lightning_core.parts.market.zones.offer_trace import OfferTrace, any_of
from lightning_core.parts.market.zones.stays import expected_stay
from lightning_core.parts.market.zones.where import MoveCost, choose
from lightning_core.parts.market.zones.zone_backtest import backtest_zones

LAST = MarketForecaster(LastValue())
NONE, ONE = NodeCounts(), NodeCounts(1, 0)
EAST, WEST = "us-east-1a", "us-west-2b"


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"zone": ""}, "zone must not be empty"),
        ({"zone": "z" * 201}, "zone must have at most 200 characters"),
        ({"price": -0.1}, "price must be 0 to"),
        ({"price": math.nan}, "price must be 0 to"),
        ({"available": -1}, "available must be 0 to"),
        ({"on_demand": 0.0}, "on_demand must be 1e-09 to"),
        ({"throughput": 0.9}, "throughput must be 1 to"),
    ],
)
def test_an_offer_out_of_range_is_refused(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Offer(**{"zone": EAST, **values})


def test_the_name_of_a_zone_says_its_region_unless_it_is_given() -> None:
    assert [region_of(zone) for zone in ("us-gov-west-1b", "asia-east1-c", "eastus", "")] == [
        "us-gov-west-1", "asia-east1", "eastus", "",
    ]  # fmt: skip
    assert Offer("a", region="there").region == "there"


def offers(*prices: float, zones: tuple[str, ...] = (EAST, "us-east-1b", WEST), **values: Any) -> list[Offer]:
    return [Offer(zone, price=price, available=1, **values) for zone, price in zip(zones, prices, strict=False)]


@pytest.mark.parametrize(
    ("stays", "held", "cost", "chosen"),
    [
        ([5.0, 9.0], [NONE, NONE], MoveCost(launch=1.0), 1),  # 5 / 4 is more than 9 / 8
        ([5.0, 9.0], [NONE, NONE], MoveCost(), 0),  # nothing lost, so that the first one is as good
        ([1.5, 99.0], [ONE, NONE], MoveCost(launch=1.0), 0),  # what stands works all the time
        ([2.0, 99.0], [ONE, NONE], MoveCost(launch=1.0, loss=0.5), 1),  # 2 / 1.5 is more than 99 / 97.5
        ([1.0, 1.0], [NONE, NONE], MoveCost(launch=1.0), 0),  # none does any work: still one is chosen
    ],
)
def test_the_node_whose_work_costs_least_over_its_stay_is_chosen(
    stays: list[float], held: list[NodeCounts], cost: MoveCost, chosen: int
) -> None:
    nodes = choose(offers(1.0, 1.0), stays, held, ONE, cost=cost)
    assert nodes.index(ONE) == chosen
    assert sum(has.all for has in nodes) == 1


@pytest.mark.parametrize(
    ("cost", "chosen"), [(MoveCost(), WEST), (MoveCost(transfer=1.0), EAST), (MoveCost(egress=0.15), EAST)]
)
def test_another_region_costs_the_transfer_and_the_egress(cost: MoveCost, chosen: str) -> None:
    # 10 intervals at 0.39 cost 3.9 there; with the transfer 0.433 an interval that works, with the egress 0.405.
    some = offers(0.4, 0.39, zones=(EAST, WEST))
    for homes, expected in ((["us-east-1"], chosen), ([], WEST)):
        nodes = choose(some, [10.0, 10.0], [NONE, NONE], ONE, homes, cost)
        assert some[nodes.index(ONE)].zone == expected


def test_an_offer_gives_no_more_than_it_has_beside_what_stands() -> None:
    some = [Offer(EAST, price=0.5, available=2), Offer(WEST, price=0.9, available=2)]
    nodes = choose(some, [9.0, 9.0], [ONE, NONE], NodeCounts(3, 0), cost=MoveCost(launch=1.0))
    assert nodes == [NodeCounts(2, 0), ONE]


@pytest.mark.parametrize(("left", "moves"), [(4.0, False), (6.0, True)])
def test_what_stands_stays_unless_a_move_pays_in_the_time_left(left: float, moves: bool) -> None:
    # A move costs 1 of the intervals left: 4 x 0.8 / 3 is more than 1 for each, and 6 x 0.8 / 5 is less.
    for may_move in (True, False):
        nodes = choose(
            offers(1.0, 0.8), [99.0, 99.0], [ONE, NONE], ONE, cost=MoveCost(launch=1.0), left=left, may_move=may_move
        )
        assert nodes == ([NONE, ONE] if moves and may_move else [ONE, NONE])


def test_on_demand_nodes_are_placed_as_well_and_faster_ones_count_for_more() -> None:
    some = [
        Offer(EAST, "small", 0.5, 4, on_demand=1.0), Offer(EAST, "large", 0.9, 4, on_demand=1.9, throughput=2.0),
        Offer(WEST, "small", 0.6, 4, on_demand=0.9),
    ]  # fmt: skip
    nodes = choose(some, [9.0] * 3, [NodeCounts(3, 1), NONE, NONE], NodeCounts(5, 2), cost=MoveCost(4.0), left=20.0)
    assert nodes == [NodeCounts(3, 1), NodeCounts(2, 0), NodeCounts(0, 1)]
    with pytest.raises(ValueError, match="spot nodes wanted must be at most the 12 on offer, got 13"):
        choose(some, [9.0] * 3, [NONE] * 3, NodeCounts(13, 0))


@pytest.mark.parametrize("seed", range(5))
def test_nodes_are_expected_to_stay_as_long_as_the_chain_of_ages_says(seed: int) -> None:
    draw = np.random.default_rng(seed)
    counts = np.append(np.repeat(np.arange(40) % 2 * 2, draw.geometric(0.1, 40)), [2] * (1 + 20 * seed))
    runs = RunLengths((counts >= 2).astype(np.int64), 2)
    hazards, ages = runs.hazards()[1], runs.ages
    passes = np.append(1.0 / np.diff(ages), 0.0)
    stays: FloatArray = np.diag((1.0 - hazards) * (1.0 - passes)) + np.diag(((1.0 - hazards) * passes)[:-1], 1)
    expected = np.linalg.solve(np.eye(len(ages)) - stays, np.ones(len(ages)))
    assert expected_stay(counts, 2) == pytest.approx(expected[runs.row - len(ages)])


def trace(zone: str, counts: list[int], price: float = 0.5, **values: Any) -> OfferTrace:
    return OfferTrace(Market(np.full(len(counts), price), np.array(counts)), zone, **values)


def job(work: float, deadline: int, launch: float = 0.5, **values: Any) -> SpotJob:
    return SpotJob(
        work, deadline, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0, launch_time=launch, **values
    )


def test_a_node_comes_back_in_the_other_region_and_pays_for_the_move() -> None:
    zones = [trace(EAST, [1, 1, 0, 0, 0, 0, 0, 0]), trace(WEST, [0, 1, 1, 1, 1, 1, 1, 1])]
    [ledger] = backtest_zones([MaxSpot()], [job(4.0, 8)], zones, [0], LAST, transfer=0.25, egress=0.1)
    # A launch takes a quarter of an interval in the region of the checkpoint, and half of one elsewhere.
    assert ledger.part[0].tolist() == [0.75, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert ledger.counts[0, :, :, 0].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [0, 0], [0, 0], [0, 0]]
    assert ledger.paid[0].tolist() == pytest.approx([0.5, 0.5, 0.6, 0.5, 0.5, 0.0, 0.0, 0.0])
    assert (ledger.moves.tolist(), ledger.egress.tolist()) == ([1], [0.1])
    assert ledger.cost.tolist() == pytest.approx([2.6])


def test_a_preemption_costs_its_work_where_another_zone_has_nodes() -> None:
    zones = [trace(EAST, [1, 1, 0, 0, 0, 0, 0, 0]), trace("us-east-1b", [0, 0, 1, 1, 1, 1, 1, 1])]
    lossy = job(4.0, 8, preemption_cost=0.75)
    [ledger] = backtest_zones([MaxSpot()], [lossy], zones, [0], LAST, preemption_cost=0.75)
    assert ledger.progress[0].tolist() == pytest.approx([0.5, 1.5, 1.75, 2.75, 3.75, 4.0, 4.0, 4.0])


def random_zones(seed: int, count: int, intervals: int, most: int = 1) -> list[OfferTrace]:
    draw = np.random.default_rng(seed)
    zones = []
    for number in range(count):
        levels = draw.integers(0, most + 1, intervals)
        counts = np.repeat(levels, draw.geometric(draw.uniform(0.1, 0.6), intervals))[:intervals]
        market = Market(draw.uniform(0.2, 0.9, intervals), counts)
        zones.append(OfferTrace(market, f"us-east-{number // 2}{'ab'[number % 2]}"))
    return zones


@pytest.mark.parametrize("terms", [{}, {"hand_over_time": 0.1}, {"hand_over_time": 0.05, "minimum_charge": 0.2}])
def test_one_zone_is_a_market(terms: dict[str, float]) -> None:
    for seed in range(4):
        # Of several nodes of a job that hands over, those that a preemption has left train on in zones alone.
        nodes = 1 if terms else 3
        zones = random_zones(seed, 1, 40, nodes)
        base = SpotJob(8.0 * nodes, 16, max_nodes=nodes, value=40.0, launch_time=0.3)
        several = replace(base, **terms)  # type: ignore[arg-type]
        starts, policies = [0, 7, 20], (OnDemand(), MaxSpot(), UniformProgress(), AllOrNothing())
        batch = JobBatch([several] * 3, zones[0].market, starts)
        for one, other in zip(
            backtest(policies, batch, LAST),
            backtest_zones(policies, [several] * 3, zones, starts, LAST),
            strict=True,
        ):
            for name in ("spot", "on_demand", "part", "progress", "paid", "cost", "utility"):
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)


def test_a_job_trains_on_in_its_zone_while_a_cheaper_one_starts_a_node() -> None:
    zones = [trace(EAST, [1] * 9, 0.5), trace(WEST, [0, 0, 1, 1, 1, 1, 1, 1, 1], 0.125)]
    moved = job(6.0, 9, hand_over_time=0.25, minimum_charge=0.5)
    [ledger] = backtest_zones([MaxSpot()], [moved], zones, [0], LAST, transfer=0.25, egress=0.1)
    # In the third interval it trains on for a quarter, moves for another, and then trains on the new node.
    assert ledger.progress[0].tolist() == pytest.approx([0.75, 1.75, 2.5, 3.5, 4.5, 5.5, 6.0, 6.0, 6.0])
    expected = [0.5, 0.5, 0.5 * 0.25 + 0.125 + 0.1, 0.125, 0.125, 0.125, 0.0625, 0.0, 0.0]
    assert ledger.paid[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("make", [pytest.param(SemiMarkov, marks=pytest.mark.nightly), MaxSpot, UniformProgress])
def test_no_job_is_late_that_on_demand_nodes_complete_in_time(make: type[SpotPolicy]) -> None:
    for seed in range(12 if make is not SemiMarkov else 2):
        launch = float(np.random.default_rng(seed).uniform(0.2, 2.5))
        loss = launch + 0.5 * (seed % 2)
        nodes = 1 if make is SemiMarkov else 1 + seed % 3
        work = nodes * (14 - launch - 0.1 - 3.0 * (seed % 3))
        hand_over = launch / 2 if seed % 2 and launch < 2 else None
        tight = SpotJob(
            work, 14, nodes if seed % 4 == 0 else 1, nodes, (), 0.7, 0.8, launch_time=launch,
            preemption_cost=loss * (seed % 4 > 1), hand_over_time=hand_over,
            minimum_charge=None if hand_over is None else 0.1,
        )  # fmt: skip
        zones = random_zones(seed, 4, 60, nodes)
        [ledger] = backtest_zones(
            [make()], [tight] * 8, zones, list(range(0, 40, 5)), LAST, transfer=0.1, egress=0.3,
            preemption_cost=tight.preemption_cost,
        )  # fmt: skip
        assert ledger.on_time.all(), seed
        up = np.array([[zone.market.available[at : at + 14] for zone in zones] for at in range(0, 40, 5)])
        assert (ledger.counts[..., 0] <= up.swapaxes(1, 2)).all()
        assert (ledger.counts.sum((2, 3)) == ledger.spot + ledger.on_demand).all()


@pytest.mark.parametrize(
    ("traces", "values", "rule"),
    [
        ([], {}, "at least one recording"),
        ([trace(EAST, [1] * 9), trace(WEST, [1] * 8)], {}, "the same number of intervals, got 8 and 9"),
        ([trace(EAST, [1] * 9)], {"transfer": 0.6}, "transfer must be at most the launch that it is part of, 0.5"),
        ([trace(EAST, [1] * 9)], {"egress": -1.0}, "egress must be at least 0 and finite, got -1.0"),
    ],
)
def test_what_does_not_go_together_is_refused(traces: list[OfferTrace], values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        backtest_zones([MaxSpot()], [job(4.0, 8)], traces, [0], LAST, **values)


def test_a_policy_sees_the_cheapest_offer_with_nodes() -> None:
    zones = [trace(EAST, [1, 0, 0], 0.5), trace(WEST, [2, 2, 0], 0.8, throughput=2.0), trace("x", [0, 3, 0], 0.3)]
    together = any_of(zones)
    assert together.price.tolist() == [0.4, 0.3, 0.3]
    assert together.available.tolist() == [3, 5, 0]
    assert (together.on_demand, together.name) == (0.5, f"{EAST} + {WEST} + x")
