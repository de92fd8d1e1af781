"""One conformance suite for every estimator, and least squares against the same fit in one go."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from lightning_core.estimators import LeastSquares
from lightning_core.protocols import Estimator
from lightning_core.types import FloatArray

MEMBERS: dict[str, Callable[[], Estimator]] = {
    "log-time": LeastSquares,
    "gamma": lambda: LeastSquares(gamma=0.9),
    "all": lambda: LeastSquares(gamma=1.0),
}


@pytest.fixture(params=sorted(MEMBERS))
def bank(request: pytest.FixtureRequest) -> Estimator:
    made = MEMBERS[request.param]()
    made.grow(3)
    return made


ROW = np.array([1])


def feed(bank: Estimator, positions: FloatArray, losses: FloatArray, row: int = 1) -> None:
    for s, y in zip(positions, losses, strict=True):
        bank.observe(np.array([row]), np.array([s]), np.array([y]))


def test_is_an_estimator(bank: Estimator) -> None:
    assert isinstance(bank, Estimator)


def test_recovers_a_power_law(bank: Estimator) -> None:
    s = np.arange(10.0, 1000.0, 10.0)
    feed(bank, s, 3.0 * s**-0.4)
    assert bank.predict(ROW, np.array([5000.0]))[0] == pytest.approx(3.0 * 5000**-0.4, rel=1e-6)
    passage = bank.first_passage(ROW, np.array([0.05]))
    truth = (3.0 / 0.05) ** (1 / 0.4)
    for moment in passage:
        assert moment[0] == pytest.approx(truth, rel=1e-3)


def test_says_nothing_before_it_has_seen_enough(bank: Estimator) -> None:
    feed(bank, np.array([10.0, 20.0]), np.array([1.0, 0.9]))
    assert np.isnan(bank.predict(ROW, np.array([50.0]))).all()
    assert all(np.isnan(moment).all() for moment in bank.first_passage(ROW, np.array([0.5])))


def test_rows_know_nothing_of_each_other_and_survive_growth(bank: Estimator) -> None:
    s = np.arange(10.0, 300.0, 10.0)
    feed(bank, s, s**-0.5)
    before = bank.first_passage(ROW, np.array([0.01])).mid[0]
    feed(bank, s, s**-0.1, row=0)
    bank.grow(50)
    assert bank.first_passage(ROW, np.array([0.01])).mid[0] == before


def test_many_rows_at_once_equal_one_at_a_time(bank: Estimator) -> None:
    draw = np.random.default_rng(3)
    s = np.arange(10.0, 400.0, 10.0)
    curves = [s**-b * draw.lognormal(0, 0.05, len(s)) for b in (0.2, 0.5, 0.8)]
    for k, position in enumerate(s):
        bank.observe(np.arange(3), np.full(3, position), np.array([curve[k] for curve in curves]))
    alone = type(bank)(**vars_of(bank))
    alone.grow(3)
    feed(alone, s, curves[1])
    rows = np.arange(3)
    together = bank.first_passage(rows, np.full(3, 0.01))
    assert together.mid[1] == alone.first_passage(ROW, np.array([0.01])).mid[0]


def vars_of(bank: Estimator) -> dict[str, object]:
    return {name: getattr(bank, name) for name in ("power", "gamma", "least")}


def test_the_interval_holds_the_truth_about_as_often_as_it_should(bank: Estimator) -> None:
    draw = np.random.default_rng(0)
    s = np.arange(10.0, 800.0, 10.0)
    inside = 0
    for trial in range(100):
        bank.grow(10 + trial)
        row = 9 + trial
        feed(bank, s, 2.0 * s**-0.5 * draw.lognormal(0, 0.05, len(s)), row=row)
        low, mid, high = bank.first_passage(np.array([row]), np.array([0.05]))
        assert low[0] <= mid[0] <= high[0]
        inside += bool(low[0] <= 1600.0 <= high[0])
    assert 40 <= inside <= 90  # 68 of 100 if all were exact


@pytest.mark.parametrize(
    "losses",
    [np.full(200, 0.5), np.geomspace(1e-6, 1e6, 200), np.geomspace(1e6, 1e-6, 200), np.full(200, 5e-324)],
    ids=["constant", "rising", "falling", "subnormal"],
)
def test_hostile_numbers_leave_no_warning_and_no_nan(bank: Estimator, losses: FloatArray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(bank, np.geomspace(1.0, 1e12, 200), losses)
        passage = bank.first_passage(ROW, np.array([1e-9]))
        assert np.isfinite(bank.predict(ROW, np.array([1e13]))).all()
    assert not any(np.isnan(moment).any() for moment in passage)


def test_a_constant_loss_never_gets_there(bank: Estimator) -> None:
    feed(bank, np.arange(1.0, 100.0), np.full(99, 0.5))
    assert bank.first_passage(ROW, np.array([0.4])).mid[0] == np.inf


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
