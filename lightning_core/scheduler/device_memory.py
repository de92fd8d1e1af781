"""Memory of each job on its devices: as stated, as measured, or all of it for a trial.

Rules

1. A job needs the most that its process was seen to have, and at least what its user or earlier runs say.
2. A launched job of which nothing is known has its devices' memory for itself, until its process has trained and
   reported what it has: its trial. A script is there already, and counts once it has reported.
3. A job that ran out of memory comes back for such a trial, and it lasts until it has come further than before.
4. A held job keeps its memory, or what is left of it where it moves its state, or its whole process, to the host.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import OnHold
from lightning_core.core.reported import MemoryUse
from lightning_core.scheduler.tables.table import NO_TRIAL, JobTable

# Part of a device that any process takes: none fits beside a job that needs all of it.
LEAST = 1e-6


class Needs(NamedTuple):
    """Parts of a device's memory; arrays of shape ``(n,)``."""

    training: FloatArray
    """Part that each job takes while it trains, at most 1."""
    held: FloatArray
    """Part that it takes while it is on a device and holds no share of it."""
    trial: BoolArray
    """Whether it is not known, so that the job has all of it."""

    @property
    def all_fit(self) -> bool:
        """Whether all jobs fit on one device at once."""
        return float(self.training.sum()) <= 1.0


def needs(table: JobTable, rows: IntArray, device_memory: int | None) -> Needs | None:
    """Return the needs of some jobs; None if no limit is known and no job must be alone.

    Args:
        table: All jobs.
        rows: Rows of the jobs.
        device_memory: Bytes of each device; None if unknown: then only jobs that have run out of it are kept apart.
    """
    measured, ran_out = table.memory[rows], table.trial_until[rows] > NO_TRIAL
    unknown = np.isnan(measured) | (table.batches[rows] <= table.trial_until[rows])
    if device_memory is None:
        trial = ran_out & unknown
        part = np.where(trial, 1.0, LEAST)
        return Needs(part, part, trial) if trial.any() else None
    told = _told(table, rows)
    trial = unknown & np.isnan(told) & table.launched[rows]
    peak = np.fmax(np.where(unknown, 0.0, measured), told)
    training = np.clip(np.where(trial, 1.0, peak / device_memory), LEAST, 1.0)
    offloads = np.array([table.jobs[row].on_hold is not OnHold.KEEP for row in rows.tolist()], np.bool_)
    kept = np.clip(table.held_memory[rows] / device_memory, LEAST, training)
    return Needs(training, np.where(offloads & ~unknown & np.isfinite(kept), kept, training), trial)


def needed(table: JobTable, row: int) -> float | None:
    """Return the bytes of each device that count as the need of a job, as far as it is known."""
    most = float(np.fmax(table.memory[row], _told(table, np.array([row]))[0]))
    return None if np.isnan(most) else most


def _told(table: JobTable, rows: IntArray) -> FloatArray:
    """Return what users and earlier runs say, which does not count once a job has run out of memory."""
    return np.where(table.trial_until[rows] > NO_TRIAL, np.nan, table.told_memory[rows])


def wait_for_memory(table: JobTable, rows: IntArray, device_memory: int | None) -> frozenset[int]:
    """Return the jobs that have no process yet and must not be launched before others have left their devices.

    Args:
        table: All jobs.
        rows: Rows of those that have not ended.
        device_memory: Bytes of each device; None if unknown.
    """
    if not table.leaving or (device_memory is None and not (table.trial_until[rows] > NO_TRIAL).any()):
        return frozenset()
    concerned = np.union1d(rows, np.fromiter(table.leaving, np.int64))
    if (parts := needs(table, concerned, device_memory)) is None:
        return frozenset()
    taken: Counter[int] = Counter()
    for row, training, held in zip(concerned.tolist(), parts.training.tolist(), parts.held.tolist(), strict=True):
        for device in table.home[row]:
            taken[device] += training if table.share[row] or table.beside[row] else held
        for device in table.leaving.get(row, ()):
            taken[device] += training
    full = {device for devices in table.leaving.values() for device in devices if taken[device] > 1 + LEAST / 2}
    return frozenset(r for r in rows.tolist() if not table.last_report[r] and not full.isdisjoint(table.home[r]))


def take_memory(table: JobTable, row: int, use: MemoryUse | None) -> bool:
    """Take in what a process has of its devices' memory; return whether that is known for the first time."""
    if use is None or not use.is_valid:
        return False
    first = bool(np.isnan(table.memory[row]))
    table.memory[row] = np.fmax(table.memory[row], float(use.peak))
    table.held_memory[row] = float(use.held)
    return first


def ran_out(table: JobTable, row: int) -> None:
    """Forget what is known of the memory of a job that has run out of it: it needs more."""
    table.memory[row] = table.held_memory[row] = np.nan
    table.trial_until[row] = table.batches[row]
