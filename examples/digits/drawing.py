"""Draws the demo's bundle from a seed, by the rules of ``benchmarks.curves.bundles`` in seconds.

Rules

1. The jobs come in a random order.
2. The work of each job is drawn log-uniformly over a factor of ten. A third of the jobs is made harder: half of these
   have a target that the training never reaches, the others one that takes 1.5 to 4 times as long.
3. The work is scaled so that all reachable targets together take 1.2 times the available time, the middle one of the
   loads of ``benchmarks.curves.bundles``.
4. Deadlines are drawn uniformly over the available time, independently of the work and the order.
5. The target of a job is the lowest smoothed loss that its recording reaches within its work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_core.planning.moore_hodgson import largest_feasible_set
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import Curve

# Default available time, in seconds.
SECONDS = 25.0
LOAD = 1.2
# Earliest deadline, as a fraction of the available time.
EARLIEST = 0.08
# Ratio of the largest to the smallest work, and factors by which reachable targets are made harder.
SPREAD = 10.0
HARDER = (1.5, 4.0)
WINDOW = Settings().window


@dataclass(frozen=True)
class DrawnJob:
    """A training with its target and deadline.

    Args:
        name: Name of the training.
        target: Loss to reach.
        deadline: Seconds from submission.
        work: Seconds alone on the device until the target is reached; infinite if it never is.
    """

    name: str
    target: float
    deadline: float
    work: float


def draw(
    curves: Mapping[str, Curve],
    throughputs: Mapping[str, float],
    seed: int,
    seconds: float = SECONDS,
    load: float = LOAD,
) -> list[DrawnJob]:
    """Return the jobs of a seed, in the order of submission.

    Args:
        curves: Recorded loss curve of each training.
        throughputs: Batches per second of each training alone on this machine.
        seed: Seed of all draws.
        seconds: Available time; no deadline is later.
        load: Work of all reachable targets together, as a multiple of the available time.
    """
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.permutation(sorted(curves))]
    n = len(names)
    needs = np.exp(rng.uniform(0.0, np.log(SPREAD), n))
    hard = rng.random(n) < 1 / 3
    needs *= np.where(hard, np.where(rng.random(n) < 0.5, np.inf, rng.uniform(*HARDER, n)), 1.0)
    lowest = rng.uniform(0.7, 0.97, n)
    deadlines = seconds * rng.uniform(EARLIEST, 1.0, n)
    reachable = np.isfinite(needs)
    needs *= load * seconds / max(needs[reachable].sum(), 1.0)
    return [
        _job(curves[name], name, throughputs[name], float(need), float(low), float(deadline))
        for name, need, low, deadline in zip(names, needs, lowest, deadlines, strict=True)
    ]


def _job(curve: Curve, name: str, throughput: float, need: float, low: float, deadline: float) -> DrawnJob:
    smooth = np.minimum.accumulate(np.convolve(curve.loss, np.ones(WINDOW) / WINDOW, "valid"))
    ends = curve.position[WINDOW - 1 :]
    within = np.flatnonzero(ends <= need * throughput)
    if need * throughput > ends[-1]:
        return DrawnJob(name, low * float(smooth[-1]), deadline, np.inf)
    target = float(smooth[within[-1] if len(within) else 0])
    reached = int(np.argmax(smooth <= target))
    return DrawnJob(name, target, deadline, float(ends[reached]) / throughput)


def ceiling(jobs: Sequence[DrawnJob]) -> int:
    """Return the maximum number of targets that could be met if all the work were known in advance."""
    work, deadline = np.array([job.work for job in jobs]), np.array([job.deadline for job in jobs])
    return int(largest_feasible_set(work, deadline, 0.0).sum())
