"""Bundles of jobs drawn from recorded loss curves, and the number of them that a clairvoyant scheduler could meet.

A job is a recording, a target loss on it, a throughput and a deadline. The target is the recording's own smoothed loss
at a random position, so that the time to reach it is real; the throughput makes that a random time. Then a third of the
jobs are made hard, half of these impossible.

There are three ways to draw deadlines. ``sequence`` is LARA's: jobs in a random order, each deadline the sum of the
work so far, so that earliest deadline first would just succeed before some jobs were made hard. ``terms`` is LaiRA's:
short, middle and long terms as 2 : 6 : 2, the middle ones closer together, the short ones harder and the long ones
easier. ``load`` favours no policy: deadlines are independent of the work, and the feasible work is 0.8, 1.2 or 2 times
the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.targets import LossTarget
from lightning_core.planning.moore_hodgson import largest_feasible_set
from lightning_core.simulation.recorded_curves import Curve
from lightning_core.simulation.scenario import SimulatedJob

# Cells whose mean must reach a target: the scheduler's own window.
WINDOW = 5
MAX_CELLS = 1000
MIN_CELLS = 150
# Minimum recordings of a domain for pure bundles.
MIN_PURE = 11
# Ways to draw deadlines, by turns: the papers' two, and ``load``, which favours no policy.
KINDS: tuple[str, ...] = ("sequence", "load 0.8", "terms", "load 1.2", "sequence", "load 2.0")


class Recording(NamedTuple):
    """A curve in cells, ready for drawing."""

    curve: Curve
    position: FloatArray
    loss: FloatArray
    smooth: FloatArray
    """The lowest mean over a window so far, inf before the first."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Jobs and the truth about them.

    Args:
        jobs: Jobs for a simulation.
        work: True seconds alone until each target is reached, inf if never, shape ``(n,)``.
        kind: Kind of its deadlines.
        recordings: Recording of each job.
    """

    jobs: tuple[SimulatedJob, ...]
    work: FloatArray
    kind: str
    recordings: tuple[Recording, ...]

    @property
    def ceiling(self) -> int:
        """Return the number of jobs that a clairvoyant scheduler could meet: the upper bound of every policy."""
        deadline = np.array([one.job.deadline for one in self.jobs])
        return int(largest_feasible_set(self.work, deadline, 0.0).sum())


def recordings(curves: Sequence[Curve]) -> list[Recording]:
    """Return the curves that are long enough and have no restarts, in cells."""
    cut = [_in_cells(curve) for curve in curves if not curve.restarts and len(curve.loss) >= MIN_CELLS]
    return [one for one in cut if len(one.loss) >= MIN_CELLS // 2]


def draw(pool: Sequence[Recording], size: int, *, pure: bool, kind: str, seed: int, schedule: bool = False) -> Bundle:
    """Draw one bundle.

    Args:
        pool: Recordings to draw from, without replacement while they last.
        size: Number of jobs.
        pure: Whether all are of one domain.
        kind: One of :data:`KINDS`.
        seed: Seed of all draws.
        schedule: Whether the jobs report the learning rates of their recordings, where these are known.
    """
    rng = np.random.default_rng(seed)
    if pure:
        pool = _one_domain(pool, rng)
    chosen = rng.choice(len(pool), size, replace=size > len(pool))
    reach = np.exp(rng.uniform(np.log(0.06), np.log(0.7), size))  # part of the recording up to the target
    nominal = np.exp(rng.uniform(np.log(10.0), np.log(100.0), size))  # seconds to get there
    deadline, harder = _deadlines(kind, nominal, rng)
    jobs, work = [], np.empty(size)
    for k, (at, part) in enumerate(zip(chosen.tolist(), reach.tolist(), strict=True)):
        recording = pool[at]
        cell = _passage(recording, _loss_at(recording, part))
        throughput = float(recording.position[cell - 1]) / nominal[k]
        target = _target(recording, part, harder[k], rng)
        passage = _passage(recording, target)
        work[k] = recording.position[passage - 1] / throughput if passage else np.inf
        job = Job(f"job{k}", float(deadline[k]), LossTarget("loss", target), on_miss=OnMiss.STOP)
        rates = recording.curve.learning_rates() if schedule else None
        jobs.append(SimulatedJob(job, recording.position, recording.loss, throughput, learning_rates=rates))
    if kind.startswith("load"):  # the time span follows from the feasible work
        span = work[np.isfinite(work)].sum() / float(kind.split()[1])
        jobs = [_due(one, part * max(span, 1.0)) for one, part in zip(jobs, deadline.tolist(), strict=True)]
    return Bundle(tuple(jobs), work, kind, tuple(pool[at] for at in chosen.tolist()))


def draw_at(pool: Sequence[Recording], throughputs: Sequence[float], *, kind: str, seed: int, seconds: float) -> Bundle:
    """Draw a bundle of all the recordings at given throughputs, such as those of a machine on which they are trained.

    Targets and deadlines follow the same rules as those of :func:`draw`; what is drawn is the work, and the targets
    follow from it.

    Args:
        pool: The recordings, each of which becomes a job of its name.
        throughputs: Batches per second of each alone.
        kind: ``sequence`` or ``terms``.
        seed: Seed of all draws.
        seconds: Nominal work of all jobs together, in seconds.
    """
    rng = np.random.default_rng(seed)
    size = len(pool)
    nominal = np.exp(rng.uniform(0.0, np.log(10.0), size))
    nominal *= seconds / nominal.sum()
    length = np.array([one.position[-1] / rate for one, rate in zip(pool, throughputs, strict=True)])
    reach = np.clip(nominal / length, 0.06, 0.7)
    deadline, harder = _deadlines(kind, reach * length, rng)
    jobs, work = [], np.empty(size)
    for k, (recording, rate) in enumerate(zip(pool, throughputs, strict=True)):
        target = _target(recording, float(reach[k]), float(harder[k]), rng)
        passage = _passage(recording, target)
        work[k] = recording.position[passage - 1] / rate if passage else np.inf
        job = Job(recording.curve.name, float(deadline[k]), LossTarget("loss", target), on_miss=OnMiss.STOP)
        jobs.append(SimulatedJob(job, recording.position, recording.loss, rate))
    return Bundle(tuple(jobs), work, kind, tuple(pool))


def _in_cells(curve: Curve) -> Recording:
    """Return the curve in cells as a worker reports them: each closes after a fixed number of batches."""
    gaps = np.diff(curve.position, prepend=0.0)
    every = max(float(np.median(gaps)), float(curve.position[-1]) / MAX_CELLS) * (1 - 1e-9)
    ends, last = [], 0.0
    for row, position in enumerate(curve.position.tolist()):
        if position - last >= every:
            ends.append(row)
            last = position
    starts = np.concatenate([[0], np.array(ends[:-1], np.int64) + 1])
    rows = np.array(ends) + 1 - starts
    loss = np.add.reduceat(curve.loss[: ends[-1] + 1], starts) / rows
    return Recording(curve, curve.position[ends], loss, smoothed(loss))


def smoothed(loss: FloatArray) -> FloatArray:
    """Return the lowest mean over a window of cells so far, inf before the first; shape ``(n,)``."""
    smooth = np.full(len(loss), np.inf)
    # Summed as the scheduler sums them, so that both agree to the bit.
    windows = np.lib.stride_tricks.sliding_window_view(loss, WINDOW).tolist()
    smooth[WINDOW - 1 :] = np.minimum.accumulate([sum(window) / WINDOW for window in windows])
    return smooth


def _one_domain(pool: Sequence[Recording], rng: np.random.Generator) -> list[Recording]:
    domains: dict[str, list[Recording]] = {}
    for one in pool:
        domains.setdefault(one.curve.domain, []).append(one)
    large = sorted(name for name, many in domains.items() if len(many) >= MIN_PURE)
    if not large:
        large = [max(sorted(domains), key=lambda name: len(domains[name]))]
    return domains[large[int(rng.integers(len(large)))]]


def _passage(recording: Recording, target: float) -> int:
    """Return the cells until the target is reached; 0 if never."""
    below = recording.smooth <= target
    return int(np.argmax(below)) + 1 if below[-1] else 0


def _loss_at(recording: Recording, part: float) -> float:
    at = max(int(part * len(recording.loss)), WINDOW) - 1
    return float(recording.smooth[min(at, len(recording.loss) - 1)])


def _never(recording: Recording, rng: np.random.Generator) -> float:
    return float(rng.uniform(0.7, 0.97) * recording.loss.min())


def _target(recording: Recording, part: float, harder: float, rng: np.random.Generator) -> float:
    """Return the loss at a part of the recording, ``harder`` times as far; one that is never reached for inf.

    A recording that hardly learns always has a target that it never reaches.
    """
    learns = _loss_at(recording, part) <= 0.95 * recording.smooth[WINDOW - 1]
    if not learns or part * harder > 1.0:
        return _never(recording, rng)
    return _loss_at(recording, part * harder)


def _deadlines(kind: str, nominal: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return deadlines in seconds (for a load: parts of the span), and factors of the distance to each target."""
    n = len(nominal)
    order = rng.permutation(n)
    deadline, harder = np.empty(n), np.ones(n)
    hard = rng.random(n) < 1 / 3
    how = np.where(rng.random(n) < 0.5, np.inf, rng.uniform(1.5, 4.0, n))
    if kind.startswith("load"):
        return rng.uniform(0.08, 1.0, n), np.where(hard, how, 1.0)
    deadline[order] = np.cumsum(nominal[order]) * rng.uniform(0.7, 1.1, n)
    if kind == "terms":
        rank = np.empty(n)
        rank[np.argsort(deadline, kind="stable")] = (np.arange(n) + 0.5) / n
        short, long = rank < 0.2, rank > 0.8
        middle = ~short & ~long
        first = deadline[short].max() if short.any() else 0.0
        deadline[middle] = first + 0.8 * (deadline[middle] - first)
        hard = np.where(short, rng.random(n) < 0.5, middle & (rng.random(n) < 1 / 3))
        harder[long] = 0.5
    return deadline, np.where(hard, how, harder)


def _due(one: SimulatedJob, deadline: float) -> SimulatedJob:
    return replace(one, job=replace(one.job, deadline=deadline))
