"""What is believed of every job: the work left, from the estimator, and the verdict, from the plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_core.core.answers import VerdictChanged
from lightning_core.core.arrays import NORMAL, BoolArray, FloatArray, IntArray
from lightning_core.core.jobs import OnMiss
from lightning_core.core.plans import JobView
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.table import AT_RISK, FEASIBLE, INFEASIBLE, UNKNOWN, JobTable

# Cells of a whole evaluation (a validation metric): each is an average already, and there are few.
EVALUATIONS_TO_JUDGE = 4
# The 15 %, 50 % and 85 % quantiles lie between these levels and the next ones.
LOW, MID, HIGH = 2, 9, 16
# A measured speed wanders by some per cent; a person's estimate of a job's work is wrong by half or so.
SPEED_WANDERS, PERSON_ERRS = (np.exp(spread * NORMAL) for spread in (0.05, 0.5))


def forecast(
    table: JobTable,
    estimator: AboveFloor,
    settings: Settings,
    rows: IntArray,
    devices: int,
    chooses_sizes: bool = False,
    now: float = 0.0,
) -> JobView:
    """Work left: exact for batches up to the speed, forecast with its uncertainty for a loss.

    Args:
        table: of all jobs; early, likely and late ends of the work are written there.
        estimator: has seen all cells.
        settings: of the scheduler.
        rows: of the jobs that have not ended.
        devices: that there are for them.
        chooses_sizes: whether the policy says on how many devices each trains. Work is then what it is on the number on
            which the job is fastest.
        now: scheduler time.
    """
    batches = table.batches[rows].astype(np.float64)
    exact = table.exact[rows]
    goal = table.goal[rows]
    forecast = np.flatnonzero(~exact)
    ends_at = table.ends_at[rows]
    left = (goal - batches)[:, None] * SPEED_WANDERS
    table.reach[rows] = goal
    low, mid, high = (np.sqrt(left[:, at] * left[:, at + 1]) for at in (LOW, MID, HIGH))
    if len(forecast):
        passage = np.maximum(estimator.first_passage(rows[forecast], goal[forecast]), 1.0)
        table.reach[rows[forecast]] = np.sqrt(passage[:, MID] * passage[:, MID + 1])
        ends = ends_at[forecast]
        for column, at in ((low, LOW), (mid, MID), (high, HIGH)):
            reached = np.sqrt(passage[:, at] * passage[:, at + 1])
            column[forecast] = np.where(reached > ends, np.inf, reached) - batches[forecast]
        left[forecast] = np.where(passage > ends[:, None], np.inf, passage) - batches[forecast, None]
    # An unfinished job has work left, whatever its curve says.
    left, low, mid, high = (np.maximum(column, 1.0) for column in (left, low, mid, high))
    speedups = [table.speedups[row] for row in rows.tolist()] if chooses_sizes else []
    if chooses_sizes:
        throughput = np.array([speed.rate(speed.best(devices) or 1) for speed in speedups])
    else:
        throughput = table.throughput(rows)
    quantiles = left / throughput[:, None]
    low, work, high = (column / throughput for column in (low, mid, high))
    # Known before its first batch: its training ends before it has done what is asked of it.
    never = exact & (goal > ends_at)
    for part in (mid, low, work, high, quantiles):
        part[never] = np.inf
    table.work_low[rows], table.work_mid[rows], table.work_high[rows] = low, work, high
    # Until it is measured, a person's estimate is the best there is.
    unknown = np.isnan(work)
    work[unknown] = table.expected[rows[unknown]]
    quantiles[unknown] = work[unknown, None] * PERSON_ERRS
    more: dict[str, Any] = {}
    if chooses_sizes:
        more["speedup"] = np.empty(len(rows), np.object_)
        more["speedup"][:] = speedups
        more["holds"] = table.share[rows] * np.array([len(table.home[row]) for row in rows.tolist()])
        told, failed = np.maximum(table.told_size[rows], 0), table.fixed_until[rows] > now
        more["fixed"] = np.where(failed, table.good_size[rows], told)
        more["resize"] = table.costs(rows, settings.resize)
        more["goes_on"] = np.array([table.jobs[row].on_miss is OnMiss.CONTINUE for row in rows.tolist()])
        more |= {"submitted": table.submitted[rows], "heard": table.heard[rows], "stint": table.trained_at[rows]}
    return JobView(
        place=rows,
        deadline=table.due(rows, now),
        batches=table.batches[rows],
        # A whole evaluation is as good as the cells of a window.
        cells=table.cells[rows] * np.where(table.evaluated[rows], settings.window, 1),
        exact=exact,
        remaining=mid,
        throughput=throughput,
        work=work,
        quantiles=quantiles,
        loss=table.loss[rows],
        goal=np.where(exact, np.nan, goal),
        position=table.last_position[rows].astype(np.float64),
        obeys=table.obeys[rows],
        weight=table.weight[rows],
        size=table.size[rows],
        devices=devices,
        ends_at=ends_at,
        quantum=settings.quantum,
        **more,
    )


def judge(
    table: JobTable, settings: Settings, rows: IntArray, exact: BoolArray, finish: FloatArray, now: float
) -> list[VerdictChanged]:
    """Verdicts: infeasible if even alone and by the optimistic forecast too late, feasible if planned in time.

    Args:
        table: of all jobs; what is believed of them is written there.
        settings: say how much a curve must have shown.
        rows: of the jobs that are planned.
        exact: whether the work left of each is known, shape ``(n,)``.
        finish: when the plan expects each to reach its target, shape ``(n,)``.
        now: scheduler time.

    Returns:
        For each job of which something else is believed than before.
    """
    deadline = table.due(rows, now)
    spare = deadline - now
    table.spare[rows] = spare
    table.finish[rows] = finish
    enough = np.where(table.evaluated[rows], min(EVALUATIONS_TO_JUDGE, settings.judge_after),
                      settings.judge_after)  # fmt: skip
    known = ~np.isnan(table.work_mid[rows]) & (exact | (table.cells[rows] >= enough))
    belief = np.where(finish <= deadline, FEASIBLE, AT_RISK)
    belief[table.work_low[rows] > spare] = INFEASIBLE
    belief[~known] = UNKNOWN
    changed = rows[(belief != table.belief[rows]) & known]
    table.belief[rows] = belief
    notices = []
    for row in changed.tolist():
        verdict = table.verdict(row)
        assert verdict is not None  # it is known, and the job has not ended
        notices.append(VerdictChanged(table.names[row], verdict, table.reason(row)))
    return notices
