"""How fast each job of a round is on each kind of devices: measured there, or expected from what is known elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import Spread
from lightning_core.core.speedup import SpeedUp
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.kinds.places import Places
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.tables.table import JobTable


class OnKinds(NamedTuple):
    """Throughputs of the jobs of a round on ``k`` kinds of devices."""

    throughput: FloatArray
    """Batches per second on the fastest kind that each may be on, shape ``(n,)``; NaN while unknown."""
    doubt: FloatArray
    """Spread of its logarithm, shape ``(n,)``; 0 where it was measured."""
    columns: dict[str, Any]
    """Columns of the view."""


def on_kinds(round: Round, rates: KindRates, own: FloatArray, sizes: IntArray, speedups: list[SpeedUp]) -> OnKinds:
    """Return the throughputs of the jobs of a round by kind.

    Args:
        round: The round.
        rates: How fast kinds of trainings are on kinds of devices.
        own: Batches per second of each job on the kind that it was on last, or on any, shape ``(n,)``; NaN if unknown.
        sizes: Devices of each job, shape ``(n,)``.
        speedups: Throughput by number of devices of each, for a policy that chooses sizes; else empty.
    """
    table, rows, pool = round.table, round.rows, round.pool
    kinds, counts = pool.names, pool.counts(round.unavailable)
    last = table.kind[rows]
    families = [(table.jobs[row].family, size) for row, size in zip(rows.tolist(), sizes.tolist(), strict=True)]
    numbers = {one: number for number, one in enumerate(dict.fromkeys(families))}
    training = np.array([numbers[one] for one in families], np.int64)
    expected, spread = (of_each[training] for of_each in rates.expect_all([*numbers], kinds))
    family_known = np.array([rates.has(*one, kinds) for one in numbers], np.bool_)[training]
    at_last = np.take_along_axis(expected, np.maximum(last, 0)[:, None], 1)[:, 0]
    # What is said of a job that has not trained counts only if nothing is known of its family.
    measured = ~np.isnan(own) & ((last >= 0) & (table.recent_busy[rows] > 0) | ~family_known)
    with np.errstate(divide="ignore", invalid="ignore"):
        # On a kind that it has been on, the job says what its family is like; on none, the mean of the kinds does.
        level = np.log(own) - np.where(last >= 0, at_last, expected.mean(axis=1))
    rate = expected + np.where(measured, level, 0.0)[:, None]
    known = measured | family_known
    may = _may_be_on(round, counts, sizes, chooses_sizes=bool(speedups))
    log_pace = np.where(may, rate, -np.inf)
    best = np.argmax(log_pace, axis=1)
    at_best = np.take_along_axis(rate, best[:, None], 1)[:, 0]
    pace = np.where(may, np.exp(log_pace - at_best[:, None]), 0.0)
    columns: dict[str, Any] = {
        "kinds": tuple(counts.tolist()),
        "kind": np.array([pool.kind_of(table.home[row]) for row in rows.tolist()], np.int64),
        "pace": pace,
        "doubt": spread,
        "training": training,
    }
    if speedups:
        columns["speedups"], columns["speedup"] = _speedups(round, rates, speedups, rate, best)
    return OnKinds(
        np.where(known, np.exp(at_best), np.nan),
        np.take_along_axis(spread, best[:, None], 1)[:, 0],
        columns,
    )


def job_rates(table: JobTable, row: int, rates: KindRates, kinds: Sequence[str]) -> dict[str, float]:
    """Return the batches per second of one job on each kind, measured or expected; empty while nothing is known.

    Args:
        table: All jobs.
        row: Row of the job.
        rates: How fast kinds of trainings are on kinds of devices.
        kinds: Names of the kinds.
    """
    family, size, last = table.jobs[row].family, int(table.size[row]), int(table.kind[row])
    expected, _ = rates.expect(family, size, tuple(kinds))
    own = float(table.throughput(np.array([row]))[0])
    if last >= 0 and own > 0:
        expected = expected + (math.log(own) - expected[last])
    elif not rates.has(family, size, kinds):
        return {}
    return dict(zip(kinds, np.exp(expected).tolist(), strict=True))


def _may_be_on(round: Round, counts: IntArray, sizes: IntArray, *, chooses_sizes: bool) -> BoolArray:
    """Return whether each job may be on each kind now, shape ``(n, k)``: one that cannot leave, only where it is."""
    table, pool = round.table, round.pool
    settling = _settling(round, chooses_sizes=chooses_sizes)
    may = np.zeros((len(round), len(pool.names)), np.bool_)
    stays = (settling | ~table.launched[round.rows]).tolist()
    alike: dict[tuple[int, ...], list[int]] = {}
    for at, row in enumerate(round.rows.tolist()):
        allowed, here = pool.allowed_kinds(table.jobs[row]), pool.kind_of(table.home[row]) if stays[at] else -1
        alike.setdefault((here,) if here in allowed else allowed, []).append(at)
    for kinds, some in alike.items():
        may[np.ix_(some, kinds)] = True
    most = np.broadcast_to(counts, may.shape)
    if pool.on_several_machines:
        spreads = np.array([table.jobs[row].spread is Spread.POOL for row in round.rows.tolist()], np.bool_)
        most = np.where(spreads[:, None], most, pool.counts(round.unavailable, together=True))
    fits = may & (sizes[:, None] <= most)
    least = np.array([table.speedups[row].sizes[0] for row in round.rows.tolist()], np.int64)
    fewer = may & (np.minimum(least, sizes)[:, None] <= most)
    if chooses_sizes:
        return fewer
    somewhere: BoolArray = np.asarray(np.any(fits, axis=1))
    return np.where(somewhere[:, None], fits, fewer)


def _settling(round: Round, *, chooses_sizes: bool) -> BoolArray:
    """Return whether each job has just begun to train on as many devices as it should have, shape ``(n,)``."""
    table, rows = round.table, round.rows
    since = table.trained_at[rows]
    settling: BoolArray = np.array(np.isfinite(since) & (round.now - since < round.settings.stay), np.bool_)
    settling &= ~round.excluded
    wanted = table.size[rows] if (told := round.sizes(None, are_kept=not chooses_sizes)) is None else told
    settling &= wanted == [len(table.home[row]) for row in rows.tolist()]
    return settling


def _speedups(
    round: Round, rates: KindRates, present: list[SpeedUp], rate: FloatArray, best: IntArray
) -> tuple[Any, Any]:
    """Return the throughput by number of devices of each job on each kind, and that on its fastest."""
    table, (n, k) = round.table, rate.shape
    places, found = Places(round, rates), np.empty((n, k), np.object_)
    for at, row in enumerate(round.rows.tolist()):
        last = int(table.kind[row])
        level = rate[at, last] if last >= 0 else rate[at].mean()
        for kind in range(k):
            found[at, kind] = places.speedup(row, kind, float(rate[at, kind] - level), present[at])
    fastest = np.empty(n, np.object_)
    fastest[:] = [found[at, one] for at, one in enumerate(best.tolist())]
    return found, fastest
