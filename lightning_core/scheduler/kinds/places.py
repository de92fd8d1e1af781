"""Throughput of a job by the place of its devices: of which kind they are, and whether on one machine or on several.

What a job has shown at one place stays with it. At another one it counts by what kinds of trainings are there, until
the job has been there itself.
"""

from __future__ import annotations

import math

from lightning_core.core.jobs import Job, Spread
from lightning_core.core.speedup import SpeedUp
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.pool_devices import PoolDevices
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.tables.table import JobTable

# Seconds that what is expected at another place weighs as much as, once a job comes there.
EXPECTED_SECONDS = 1.0


class Places:
    """Throughputs of the jobs of a round, by the place of their devices.

    Args:
        round: The round.
        rates: How fast kinds of trainings are on kinds of devices.
    """

    def __init__(self, round: Round, rates: KindRates) -> None:
        self._round, self._rates = round, rates
        self._largest: dict[tuple[int, str, tuple[str, ...], int | None], int] = {}

    def of_all(self) -> list[SpeedUp]:
        """Return the throughput by number of devices of each job, in a pool of one kind."""
        kind, table = (0 if self._round.pool.names else -1), self._round.table
        return [self.speedup(row, kind, 0.0, table.speedups[row]) for row in self._round.rows.tolist()]

    def speedup(self, row: int, kind: int, gain: float, present: SpeedUp) -> SpeedUp:
        """Return the throughput by number of devices of a job on a kind: on one machine as far as it has as many.

        Args:
            row: Row of the job.
            kind: Index of the kind; -1 where all are alike.
            gain: Expected logarithm of its rate there over that where it was last.
            present: Its throughput where it was last.
        """
        pool, table = self._round.pool, self._round.table
        job, was_apart = table.jobs[row], table.apart[row] == 1
        if kind == table.kind[row]:
            gain = 0.0
        if not pool.on_several_machines:
            return self._at(row, kind, was_apart, gain, present)
        most = self._most(job, kind)
        if job.spread is not Spread.POOL and not was_apart and present.sizes[-1] <= most:
            return self._at(row, kind, False, gain, present)
        slower = self._rates.apart(job.family, int(table.size[row]), pool.rates_name(kind))[0]
        together = self._at(row, kind, False, gain - slower * was_apart, present)
        if job.spread is not Spread.POOL:
            return together.on_machines(most, None)
        return together.on_machines(most, self._at(row, kind, True, gain + slower * (1 - was_apart), present))

    def _at(self, row: int, kind: int, apart: bool, gain: float, present: SpeedUp) -> SpeedUp:
        table = self._round.table
        if not gain and apart == (table.apart[row] == 1):
            return present
        return table.elsewhere.get(row, {}).get(_place(kind, apart)) or present.times(math.exp(gain))

    def _most(self, job: Job, kind: int) -> int:
        """Return how many devices of one machine a job may have on a kind, at least 1."""
        key = kind, job.location, job.kinds, job.device
        if (found := self._largest.get(key)) is None:
            pool, gone = self._round.pool, self._round.unavailable
            there = [device for device in pool.allowed(job, kind) if device not in gone]
            found = self._largest[key] = max(pool.together(there), 1)
        return found


def come_to(table: JobTable, row: int, pool: PoolDevices, rates: KindRates) -> None:
    """Note that a job comes to its devices: at another place, what it is expected to do there stands for what it did.

    Args:
        table: All jobs, with the devices of this one.
        row: Row of the job.
        pool: Kinds and machines of the devices.
        rates: How fast kinds of trainings are on kinds of devices.
    """
    home, family, size = table.home[row], table.jobs[row].family, int(table.size[row])
    before, was_apart = int(table.kind[row]), int(table.apart[row])
    kind, apart = pool.kind_of(home), int(pool.are_apart(home))
    table.kind[row], table.apart[row] = kind, apart
    if was_apart == -1 or (kind, apart) == (before, was_apart):
        return
    gain = 0.0
    if kind != before and before >= 0:
        expected, _ = rates.expect(family, size, pool.names)
        gain = float(expected[kind] - expected[before])
    if apart != was_apart:
        gain += (apart - was_apart) * rates.apart(family, size, pool.rates_name(kind))[0]
    factor = math.exp(gain)
    if (busy := float(table.recent_busy[row])) > 0:
        keep = min(1.0, EXPECTED_SECONDS / busy)
        table.recent_batches[row] *= keep * factor
        table.recent_busy[row] *= keep
        table.recent_used[row] *= keep
    others, there = table.elsewhere.setdefault(row, {}), table.speedups[row]
    others[_place(before, was_apart == 1)] = there
    known = others.pop(place) if (place := _place(kind, apart == 1)) in others else None
    table.speedups[row] = known or there.times(factor)
    # What it does before it has left counts for the devices that it leaves.
    table.company_version[row], table.counts_from[row] = table.directives[row].version + 1, False


def speedup_together(table: JobTable, row: int) -> SpeedUp | None:
    """Return the throughput by number of devices that a job has shown on one machine; None if on none."""
    if table.apart[row] != 1:
        return table.speedups[row]
    return table.elsewhere.get(row, {}).get(_place(int(table.kind[row]), False))


def _place(kind: int, apart: bool) -> int:
    return 2 * kind + apart
