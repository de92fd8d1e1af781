"""Series of a job's observations in columns, and their entries. Times are seconds of scheduler time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar, overload

import numpy as np

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.control import Asker
from lightning_core.core.reasons import Reason

Row = TypeVar("Row")
# Numbers of a row: a time, batches done, and a value.
COLUMNS = 3


class Series(Sequence[Row], Generic[Row]):
    """Rows of a time, a number of batches and a value, the oldest first.

    Args:
        kind: Makes a row of its three numbers.

    Example::

        >>> from lightning_core.history.moments import MetricPoint
        >>> series = Series(MetricPoint)
        >>> series.append(0.5, 10, 0.9)
        >>> series[-1], len(series)
        (MetricPoint(time=0.5, batches=10, value=0.9), 1)
    """

    def __init__(self, kind: Callable[[float, int, float], Row]) -> None:
        self._kind = kind
        self._numbers = array("d")

    def append(self, time: float, batches: int, value: float) -> None:
        self._numbers.extend((time, batches, value))

    def extend(self, rows: Iterable[tuple[float, float, float]]) -> None:
        self._numbers.fromlist([number for row in rows for number in row])

    def table(self) -> FloatArray:
        """Return all rows, shape ``(n, 3)``."""
        return np.array(self._numbers).reshape(-1, COLUMNS)

    def __len__(self) -> int:
        return len(self._numbers) // COLUMNS

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._at(row) for row in range(*index.indices(len(self)))]
        return self._at(range(len(self))[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._at, range(len(self)))

    def _at(self, row: int) -> Row:
        time, batches, value = self._numbers[COLUMNS * row : COLUMNS * (row + 1)]
        return self._kind(time, int(batches), value)


def means_over(values: FloatArray, window: int, breaks: Iterable[int] = ()) -> tuple[IntArray, FloatArray]:
    """Return the place of the last value of each window, and the mean over it; shape ``(m,)`` each.

    Args:
        values: The values, shape ``(n,)``.
        window: Number of consecutive values.
        breaks: Places of the values before which others were left out: no window goes over one.

    Example::

        >>> means_over(np.array([1.0, 2.0, 3.0, 5.0]), 2, breaks=[2])
        (array([1, 3]), array([1.5, 4. ]))
    """
    ends = np.arange(window - 1, len(values))
    for place in breaks:
        ends = ends[(ends < place) | (ends >= place + window - 1)]
    # Sums of a window each: in a difference of sums over all, one huge value would hide all that follow.
    return ends, values[ends[:, None] + np.arange(1 - window, 1)].mean(axis=1)


class MetricPoint(NamedTuple):
    """An observation of the target's metric."""

    time: float
    batches: int
    value: float
    """The value as it was logged."""


class Progress(NamedTuple):
    """Batches and busy seconds of a job, over all its incarnations."""

    time: float
    batches: int
    busy: float


class Holding(NamedTuple):
    """Share and devices that a job holds from this time on."""

    time: float
    share: float
    devices: tuple[int, ...]
    reason: Reason
    trains: bool
    """Whether it may train: also at share 0, beside other jobs."""
    beside: int = 0
    """Number of the group of jobs that train within the same turns; 0 if it takes turns of its own."""
    pace: float = 1.0
    """Expected throughput in that group, as a fraction of its throughput alone."""
    kind: str = ""
    """Kind of the devices; empty where all are alike."""


class Owned(NamedTuple):
    """Part of the time of its devices that counts as a job's own from this time on."""

    time: float
    share: float
    """Share of its devices: its own, or its portion of those of the jobs that train at once."""
    portion: float = 1.0
    """Part of the time in which it trains."""
    beside: tuple[str, ...] = ()
    """Names of the jobs beside which it trains."""


class Belief(NamedTuple):
    """Verdict of a job from this time on; the last one is its end."""

    time: float
    verdict: Verdict
    reason: Reason


class Remark(NamedTuple):
    """A command, or something that a worker or the pool did."""

    time: float
    by: str
    words: str

    @property
    def kind(self) -> str:
        """``command`` if a user sent it; otherwise the source: the name of a controller, ``worker``, ..."""
        return "command" if self.by == Asker.PERSON else self.by


class FinishForecast(NamedTuple):
    """Forecast, made at a time, of when the target will be reached; inf for never."""

    time: float
    early: float
    likely: float
    late: float
    like: str = ""
    """Earlier runs that it rests on, and which part of the belief in it does; empty for none."""
