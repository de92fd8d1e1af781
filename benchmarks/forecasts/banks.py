"""Measure an update of 10,000 dynamic Kalman filters with one cell each: the bank at once, filterpy one by one.

Both observe the same cells, alternately, so that other load affects both. There are only as many filterpy filters as
fit in the caches, and their time is scaled up, which is in its favour.
"""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
from filterpy.kalman import KalmanFilter

from benchmarks.common import Figures, Size, main, table
from lightning_core.core.arrays import FloatArray
from lightning_core.estimators.kalman import Kalman

ROWS = 10_000
FILTERS = 1_000


def like(bank: Kalman) -> KalmanFilter:
    """Return a filterpy filter in the initial state of a row of the bank; the first loss is 1, whose logarithm is 0."""
    states = 2 * bank.order + 2
    one = KalmanFilter(dim_x=states, dim_z=1)
    one.F, one.Q = np.kron(bank.transition, np.eye(2)), np.kron(bank.noise, np.eye(2))
    one.R *= bank.measurement
    one.H[0, 1] = 1.0
    return one


def step(filters: list[KalmanFilter], position: float, losses: list[float]) -> None:
    """Update each filter with its loss."""
    log_position = math.log(position)
    for one, loss in zip(filters, losses, strict=True):
        one.H[0, 0] = log_position
        one.predict()
        one.update(math.log(loss))


def measure_banks(repeats: int, seed: int = 0) -> dict[str, float]:
    """Return medians over ``repeats`` cells.

    Returns:
        ``bank_ms_10000``: milliseconds for one cell of each of 10,000 jobs. ``bank_vs_filterpy``: how many times as
        long filterpy takes, row by row.

    Raises:
        RuntimeError: If the two do not reach the same state.
    """
    bank = Kalman()
    bank.grow(ROWS)
    filters = [like(bank) for _ in range(FILTERS)]
    rows = np.arange(ROWS)
    draw = np.random.default_rng(seed)
    slopes = draw.uniform(0.2, 0.9, ROWS)
    at_once, one_by_one = [], []
    for number in range(repeats + 1):
        position = 10.0 * number + 1.0
        losses: FloatArray = position**-slopes * (draw.lognormal(0, 0.05, ROWS) if number else 1.0)
        start = time.perf_counter()
        bank.observe(rows, np.full(ROWS, position), losses)
        at_once.append(time.perf_counter() - start)
        some = losses[:FILTERS].tolist()
        start = time.perf_counter()
        step(filters, position, some)
        one_by_one.append((time.perf_counter() - start) * ROWS / FILTERS)
    states = np.stack([one.x[:, 0] for one in filters])
    if not np.allclose(bank.belief(rows[:FILTERS])[0], states, rtol=1e-7, atol=1e-10):
        raise RuntimeError("the bank and filterpy must reach the same states, and they differ")
    together = statistics.median(at_once[1:])
    return {"bank_ms_10000": together * 1e3, "bank_vs_filterpy": statistics.median(one_by_one[1:]) / together}


def measure(size: Size) -> Figures:
    """Print and return both times."""
    figures = measure_banks({"quick": 11, "default": 31, "full": 101}[size])
    print("Update of 10,000 six-state filters with one cell each")
    table(["bank, ms", "filterpy, times as long"], [list(figures.values())])
    return dict(figures)


if __name__ == "__main__":
    main("forecasts.banks", __doc__.splitlines()[0], measure)
