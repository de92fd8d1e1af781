"""Which job held which share of which device, and when: one lane a device, its full height the whole device."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from lightning_core.core.durations import format_duration
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.svg import boxes, escape, steps, time_ticks, time_words

# A lane is stretched to the width of the page; its text lies over it, so that the text keeps its size.
WIDTH, HEIGHT = 1000, 48
# A stretch that is narrower than this fraction of the lane, or lower than a line of text, is not labelled.
MIN_LABELLED_WIDTH, LINE_HEIGHT = 0.05, 16
# Okabe and Ito's palette, which colour-blind readers can tell apart; it repeats from the ninth job on.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
DARK = {"#0072b2"}

Stretch = tuple[float, float, float, float]
"""Start and end in seconds, lower and upper edge as shares of the device."""


def colour(index: int) -> str:
    """Return the colour of the job with this index."""
    return COLOURS[index % len(COLOURS)]


def ink(index: int) -> str:
    """Return the colour of text on top of :func:`colour`."""
    return "#fff" if colour(index) in DARK else "#000"


def lanes(history: History) -> list[dict[int, list[Stretch]]]:
    """Return, for each device, the stretches for which each job held it, by the index of the job."""
    return [_lane(history, device) for device in range(history.settings.devices)]


def _lane(history: History, device: int) -> dict[int, list[Stretch]]:
    changes: dict[float, dict[int, float]] = defaultdict(dict)
    for index, job in enumerate(history.jobs):
        levels = [(held.time, held.share if device in held.devices else 0.0) for held in job.grants]
        for since, until, share in steps(levels, history.last if job.ended is None else job.ended):
            if share > 0:
                changes[since][index] = share
                changes[until].setdefault(index, 0.0)
    found: dict[int, list[Stretch]] = defaultdict(list)
    holding: dict[int, float] = {}
    times = sorted(changes)
    for since, until in pairwise(times):
        holding |= changes[since]
        base = 0.0
        for index in sorted(holding):
            share = holding[index]
            if share > 0:
                mine = found[index]
                if mine and mine[-1][1:] == (since, base, base + share):
                    mine[-1] = (mine[-1][0], until, base, base + share)
                else:
                    mine.append((since, until, base, base + share))
            base += share
    return found


def use(history: History) -> float:
    """Return the fraction of all device time that was granted, 0 to 1, from the first submission to the end."""
    granted = sum(
        (until - since) * (high - low)
        for lane in lanes(history)
        for stretches in lane.values()
        for since, until, low, high in stretches
    )
    start = min((job.submitted for job in history.jobs), default=0.0)
    return granted / max((history.wall - start) * history.settings.devices, 1e-9)


def gantt(history: History) -> str:
    """Return a lane for each device, as HTML."""
    end = max(history.wall, 1e-3)
    parts = ['<div class="lanes">']
    for device, lane in enumerate(lanes(history)):
        drawn = _drawn(history, device, lane, end) + _faults(history, device, end)
        parts.append(f'<div class="device">device {device}</div><div class="lane">{drawn}</div>')
    ticks = "".join(
        # The last tick must not stick out.
        f'<span style="{f"left:{time / end:.2%}" if time < 0.95 * end else "right:0;transform:none"}">'
        f"{time_words(time)}</span>"
        for time in time_ticks(end, max_ticks=6)
    )
    parts.append(f'<div></div><div class="times" aria-hidden="true">{ticks}</div></div>')
    return "".join(parts)


def _drawn(history: History, device: int, lane: dict[int, list[Stretch]], end: float) -> str:
    parts, names = [], []
    for index, stretches in sorted(lane.items()):
        job = history.jobs[index]
        label = escape(history.label(job))
        found = [
            (WIDTH * since / end, HEIGHT * (1 - high), WIDTH * (min(until, end) - since) / end, HEIGHT * (high - low))
            for since, until, low, high in stretches
        ]
        held = sum((until - since) * (high - low) for since, until, low, high in stretches)
        parts.append(
            f'<path fill="{colour(index)}" d="{boxes(found)}"><title>{label}: {format_duration(held)} of device '
            f"{device}</title></path>"
        )
        names += [
            f'<span style="left:{x / WIDTH:.2%};width:{w / WIDTH:.2%};top:{y + (h - LINE_HEIGHT) / 2:.0f}px;'
            f'color:{ink(index)}">{label}</span>'
            for x, y, w, h in found
            if w >= MIN_LABELLED_WIDTH * WIDTH and h >= LINE_HEIGHT - 0.1
        ]
    story = ", ".join(history.label(history.jobs[index]) for index in sorted(lane)) or "no job"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-labelledby="device{device}">'
        f'<title id="device{device}">Device {device} was held by {escape(story)}</title>{"".join(parts)}</svg>'
        f'<div class="names" aria-hidden="true">{"".join(names)}</div>'
    )


def _faults(history: History, device: int, end: float) -> str:
    """Return marks of faults of jobs on the device, of pauses of the scheduler, and of times without a worker."""
    away = (
        f'<i class="away" style="left:{since / end:.2%};width:{(min(until, end) - since) / end:.2%}" '
        f'title="{escape(what)} for {format_duration(until - since)}"></i>'
        for since, until, what in [*history.gaps, *history.stops]
        if since < end
    )
    outages = (
        f'<i class="away" style="left:{outage.since / end:.2%};'
        f'width:{((end if outage.until is None else min(outage.until, end)) - outage.since) / end:.2%}" '
        f'title="{escape(str(outage))}"></i>'
        for outage in history.outages
        if outage.device == device and outage.since < end
    )
    lost = (
        f'<i class="fault" style="left:{min(fault.time / end, 0.995):.2%}" '
        f'title="{escape(history.label(job))}: {escape(fault)}"></i>'
        for job in history.jobs
        for fault in job.faults
        if device in _home(job, fault.time)
    )
    return "".join([*away, *outages, *lost])


def _home(job: JobHistory, time: float) -> tuple[int, ...]:
    """Return the devices that a job held just before a time."""
    before = [held.devices for held in job.grants if held.time < time]
    return before[-1] if before else ()


def swatch(history: History, job: JobHistory) -> str:
    """Return a small square in the colour of the job."""
    return f'<i class="swatch" style="background:{colour(history.jobs.index(job))}"></i>'
