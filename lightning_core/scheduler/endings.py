"""Why a job ended unmet: what ended it, the best that it reached, and what would have done."""

from __future__ import annotations

from math import isnan

import numpy as np

from lightning_core.core.durations import FARTHEST
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.scheduler.forecasting import MID
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.table import JobTable

# More than so many times what a job has trained is no promise: that far a forecast does not carry.
FAR = 10.0
# Words from outside are cut after so many characters.
LONGEST = 200


def unmet(table: JobTable, curves: AboveFloor, settings: Settings, row: int, ended_by: str, text: str = "") -> Reason:
    """Return why a job ended before its target was met.

    Args:
        table: of all jobs.
        curves: have seen all cells.
        settings: of the scheduler.
        row: of the job.
        ended_by: code in :data:`lightning_core.core.reasons.ENDED_BY`.
        text: what ended it, from outside.
    """
    text = text.strip().rsplit("\n", 1)[-1][:LONGEST]
    text = f" {text}" if text and ended_by == "training_ended" else text
    far, numbers = _reached(table, curves, settings, row)
    return Reason(f"{ended_by}_{far}".rstrip("_"), numbers, text)


def _reached(table: JobTable, curves: AboveFloor, settings: Settings, row: int) -> tuple[str, tuple[float, ...]]:
    """How far a job has come: a code in :data:`lightning_core.core.reasons.REACHED`, and its numbers."""
    rows, target, batches = np.array([row]), table.jobs[row].target, float(table.batches[row])
    throughput = float(table.throughput(rows)[0])
    if isinstance(target, BatchTarget):
        more = max(target.batches - batches, 1.0) / throughput
        if more < FARTHEST:
            return "batches_more", (batches, float(target.batches), more)
        return ("batches", (batches, float(target.batches))) if batches else ("", ())
    if isnan(table.loss[row]):
        return ("unseen" if batches else ""), ()
    best, goal = float(table.best[row]), target.goal
    if isnan(best):  # not yet a window full
        best = target.logged(float(table.loss[row]))
    passage = curves.first_passage(rows, table.goal[rows])[0]
    more = max(float(np.sqrt(passage[MID] * passage[MID + 1])) - batches, 1.0) / throughput
    if isnan(more) or table.cells[row] < (1 if table.evaluated[row] else settings.judge_after):
        return "unsure", (best, goal)
    return ("more", (best, goal, more)) if more < FAR * table.busy[row] else ("flat", (best, goal))
