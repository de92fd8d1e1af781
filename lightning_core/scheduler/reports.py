"""Effects of a report: progress, throughput, checkpoints and loss cells."""

from __future__ import annotations

from math import isnan

import numpy as np

from lightning_core.core.answers import Accepted, Alert, Answer, End, Verdict
from lightning_core.core.events import BadLosses, Horizon, Report
from lightning_core.core.jobs import OnNan
from lightning_core.core.limits import MAX_COUNT
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import Hang
from lightning_core.core.targets import Met, is_loss
from lightning_core.scheduler.alerts import check_hang, check_losses
from lightning_core.scheduler.device_memory import take_memory
from lightning_core.scheduler.kinds.kind_rates import APART
from lightning_core.scheduler.retry_budgets import is_valid, restart_delay, set_back
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import JobTable

# How far ahead of a missing cell later cells are kept.
MAX_CELLS_AHEAD = 1000
# Busy seconds over which the throughput is averaged: long enough to be steady, short enough to notice a slower phase.
THROUGHPUT_MEMORY = 30.0
# Shortest time in seconds over which a throughput is measured: reports may arrive in quick succession.
MIN_TIMED_PERIOD = 0.15
# Busy seconds alone after which it is known which part of its device a training keeps busy.
MIN_USE_PERIOD = 0.5


def row_of_report(table: JobTable, report: Report) -> int | None:
    """Return the row of the job that a report is about; None if it is stale, repeated or malformed."""
    row = table.find_active(report.job, report.incarnation)
    if row is None or report.number <= table.last_report[row] or not is_countable(report):
        return None
    return row


def take_report(state: SchedulerState, report: Report, now: float) -> bool:
    """Take in a report; return whether a round is needed. A stale, repeated or malformed report changes nothing."""
    table = state.table
    row = row_of_report(table, report)
    if row is None:
        return False
    batches_at_start = None if table.last_report[row] else report.batches_at_start
    record_progress(state, row, report, now)
    table.obeys[row] = report.version >= table.directives[row].version
    table.accept(row, report.checkpoint)
    sooner = table.set_horizon(row, report.horizon, now)
    known = table.set_epoch_batches(row, report.epoch_batches)
    if report.learning_rates is not None:
        state.set_schedule(row, report.learning_rates)
    known |= take_memory(table, row, report.memory)
    cells = _take_cells(state, row, report)
    rejected = int(table.rejected[row] + table.rejected_cells[row])
    state.accepted.append(
        Accepted(
            report.job,
            int(table.batches[row]),
            float(table.busy[row]),
            cells,
            rejected,
            bool(table.evaluated[row]),
            batches_at_start,
        )
    )
    alerts, diverged = check_losses(table, row, report.bad_losses)
    state.answers += alerts + check_hang(table, row, report.hang)
    if row in table.met_at or table.is_met(row) or _is_told_met(table, row, report.met):
        if table.batches[row] >= table.at_least.get(row, 0):
            state.end_met(row, now)
            return True
        return state.note_met(row, now)
    if diverged and table.jobs[row].on_nan is not OnNan.CONTINUE:
        _diverged(state, row, now)
        return True
    # A job with a known amount of work whose training will now end too early is judged at once, and so is one whose
    # work, or whose need of memory, has become known.
    return known or bool(sooner and table.exact[row] and table.goal[row] > table.ends_at[row])


def unknown_job(job: str) -> End:
    """Return the answer to a report of a job that is unknown."""
    return End(job, 0, Verdict.CANCELLED, Reason("unknown_job"))


def answer_report(state: SchedulerState, report: Report, answers: list[Answer]) -> None:
    """Add the answer to a report: the newest directive if the worker's is older, an end if its incarnation is over."""
    if (found := state.find(report.job)) is None:
        answers.append(unknown_job(report.job))
        return
    table, row = found
    if report.incarnation != table.incarnation[row]:
        answers.append(End(report.job, 0, Verdict.CANCELLED, Reason("superseded")))
        return
    directive = table.directives[row]
    if directive.version > report.version and directive not in answers:
        answers.append(directive)


def is_countable(report: Report) -> bool:
    """Return whether the numbers of a report are in range; a worker that sends others is faulty."""
    batches, _, seconds, at_least = report.horizon or Horizon()
    since, cells, _ = report.bad_losses or BadLosses(0)
    counts = (report.number, report.batches, report.batches_at_start, report.rejected, report.busy, batches or 0,
              seconds or 0.0, at_least, since, cells, *(report.hang or Hang(0.0)),
              1 if report.epoch_batches is None else report.epoch_batches - 1,
              0 if report.met is None else report.met.batches, report.used or 0.0)  # fmt: skip
    in_range = all(0 <= count <= MAX_COUNT for count in counts)
    rates = report.learning_rates
    return in_range and is_valid(report.checkpoint) and (rates is None or rates.are_valid)


# ---------------------------------------------------------------------------------------------------- progress


def record_progress(state: SchedulerState, row: int, report: Report, now: float) -> None:
    """Record the cumulative counts of one incarnation; batches from before it started cost it no time."""
    table = state.table
    batches_at_start = report.batches_at_start
    if not table.last_report[row]:
        table.recovering[row] = False
        table.launch_timeouts[row] = 0
        if batches_at_start < table.batches[row]:  # batches that the last incarnation did not save are repeated
            table.lost_batches[row] += int(table.batches[row]) - batches_at_start
            table.batches[row] = batches_at_start
    more_used = _more_used(table, row, report)
    table.last_report[row] = report.number
    more_batches = max(report.batches - int(table.batches[row]), 0)
    more_busy = max(report.busy + float(table.busy_before[row]) - float(table.busy[row]), 0.0)
    trained = max(report.batches - max(int(table.batches[row]), batches_at_start), 0)
    table.device_seconds[row] += more_busy * float(table.portion[row]) * max(len(table.home[row]), 1)
    table.alone_seconds[row] += more_busy * float(table.pace[row])
    measurable = table.counts(row, report.version)
    if measurable and table.beside[row]:
        _measure_pace(state, row, trained, more_busy)
    elif measurable:
        keep = np.exp(-more_busy / THROUGHPUT_MEMORY)
        table.recent_batches[row] = keep * table.recent_batches[row] + trained
        table.recent_busy[row] = keep * table.recent_busy[row] + more_busy
        if trained:
            table.alone_at[row], table.trial_since[row] = now, np.nan
            _measure_rate(state, row, trained, more_busy)
        _measure_use(state, row, more_used, more_busy, keep)
    table.batches[row] += more_batches
    table.busy[row] += more_busy
    table.rejected[row] = max(int(table.rejected[row]), report.rejected)
    table.evaluated[row] |= report.evaluated  # before its first evaluation a new incarnation cannot tell
    table.heard[row] = now
    table.in_slow_phase[row] = report.in_slow_phase
    if trained or more_busy > 0:
        table.moved_at[row] = now
    if trained:
        _measure_resize(table, row, report, trained, now)
    _measure_throughput(table, row, report.version, now)


def _measure_pace(state: SchedulerState, row: int, batches: int, seconds: float) -> None:
    """Measure the pace of a training beside others, once all of them train under their newest grants."""
    table = state.table
    alone, members = float(table.throughput(np.array([row]))[0]), table.members(int(table.beside[row]))
    if seconds > 0 and alone > 0 and table.obeys[members].all():
        others = [table.jobs[other].family for other in members.tolist() if other != row]
        state.forming.paces.observe(table.jobs[row].family, others, batches / seconds / alone, seconds)


def _measure_rate(state: SchedulerState, row: int, batches: int, seconds: float) -> None:
    """Measure how fast a kind of trainings is on the devices that a job has, in a pool that has others."""
    home, devices = state.table.home[row], state.devices
    if home and seconds > 0 and (devices.differ or (devices.on_several_machines and len(home) > 1)):
        kind = devices.rates_name(devices.kind_of(home)) + (APART if devices.are_apart(home) else "")
        state.rates.observe(state.table.jobs[row].family, len(home), kind, batches, seconds)


def _more_used(table: JobTable, row: int, report: Report) -> float:
    """Return the seconds of its device that a training has used since its last report; NaN if they are unknown."""
    before = float(table.used[row]) if table.last_report[row] else np.nan  # another process counts anew
    table.used[row] = np.nan if report.used is None else report.used
    return max(float(table.used[row]) - before, 0.0) if before == before else np.nan


def _measure_use(state: SchedulerState, row: int, used: float, busy: float, keep: float) -> None:
    """Measure which part of its device a training keeps busy alone."""
    table = state.table
    recent = float(table.recent_busy[row])
    if busy > 0 and isnan(table.recent_used[row]):  # all that came before counts as if it had been like this
        table.recent_used[row] = used / busy * recent
    else:
        table.recent_used[row] = keep * table.recent_used[row] + used
    if recent >= MIN_USE_PERIOD and not isnan(table.recent_used[row]):
        state.forming.paces.use(table.jobs[row].family, min(float(table.recent_used[row]) / recent, 1.0))


def _measure_resize(table: JobTable, row: int, report: Report, trained: int, now: float) -> None:
    """Measure what a resize has cost, from the first report with batches after it."""
    if not isnan(table.resizing_since[row]) and table.incarnation[row] > table.resizing_from[row]:
        throughput = table.speedups[row].throughput(len(table.home[row]))
        # Seconds of training since it arrived; the rest of the time is the cost.
        spent = min(report.busy, trained / throughput) if throughput > 0 else 0.0
        took = max(now - float(table.resizing_since[row]) - spent, 0.0)
        table.resize[row] = took if isnan(table.resize[row]) else 0.5 * (took + table.resize[row])
        table.resizing_since[row] = np.nan
    if isnan(table.resizing_since[row]):  # else the report is of the incarnation before the resize
        table.good_size[row] = len(table.home[row])


def _measure_throughput(table: JobTable, row: int, version: int, now: float) -> None:
    """Measure the throughput on what a job holds, from one report under a grant to the next."""
    batches, directive = int(table.batches[row]), table.directives[row]
    held = float(table.share[row]) * len(table.home[row])
    if (
        version != directive.version
        or not held
        or table.beside[row]
        or not (table.capped[row] or table.share[row] == 1.0)
    ):
        table.timed_version[row] = -1
        return
    if table.timed_version[row] == version:
        more, seconds = batches - int(table.timed_batches[row]), now - float(table.timed_at[row])
        if more < 1 or seconds < MIN_TIMED_PERIOD:
            return
        table.speedups[row].observe(held, more, seconds)
    table.timed_version[row], table.timed_at[row], table.timed_batches[row] = version, now, batches


# ---------------------------------------------------------------------------------------------------- losses


def _take_cells(state: SchedulerState, row: int, report: Report) -> tuple[tuple[int, float], ...]:
    """Take in cells in their order, and return them; cells that are ahead of a missing one wait for it."""
    table = state.table
    if row in table.met_at:
        return ()  # its target is met, whatever comes
    taken: list[tuple[int, float]] = []
    waiting = table.waiting[row]
    for number, batches, value in sorted(report.cells):
        if 0 <= number - int(table.next_cell[row]) < MAX_CELLS_AHEAD:
            waiting.setdefault(number, (batches, value))
        while (following := waiting.pop(int(table.next_cell[row]), None)) is not None:
            table.next_cell[row] += 1
            if _take_cell(state, row, *following):
                taken.append(following)
            if not table.exact[row] and table.is_met(row):
                return tuple(taken)  # later cells do not count
    return tuple(taken)


def _take_cell(state: SchedulerState, row: int, batches: int, value: float) -> bool:
    """Take in one cell; return whether it counts."""
    table = state.table
    loss = table.jobs[row].target.falling(value)
    if not is_loss(value):
        table.rejected_cells[row] += 1
        return False
    counts = bool(table.last_position[row] < batches <= MAX_COUNT)  # else an earlier incarnation has reported it
    if counts:
        _add_cell(table, row, batches, value)
        table.curves[row].add(batches, float(loss))
        state.curves.observe(row, float(batches), float(loss))
        if loss > 0 and (banks := state.banks_of(row)):  # banks take positive losses only
            cell = np.array([row]), np.array([float(batches)]), np.array([float(loss)])
            for bank in banks:
                bank.observe(*cell)
    return counts


def _add_cell(table: JobTable, row: int, batches: int, value: float) -> None:
    """Record an observation as logged, at a later position than all before it."""
    target, recent = table.jobs[row].target, table.recent[row]
    recent.append(value)
    table.cells[row] += 1
    table.last_position[row] = batches
    newest = list(recent)[-table.window :]
    table.loss[row] = target.falling(sum(newest) / len(newest))
    if target.watches:
        best = float(table.best[row])
        better = isnan(best) or (value < best if target.lower_is_better else value > best)
        table.best[row] = value if better else best
    if target.observes and (table.evaluated[row] or len(newest) == table.window):
        # There is one: the newest.
        reached, best = (
            target.reached(batches, recent, bool(table.evaluated[row]), table.window),
            float(table.best[row]),
        )
        assert reached is not None
        table.best[row] = reached if isnan(best) else target.better(reached, best)


def _is_told_met(table: JobTable, row: int, met: Met | None) -> bool:
    """Return whether a training has met the target by its own cells, some of which may be unknown here.

    It judges as :meth:`JobTable.is_met` does, and ends by it. A scheduler that has begun since, or an incarnation that
    repeats batches, makes the difference. A target that was changed since is not met by a value that does not reach it.
    """
    target = table.jobs[row].target
    if met is None or not target.observes or not is_loss(met.value) or not target.reaches(met.value):
        return False
    best = float(table.best[row])
    table.best[row] = met.value if isnan(best) else target.better(met.value, best)
    return True


def _diverged(state: SchedulerState, row: int, now: float) -> None:
    """End a job whose losses stay NaN or infinite, or take it back to a checkpoint from before them."""
    table = state.table
    since = f"{table.bad_losses[row].since:,}"
    if table.jobs[row].on_nan is OnNan.STOP or not table.launched[row]:
        state.end_unmet(row, now, Verdict.CRASHED, "diverged", since)
        return
    table.errors[row] += 1
    if table.errors[row] > max(table.jobs[row].retries, 1):
        state.end_unmet(row, now, Verdict.CRASHED, "diverged_again", since)
        return
    table.checkpoints[row] = tuple(
        checkpoint for checkpoint in table.checkpoints[row] if table.is_good(row, checkpoint)
    )
    del table.bad_losses[row]
    table.alerts.pop(row, None)
    set_back(table, row, "diverged_back", now, since)
    table.back_at[row] = now + restart_delay(table.names[row], int(table.in_a_row[row]))
    state.accept(row, fault=True)
    state.answers.append(Alert(table.names[row], table.faults[row]))
