"""Plays a search in virtual time on recorded trials: a rule that decides sees only what has been trained so far.

Rules

1. A trial runs on one device, epoch by epoch; the seconds of its epochs and their values are the recorded ones.
2. After each epoch the contender says whether the trial goes on, is paused or is stopped; a trial that was paused goes
   on where it was. To start a trial and to resume one takes the same seconds, and they are work.
3. A device that is free asks the contender for a trial: a paused one, a new one, or none until the next epoch of
   another ends.
4. All contenders draw the same trials in the same order. What counts is the best value of all epochs that ended before
   the deadline: its checkpoint is what the search hands over.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np


class Action(Enum):
    """Decision about a trial after an epoch."""

    GO_ON = "go on"
    PAUSE = "pause"
    STOP = "stop"


class RecordedTrial(NamedTuple):
    """One trial of the table."""

    values: tuple[float, ...]
    """Value after each epoch; the smaller the better, inf where training had diverged."""
    seconds: float
    """Seconds of an epoch."""


class Terms(NamedTuple):
    """Terms of a search, which a contender knows before it begins."""

    deadline: float
    """Seconds."""
    devices: int
    max_epochs: int
    start: float
    """Seconds that a start or a resume takes."""


# A contender's answer: begin another trial.
NEW = -1


class Contender(Protocol):
    """Decides which trials of a search run."""

    def next_trial(self, now: float) -> int | None:
        """Return the number of a paused trial, NEW, or None to leave the device idle until another epoch ends."""

    def started(self, trial: int, now: float) -> None:
        """Say that a trial, NEW or resumed, has a device."""

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        """Return what becomes of a trial after an epoch (from 1); after the last one it ends in any case."""


@dataclass
class Played:
    """Course of a search."""

    ends: list[float] = field(default_factory=list)
    """Seconds at which epochs ended, in order."""
    best: list[float] = field(default_factory=list)
    """Best value until then."""
    work: list[float] = field(default_factory=list)
    """Device seconds spent until then."""
    trials: int = 0

    def best_at(self, seconds: float) -> float:
        """Return the best value at a time; inf before the first."""
        return self._best_until(self.ends, seconds)

    def best_with(self, work: float) -> float:
        """Return the best value after device seconds; inf before the first."""
        return self._best_until(self.work, work)

    def _best_until(self, spent: list[float], limit: float) -> float:
        done = bisect.bisect_right(spent, limit * (1 + 1e-12))
        return self.best[done - 1] if done else float("inf")


def play(contender: Contender, table: Sequence[RecordedTrial], terms: Terms) -> Played:
    """Play a search to its deadline.

    Args:
        contender: Decides.
        table: Trials in the order in which they are drawn; when all are drawn no more begin.
        terms: Deadline, devices, length of a trial and seconds of a start.

    Returns:
        The best values and the work by time.
    """
    played, best = Played(), float("inf")
    epochs = list[int]()
    paused = set[int]()
    running: list[tuple[float, int, int]] = []
    number, idle, work = 0, terms.devices, 0.0

    def run(trial: int, now: float, extra: float) -> None:
        nonlocal number, work
        number += 1
        heapq.heappush(running, (now + extra + table[trial].seconds, number, trial))
        work += extra

    def fill(now: float) -> None:
        nonlocal idle
        while idle and (chosen := contender.next_trial(now)) is not None:
            if chosen == NEW:
                if len(epochs) == len(table):
                    return
                chosen = len(epochs)
                epochs.append(0)
            else:
                paused.remove(chosen)
            contender.started(chosen, now)
            idle -= 1
            run(chosen, now, terms.start)

    fill(0.0)
    while running and running[0][0] <= terms.deadline:
        now, _, trial = heapq.heappop(running)
        epochs[trial] += 1
        work += table[trial].seconds
        value = table[trial].values[epochs[trial] - 1]
        best = min(best, value)
        played.ends.append(now)
        played.best.append(best)
        played.work.append(work)
        last = epochs[trial] == terms.max_epochs
        action = contender.result(trial, epochs[trial], value, now, last)
        if action is Action.GO_ON and not last:
            run(trial, now, 0.0)
        else:
            idle += 1
            if action is Action.PAUSE and not last:
                paused.add(trial)
        fill(now)
    played.trials = len(epochs)
    return played


def table_of(recorded: Sequence[dict[str, object]], metric: str, seed: int) -> list[RecordedTrial]:
    """Return the recorded trials in an order drawn from a seed."""
    order = np.random.default_rng(seed).permutation(len(recorded))
    trials = []
    for k in order:
        values = tuple(np.inf if v is None else float(v) for v in recorded[k][metric])
        trials.append(RecordedTrial(values, float(recorded[k]["seconds_per_epoch"])))
    return trials
