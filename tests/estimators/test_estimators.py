"""The conformance suite on every estimator; least squares against one fit, Kalman banks against filterpy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from lightning_core.core.arrays import NORMAL, FloatArray, IntArray
from lightning_core.core.protocols import Estimator
from lightning_core.estimators import ESTIMATORS, LeastSquares
from lightning_core.estimators.kalman import Kalman
from lightning_core.testing.estimator_conformance import (
    CHECKS,
    check_constant_loss,
    check_coverage,
    check_hostile_numbers,
    check_long_run,
    check_power_laws,
    check_quantiles,
    check_replay,
    check_rows,
    check_silence,
)
from lightning_core.testing.sample_curves import Make, is_close, is_sorted, power_laws

PLAIN = partial(Kalman, order=0, process=1e-4)

MEMBERS: dict[str, Make] = {
    **ESTIMATORS,
    "weighted slowly": partial(LeastSquares, gamma=0.99),
    "log_time, short memory": partial(LeastSquares, power=8.0),
    "kalman": PLAIN,
    "dkf": Kalman,
    "dkf undamped": partial(Kalman, damping=None),
    "dkf white": partial(Kalman, noise="white"),
    "velocity alone": partial(Kalman, order=1),
}

ROW = np.array([1])


@pytest.fixture(autouse=True)
def no_warning(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """Check that NumPy issues no warning in any test of this file."""
    yield
    assert [str(warning.message) for warning in recwarn if warning.category is RuntimeWarning] == []


@pytest.fixture(params=sorted(MEMBERS))
def make(request: pytest.FixtureRequest) -> Make:
    return MEMBERS[request.param]


def feed(bank: Estimator, positions: FloatArray, losses: FloatArray) -> None:
    """Feed cells of shape ``(cells,)`` into a bank."""
    for s, y in zip(positions, losses, strict=True):
        bank.observe(ROW, np.array([s]), np.array([y]))


def passage(bank: Estimator, threshold: float) -> FloatArray:
    return bank.first_passage(ROW, np.array([threshold]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_estimator_conforms(check: Callable[[Make], None], make: Make) -> None:
    check(make)


# How far the forecast of a noise-free power law may be off, relative: the fit in the law's own form is exact, a filter
# has yet to forget where it began, and the posterior keeps candidates of other exponents on its grid.
FORECAST = {"posterior": 0.15, **dict.fromkeys(["kalman", "dkf", "dkf undamped", "dkf white", "velocity alone"], 0.12)}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_a_power_law_is_recovered(name: str) -> None:
    check_power_laws(MEMBERS[name], FORECAST.get(name, 1e-6))


# Of 200 curves, the part that has the truth between the 10 % and the 90 % quantile. 0.8 would be exact. Least squares
# over the newest ten cells estimates its error from them; the filters are made for noise of 10 % and for drift, the
# posterior for curves that are no power law, and doubt these more than they need.
COVERAGE = {
    "least_squares": (0.725, 0.875),
    "weighted slowly": (0.725, 0.875),
    "log_time": (0.725, 0.95),
    "weighted": (0.725, 0.975),
}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_forecast_intervals_are_calibrated(name: str) -> None:
    check_coverage(MEMBERS[name], *COVERAGE.get(name, (0.775, 1.0)))


def test_a_forecast_needs_three_cells(make: Make) -> None:
    bank = make()
    bank.grow(2)
    for cells in range(4):
        assert np.isnan(bank.predict(ROW, np.array([50.0]))).tolist() == [cells < 3]
        feed(bank, np.array([10.0 * (cells + 1)]), np.array([1.0 / (cells + 1)]))


@pytest.mark.nightly
def test_a_million_cells_stay_finite(make: Make) -> None:
    check_long_run(make, 1_000_000)


class Wrong(LeastSquares):
    """Least squares with one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.calls = 0

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        if self.mistake == "rows":
            rows = np.zeros_like(rows)
        if self.mistake == "changes":
            loss *= 2.0
        super().observe(rows, position, loss)

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        self.calls += 1
        found = super().predict(rows, position)
        match self.mistake:
            case "talks":
                return np.nan_to_num(found, nan=1.0)
            case "silent":
                return np.full(len(rows), np.nan)
            case "random":
                return found + self.calls
            case "warns":
                return np.log(np.zeros(len(rows)))
        return found

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        found = super().first_passage(rows, threshold)
        match self.mistake:
            case "falling":
                return found[:, ::-1].copy()
            case "eager":
                return np.minimum(found, 4500.0)
            case "silent":
                return np.full_like(found, np.nan)
        return found


@pytest.mark.parametrize(
    ("mistake", "check", "rule"),
    [
        ("talks", check_silence, "a row without cells must have no forecast"),
        ("silent", check_silence, "after 10 cells there must be a forecast"),
        ("falling", check_quantiles, "quantiles must increase along each row"),
        ("rows", check_rows, "a row must not change with the cells of other rows"),
        ("changes", check_replay, r"observe\(\) must not change its arguments"),
        ("random", check_replay, r"restore\(\) must bring it back"),
        ("warns", check_hostile_numbers, "NumPy must have nothing to warn of"),
        ("eager", check_constant_loss, "a constant loss must not be expected to fall soon"),
    ],
)
def test_the_suite_names_the_rule_that_an_estimator_breaks(mistake: str, check: Any, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check(lambda: Wrong(mistake))


def test_the_suite_detects_an_overconfident_bank() -> None:
    with pytest.raises(AssertionError, match=r"the forecast of .* must be within 0.15 of it"):
        check_power_laws(lambda: Kalman(process=0.0, prior=1e-9))
    with pytest.raises(AssertionError, match="the 80 % interval must contain"):
        check_coverage(LeastSquares, low=0.999)


def test_the_curves_of_the_suite_have_noise_of_their_own() -> None:
    positions, losses = power_laws(rows=3, cells=400, noise=0.05)
    assert positions.tolist() == [10.0 * (1 + cell) for cell in range(400)]
    slopes, _ = np.polyfit(np.log(positions), np.log(losses), 1)
    assert ((slopes > -0.81) & (slopes < -0.19)).all()
    noise = np.log(losses) - np.log(power_laws(rows=3, cells=400, noise=0.0)[1])
    assert noise.std(axis=0) == pytest.approx([0.05] * 3, rel=0.2)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.2


def test_quantiles_that_fall_are_not_sorted_and_nan_is_close_to_nan() -> None:
    assert is_sorted(np.array([[1.0, 2.0, 2.0], [1.0, np.inf, np.inf]]))
    assert not is_sorted(np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]))
    assert is_close(np.array([1.0, np.nan]), np.array([1.0 + 1e-15, np.nan]))
    assert not is_close(np.array([1.0]), np.array([1.0 + 1e-9]))


# Least squares


@pytest.mark.parametrize(("power", "gamma"), [(4.0, None), (0.0, None), (0.0, 0.9), (0.0, 0.99)])
def test_recursive_least_squares_equal_the_batch_fit(power: float, gamma: float | None) -> None:
    draw = np.random.default_rng(1)
    s = np.cumsum(draw.integers(1, 40, 300)).astype(float)
    y = 5.0 * s**-0.3 * draw.lognormal(0, 0.2, len(s))
    bank = LeastSquares(power=power, gamma=gamma)
    bank.grow(2)
    feed(bank, s, y)
    weight = (s / s[-1]) ** power if gamma is None else gamma ** np.arange(len(s) - 1, -1, -1.0)
    slope, intercept = np.polyfit(np.log(s / s[-1]), np.log(y), 1, w=np.sqrt(weight))
    assert bank.slope(ROW)[0] == pytest.approx(-slope, rel=1e-9)
    assert bank.predict(ROW, np.array([2 * s[-1]]))[0] == pytest.approx(np.exp(intercept + slope * np.log(2)), rel=1e-9)


def test_every_column_of_least_squares_has_the_rows_that_it_was_given() -> None:
    bank = LeastSquares()
    for rows in (3, 5, 4):
        bank.grow(rows)
    assert {name: len(getattr(bank, name)) for name in bank.STATE} == dict.fromkeys(bank.STATE, 5)


def test_cells_at_one_position_have_no_slope() -> None:
    """Their variance of ln s, by which eq. 3.5 divides, is 0."""
    bank, row = LeastSquares(), np.array([0])
    bank.grow(1)
    for loss in (1.0, 0.9, 0.8):
        bank.observe(row, np.array([7.0]), np.array([loss]))
    with np.errstate(all="raise"):
        assert np.isnan(bank.slope(row)).all()


def test_a_long_run_does_not_lose_the_slope() -> None:
    """After ten million cells, ln s moves by 1e-7 a cell at gamma 0.9; the noise-free slope must still be right."""
    bank = LeastSquares(gamma=0.9)
    bank.grow(2)
    s = 1e7 + np.arange(1.0, 400.0)
    feed(bank, s, s**-0.3)
    assert bank.slope(ROW)[0] == pytest.approx(0.3, rel=1e-3)


# Kalman filters


def uneven(seed: int, cells: int = 600) -> tuple[FloatArray, FloatArray]:
    draw = np.random.default_rng(seed)
    s = np.cumsum(draw.integers(1, 30, cells)).astype(float)
    return s, 3.0 * s**-0.3 * draw.lognormal(0, 0.1, cells)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("order", "process", "noise"),
    [(0, 1e-4, "independent"), (1, 1e-3, "independent"), (2, 1e-3, "independent"), (2, 1e-3, "white")],
)
def test_a_kalman_bank_equals_filterpy(order: int, process: float, noise: str, seed: int) -> None:
    """The oracle's matrices are the papers', built here from the definitions, not taken from the bank."""
    from filterpy.common import Q_discrete_white_noise
    from filterpy.kalman import KalmanFilter

    s, losses = uneven(seed)
    bank = Kalman(order=order, process=process, noise=noise, delta=0.002, measurement=0.02, prior=0.5)  # type: ignore[arg-type]
    bank.grow(2)
    orders, states = order + 1, 2 * order + 2
    one = KalmanFilter(dim_x=states, dim_z=1)
    one.F = np.eye(states) + 0.002 * np.eye(states, k=2) + 0.002**2 / 2 * np.eye(states, k=4)
    one.Q = process * np.eye(states)
    if noise == "white":
        one.Q = Q_discrete_white_noise(orders, 0.002, process, block_size=2, order_by_dim=False)
    one.R *= 0.02
    one.P *= 0.5
    one.x[1] = np.log(losses[0])
    for position, loss in zip(s, losses, strict=True):
        one.predict()
        one.update(np.log(loss), H=np.array([[np.log(position), 1.0, *[0.0] * (states - 2)]]))
        bank.observe(ROW, np.array([position]), np.array([loss]))
    state, covariance = bank.belief(ROW)
    np.testing.assert_allclose(state[0], one.x[:, 0], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(covariance[0], one.P, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("damping", [0.3, None])
@pytest.mark.parametrize("ahead", [1, 20, 180, 5000])
def test_a_forecast_advances_the_state(damping: float | None, ahead: int) -> None:
    """Eq. 8, F^D by D multiplications; damped, D goes no further than 0.3 times the 600 cells seen."""
    s, losses = uneven(1)
    bank = Kalman(damping=damping)
    bank.grow(2)
    feed(bank, s, losses)
    position = s[-1] + ahead * (s[-1] - s[-2])
    steps = ahead if damping is None else min(ahead, 180)
    once = np.eye(6) + 1e-3 * np.eye(6, k=2) + 1e-6 / 2 * np.eye(6, k=4)
    minus_b, log_a = (np.linalg.matrix_power(once, steps) @ bank.belief(ROW)[0][0])[:2]
    expected = np.exp(np.clip(minus_b * np.log(position) + log_a, -50, 50))
    assert bank.predict(ROW, np.array([position]))[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "make_filter", [PLAIN, Kalman, partial(Kalman, damping=None)], ids=["plain", "dkf", "undamped"]
)
def test_quantiles_are_where_the_filter_s_error_bands_cross(make_filter: Callable[[], Kalman]) -> None:
    """The bands in the paper's coordinates, on a grid far finer than the bank's."""
    s, losses = uneven(2, cells=200)
    bank = make_filter()
    bank.grow(2)
    feed(bank, s, losses)
    goal = losses[-1] * 0.7
    (state,), (covariance,) = bank.belief(ROW)
    x = np.log(s[-1]) + np.linspace(0.0, 40.0 - np.log(s[-1]), 20_001)
    steps = np.expm1(x - np.log(s[-1])) * s[-1] / (s[-1] - s[-2])
    t = 1e-3 * np.minimum(steps, bank.damping * 200)
    powers = np.stack([np.ones_like(t), t, t * t / 2])[: bank.order + 1]
    h = np.stack([powers * x, powers], axis=1).reshape(-1, len(x))
    mean = state @ h
    error = np.sqrt(np.einsum("ik,ij,jk->k", h, covariance, h))
    expected = []
    for z in NORMAL:
        down = np.flatnonzero(mean + z * error <= np.log(goal))
        expected.append(np.exp(x[down[0]]) if len(down) else np.inf)
    found = passage(bank, goal)[0]
    assert np.isinf(found).tolist() == np.isinf(expected).tolist()
    finite = np.isfinite(found)
    np.testing.assert_allclose(np.log(found[finite]), np.log(np.array(expected)[finite]), atol=0.05)


def test_a_large_covariance_stays_positive_definite() -> None:
    """Coarse steps and much noise make P grow beyond 16 digits within 3,000 cells; usual ones take millions.

    In the paper's coordinates it is not a number after 1,864 of these cells.
    """
    bank = Kalman(delta=1.0, process=10.0)
    bank.grow(2)
    s = np.arange(1.0, 3001.0)
    losses = s**-0.3 * np.random.default_rng(0).lognormal(0, 0.05, len(s))
    feed(bank, s, losses)
    _, covariance = bank.belief(ROW)
    assert np.trace(covariance[0]) > 1e16
    assert bank.predict(ROW, s[-1:])[0] == pytest.approx(losses[-1], rel=0.05)
    assert not np.isnan(passage(bank, losses[-1] / 2)).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": 3}, "order must be 0, 1 or 2, got 3"),
        ({"delta": -1.0}, "delta must be at least 0 and finite, got -1.0"),
        ({"process": np.nan}, "process must be at least 0 and finite, got nan"),
        ({"prior": np.inf}, "prior must be at least 0 and finite, got inf"),
        ({"damping": -0.1}, "damping must be at least 0, got -0.1"),
        ({"measurement": 0.0}, "measurement must be positive and finite, got 0.0"),
        ({"noise": "pink"}, "noise must be 'independent' or 'white', got 'pink'"),
        ({"noise": "white", "order": 0}, "noise must be 'independent' with order 0"),
        ({"min_cells": 2}, "min_cells must be at least 3 cells, got 2"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Kalman(**arguments)  # type: ignore[arg-type]


def test_filterpy_is_imported_by_its_estimator_alone() -> None:
    seen = "import sys, lightning_core.scheduler.scheduler; print('filterpy' in sys.modules)"
    seen += "; from lightning_core.estimators.kalman import Kalman; Kalman(); print('filterpy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=300, check=True)
    assert said.stdout.split() == ["False", "True"]
