"""The jobs of a pool as a live table for a notebook: HTML with a small chart of each job, which loads nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from lightning_core.core.answers import JobStatus, State
from lightning_core.report.card import COLOURS
from lightning_core.report.svg import Scale, escape, line, number, value_scale
from lightning_core.view.group_lines import group_lines, is_listed
from lightning_core.view.job_line import COLUMNS, SYMBOLS, telling
from lightning_core.view.job_line import line as cells_of

WIDTH, HEIGHT, EDGE = 220, 52, 4
# Jobs that are shown, those in trouble first; the others are counted. Points of a curve.
MAX_JOBS, MAX_POINTS = 40, 200
SHOWN = ("owner", "state", "loss / target", "time / deadline", "share", "device", "memory", "forecast end",
         "reason")  # fmt: skip
GREY = "#708090"

# A name may be used again, at another time.
Key = tuple[str, float]
Points = Sequence[tuple[float, float]]
Point = TypeVar("Point")


def key_of(job: JobStatus) -> Key:
    """Return a key that tells a job from a later one of its name."""
    return job.name, job.submitted_at


def live_table(now: float, jobs: Sequence[JobStatus], seen: Mapping[Key, Points]) -> str:
    """Return the table.

    Args:
        now: Scheduler time, in seconds.
        jobs: Jobs to show.
        seen: Times and values seen so far, by job.
    """
    running = sum(job.state is not State.ENDED for job in jobs)
    listed = list(filter(is_listed, jobs))
    shown = sorted(listed, key=_rank)[:MAX_JOBS]
    cells = telling(SHOWN, jobs)
    names = ("job", "verdict", *cells, "forecast")
    head = "".join(f'<th style="text-align:left;padding:2px 10px 2px 0;opacity:.65">{name}</th>' for name in names)
    rows = "".join(_row(now, job, seen.get(key_of(job), ()), cells) for job in shown)
    more = f"<div>and {len(listed) - len(shown):,} more</div>" if len(listed) > len(shown) else ""
    more += "".join(f"<div>{escape(words)}</div>" for words in group_lines(jobs))
    return (
        f'<div style="font:13px/1.4 system-ui,sans-serif"><div><b>{len(jobs):,} jobs</b>, {running:,} not over</div>'
        f'<table style="border-collapse:collapse;font:inherit;color:inherit"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>{more}</div>"
    )


def live_lines(now: float, jobs: Sequence[JobStatus]) -> str:
    """Return the table as text, for a terminal.

    Args:
        now: Scheduler time, in seconds.
        jobs: Jobs to show.
    """
    shown = sorted(filter(is_listed, jobs), key=_rank)[:MAX_JOBS]
    names = ("job", "verdict", *telling(SHOWN, jobs))
    rows = [names, *([dict(zip(COLUMNS, cells_of(now, job), strict=True))[name] for name in names] for job in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *group_lines(jobs)])


def thinned(points: list[Point]) -> list[Point]:
    """Return points, every second one and the newest if there are too many."""
    return points if len(points) <= MAX_POINTS else [*points[:-1:2], points[-1]]


def _rank(job: JobStatus) -> tuple[bool, int, float]:
    verdict = 2 if job.verdict is None else job.verdict.number
    return job.state is State.ENDED, verdict, job.submitted_at


def _row(now: float, job: JobStatus, points: Points, shown: Sequence[str]) -> str:
    cells = dict(zip(COLUMNS, cells_of(now, job), strict=True))
    verdict = job.verdict
    colour = GREY if verdict is None else COLOURS[verdict]
    words = "too early to tell" if verdict is None else f"{SYMBOLS[verdict]} {verdict}"
    badge = f'<span style="background:{colour};color:#fff;border-radius:8px;padding:1px 8px">{escape(words)}</span>'
    texts = [f"<b>{escape(job.name)}</b>", badge, *(escape(cells[name]) for name in shown), chart(now, job, points)]
    style = "text-align:left;padding:3px 10px 3px 0;border-top:1px solid rgba(128,128,128,.3);white-space:nowrap"
    wrapped = style.replace("white-space:nowrap", "max-width:22em")
    names = ("job", "verdict", *shown, "forecast")
    return "<tr>" + "".join(
        f'<td style="{wrapped if name == "reason" else style}">{text}</td>'
        for name, text in zip(names, texts, strict=True)
    ) + "</tr>"  # fmt: skip


def chart(now: float, job: JobStatus, points: Points) -> str:
    """Return the chart of a job: its values so far, its goal and deadline, and the fan of its forecast."""
    if job.value is not None:
        points = [*points, (now if job.finished_at is None else job.finished_at, job.value)]
    if not points:
        return ""
    goal = job.target.goal
    values = [goal, *(value for _, value in points)]
    log = min(values) > 0 and job.target.observes and not job.target.grows
    y = value_scale(min(values), max(values), HEIGHT - EDGE, EDGE, log=log)
    early, likely, late = job.finish or (now, now, now)
    until = max(now, likely, job.deadline if math.isfinite(job.deadline) else now)
    x = Scale(job.submitted_at, max(until, job.submitted_at + 1e-3), EDGE, WIDTH - EDGE)
    words = f"{job.target.observed} over time"
    found = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(words)}">'
        f'<path d="M0 {number(y(goal))}H{WIDTH}" fill="none" stroke="#2e8b57" stroke-dasharray="4 3"/>'
    ]
    if math.isfinite(job.deadline):
        found.append(f'<path d="M{number(x(job.deadline))} 0V{HEIGHT}" fill="none" stroke="#c0392b"/>')
    if job.finish is not None:
        here = x(now), y(points[-1][1])
        ends = [(x(end), y(goal)) for end in (early, likely, late)]
        found.append(f'<path d="{line([here, ends[0], ends[2]])}z" fill="#e69f00" fill-opacity=".3"/>')
        found.append(f'<path d="{line([here, ends[1]])}" fill="none" stroke="#b8860b"/>')
    path = line((x(at), y(value)) for at, value in (points if len(points) > 1 else [*points, *points]))
    return "".join(found) + f'<path d="{path}" fill="none" stroke="#3b7dd8" stroke-width="1.5"/></svg>'
