"""Requests of users, controllers and parts: new jobs, other terms, pause, resume, cancel, and events of parts.

And which events change nothing. They are answered from what is there, and need no place in the journal: anyone who may
speak to the pool can send them without end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lightning_core.core.answers import Answer, Grant, Verdict
from lightning_core.core.commands import (
    Cancel,
    Change,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.control import Ask, Note, PartAnswer
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import (
    Close,
    DevicesFound,
    EarlierRuns,
    Event,
    LaunchTimedOut,
    PartEvent,
    Report,
    Submit,
    WorkerExited,
)
from lightning_core.core.jobs import Job, OnMiss, Spread
from lightning_core.core.protocols import UsesHistory
from lightning_core.core.reasons import Reason
from lightning_core.estimators.above_floor import give_history
from lightning_core.scheduler import asked_levels, part_events
from lightning_core.scheduler.divider import Membership
from lightning_core.scheduler.reports import answer_report, row_of_report
from lightning_core.scheduler.retry_budgets import launching_row
from lightning_core.scheduler.scheduler_view import SchedulerView
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import UNKNOWN


def submit(state: SchedulerState, jobs: tuple[Job, ...], now: float) -> None:
    """Add jobs. A name whose job has not ended keeps that job."""
    table = state.table
    for job in jobs:
        if (active := table.find_active(job.name)) is not None:
            state.answers.append(table.directives[active])
            continue
        # Versions and incarnations of a name only grow.
        version, incarnation = state.past.version, state.past.incarnation + 1
        if (before := state.find(job.name)) is not None:
            there, row = before
            version, incarnation = there.directives[row].version, int(there.incarnation[row]) + 1
        available = state.devices.most(job) if job.is_launched else len(state.settings.devices_at(job.location))
        membership = Membership() if state.division is None else state.division.admit(job)
        size = _size(job, available, membership)
        grant = Grant(job.name, version, 0.0, (), Reason("submitted"))
        row = table.add(job, now, size, grant, incarnation)
        table.group_cap[row] = membership.cap
        state.accept(row)
        refusal = _refusal(state, job, available, size, membership.cap)
        if refusal is None:
            state.set_threshold(row)
        else:
            state.end(row, now, Verdict.CANCELLED, refusal)
    state.past.forget(now, state.kept, table)
    state.curves.grow(len(table))
    for bank in state.banks:
        bank.grow(len(table))


def take_earlier_runs(state: SchedulerState, event: EarlierRuns) -> bool:
    """Give jobs the earlier runs that were found for them, and recall paces; return whether a round is needed."""
    rows = {name: places for name, places in event.found if _lacks_history(state, name)}
    for name, places in rows.items():
        row = state.table.row_of[name]
        state.accept(row)
        _give_history(state, row, event.of(places))
    return state.forming.paces.recall(event.paces) or bool(rows)


def _lacks_history(state: SchedulerState, name: str) -> bool:
    """Return whether a job has neither loss cells nor earlier runs."""
    table = state.table
    row = table.find_active(name)
    return row is not None and not table.cells[row] and row not in table.earlier


def _give_history(state: SchedulerState, row: int, runs: Sequence[EarlierRun]) -> None:
    table, job = state.table, state.table.jobs[row]
    table.earlier[row] = tuple(run.name for run in runs)
    usual: dict[int, list[float]] = {}
    for run in runs:
        for devices, throughput in run.throughputs:
            usual.setdefault(devices, []).append(throughput)
        for kind, devices, throughput in run.on_kinds:
            state.rates.recall(job.family, devices, kind, throughput)
    known = [run.memory for run in runs if run.memory is not None]
    table.told_memory[row] = np.fmax(table.told_memory[row], max(known, default=np.nan))
    medians = {devices: float(np.median(throughputs)) for devices, throughputs in usual.items()}
    table.usual_throughput[row] = medians.get(int(table.size[row]), np.nan)
    if job.work is None and not job.throughputs:
        table.speedups[row].expect({size: medians[size] for size in table.speedups[row].sizes if size in medians})
    if not table.exact[row]:
        state.curves.history(row, runs)
        for bank in state.banks_of(row):
            if isinstance(bank, UsesHistory):
                give_history(bank, row, runs)


def _size(job: Job, available: int, membership: Membership) -> int:
    """Return the number of devices that a job begins with: as many as it can use, and its group may have.

    One that keeps its size counts on no more than its group's quota, if it has one that suffices.
    """
    size = int(min(job.max_devices, available, membership.cap))
    if job.sizes:
        return max((n for n in job.sizes if n <= size), default=size)
    return min(size, max(membership.quota, job.min_devices)) if membership.quota else size


def _refusal(state: SchedulerState, job: Job, available: int, size: int, cap: float) -> Reason | None:
    """Return why a job cannot run in this pool; None if it can."""
    settings = state.settings
    if not settings.devices_at(job.location):
        return Reason("no_such_location", text=job.location)
    if state.devices.names and not state.devices.allowed_kinds(job):
        return Reason("no_such_kind", text=" or ".join(job.kinds))
    least = job.sizes[0] if job.sizes else job.min_devices
    if cap < least <= available:
        return Reason("above_cap", (least, cap), state.table.group_word)
    apart = state.devices.most(replace(job, spread=Spread.POOL))
    if available < least <= apart:
        return Reason("no_such_machine", (least, available))
    if size < job.min_devices:
        there = f" at {job.location}" if job.location else " of one kind" if state.devices.differ else ""
        return Reason("too_large", (job.min_devices, apart), there)
    if (refusal := settings.memory_refusal(job.memory)) is not None:
        return refusal
    if job.device is not None and not 0 <= job.device < settings.devices:
        return Reason("no_such_device", (job.device, settings.devices))
    if not job.is_launched and settings.supply is not None:
        return Reason("needs_launch")
    return settings.refusal(job.target)


def steer(state: SchedulerState, event: Cancel | Pause | Resume, now: float) -> bool:
    """Cancel, pause or resume a job; return whether a round is needed."""
    table = state.table
    row = table.find_active(event.job)
    if row is None:
        return False
    state.accept(row)
    match event:
        case Cancel():
            state.end_unmet(row, now, Verdict.CANCELLED, "cancelled", f"by {event.who}" if event.who else "")
        case Resume() if not table.paused[row]:
            pass  # nothing holds it
        case Pause() | Resume():
            asked_levels.take(state, row, event)
    return True


def is_news(state: SchedulerState, answer: Ask | Note | PartAnswer) -> bool:
    """Return whether what a controller answers changes anything."""
    if isinstance(answer, PartAnswer):
        return True
    row = state.table.find_active(answer.job)
    if row is None:
        return False
    if isinstance(answer, Note):
        return state.table.notes.get(row, {}).get(answer.by) != answer.reason
    return asked_levels.changes(state, row, answer)


def take_note(state: SchedulerState, note: Note) -> None:
    """Take in what a controller tells of a job."""
    if (row := state.table.find_active(note.job)) is not None:
        state.table.notes.setdefault(row, {})[note.by] = note.reason


def take_ask(state: SchedulerState, event: Ask, *, is_event: bool = False) -> bool:
    """Take in what a controller asks of a job, in an event or in answer to one; return whether a round is needed."""
    row = state.table.find_active(event.job)
    if row is None or not asked_levels.changes(state, row, event):
        return False
    if is_event:
        state.accept(row)
    asked_levels.take(state, row, event)
    return True


def change(state: SchedulerState, event: Change, now: float) -> bool:
    """Change one thing of a job; return whether a round is needed.

    What does not fit the job or the pool changes nothing.
    """
    table = state.table
    row = table.find_active(event.job)
    if row is None:
        return False
    try:
        job = changed_job(state, row, event, now)
    except ValueError:
        return False
    state.accept(row)
    if isinstance(event, SetDeadline):
        table.deadline[row] = event.deadline_at(float(table.submitted[row]), now)
    if isinstance(event, SetDevices | SetLocation):
        asked_levels.take(state, row, event)
    else:
        _tell_target(state, row, job)
        table.set_terms(row, job)
    state.set_threshold(row)
    if row in table.met_at:
        return True  # its target is met, and no change of terms takes that back
    if table.late[row] and (table.deadline[row] > now or job.on_miss is OnMiss.STOP):
        table.late[row] = False
        table.belief[row] = UNKNOWN
    if table.is_met(row):
        state.end_met(row, now)
    return True


def _tell_target(state: SchedulerState, row: int, job: Job) -> None:
    """Tell the process of a job that its target changes: it judges itself whether that is met."""
    table = state.table
    directive = table.directives[row]
    if job.target != table.jobs[row].target and isinstance(directive, Grant):
        told = directive._replace(version=directive.version + 1, target=job.target)
        table.directives[row] = told
        state.answers.append(told)


def changed_job(state: SchedulerState, row: int, event: Change, now: float) -> Job:
    """Return the job as a command would have it.

    Raises:
        ValueError: If the command does not fit the job or the pool.
    """
    table = state.table
    job = table.jobs[row]
    match event:
        case SetDeadline():
            return event.apply(job, float(table.submitted[row]), now)
        case SetDevices() | SetLocation():
            asked_levels.check(state, row, event)
        case SetTerms():
            job = event.apply(job)
            if (refusal := state.settings.refusal(job.target)) is not None:
                raise ValueError(str(refusal))
    return job


# ------------------------------------------------------------------------------------------- events that change nothing


def answers_to_no_op(state: SchedulerState, event: Event, now: float) -> list[Answer] | None:
    """Return the answers to an event that changes nothing; None for one that may change something.

    Args:
        state: State of the scheduler; it is not changed.
        event: The event.
        now: Scheduler time in seconds.
    """
    if not _is_no_op(state, event, now):
        return None
    answers: list[Answer] = []
    if isinstance(event, Report):
        answer_report(state, event, answers)
    if isinstance(event, Submit):
        answers += [state.table.directives[state.table.row_of[job.name]] for job in event.jobs]
    return answers


def _is_no_op(state: SchedulerState, event: Event, now: float) -> bool:
    table = state.table
    match event:
        case Report():
            return row_of_report(table, event) is None
        case WorkerExited():
            row = table.find(event.job, event.incarnation)  # the worker of a job that has ended leaves after it
            return row is None or not (table.active[row] or table.last_report[row])
        case LaunchTimedOut():
            return launching_row(table, event) is None
        case Submit(jobs):
            return all(table.find_active(job.name) is not None for job in jobs)
        case EarlierRuns(found=found, paces=paces):
            known = state.forming.paces
            return not any(_lacks_history(state, name) for name, _ in found) and not any(map(known.lacks, paces))
        case Close():
            return state.closing
        case DevicesFound(kinds, machines):
            return state.devices.after(kinds, machines) == (state.devices.kinds, state.devices.machines)
        case PartEvent():
            return part_events.is_known(state, event, SchedulerView(state, now))
        case Ask():
            row = table.find_active(event.job)
            return row is None or not asked_levels.changes(state, row, event)
        case Cancel() | Pause() | Resume():
            row = table.find_active(event.job)
            return row is None or (isinstance(event, Resume) and not (table.paused[row] or table.evicted[row]))
        case SetDeadline() | SetDevices() | SetLocation() | SetTerms():
            return not _fits(state, event, now)
    return False


def _fits(state: SchedulerState, event: Change, now: float) -> bool:
    if (row := state.table.find_active(event.job)) is None:
        return False
    try:
        changed_job(state, row, event, now)
    except ValueError:
        return False
    return True
