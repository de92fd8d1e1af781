"""What a slice of training promises."""

import math

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.search.decision.beliefs import TrialForecasts
from lightning_core.parts.search.decision.growth_curves import KNOTS, GrowthCurves
from lightning_core.parts.search.decision.knowledge_gradient import gains_of_slices, net_worths


def forecasts(
    step: list[float], starts: list[float], left: float, mean: list[list[float]] | None = None
) -> TrialForecasts:
    """Trials of 32 steps of a second each, by default alike: from 0 down to -1, each knot unsure by 0.3."""
    n = len(step)
    values = np.linspace(0, -1, KNOTS) * np.ones((n, 1)) if mean is None else np.array(mean)
    covariance = np.repeat((0.09 * 0.8 ** np.abs(np.subtract.outer(range(KNOTS), range(KNOTS))))[None], n, axis=0)
    return TrialForecasts(
        GrowthCurves(32), values, covariance,
        step=np.array(step), pace=np.ones(n), starts=np.array(starts), left=left,
    )  # fmt: skip


def gains(
    trials: TrialForecasts, running: list[bool], new: list[bool], best: float = 0.0, leaving: int | None = None
) -> FloatArray:
    found, seconds = gains_of_slices(trials, np.array(running), np.array(new), best, leaving)
    return np.where(seconds > 0, found, -math.inf)


def test_the_gain_is_that_of_many_draws() -> None:
    trials = forecasts(
        [4.0, 8.0], [0.0, 0.0], left=100.0, mean=[[0, -0.2, -0.4, -0.6, -0.7, -0.8], [0, -0.1, -0.3, -0.5, -0.7, -0.9]]
    )
    seconds, told, _ = trials.slices()
    found = gains(trials, [False, True], [False, False])
    rng = np.random.default_rng(0)
    for k in range(KNOTS):
        if seconds[0, k] > 0:
            after = np.minimum(-0.9, -0.8 + told[0, k] * rng.normal(size=400_000))
            assert found[0, k] == pytest.approx(-0.9 - after.mean(), abs=2e-3)


def test_a_slice_tells_the_more_the_longer_it_is_and_all_of_it_what_is_unknown() -> None:
    seconds, told, _ = forecasts([0.0], [2.0], left=100.0).slices()
    assert np.all(np.diff(told[0]) > 0)
    assert seconds[0] == pytest.approx([3, 4, 6, 10, 18, 34], abs=1)
    assert told[0, -1] == pytest.approx(0.3, rel=0.05)


def test_a_trial_that_waits_reaches_less_by_what_the_slice_of_another_takes() -> None:
    trials = forecasts([4.0, 4.0], [0.0, 0.0], left=10.0)
    waits, beside = gains(trials, [False, False], [False, False]), gains(trials, [False, True], [False, False])
    assert np.all(waits[0][np.isfinite(waits[0])] < beside[0][np.isfinite(beside[0])])


def test_what_would_leave_for_good_is_no_alternative() -> None:
    trials = forecasts([8.0, 0.0], [0.0, 1.0], left=100.0)
    paused = gains(trials, [True, False], [False, True])
    lost = gains(trials, [True, False], [False, True], leaving=0)
    assert np.all(lost[1] < paused[1])
    assert lost[0] == pytest.approx(paused[0])


def test_there_is_nothing_to_gain_without_time_for_a_step() -> None:
    trials = forecasts([4.0, 0.0, 32.0], [0.0, 0.6, 0.0], left=1.5)
    found = gains(trials, [True, False, False], [False, True, False])
    assert np.isfinite(found[0]).any()
    assert not np.isfinite(found[1]).any()
    assert not np.isfinite(found[2]).any()


def test_a_value_that_was_reached_cannot_be_lost() -> None:
    trials = forecasts([0.0], [0.0], left=100.0)
    assert np.all(gains(trials, [False], [True], best=-5.0)[0] == pytest.approx(0.0, abs=1e-6))


@pytest.mark.parametrize("worth", [3.0, 30.0, 300.0])
def test_the_worth_is_that_of_many_trainings_that_stop_when_the_rest_is_not_worth_its_time(worth: float) -> None:
    trials = forecasts([4.0], [1.0], left=100.0)
    best, rng, paid = -0.5, np.random.default_rng(0), []
    for last in range(KNOTS):
        seconds, told, mean = trials.slices(last)
        for k in range(KNOTS):
            if seconds[0, k] > 0:
                seen = mean[0] + told[0, k] * rng.normal(size=400_000)
                rest = worth * (best - seen) - (seconds[0, -1] - seconds[0, k])
                paid.append(np.maximum(rest, 0.0).mean() - seconds[0, k])
    assert net_worths(trials, best, worth)[0] == pytest.approx(max(paid), rel=0.01, abs=0.05)


def test_a_trial_without_time_for_a_step_is_worth_nothing_and_a_better_one_is_worth_more() -> None:
    late = forecasts([4.0, 4.0], [0.0, 2.0], left=1.5)
    assert np.isfinite(net_worths(late, -0.5, 100.0)).tolist() == [True, False]
    better = forecasts(
        [4.0, 4.0], [0.0, 0.0], 100.0, [[0, -0.2, -0.4, -0.6, -0.7, -0.8], [0, -0.3, -0.5, -0.7, -0.8, -0.9]]
    )
    worths = net_worths(better, -0.5, 100.0)
    assert worths[1] > worths[0] > 0
    assert np.all(net_worths(better, -2.0, 1e-3) < 0)
