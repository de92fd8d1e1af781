"""Retry budgets of jobs that have lost their workers: whether a job restarts, when, and why not.

Infrastructure recovers by itself and is always worth another try. Code that raised raises again, unless the user asks
for retries. A job that cannot be built never can be. A preemption is not the job's fault and is not counted. A step
that hung may hang again: the job restarts a few times, and a newer checkpoint shows that it has come further. So does
one that ran out of memory, alone on its devices.
"""

from __future__ import annotations

import re
from math import isnan
from zlib import crc32

import numpy as np

from lightning_core.core.answers import Placement, Verdict
from lightning_core.core.events import (
    Checkpoint,
    Close,
    DevicesFound,
    DevicesUnavailable,
    Event,
    ExitCause,
    LaunchTimedOut,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.device_memory import ran_out, wait_for_memory
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import JobTable

# Seconds before a job restarts after a fault: doubled with each fault that follows without a calm period, up to the
# maximum, and lengthened by up to this fraction, so that jobs that failed together do not restart together.
FIRST_DELAY, MAX_DELAY, JITTER = 1.0, 60.0, 0.25
# Launches in a row of one job that may time out; and workers in a row that can train no job.
MAX_LAUNCH_TIMEOUTS = 5
# Restarts of a job that hangs, without a newer checkpoint in between.
MAX_HANGS = 3
# Restarts of a job that runs out of memory, without a newer checkpoint in between; in all of them it is alone.
MAX_OUT_OF_MEMORY = 2
# Busy seconds after which the next fault counts as the first one again: its cause is probably another.
CALM_PERIOD = 60.0
# Seconds after a failed resize before the job is resized again.
RESIZE_COOLDOWN = 60.0
# Causes that count in a row, until there is a newer checkpoint.
IN_A_ROW = frozenset({ExitCause.HUNG, ExitCause.OUT_OF_MEMORY})
SHA256 = re.compile("[0-9a-f]{64}")
FAULT_CODES = {
    ExitCause.LOST: "worker_lost",
    ExitCause.RAISED: "raised",
    ExitCause.HUNG: "hung_back",
    ExitCause.BROKEN: "worker_lost",
    ExitCause.OUT_OF_MEMORY: "out_of_memory",
    ExitCause.PREEMPTED: "preempted",
}


def worker_exited(state: SchedulerState, event: WorkerExited, now: float) -> bool:
    """Take in that a worker has exited; return whether a round is needed."""
    table = state.table
    row = table.find(event.job, event.incarnation)
    if row is None:
        return False
    if not table.active[row]:
        table.last_report[row] = 0
        table.leaving.pop(row, None)
        return False
    if is_valid(event.checkpoint):
        table.accept(row, event.checkpoint)
    restarts = int(table.restarts[row])
    match event.cause:
        case ExitCause.RELEASED if table.launched[row]:
            table.next_incarnation(row)
        case _ if row in table.met_at:
            state.end_met(row, now)
        case ExitCause.DONE if table.is_trained(row):
            state.end_met(row, now)  # the metric that it watches was not evaluated after the last batch
        case ExitCause.DONE | ExitCause.RELEASED:
            state.end_unmet(row, now, Verdict.MISSED, "training_ended", event.detail)
        case ExitCause.LOST if table.recovering[row] and not table.launched[row]:
            state.end(row, now, Verdict.MISSED, Reason("workers_lost"))
        case ExitCause.INTERRUPTED:
            state.end_unmet(row, now, Verdict.MISSED, "interrupted", event.detail or "a signal")
        case _:
            _fault(state, row, event.cause, event.detail, now)
    table.leaving.pop(row, None)
    state.accept(row, fault=bool(table.restarts[row] > restarts))
    return True


def _fault(state: SchedulerState, row: int, cause: ExitCause, detail: str, now: float) -> None:
    """Restart a launched job within its retry budget, after a delay; end any other job."""
    table = state.table
    job, text = table.jobs[row], detail.strip().rsplit("\n", 1)[-1] or "the worker died"
    table.details[row] = detail
    times = _count_fault(table, row, cause)
    over = final(cause, job, times, text) if table.launched[row] else Reason("crashed", text=text)
    if over is not None:
        state.end(row, now, Verdict.CRASHED, over)
        return
    set_back(table, row, FAULT_CODES[cause], now, text)
    if cause is ExitCause.OUT_OF_MEMORY:
        ran_out(table, row)
        if table.beside[row]:  # alone it may fit
            state.forming.part(table, row)
    if cause in IN_A_ROW:
        table.faults[row] = table.faults[row]._replace(numbers=(*table.faults[row].numbers, float(times)))
    if cause is not ExitCause.PREEMPTED:
        table.back_at[row] = now + restart_delay(job.name, int(table.in_a_row[row]))


def set_back(table: JobTable, row: int, code: str, now: float, text: str = "") -> None:
    """Take a job that has lost its worker to a fault back to its newest checkpoint."""
    _resize_failed(table, row, now)
    start = table.checkpoints[row][0].batches if table.checkpoints[row] else 0
    again = max(int(table.batches[row]) - start, 0)
    table.faults[row] = Reason(code, (float(start), float(again)), text)
    calm = table.busy[row] - table.busy_before[row] > CALM_PERIOD
    table.in_a_row[row] = 1 if calm else table.in_a_row[row] + 1
    table.restarts[row] += 1
    table.recovering[row] = True
    table.next_incarnation(row)


def _resize_failed(table: JobTable, row: int, now: float) -> None:
    """Keep a job that was being resized on its last good device count for a while.

    A fault of the incarnation before the resize, such as a preemption of its node, says nothing of the new size.
    """
    has_left = table.incarnation[row] > table.resizing_from[row]
    if not isnan(table.resizing_since[row]) and has_left and table.good_size[row]:
        table.fixed_until[row] = now + RESIZE_COOLDOWN
    table.resizing_since[row] = np.nan


def _count_fault(table: JobTable, row: int, cause: ExitCause) -> int:
    """Count a fault; return how often the job has had it. A preemption does not count: 0."""
    columns = {ExitCause.LOST: table.losses, ExitCause.RAISED: table.errors, ExitCause.BROKEN: table.launch_timeouts}
    column = columns.get(cause)
    if cause in IN_A_ROW:
        return _in_a_row(table, row, FAULT_CODES[cause]) + 1
    if column is None:
        return 0 if cause is ExitCause.PREEMPTED else 1
    column[row] += 1
    return int(column[row])


def hangs_in_a_row(table: JobTable, row: int) -> int:
    """Return how many incarnations of a job have hung in a row, without a newer checkpoint in between."""
    return _in_a_row(table, row, "hung_back")


def _in_a_row(table: JobTable, row: int, code: str) -> int:
    fault = table.faults.get(row)
    if fault is None or fault.code != code:
        return 0
    start, _, times = fault.numbers
    kept = table.checkpoints[row]
    return 0 if kept and kept[0].batches > start else int(times)


def launching_row(table: JobTable, event: LaunchTimedOut) -> int | None:
    """Return the row of a job whose launch has timed out; None if it is not being launched.

    Its devices may have been taken back already, or its workers have become ready after all.
    """
    row = table.find_active(event.job, event.incarnation)
    if row is None or not table.launched[row] or not table.home[row] or table.last_report[row]:
        return None
    return row


def launch_timed_out(state: SchedulerState, event: LaunchTimedOut, now: float) -> bool:
    """Take the devices of a job back whose workers were not ready in time; return whether a round is needed."""
    table = state.table
    row = launching_row(table, event)
    if row is None:
        return False
    state.accept(row)
    table.launch_timeouts[row] += 1
    _resize_failed(table, row, now)
    if table.launch_timeouts[row] >= MAX_LAUNCH_TIMEOUTS:
        tries = float(table.launch_timeouts[row])
        state.end(row, now, Verdict.CRASHED, Reason("unschedulable", (tries,), event.detail))
    else:
        table.faults[row] = Reason("launch_timed_out", (), event.detail)
        table.back_at[row] = now + restart_delay(event.job, int(table.launch_timeouts[row]))
    return True


def pool_changed(state: SchedulerState, event: Event, now: float) -> None:
    """Take in an event that concerns no job in particular."""
    match event:
        case WorkersLost():
            _workers_lost(state, now)
        case DevicesUnavailable(devices):
            state.unavailable = frozenset(devices)
        case DevicesFound(kinds, machines):
            state.find_devices(kinds, machines)
        case Close():
            state.closing = True


def _workers_lost(state: SchedulerState, now: float) -> None:
    """Take in that the pool was down and all workers are lost: launched jobs restart, scripts are to join again."""
    table = state.table
    state.closing = False
    table.leaving.clear()
    for row in table.active_rows().tolist():
        if table.launched[row] and table.last_report[row]:
            set_back(table, row, "pool_lost", now)
            state.accept(row, fault=True)
            continue
        state.accept(row)
        if table.launched[row]:
            table.next_incarnation(row)
        elif not table.recovering[row]:  # a script that waits already is that of the incarnation before
            table.next_incarnation(row)
            table.recovering[row] = True


def final(cause: ExitCause, job: Job, times: int, text: str) -> Reason | None:
    """Return why a job is over; None if it restarts.

    Args:
        cause: Cause of the fault.
        job: Launched job.
        times: How often it has had this fault, this one included.
        text: The fault in one line.

    Example::

        >>> from lightning_core.core.targets import BatchTarget
        >>> job = Job("a", 60.0, BatchTarget(9), retries=1)
        >>> final(ExitCause.RAISED, job, 1, "ValueError: no"), str(final(ExitCause.RAISED, job, 2, "ValueError: no"))
        (None, 'ValueError: no; retry limit reached (1)')
    """
    budgets = {
        ExitCause.RAISED: job.retries,
        ExitCause.LOST: job.restarts,
        ExitCause.HUNG: MAX_HANGS,
        ExitCause.OUT_OF_MEMORY: MAX_OUT_OF_MEMORY if job.restarts is None else min(MAX_OUT_OF_MEMORY, job.restarts),
        ExitCause.BROKEN: MAX_LAUNCH_TIMEOUTS - 1,  # each restart is a launch
        ExitCause.PREEMPTED: None,
    }
    budget = budgets.get(cause, 0)
    if budget is None or times <= budget:
        return None
    if not budget:
        return Reason("crashed", text=text)
    return Reason("retry_limit", (float(budget),), text)


def restart_delay(name: str, times: int) -> float:
    """Return the seconds before a job restarts after this many faults in a row.

    Example::

        >>> [round(restart_delay("a", times), 1) for times in (1, 2, 3, 9)]
        [1.1, 2.5, 4.6, 67.3]
    """
    jitter = 1 + JITTER * crc32(f"{name} {times}".encode()) / 2**32
    return min(FIRST_DELAY * 2.0 ** (min(times, 64) - 1), MAX_DELAY) * jitter


def is_valid(checkpoint: Checkpoint | None) -> bool:
    """Return whether the numbers of a checkpoint are in range and its digest is a SHA-256."""
    return checkpoint is None or (
        0 <= checkpoint.batches <= MAX_COUNT and SHA256.fullmatch(checkpoint.sha256) is not None
    )


def placements(table: JobTable, device_memory: int | None) -> list[Placement]:
    """Return the launched jobs that should have a worker on each of their devices.

    Args:
        table: All jobs.
        device_memory: Bytes of each device's memory; None if unknown.
    """
    rows = table.active_rows()
    without_room = wait_for_memory(table, rows, device_memory)
    return [
        Placement(table.names[row], int(table.incarnation[row]), table.home[row], hangs_in_a_row(table, row))
        for row in rows[table.launched[rows]].tolist()
        if table.home[row] and row not in without_room
    ]
