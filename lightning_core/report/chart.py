"""The chart of a job: its loss on the way to its target, with forecasts, verdicts, and its share."""

from __future__ import annotations

import math

import numpy as np

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.core.durations import format_duration, format_end, is_in_reach
from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import FinishForecast
from lightning_core.report.svg import (
    Scale,
    boxes,
    escape,
    line,
    means,
    number,
    sparse,
    steps,
    thin,
    time_ticks,
    time_words,
    value_scale,
)
from lightning_core.view.job_line import SYMBOLS

# The chart is as wide as a narrow phone, so that its text is hardly ever scaled down.
WIDTH, HEIGHT = 400, 262
LEFT, RIGHT = 54, 392
TOP, BOTTOM = 26, 158
STRIP, STRIP_HEIGHT = 174, 12
SHARE_TOP, SHARE_BOTTOM = 196, 230
TITLE = 96
CURVE_POINTS, RAW_POINTS, FAN_POINTS = 300, 240, 14
# Boxes of shares; verdicts, commands and faults in a row; earlier deadlines.
MAX_BOXES, MAX_MARKS, MAX_DEADLINES = 400, 60, 20

# Classes of the style sheet.
CLASSES = {verdict: str(verdict).replace(" ", "-") for verdict in Verdict}


def chart(
    job: JobHistory, label: str, last: float, key: int, *, width: int = WIDTH, span: tuple[float, float] | None = None
) -> str:
    """Return an inline SVG.

    Args:
        job: Job to draw.
        label: Name of the job on the page.
        last: Time of the last event, at which the chart of a job that has not ended stops.
        key: Number that is unique on the page.
        width: Width in pixels, at least 400.
        span: Seconds from the submission between which it is drawn; None for all of it.
    """
    return _Chart(job, label, last, key, width, span).draw()


class _Chart:
    def __init__(
        self, job: JobHistory, label: str, last: float, key: int, width: int, span: tuple[float, float] | None
    ) -> None:
        self.job, self.label, self.key = job, label, key
        self.width, self.right = width, width - (WIDTH - RIGHT)
        self.start = job.submitted
        self.end = max((last if job.ended is None else job.ended) - self.start, 1e-3)
        deadline = job.deadline - self.start  # inf without one
        # A deadline long after the end would squeeze the rest: then an arrow points to it.
        room = 0.0 if deadline == math.inf else min(1.05 * deadline, 1.8 * self.end)
        low, high = (0.0, max(1.04 * self.end, room)) if span is None else span
        self.x = Scale(low, high, LEFT, self.right)
        self.raw, self.curve = job.seen(), job.curve()
        if not len(self.curve):  # fewer observations than the window
            self.curve = self.raw
        self.whole = self.curve
        if span is not None:
            self.raw, self.curve = self._within(self.raw), self._within(self.curve)
        self.y = self._y_scale()

    def draw(self) -> str:
        job = self.job
        counts = {"observation": len(self.raw), "forecast": len(job.forecasts), "verdict": len(job.beliefs)}
        desc = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())
        parts = [
            f'<svg class="chart" viewBox="0 0 {self.width} {HEIGHT}" role="img" '
            f'aria-labelledby="t{self.key} d{self.key}">',
            f'<title id="t{self.key}">{escape(self.label)}: {self._axis_title()} over time</title>',
            f'<desc id="d{self.key}">{escape(desc)}. {escape(job.reason)}.</desc>',
            *self._axes(),
            # An inner box clips its content.
            f'<svg x="{LEFT}" y="{TOP}" width="{self.right - LEFT}" height="{BOTTOM - TOP}" '
            f'viewBox="{LEFT} {TOP} {self.right - LEFT} {BOTTOM - TOP}">',
            *self._fans(),
            *self._lines(),
            "</svg>",
            *self._deadlines(),
            # So does this one: a chart may be of a part of the time.
            f'<svg x="{LEFT}" y="{BOTTOM}" width="{self.right - LEFT}" height="{SHARE_BOTTOM - BOTTOM}" '
            f'viewBox="{LEFT} {BOTTOM} {self.right - LEFT} {SHARE_BOTTOM - BOTTOM}">',
            *self._strip(),
            *self._share(),
            "</svg></svg>",
        ]
        return "".join(parts)

    def _within(self, points: FloatArray) -> FloatArray:
        """Return the points within the span, and one on each side, to which a line leads."""
        times = points[:, 0] - self.start
        first, last = np.searchsorted(times, self.x.low), np.searchsorted(times, self.x.high, "right")
        return points[max(int(first) - 1, 0) : int(last) + 1]

    def _axis_title(self) -> str:
        target = self.job.job.target
        return escape(target.axis)

    def _y_scale(self) -> Scale:
        goal = self.job.goal
        values = np.append(self.curve[:, 1], goal) if len(self.curve) else np.array([goal])
        low, high = float(values.min()), float(values.max())
        if not self.job.job.target.observes:
            return Scale(0.0, 1.08 * high, BOTTOM, TOP)
        return value_scale(low, high, BOTTOM, TOP, log=low > 0 and not self.job.job.target.grows)

    def _axes(self) -> list[str]:
        found = []
        for value in self.y.ticks():
            y = number(self.y(value))
            found.append(f'<path class="grid" d="M{LEFT} {y}H{self.right}"/>')
            found.append(f'<text class="tick" x="{LEFT - 5}" y="{y}" dy="4" text-anchor="end">{value:.4g}</text>')
        for value in time_ticks(self.x.high, max(5, self.width // 110), self.x.low):
            x = number(self.x(value))
            found.append(f'<path class="grid" d="M{x} {TOP}V{SHARE_BOTTOM}"/>')
            anchor = "start" if value == self.x.low else "middle" if self.x(value) < self.right - 16 else "end"
            found.append(
                f'<text class="tick" x="{x}" y="{SHARE_BOTTOM + 16}" text-anchor="{anchor}">{time_words(value)}</text>'
            )
        found.append(f'<text class="tick" x="{LEFT}" y="{TOP - 10}">{self._axis_title()}</text>')
        for words, height in (("verdict", STRIP + 10), ("share", SHARE_BOTTOM - 12)):
            found.append(f'<text class="tick" x="{LEFT - 5}" y="{height}" text-anchor="end">{words}</text>')
        found.append(f'<path class="axis" d="M{LEFT} {SHARE_BOTTOM}H{self.right}"/>')
        return found

    def _lines(self) -> list[str]:
        goal = number(self.y(self.job.goal))
        found = [f'<path class="goal" d="M{LEFT} {goal}H{self.right}"/>']
        if len(self.raw) > len(self.curve):
            found.append(f'<path class="raw" d="{self._path(self.raw, RAW_POINTS)}"/>')
        if len(self.curve):
            found.append(f'<path class="curve" d="{self._path(self.curve, CURVE_POINTS)}"/>')
        for held in [held for held in self.job.deadlines[:-1] if held[1] < math.inf][-MAX_DEADLINES:]:
            found.append(f'<path class="deadline old" d="M{number(self.x(held[1] - self.start))} {TOP}V{BOTTOM}"/>')
        return found

    def _path(self, points: FloatArray, max_points: int) -> str:
        kept = thin(points, max_points)
        if len(kept) == 1:
            kept = np.vstack([kept, kept])
        return line((self.x(t - self.start), self.y(v)) for t, v in kept.tolist())

    def _deadlines(self) -> list[str]:
        at = self.job.deadline - self.start
        if at == math.inf:
            return []
        words = f"deadline {format_duration(at)}"
        if not self.x.low <= at <= self.x.high:
            words = f"{words} →" if at > self.x.high else f"← {words}"
            return [f'<text class="mark" x="{self.right}" y="{TOP - 10}" text-anchor="end">{words}</text>']
        x = self.x(at)
        anchor = "end" if x > (LEFT + self.right) / 2 else "start"
        beside = x if anchor == "end" else max(x, LEFT + TITLE)  # the title of the axis
        return [
            f'<path class="deadline" d="M{number(x)} {TOP - 6}V{SHARE_BOTTOM}"/>',
            f'<text class="mark" x="{number(beside)}" y="{TOP - 10}" text-anchor="{anchor}">{words}</text>',
        ]

    def _fans(self) -> list[str]:
        if not len(self.whole):
            return []
        found = []
        for k, made in enumerate(self.job.forecasts):
            value = float(np.interp(made.time, self.whole[:, 0], self.whole[:, 1]))
            edges = [self._path_to_goal(made.time, value, end) for end in (made.early, made.late)]
            # The newest forecast stands out.
            shade = 0.05 + 0.13 * (k + 1) / len(self.job.forecasts)
            limit = self.job.deadline - self.start
            words = f"forecast after {format_duration(made.time - self.start)}: {_ends(made, self.start, limit)}"
            if made.like:
                words += f", {made.like}"
            found.append(
                f'<path class="fan" fill-opacity="{shade:.2f}" d="{line([*edges[0], *reversed(edges[1])])}z">'
                f"<title>{escape(words)}</title></path>"
            )
            if made.likely < math.inf:
                found.append(f'<path class="likely" d="{line(self._path_to_goal(made.time, value, made.likely))}"/>')
            found.append(f'<circle class="asked" cx="{number(self.x(made.time - self.start))}" '
                         f'cy="{number(self.y(value))}" r="2"/>')  # fmt: skip
        return found

    def _path_to_goal(self, time: float, value: float, end: float) -> list[tuple[float, float]]:
        """Return the path in pixels from a value to the goal, which is forecast to be reached at ``end``.

        A loss follows the power law in training time through both points, as the estimators assume; a target that is
        not above zero is approached in a straight line.
        """
        job, target = self.job, self.job.job.target
        origin = job.progress[0].time if job.progress else self.start
        until = min(max(end, time + 1e-3), self.start + 1.05 * self.x.high)
        times = np.linspace(time, max(until, time + 1e-3), FAN_POINTS)
        if target.observes and end == math.inf:
            values = np.full(len(times), value)
        elif target.observes and target.falling(value) > target.threshold > 0 and time > origin:
            # In logarithms: a ratio of losses may be too large for a float.
            here, there = math.log(target.falling(value)), math.log(target.threshold)
            far = math.log(max(end - origin, time - origin + 1e-3) / (time - origin))
            falling = np.maximum(here + (there - here) * np.log((times - origin) / (time - origin)) / far, there)
            values = np.array([target.logged(v) for v in np.exp(falling).tolist()])
        else:
            fraction = np.clip((times - time) / max(end - time, 1e-3), 0.0, 1.0)
            values = value + fraction * (job.goal - value)
        return [(self.x(t - self.start), self.y(v)) for t, v in zip(times.tolist(), values.tolist(), strict=True)]

    def _strip(self) -> list[str]:
        """Return the verdicts as a band of colours and symbols, with marks of commands and faults above it."""
        found = []
        job = self.job
        end = self.start + self.end
        beliefs = sparse(job.beliefs, self.start, end, MAX_MARKS)
        untils = [*(belief.time for belief in beliefs), end][1:]
        for belief, until in zip(beliefs, untils, strict=True):
            left, right = (min(max(self.x(t - self.start), LEFT), self.right) for t in (belief.time, until))
            if left == right and not self.x.low <= belief.time - self.start <= self.x.high:
                continue
            last = belief is job.beliefs[-1] and job.ended is not None
            width = max(STRIP_HEIGHT + 4.0 if last else 1.0, right - left)
            left = min(left, self.right - width)
            words = f"{belief.verdict} after {format_duration(belief.time - self.start)}: {belief.reason}"
            found.append(
                f'<g class="{CLASSES[belief.verdict]}"><rect x="{number(left)}" y="{STRIP}" width="{number(width)}" '
                f'height="{STRIP_HEIGHT}"/><title>{escape(words)}</title>'
            )
            if width >= STRIP_HEIGHT:
                found.append(f'<text x="{number(left + width / 2)}" y="{STRIP + 10}">{SYMBOLS[belief.verdict]}</text>')
            found.append("</g>")
        for remark in sparse(job.remarks, self.start, end, MAX_MARKS):
            x = self.x(remark.time - self.start)
            words = f"{remark.kind}, after {format_duration(remark.time - self.start)}: {remark.words}"
            found.append(f'<path class="remark" d="M{number(x)} {STRIP - 2}l-4.5 -8h9z">'
                         f"<title>{escape(words)}</title></path>")  # fmt: skip
        for fault in sparse(job.faults, self.start, end, MAX_MARKS):
            x = self.x(fault.time - self.start)
            words = f"fault, after {format_duration(fault.time - self.start)}: {fault}"
            found.append(f'<path class="fault" d="M{number(x - 4)} {STRIP - 10}l8 8m0 -8l-8 8">'
                         f"<title>{escape(words)}</title></path>")  # fmt: skip
        return found

    def _share(self) -> list[str]:
        """Return the share that the job held, 0 to 1, lighter while it trained beside others."""
        owned = self.job.owned
        alone = [(one.time, 0.0 if one.beside else one.share) for one in owned]
        shared = [(one.time, one.share if one.beside else 0.0) for one in owned] if any(o.beside for o in owned) else []
        return self._areas(alone, "share") + self._areas(shared, "share beside")

    def _areas(self, levels: list[tuple[float, float]], kind: str) -> list[str]:
        end = self.start + self.end
        level = Scale(0.0, 1.0, SHARE_BOTTOM, SHARE_TOP)
        held = steps(levels if len(levels) <= MAX_BOXES else means(levels, self.start, end, MAX_BOXES), end)
        areas = [
            (
                self.x(a - self.start),
                level(share),
                self.x(b - self.start) - self.x(a - self.start),
                SHARE_BOTTOM - level(share),
            )
            for a, b, share in held
            if share > 0
        ]
        return [f'<path class="{kind}" d="{boxes(areas)}"/>'] if areas else []


def _ends(made: FinishForecast, start: float, limit: float) -> str:
    early, likely, late = (format_end(end - start, limit) for end in (made.early, made.likely, made.late))
    if not is_in_reach(made.likely - start, limit):
        return f"its target is {likely}"
    return f"reaches its target after {likely}" + (f" ({early} to {late})" if early != late else "")
