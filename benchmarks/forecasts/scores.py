"""Scores of the forecasts that estimators make of recorded loss curves.

Every estimator sees the first cells of each recording, with one row of its bank for each part of the recording that is
shown, and is queried at the end of it. Positions are in batches, as the scheduler reports them.

The future loss is the papers' measure (LaiRA, figure 3): the relative error of the loss at the 500th cell, or at the
last one of a shorter recording. A cell is noisy, so the truth is the mean of the five cells that end there. Work left
and verdicts are queried for targets that the recording reaches at 1.3, 2, 4 and 8 times the cells shown, and for
targets that it never reaches.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np

from benchmarks.curves.bundles import WINDOW, Recording
from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.protocols import Estimator
from lightning_core.planning.chance import chances, quantile

Make = Callable[[], Estimator]

PARTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# Number of the cell whose loss the papers forecast.
AHEAD = 500
MULTIPLES = (1.3, 2.0, 4.0, 8.0)
# Targets that are never reached, as multiples of the lowest loss that a recording shows.
NEVER = (0.75, 0.85, 0.95)
# A verdict is wrong if it drops a job that has this many times the time it needs, or keeps one that has this many
# times too little.
SLACK = 1.5
# A job with a lower chance than this to be on time is dropped.
DROP = 0.15
# Largest relative error that a forecast of data needed counts with.
CAP = 10.0
# Recordings of the largest domain; recordings of all domains.
KINDS = ("pure", "mixed")


class Look(NamedTuple):
    """A recording of which the first cells are shown."""

    recording: Recording
    seen: int
    part: float


@dataclass(frozen=True, slots=True)
class Questions:
    """Targets to forecast, one row each; arrays of shape ``(n,)``.

    Args:
        looks: What is shown.
        look: Index into ``looks`` of each question.
        threshold: Target loss.
        work: Batches from the last cell shown to the target, inf if it is never reached.
        horizon: Batches that a job has whose target is never reached; the recording is at least that long.
    """

    looks: Sequence[Look]
    look: IntArray
    threshold: FloatArray
    work: FloatArray
    horizon: FloatArray

    @property
    def here(self) -> FloatArray:
        """Batches done at the last cell shown."""
        return np.array([one.recording.position[one.seen - 1] for one in self.looks])[self.look]

    @property
    def part(self) -> FloatArray:
        """Part of the recording that is shown."""
        return np.array([one.part for one in self.looks])[self.look]


def questions(pool: Sequence[Recording]) -> Questions:
    """Return all questions, with 2 to 50 % of each recording shown, at least the six cells that M4 needs."""
    looks: list[Look] = []
    rows: list[tuple[int, float, float, float]] = []
    for recording in pool:
        position, smooth = recording.position, recording.smooth
        for part in PARTS[1:]:
            seen = round(part * len(position))
            if seen < 6:
                continue
            for end in (round(multiple * seen) for multiple in MULTIPLES):
                if end > len(position):
                    continue
                horizon = position[end - 1] - position[seen - 1]
                if (target := smooth[end - 1]) < smooth[seen - 1]:
                    work = position[np.argmax(smooth <= target)] - position[seen - 1]
                    rows.append((len(looks), target, work, horizon))
                rows += [(len(looks), never * recording.loss.min(), np.inf, horizon) for never in NEVER]
            looks.append(Look(recording, seen, part))
    look, threshold, work, horizon = np.array(rows).reshape(-1, 4).T
    return Questions(looks, look.astype(np.int64), threshold, work, horizon)


def feed(bank: Estimator, looks: Sequence[Look]) -> None:
    """Give each look a row of the bank, and feed it the cells that are shown."""
    bank.grow(len(looks))
    seen = np.array([look.seen for look in looks])
    cells = np.zeros((seen.max(initial=0), 2, len(looks)))
    for row, (recording, n, _) in enumerate(looks):
        cells[:n, :, row] = np.column_stack([recording.position[:n], recording.loss[:n]])
    for k, (position, loss) in enumerate(cells):
        rows = np.flatnonzero(seen > k)
        bank.observe(rows, position[rows], loss[rows])


def passages(bank: Estimator, rows: IntArray, threshold: FloatArray) -> FloatArray:
    """Return ``first_passage`` of rows that may occur several times, which one call does not allow."""
    reached = np.empty((len(rows), len(LEVELS)))
    left = np.arange(len(rows))
    while len(left):
        first = np.unique(rows[left], return_index=True)[1]
        now = left[first]
        reached[now] = bank.first_passage(rows[now], threshold[now])
        left = np.delete(left, first)
    return reached


def answers(make: Make, asked: Questions) -> FloatArray:
    """Return quantiles of the batches left, shape ``(n, 20)``: at least one cell, because no target is reached yet."""
    bank = make()
    feed(bank, asked.looks)
    cell = asked.here / np.array([look.seen for look in asked.looks])[asked.look]
    left: FloatArray = np.maximum(passages(bank, asked.look, asked.threshold) - asked.here[:, None], cell[:, None])
    return left


def loss_errors(make: Make, pool: Sequence[Recording]) -> FloatArray:
    """Return |l^ - l| / l at the 500th cell, or the last; shape ``(parts, recordings)``, NaN if under 5 are shown."""
    ends = [min(AHEAD, len(one.loss)) for one in pool]
    at = [(i, k) for i in range(len(PARTS)) for k in range(len(pool)) if round(PARTS[i] * ends[k]) >= WINDOW]
    bank = make()
    feed(bank, [Look(pool[k], round(PARTS[i] * ends[k]), PARTS[i]) for i, k in at])
    goal = np.array([pool[k].position[ends[k] - 1] for _, k in at])
    truth = np.array([pool[k].loss[ends[k] - WINDOW : ends[k]].mean() for _, k in at])
    errors = np.full((len(PARTS), len(pool)), np.nan)
    errors[tuple(np.array(at).reshape(-1, 2).T)] = np.abs(bank.predict(np.arange(len(at)), goal) / truth - 1.0)
    return errors


class Score(NamedTuple):
    """Quality of the answers to some questions. All but the errors are fractions; NaN where there was no question.

    Args:
        work: Median |ln(R^ / R)| of the work left, R^ the forecast's median.
        data: Median |S^ - S| / S of all data needed (LARA's measure).
        data_mean: Mean of the same, no error above 10.
        q10, q50, q90: Fraction of truths at or below this quantile.
        drop: Fraction of feasible jobs that are dropped, by the chance to be on time.
        keep: Fraction of jobs without enough time that are kept.
        never: Fraction of jobs whose target is never reached that are kept.
        point_drop, point_keep, point_never: The same when the decision is made on the forecast's median.
    """

    work: float
    data: float
    data_mean: float
    q10: float
    q50: float
    q90: float
    drop: float
    keep: float
    never: float
    point_drop: float
    point_keep: float
    point_never: float


def score(asked: Questions, left: FloatArray, among: BoolArray) -> Score:
    """Compare the answers ``left`` with the truth, for the questions that ``among`` selects."""
    real, never = among & np.isfinite(asked.work), among & np.isinf(asked.work)
    work, here, forecast = asked.work[real], asked.here[real], left[real]
    middle = quantile(forecast, 0.5)
    data = np.abs(middle - work) / (here + work)
    cases = ((forecast, SLACK * work), (forecast, work / SLACK), (left[never], asked.horizon[never]))
    verdicts = []
    for drop, keep, kept in ([chances(q, slack) < DROP for q, slack in cases],
                             [quantile(q, 0.5) > slack for q, slack in cases]):  # fmt: skip
        verdicts += [drop, ~keep, ~kept]
    return Score(
        over(np.median, np.abs(np.log(middle / work))),
        over(np.median, data),
        over(np.mean, np.minimum(data, CAP)),
        *(over(np.mean, work <= quantile(forecast, level)) for level in (0.1, 0.5, 0.9)),
        *(over(np.mean, verdict) for verdict in verdicts),
    )


def over(how: Callable[..., float], values: FloatArray | BoolArray) -> float:
    """Return a median or mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(how(known)) if len(known) else np.nan


def largest_domain(pool: Sequence[Recording]) -> str:
    """Return the domain of the papers' pure bundles, which have one domain where mixed ones have all."""
    return Counter(one.curve.domain for one in pool).most_common(1)[0][0]


class Study(NamedTuple):
    """Errors of one estimator's future losses, and its scores by kind and part shown (0: all parts)."""

    errors: dict[str, FloatArray]
    scores: dict[tuple[str, float], Score]


def study(make: Make, pool: Sequence[Recording]) -> Study:
    """Return the study of one estimator; errors have shape ``(parts, recordings)``."""
    domain = largest_domain(pool)
    asked, errors = questions(pool), loss_errors(make, pool)
    left = answers(make, asked)
    within = np.array([look.recording.curve.domain == domain for look in asked.looks], np.bool_)[asked.look]
    scores = {
        (kind, part): score(asked, left, among & ((asked.part == part) | (part == 0)))
        for kind, among in zip(KINDS, (within, np.ones_like(within)), strict=True)
        for part in (0, *PARTS[1:])
    }
    pure = np.array([one.curve.domain == domain for one in pool])
    return Study({"pure": errors[:, pure], "mixed": errors}, scores)


def nearer(errors: FloatArray, others: FloatArray, pool: Sequence[Recording]) -> list[tuple[float, int, int]]:
    """Count how often one is nearer to the truth, by part shown; errors have shape ``(parts, recordings)``.

    Returns:
        For each part the fraction of recordings, the number of families (by the median) and the total of families.
        Recordings of one family are alike: families are the evidence.
    """
    found = []
    for gains in others - errors:
        known = ~np.isnan(gains)
        families: dict[str, list[float]] = defaultdict(list)
        for gain, one in zip(gains[known].tolist(), compress(pool, known), strict=True):
            families[one.curve.family].append(gain)
        wins = sum(statistics.median(some) > 0 for some in families.values())
        found.append((over(np.mean, gains[known] > 0), wins, len(families)))
    return found
