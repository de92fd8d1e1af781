"""Forecasts of series, against values worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.planning.time_series import (
    Autoregressive,
    Forecaster,
    LastValue,
    LiveForecaster,
    Perfect,
    Seasonal,
    Trend,
    errors,
)


@pytest.mark.parametrize(
    ("forecaster", "values", "expected"),
    [
        (LastValue(), [1, 2, 4], [[1, 1], [2, 2], [4, 4]]),
        (Perfect(), [1, 2, 4], [[2, 4], [4, 4], [4, 4]]),
        (Trend(points=2), [1, 2, 4], [[1, 1], [3, 3], [6, 6]]),  # at most 1.5 times the highest
        (Trend(points=2), [9, 8, 7], [[9, 9], [7, 6], [6, 5]]),
        (Trend(points=2), [4, 3, 1], [[4, 4], [2, 1], [0, 0]]),  # ... and not below 0
        (Trend(points=2), [0, -2, -1], [[0, 0], [-2, -2], [0, 0]]),  # unless the series was
        (Trend(points=3), [1, 2], [[1, 1], [2, 2]]),  # too few for a line
        (Trend(points=1), [1, 2], [[1, 1], [2, 2]]),
    ],
)
def test_a_table_holds_the_forecasts_at_each_interval(
    forecaster: Forecaster, values: list[float], expected: list[list[float]]
) -> None:
    assert forecaster.table(np.array(values), 2) == pytest.approx(np.array(expected, float))


def test_a_trend_counts_newer_intervals_more() -> None:
    at, seen, weights = np.array([-2, -1, 0]), np.array([2.0, 0.0, 3.0]), np.array([0.25, 0.5, 1.0])
    slope, level = np.polyfit(at, seen, 1, w=np.sqrt(weights))
    assert Trend(points=3, decay=0.5).table(seen, 1)[-1] == pytest.approx([level + slope])


def test_a_season_repeats_and_its_change_fades() -> None:
    """The third value is 3 above the one of two intervals before; of that e^-1/2 is left after one interval."""
    table = Seasonal(period=2, decay=2.0).table(np.array([1, 5, 4]), 4)
    assert table[:2].tolist() == [[1] * 4, [5] * 4]  # no interval a season ago is known
    assert table[2] == pytest.approx([5 + 3 * np.exp(-0.5), 4 + 3 * np.exp(-1.0), 4, 4])


def test_autoregression_continues_what_it_has_fitted() -> None:
    """Values that alternate: each is the one before less all of the last change."""
    values = np.tile([1.0, 3.0], 20)
    found = Autoregressive(order=2, window=20, refit=5)
    assert found.table(values, 3)[-1] == pytest.approx([1, 3, 1], abs=0.01)
    assert found.table(values, 3)[3].tolist() == [3, 3, 3]  # too few to fit
    first = Autoregressive(order=2, window=20, refit=1).table(values, 1)[6:8]
    assert first == pytest.approx(np.array([[1], [1]]), abs=0.01)  # fitted from four times the order on
    assert Autoregressive(order=2, window=20, refit=30).table(values, 3)[29].tolist() == [3, 3, 3]  # not fitted yet
    rising = Autoregressive(order=1, window=4, refit=1).table(np.arange(9.0), 3)
    assert rising[-1].tolist() == [8, 8, 8]  # never above the highest seen


def test_autoregression_forgets_what_is_older_than_its_window() -> None:
    values = np.concatenate([np.random.default_rng(0).uniform(0, 9, 50), np.tile([1.0, 3.0], 10)])
    assert Autoregressive(order=2, window=16, refit=1).table(values, 2)[-1] == pytest.approx([1, 3], abs=0.01)


def test_autoregression_learns_a_periodic_series() -> None:
    wave = 8 + 4 * np.sin(np.arange(200) * 2 * np.pi / 12)
    table, truth = Autoregressive(4).table(wave, 3), Perfect().table(wave, 3)
    assert np.abs(table - truth)[100:190].max() < 0.5
    assert np.abs(LastValue().table(wave, 3) - truth)[100:190].max() > 4
    assert np.abs(Seasonal(12).table(wave, 3) - truth)[100:190].max() < 1e-9


@pytest.mark.parametrize(
    "forecaster",
    [LastValue(), Seasonal(4), Seasonal(48), Autoregressive(2, 20, 5), Autoregressive(1, 4, 1)],
    ids=lambda one: type(one).__name__,
)
def test_the_newest_forecast_is_the_last_of_the_table_to_the_bit(forecaster: LiveForecaster) -> None:
    values = np.random.default_rng(2).uniform(0, 16, 60)
    for now, row in enumerate(forecaster.table(values, 9)):
        assert np.array_equal(forecaster.newest(values[: now + 1], 9), row)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (Seasonal, {"period": 0}, "period must be at least 1 interval, got 0"),
        (Seasonal, {"decay": 0.0}, "decay must be above 0 intervals, got 0.0"),
        (Autoregressive, {"order": 0}, "order and refit must be at least 1, got 0 and 24"),
        (Autoregressive, {"refit": 0}, "order and refit must be at least 1, got 6 and 0"),
        (Autoregressive, {"order": 2, "window": 7}, "window must be at least 4 times the order = 8, got 7"),
    ],
)
def test_wrong_arguments_name_the_rule_and_the_value(kind: type, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def test_errors_are_means_over_what_has_come_true() -> None:
    """Who forecasts the last value of 1, 2 and 4 errs by 1 and 2 one interval ahead, and by 3 two ahead."""
    values = np.array([1, 2, 4])
    assert errors(LastValue().table(values, 2), values).tolist() == [1.5, 3.0]
    assert errors(Perfect().table(values, 2), values).tolist() == [0.0, 0.0]
