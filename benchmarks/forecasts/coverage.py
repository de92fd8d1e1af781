"""How often the quantiles of the work left cover the truth, by the part of the way to the target that has been seen.

Each recording is a job with a target of its own at several positions, looked at when it has come 5, 10, 20 and 50 % of
the way there. A 10 % quantile that covers 10 % of the truths is what people are told it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import WINDOW, Recording
from benchmarks.curves.histories import earlier_runs
from benchmarks.forecasts.scores import Look, Make, feed, over, passages
from lightning_core.core.arrays import FloatArray
from lightning_core.core.protocols import KnowsSchedule, UsesHistory
from lightning_core.estimators import Posterior
from lightning_core.planning.chance import quantile

PARTS_OF_THE_WAY = (0.05, 0.1, 0.2, 0.5)
# Parts of a recording at which its targets lie.
TARGETS = (0.08, 0.2, 0.45, 1.0)
LEVELS = (0.1, 0.5, 0.9)


class Coverage(NamedTuple):
    """What the quantiles cover.

    Attributes:
        covered: Part of the truths at or below each of :data:`LEVELS`, by :data:`PARTS_OF_THE_WAY`; shape ``(4, 3)``.
        error: Median |ln| of the median work left over the true one, by part of the way; shape ``(4,)``.
        questions: Number of questions with a forecast.
    """

    covered: FloatArray
    error: FloatArray
    questions: int

    def figures(self) -> Figures:
        """Return the means over the parts of the way."""
        means = self.covered.mean(axis=0).tolist()
        return {f"coverage_q{level:.0%}".rstrip("%"): mean for level, mean in zip(LEVELS, means, strict=True)}


def coverage(
    pool: Sequence[Recording], make: Make = Posterior, *, history: int = 0, schedule: bool = False, seed: int = 0
) -> Coverage:
    """Ask for the work left of every recording, to each of its targets, at each part of the way.

    Args:
        pool: Recordings.
        make: Creates a bank.
        history: Number of earlier runs that a bank is given, if it uses them.
        schedule: Whether it is given the learning rates, where they are known, if it uses them.
        seed: Seed of the draw of the earlier runs.
    """
    asked = [
        (Look(one, round(part * cell), part), target, cell)
        for one in pool
        for target, cell in _targets(one)
        for part in PARTS_OF_THE_WAY
        if round(part * cell)
    ]
    bank, draw = make(), np.random.default_rng(seed)
    bank.grow(len(asked))
    if history and isinstance(bank, UsesHistory):
        for row, (look, _, _) in enumerate(asked):
            if runs := earlier_runs(look.recording, pool, history, draw):
                bank.history(row, runs)
    if schedule and isinstance(bank, KnowsSchedule):
        for row, (look, _, _) in enumerate(asked):
            if rates := look.recording.curve.learning_rates():
                bank.schedule(row, *(np.array(column, np.float64) for column in rates))
    feed(bank, [look for look, _, _ in asked])
    here = np.array([look.recording.position[look.seen - 1] for look, _, _ in asked])
    work = np.array([look.recording.position[cell - 1] for look, _, cell in asked]) - here
    one_cell = here / np.array([look.seen for look, _, _ in asked])
    reached = passages(bank, np.arange(len(asked)), np.array([target for _, target, _ in asked]))
    left = np.maximum(reached - here[:, None], one_cell[:, None])
    known, part = ~np.isnan(reached[:, 0]), np.array([look.part for look, _, _ in asked])
    among = [known & (part == one) for one in PARTS_OF_THE_WAY]
    covered = [[over(np.mean, work[rows] <= quantile(left[rows], level)) for level in LEVELS] for rows in among]
    errors = [over(np.median, np.abs(np.log(quantile(left[rows], 0.5) / work[rows]))) for rows in among]
    return Coverage(np.array(covered), np.array(errors), int(known.sum()))


def show(found: Coverage, title: str) -> None:
    """Print a table by part of the way."""
    print(f"\n{title}: {found.questions} questions")
    rows = zip(PARTS_OF_THE_WAY, found.covered.tolist(), found.error.tolist(), strict=True)
    table(["seen", "q10", "q50", "q90", "error"], [[f"{part:.0%}", *levels, error] for part, levels, error in rows])


def _targets(recording: Recording) -> list[tuple[float, int]]:
    """Return losses that are well below the first, and the number of the cell that reaches each."""
    smooth = recording.smooth
    losses = [float(smooth[max(int(part * len(smooth)), WINDOW) - 1]) for part in TARGETS]
    return [(loss, int(np.argmax(smooth <= loss)) + 1) for loss in losses if loss <= 0.95 * smooth[WINDOW - 1]]
