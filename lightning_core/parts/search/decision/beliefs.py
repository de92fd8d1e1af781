"""Forecasts of the trials of a search: the values that they can reach by the deadline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.search.decision.growth_curves import KNOTS, Curves, GrowthCurves
from lightning_core.parts.search.decision.metric_scale import MetricScale, Mode
from lightning_core.parts.search.decision.trials import Trial

# The model is fitted again when the number of values has grown by this part.
MORE = 1.1
# Cells that a trial adds from one knot to the next: how well it is known where it stands.
CELLS = 3.0


class TrialForecasts:
    """Forecasts of ``n`` trials that can train until the deadline; smaller values are better.

    Args:
        model: The model of all trials.
        mean: Means of the values at the knots, ``(n, knots)``.
        covariance: Their covariances, ``(n, knots, knots)``.
        step: Steps trained so far, ``(n,)``.
        pace: Seconds of a step, ``(n,)``.
        starts: Seconds until each trains, ``(n,)``.
        left: Seconds until the deadline.
    """

    def __init__(
        self,
        model: GrowthCurves,
        mean: FloatArray,
        covariance: FloatArray,
        *,
        step: FloatArray,
        pace: FloatArray,
        starts: FloatArray,
        left: float,
    ) -> None:
        self._model, self._mean, self._covariance = model, mean, covariance
        self._step, self._pace, self._starts, self._left = step, pace, starts, left
        self.trials = len(step)

    def expected(self, lost: FloatArray) -> FloatArray:
        """Return the expected values at the deadline if trials do not train for some seconds first.

        Args:
            lost: Seconds, ``(q,)``.

        Returns:
            Values, ``(n, q)``; inf for a trial that would still be at step 0.
        """
        reach = self._reach(np.maximum(self._left - lost, 0.0))
        phi = self._model.basis(np.maximum(reach, 1.0).ravel()).reshape(*reach.shape, KNOTS)
        return np.where(reach > 0.0, np.einsum("nqk,nk->nq", phi, self._mean), np.inf)

    def slices(self, last: int = KNOTS - 1) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return how much a slice of training tells: slices end at the knots, and at the end of the training.

        Args:
            last: Knot at which training ends; it ends at the deadline if that is sooner, or by default.

        Returns:
            Seconds of each slice, ``(n, slices)``, 0 for one that is over; the standard deviation of the change of the
            expected value at the end by it, ``(n, slices)``; and that value, ``(n,)``.
        """
        reach = self._reach(np.array([self._left]))[:, 0]
        if last < KNOTS - 1:
            reach = np.clip(np.ceil(np.exp(self._model.knots[last]) - 1e-9), self._step, reach)
        end = self._model.basis(np.maximum(reach, 1.0))
        seconds, told = np.zeros((2, len(reach), KNOTS))
        at, left = self._step, self._covariance.copy()
        for k, knot in enumerate(np.exp(self._model.knots)):
            stop = np.maximum(reach, at) if k == KNOTS - 1 else np.clip(np.ceil(knot - 1e-9), at, np.maximum(at, reach))
            phi = self._model.basis(np.maximum(stop, 1.0))
            along = np.einsum("ikl,il->ik", left, phi)
            gain = np.where(stop > at, 1.0 / (np.einsum("ik,ik->i", phi, along) + self._model.noise / CELLS), 0.0)
            told[:, k] = np.einsum("ik,ik->i", end, along) ** 2 * gain
            left -= gain[:, None, None] * along[:, :, None] * along[:, None, :]
            seconds[:, k] = np.where(stop > self._step, (stop - self._step) * self._pace + self._starts, 0.0)
            at = stop
        return seconds, np.sqrt(np.cumsum(told, axis=1)), np.einsum("ik,ik->i", end, self._mean)

    def after(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of the value at a step of each trial, ``(n,)``."""
        phi = self._model.basis(np.maximum(steps, 1.0))
        variance = np.einsum("ik,ikl,il->i", phi, self._covariance, phi)
        return np.einsum("ik,ik->i", phi, self._mean), np.sqrt(variance)

    def _reach(self, left: FloatArray) -> FloatArray:
        """Return the steps that trials reach with seconds left ``(q,)``, as ``(n, q)``."""
        steps = np.floor(np.maximum(left - self._starts[:, None], 0.0) / self._pace[:, None] + 1e-9)
        reach: FloatArray = np.minimum(np.exp(self._model.end).round(), self._step[:, None] + steps)
        return reach


class Beliefs:
    """The forecast of the trials of one search, learned from all of them.

    Args:
        max_steps: Steps of a whole trial.
        mode: Whether the metric is minimised or maximised.
    """

    def __init__(self, max_steps: int, mode: Mode) -> None:
        self.max_steps, self.mode = max_steps, mode
        self.model = GrowthCurves(max_steps)
        self.scale = MetricScale.of([], mode)
        self._fitted_on = 0

    def learn(self, trials: Sequence[Trial]) -> None:
        """Fit scale and model to all trials, if much was seen since the last time."""
        seen = sum(len(trial.steps) for trial in trials)
        covered = all(self.scale.covers(trial.values[-1]) for trial in trials if trial.values)
        if covered and seen < MORE * self._fitted_on:
            return
        self._fitted_on = seen
        begun = [trial for trial in trials if trial.steps]
        self.scale = MetricScale.of([value for trial in begun for value in trial.values], mode=self.mode)
        self.model.fit(self._curves(begun))

    def forecasts(self, trials: Sequence[Trial | None], left: float, start: float, usual: float) -> TrialForecasts:
        """Return the beliefs about trials until the deadline.

        Args:
            trials: Trials; None is one that would begin now.
            left: Seconds until the deadline.
            start: Seconds that it takes to start or resume a trial that does not run.
            usual: Seconds of a step of a trial that has not reported.
        """
        begun = [trial if trial is not None and trial.steps else None for trial in trials]
        mean, covariance = self.model.posterior(self._curves(begun))
        return TrialForecasts(
            self.model,
            mean,
            covariance,
            step=np.array([0.0 if trial is None else trial.step for trial in begun]),
            pace=np.array([usual if trial is None else trial.seconds_per_step for trial in begun]),
            starts=np.array([0.0 if trial is not None and trial.running else start for trial in trials]),
            left=left,
        )

    def _curves(self, trials: Sequence[Trial | None]) -> Curves:
        """Return the sums of the curves of the best value until each step, on the scale."""
        nothing = np.zeros(0)
        return self.model.summed(
            [
                (nothing, nothing)
                if trial is None
                else (
                    np.array(trial.steps, dtype=np.float64),
                    np.minimum.accumulate(self.scale.scaled(trial.values)),
                )
                for trial in trials
            ]
        )
