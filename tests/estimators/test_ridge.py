"""Ridge regression: values worked by hand, the published formulas, and ill-conditioned data."""

from __future__ import annotations

from collections.abc import Sequence
from math import e, exp, log, sqrt

import numpy as np
import pytest

from lightning_core.core.protocols import Estimator
from lightning_core.estimators.ridge import Ridge

ROW = np.array([0])


def feed(bank: Estimator, positions: Sequence[float], losses: Sequence[float], row: int = 0) -> None:
    bank.grow(row + 1)
    for s, loss in zip(positions, losses, strict=True):
        bank.observe(np.array([row]), np.array([s], float), np.array([loss], float))


@pytest.mark.parametrize(
    ("gamma", "ridge", "theta"),
    [
        # ln s = 0, 1, 2 and ln l = 2, 1, 0. V = [[5 + 1, 3], [3, 3 + 1]], X'y = [1, 3]: 1/15 [[4, -3], [-3, 6]] [1, 3].
        (1.0, 1.0, (-1 / 3, 1.0)),
        # Weights 1/4, 1/2, 1: V = [[4.5 + .5, 2.5], [2.5, 1.75 + .5]], X'y = [.5, 1]: 1/5 [[2.25, -2.5], [-2.5, 5]] ...
        (0.5, 0.5, (-0.275, 0.75)),
    ],
)
def test_the_line_equals_one_worked_by_hand(gamma: float, ridge: float, theta: tuple[float, float]) -> None:
    bank = Ridge(gamma, ridge)
    feed(bank, [1, e, e**2], [e**2, e, 1])
    assert bank.slope(ROW)[0] == pytest.approx(-theta[0])
    assert bank.log_loss(ROW, np.array([1.0]))[0] == pytest.approx(theta[1])
    assert bank.predict(ROW, np.array([e**3]))[0] == pytest.approx(exp(theta[1] + 3 * theta[0]))


def test_the_bound_equals_a_value_worked_by_hand() -> None:
    """X = [3, 1]: X' V^-1 X = (4 * 9 - 2 * 3 * 3 + 6) / 15 = 1.6; |X_n|^2 = 2^2 + 1, and three weights of 1."""
    bank = Ridge(gamma=1.0, ridge=1.0)
    feed(bank, [1, e, e**2], [e**2, e, 1])
    assert bank.width(ROW, np.array([e**3]))[0] == pytest.approx(sqrt(1.6))
    beta = 2 + 0.5 * sqrt(2 * 2 + 2 * log(1 + 5 * 3 / 2))
    assert bank.radius(ROW, bound=2.0, noise=0.5, delta=exp(-2))[0] == pytest.approx(beta)


@pytest.mark.parametrize("gamma", [0.8, 0.9, 1.0])
def test_line_and_bound_equal_the_published_formulas(gamma: float) -> None:
    draw = np.random.default_rng(4)
    s = np.cumsum(draw.integers(1, 30, 80)).astype(float)
    loss = 3 * s**-0.4 * draw.lognormal(0, 0.1, len(s))
    bank = Ridge(gamma, ridge=0.05)
    feed(bank, s.tolist(), loss.tolist())
    x, weight = np.stack([np.log(s), np.ones_like(s)], axis=1), gamma ** np.arange(len(s) - 1, -1, -1.0)
    v = 0.05 * np.eye(2) + (x * weight[:, None]).T @ x
    theta = np.linalg.solve(v, (x * weight[:, None]).T @ np.log(loss))
    there = np.array([log(5000.0), 1.0])
    assert bank.log_loss(ROW, np.array([5000.0]))[0] == pytest.approx(there @ theta, rel=1e-9)
    assert bank.width(ROW, np.array([5000.0]))[0] == pytest.approx(sqrt(there @ np.linalg.solve(v, there)), rel=1e-9)
    squares = len(s) if gamma == 1 else (1 - gamma ** (2 * len(s))) / (1 - gamma**2)
    beta = sqrt(0.05) * 1.5 + 0.1 * sqrt(2 * log(10) + 2 * log(1 + (x[-1] @ x[-1]) * squares / (2 * 0.05)))
    assert bank.radius(ROW, 1.5, 0.1, 0.1)[0] == pytest.approx(beta, rel=1e-9)


@pytest.mark.parametrize("losses", [[0.5] * 300, np.geomspace(1e-6, 1e6, 300).tolist(), [5e-324] * 300])
def test_the_line_stays_finite_over_hard_numbers(losses: list[float]) -> None:
    bank = Ridge()
    with np.errstate(all="raise", under="ignore"):
        feed(bank, np.geomspace(1, 1e12, 300).tolist(), losses)
        for made in (bank.predict(ROW, np.array([1e13])), bank.width(ROW, np.array([1e13]))):
            assert np.isfinite(made).all()
        passage = bank.first_passage(ROW, np.array([1e-9]))
    assert not np.isnan(passage).any()
    assert np.all(passage[:, 1:] >= passage[:, :-1])


def test_the_line_forecasts_the_passage_of_a_goal() -> None:
    bank = Ridge(gamma=1.0, ridge=1e-9)
    bank.grow(1)
    assert np.isnan(bank.first_passage(ROW, np.array([0.1]))).all()
    s = np.arange(10.0, 1000.0, 10.0)
    feed(bank, s.tolist(), (2 * s**-0.5).tolist())
    assert bank.first_passage(ROW, np.array([0.05]))[0] == pytest.approx(np.full(20, 1600.0), rel=1e-3)
    draw = np.random.default_rng(0)
    inside = 0
    for row in range(1, 101):
        feed(bank, s.tolist(), (2 * s**-0.5 * draw.lognormal(0, 0.05, len(s))).tolist(), row)
        low, high = bank.first_passage(np.array([row]), np.array([0.05]))[0, [2, 17]]
        inside += bool(low <= 1600 <= high)
    assert 60 <= inside <= 90  # 75 of 100


def test_the_line_refuses_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="ridge must be positive and finite, got 0"):
        Ridge(ridge=0)
