"""The work that each job has left, for the policy: known, forecast from its loss curve, or estimated by its user."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isnan
from typing import Any

import numpy as np

from lightning_core.core.arrays import LEVELS, NORMAL, BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import OnMiss
from lightning_core.core.plans import JobView
from lightning_core.core.speedup import SpeedUp
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.scheduler.kinds.kind_rates import KindRates
from lightning_core.scheduler.kinds.kind_view import on_kinds
from lightning_core.scheduler.kinds.places import Places
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.tables.table import JobTable

# The 15 %, 50 % and 85 % quantiles lie between these levels and the next ones.
LOW, MID, HIGH = 2, 9, 16
LOW_MID_HIGH = np.array([LOW, MID, HIGH])
# Quantiles of a measured throughput, which varies by some per cent, and of a user's estimate, which is wrong by half.
THROUGHPUT_ERROR, USER_ERROR = (np.exp(spread * NORMAL) for spread in (0.05, 0.5))


def forecast(
    round: Round,
    curves: AboveFloor,
    rates: KindRates | None = None,
    *,
    chooses_sizes: bool = False,
    knows_names: bool = False,
) -> JobView:
    """Return the jobs of a round as the policy sees them.

    Args:
        round: The round; the forecast is written to its table.
        curves: Estimator that has seen all cells.
        rates: How fast kinds of trainings are on kinds of devices; None where all devices are alike.
        chooses_sizes: Whether the policy chooses how many devices each job trains on. Work is then counted on the
            number of devices on which the job is fastest.
        knows_names: Whether the policy has arguments for single jobs.
    """
    table, settings, rows, now = round.table, round.settings, round.rows, round.now
    exact, goal, ends_at = table.exact[rows], table.goal[rows], table.ends_at[rows]
    quantiles, some = _batches_left(round, curves, exact, goal, ends_at)
    if given := [row for row in table.earlier if table.active[row]]:
        table.history_share[given] = curves.history_share(np.array(given))
    more: dict[str, Any] = {}
    speedups, sizes = list[SpeedUp](), None if chooses_sizes else round.sizes(None)
    if chooses_sizes:
        # By kind, this is done below.
        if rates is not None and round.pool.on_several_machines and not round.pool.differ:
            speedups = Places(round, rates).of_all()
        else:
            speedups = [table.speedups[row] for row in rows.tolist()]
        more = _columns_for_sizes(round, speedups)
        most = np.minimum(table.group_cap[rows], round.devices).astype(np.int64).tolist()
        sizes = np.array([speed.best(up_to) or 1 for speed, up_to in zip(speedups, most, strict=True)], np.int64)
        throughput = np.array([speed.throughput(n) for speed, n in zip(speedups, sizes.tolist(), strict=True)])
    else:
        throughput = _throughput(table, rows)
    if knows_names:
        more["name"] = np.array([table.jobs[row].name for row in rows.tolist()], np.object_)
    if rates is not None and round.pool.differ:
        found = on_kinds(round, rates, throughput, table.size[rows] if sizes is None else sizes, speedups)
        throughput, more = found.throughput, more | {"resize_seconds": resize_costs(round)} | found.columns
        quantiles *= np.exp(found.doubt[:, None] * NORMAL)
        some *= np.exp(found.doubt[:, None] * NORMAL[LOW_MID_HIGH])
    seconds = some / throughput[:, None]
    quantiles /= throughput[:, None]
    # Known before its first batch: its training ends before its target.
    if (never := exact & (goal > ends_at)).any():
        some[never] = seconds[never] = quantiles[never] = np.inf
    table.work_low[rows], table.work_mid[rows], table.work_high[rows] = seconds.T
    remaining, work = some[:, 1], seconds[:, 1]
    # Until the throughput is measured, the user's estimate is the best there is.
    if (unknown := np.isnan(work)).any():
        work[unknown] = table.expected[rows[unknown]]
        quantiles[unknown] = work[unknown, None] * USER_ERROR
    return JobView(
        row=rows,
        deadline=table.due(rows, now),
        batches=table.batches[rows],
        # A whole evaluation is worth as much as the cells of a window.
        cells=table.cells[rows] * np.where(table.evaluated[rows], settings.window, 1),
        exact=exact,
        remaining=remaining,
        throughput=throughput,
        work=work,
        quantiles=quantiles,
        loss=table.loss[rows],
        goal=np.where(exact, np.nan, goal),
        position=table.last_position[rows].astype(np.float64),
        acknowledged=table.obeys[rows],
        weight=table.weight[rows],
        size=table.size[rows],
        devices=round.devices,
        ends_at=ends_at,
        ready=curves.ready(rows),
        shown=table.cells[rows] + table.rejected[rows] + table.rejected_cells[rows],
        submitted=table.submitted[rows],
        quantum=settings.quantum,
        **more,
    )


def _throughput(table: JobTable, rows: IntArray) -> FloatArray:
    """Return the throughput to plan with, shape ``(n,)``; NaN while unknown.

    Until it is measured it is that of earlier runs, unless the user has said how long the job takes.
    """
    throughput = table.throughput(rows)
    if (unknown := np.isnan(throughput)).any():
        some = rows[unknown]
        throughput[unknown] = np.where(np.isnan(table.expected[some]), table.usual_throughput[some], np.nan)
    return throughput


def _columns_for_sizes(round: Round, speedups: Sequence[SpeedUp]) -> dict[str, Any]:
    """Return the columns of a job view that only a policy which chooses sizes needs."""
    table, rows = round.table, round.rows
    speedup = np.empty(len(rows), np.object_)
    speedup[:] = speedups
    failed = table.fixed_until[rows] > round.now
    return {
        "speedup": speedup,
        "held_devices": table.share[rows] * np.array([len(table.home[row]) for row in rows.tolist()]),
        "fixed_size": np.where(failed, table.good_size[rows], np.maximum(table.told_size[rows], 0)),
        "resize_seconds": resize_costs(round),
        "continues_late": np.array([table.jobs[row].on_miss is OnMiss.CONTINUE for row in rows.tolist()]),
        "reported_at": table.heard[rows],
        "trained_since": table.trained_at[rows],
    }


def resize_costs(round: Round) -> FloatArray:
    """Return the seconds that a resize costs each job: measured, the mean of all known, or the default."""
    guess, costs = _mean_resize(round.table), round.table.resize[round.rows]
    return np.where(np.isnan(costs), round.settings.resize if guess is None else guess, costs)


def _mean_resize(table: JobTable) -> float | None:
    """Return the mean of all known costs of a resize, in seconds; None if there is none."""
    known = table.resize[: len(table)]
    others = [*known[~np.isnan(known)].tolist(), *table.past_resizes]
    return fsum(others) / len(others) if others else None  # the same sum in any order


def resize_seconds(table: JobTable, row: int) -> float | None:
    """Return the seconds that a job loses when it is moved or resized: its own, the mean of all known, or None."""
    cost = float(table.resize[row])
    return _mean_resize(table) if isnan(cost) else cost


def between(quantiles: FloatArray, level: int | IntArray) -> FloatArray:
    """Return the geometric mean of the quantiles at a level and at the next one.

    Args:
        quantiles: Quantiles, shape ``(n, 20)``.
        level: Index of the level, for a result of shape ``(n,)``; or ``m`` of them, for one of shape ``(n, m)``.
    """
    return np.sqrt(quantiles[:, level] * quantiles[:, level + 1])


def forecast_position(curves: AboveFloor, rows: IntArray, goal: FloatArray) -> FloatArray:
    """Return quantiles of the batches done when each curve reaches its goal, at least 1, shape ``(n, 20)``.

    A curve that has reached its goal is at 0 batches by its estimator; 0 would make :func:`between` invalid beside inf.
    """
    return np.maximum(curves.first_passage(rows, goal), 1.0)


def forecast_work(table: JobTable, curves: AboveFloor, row: int) -> FloatArray:
    """Return quantiles of the batches from its beginning until a job is over that has a loss to reach, shape ``(20,)``.

    Until its target is met, by its curve, or before that by what its user has said of its work; or until its training
    ends by itself, if that is sooner or all that is known. NaN while nothing is known.
    """
    rows, speedup, ends_at = np.array([row]), table.speedups[row], float(table.ends_at[row])
    work: FloatArray = forecast_position(curves, rows, table.goal[rows])[0]
    if np.isnan(work).any() and speedup.known:
        work = table.expected[row] * speedup.throughput(speedup.sizes[-1]) * USER_ERROR
    if np.isnan(work).any() and ends_at < np.inf:
        work = np.full(len(LEVELS), ends_at)
    work = np.minimum(work, ends_at)
    return work


def _batches_left(
    round: Round, curves: AboveFloor, exact: BoolArray, goal: FloatArray, ends_at: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the batches left: all quantiles, shape ``(n, 20)``, and the low, middle and high one, shape ``(n, 3)``."""
    table, rows = round.table, round.rows
    batches = table.batches[rows].astype(np.float64)[:, None]
    left, some = np.empty((len(rows), len(LEVELS))), np.empty((len(rows), len(LOW_MID_HIGH)))
    if len(known := np.flatnonzero(exact)):
        left[known] = (goal[known, None] - batches[known]) * THROUGHPUT_ERROR
        some[known] = between(left[known], LOW_MID_HIGH)
        table.reach[rows[known]] = goal[known]
    if len(by_loss := np.flatnonzero(~exact)):
        passage = forecast_position(curves, rows[by_loss], goal[by_loss])
        reached, ends = between(passage, LOW_MID_HIGH), ends_at[by_loss, None]
        table.reach[rows[by_loss]] = reached[:, 1]
        left[by_loss] = np.where(passage > ends, np.inf, passage) - batches[by_loss]
        some[by_loss] = np.where(reached > ends, np.inf, reached) - batches[by_loss]
    # A job that has not ended has at least one batch left, whatever its curve says.
    return np.maximum(left, 1.0), np.maximum(some, 1.0)
