"""Jobs with a loss to reach: a recorded curve, a loss on it, and a start in a recorded market."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.curves.bundles import WINDOW, Recording
from benchmarks.curves.histories import earlier_runs
from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.estimators import Posterior
from lightning_core.estimators.above_floor import give_history
from lightning_core.parts.market.spot_market import Market

# Part of the recording up to the target: the training would end by itself with the recording.
REACH = 0.1, 0.7
# A recording learns if the loss at its target is at most this part of its first one.
LEARNS = 0.95
# Earlier runs of its task that a job may have.
RUNS = 3
# Intervals that the market is known before a job begins.
KNOWN_BEFORE = 96


class LossJob(NamedTuple):
    """A job and the truth about it."""

    curve: str
    needs: float
    """Batches that reach its loss."""
    bound: float
    """Batches after which its training ends by itself."""
    seen: FloatArray
    """Batches done when each of its loss cells is reported."""
    forecasts: FloatArray
    """Quantiles of the batches that it needs, by number of cells seen, shape ``(cells + 1, 20)``; NaN for none."""
    with_history: FloatArray
    """The same if earlier runs of its task are known."""
    market: Market
    start: int
    """Interval of the market in which it begins."""


def draw(pool: Sequence[Recording], markets: Sequence[Market], count: int, intervals: int, seed: int) -> list[LossJob]:
    """Draw jobs; each recording and each market is as often among them as any other, within one.

    Args:
        pool: Recordings of curves; those that do not learn are left out.
        markets: Recordings of markets.
        count: Number of jobs, at most.
        intervals: Intervals that each has from its start.
        seed: Seed of all draws.
    """
    random = np.random.default_rng(seed)
    order = [int(at) for _ in range(math.ceil(2 * count / len(pool))) for at in random.permutation(len(pool))]
    jobs = list[LossJob]()
    for number, at in enumerate(order):
        recording, market = pool[at], markets[number % len(markets)]
        cell = math.ceil(np.exp(random.uniform(*np.log(REACH))) * len(recording.loss))
        start = int(random.integers(KNOWN_BEFORE, len(market) - intervals))
        target = float(recording.smooth[max(cell, WINDOW) - 1])
        if len(jobs) < count and target <= LEARNS * recording.smooth[WINDOW - 1]:
            cells = int(np.argmax(recording.smooth <= target)) + 1
            runs = earlier_runs(recording, pool, RUNS, random)
            seen, ends_at = recording.position[:cells].astype(float), float(recording.position[-1])
            alone, with_runs = (_forecasts(recording, cells, target, given) for given in ((), runs))
            jobs.append(LossJob(recording.curve.name, float(seen[-1]), ends_at, seen, alone, with_runs, market, start))
    return jobs


def _forecasts(recording: Recording, cells: int, target: float, runs: Sequence[EarlierRun]) -> FloatArray:
    """Return the forecasts of a job by number of cells seen."""
    bank, row, forecasts = Posterior(), np.array([0]), np.full((cells + 1, len(LEVELS)), np.nan)
    bank.grow(1)
    if (rates := recording.curve.learning_rates()) is not None:
        bank.schedule(0, np.array(rates.batches, float), np.array(rates.rates))
    give_history(bank, 0, runs)
    for k in range(cells + 1):
        if k:
            bank.observe(row, recording.position[k - 1 : k].astype(float), recording.loss[k - 1 : k])
        forecasts[k] = np.maximum(bank.first_passage(row, np.array([target]))[0], 1.0)
    return forecasts
