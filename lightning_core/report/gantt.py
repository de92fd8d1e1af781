"""Gantt chart of the devices: one lane each, with the share of every job over time as its height."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from lightning_core.core.durations import format_duration
from lightning_core.core.names import listed
from lightning_core.history.faults import STARTS
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.report.lanes import OTHERS, Lane, Span, Stretch, company, lanes, overlap, seconds_held, thinned
from lightning_core.report.svg import boxes, escape, time_ticks, time_words

# A lane is stretched to the width of the page; its text lies over it, so that the text keeps its size.
WIDTH, HEIGHT = 1000, 48
# Lanes on a page, and boxes in all of them. From a number of lanes on they are low.
MAX_LANES, MAX_BOXES = 32, 32_000
MANY_LANES, LOW = 12, 16
# Marks on a lane of faults, and of times without decisions or workers: the newest ones.
MAX_MARKS = 50
# A stretch that is narrower than this fraction of the lane, or lower than a line of text, is not labelled.
MIN_LABELLED_WIDTH, LINE_HEIGHT = 0.05, 16
# Okabe and Ito's palette, which colour-blind readers can tell apart; it repeats from the ninth job on.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
DARK = {"#0072b2"}
# Colour of all jobs that are drawn as one.
GREY = "#7d8590"


def colour(index: int) -> str:
    """Return the colour of the job with this index."""
    return GREY if index == OTHERS else COLOURS[index % len(COLOURS)]


def ink(index: int) -> str:
    """Return the colour of text on top of :func:`colour`."""
    return "#fff" if colour(index) in DARK else "#000"


def gantt(history: History, since: float = 0.0, until: float | None = None) -> str:
    """Return a lane for each device, as HTML; for the first ones if there are many.

    Args:
        history: History of the run.
        since: Time at which the lanes begin.
        until: Time at which they end; None for the end of the run.
    """
    time = Span(since, max(history.wall if until is None else until, since + 1e-3))
    all_lanes = [time.of(lane) for lane in lanes(history)]
    drawn = all_lanes[:MAX_LANES]
    height = LOW if len(drawn) >= MANY_LANES else HEIGHT
    marks = [_away(history, device, time) + _faults(history, device, time) for device in range(len(drawn))]
    parts = [f'<div class="lanes{" low" if height == LOW else ""}">']
    for device, lane in enumerate(drawn):
        shown = thinned(lane, time.end, MAX_BOXES // len(drawn), time.start)
        parts.append(
            f'<div class="device">{_name(history, device)}</div><div class="lane">'
            f"{_drawn(history, device, shown, time, height)}{marks[device]}</div>"
        )
    ticks = "".join(
        # The last tick must not stick out.
        f'<span style="{f"left:{time.at(at):.2%}" if time.at(at) < 0.95 else "right:0;transform:none"}">'
        f"{time_words(at)}</span>"
        for at in time_ticks(time.end, 6, time.start)
    )
    parts.append(f'<div></div><div class="times" aria-hidden="true">{ticks}</div></div>')
    if more := len(all_lanes) - len(drawn):
        held = sum(seconds_held(stretches) for lane in all_lanes[len(drawn) :] for stretches in lane.values())
        parts.append(
            f'<p class="soft">And {more} more devices, held {100 * held / (time.length * more):.0f} % of the time.</p>'
        )
    return "".join(parts)


def _drawn(history: History, device: int, lane: Lane, time: Span, height: int) -> str:
    parts, names = [], []
    labels = {
        index: "other jobs" if index == OTHERS else escape(history.label(history.jobs[index])) for index in sorted(lane)
    }
    for index, label in labels.items():
        found = _boxes(lane[index], time, height)
        words = f"{label}: {format_duration(seconds_held(lane[index]))} of {_name(history, device)}"
        parts.append(f'<path fill="{colour(index)}" d="{boxes(found)}"><title>{words}</title></path>')
        if index != OTHERS and (times := company(history.jobs[index], history.last, time.length / WIDTH)):
            hatched = _boxes(overlap(lane[index], times), time, height)
            parts.append(f'<path class="beside" fill="url(#beside{device})" d="{boxes(hatched)}"/>' if hatched else "")
        names += [
            f'<span style="left:{x / WIDTH:.2%};width:{w / WIDTH:.2%};top:{y + (h - LINE_HEIGHT) / 2:.0f}px;'
            f'color:{ink(index)}">{label}</span>'
            for x, y, w, h in found
            if w >= MIN_LABELLED_WIDTH * WIDTH and h >= LINE_HEIGHT - 0.1
        ]
    story = listed(list(labels.values())) if labels else "no job"
    kind = f" ({escape(history.kinds[device])})" if history.kinds else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" aria-labelledby="device{device}">'
        f'<title id="device{device}">Device {device}{kind} was held by {story}</title>'
        f"{_hatching(device) if any(part.startswith('<path class=') for part in parts) else ''}{''.join(parts)}</svg>"
        f'<div class="names" aria-hidden="true">{"".join(names)}</div>'
    )


def _name(history: History, device: int) -> str:
    """Return the name of a device, as HTML: with its kind, where there are several."""
    return f"{escape(history.kinds[device]) if history.kinds else 'device'} {device}"


def _boxes(stretches: Iterable[Stretch], time: Span, height: int) -> list[tuple[float, float, float, float]]:
    return [
        (WIDTH * time.at(since), height * (1 - high), WIDTH * time.part(since, until), height * (high - low))
        for since, until, low, high in stretches
    ]


def _hatching(number: int | str) -> str:
    """Return the pattern that lies over the time in which a job trained at the same time as others."""
    return (
        f'<defs><pattern id="beside{number}" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path d="M0 0V7" stroke="#fff" stroke-opacity=".6" stroke-width="4"/>'
        "</pattern></defs>"
    )


def about_lanes(history: History) -> str:
    """Return what the lanes show, as HTML."""
    words = "The height is the share of the device."
    if not any(one.beside for job in history.jobs for one in job.owned):
        return words
    sign = (
        f'<svg class="sign" viewBox="0 0 34 14" aria-hidden="true">{_hatching("")}<rect width="34" height="14" '
        f'fill="{COLOURS[0]}"/><rect width="34" height="14" fill="url(#beside)"/></svg>'
    )
    return (
        f"{words} {sign} Hatched: trained at the same time as others on the device; the height is divided by the work "
        "that each did."
    )


def _away(history: History, device: int, time: Span) -> str:
    """Return marks of times in which the scheduler made no decisions, or the device had no worker."""
    found = [(since, until, f"{what} for {format_duration(until - since)}") for since, until, what in
             sorted([*history.gaps, *history.stops])]  # fmt: skip
    found = (
        found[-MAX_MARKS:]
        + [
            (outage.since, time.end if outage.until is None else outage.until, str(outage))
            for outage in history.outages
            if outage.device == device and outage.what != STARTS
        ][-MAX_MARKS:]
    )
    return "".join(
        f'<i class="away" style="left:{time.at(since):.2%};width:{time.part(since, until):.2%}" '
        f'title="{escape(words)}"></i>'
        for since, until, words in found
        if since < time.end and until > time.start
    )


def _faults(history: History, device: int, time: Span) -> str:
    """Return marks of faults of jobs on the device."""
    found = sorted(
        (fault.time, f"{history.label(job)}: {fault}")
        for job in history.jobs
        for fault in job.faults
        if device in _home(job, fault.time) and time.start <= fault.time <= time.end
    )
    return "".join(
        f'<i class="fault" style="left:{min(time.at(at), 0.995):.2%}" title="{escape(words)}"></i>'
        for at, words in found[-MAX_MARKS:]
    )


def _home(job: JobHistory, time: float) -> tuple[int, ...]:
    """Return the devices that a job held just before a time."""
    before = bisect_left(job.grants, time, key=lambda held: held.time)
    return job.grants[before - 1].devices if before else ()


def swatch(index: int) -> str:
    """Return a small square in the colour of the job with this index."""
    return f'<i class="swatch" style="background:{colour(index)}"></i>'
