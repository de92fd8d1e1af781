"""Reports of a training beside its losses and progress: hyper-parameters, learning rates, memory and hangs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import lt
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.limits import MAX_COUNT, MAX_HYPER_PARAMETERS, MAX_MEMORY, MAX_RATES, MAX_SHOWN_VALUE
from lightning_core.core.names import is_secret
from lightning_core.core.reasons import Reason

# Largest distance from the line through its neighbours, relative to the highest rate, at which a point is left out.
TOLERANCE = 1e-3

Points = list[tuple[int, float]]
"""Numbers of batches, growing, each with the learning rate with which the batch is trained."""
HyperParameters = tuple[tuple[str, str], ...]
HIDDEN = "(not shown)"


class LearningRates(NamedTuple):
    """The learning rates of a whole training relative to the highest of them, past and planned.

    Rates are linear between two points, and constant before the first and after the last one.
    """

    batches: tuple[int, ...]
    """Numbers of batches, growing; the first batch of a job is number 1."""
    rates: tuple[float, ...]
    """Learning rate with which each of these batches is trained, divided by the highest of all; from 0 to 1."""

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> LearningRates:
        """Return points relative to the highest rate; if no rate is above 0, all count as the highest.

        Example::

            >>> LearningRates.through([(1, 0.02), (9, 0.01)])
            LearningRates(batches=(1, 9), rates=(1.0, 0.5))
        """
        highest = max(rate for _, rate in points)
        rates = (round(min(max(rate / highest, 0.0), 1.0), 6) if highest > 0 else 1.0 for _, rate in points)
        return cls(tuple(batch for batch, _ in points), tuple(rates))

    @property
    def are_valid(self) -> bool:
        """Whether an estimator can use them: 1 to ``MAX_RATES`` points in range and in order.

        Example::

            >>> LearningRates((1, 90), (1.0, 0.0)).are_valid, LearningRates((90, 1), (1.0, 0.0)).are_valid
            (True, False)
        """
        batches, rates = self
        if not 0 < len(batches) == len(rates) <= MAX_RATES or not 0 < batches[0] <= batches[-1] <= MAX_COUNT:
            return False
        return all(map(lt, batches, batches[1:])) and all(0 <= rate <= 1 for rate in rates)


def fewer(points: Points, count: int = MAX_RATES) -> tuple[Points, float]:
    """Leave points out that are near the line through those beside them.

    Args:
        points: Points of a course.
        count: Number of points that stay at most, at least 2.

    Returns:
        The points that stay, and the mean distance of all from the line through these, relative to the highest rate.

    Example::

        >>> fewer([(1, 0.0), (2, 1.0), (3, 2.0), (4, 2.0), (9, 2.0)])
        ([(1, 0.0), (3, 2.0), (9, 2.0)], 0.0)
    """
    if len(points) < 3:
        return points, 0.0
    x, y = (np.array(column, np.float64) for column in zip(*points, strict=True))
    highest = float(np.max(np.abs(y))) or 1.0
    stays = {0, len(points) - 1}
    parts = [_farthest(x, y, 0, len(points) - 1)]
    while parts and len(stays) < count:
        distance, start, at, end = heappop(parts)
        if -distance <= TOLERANCE * highest:
            break
        stays.add(at)
        for a, b in ((start, at), (at, end)):
            if b - a > 1:
                heappush(parts, _farthest(x, y, a, b))
    left = sorted(stays)
    distance = float(np.mean(np.abs(y - np.interp(x, x[left], y[left])))) / highest
    return [points[at] for at in left], distance


def _farthest(x: FloatArray, y: FloatArray, start: int, end: int) -> tuple[float, int, int, int]:
    """Return the point between two that is farthest from the line through them, with its distance, negative."""
    line = y[start] + (y[end] - y[start]) * (x[start : end + 1] - x[start]) / (x[end] - x[start])
    distance = np.abs(y[start : end + 1] - line)
    at = int(np.argmax(distance))
    return -float(distance[at]), start, start + at, end


class MemoryUse(NamedTuple):
    """Memory of a training on each of its devices, in bytes: the maximum over its ranks.

    On a GPU it is the memory reserved by the allocator; on CPUs the proportional set size (PSS), which divides shared
    pages among their processes.
    """

    peak: int
    """Peak since its beginning."""
    held: int
    """Bytes that it keeps while it is held: less than its peak if it moves its state to the host's memory."""

    @property
    def is_valid(self) -> bool:
        """Whether both values are possible."""
        return 0 < self.peak <= MAX_MEMORY and 0 <= self.held <= self.peak


class Hang(NamedTuple):
    """A step that takes far longer than any before it while its process answers; or ranks that have parted."""

    seconds: float
    """Seconds that the step had taken when it was noticed."""
    longest: float = 0.0
    """Seconds of the longest earlier step of its kind; 0 if it is the first."""
    ranks: int = 1
    """Ranks that wait for each other; 1 if it is a step of one of them."""

    @property
    def reason(self) -> Reason:
        """The hang as a reason."""
        if self.ranks > 1:
            return Reason("ranks_wait", (self.seconds, self.ranks))
        return Reason("hung", (self.seconds, self.longest)) if self.longest else Reason("hung_first", (self.seconds,))


"""Names, with a dot between the keys that lead to a value, each with its value as text."""

"""Stands for a value whose name is like that of a secret."""


def hyper_parameters(config: Mapping[Any, Any], *, is_config: bool = False) -> HyperParameters:
    """Return the values of a config: numbers, texts and flags, and lists of them; of anything else its type.

    Args:
        config: Arguments by name, nested at will; a key may be anything.
        is_config: Whether arguments are those below ``init_args`` alone, as in the config of a launched job.

    Returns:
        At most :data:`~lightning_core.core.limits.MAX_HYPER_PARAMETERS`, each value shortened.

    Example::

        >>> hyper_parameters({"lr": 0.1, "sizes": [8, 8], "opt": {"name": "sgd"}, "api_key": "abc", "net": object()})
        (('lr', '0.1'), ('sizes', '8, 8'), ('opt.name', 'sgd'), ('api_key', '(not shown)'), ('net', '<object>'))
    """
    root = () if is_config else ("init_args",)
    return bounded(_flat(config, root, root))


def bounded(rows: Iterable[Sequence[Any]]) -> HyperParameters:
    """Return rows of names and values as texts, bounded in number and length.

    Raises:
        ValueError: If a row is not a name and a value.
    """
    found: list[tuple[str, str]] = []
    for name, value in rows:
        if len(found) == MAX_HYPER_PARAMETERS:
            break
        found.append((_short(str(name)), _short(str(value))))
    return tuple(found)


def _short(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # half of a pair is no text that can be sent
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 1] + "…"


def _flat(value: Any, path: tuple[Any, ...], root: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    name = ".".join(str(part) for part in path[len(root) :] if part != "init_args")
    if path != root and is_secret(path):
        yield name, HIDDEN
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, (*path, key), root)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping | list | tuple) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, (*path, index), root)
    elif isinstance(value, list | tuple):
        yield name, ", ".join(map(_words, value))
    else:
        yield name, _words(value)


def _words(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return str(value) if plain else f"<{type(value).__name__}>"
