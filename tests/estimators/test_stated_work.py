"""Forecasts for statements: families of curves, floors, schedules, and what is sure enough to be said."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.estimators.stated_work import likeliest, work_left
from lightning_core.planning.chance import quantile

S = np.arange(10.0, 1001.0, 10.0)


def middle(curve: Callable[[FloatArray], FloatArray], threshold: float, noise: float = 0.05) -> float:
    drawn = np.random.default_rng(1).lognormal(0.0, noise, len(S))
    return float(quantile(work_left(S, curve(S) * drawn, threshold)[None], 0.5)[0])


@pytest.mark.parametrize(
    ("curve", "end"),
    [
        (lambda s: 3.0 * (s + 80.0) ** -0.6, 2600.0),
        (lambda s: 2.0 * np.exp(-s / 700.0), 2600.0),
        (lambda s: 2.0 * np.exp(-np.sqrt(s / 100.0)), 2600.0),
        (lambda s: 2.0 / (1.0 + (s / 500.0) ** 4) + 0.01, 2000.0),
        (lambda s: np.exp(-s / 600.0) + 0.5, 1800.0),
    ],
    ids=["power law", "exponential", "stretched exponential", "plateau and drop", "floor"],
)
def test_each_family_is_followed_to_its_target(curve: Callable[[FloatArray], FloatArray], end: float) -> None:
    left = middle(curve, float(curve(np.array([end]))[0]))
    assert abs(np.log(left / (end - S[-1]))) < np.log(2.0)


def test_a_curve_that_has_come_to_rest_gives_no_number() -> None:
    left = work_left(S, 1.0 + np.exp(-S / 60.0), 0.9)
    work, chance = likeliest(left)
    assert work == np.inf or chance < 0.65


def test_what_a_schedule_still_brings_is_counted() -> None:
    """The rate comes down to nothing at 2,000 batches, and with it the loss by a half."""
    rates = np.array([1.0, 1000.0, 2000.0]), np.array([1.0, 1.0, 0.0])
    loss = np.where(S <= 600.0, 1.0, np.nan)
    seen = ~np.isnan(loss)
    position = np.append(S[seen], [1100.0, 1200.0, 1300.0, 1400.0])
    down = np.interp(position, *rates)
    falls = np.append(1.0 + S[seen] ** -0.5, 1.0 + np.array([1100.0, 1200.0, 1300.0, 1400.0]) ** -0.5)
    falls *= np.exp(-0.8 * (1.0 - down))
    with_rates = quantile(work_left(position, falls, 0.55, rates)[None], 0.5)[0]
    assert 150.0 < with_rates < 900.0


def test_losses_of_any_sign_count_from_a_floor() -> None:
    above = work_left(S, 2.0 * np.exp(-S / 700.0) - 3.0, -2.9)
    assert 500.0 < quantile(above[None], 0.5)[0] < 3000.0


def test_a_loss_above_zero_is_not_expected_to_fall_to_it() -> None:
    assert np.isinf(work_left(S, 2.0 * S**-0.5, 0.0)).mean() > 0.9
    assert np.isfinite(work_left(S, 2.0 * S**-0.5 - 0.1, 0.0)[:10]).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("losses", [1e300 / S, 1e-300 / S, -1e300 / S, np.where(S < 500, 1e300, 1e-300), np.ones(100)])
def test_losses_of_any_size_give_a_forecast(losses: FloatArray) -> None:
    for threshold in (losses[-1] / 2, -1e300):
        left = work_left(S, losses, threshold)
        assert not np.isnan(left).any()
        assert (left > 0).all()


def test_fewer_than_three_points_say_nothing() -> None:
    assert np.isnan(work_left(S[:2], S[:2], 1.0)).all()
    assert np.isnan(work_left(S[:0], S[:0], 1.0)).all()


def test_the_likeliest_work_is_that_with_most_within_a_factor_of_two() -> None:
    left = np.concatenate([np.full(5, 10.0), np.full(9, 100.0), np.full(6, np.inf)])
    assert likeliest(left) == pytest.approx((100.0, 9 / 20))
    assert likeliest(np.full(20, np.inf)) == (np.inf, 0.0)
