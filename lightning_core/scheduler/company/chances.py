"""What a company does to the chances of jobs to be in time: the plan made again with the paces of the company.

The policy's plan says when each waiting job begins. Beside others the job that has the share ends later, and what waits
behind it begins later; the one that trains beside it is further by then. Chances are parts of the quantiles of a job's
work with which it would be in time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.plans import JobView, Plan

# Waiting jobs of which it is asked what becomes of them, the first in the order of the plan.
MAX_WAITING = 32
# The quantile that stands for the likely work.
MIDDLE = 10


class Effect(NamedTuple):
    """The effect of a company."""

    value: float
    """Jobs, by their weight, that are expected to be in time because of it; negative for jobs that it costs."""
    host: float
    """Seconds by which the job that has the share ends later."""
    others: tuple[float, ...]
    """Expected ends of those beside it, seconds from now; inf if they are not planned to end."""


class Member(NamedTuple):
    """A job that trains beside the one that has the share."""

    at: int
    pace: float


class Prospects:
    """The jobs of one round, as far as companies change what becomes of them.

    Args:
        view: The jobs as the policy sees them.
        plan: The policy's plan.
        share: Share of its devices that each is allocated, shape ``(n,)``.
        now: Scheduler time.
    """

    def __init__(self, view: JobView, plan: Plan, share: FloatArray, now: float) -> None:
        self._view, self._share = view, share
        waiting = plan.order[share[plan.order] == 0][:MAX_WAITING]
        self._place = {at: place for place, at in enumerate(waiting.tolist())}
        self._left = view.deadline - now
        with np.errstate(invalid="ignore"):
            begins = plan.finish[waiting] - now - view.work[waiting]
            self._ends = np.where(np.isfinite(begins), begins, np.inf)[:, None] + view.quantiles[waiting]
        self._waiting = waiting
        self._chance = _chances(self._ends, self._left[waiting])

    def effect(self, host: int, share: float, pace: float, others: list[Member]) -> Effect:
        """Return the effect of a company.

        Args:
            host: The job that has a share.
            share: Share of the device that the company has.
            pace: Expected pace of the job that has a share.
            others: Those beside it.
        """
        view, left = self._view, self._left
        need = view.quantiles[host] / self._share[host]
        work = [float(view.work[one.at]) / (one.pace * share) for one in others]
        until = max((one if one == one else np.inf for one in work), default=np.inf)
        faster = pace * share / self._share[host]
        with np.errstate(invalid="ignore"):
            together = np.where(need / faster <= until, need / faster, until + need - faster * until)
            delay = float(together[MIDDLE] - need[MIDDLE]) if np.isfinite(need[MIDDLE]) else 0.0
        value = self._gain(host, need, together)
        lasts = float(together[MIDDLE]) if np.isfinite(together[MIDDLE]) else np.inf
        ends = self._ends + delay / view.devices
        mine = list[float]()
        for one in others:
            soon = view.quantiles[one.at] / (one.pace * share)
            place = self._place.get(one.at)
            if self._share[one.at]:  # it has a share of its own, and trains in the time of both
                before = view.quantiles[one.at] / self._share[one.at]
                value += self._gain(one.at, before, soon)
            elif place is not None:
                done = one.pace * share * lasts
                with np.errstate(invalid="ignore"):
                    later = np.maximum(ends[place] - done, lasts)
                later = np.where(np.isnan(later), np.inf, later)
                ends[place] = np.where(soon <= lasts, soon, later)
                if np.isfinite(done):
                    ends[place + 1 :] -= done / view.devices
            else:
                value += self._gain(one.at, np.full_like(soon, np.inf), np.where(soon <= lasts, soon, np.inf))
            mine.append(float(np.where(np.isnan(soon), np.inf, soon if place is None else ends[place])[MIDDLE]))
        changed = (_chances(ends, left[self._waiting]) - self._chance) * view.weight[self._waiting]
        value += float(np.where(np.isfinite(left[self._waiting]), changed, 0.0).sum())
        return Effect(value, max(delay, 0.0), tuple(mine))

    def _gain(self, at: int, before: FloatArray, after: FloatArray) -> float:
        """Return the chance that one job gains, by its weight."""
        left = float(self._left[at])
        if not np.isfinite(left) or np.isnan(before).any() or np.isnan(after).any():
            return 0.0
        return float(self._view.weight[at]) * float((after <= left).mean() - (before <= left).mean())


def _chances(ends: FloatArray, left: FloatArray) -> FloatArray:
    """Return the chance of each job to end within its seconds left, shape ``(m,)``; 0 while nothing is known."""
    with np.errstate(invalid="ignore"):
        return np.asarray((ends <= left[:, None]).mean(axis=1))
