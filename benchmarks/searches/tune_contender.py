"""Ray Tune's schedulers, unmodified, as contenders: the calls that Tune's controller would make, in virtual time."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from benchmarks.searches.play import NEW, Action

# Trials that Tune's controller keeps ready, so that a scheduler has a choice.
PENDING = 16
_ACTIONS = {
    TrialScheduler.CONTINUE: Action.GO_ON,
    TrialScheduler.PAUSE: Action.PAUSE,
    TrialScheduler.STOP: Action.STOP,
    TrialScheduler.NOOP: Action.PAUSE,
}


class _Drawn:
    """The search algorithm: the trials are drawn beforehand, so it has nothing to learn from what BOHB tells it."""

    @property
    def searcher(self) -> _Drawn:
        return self

    def on_pause(self, trial_id: str) -> None: ...

    def on_unpause(self, trial_id: str) -> None: ...


class TuneContender:
    """Stands where Tune's controller does.

    Args:
        scheduler: A scheduler whose metric is ``value`` and whose mode is ``min``.
        trials: Number of trials there are.
    """

    def __init__(self, scheduler: TrialScheduler, trials: int) -> None:
        self.scheduler = scheduler
        self.search_alg = _Drawn()
        self._left = trials
        self._trials: list[Any] = []  # in the order in which Tune made them
        self._running: dict[int, Any] = {}
        self._numbers: dict[str, int] = {}
        self._started = 0
        self._seconds: dict[str, float] = {}
        self._last: dict[str, float] = {}

    # What schedulers call.
    def get_trials(self) -> list[Any]:
        return self._trials

    def get_live_trials(self) -> set[Any]:
        return {trial for trial in self._trials if not trial.is_finished()}

    def stop_trial(self, trial: Any, **_: Any) -> None:
        if not trial.is_finished():
            was = trial.status
            trial.set_status(Trial.TERMINATED)
            if was in (Trial.PENDING, Trial.PAUSED):
                self.scheduler.on_trial_remove(self, trial)  # type: ignore[arg-type]

    # What the player calls.
    def next_trial(self, now: float) -> int | None:
        self._fill()
        self._chosen: Any = self.scheduler.choose_trial_to_run(self)  # type: ignore[arg-type]
        if self._chosen is None:
            return None
        return self._numbers.get(self._chosen.trial_id, NEW)

    def _fill(self) -> None:
        pending = sum(trial.status == Trial.PENDING for trial in self._trials)
        while pending < PENDING and self._left:
            trial = Trial("trial", stub=True)
            self._trials.append(trial)
            self.scheduler.on_trial_add(self, trial)  # type: ignore[arg-type]
            pending += 1
            self._left -= 1

    def started(self, trial: int, now: float) -> None:
        assert self._chosen is not None
        self._numbers[self._chosen.trial_id] = trial
        self._running[trial] = self._chosen
        self._chosen.set_status(Trial.RUNNING)
        self._last[self._chosen.trial_id] = now

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        this = self._running[trial]
        key = this.trial_id
        self._seconds[key] = self._seconds.get(key, 0.0) + now - self._last[key]
        self._last[key] = now
        result = {"training_iteration": epoch, "value": value, "time_total_s": self._seconds[key], "trial_id": key}
        this.run_metadata.last_result = result
        if last:
            # The trainable has come to its end by itself.
            self.scheduler.on_trial_complete(self, this, result)  # type: ignore[arg-type]
            this.set_status(Trial.TERMINATED)
            return Action.STOP
        action = _ACTIONS[self.scheduler.on_trial_result(self, this, result)]  # type: ignore[arg-type]
        if action is Action.STOP:
            self.scheduler.on_trial_complete(self, this, result)  # type: ignore[arg-type]
            this.set_status(Trial.TERMINATED)
        elif action is Action.PAUSE:
            this.set_status(Trial.PAUSED)
        return action
