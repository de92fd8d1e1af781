"""The model of the curves of a search."""

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.search.decision.growth_curves import KNOTS, GrowthCurves

STEPS = np.arange(1.0, 65.0)


def curves(many: int, seed: int, until: int = 64) -> list[tuple[FloatArray, FloatArray]]:
    """Curves from about 0 that fall by about 0.6 an e-fold, those that begin low faster, and late each by its own."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(many):
        level = rng.normal(0, 0.3)
        slope = 0.6 - 0.6 * level + rng.normal(0, 0.25)
        late = rng.normal(0, 0.2) * np.log(np.maximum(STEPS / 8, 1))
        found.append((STEPS[:until], (level - slope * np.log(STEPS) + late + rng.normal(0, 0.02, 64))[:until]))
    return found


def test_the_basis_is_linear_between_knots() -> None:
    model = GrowthCurves(64)
    at = np.exp(0.5 * (model.knots[2] + model.knots[3]))
    phi = model.basis(np.array([1.0, 64.0, 1000.0, at]))
    assert phi[0] == pytest.approx(np.eye(KNOTS)[0])
    assert phi[1] == pytest.approx(np.eye(KNOTS)[-1])
    assert phi[2] == pytest.approx(np.eye(KNOTS)[-1])
    assert phi[3] == pytest.approx([0, 0, 0.5, 0.5, 0, 0])


def test_a_trial_is_forecast_from_its_start_and_from_how_the_others_went_on() -> None:
    model = GrowthCurves(64)
    model.fit(model.summed(curves(40, seed=0)), rounds=30)
    known = curves(50, seed=1)
    seen = model.summed([(steps[:4], values[:4]) for steps, values in known])
    mean, covariance = model.posterior(seen)
    truth = np.array([values[-1] for _, values in known])
    error = mean[:, -1] - truth
    spread = np.sqrt(covariance[:, -1, -1])
    # Far better than the mean of all trials, and as sure as it says.
    assert np.std(error) < 0.5 * np.std(truth)
    assert 0.5 < np.std(error / spread) < 1.3
    assert abs(np.mean(error)) < 0.15


def test_trials_that_were_stopped_because_they_looked_bad_do_not_mislead_it() -> None:
    all_of_them = curves(200, seed=2)
    # Those that are bad after three steps were stopped there.
    cut = [(s, v) if v[2] < -0.7 else (s[:3], v[:3]) for s, v in all_of_them]
    assert 20 < sum(len(s) == 3 for s, _ in cut) < 180
    model = GrowthCurves(64)
    model.fit(model.summed(cut), rounds=60)
    truth = np.mean([values[-1] for _, values in all_of_them])
    biased = np.mean([values[-1] for steps, values in cut if len(steps) == 64])
    assert abs(model.mu[-1] - truth) < 0.3 * abs(biased - truth)


def test_before_the_first_value_the_prior_speaks() -> None:
    model = GrowthCurves(64)
    seen = model.summed([(np.zeros(0), np.zeros(0)), (np.array([1.0]), np.array([0.7]))])
    mean, covariance = model.posterior(seen)
    assert mean[0] == pytest.approx(model.mu)
    assert covariance[0] == pytest.approx(model.sigma)
    assert mean[1, 0] == pytest.approx(0.7, abs=0.05)
    assert covariance[1, 0, 0] < 0.1 * model.sigma[0, 0]
    model.fit(model.summed([]))
    assert mean[0] == pytest.approx(model.mu)


@pytest.mark.parametrize("steps", [1, 0, float("inf"), float("nan")])
def test_a_trial_has_at_least_two_steps(steps: float) -> None:
    with pytest.raises(ValueError, match=f"max_steps must be at least 2 and finite, got {steps}"):
        GrowthCurves(steps)


def test_an_improvement_is_expected_to_be_a_part_of_the_one_before() -> None:
    model = GrowthCurves(64)
    at = np.array([1.0, 2.3, 5.3])
    model.fit(model.summed([(at, -np.log(at) * k) for k in (0.9, 1.0, 1.1) for _ in range(20)]), rounds=60)
    steps = np.diff(model.mu)
    assert np.all(steps < 0.0)
    assert steps[2:] / steps[1:-1] == pytest.approx([0.8, 0.8, 0.8], abs=0.1)
