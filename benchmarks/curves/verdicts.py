"""How far verdicts can be trusted: what jobs were told while they ran, held against what they could do and did.

Each job is asked at several parts of its way, which leads to its target; if its deadline would come first even alone on
its devices, the way ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures
from lightning_core.core.answers import Verdict
from lightning_core.simulation.scenario import GivenVerdict

PARTS_OF_THE_WAY = (0.05, 0.1, 0.2, 0.5)


class JudgedJob(NamedTuple):
    """A job that was submitted at time 0, what it needed, and its verdicts.

    Attributes:
        work: True seconds alone until its target is reached; inf if never.
        deadline: Seconds.
        throughput: Batches per second alone on its devices.
        batches: Batches that it did.
        met: Whether it met its target in time.
        verdicts: Verdicts on it while it ran, in their order.
    """

    work: float
    deadline: float
    throughput: float
    batches: int
    met: bool
    verdicts: tuple[GivenVerdict, ...]

    @property
    def possible(self) -> bool:
        """Whether it met its target, or would have met it alone on its devices."""
        return self.met or self.work <= self.deadline

    @property
    def was_told_infeasible(self) -> bool:
        """Whether it was ever told that it is infeasible."""
        return any(one.verdict is Verdict.INFEASIBLE for one in self.verdicts)

    @property
    def was_wrongly_told_infeasible(self) -> bool:
        """Whether it was told so while it could still meet its target alone on its devices, or met it after all."""
        told = [one for one in self.verdicts if one.verdict is Verdict.INFEASIBLE]
        return any(self.met or one.at + self.work - one.batches / self.throughput <= self.deadline for one in told)

    @property
    def changes(self) -> int:
        """Number of changes from one verdict to another."""
        told = [one.verdict for one in self.verdicts]
        return sum(before is not after for before, after in pairwise(told))

    def at(self, part: float) -> Verdict | None:
        """Return the last verdict up to a part of its way; None if there was none, or it did not come so far."""
        seen = part * self.throughput * min(self.work, self.deadline)
        told = [one.verdict for one in self.verdicts if one.batches <= seen]
        return told[-1] if told and self.batches >= seen else None


class Trust(NamedTuple):
    """How far the verdicts on some jobs can be trusted. NaN stands for the mean of nothing.

    Attributes:
        told: Of the jobs that met their target or would have met it alone, the part ever told that they are infeasible.
        wrongly: The same, told so while they could still meet it alone.
        found: Of the jobs that could not be met even alone, the part told that they are infeasible.
        changes: Changes of verdict per job that had one: the median and the mean.
        feasible: Part of the jobs told "feasible" that met their target, by :data:`PARTS_OF_THE_WAY`.
        at_risk: Part of the jobs told "at risk" that did not, likewise.
        asked: Number of jobs told "feasible" and "at risk" there, a pair each.
    """

    told: float
    wrongly: float
    found: float
    changes: tuple[float, float]
    feasible: tuple[float, ...]
    at_risk: tuple[float, ...]
    asked: tuple[tuple[int, int], ...]

    def figures(self) -> Figures:
        """Return figures by name; a mean of nothing is None."""
        parts = [f"{part:.0%}".rstrip("%") for part in PARTS_OF_THE_WAY]
        found = {
            "told_infeasible": self.told,
            "told_infeasible_wrongly": self.wrongly,
            "infeasible_found": self.found,
            "verdict_changes_median": self.changes[0],
            "verdict_changes_mean": self.changes[1],
            **{f"feasible_true_{part}": true for part, true in zip(parts, self.feasible, strict=True)},
            **{f"at_risk_true_{part}": true for part, true in zip(parts, self.at_risk, strict=True)},
        }
        return {name: None if np.isnan(figure) else figure for name, figure in found.items()}


def trust(jobs: Sequence[JudgedJob]) -> Trust:
    """Return how far the verdicts on some jobs can be trusted."""
    possible = [job for job in jobs if job.possible]
    changes = [job.changes for job in jobs if job.verdicts]
    asked = [[(verdict, job.met) for job in jobs if (verdict := job.at(part))] for part in PARTS_OF_THE_WAY]
    feasible = [[met for verdict, met in one if verdict is Verdict.FEASIBLE] for one in asked]
    at_risk = [[not met for verdict, met in one if verdict is Verdict.AT_RISK] for one in asked]
    return Trust(
        _mean(job.was_told_infeasible for job in possible),
        _mean(job.was_wrongly_told_infeasible for job in possible),
        _mean(job.was_told_infeasible for job in jobs if not job.possible),
        (float(np.median(changes)) if changes else np.nan, _mean(changes)),
        tuple(map(_mean, feasible)),
        tuple(map(_mean, at_risk)),
        tuple((len(one), len(other)) for one, other in zip(feasible, at_risk, strict=True)),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else np.nan
