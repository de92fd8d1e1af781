"""Alerts of a training: losses that are NaN or infinite, batches that do not come, and steps that hang.

Stalls are detected here, by scheduler time, and not in the process that trains: a hung process may have a thread that
goes on reporting, and a stopped one reports nothing. In both cases no batch comes. That a step hangs is told by the
process itself, which alone knows what it is doing.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.answers import Alert
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.events import BadLosses
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import Hang
from lightning_core.scheduler.round import Round
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.tables.table import JobTable

# Loss cells in a row without a number before something is done: a single bad batch, or a loss scale that is still too
# high, corrects itself.
MIN_BAD_CELLS = 3
# A training is stalled if no batch comes in this many times the usual time of one at its share.
STALL_FACTOR = 30.0
# While it validates, saves or starts, it may take this many times as long.
SLOW_PHASE_FACTOR = 10.0
# Seconds without an event, beyond a period, that count as downtime of the scheduler: no training is to blame.
MIN_DOWNTIME = 5.0
# What becomes of a launched job whose step hangs: its process ends itself.
GIVEN_UP = "; it is given up after twice as long"


def check_losses(table: JobTable, row: int, bad: BadLosses | None) -> tuple[list[Alert], bool]:
    """Record what a report says of losses that are NaN or infinite, and return what people should be told.

    The first run of a job is alerted at once, later ones if they last.

    Args:
        table: All jobs.
        row: Row of the job.
        bad: The newest run of bad losses.

    Returns:
        Alerts, and whether something should be done about it.
    """
    if bad is None:
        if row in table.bad_losses and int(table.batches[row]) > table.bad_losses[row].since:
            del table.bad_losses[row]  # of an earlier incarnation; this one has passed that batch
            _clear(table, row, "bad_losses")
        return [], False
    table.bad_losses[row] = bad
    if bad.over:
        _clear(table, row, "bad_losses")
    else:
        _raise(table, row, Reason("bad_losses", (float(bad.since),)))
    lasts = not bad.over and bad.cells >= MIN_BAD_CELLS
    alerted = table.alerted.get(row)
    if alerted == bad.since or (alerted is not None and not lasts):
        return [], lasts
    table.alerted[row] = bad.since
    return [Alert(table.names[row], Reason("bad_losses", (float(bad.since),)))], lasts


def check_hang(table: JobTable, row: int, hang: Hang | None) -> list[Alert]:
    """Record what a report says of a step that hangs, and return an alert if it was not known."""
    known = "hung" in table.alerts.get(row, {})
    if hang is None or known:
        if hang is None:
            _clear(table, row, "hung")
        return []
    reason = hang.reason._replace(text=GIVEN_UP if table.launched[row] else "")
    table.alerts.setdefault(row, {})["hung"] = reason
    return [Alert(table.names[row], reason)]


def check_stalls(round: Round) -> list[Alert]:
    """Return an alert for each training that is granted time, makes no progress, and was not known to be stalled."""
    table, settings, rows, now = round.table, round.settings, round.rows, round.now
    if settings.stall is None:
        return []
    idle = ~table.trains(rows) | (table.last_report[rows] == 0) | table.recovering[rows]
    table.moved_at[rows[idle]] = now
    stalled = _stalled(table, rows[now - table.moved_at[rows] > settings.stall], settings.stall, now)
    for row in table.alerts.keys() - stalled.keys():
        _clear(table, row, "stalled")
    alerts = []
    for row, numbers in stalled.items():
        if table.alerts.get(row, {}).keys().isdisjoint(("stalled", "hung")):
            alerts.append(Alert(table.names[row], Reason("stalled", numbers)))
            _raise(table, row, alerts[-1].reason)
    return alerts


def _stalled(table: JobTable, rows: IntArray, least: float, now: float) -> dict[int, tuple[float, float]]:
    """Return the trainings that are stalled, each with the seconds since its last batch and those that one takes.

    Args:
        table: All jobs.
        rows: Rows of those that have made no progress for ``least`` seconds, in the order of submission.
        least: Seconds without a batch before any training is stalled.
        now: Scheduler time in seconds.
    """
    if not len(rows):
        return {}
    with np.errstate(divide="ignore"):
        usual = 1.0 / (table.throughput(rows) * _speed(table, rows))
    waited = now - table.moved_at[rows]
    slow = np.where(table.in_slow_phase[rows], SLOW_PHASE_FACTOR, 1.0)
    stalled = waited > np.maximum(least, STALL_FACTOR * usual) * slow
    columns = (column[stalled].tolist() for column in (rows, waited, usual))
    return {row: (seconds, batch_seconds) for row, seconds, batch_seconds in zip(*columns, strict=True)}


def _speed(table: JobTable, rows: IntArray) -> FloatArray:
    """Return the expected throughput as a fraction of that alone on the devices; shape ``(n,)``."""
    group = table.held_share(rows) / table.portion[rows]
    return np.asarray(group * table.pace[rows])


def discount_downtime(table: JobTable, settings: Settings, gap: float) -> None:
    """Discount the time in which the scheduler was down.

    Args:
        table: All jobs.
        settings: Settings of the scheduler.
        gap: Seconds since the event before.
    """
    if gap > settings.period + MIN_DOWNTIME:
        table.moved_at[: len(table)] += gap


def _raise(table: JobTable, row: int, alert: Reason) -> None:
    table.alerts.setdefault(row, {})[alert.code] = alert


def _clear(table: JobTable, row: int, code: str) -> None:
    table.alerts.get(row, {}).pop(code, None)
