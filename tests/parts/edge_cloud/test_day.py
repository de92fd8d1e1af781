"""Simulated days: what is served, and the value of forecasts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.edge_cloud.placement import Demands, EdgePrices, Gpu, Level, Node, PlacedJob, Weights, plan
from lightning_core.parts.edge_cloud.placement.day_simulation import DayResult, Surges, simulate_day
from lightning_core.parts.edge_cloud.placement.predictor import HORIZON, PREDICTORS, relative_errors
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits
from lightning_core.planning.time_series import LastValue, Perfect
from tests.examples import examples

# 150 samples a second on a GPU, 100 epochs: ten of them serve 15 samples a second, not one more.
DEMANDS = Demands(
    ("night", "day"), {"v100": Gpu(2.0)}, {"fp32": Level(0.9, {"v100": 150.0})},
    {"n": Node({"v100": 25.0}), "m": Node({"v100": 12.0})},
    {"a": PlacedJob((1, 2), 15.0, 0.4, delay=20.0), "b": PlacedJob((1, 1), 15.0, 0.4, delay=20.0)},
    edge=EdgePrices(0.8),
)  # fmt: skip
PLACED = plan(DEMANDS, Weights(1.0, 0.0)).placement
FLAT = np.ones(8)


def test_planned_tasks_are_served() -> None:
    results = simulate_day(PLACED, {"a": FLAT, "b": FLAT}, LastValue())
    assert (results.served, results.moves, results.left) == (1.0, 0, 0)
    assert results.cost == pytest.approx(PLACED.cost)
    assert {location: load.tolist() for location, load in results.loads.items() if load.any()} == {
        location: [held] * 4 + [later] * 4
        for location in DEMANDS.locations
        if (held := PLACED.held(location, 0)["v100"]) + (later := PLACED.held(location, 1)["v100"])
    }


def test_arrivals_are_relative_to_the_period_s_own_rate() -> None:
    """Twelve samples a second by night and fifteen by day: half as much again is served by the GPUs that are added."""
    job = replace(DEMANDS.jobs["b"], rate=(12.0, 15.0))
    placed = plan(replace(DEMANDS, jobs={"b": job}), Weights(1.0, 0.0)).placement
    assert [choice.gpu_count for choice in placed.choices()] == [8.0, 10.0]
    assert simulate_day(placed, {"b": FLAT}, None).served == 1.0
    more = np.array([1.0, 1.0, 1.5, 1.5, 1.0, 1.0, 1.5, 1.5])
    asked, lost = 12.0 * 5.0 + 15.0 * 5.0, 2 * 0.5 * (12.0 + 15.0)
    assert simulate_day(placed, {"b": more}, None).served == pytest.approx(1 - lost / asked)
    assert simulate_day(placed, {"b": more}, Perfect(), horizon=1).served == pytest.approx(1.0)


def test_gpus_serve_fewer_samples_where_each_takes_more_processing() -> None:
    job = replace(DEMANDS.jobs["b"], rate=7.5, processing=(1.0, 2.0))
    placed = plan(replace(DEMANDS, jobs={"b": job}), Weights(1.0, 0.0)).placement
    assert [choice.gpu_count for choice in placed.choices()] == [5.0, 10.0]
    assert simulate_day(placed, {"b": FLAT}, None).served == 1.0
    assert simulate_day(placed, {"b": 1.25 * FLAT}, None).served == pytest.approx(1 / 1.25)


def test_a_surge_is_served_from_the_step_that_forecasts_it() -> None:
    surge = np.array([1, 1, 1.2, 1.2, 1, 1, 1, 1.0])
    asked = 15.0 * (FLAT[:4].sum() + surge[:4].sum() + 2 * FLAT[4:].sum() + surge[4:].sum())
    lost = {None: 2 * 3.0, LastValue(): 1 * 3.0, Perfect(): 0.0}
    costs = []
    for forecaster, missing in lost.items():
        results = simulate_day(PLACED, {"a": FLAT, "b": surge}, forecaster, horizon=1)
        assert results.served == pytest.approx(1 - missing / asked)
        costs.append(results.cost)
    assert costs[0] < costs[1] == pytest.approx(costs[2])  # persistence releases as late as it grows


def added(results: DayResult, arrivals: dict[str, FloatArray]) -> list[float]:
    """Return the GPUs in each step that were not planned."""
    planned = simulate_day(PLACED, arrivals, None)
    return [float(sum(day) - sum(before)) for day, before in zip(
        zip(*results.loads.values(), strict=True), zip(*planned.loads.values(), strict=True), strict=True
    )]  # fmt: skip


@pytest.mark.parametrize(("horizon", "steps"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_plan_is_changed_as_many_steps_ahead_as_the_forecast_looks(horizon: int, steps: int) -> None:
    """A surge in the last step of the night. Nothing is known of it before the second step, the first that is forecast.

    The day begins as planned: its own steps do not change the night, however far the forecast looks.
    """
    arrivals = {"a": FLAT, "b": np.array([1, 1, 1, 1.2, 1.2, 1, 1, 1.0])}
    grown = added(simulate_day(PLACED, arrivals, Perfect(), horizon=horizon), arrivals)
    assert grown == [0] * (4 - steps) + [2] * steps + [2, 0, 0, 0]
    if horizon == HORIZON:
        assert added(simulate_day(PLACED, arrivals, Perfect()), arrivals) == grown


def test_a_surge_of_the_next_period_changes_nothing_before_it_begins() -> None:
    arrivals = {"a": FLAT, "b": np.array([1, 1, 1, 1, 1.2, 1, 1, 1.0])}
    assert added(simulate_day(PLACED, arrivals, Perfect()), arrivals) == [0, 0, 0, 0, 2, 0, 0, 0]


def test_low_demand_releases_nothing_that_was_planned() -> None:
    results = simulate_day(PLACED, {"a": 0.5 * FLAT, "b": FLAT}, Perfect())
    assert results.served == 1.0
    assert results.cost == pytest.approx(PLACED.cost)


def test_tasks_left_out_of_the_plan_are_not_served() -> None:
    task = next(iter(PLACED.served))
    without = replace(PLACED, served={**PLACED.served, task: (None, *PLACED.served[task][1:])})
    assert simulate_day(without, {"a": FLAT, "b": FLAT}, Perfect()).served == pytest.approx(1 - 4 / 20)


@given(st.integers(0, 100), st.floats(0.0, 0.6), st.sampled_from([None, LastValue(), *PREDICTORS.values()]))
@settings(max_examples=examples(40), deadline=None)
def test_perfect_foresight_serves_the_most_and_the_plan_costs_the_least(
    seed: int, size: float, forecaster: LastValue | None
) -> None:
    arrivals = Surges(size, events=0.5, noise=0.05, seed=seed).draw(DEMANDS, 8)
    known = simulate_day(PLACED, arrivals, Perfect(), ReconfigurationLimits(cost=0.0))
    results = simulate_day(PLACED, arrivals, forecaster, ReconfigurationLimits(cost=0.0))
    assert 0 < results.served <= 1
    assert results.cost >= PLACED.cost - 1e-9
    assert results.served <= known.served + 0.02  # an unnecessary move may turn out well later
    unchanged = simulate_day(PLACED, arrivals, None)
    assert results.served >= unchanged.served - 1e-9


def test_surges_are_as_requested() -> None:
    quiet = Surges(events=0.0, noise=0.0).draw(DEMANDS, 32)
    assert all(np.array_equal(values, np.ones(64)) for values in quiet.values())
    drawn = Surges(0.3, events=2.0, noise=0.0, seed=3).draw(DEMANDS, 32)
    assert max(values.max() for values in drawn.values()) == pytest.approx(1.3)
    assert all(values.min() == 1.0 for values in drawn.values())
    again = Surges(0.3, events=2.0, noise=0.0, seed=3).draw(DEMANDS, 32)
    assert all(np.array_equal(drawn[name], again[name]) for name in drawn)


def test_a_surge_ends_as_it_began() -> None:
    drawn = Surges(0.3, events=0.5, lasts=2, ramp=2, noise=0.0, seed=2).draw(DEMANDS, 8)["a"]
    assert drawn[6:14].tolist() == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.3, 1.2, 1.1, 1.0])


def test_moves_of_a_day_are_counted() -> None:
    """A task that needs half as much again finds no room where it stands."""
    results = simulate_day(PLACED, {"a": np.array([1, 1, 1, 1, 1, 1, 1.5, 1]), "b": FLAT}, Perfect())
    assert (results.moves, results.left) == (1, 0)


def test_bad_days_are_refused() -> None:
    with pytest.raises(ValueError, match="arrivals must be one series for each of a, b; see 'c'"):
        simulate_day(PLACED, {"a": FLAT, "b": FLAT, "c": FLAT}, None)
    with pytest.raises(ValueError, match=r"as many steps for each of 2 periods, got \[7\] in all"):
        simulate_day(PLACED, {"a": FLAT[:7], "b": FLAT[:7]}, None)
    with pytest.raises(ValueError, match="size must be at least 0 and finite"):
        Surges(size=-0.1)
    with pytest.raises(ValueError, match="horizon must be at least 1, got 0"):
        simulate_day(PLACED, {"a": FLAT, "b": FLAT}, None, horizon=0)


def test_predictors_look_as_far_as_the_published_one() -> None:
    """Two or three steps out (section IV-B)."""
    assert HORIZON == 3
    assert {one.shape for one in relative_errors([np.arange(40.0)]).values()} == {(3,)}


def test_each_predictor_is_compared_with_persistence() -> None:
    ramp = np.concatenate([np.full(20, 1.0), np.linspace(1, 9, 40)])
    beside = relative_errors([ramp])
    assert np.array_equal(beside["persistence"], np.ones(3))
    assert beside["trend"][2] < 0.3
    assert all(np.array_equal(one, np.ones(3)) for one in relative_errors([np.ones(30)]).values())
