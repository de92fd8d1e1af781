"""A pruner for Optuna that knows the deadline of the study."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

import optuna
from optuna.trial import FrozenTrial, TrialState

from lightning_core.core.durations import parse_deadline, refuse_base_60, seconds_until
from lightning_core.parts.search.decision.deadline_search import DeadlineSearch

_BEGUN = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class ForecastPruner(optuna.pruners.BasePruner):
    """Stops a trial when its device is worth more elsewhere, for the best value at the deadline.

    Each trial is forecast from the curves of all trials of the study. A trial is stopped when a new one promises more
    for the value that the study has at the deadline; the less time is left, the less a new one can reach. After the
    deadline it stops every trial at its next report, and ``study.optimize`` begins no other. Works alone, with any
    sampler, storage and number of workers; no pool is needed.

    Args:
        deadline: End of the study: a duration from now such as ``"2h"`` or a number of seconds, or a time such as
            ``"18:00"``.
        max_resource: Number of steps of a whole trial, such as its epochs; at least 2. Steps are counted from 0, as
            Optuna's callback for Lightning reports epochs.
        target: Value that is enough; when a trial has reached it the others are stopped, and the study ends.
        clock: Returns the seconds since 1970.

    Raises:
        ValueError: An argument is out of its range.

    Example::

        >>> import optuna
        >>> study = optuna.create_study(pruner=ForecastPruner(deadline="2h", max_resource=50))
    """

    def __init__(
        self,
        deadline: object,
        max_resource: int,
        *,
        target: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        refuse_base_60(self, deadline=deadline)
        self._clock = clock
        now = clock()
        self._deadline = now + seconds_until(parse_deadline(deadline), datetime.fromtimestamp(now))
        self._max_resource, self._target = max_resource, target
        self._study: str | None = None
        self._search = self._new_search(optuna.study.StudyDirection.MINIMIZE)  # refuses values out of range
        self._numbers = dict[int, int]()

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether the trial is to be stopped; Optuna calls this from ``trial.should_prune()``."""
        now = self._clock()
        if self._study != study.study_name:
            self._study, self._numbers = study.study_name, {}
            self._search = self._new_search(study.direction)
        for seen in study.get_trials(deepcopy=False, states=_BEGUN):
            self._record(seen if seen.number != trial.number else trial, now)
        if self._search.is_over(now):
            with suppress(RuntimeError):  # a study that asks and tells has no loop to stop
                study.stop()
        if trial.last_step is None or trial.last_step + 1 >= self._max_resource:
            return False
        return not self._search.continues(self._numbers[trial.number], now)

    def _record(self, seen: FrozenTrial, now: float) -> None:
        """Update the record of a trial."""
        if seen.number not in self._numbers:
            self._numbers[seen.number] = self._search.begin()
        number = self._numbers[seen.number]
        known = self._search.trials[number]
        if known.over:
            return
        new = sorted(step for step in seen.intermediate_values if step + 1 > known.step)
        if new and seen.datetime_start is not None:
            ended = seen.datetime_complete.timestamp() if seen.datetime_complete else now
            seconds = ended - seen.datetime_start.timestamp()
            for step in new:
                self._search.report(number, step + 1, seen.intermediate_values[step], seconds)
        if seen.state.is_finished():
            self._search.end(number)

    def _new_search(self, direction: optuna.study.StudyDirection) -> DeadlineSearch:
        maximised = direction == optuna.study.StudyDirection.MAXIMIZE
        return DeadlineSearch(
            deadline=self._deadline,
            max_steps=self._max_resource,
            mode="max" if maximised else "min",
            target=self._target,
        )
