"""Elements of SVG charts: scales, ticks and paths. Coordinates are rounded, so that a page stays small."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.view.text import clean

# The smallest positive float, and one near the largest.
SMALLEST, LARGEST = 5e-324, 1e308
# Distance beyond its range up to which a scale maps a value, in multiples of the range; it is clipped.
FAR = 1000.0
# Values that differ by a smaller fraction cannot be told apart on a chart.
RESOLUTION = 1e-12
# Seconds between two ticks of a time axis.
_ROUND = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Scale:
    """Maps a range of values to a range of pixels, linearly or by the logarithm.

    Example::

        >>> Scale(1.0, 100.0, 0.0, 50.0, log=True)(10.0)
        25.0
    """

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        self.low, self.high, self.log = low, high, log
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low * 1e-3, SMALLEST))
        fraction = (value - low) / (high - low) if high > low else 0.5
        fraction = min(max(fraction, -FAR), FAR)
        return self._start + fraction * (self._end - self._start)

    def ticks(self, max_ticks: int = 4) -> list[float]:
        """Return round values within the range."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for digits in ((1, 2, 5), (1, 3), (1,)):
                found = [float(f"{d}e{e}") for e in range(first, last + 1) for d in digits]  # no power overflows
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= max_ticks:
                    break
            if len(found) >= 2:
                return found[:: math.ceil(len(found) / max_ticks)]
        span = self.high - self.low
        if not span > max(RESOLUTION * max(abs(self.low), abs(self.high)), 1 / LARGEST):
            return [self.low]
        size = 10.0 ** math.floor(math.log10(span / max_ticks))
        step = next(k * size for k in (1, 2, 5, 10) if span / (k * size) <= max_ticks)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def value_scale(low: float, high: float, bottom: float, top: float, *, log: bool) -> Scale:
    """Return a vertical scale for values from ``low`` to ``high``, with some room above and below.

    Args:
        low: Lowest value; positive on a logarithmic scale.
        high: Highest value.
        bottom: Pixels of the lower end.
        top: Pixels of the upper end.
        log: Whether the scale is logarithmic.
    """
    if log:
        room = math.exp(0.1 * max(math.log(high) - math.log(low), math.log(1.2)))
        return Scale(max(low / room, SMALLEST), min(high * room, LARGEST), bottom, top, log=True)
    room = 0.1 * (high - low) or 0.1
    return Scale(low - room, high + room, bottom, top)


def time_ticks(end: float, max_ticks: int = 5, start: float = 0.0) -> list[float]:
    """Return round times from ``start`` to ``end`` seconds.

    Example::

        >>> time_ticks(100.0)
        [0, 30, 60, 90]
        >>> time_ticks(130.0, start=70.0)
        [75, 90, 105, 120]
    """
    length = end - start
    step = next((s for s in _ROUND if length / s < max_ticks), 86400 * math.ceil(length / 86400 / max_ticks))
    if length < 1:
        return [math.floor(start)] if start == math.floor(start) else []
    return list(range(step * math.ceil(start / step), math.floor(end) + 1, step))


def time_words(seconds: float) -> str:
    """Return the label of a tick of a time axis.

    Example::

        >>> [time_words(s) for s in (0, 45, 90, 3600, 93600)]
        ['0', '45s', '1m30s', '1h', '1d2h']
    """
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0"


def escape(text: object) -> str:
    """Return text from anywhere, safe between tags and in a quoted attribute.

    Example::

        >>> escape('<script>"\\x1b[2J')
        '&lt;script&gt;&quot;[2J'
    """
    return html.escape(clean(str(text)), quote=True)


def number(value: float) -> str:
    """Return a coordinate, rounded to a tenth of a pixel.

    Example::

        >>> number(3.0), number(0.25), number(-0.01)
        ('3', '0.2', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return the ``d`` attribute of a path through points."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def boxes(boxes: Iterable[tuple[float, float, float, float]]) -> str:
    """Return the ``d`` attribute of a path of boxes, each ``(x, y, width, height)``."""
    return "".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h{number(-w)}z" for x, y, w, h in boxes)


def thin(points: FloatArray, max_points: int) -> FloatArray:
    """Return fewer points that look the same: the lowest and the highest of each stretch, and the last point.

    Args:
        points: Shape ``(n, 2)``, ordered by the first column.
        max_points: Approximate number of points to keep.
    """
    if len(points) <= max_points:
        return points
    edges = np.linspace(0, len(points), max_points // 2 + 1).astype(int)
    keep: set[int] = {len(points) - 1}
    for start, end in pairwise(edges.tolist()):
        values = points[start:end, 1]
        keep |= {int(start + values.argmin()), int(start + values.argmax())}
    return points[sorted(keep)]


class Timed(Protocol):
    """Something that happened at a time."""

    @property
    def time(self) -> float: ...


T = TypeVar("T", bound=Timed)


def sparse(found: Sequence[T], start: float, end: float, max_count: int) -> Sequence[T]:
    """Return fewer things in the order of time: the last of each stretch of equal length, if there are too many."""
    if len(found) <= max_count:
        return found
    width = max(end - start, 1e-9) / (max_count - 1)
    return list({int((one.time - start) / width): one for one in found}.values())


def means(levels: Sequence[tuple[float, float]], start: float, end: float, count: int) -> list[tuple[float, float]]:
    """Return the mean level over each of ``count`` stretches of equal length.

    Args:
        levels: Time from which each level holds, and the level.
        start: Start of the first stretch.
        end: End of the last one.
        count: Number of stretches.

    Example::

        >>> means([(0.0, 1.0), (1.0, 0.0), (2.0, 0.5)], 0.0, 4.0, 2)
        [(0.0, 0.5), (2.0, 0.5)]
    """
    times = np.array([time for time, _ in levels] + [end])
    sums = np.concatenate([[0.0], np.cumsum(np.diff(times) * [level for _, level in levels])])
    edges = np.linspace(start, end, count + 1)
    found = np.diff(np.interp(edges, times, sums)) / np.diff(edges)
    return list(zip(edges[:-1].tolist(), found.tolist(), strict=True))


def steps(levels: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float, float]]:
    """Return levels as stretches ``(start, end, level)`` up to ``end``, equal neighbours merged.

    Example::

        >>> steps([(0.0, 1.0), (2.0, 1.0), (3.0, 0.5)], end=5.0)
        [(0.0, 3.0, 1.0), (3.0, 5.0, 0.5)]
    """
    found: list[tuple[float, float, float]] = []
    for (time, level), until in zip(levels, [*(time for time, _ in levels), end][1:], strict=True):
        until = min(until, end)
        if found and found[-1][2] == level and found[-1][1] == time:
            found[-1] = (found[-1][0], until, level)
        elif until > time:
            found.append((time, until, level))
    return found
