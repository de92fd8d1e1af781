"""The curves of several jobs in one chart: over the time since each was submitted, over batches, or over epochs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.history.job_history import JobHistory
from lightning_core.report.gantt import colour
from lightning_core.report.svg import Scale, escape, line, number, thin, time_ticks, time_words, value_scale

HEIGHT, LEFT, MARGIN, TOP, BOTTOM = 300, 60, 12, 26, 262
POINTS, MAX_TICKS = 300, 6
# Patterns of the lines, so that no colour stands alone.
DASHES = ("", "7 4", "2 3", "10 3 2 3")


class Axis(StrEnum):
    """The axis over which curves are drawn."""

    TIME = "time"
    BATCHES = "batches"
    EPOCHS = "epochs"


class JobCurve(NamedTuple):
    """The curve of one job."""

    label: str
    job: JobHistory
    key: int
    """Number of its colour and pattern."""


def comparison_chart(curves: Sequence[JobCurve], axis: Axis, width: int) -> str:
    """Return the curves of jobs with one metric as an inline SVG.

    Args:
        curves: The jobs, at least one; all have the same metric.
        axis: Axis over which they are drawn.
        width: Width in pixels.
    """
    shown = [(one, points_of(one.job, axis)) for one in curves]
    with_points = [(one, points) for one, points in shown if len(points)]
    title = escape(curves[0].job.job.target.axis)
    if not with_points:
        return f'<p class="soft">{title}: nothing has been reported yet.</p>'
    values = np.concatenate([points[:, 1] for _, points in with_points] + [_goals(curves)])
    grows = curves[0].job.job.target.grows
    x = Scale(0.0, max(float(points[-1, 0]) for _, points in with_points) * 1.02 or 1.0, LEFT, width - MARGIN)
    y = value_scale(float(values.min()), float(values.max()), BOTTOM, TOP, log=float(values.min()) > 0 and not grows)
    words = escape(f"{curves[0].job.job.target.axis} of {', '.join(one.label for one in curves)} over {axis}")
    parts = [f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{words}">',
             *_axes(x, y, axis, title, width)]  # fmt: skip
    for one, points in with_points:
        kept = thin(points, POINTS)
        kept = np.vstack([kept, kept]) if len(kept) == 1 else kept
        path = line((x(a), y(v)) for a, v in kept.tolist())
        parts.append(f'<path class="compared" {_stroke(one.key)} d="{path}"><title>{escape(one.label)}</title></path>')
    for goal in sorted(set(_goals(curves).tolist())):
        parts.append(f'<path class="goal" d="M{LEFT} {number(y(goal))}H{width - MARGIN}"/>')
    return "".join([*parts, "</svg>"])


def key_of_line(key: int) -> str:
    """Return a piece of a curve's line, for a legend."""
    return f'<svg viewBox="0 0 34 14" aria-hidden="true"><path class="compared" {_stroke(key)} d="M0 7H34"/></svg>'


def points_of(job: JobHistory, axis: Axis) -> FloatArray:
    """Return where a job was, and its value that counts against its target, shape ``(n, 2)``.

    It is empty while nothing is known of the job, and over epochs if their number of batches is unknown.
    """
    curve = job.curve()
    curve = curve if len(curve) else job.seen()
    if not len(curve) or axis is Axis.TIME:
        return curve - [job.submitted, 0.0] if len(curve) else curve
    told = job.points.table()[:, :2] if job.job.target.observes else job.progress.table()[:, :2]
    batches = np.interp(curve[:, 0], told[:, 0], told[:, 1])
    per_epoch = job.job.target.epoch_batches
    if axis is Axis.EPOCHS:
        return np.column_stack([batches / per_epoch, curve[:, 1]]) if per_epoch else np.zeros((0, 2))
    return np.column_stack([batches, curve[:, 1]])


def _goals(curves: Sequence[JobCurve]) -> FloatArray:
    goals: FloatArray = np.array([one.job.goal for one in curves], np.float64)
    return goals[np.isfinite(goals)]


def _stroke(key: int) -> str:
    dash = DASHES[key % len(DASHES)]
    return f'stroke="{colour(key)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _axes(x: Scale, y: Scale, axis: Axis, title: str, width: int) -> list[str]:
    found = [f'<text class="tick" x="{LEFT}" y="{TOP - 10}">{title}</text>']
    for value in y.ticks():
        at = number(y(value))
        found.append(f'<path class="grid" d="M{LEFT} {at}H{width - MARGIN}"/>')
        found.append(f'<text class="tick" x="{LEFT - 5}" y="{at}" dy="4" text-anchor="end">{value:.4g}</text>')
    many = max(min(width // 110, MAX_TICKS), 3)
    ticks = time_ticks(x.high, many) if axis is Axis.TIME else x.ticks(many)
    for value in ticks:
        at, words = number(x(value)), time_words(value) if axis is Axis.TIME else f"{value:g}"
        anchor = "middle" if x(value) < width - MARGIN - 16 else "end"
        found.append(f'<path class="grid" d="M{at} {TOP}V{BOTTOM}"/>')
        found.append(f'<text class="tick" x="{at}" y="{BOTTOM + 16}" text-anchor="{anchor}">{words}</text>')
    name = "time since its submission" if axis is Axis.TIME else axis
    found.append(
        f'<text class="tick" x="{width - MARGIN}" y="{BOTTOM + 32}" text-anchor="end">{name}</text>'
        f'<path class="axis" d="M{LEFT} {BOTTOM}H{width - MARGIN}"/>'
    )
    return found
