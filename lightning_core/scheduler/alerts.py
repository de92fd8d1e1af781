"""What people should hear of a training at once: losses that are NaN or infinite, and batches that do not come.

A stall is looked for here, by scheduler time, and not by the process that trains: of one that hangs, a thread may go on
reporting, and of one that was stopped nothing may come at all. Either way no batch does.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.answers import Alert
from lightning_core.core.arrays import IntArray
from lightning_core.core.events import BadLosses
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.table import JobTable

# Acted on are so many loss cells in a row with no number in them: one bad batch, or a loss scale that is still too
# high, mends itself.
BAD_CELLS = 3
# A training stands still if no batch comes in so many times what one usually takes, of the time that it is granted;
# and while it validates, saves or begins, if none comes in this many times as long.
TIMES, ASIDE = 30.0, 10.0
# The scheduler's own absence is nobody's stall: something comes each period, and a gap of so many seconds more is one.
AWAY = 5.0


def look_at_losses(table: JobTable, row: int, bad: BadLosses | None) -> tuple[list[Alert], bool]:
    """Take in what a report says of losses that are NaN or infinite.

    The first of a job is told at once, later ones if they stay.

    Args:
        table: of all jobs.
        row: of the job.
        bad: the newest run of them.

    Returns:
        What people are told, and whether something should be done about it.
    """
    if bad is None:
        if row in table.bad and int(table.batches[row]) > table.bad[row].since:
            del table.bad[row]  # of an incarnation before; this one has gone on well
            _clear(table, row, "bad_losses")
        return [], False
    table.bad[row] = bad
    if bad.over:
        _clear(table, row, "bad_losses")
    else:
        table.alerts[row] = Reason("bad_losses", (float(bad.since),))
    stays = not bad.over and bad.cells >= BAD_CELLS
    told = table.alerted.get(row)
    if told == bad.since or (told is not None and not stays):
        return [], stays
    table.alerted[row] = bad.since
    return [Alert(table.names[row], Reason("bad_losses", (float(bad.since),)))], stays


def look_for_stalls(table: JobTable, settings: Settings, rows: IntArray, now: float) -> list[Alert]:
    """Find trainings that are granted time and do nothing with it.

    Args:
        table: of all jobs.
        settings: of the scheduler.
        rows: of the jobs that have not ended.
        now: scheduler time.

    Returns:
        An alert for each that was not known to stand still.
    """
    if settings.stall is None:
        return []
    idle = (table.share[rows] == 0) | (table.last_report[rows] == 0) | table.recovering[rows]
    table.moved_at[rows[idle]] = now
    with np.errstate(divide="ignore"):
        usual = 1.0 / (table.throughput(rows) * table.share[rows])
    patience = np.maximum(settings.stall, TIMES * usual) * np.where(table.aside[rows], ASIDE, 1.0)
    waited = now - table.moved_at[rows]
    stalled = ~idle & (waited > patience)
    alerts = []
    for row, stands, since, each in zip(*(x.tolist() for x in (rows, stalled, waited, usual)), strict=True):
        if not stands:
            _clear(table, row, "stalled")
        elif row not in table.alerts:
            alerts.append(Alert(table.names[row], Reason("stalled", (since, each))))
            table.alerts[row] = alerts[-1].reason
    return alerts


def forgive_absence(table: JobTable, settings: Settings, gap: float) -> None:
    """Take the time out in which the scheduler was not there: so many seconds since the event before."""
    if gap > settings.period + AWAY:
        table.moved_at[: len(table)] += gap


def _clear(table: JobTable, row: int, code: str) -> None:
    if row in table.alerts and table.alerts[row].code == code:
        del table.alerts[row]
