"""Contenders that know the deadline: ours, and the idea of HyperSched."""

from __future__ import annotations

import math

from benchmarks.searches.play import NEW, Action, Terms
from lightning_core.parts.search.decision.deadline_search import DeadlineSearch


class Ours:
    """`DeadlineSearch`, with trials that are paused and go on.

    Args:
        terms: Terms of the search.
        trials: Number of trials there are.
        worth: Device seconds that a value 1 % better is worth; None to search until the deadline.
    """

    def __init__(self, terms: Terms, trials: int, worth: float | None = None) -> None:
        self.search = DeadlineSearch(
            deadline=terms.deadline,
            max_steps=terms.max_epochs,
            start=terms.start,
            max_trials=trials,
            worth=worth,
        )
        self._since = dict[int, float]()
        self._seconds = dict[int, float]()

    def next_trial(self, now: float) -> int | None:
        return self.search.choose(now)

    def continues(self, trial: int, now: float) -> bool:
        """Return whether a trial that has ended an epoch trains another one."""
        return self.search.continues(trial, now)

    def started(self, trial: int, now: float) -> None:
        self._since[trial] = now
        if trial == len(self.search.trials):
            self.search.begin()
        else:
            self.search.resume(trial)

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        self._seconds[trial] = self._seconds.get(trial, 0.0) + now - self._since[trial]
        self._since[trial] = now
        self.search.report(trial, epoch, value, self._seconds[trial])
        if self.continues(trial, now):
            return Action.GO_ON
        if self.search.trials[trial].over:
            self.search.end(trial)
            return Action.STOP
        self.search.pause(trial)
        return Action.PAUSE


class HyperSched:
    """The idea of HyperSched (R. Liaw et al., SoCC 2019), for trials of one device each.

    Trials climb rungs as in asynchronous successive halving, but those that are not promoted are paused. A new trial
    begins only while there is time for it to train as long as the best one has; then the devices go to the best trials
    that are left, whatever their rung, until the deadline.
    """

    def __init__(self, terms: Terms, trials: int, factor: int = 3) -> None:
        self._terms, self._trials = terms, trials
        self._rungs = [factor**k for k in range(1 + round(math.log(terms.max_epochs, factor)))]
        self._factor = factor
        self._scores: dict[int, dict[int, float]] = {rung: {} for rung in self._rungs}
        self._best = dict[int, float]()
        self._epochs = dict[int, int]()
        self._seconds = dict[int, float]()
        self._since = dict[int, float]()
        self._paused = set[int]()

    def next_trial(self, now: float) -> int | None:
        chosen = self._chosen(now)
        if chosen is not None and chosen != NEW:
            self._paused.discard(chosen)
        return chosen

    def _chosen(self, now: float) -> int | None:
        if not self._best:
            return NEW
        leader = min(self._best, key=lambda trial: self._best[trial])
        exploring = len(self._since) < self._trials and self._terms.deadline - now > self._seconds[leader]
        ranked = sorted(self._paused, key=lambda trial: self._best[trial])
        if not exploring:
            return ranked[0] if ranked else None
        promoted = [trial for trial in ranked if self._promoted(trial)]
        return promoted[0] if promoted else NEW

    def _promoted(self, trial: int) -> bool:
        rung = max((r for r in self._rungs if r <= self._epochs[trial]), default=None)
        if rung is None:
            return True
        scores = sorted(self._scores[rung].values())
        kept = len(scores) // self._factor
        return kept > 0 and self._scores[rung][trial] <= scores[kept - 1]

    def started(self, trial: int, now: float) -> None:
        self._since[trial] = now
        self._epochs.setdefault(trial, 0)

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        self._seconds[trial] = self._seconds.get(trial, 0.0) + now - self._since[trial]
        self._since[trial], self._epochs[trial] = now, epoch
        self._best[trial] = min(self._best.get(trial, math.inf), value)
        if epoch in self._scores:
            self._scores[epoch][trial] = self._best[trial]
        if last:
            return Action.STOP
        leader = min(self._best, key=lambda other: self._best[other])
        if self._terms.deadline - now <= self._seconds[leader]:
            better = sum(self._best[other] < self._best[trial] for other in self._paused)
            continues = better == 0
        else:
            continues = epoch not in self._scores or self._promoted(trial)
        if continues:
            return Action.GO_ON
        self._paused.add(trial)
        return Action.PAUSE
