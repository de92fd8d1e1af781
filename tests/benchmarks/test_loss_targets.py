"""The benchmark of a loss target on a spot market: jobs are planned with what is known, and end when they really do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.curves.bundles import recordings
from benchmarks.market import loss_targets
from benchmarks.market.loss_jobs import LossJob, draw
from benchmarks.market.loss_play import (
    LAUNCH,
    WORK,
    Played,
    by_bound,
    by_forecast,
    by_guess,
    by_truth,
    play,
)
from lightning_core.core.arrays import LEVELS
from lightning_core.parts.market.spot_market import Market
from lightning_core.simulation.recorded_curves import SHIPPED, load_curves

CELLS, NEEDS, BOUND = 12, 1200.0, 6000.0
ALWAYS = Market(np.full(100, 0.25), np.ones(100, np.int64))


def job(market: Market = ALWAYS, forecast: float = NEEDS) -> LossJob:
    """Return a job of 1,200 batches of which so many are forecast from its first cell on, and nothing before."""
    forecasts = np.full((CELLS + 1, len(LEVELS)), forecast)
    forecasts[0] = np.nan
    return LossJob("curve", NEEDS, BOUND, np.arange(100.0, 100.0 * CELLS + 1, 100.0), forecasts, forecasts, market, 0)


def test_costs_are_billed_by_the_second() -> None:
    hours = LAUNCH + WORK
    assert play(job(), 18, "on-demand", by_truth) == pytest.approx((2 * hours, 0))
    assert play(job(), 18, "max-spot", by_truth) == pytest.approx((0.25 * 2 * hours, 0))


def test_a_plan_knows_no_more_than_it_is_told() -> None:
    gone = Market(np.full(100, 0.25), (np.arange(100) < 2).astype(np.int64))  # spot nodes only in the first hour
    assert play(job(gone), 14, "semi-markov", by_truth).late == 0
    # Told of half of its work it waits for spot nodes that never come, until it is too late for the other half.
    assert play(job(gone, NEEDS / 2), 14, "max-spot", by_forecast).late > 0


def test_told_of_too_much_it_does_not_wait_for_spot_nodes() -> None:
    later = Market(np.full(100, 0.25), (np.arange(100) >= 20).astype(np.int64))  # spot nodes after ten hours
    assert play(job(later), 26, "max-spot", by_truth) == pytest.approx((0.25 * 2 * (LAUNCH + WORK), 0))
    assert play(job(later), 26, "max-spot", by_bound).cost > 18.0


def test_a_guess_ends_where_it_is_reached() -> None:
    assert by_guess(job(), 0, 2999.0) == 3000.0
    assert by_guess(job(), 0, 3000.0) == BOUND


def test_a_plan_counts_on_a_high_quantile_of_the_forecast_and_on_no_more_than_the_training() -> None:
    drawn = job()
    drawn.forecasts[3] = np.linspace(1000.0, 2900.0, len(LEVELS))
    drawn.forecasts[4] = 10 * drawn.forecasts[3]
    assert by_forecast(drawn, 3, 300.0) == pytest.approx(2850.0, rel=1e-3)
    assert by_forecast(drawn, 4, 400.0) == by_forecast(drawn, 0, 0.0) == pytest.approx(BOUND)


def test_without_recordings_there_is_the_shipped_market(tmp_path: Path) -> None:
    [(name, [market])] = loss_targets.markets(tmp_path).items()
    assert (name, int(market.available.max())) == ("a100", 2)
    [one] = draw(recordings(load_curves(SHIPPED))[:3], [market], 1, 48, seed=0)
    assert one.needs < one.bound
    assert play(one, 24, "max-spot", by_forecast).late == 0


def test_costs_are_compared_job_by_job() -> None:
    played = {name: [Played(12.0, 0), Played(6.0, 3)] for name in loss_targets.ROWS}
    played[loss_targets.ON_DEMAND] = [Played(24.0, 0), Played(24.0, 0)]
    played[loss_targets.OURS] = [Played(6.0, 0), Played(6.0, 0)]
    figures = loss_targets.standings(played, "a100_24")
    assert (figures["ours_a100_24"], figures["exact_a100_24"]) == (0.25, 0.375)
    assert (figures["exact_less_ours_a100_24"], figures["exact_less_ours_se_a100_24"]) == (0.125, 0.125)
    assert (figures["ours_late_a100_24"], figures["exact_late_a100_24"]) == (0.0, 1.0)
