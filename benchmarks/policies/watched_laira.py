"""LaiRA's decisions while it plays bundles: figures 8 to 11 of its paper, which show them on the paper's own bundles.

Of a job that could not meet its target even alone, the figures say how soon it is found infeasible, and how much time
it has on the device from then on. Of the job that is first, they say how often it changes, with UCB and without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import KINDS, Bundle, Recording, draw
from benchmarks.curves.replay import Cell, Contender
from benchmarks.policies.as_printed import name_of
from lightning_core.core.plans import JobView
from lightning_core.policies.laira import Laira
from lightning_core.simulation.simulation import Simulation

CELLS = (Cell(10, True), Cell(10, False))
PATH = f"{__name__}.WatchedLaira"
# LaiRA as read here, without UCB, without its Kalman filter, and with the printed extrapolation of eq. 8.
ROWS: Mapping[str, Mapping[str, object]] = {
    "whole": {}, "ucb": {"ucb": False}, "dkf": {"look_ahead": False}, "printed": {"dkf": {"damping": None}},
}  # fmt: skip
WORDS = {"whole": "as read here", "ucb": "without UCB", "dkf": "without DKF", "printed": "eq. 8 as printed"}


class Decision(NamedTuple):
    """What LaiRA decides at the start of a slice.

    Attributes:
        first: Name of the job of the highest priority.
        negative: Part of the jobs with a score whose score is negative.
        out: Names of the jobs that are found infeasible; none if all are.
        trained: Seconds that each job has trained, by name.
    """

    first: str
    negative: float
    out: frozenset[str]
    trained: Mapping[str, float]


class WatchedLaira(Laira):
    """LaiRA that writes its decisions down; one at a time."""

    knows_names = True
    decisions: ClassVar[list[Decision]] = []

    def _begin_slice(self, jobs: JobView, now: float) -> None:
        super()._begin_slice(jobs, now)
        ranked = self._ranked
        rank, ratio, out = ranked.rank[jobs.row], ranked.ratio[jobs.row], ranked.out[jobs.row]
        known = ratio[np.isfinite(ratio)]
        trained = np.nan_to_num(jobs.batches / jobs.throughput)
        self.decisions.append(
            Decision(
                jobs.name[int(rank.argmin())],
                float((known < 0).mean()) if len(known) else 0.0,
                frozenset() if ranked.none else frozenset(np.array(jobs.name)[out].tolist()),
                dict(zip(jobs.name, trained.tolist(), strict=True)),
            )
        )


class Watched(NamedTuple):
    """What was seen of one bundle; NaN where it has no such jobs.

    Attributes:
        found_at_once: Part of the jobs that are impossible alone that the first decision finds infeasible.
        found: Part of them that any decision finds infeasible.
        wrong: Part of the possible jobs that the first decision finds infeasible.
        hopeless: Part of the time on the device after the first decision that the impossible ones have.
        changes: Changes of the job of the highest priority, for each job of the bundle.
        negative: Part of all scores that is negative.
    """

    found_at_once: float
    found: float
    wrong: float
    hopeless: float
    changes: float
    negative: float


def watch(pool: Sequence[Recording], cell: Cell, seed: int, laira: Contender) -> Watched | None:
    """Return what is seen of a bundle; None if LaiRA decides nothing."""
    bundle = draw(pool, cell.size, pure=cell.pure, kind=KINDS[seed % len(KINDS)], seed=seed)
    WatchedLaira.decisions.clear()
    outcome = Simulation(laira.settings(cell.size), bundle.jobs, laira.delays).run()
    assert not outcome.failed, outcome.failed
    spent = {one.name: one.batches / given.throughput
             for one, given in zip(outcome.jobs, bundle.jobs, strict=True)}  # fmt: skip
    return seen(impossible(bundle), spent, WatchedLaira.decisions) if WatchedLaira.decisions else None


def impossible(bundle: Bundle) -> dict[str, bool]:
    """Return of each job, by name, whether it could not meet its target even alone."""
    return {one.job.name: bool(work > one.job.deadline) for one, work in zip(bundle.jobs, bundle.work, strict=True)}


def seen(hopeless: Mapping[str, bool], spent: Mapping[str, float], decisions: Sequence[Decision]) -> Watched:
    """Return what decisions show.

    Args:
        hopeless: Whether each job is impossible alone, by name; all jobs of the bundle.
        spent: Seconds that each job trained in all.
        decisions: The decisions, at least one.
    """
    first = decisions[0]
    bad, good = ([name for name in first.trained if hopeless[name] == is_bad] for is_bad in (True, False))
    ever = frozenset[str]().union(*(one.out for one in decisions))
    after = {name: spent[name] - first.trained.get(name, spent[name]) for name in spent}
    whole = sum(after.values())
    changes = sum(one.first != two.first for one, two in pairwise(decisions))
    return Watched(
        _part(bad, first.out), _part(bad, ever), _part(good, first.out),
        sum(after[name] for name in bad) / whole if whole > 0 else np.nan,
        changes / len(hopeless), float(np.mean([one.negative for one in decisions])),
    )  # fmt: skip


def _part(names: Sequence[str], of: frozenset[str]) -> float:
    return sum(name in of for name in names) / len(names) if names else np.nan


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values that are known; None if there is none."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else None


def measure(pool: Sequence[Recording], bundles: int, laira: Contender) -> Figures:
    """Watch LaiRA on bundles of ten jobs, each row of it; print what is seen and return it."""
    figures: Figures = {"watched_bundles": float(bundles)}
    rows: list[list[object]] = []
    for cell in CELLS:
        for name, changed in ROWS.items():
            one = replace(laira, policy=PATH, arguments={**laira.arguments, **changed})
            found = [w for w in map(partial(watch, pool, cell, laira=one), range(bundles)) if w is not None]
            means = [_mean(column) for column in zip(*found, strict=True)]
            rows.append([str(cell), WORDS[name], *means])
            figures |= {f"watched_{name_of(cell)}_{name}_{what}": mean
                        for what, mean in zip(Watched._fields, means, strict=True)}  # fmt: skip
    print("\nLaiRA's decisions, figures 8 to 11 of its paper; means over the bundles")
    table(["bundles", "LaiRA", *Watched._fields], rows)
    return figures
