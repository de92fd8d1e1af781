"""Resamples a recording to intervals of a given length."""

from __future__ import annotations

import math

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray


def resample(
    times: FloatArray, counts: IntArray, prices: FloatArray | None, interval: float, end: float, gap: float = math.inf
) -> tuple[IntArray, FloatArray | None]:
    """Return the lowest count and the highest price of each whole interval; a value holds until the next one.

    Args:
        times: Seconds since the first record, not falling, shape ``(n,)``.
        counts: Count from each time on.
        prices: Price from each time on, if there are any.
        interval: Seconds of an interval.
        end: End of the recording, in seconds.
        gap: Seconds after which a value no longer holds: the count is 0 then.

    Raises:
        ValueError: If ``interval`` is not positive, or the recording is shorter than one.
    """
    if not interval > 0:
        raise ValueError(f"interval must be positive, got {interval}")
    number = int((end + 1e-6) / interval)
    if not number:
        raise ValueError(f"the recording must last an interval of {interval:g} s, got {end:g} s")
    lowest, highest = np.zeros(number, np.int64), None if prices is None else np.zeros(number)
    for k in range(number):
        begin, stop = k * interval, (k + 1) * interval
        first = int(np.searchsorted(times, begin, side="right")) - 1
        last = int(np.searchsorted(times, stop, side="left"))
        held = np.append(times[first:last], stop)
        lost = (np.diff(held) > gap).any()
        lowest[k] = 0 if lost else counts[first:last].min()
        if highest is not None and prices is not None:
            highest[k] = prices[first:last].max()
    return lowest, highest
