"""Requests for a job: one level for each asker, and their combination.

A level holds until the same one asks for something else. So none undoes what another one asked, and a level that is
withdrawn leaves those of the others.
"""

from __future__ import annotations

from dataclasses import replace

from lightning_core.core.commands import Asking, SetDevices, SetLocation, level_after
from lightning_core.core.control import NOTHING, Ask, Asked, check_known
from lightning_core.core.control.asks import first, first_words, settled
from lightning_core.core.jobs import Spread
from lightning_core.core.reasons import Reason
from lightning_core.scheduler.state import SchedulerState
from lightning_core.scheduler.tables.table import NONE, JobTable


def check(state: SchedulerState, row: int, event: Asking) -> None:
    """Check that a job can be where it is asked to be; a ValueError says why not."""
    _, after = _levels(state.table, row, event)
    job = state.table.jobs[row]
    if (location := after.location) is not None:
        if not _sizes_at(state, row, location):
            raise ValueError(str(Reason("no_such_location", text=location)))
        job = replace(job, location=location)
    if isinstance(event, SetDevices | SetLocation):
        available = state.devices.most(replace(job, spread=Spread.POOL))
        where = f" at {job.location}" if job.location else ""
        where = where or (" of one kind" if state.devices.differ else "")
        if (event.devices or 0) > available:
            raise ValueError(f"devices must be at most the pool's {available}{where}, got {event.devices}")
        if (event.devices or 0) > (most := state.devices.most(job)):
            raise ValueError(f"devices must be at most the {most} of one machine, got {event.devices}")


def changes(state: SchedulerState, row: int, event: Asking) -> bool:
    """Return whether an event asks for something that its sender did not ask for before, and that is possible."""
    before, after = _levels(state.table, row, event)
    if after == before:
        return False
    try:
        check(state, row, event)
    except ValueError:
        return False
    return True


def take(state: SchedulerState, row: int, event: Asking) -> None:
    """Record what is asked of a job; it is possible."""
    if not isinstance(event, Ask):
        check_known(event.by)
    table = state.table
    _, after = _levels(table, row, event)
    table.asked[row] = settled({**table.asked.get(row, {}), event.by: after})
    table.code[row] = -1  # the reason of its grant names who asked
    _hold(table, row)
    _place(table, row)
    _size(state, row)


def asker(table: JobTable, row: int, name: str) -> str:
    """Return who has its way with a job, in words, and why; empty if none asks.

    Args:
        table: All jobs.
        row: Row of the job.
        name: Name of a field of :class:`~lightning_core.core.control.Asked`.
    """
    levels = table.asked.get(row, {})
    _, by = first(levels, name)
    if by is None:
        return ""
    words, reason = first_words(levels, name), levels[by].reason
    return words if reason is None else f"{words}: {reason}"


def _levels(table: JobTable, row: int, event: Asking) -> tuple[Asked, Asked]:
    """Return what the sender of an event asked of a job before, and what it asks from then on."""
    before = table.asked.get(row, {}).get(event.by, NOTHING)
    return before, level_after(event, before)


def _hold(table: JobTable, row: int) -> None:
    levels = table.asked[row]
    held, _ = first(levels, "hold")
    table.paused[row] = bool(held)
    frees = any(one.hold and one.release for one in levels.values())
    table.evicted[row] = bool(held) and frees and table.launched[row]


def _place(table: JobTable, row: int) -> None:
    location, _ = first(table.asked[row], "location")
    before = table.jobs[row].location
    if location is None:
        location = table.own_location.get(row, before)
    if location != before:
        table.own_location.setdefault(row, before)
        table.set_terms(row, replace(table.jobs[row], location=location))


def _size(state: SchedulerState, row: int) -> None:
    """Set the device count of a job: as asked, or as many as before if its location has as many."""
    table = state.table
    sizes = _sizes_at(state, row, table.jobs[row].location)
    asked, _ = first(table.asked[row], "devices")
    told = int(table.told_size[row])
    if asked is None and not told and int(table.size[row]) in sizes:
        return
    if asked is None and told and state.chooses_sizes:
        table.told_size[row] = 0
        return
    wanted = asked if asked is not None else (max(sizes) if told else int(table.size[row]))
    table.told_size[row] = NONE if wanted == 0 else max((n for n in sizes if n <= wanted), default=min(sizes))


def _sizes_at(state: SchedulerState, row: int, location: str) -> list[int]:
    """Return the numbers of devices that a job can train on at a location, and its group may have."""
    job = replace(state.table.jobs[row], location=location)
    available = min(state.devices.most(job), state.table.group_cap[row])
    return [size for size in state.table.speedups[row].sizes if size <= available]
