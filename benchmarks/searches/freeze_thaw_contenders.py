"""The ideas of ifBO and CFBO on our forecasts: trials are frozen and thawed epoch by epoch.

The package ``ifbo`` holds the code of its surrogate without the weights, and CFBO is no package; both download weights.
So these are their acquisition functions, and CFBO's stopping rule, on the forecasts that `DeadlineSearch` decides with:
what differs is how to decide. The forecasts do not know the hyper-parameters, so one new trial stands for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from scipy.special import betainc, ndtr

from benchmarks.searches.deadline_contender import Ours
from benchmarks.searches.play import NEW, Terms
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.search.decision.beliefs import TrialForecasts
from lightning_core.parts.search.decision.deadline_search import PERCENT
from lightning_core.parts.search.decision.knowledge_gradient import expected_below
from lightning_core.parts.search.decision.trials import usual_pace


class _FreezeThaw(Ours, ABC):
    """Trains one epoch of the trial with the highest score, again and again."""

    def __init__(self, terms: Terms, trials: int) -> None:
        super().__init__(terms, trials)
        self._max_epochs, self._pace = terms.max_epochs, 0.0

    @abstractmethod
    def _pick(self, forecasts: TrialForecasts, step: FloatArray, running: FloatArray, left: float) -> int | None:
        """Return the row that trains next; None if the search ends.

        Args:
            forecasts: Forecasts of ``n`` trials.
            step: Epochs that each has trained, ``(n,)``.
            running: 1 for the trial that has the device, 0 for others, ``(n,)``.
            left: Seconds until the deadline.
        """

    def next_trial(self, now: float) -> int | None:
        return self._choose(now)

    def continues(self, trial: int, now: float) -> bool:
        return not self.search.trials[trial].over and self._choose(now, trial) == trial

    def _choose(self, now: float, current: int | None = None) -> int | None:
        trials = self.search.trials
        if self.search.best is None:
            return NEW
        waiting = [k for k, one in enumerate(trials) if not one.over and (k == current or not one.running)]
        numbers = waiting + [NEW] * (len(trials) < self.search.max_trials)
        if not numbers:
            return None
        beliefs, left = self.search.beliefs, self.search.deadline - now
        beliefs.learn(trials)
        self._pace = usual_pace(trials)
        chosen = [None if k == NEW else trials[k] for k in numbers]
        step = np.array([0.0 if one is None else one.step for one in chosen])
        running = np.array([float(k == current) for k in numbers])
        row = self._pick(beliefs.forecasts(chosen, left, self.search.start, self._pace), step, running, left)
        return None if row is None else numbers[row]


class IfBO(_FreezeThaw):
    """MFPI-random of ifBO (H. Rakotoarison et al., In-context freeze-thaw Bayesian optimization, ICML 2024).

    The probability that a trial is better than the best by a random part, from 1/10,000 to 1/10, after a random number
    of epochs; both are drawn anew for each epoch, the same for all trials.
    """

    def __init__(self, terms: Terms, trials: int, seed: int = 0) -> None:
        super().__init__(terms, trials)
        self._rng = np.random.default_rng(seed)

    def _pick(self, forecasts: TrialForecasts, step: FloatArray, running: FloatArray, left: float) -> int | None:
        horizon = self._rng.integers(1, max(min(self._max_epochs, int(left / self._pace)), 1) + 1)
        best = self.search.best or 0.0
        wanted = float(self.search.beliefs.scale.scaled(best * (1.0 - 10.0 ** self._rng.uniform(-4.0, -1.0))))
        mean, deviation = forecasts.after(np.minimum(step + horizon, self._max_epochs))
        return int(np.argmax(ndtr((wanted - mean) / deviation)))


class CFBO(_FreezeThaw):
    """CFBO (D. B. Lee et al., Cost-sensitive freeze-thaw Bayesian optimization, NeurIPS 2025).

    The utility of a search is what its best value is worth less the device time. The trial whose utility is expected to
    rise most, after as many epochs as suit it best, trains. The search stops when the utility has fallen below its
    highest, by a part of its range that is the larger the more probable it is that the chosen trial raises it again.
    Its constants are those of its code: the part is 0.2 where both are equally probable.

    Args:
        terms: Terms of the search.
        trials: Number of trials there are.
        worth: Device seconds that a value 1 % better is worth; inf for a search in which time costs nothing.
    """

    def __init__(self, terms: Terms, trials: int, worth: float = float("inf")) -> None:
        super().__init__(terms, trials)
        self._worth, self._budget = worth / PERCENT, terms.deadline * terms.devices
        self._highest, self._lowest, self._stopped = -np.inf, np.inf, False
        self._epochs = np.unique(np.geomspace(1, terms.max_epochs, 12).round())

    def _pick(self, forecasts: TrialForecasts, step: FloatArray, running: FloatArray, left: float) -> int | None:
        best = float(self.search.beliefs.scale.scaled(self.search.best or 0.0))
        gains, chances = np.zeros((2, len(step), len(self._epochs)))
        for k, epochs in enumerate(self._epochs):
            mean, deviation = forecasts.after(np.minimum(step + epochs, self._max_epochs))
            cost = np.minimum(epochs, self._max_epochs - step) * self._pace + self.search.start * (1 - running)
            limit = best - cost / self._worth
            gains[:, k], chances[:, k] = expected_below(limit, mean, deviation), ndtr((limit - mean) / deviation)
        row = int(np.argmax(gains.max(axis=1)))
        if np.isfinite(self._worth) and (self._stopped or self._stops(best, float(chances[row].max()))):
            self._stopped = True
            return None
        return row

    def _stops(self, best: float, chance: float) -> bool:
        """Return whether the regret is above what the chance allows."""
        if not np.isfinite(self._lowest):
            self._lowest = -self._worth * best - self._budget
        now = -self._worth * best - sum(self._seconds.values())
        self._highest = max(self._highest, now)
        allowed = betainc(np.exp(-1.0), np.exp(-1.0), chance) ** -np.log2(0.2)
        return bool((self._highest - now) / (self._highest - self._lowest) >= allowed)
