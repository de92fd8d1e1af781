"""The offline estimator that the papers compare with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.forecasts.m4 import M4, fit_m4

TRUTH = M4(log_beta=np.log(40.0), c=0.6, alpha=0.5, last=0.3, first=2.5)


def test_the_curve_solves_its_equation() -> None:
    s = np.geomspace(1.0, 1e12, 50)
    curve = TRUTH.predict(s)
    assert (np.diff(curve) < 0).all()
    excess = (curve - 0.3) / (2.5 - curve) ** 0.5
    np.testing.assert_allclose(excess[:30], 40.0 * s[:30] ** -0.6, rtol=1e-6)
    assert curve[-1] == pytest.approx(0.3, rel=1e-4)


def test_the_first_passage_is_where_the_curve_is() -> None:
    for position in (3.0, 500.0, 1e6):
        threshold = float(TRUTH.predict(np.array([position]))[0])
        assert TRUTH.first_passage(threshold) == pytest.approx(position, rel=1e-6)
    assert TRUTH.first_passage(0.3) == np.inf
    assert TRUTH.first_passage(2.5) == 0.0
    assert M4(0.0, 0.0, 0.0, 0.3, 2.5).first_passage(1.0) == np.inf


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_a_synthetic_curve_is_recovered(alpha: float) -> None:
    truth = M4(TRUTH.log_beta, 0.6, alpha, 0.3, 2.5 if alpha else 50.0)
    s = np.arange(10.0, 2000.0, 10.0)
    found = fit_m4(s, truth.predict(s))
    ahead = np.geomspace(3000.0, 1e5, 10)
    np.testing.assert_allclose(found.predict(ahead), truth.predict(ahead), rtol=0.01)
    assert found.last == pytest.approx(0.3, rel=0.02)
    assert found.c == pytest.approx(0.6, rel=0.1)
    threshold = float(truth.predict(np.array([5000.0]))[0])
    assert found.first_passage(threshold) == pytest.approx(5000.0, rel=0.1)


def test_a_noisy_curve_is_extrapolated_closely() -> None:
    draw = np.random.default_rng(0)
    s = np.arange(10.0, 5000.0, 10.0)
    errors = []
    for _ in range(20):
        found = fit_m4(s, TRUTH.predict(s) * draw.lognormal(0, 0.005, len(s)))
        errors.append(np.log(found.predict(np.array([20_000.0])) / TRUTH.predict(np.array([20_000.0])))[0])
    assert np.sqrt(np.mean(np.square(errors))) < 0.05


def test_curves_that_cannot_be_fitted_are_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 6 points, got 5"):
        fit_m4(np.arange(1.0, 6.0), np.arange(5.0, 0.0, -1.0))
    with pytest.raises(ValueError, match="all are 0"):
        fit_m4(np.arange(1.0, 9.0), np.full(8, 0.5))
