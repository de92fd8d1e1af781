"""Who held which device, when, and what part of it: one lane a device, as high as the device is whole."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from lightning_core.core.durations import format_duration
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.svg import boxes, escape, steps, time_ticks, time_words

# A lane is stretched to the page's width; its text is laid over it, so that it keeps its size.
WIDTH, HEIGHT = 1000, 48
# Stretches narrower than this part of the lane, or lower than a line, carry no name.
NAMED, LINE = 0.05, 16
# Okabe and Ito's colours, which the colour-blind tell apart; from the ninth job on they come again.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
DARK = {"#0072b2"}

Stretch = tuple[float, float, float, float]
"""From, to, lowest and highest part of the device."""


def colour(place: int) -> str:
    """Of the job at this place."""
    return COLOURS[place % len(COLOURS)]


def ink(place: int) -> str:
    """Of text upon it."""
    return "#fff" if colour(place) in DARK else "#000"


def lanes(history: History) -> list[dict[int, list[Stretch]]]:
    """For each device, by the place of the job that held it, the stretches for which it did."""
    return [_lane(history, device) for device in range(history.settings.devices)]


def _lane(history: History, device: int) -> dict[int, list[Stretch]]:
    changes: dict[float, dict[int, float]] = defaultdict(dict)
    for place, job in enumerate(history.jobs):
        levels = [(held.time, held.share if device in held.devices else 0.0) for held in job.grants]
        for since, until, share in steps(levels, history.last if job.ended is None else job.ended):
            if share > 0:
                changes[since][place] = share
                changes[until].setdefault(place, 0.0)
    found: dict[int, list[Stretch]] = defaultdict(list)
    holding: dict[int, float] = {}
    times = sorted(changes)
    for since, until in pairwise(times):
        holding |= changes[since]
        base = 0.0
        for place in sorted(holding):
            share = holding[place]
            if share > 0:
                mine = found[place]
                if mine and mine[-1][1:] == (since, base, base + share):
                    mine[-1] = (mine[-1][0], until, base, base + share)
                else:
                    mine.append((since, until, base, base + share))
            base += share
    return found


def use(history: History) -> float:
    """Part of all devices' time that was granted to somebody, 0 to 1, from the first submission to the end."""
    granted = sum(
        (until - since) * (high - low)
        for lane in lanes(history)
        for stretches in lane.values()
        for since, until, low, high in stretches
    )
    start = min((job.submitted for job in history.jobs), default=0.0)
    return granted / max((history.wall - start) * history.settings.devices, 1e-9)


def gantt(history: History) -> str:
    """A lane for each device, as HTML."""
    end = max(history.wall, 1e-3)
    parts = ['<div class="lanes">']
    for device, lane in enumerate(lanes(history)):
        drawn = _drawn(history, device, lane, end) + _faults(history, device, end)
        parts.append(f'<div class="device">device {device}</div><div class="lane">{drawn}</div>')
    ticks = "".join(
        # The last one must not stick out.
        f'<span style="{f"left:{time / end:.2%}" if time < 0.95 * end else "right:0;transform:none"}">'
        f"{time_words(time)}</span>"
        for time in time_ticks(end, most=6)
    )
    parts.append(f'<div></div><div class="times" aria-hidden="true">{ticks}</div></div>')
    return "".join(parts)


def _drawn(history: History, device: int, lane: dict[int, list[Stretch]], end: float) -> str:
    parts, names = [], []
    for place, stretches in sorted(lane.items()):
        job = history.jobs[place]
        label = escape(history.label(job))
        found = [
            (WIDTH * since / end, HEIGHT * (1 - high), WIDTH * (min(until, end) - since) / end, HEIGHT * (high - low))
            for since, until, low, high in stretches
        ]
        held = sum((until - since) * (high - low) for since, until, low, high in stretches)
        parts.append(
            f'<path fill="{colour(place)}" d="{boxes(found)}"><title>{label}: {format_duration(held)} of device '
            f"{device}</title></path>"
        )
        names += [
            f'<span style="left:{x / WIDTH:.2%};width:{w / WIDTH:.2%};top:{y + (h - LINE) / 2:.0f}px;'
            f'color:{ink(place)}">{label}</span>'
            for x, y, w, h in found
            if w >= NAMED * WIDTH and h >= LINE - 0.1
        ]
    story = ", ".join(history.label(history.jobs[place]) for place in sorted(lane)) or "nobody"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-labelledby="device{device}">'
        f'<title id="device{device}">Device {device} was held by {escape(story)}</title>{"".join(parts)}</svg>'
        f'<div class="names" aria-hidden="true">{"".join(names)}</div>'
    )


def _faults(history: History, device: int, end: float) -> str:
    """Where a job that lived on the device had a fault, when nobody decided, and when no worker could be had."""
    away = (
        f'<i class="away" style="left:{since / end:.2%};width:{(min(until, end) - since) / end:.2%}" '
        f'title="{escape(what)} for {format_duration(until - since)}"></i>'
        for since, until, what in [*history.away, *history.left]
        if since < end
    )
    gone = (
        f'<i class="away" style="left:{gone.since / end:.2%};'
        f'width:{((end if gone.until is None else min(gone.until, end)) - gone.since) / end:.2%}" '
        f'title="{escape(str(gone))}"></i>'
        for gone in history.gone
        if gone.device == device and gone.since < end
    )
    lost = (
        f'<i class="fault" style="left:{min(fault.time / end, 0.995):.2%}" '
        f'title="{escape(history.label(job))}: {escape(fault)}"></i>'
        for job in history.jobs
        for fault in job.faults
        if device in _home(job, fault.time)
    )
    return "".join([*away, *gone, *lost])


def _home(job: JobHistory, time: float) -> tuple[int, ...]:
    """Where it lived when that time came."""
    before = [held.devices for held in job.grants if held.time < time]
    return before[-1] if before else ()


def swatch(history: History, job: JobHistory) -> str:
    """The job's colour, as a small square."""
    return f'<i class="swatch" style="background:{colour(history.jobs.index(job))}"></i>'
