"""A scheduler for Ray Tune that knows the deadline of the experiment."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from ray.tune.experiment import Trial
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import TrialScheduler

from lightning_core.core.durations import parse_deadline, refuse_base_60, seconds_until
from lightning_core.parts.search.decision.deadline_search import NEW, DeadlineSearch
from lightning_core.parts.search.decision.trials import usual_pace


class DeadlineScheduler(TrialScheduler):
    """Trains the trials that promise most, so that the best value at the deadline is as good as it can be.

    Each trial is forecast from the curves of all trials. A trial makes room when another one, paused or new, promises
    more for the value that the experiment has at the deadline. It is paused and may resume later if it has reported a
    checkpoint, and is stopped if it has not. At the deadline all trials are stopped at their next result, and none
    begins. Works alone, without a pool. With ``num_samples=-1`` give ``TuneConfig(time_budget_s=...)`` too, for Tune
    asks for new trials without end.

    Args:
        deadline: End of the experiment: a duration from the addition of the first trial, such as ``"2h"`` or a number
            of seconds, or a time such as ``"18:00"``.
        max_t: Steps of a whole trial in units of ``time_attr``, at least 2; a trial is stopped there.
        time_attr: Name of the result that counts steps: whole numbers, from 1.
        metric: Name of the result that is to be improved; None to take that of ``TuneConfig``.
        mode: ``"min"`` or ``"max"``; None to take that of ``TuneConfig``.
        target: Value that is enough; when a trial has reached it all trials are stopped.
        clock: Returns the seconds since 1970.

    Raises:
        ValueError: An argument is out of its range.
    """

    _supports_buffered_results = False

    def __init__(
        self,
        deadline: object,
        max_t: int,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        target: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        refuse_base_60(self, deadline=deadline)
        self._when, self._max_t, self._time_attr = parse_deadline(deadline), max_t, time_attr
        self._metric, self._mode, self._target, self._clock = metric, mode, target, clock
        self._search = self._new_search(math.inf, mode or "min")  # refuses values out of range
        self._began = False
        self._numbers = dict[str, int]()
        self._first = dict[int, tuple[int, float]]()  # step and seconds of the first result since a start
        self._resumed = set[int]()  # trials that were paused and have not reported since
        self._starts = dict[int, float]()
        self._asked_at = -math.inf

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take metric and mode from ``TuneConfig``; return False if they were given here too."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric = metric or self._metric
        if mode is not None:
            self._mode = "max" if mode == "max" else "min"
        if self._metric is None and self._mode:
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take the time of the first trial as the beginning.

        Raises:
            ValueError: Metric or mode is missing.
        """
        if self._began:
            return
        if not self._metric or not self._mode:
            raise ValueError(
                f"DeadlineScheduler needs a metric and a mode, here or in TuneConfig, got metric={self._metric!r} "
                f"and mode={self._mode!r}"
            )
        self._began = True
        now = self._clock()
        deadline = now + seconds_until(self._when, datetime.fromtimestamp(now))
        self._search = self._new_search(deadline, self._mode)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        """Return the decision about a trial after a result."""
        self._asked_at = now = self._clock()
        number = self._number(trial)
        step = result.get(self._time_attr)
        metric = self._metric
        if metric is None or metric not in result or step is None:
            return str(TrialScheduler.CONTINUE)
        known = self._search.trials[number]
        if step > known.step and not known.over:
            self._report(trial, int(step), float(result[metric]), float(result["time_total_s"]))
        known.running = True
        if known.over or self._search.is_over(now):
            return str(TrialScheduler.STOP)
        if self._search.continues(number, now):
            return str(TrialScheduler.CONTINUE)
        if trial.checkpoint is None:
            return str(TrialScheduler.STOP)
        self._search.pause(number)
        self._resumed.add(number)
        return str(TrialScheduler.PAUSE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> None:
        """Record the end of a trial."""
        self._search.end(self._number(trial))

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Record the failure of a trial."""
        self._search.end(self._number(trial))

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Record that a waiting trial will not run."""
        if trial.trial_id in self._numbers:
            self._search.end(self._numbers[trial.trial_id])

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the paused or new trial that promises most; None if none does."""
        trials: list[Trial] = tune_controller.get_trials()
        new = [trial for trial in trials if trial.status == Trial.PENDING and trial.trial_id not in self._numbers]
        known = {self._numbers[trial.trial_id]: trial for trial in trials if trial.trial_id in self._numbers}
        waiting = {number: trial for number, trial in known.items() if trial.status in (Trial.PAUSED, Trial.PENDING)}
        for trial in trials:
            if trial.status == Trial.RUNNING and trial.trial_id in self._numbers:
                self._search.trials[self._numbers[trial.trial_id]].running = True
        # Tune asks again and again: between two results, once a second is often enough.
        now = self._clock()
        if now - self._asked_at < 1.0:
            now = self._asked_at
        self._asked_at = now
        if self._search.is_over(self._clock()):
            for trial in (*new, *waiting.values()):
                # Tune looks for the folder of every trial in the end, of one that never began too.
                if trial.storage is not None and trial.storage.trial_dir_name is None:
                    trial.init_local_path()  # type: ignore[no-untyped-call]
                tune_controller.stop_trial(trial)
            return None
        self._search.max_trials = len(self._search.trials) + len(new)
        chosen = self._search.choose(now)
        if chosen == NEW:
            return new[0]
        return None if chosen is None else waiting.get(chosen)

    def debug_string(self) -> str:
        """Return the line of Tune's status."""
        best = self._search.best
        left = max(self._search.deadline - self._clock(), 0.0)
        return f"DeadlineScheduler: {left:.0f} s until the deadline, best {self._metric} {best}"

    def _number(self, trial: Trial) -> int:
        if trial.trial_id not in self._numbers:
            self._numbers[trial.trial_id] = self._search.begin()
        return self._numbers[trial.trial_id]

    def _report(self, trial: Trial, step: int, value: float, seconds: float) -> None:
        """Record a result; the start-up time of a trial, such as importing torch, is not part of its pace.

        Args:
            trial: The trial.
            step: Its steps so far.
            value: Value there.
            seconds: Seconds of training so far as Tune counts them: with its starts.
        """
        number = self._numbers[trial.trial_id]
        known = self._search.trials[number]
        if number in self._resumed or not known.steps:
            self._resumed.discard(number)
            self._first[number] = (step, seconds)
        first_step, first_seconds = self._first[number]
        if step > first_step:
            pace = (seconds - first_seconds) / (step - first_step)
            self._starts.setdefault(number, max(first_seconds - first_step * pace, 0.0))
        elif known.steps:
            pace = known.seconds_per_step
        else:
            others = usual_pace(self._search.trials)
            pace = seconds / step if math.isnan(others) else min(others, seconds / step)
        self._search.report(number, step, value, step * pace)
        if self._starts:
            self._search.start = statistics.median(self._starts.values())

    def _new_search(self, deadline: float, mode: Literal["min", "max"]) -> DeadlineSearch:
        return DeadlineSearch(deadline=deadline, max_steps=self._max_t, mode=mode, target=self._target)
