"""A small card of a job for a notebook: HTML with an inline chart, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.answers import JobForecast, Verdict
from lightning_core.core.durations import format_forecast
from lightning_core.core.targets import Target
from lightning_core.report.svg import Scale, escape, line, number, thin, value_scale

WIDTH, HEIGHT = 320, 96
LEFT, RIGHT, TOP, BOTTOM = 44, 312, 8, 76
POINTS = 160
# Readable on light and on dark pages.
COLOURS = {
    Verdict.MET: "#2e8b57",
    Verdict.FEASIBLE: "#2e8b57",
    Verdict.AT_RISK: "#b8860b",
    Verdict.INFEASIBLE: "#c0392b",
    Verdict.MISSED: "#c0392b",
    Verdict.CRASHED: "#c0392b",
    Verdict.CANCELLED: "#708090",
}


def card(
    name: str,
    target: Target,
    points: Sequence[tuple[float, float]],
    job_forecast: JobForecast | None,
    *,
    window: int = 1,
    over: bool = False,
    rows: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the card of a job.

    Args:
        name: Name of the job.
        target: Target of the job.
        points: Batches and values as logged, in the order of the run.
        job_forecast: Verdict and forecast; None while there is none.
        window: Number of points whose mean counts against the target.
        over: Whether the training has ended, so that there is nothing left to forecast.
        rows: Further rows, each a label and its text.

    Example::

        >>> from lightning_core.core.targets import BatchTarget
        >>> page = card("<b>", BatchTarget(9), [], None)
        >>> "&lt;b&gt;" in page, "too early to tell" in page
        (True, True)
    """
    verdict = None if job_forecast is None else job_forecast.verdict
    colour = COLOURS[verdict] if verdict is not None else "#708090"
    lines = [("target", str(target))]
    if points and target.observes:
        lines.append(("best so far" if not over else "best", target.show(_best(target, points, window))))
    if points:
        lines.append(("batches", f"{points[-1][0]:.0f}"))
    if job_forecast is not None and not over and job_forecast.left is not None:
        lines.append(("forecast", _forecast(job_forecast)))
    lines += rows
    table = "".join(
        f'<tr><td style="opacity:.65;padding:0 10px 0 0;text-align:left">{escape(label)}</td>'
        f'<td style="text-align:left;padding:0">{escape(text)}</td></tr>'
        for label, text in lines
    )
    reason = "" if job_forecast is None else f'<div style="margin:4px 0">{escape(job_forecast.reason)}</div>'
    return (
        '<div style="display:inline-block;max-width:360px;font:13px/1.45 system-ui,sans-serif;padding:10px 14px;'
        f'border:1px solid rgba(128,128,128,.4);border-left:4px solid {colour};border-radius:4px">'
        f'<div><b>{escape(name)}</b> <span style="background:{colour};color:#fff;border-radius:8px;padding:1px 8px;'
        f'margin-left:6px">{escape(verdict or "too early to tell")}</span></div>{reason}'
        f'<table style="border-collapse:collapse;margin:4px 0;font:inherit;color:inherit">{table}</table>'
        f"{_chart(target, points)}</div>"
    )


def _best(target: Target, points: Sequence[tuple[float, float]], window: int) -> float:
    values = [value for _, value in points]
    means = [float(np.mean(values[max(k - window, 0) : k])) for k in range(min(window, len(values)), len(values) + 1)]
    return max(means) if target.grows else min(means)


def _forecast(job_forecast: JobForecast) -> str:
    assert job_forecast.left is not None  # checked by the caller
    words = f"in {format_forecast(job_forecast.left)}"
    if job_forecast.early is not None:
        late = "beyond reach" if job_forecast.late is None else format_forecast(job_forecast.late)
        words += f" ({format_forecast(job_forecast.early)} to {late})"
    if (spare := job_forecast.spare) is not None:
        words += f", {format_forecast(abs(spare))} {'to spare' if spare >= 0 else 'late'}"
    return words


def _chart(target: Target, points: Sequence[tuple[float, float]]) -> str:
    """Return the curve and, for a loss or metric target, the line that it must reach; empty without points."""
    if not points:
        return ""
    kept = thin(np.array(points, float), POINTS)
    goal = target.goal if target.observes else None
    values = kept[:, 1] if goal is None else np.append(kept[:, 1], goal)
    low, high = float(values.min()), float(values.max())
    log = low > 0 and (not target.observes or not target.grows)
    y = value_scale(low, high, BOTTOM, TOP, log=log)
    x = Scale(float(min(kept[0, 0], 0.0)), float(max(kept[-1, 0], 1.0)), LEFT, RIGHT)
    path = line((x(at), y(value)) for at, value in (np.vstack([kept, kept]) if len(kept) == 1 else kept).tolist())
    found = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'style="display:block" aria-label="{escape(target.observed)} over batches">',
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="currentColor" stroke-opacity=".35"/>',
    ]
    for value in y.ticks(3):
        found.append(
            f'<text x="{LEFT - 4}" y="{number(y(value))}" dy="4" text-anchor="end" font-size="10" fill="currentColor" '
            f'fill-opacity=".7">{value:.3g}</text>'
        )
    if goal is not None:
        found.append(
            f'<path d="M{LEFT} {number(y(goal))}H{RIGHT}" fill="none" stroke="#2e8b57" stroke-dasharray="4 3"/>'
        )
    found.append(f'<path d="{path}" fill="none" stroke="#3b7dd8" stroke-width="1.5"/>')
    found.append(
        f'<text x="{RIGHT}" y="{HEIGHT - 6}" text-anchor="end" font-size="10" fill="currentColor" fill-opacity=".7">'
        f"{escape(target.observed)} over {kept[-1, 0]:.0f} batches</text></svg>"
    )
    return "".join(found)
