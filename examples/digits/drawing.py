"""The bundle that a seed draws for the demo, by the rule of ``benchmarks.bundles`` in seconds.

Rule

1. The jobs come in a random order.
2. What each needs alone is drawn evenly on a log scale over a factor of ten. A third of the jobs is made harder: half
   of these ask for a loss that the training never reaches, the others for one that takes 1.5 to 4 times as long.
3. The needs are scaled together: what can be reached adds up to 1.2 times the time there is. That is the middle one of
   the loads of ``benchmarks.bundles``.
4. Deadlines are drawn evenly over the time there is, whatever a job needs and whenever it comes.
5. The target of a job is the lowest smoothed loss that its recording shows up to what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_core.planning.moore_hodgson import largest_feasible_set
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import Curve

# The time there is, unless told.
SECONDS = 25.0
LOAD = 1.2
# Parts of the time there is.
EARLIEST = 0.08
SPREAD = 10.0
HARDER = (1.5, 4.0)
WINDOW = Settings().window


@dataclass(frozen=True)
class DrawnJob:
    """A training with what it must reach, and by when.

    Args:
        name: of the training.
        target: loss to reach.
        deadline: seconds from submission.
        work: seconds alone until the target is reached; inf if never.
    """

    name: str
    target: float
    deadline: float
    work: float


def draw(
    curves: Mapping[str, Curve], speeds: Mapping[str, float], seed: int, seconds: float = SECONDS
) -> list[DrawnJob]:
    """The jobs of a seed, in the order in which they come.

    Args:
        curves: recording of each training alone.
        speeds: batches per second of each, on this machine.
        seed: of all that is drawn.
        seconds: the time there is, that of the last deadline at most.
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
    needs *= LOAD * seconds / max(needs[reachable].sum(), 1.0)
    return [
        _job(curves[name], name, speeds[name], float(need), float(low), float(deadline))
        for name, need, low, deadline in zip(names, needs, lowest, deadlines, strict=True)
    ]


def _job(curve: Curve, name: str, speed: float, need: float, low: float, deadline: float) -> DrawnJob:
    smooth = np.minimum.accumulate(np.convolve(curve.loss, np.ones(WINDOW) / WINDOW, "valid"))
    ends = curve.position[WINDOW - 1 :]
    within = np.flatnonzero(ends <= need * speed)
    if need * speed > ends[-1]:
        return DrawnJob(name, low * float(smooth[-1]), deadline, np.inf)
    target = float(smooth[within[-1] if len(within) else 0])
    reached = int(np.argmax(smooth <= target))
    return DrawnJob(name, target, deadline, float(ends[reached]) / speed)


def ceiling(jobs: Sequence[DrawnJob]) -> int:
    """The most jobs that could be met with all the work known in advance."""
    work, deadline = np.array([job.work for job in jobs]), np.array([job.deadline for job in jobs])
    return int(largest_feasible_set(work, deadline, 0.0).sum())
