"""Best-effort jobs: those without a deadline share what jobs with a chance to make theirs leave, equally over time.

They are served last, unless a part of the pool is kept for them. Where whole devices are left, jobs of one device share
them side by side, and jobs of several take turns. Whose turn it is goes by lag, as in fair queueing: the device-seconds
that a job would have had if all had been served equally since their submission, less those that it has had. A job that
trains keeps its devices until another one lags behind it by a turn. A resizable job gets the most devices
that fit its equal share, but at least its minimum; it keeps a size for a turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView
from lightning_core.planning.sequencing import side_by_side

# A smaller share is not worth a switch.
MIN_SHARE = 0.02
# Seconds of a turn, and those for which a size is kept, as a multiple of what a resize costs.
TURN = 20.0
# Turns by which a job can lag at most: one that was paused for a day does not have the devices for a day.
MAX_TURNS = 10.0


class Leftovers(NamedTuple):
    """What best-effort jobs have of what is left."""

    order: IntArray
    """Their rows, the first to be served first, shape ``(m,)``."""
    share: FloatArray
    """Share of its devices for each of ``order``."""
    size: IntArray
    """Devices of each of ``order``."""


def share_what_is_left(
    left: float, jobs: JobView, served: FloatArray, trains: BoolArray, now: float, turn: float
) -> Leftovers:
    """Share devices among best-effort jobs.

    Args:
        left: Devices that the others do not ask for, at least 0.
        jobs: The jobs without a deadline, ``m`` of them.
        served: Seconds that each has trained, shape ``(m,)``.
        trains: Whether each trains now, shape ``(m,)``.
        now: Scheduler time.
        turn: Seconds for which a job of several devices has them at least.
    """
    size = _sizes(jobs, left, now, turn)
    if left < 1.0 and not np.any(size > 1):
        fit = min(int(left / MIN_SHARE), len(jobs))
        share = np.where(np.arange(len(jobs)) < fit, left / max(fit, 1), 0.0)
        return Leftovers(np.arange(len(jobs)), share, size)
    plan = side_by_side(replace(jobs, size=size, devices=max(int(left), 1)), np.arange(len(jobs)), now, "best_effort")
    share = plan.share if left >= 1.0 else np.zeros(len(jobs))
    order = plan.order
    if np.any(size > 1):
        had, since = served * size, np.maximum(now - jobs.submitted, 0.0)
        lag = (since * (had.sum() / max(since.sum(), 1e-9)) - had) / size
        lag = np.clip(lag, -MAX_TURNS * turn, MAX_TURNS * turn) + np.where(trains, turn, 0.0)
        order = np.argsort(-lag, kind="stable")
    return Leftovers(order, share[order], size[order])


def slowed(jobs: JobView, part: float) -> JobView:
    """Return jobs as they look where a part of the time of all devices is not theirs: their work takes so much longer.

    Args:
        jobs: The jobs with deadlines.
        part: That part, at least 0 and below 1.
    """
    longer = 1.0 / (1.0 - part)
    return replace(
        jobs, remaining=longer * jobs.remaining, work=longer * jobs.work, quantiles=longer * jobs.quantiles
    )  # fmt: skip


def fewest(jobs: JobView) -> IntArray:
    """Return the fewest devices that each job can use, where its ``speedup`` is given."""
    return np.array([speed.sizes[0] for speed in jobs.speedup], np.int64)


def is_owed_a_turn(jobs: JobView, served: FloatArray, trains: BoolArray, now: float, turn: float, part: float) -> bool:
    """Return whether best-effort jobs have had so much less than their part of the pool that one has a turn first.

    A turn begins once they are owed all of it, and ends when they are owed nothing.

    Args:
        jobs: The jobs without a deadline, ``m`` of them.
        served: Seconds that each has trained, shape ``(m,)``.
        trains: Whether each trains now, shape ``(m,)``.
        now: Scheduler time.
        turn: Seconds of a turn.
        part: Part of the time of the pool's devices that is kept for them together, at least 0 and below 1.
    """
    owed = part * jobs.devices * (now - float(jobs.submitted.min())) - float((served * jobs.size).sum())
    return bool(owed > (0.0 if trains.any() else turn * float(jobs.size.min())))


def _sizes(jobs: JobView, left: float, now: float, turn: float) -> IntArray:
    """Return the number of devices of each job."""
    if not len(jobs.speedup):
        return jobs.size
    part = left / len(jobs)
    largest = [max((n for n in one.sizes if n <= part), default=0) for one in jobs.speedup]
    sizes = np.maximum(np.array(largest, np.int64), fewest(jobs))
    held = jobs.held_devices.astype(np.int64)
    stays = (held > 0) & (held <= part) & (now - jobs.trained_since < turn)
    sizes = np.where(stays, held, sizes)
    return np.where(jobs.fixed_size > 0, jobs.fixed_size, sizes)
