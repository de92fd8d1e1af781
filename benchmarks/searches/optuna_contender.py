"""Optuna's pruners, unmodified, as contenders: they are asked after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from benchmarks.searches.play import NEW, Action

# Virtual time 0, seconds since 1970.
BEGINNING = 1_790_000_000.0
Clock = Callable[[], float]


class OptunaContender:
    """A study whose trials the player trains.

    Args:
        make_pruner: Makes the pruner, given the clock of the study.
        trials: Number of trials there are.
    """

    def __init__(self, make_pruner: Callable[[Clock], optuna.pruners.BasePruner], trials: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._now = BEGINNING
        self._study = optuna.create_study(
            study_name="searches",
            storage=_InVirtualTime(lambda: self._now),
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=make_pruner(lambda: self._now),
        )
        self._trials = list[optuna.Trial]()
        self._max_trials = trials

    def next_trial(self, now: float) -> int | None:
        return NEW if len(self._trials) < self._max_trials else None

    def started(self, trial: int, now: float) -> None:
        self._now = BEGINNING + now
        self._trials.append(self._study.ask())

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        self._now = BEGINNING + now
        this = self._trials[trial]
        this.report(value, epoch - 1)
        if last:
            self._study.tell(this, value)
            return Action.STOP
        if this.should_prune():
            self._study.tell(this, state=TrialState.PRUNED)
            return Action.STOP
        return Action.GO_ON


class _InVirtualTime(InMemoryStorage):
    """Optuna's storage in memory, with another clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        template = template_trial or self._create_running_trial()
        template.datetime_start = datetime.fromtimestamp(self._clock())
        return super().create_new_trial(study_id, template)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        changed = super().set_trial_state_values(trial_id, state, values)
        if state.is_finished():
            self._get_trial(trial_id).datetime_complete = datetime.fromtimestamp(self._clock())
        return changed
