"""What is believed of trials until the deadline."""

import numpy as np
import pytest

from lightning_core.parts.search.decision.beliefs import CELLS, Beliefs, TrialForecasts
from lightning_core.parts.search.decision.growth_curves import KNOTS, GrowthCurves
from lightning_core.parts.search.decision.trials import Trial

MEAN = np.linspace(0.0, -1.0, KNOTS)[None]
ONE = np.zeros(1)


def forecasts(step: float, pace: float, starts: float, left: float, spread: float = 0.3) -> TrialForecasts:
    order = np.arange(KNOTS)
    covariance = spread**2 * 0.8 ** np.abs(order[:, None] - order)
    return TrialForecasts(
        GrowthCurves(32), MEAN, covariance[None],
        step=np.array([step]), pace=np.array([pace]), starts=np.array([starts]), left=left,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pace", "starts", "left", "steps"),
    [(2.0, 0.0, 8.0, 4), (0.5, 0.0, 2.0, 4), (1.0, 3.0, 7.5, 4), (1.0, 0.0, 99.0, 32)],
)
def test_a_trial_reaches_what_its_pace_allows(pace: float, starts: float, left: float, steps: int) -> None:
    expected = forecasts(0.0, pace, starts, left).expected(ONE)[0, 0]
    assert expected == pytest.approx(-np.log(steps) / np.log(32))


def test_seconds_lost_are_steps_lost() -> None:
    expected = forecasts(4.0, 2.0, 0.0, 24.0).expected(np.array([0.0, 16.0, 100.0]))[0]
    assert expected == pytest.approx(-np.log([16, 8, 4]) / np.log(32))


def test_a_slice_tells_what_conditioning_on_its_end_does() -> None:
    seconds, told, _ = forecasts(0.0, 2.0, 1.0, 1000.0).slices()
    noise = GrowthCurves(32).noise / CELLS
    # The first slice is the first step: the first knot, and the start.
    assert seconds[0, 0] == 3.0
    correlation = 0.8 ** (KNOTS - 1)
    assert told[0, 0] == pytest.approx(0.09 * correlation / np.sqrt(0.09 + noise))
    assert seconds[0, -1] == 65.0


def test_slices_that_are_over_tell_nothing() -> None:
    seconds, told, _ = forecasts(8.0, 1.0, 0.0, 1000.0).slices()
    over = np.exp(GrowthCurves(32).knots) <= 8.0
    assert np.all(told[0, over] == 0.0)
    assert np.all(seconds[0, over] == 0.0)
    assert np.all(np.diff(told[0, ~over]) > 0.0)
    assert seconds[0, -1] == 24.0


def test_nothing_is_told_of_a_trial_of_which_all_is_known() -> None:
    _, told, _ = forecasts(8.0, 1.0, 0.0, 1000.0, spread=1e-9).slices()
    assert told == pytest.approx(0.0, abs=1e-9)


def test_it_is_fitted_again_when_a_tenth_more_was_seen_or_the_scale_fits_no_more() -> None:
    beliefs = Beliefs(20, "min")
    trials = [Trial() for _ in range(2)]
    for step in range(1, 11):
        for trial in trials:
            trial.report(step, 2.0 / step, float(step))
    beliefs.learn(trials)
    mu = beliefs.model.mu.copy()
    trials[0].report(11, 0.1, 11.0)
    beliefs.learn(trials)
    assert np.array_equal(beliefs.model.mu, mu)
    trials[0].report(12, 0.1, 12.0)
    beliefs.learn(trials)
    assert not np.array_equal(beliefs.model.mu, mu)
    before = beliefs.scale
    trials[0].report(13, -0.1, 13.0)
    beliefs.learn(trials)
    assert (before.kind, beliefs.scale.kind) == ("log", "linear")
