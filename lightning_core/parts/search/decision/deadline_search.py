"""Decides which trials of a search run, so that the best value at the deadline is as good as it can be.

A device goes to the trial whose next slice of training promises most for the value at the deadline. Its promise is
information, by which a better trial may be chosen to be trained until the end. Its cost is the progress that the
waiting trials could have made in the same time. A new draw is one of the trials. As time runs out there is less to
choose from, so exploration ends by itself. If it is said what a better value is worth, trials that are not worth their
device time do not train, and the search ends when none is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.search.decision.beliefs import Beliefs
from lightning_core.parts.search.decision.knowledge_gradient import gains_of_slices, net_worths
from lightning_core.parts.search.decision.metric_scale import Mode
from lightning_core.parts.search.decision.trials import Trial, usual_pace

# Number of the trial that has not begun.
NEW = -1
# A trial is compared with the others when it has trained this part more.
SLICE = 1.25
# A trial that has come this far finishes: its rest costs little, and samplers learn from whole trials.
FINISHING = 0.9
# A search plans for the end of a period, of this many whole trials at the usual pace: with endless time nothing would
# ever be worth training to its end.
PERIOD = 4.0
# What ``worth`` is given for, on the scale of the values.
PERCENT = 0.01
# Trials that are compared at once, the best by forecast: the others are too far behind to matter.
MAX_COMPARED = 24


class ComparedTrials(NamedTuple):
    """Promises of trials, compared."""

    numbers: list[int]
    gains: FloatArray
    """Expected improvement at the deadline by the best slice of each, ``(n,)``; -inf without time for a step, or if
    not worth its time."""
    expected: FloatArray
    """Expected value of each at the deadline if it trains until then, on the scale, ``(n,)``."""

    def ranked(self) -> list[int]:
        """Return the numbers of the trials that can train: those that gain, by that; then by expected value."""
        order = sorted(
            (k for k in range(len(self.numbers)) if self.gains[k] > -math.inf),
            key=lambda k: (-max(float(self.gains[k]), 0.0), float(self.expected[k])),
        )
        return [self.numbers[k] for k in order]


class DeadlineSearch:
    """The trials of a search, and which of them run.

    Args:
        deadline: End of the search, seconds on the clock of all ``now``.
        max_steps: Steps of a whole trial, at least 2.
        mode: Whether the metric is minimised or maximised.
        start: Seconds that it takes to start or resume a trial.
        max_trials: Number of trials that may begin.
        target: Value that is enough: the search ends as soon as it is reached.
        worth: Device seconds that a value 1 % better is worth (0.01 on the `MetricScale`); None for any.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        deadline: float,
        max_steps: int,
        mode: Mode = "min",
        start: float = 0.0,
        max_trials: float = math.inf,
        target: float | None = None,
        worth: float | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if not (math.isfinite(start) and start >= 0.0):
            raise ValueError(f"start must be finite and at least 0 seconds, got {start}")
        if math.isnan(deadline):
            raise ValueError("deadline must be a number, got nan")
        if target is not None and not math.isfinite(target):
            raise ValueError(f"target must be finite, got {target}")
        if worth is not None and not (math.isfinite(worth) and worth > 0.0):
            raise ValueError(f"worth must be finite and above 0 seconds, got {worth}")
        self.deadline, self.max_steps = deadline, max_steps
        self.mode, self.start, self.max_trials, self.target = mode, start, max_trials, target
        self.worth = worth
        self.trials = list[Trial]()
        self.beliefs = Beliefs(max_steps, mode)
        self._began: float | None = None
        self._last: tuple[tuple[float, ...], ComparedTrials] | None = None

    # Events.

    def begin(self) -> int:
        """Begin a trial, and return its number."""
        self.trials.append(Trial())
        return len(self.trials) - 1

    def resume(self, number: int) -> None:
        """Record that a trial runs again."""
        self.trials[number].running = True

    def pause(self, number: int) -> None:
        """Record that a trial has stopped and can resume from its checkpoint."""
        self.trials[number].running = False

    def end(self, number: int) -> None:
        """Record that a trial will not train again."""
        self.trials[number].running, self.trials[number].over = False, True

    def report(self, number: int, step: int, value: float, seconds: float) -> None:
        """Record a report of a trial; see `Trial.report`."""
        trial = self.trials[number]
        trial.report(step, value, seconds)
        trial.over = trial.over or step >= self.max_steps

    # Decisions.

    @property
    def best(self) -> float | None:
        """Return the best value so far; None before the first."""
        values = [value for trial in self.trials for value in trial.values]
        if not values:
            return None
        return min(values) if self.mode == "min" else max(values)

    def is_over(self, now: float) -> bool:
        """Return whether the deadline has passed or the target is reached."""
        if now >= self.deadline:
            return True
        best = self.best
        if self.target is None or best is None:
            return False
        return best <= self.target if self.mode == "min" else best >= self.target

    def continues(self, number: int, now: float) -> bool:
        """Return whether a running trial continues; if not, its device is worth more elsewhere."""
        trial = self.trials[number]
        if trial.over or self.is_over(now):
            return False
        if trial.step < trial.compared_at or trial.step >= FINISHING * self.max_steps:
            return True
        trial.compared_at = max(trial.step + 1, math.ceil(trial.step * SLICE))
        ranked = self._compare(now, leaving=number).ranked()
        return next((other for other in ranked if other == number or self._waits(other)), None) == number

    def choose(self, now: float) -> int | None:
        """Return the trial to which a free device goes: a paused one, NEW, or None if none can train or is worth it."""
        if self.is_over(now):
            return None
        return next((number for number in self._compared(now).ranked() if self._waits(number)), None)

    # Promises.

    def _planned(self, now: float, period: float) -> float:
        """Return the seconds until the end of the period, or until the deadline if that is sooner."""
        if self._began is None:
            self._began = now
        over = (now - self._began) % period
        return min(self.deadline - now, period - over)

    def _waits(self, number: int) -> bool:
        return number == NEW or not self.trials[number].running

    def _compared(self, now: float) -> ComparedTrials:
        """Return the result of `_compare`, computed once per state."""
        steps, running = sum(trial.step for trial in self.trials), sum(trial.running for trial in self.trials)
        state = (now, self.max_trials, len(self.trials), steps, running)
        if self._last is None or self._last[0] != state:
            self._last = (state, self._compare(now))
        return self._last[1]

    def _compare(self, now: float, leaving: int | None = None) -> ComparedTrials:
        """Return the trials that can train, and the promise of each if one of them leaves for good."""
        numbers = [number for number, trial in enumerate(self.trials) if not trial.over]
        if len(self.trials) < self.max_trials:
            numbers.append(NEW)
        best = self.best
        if best is None or not numbers:
            return ComparedTrials(numbers, np.zeros(len(numbers)), np.zeros(len(numbers)))
        self.beliefs.learn(self.trials)
        pace = usual_pace(self.trials)
        left = self._planned(now, PERIOD * self.max_steps * pace)
        found = self._compare_until(left, pace, numbers, best, leaving)
        waiting = [self._waits(number) for number in found.numbers]
        if left < self.deadline - now and not np.isfinite(found.gains[waiting]).any():
            # The rest of the period is too short for a step of a waiting trial; the time until the deadline may not be.
            found = self._compare_until(self.deadline - now, pace, numbers, best, leaving)
        return found

    def _compare_until(
        self, left: float, pace: float, numbers: list[int], best: float, leaving: int | None
    ) -> ComparedTrials:
        """Return the promises of trials for the value after some seconds, if they train until then."""
        trials = [None if number == NEW else self.trials[number] for number in numbers]
        forecasts = self.beliefs.forecasts(trials, left, self.start, pace)
        if len(numbers) > MAX_COMPARED:
            place = forecasts.expected(np.zeros(1))[:, 0]
            place[[k for k, trial in enumerate(trials) if trial is None or not trial.steps]] = -math.inf
            kept = sorted(np.argsort(place, kind="stable")[:MAX_COMPARED].tolist())
            numbers, trials = [numbers[k] for k in kept], [trials[k] for k in kept]
            forecasts = self.beliefs.forecasts(trials, left, self.start, pace)
        running = np.array([trial is not None and trial.running for trial in trials])
        new = np.array([trial is None for trial in trials])
        row = numbers.index(leaving) if leaving in numbers else None
        scaled = float(self.beliefs.scale.scaled(best))
        gains, seconds = gains_of_slices(forecasts, running, new, scaled, row)
        if self.target is not None:
            gains = gains / np.maximum(seconds, 1e-12)
        gains = np.where(seconds > 0.0, gains, -math.inf).max(axis=1)
        if self.worth is not None:
            gains = np.where(net_worths(forecasts, scaled, self.worth / PERCENT) > 0.0, gains, -math.inf)
        return ComparedTrials(numbers, gains, forecasts.expected(np.zeros(1))[:, 0])
