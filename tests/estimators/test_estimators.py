"""One conformance suite for every estimator; least squares against the fit in one go, Kalman banks against filterpy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from lightning_core.core.arrays import LEVELS, NORMAL, FloatArray, IntArray
from lightning_core.core.protocols import Estimator
from lightning_core.estimators import ESTIMATORS, LeastSquares
from lightning_core.estimators.kalman import Kalman

PLAIN = partial(Kalman, order=0, process=1e-4)

MEMBERS: dict[str, Callable[[], Estimator]] = {
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
    """Every test here: hostile numbers included, NumPy has nothing to complain of."""
    yield
    assert [str(warning.message) for warning in recwarn if warning.category is RuntimeWarning] == []


@pytest.fixture(params=sorted(MEMBERS))
def make(request: pytest.FixtureRequest) -> Callable[[], Estimator]:
    return MEMBERS[request.param]


@pytest.fixture
def bank(make: Callable[[], Estimator]) -> Estimator:
    made = make()
    made.grow(3)
    return made


def feed(bank: Estimator, positions: FloatArray, losses: FloatArray, rows: IntArray = ROW) -> None:
    """Cells of shape ``(cells,)``, the same for all rows, or ``(cells, rows)``."""
    for s, y in zip(positions, losses, strict=True):
        bank.observe(rows, np.full(len(rows), s), np.broadcast_to(y, len(rows)))


def passage(bank: Estimator, threshold: float, rows: IntArray = ROW) -> FloatArray:
    return bank.first_passage(rows, np.full(len(rows), threshold))


def median(quantiles: FloatArray) -> FloatArray:
    """Between the two levels in the middle, half way on a logarithmic scale."""
    middle: FloatArray = np.sqrt(quantiles[:, 9] * quantiles[:, 10])
    return middle


def grows(quantiles: FloatArray) -> bool:
    """Along each row; an infinite quantile is followed by infinite ones."""
    return bool((quantiles[:, 1:] >= quantiles[:, :-1]).all())


def curves(rows: int, cells: int, noise: float = 0.05, seed: int = 3) -> tuple[FloatArray, FloatArray]:
    """Noisy power laws on one grid, shape ``(cells,)`` and ``(cells, rows)``."""
    draw = np.random.default_rng(seed)
    s = np.arange(10.0, 10.0 * cells + 1, 10.0)
    return s, 2.0 * s[:, None] ** -draw.uniform(0.2, 0.8, rows) * draw.lognormal(0, noise, (cells, rows))


def test_is_an_estimator(bank: Estimator) -> None:
    assert isinstance(bank, Estimator)


# How far the forecast of a noise-free power law may be off, relative: the fit in the law's own form is exact, a filter
# has yet to forget where it began, and the posterior keeps candidates of other exponents on its grid.
FORECAST = {"posterior": 0.15, **dict.fromkeys(["kalman", "dkf", "dkf undamped", "dkf white", "velocity alone"], 0.12)}


@pytest.mark.parametrize(("scale", "slope"), [(3.0, 0.4), (2.0, 0.5), (5e-4, 0.3), (7e5, 0.6)])
@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_recovers_a_power_law(name: str, scale: float, slope: float) -> None:
    bank = MEMBERS[name]()
    bank.grow(2)
    s = np.arange(10.0, 1000.0, 10.0)
    feed(bank, s, scale * s**-slope)
    within = FORECAST.get(name, 1e-6)
    truth = scale * 2000.0**-slope
    assert bank.predict(ROW, np.array([2000.0]))[0] == pytest.approx(truth, rel=within)
    # What is off in the loss is off by 1 / slope of it in the logarithm of the position.
    assert np.log(median(passage(bank, truth))[0] / 2000.0) == pytest.approx(0.0, abs=within / slope + 1e-9)


def test_says_nothing_before_it_has_seen_enough(bank: Estimator) -> None:
    rows = np.array([1, 0])
    for number, (s, y) in enumerate([(10.0, 1.0), (20.0, 0.9), (30.0, 0.85)]):
        assert np.isnan(bank.predict(rows, np.array([50.0, 50.0]))).all(), number
        quantiles = passage(bank, 0.5, rows)
        assert quantiles.shape == (2, len(LEVELS))
        assert np.isnan(quantiles).all()
        feed(bank, np.array([s]), np.array([y]))
    quantiles = passage(bank, 0.5, rows)
    assert not np.isnan(quantiles[0]).any()
    assert np.isnan(quantiles[1]).all()
    assert np.isnan(bank.predict(rows, np.array([50.0, 50.0]))).tolist() == [False, True]


def test_quantiles_grow_along_the_row_and_their_median_with_a_lower_threshold(bank: Estimator) -> None:
    rows = np.arange(40)
    bank.grow(40)
    s, losses = curves(40, 60, noise=0.3)
    feed(bank, s, losses, rows)
    asked = [passage(bank, threshold, rows) for threshold in (1.0, 0.3, 0.1, 0.01, 1e-4)]
    assert all(grows(quantiles) for quantiles in asked)
    for higher, lower in pairwise(asked):
        assert (median(lower) >= median(higher)).all()
    assert np.isfinite(asked[2]).any()


def test_rows_know_nothing_of_each_other_and_survive_growth(bank: Estimator) -> None:
    s = np.arange(10.0, 300.0, 10.0)
    feed(bank, s, s**-0.5)
    before = passage(bank, 0.01), bank.predict(ROW, np.array([500.0]))
    feed(bank, s, s**-0.1, np.array([0]))
    for rows in (4, 5, 50, 7):  # fewer than there are change nothing
        bank.grow(rows)
    feed(bank, s, s**-0.2, np.array([49, 2]))
    np.testing.assert_array_equal(passage(bank, 0.01), before[0])
    np.testing.assert_array_equal(bank.predict(ROW, np.array([500.0])), before[1])


def test_many_rows_at_once_equal_one_at_a_time(make: Callable[[], Estimator]) -> None:
    together, alone = make(), make()
    rows = np.random.default_rng(5).permutation(12)[:9]
    s, losses = curves(9, 40)
    for bank in (together, alone):
        bank.grow(12)
    feed(together, s, losses, rows)
    for k, row in enumerate(rows):
        feed(alone, s, losses[:, k], np.array([row]))
    ahead = np.geomspace(450.0, 1e6, 9)
    goal = losses[-1] * 0.7
    one_by_one = [alone.first_passage(rows[k : k + 1], goal[k : k + 1])[0] for k in range(9)]
    np.testing.assert_allclose(together.first_passage(rows, goal), one_by_one, rtol=1e-12)
    np.testing.assert_allclose(together.predict(rows, ahead), alone.predict(rows, ahead), rtol=1e-12)
    assert np.isfinite(one_by_one).any()


def test_a_large_bank_equals_small_ones(make: Callable[[], Estimator]) -> None:
    """Rows are worked on in blocks, neighbours perhaps another way than strangers."""
    rows = np.random.default_rng(6).permutation(5500)
    s, losses = curves(5500, 6)
    large, small = make(), make()
    large.grow(5500)
    small.grow(5500)
    feed(large, s, losses, rows)
    for some in np.split(np.arange(5500), [1, 700, 1900]):
        feed(small, s, losses[:, np.argsort(rows)][:, some], some)
    every = np.arange(5500)
    goal = losses[-1].take(np.argsort(rows)) * 0.8
    np.testing.assert_allclose(large.first_passage(every, goal), small.first_passage(every, goal), rtol=1e-12)


# Of 200 curves, how many have the truth between the 10 % and the 90 % quantile. 160 would be exact. Least squares over
# the newest ten cells guesses its error from them; the filters are made for noise of 10 % and for drift, the posterior
# for curves that are no power law, and doubt these more than they need.
COVERAGE = {"least_squares": (145, 175), "weighted slowly": (145, 175), "log_time": (145, 190), "weighted": (145, 195)}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_the_interval_holds_the_truth_about_as_often_as_it_should(name: str) -> None:
    bank = MEMBERS[name]()
    bank.grow(200)
    rows = np.arange(200)
    draw = np.random.default_rng(0)
    s = np.arange(10.0, 800.0, 10.0)
    feed(bank, s, 2.0 * s[:, None] ** -0.5 * draw.lognormal(0, 0.05, (len(s), 200)), rows)
    quantiles = passage(bank, 0.05, rows)
    assert grows(quantiles)
    low, high = (np.sqrt(quantiles[:, k] * quantiles[:, k + 1]) for k in (1, 17))
    min_cells, most = COVERAGE.get(name, (155, 200))
    assert min_cells <= ((low <= 1600.0) & (high >= 1600.0)).sum() <= most
    # An interval from now to never would hold it too: the middle is right within a factor of 2, typically.
    left = np.maximum(median(quantiles) - s[-1], 1.0)
    assert np.median(np.abs(np.log(left / (1600.0 - s[-1])))) < np.log(2.0)


HOSTILE = {
    "constant": np.full(200, 0.5),
    "rising": np.geomspace(1e-6, 1e6, 200),
    "falling": np.geomspace(1e6, 1e-6, 200),
    "subnormal": np.full(200, 5e-324),
    "huge": np.full(200, 1e300),
    "both ends": np.tile([1e-300, 1e300], 100),
    "dropping to nothing": np.append(np.full(199, 1.0), 1e-300),
}
GRIDS = {
    "to 1e12": np.geomspace(1.0, 1e12, 200),
    "far away": 1e12 + np.arange(200.0),
    "a long way off": np.append(np.arange(1.0, 200.0), 1e12),
}


@pytest.mark.parametrize("positions", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("losses", HOSTILE.values(), ids=HOSTILE)
def test_hostile_numbers_leave_no_nan(bank: Estimator, losses: FloatArray, positions: FloatArray) -> None:
    feed(bank, positions, losses)
    for position in (1.0, positions[-1], 1e13, 1e300):
        assert np.isfinite(bank.predict(ROW, np.array([position]))).all()
    for threshold in (5e-324, 1e-9, 0.4, 1e300):
        quantiles = passage(bank, threshold, np.array([1, 2]))
        assert not np.isnan(quantiles[0]).any()
        assert grows(quantiles[:1])
        assert np.isnan(quantiles[1]).all()  # no cell yet


def test_a_constant_loss_does_not_get_there(bank: Estimator) -> None:
    """It may be believed to, with some doubt or much later: not with an even chance within 100 times what was seen."""
    feed(bank, np.arange(1.0, 100.0), np.full(99, 0.5))
    assert median(passage(bank, 0.4))[0] > 100 * 99.0


def run_long(bank: Estimator, cells: int) -> None:
    """Far from the start, on a grid, growing to 1e12, over twelve orders of magnitude, constant: all stays finite."""
    bank.grow(4)
    rows = np.arange(4)
    draw = np.random.default_rng(0)
    n = np.arange(1.0, cells + 1)
    positions = np.stack([1e9 + n, 10 * n, np.geomspace(1, 1e12, cells), n], axis=1)
    losses = np.stack([n**-0.3, 3 * n**-0.3, np.geomspace(1e6, 1e-6, cells), np.full(cells, 0.5)], axis=1)
    losses[:, :2] *= draw.lognormal(0, 0.05, (cells, 2))
    for position, loss in zip(positions, losses, strict=True):
        bank.observe(rows, position, loss)
    newest = positions[-1]
    assert np.isfinite(bank.predict(rows, 100 * newest)).all()
    # What comes next is what came last, whatever was or was not learned of the slope.
    np.testing.assert_allclose(bank.predict(rows, newest), losses[-1], rtol=0.5)
    quantiles = bank.first_passage(rows, losses[-1] / 2)
    assert grows(quantiles)
    assert (quantiles[:, -1] >= newest).all()


def test_a_long_run_stays_finite(bank: Estimator) -> None:
    run_long(bank, 3000)


@pytest.mark.nightly
def test_a_million_cells_stay_finite(bank: Estimator) -> None:
    run_long(bank, 1_000_000)


# Least squares


@pytest.mark.parametrize(("power", "gamma"), [(4.0, None), (0.0, None), (0.0, 0.9), (0.0, 0.99)])
def test_equals_the_weighted_fit_in_one_go(power: float, gamma: float | None) -> None:
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


def test_a_long_run_does_not_lose_the_slope() -> None:
    """Ten million cells behind, gamma 0.9 sees ln s move by 1e-7 a cell; the noise-free slope must still be right."""
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
def test_the_bank_equals_filterpy(order: int, process: float, noise: str, seed: int) -> None:
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
def test_a_forecast_steps_the_state_on(damping: float | None, ahead: int) -> None:
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
def test_quantiles_are_where_the_filters_own_error_bands_come_down(make_filter: Callable[[], Kalman]) -> None:
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


def test_a_wound_up_covariance_stays_one() -> None:
    """Coarse steps and much noise do in 3,000 cells what usual ones do in millions: P grows beyond 16 digits.

    Kept in the paper's coordinates, it is no number any more after 1,864 of these cells.
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
    said = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.split() == ["False", "True"]
