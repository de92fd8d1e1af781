"""How well each estimator forecasts recorded curves: the loss ahead, the work left, its own doubt, and whom to give up.

Every estimator sees the first cells of each recording, one row of its bank for each part of it that is seen, and is
asked at the end of that. Positions are batches, as the scheduler reports them. Only recordings are taken on whose
families nothing was tuned.

The loss ahead is the papers' measure (LaiRA, figure 3): the relative error of the 500th cell, or of the last one if
there are fewer. A cell is noisy; the truth is the mean of the five that end there. Work left and verdicts are asked of
targets that the recording comes down to at 1.3, 2, 4 and 8 times the cells seen, and of targets that it never reaches.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter

from benchmarks.common import Figures, Size, main, table
from benchmarks.curves.bundles import WINDOW, Recording
from benchmarks.curves.replay import reporting
from benchmarks.forecasts.m4 import M4, fit_m4
from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.protocols import Estimator
from lightning_core.estimators import ESTIMATORS, Kalman, LeastSquares, Posterior
from lightning_core.planning.chance import chances, quantile
from lightning_core.simulation.recorded_curves import SHIPPED

Make = Callable[[], Estimator]

PARTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# The cell whose loss the papers forecast.
AHEAD = 500
MULTIPLES = (1.3, 2.0, 4.0, 8.0)
# Of the least loss that a recording ever shows: never reached.
NEVER = (0.75, 0.85, 0.95)
# A verdict is false if a job is given up that has this much more time than it needs, or kept with this much less.
SLACK = 1.5
# Who is less likely than this to be in time, is given up.
DROP = 0.15
# A forecast of data needed that is off by more than this many times the truth counts as off by so much.
CAP = 10.0
# Recordings of one domain, the largest; recordings of all.
KINDS = ("pure", "mixed")
# What the dynamic filter's time is compared with.
BASELINES = ("least_squares", "weighted", "kalman")


class Offline:
    """M4 as an estimator: it keeps all cells, and fits them anew when it is asked. Its quantiles are all the same."""

    def __init__(self) -> None:
        self._cells: list[list[tuple[float, float]]] = []

    def grow(self, rows: int) -> None:
        self._cells += [[] for _ in range(rows - len(self._cells))]

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        for row, *cell in zip(rows.tolist(), position.tolist(), loss.tolist(), strict=True):
            self._cells[row].append((cell[0], cell[1]))

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        curves = map(self._fit, rows.tolist())
        return np.array([c.predict(s) if c else np.nan for c, s in zip(curves, position, strict=True)])

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        curves = map(self._fit, rows.tolist())
        asked = zip(curves, threshold.tolist(), strict=True)
        return np.repeat([[c.first_passage(goal) if c else np.nan] for c, goal in asked], len(LEVELS), axis=1)

    def _fit(self, row: int) -> M4 | None:
        s, loss = np.array(self._cells[row]).reshape(-1, 2).T
        try:
            return fit_m4(s, loss)
        except ValueError:  # too few cells, or all the same
            return None


ONE_PASS: dict[str, Make] = {
    **{name: ESTIMATORS[name] for name in ("least_squares", "weighted", "log_time", "kalman", "dkf")},
    "dkf_undamped": partial(Kalman, damping=None),
    "posterior": Posterior,
}


class Look(NamedTuple):
    """A recording of which the first cells were seen."""

    recording: Recording
    seen: int
    part: float


@dataclass(frozen=True, slots=True)
class Questions:
    """Targets to forecast, one row each; arrays of shape ``(n,)``.

    Args:
        looks: what is seen.
        look: which of them a question is about.
        threshold: the loss to come down to.
        work: batches from what was seen until that is so, inf if it never is.
        horizon: batches that a job is given whose target is never reached; the recording shows that it is not by then.
    """

    looks: Sequence[Look]
    look: IntArray
    threshold: FloatArray
    work: FloatArray
    horizon: FloatArray

    @property
    def here(self) -> FloatArray:
        """Batches done when the question is asked."""
        return np.array([one.recording.position[one.seen - 1] for one in self.looks])[self.look]

    @property
    def part(self) -> FloatArray:
        """Of the recording, seen."""
        return np.array([one.part for one in self.looks])[self.look]


def questions(pool: Sequence[Recording]) -> Questions:
    """All that is asked of these recordings, with 2 to 50 % of each seen, and six cells at least, which M4 needs."""
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
    """Gives each look a row of the bank, and shows it what was seen."""
    bank.grow(len(looks))
    seen = np.array([look.seen for look in looks])
    cells = np.zeros((seen.max(initial=0), 2, len(looks)))
    for row, (recording, n, _) in enumerate(looks):
        cells[:n, :, row] = np.column_stack([recording.position[:n], recording.loss[:n]])
    for k, (position, loss) in enumerate(cells):
        rows = np.flatnonzero(seen > k)
        bank.observe(rows, position[rows], loss[rows])


def passages(bank: Estimator, rows: IntArray, threshold: FloatArray) -> FloatArray:
    """``first_passage`` of rows that may stand there several times, which one call does not allow."""
    reached = np.empty((len(rows), len(LEVELS)))
    left = np.arange(len(rows))
    while len(left):
        first = np.unique(rows[left], return_index=True)[1]
        now = left[first]
        reached[now] = bank.first_passage(rows[now], threshold[now])
        left = np.delete(left, first)
    return reached


def answers(make: Make, asked: Questions) -> FloatArray:
    """Quantiles of the batches left, shape ``(n, 20)``: one cell's worth at least, for no job is there yet."""
    bank = make()
    feed(bank, asked.looks)
    cell = asked.here / np.array([look.seen for look in asked.looks])[asked.look]
    left: FloatArray = np.maximum(passages(bank, asked.look, asked.threshold) - asked.here[:, None], cell[:, None])
    return left


def loss_errors(make: Make, pool: Sequence[Recording]) -> FloatArray:
    """|l^ - l| / l of the 500th cell, or the last; shape ``(parts, recordings)``, NaN where under 5 cells are seen."""
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
    """How good the answers to some questions are. All but the errors are shares; NaN where nothing was asked.

    Args:
        work: median |ln(R^ / R)| of the work left, R^ the forecast's median.
        data: median |S^ - S| / S of all data needed (LARA's measure).
        data_mean: its mean, no error above 10.
        q10, q50, q90: how often the truth is at most this quantile.
        drop: feasible jobs given up, by the chance to be in time.
        keep: jobs without enough time that are not given up.
        never: jobs whose target is never reached that are not given up.
        point_drop, point_keep, point_never: the same if the forecast's median is believed.
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
    """Compares the answers ``left`` with the truth, for the questions that are ``among`` them."""
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
    """A median or mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(how(known)) if len(known) else np.nan


def coverage_q90(pool: Sequence[Recording], make: Make = Posterior) -> float:
    """How often the work left is at most the forecast's 90 % quantile, over 2 to 50 % seen; 0.9 would be right."""
    asked = questions(pool)
    return score(asked, answers(make, asked), np.ones(len(asked.look), np.bool_)).q90


def largest_domain(pool: Sequence[Recording]) -> str:
    """The papers' pure bundle is of one domain, as opposed to a mixed one of all."""
    return Counter(one.curve.domain for one in pool).most_common(1)[0][0]


class Study(NamedTuple):
    """What one estimator did: its errors of the loss ahead, and its scores by kind and part seen (0: all parts)."""

    errors: dict[str, FloatArray]
    scores: dict[tuple[str, float], Score]


def study(make: Make, pool: Sequence[Recording]) -> Study:
    """All of it; errors of shape ``(parts, recordings)``."""
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
    """How often one is nearer the truth than the other, by part seen; errors of shape ``(parts, recordings)``.

    Returns:
        For each part the share of recordings, the number of families (by the median) and of how many. Recordings of
        one family are alike: families are the evidence.
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


class Cost(NamedTuple):
    """Median microseconds a row to take in a cell and forecast the loss, or the passage."""

    loss: float
    passage: float


def costs(makes: Mapping[str, Make], recording: Recording, rows: int = 1, cells: int = 200) -> dict[str, Cost]:
    """A bank of so many rows, cell by cell; the estimators take turns, so that what else happens hits all alike.

    Turns are in random order: who came after M4 each time would always find the caches emptied.
    """
    draw = np.random.default_rng(0)
    banks = [make() for make in makes.values()]
    spent: list[list[FloatArray]] = [[] for _ in banks]
    every = np.arange(rows)
    far, goal = np.full(rows, 2.0 * recording.position[-1]), np.full(rows, 0.9 * recording.loss.min())
    for bank in banks:
        bank.grow(rows)
    for k in range(min(cells, len(recording.loss))):
        position, loss = np.full(rows, recording.position[k]), np.full(rows, recording.loss[k])
        for at in draw.permutation(len(banks)).tolist():
            moments = [time.perf_counter()]
            banks[at].observe(every, position, loss)
            moments.append(time.perf_counter())
            banks[at].predict(every, far)
            moments.append(time.perf_counter())
            banks[at].first_passage(every, goal)
            moments.append(time.perf_counter())
            if k >= 10:  # by then all have something to say
                spent[at].append(np.diff(moments) * 1e6 / rows)
    medians = (np.median(times, axis=0).tolist() for times in spent)
    return {name: Cost(o + loss, o + passage) for name, (o, loss, passage) in zip(makes, medians, strict=True)}


def variants(pool: Sequence[Recording]) -> dict[str, Study]:
    """The papers' constants one by one; and their filters with s in cells, for a prior on ln a depends on the unit."""
    cells = [one._replace(position=np.arange(1.0, len(one.loss) + 1)) for one in pool]
    deltas = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
    return {
        **{f"weighted_{g:g}": study(partial(LeastSquares, gamma=g), pool) for g in (0.85, 0.9, 0.95, 0.99)},
        **{f"dkf_{d:g}": study(partial(Kalman, delta=d), pool) for d in deltas},
        **{f"dkf_undamped_{d:g}": study(partial(Kalman, delta=d, damping=None), pool) for d in deltas},
        **{f"{name}_in_cells": study(ONE_PASS[name], cells) for name in ("weighted", "kalman", "dkf")},
        **{f"dkf_undamped_{d:g}_in_cells": study(partial(Kalman, delta=d, damping=None), cells) for d in deltas[1:4]},
    }


def plot(studies: Mapping[str, Study], path: Path) -> None:
    """Writes a picture of the median relative error by part seen, pure and mixed side by side."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, kind in zip(axes, KINDS, strict=True):
        for k, (name, one) in enumerate(studies.items()):
            medians = [over(np.median, errors) for errors in one.errors[kind]]
            axis.plot(PARTS, medians, "osv^D<>P"[k % 8] + "-", markersize=4, label=name.replace("_", " "))
        recordings = next(iter(studies.values())).errors[kind].shape[1]
        axis.set(xscale="log", yscale="log", xlabel="part of the cells seen", title=f"{kind}: {recordings} recordings")
        axis.set_xticks(PARTS, [f"{part:.0%}" for part in PARTS])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"median error of the loss at cell {AHEAD}")
    axes[1].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def measure(size: Size, curves: Path, plots: Path | None = None) -> Figures:
    pool = reporting(curves)
    makes: dict[str, Make] = {**ONE_PASS, "m4": Offline} if size == "full" else ONE_PASS
    studies = {name: study(make, pool) for name, make in makes.items()}
    if plots:
        plots.mkdir(parents=True, exist_ok=True)
        plot(studies, plots / "extrapolation.png")
    print(f"{len(pool)} recordings; the largest domain is the pure one: {Counter(one.curve.domain for one in pool)}")
    print(f"{sum(len(one.loss) < AHEAD for one in pool)} are shorter than {AHEAD} cells: of them the last is forecast")
    show(studies, pool)
    figures = figures_of(studies) | times(makes, pool[0])
    if size == "full":
        others = variants(pool)
        print(
            "\nOther constants, s in cells: median error of the loss, mixed, by part seen; then of all parts together"
        )
        print(
            "work left, coverage q10/q50/q90, false drop/false keep/never kept by chance, and with the median believed"
        )
        rows = [[name, *(f"{over(np.median, e):.3g}" for e in one.errors["mixed"]), *_brief(one.scores["mixed", 0])]
                for name, one in others.items()]  # fmt: skip
        table(["", *map(_part, PARTS), "work", "coverage", "chance", "median"], rows)
        show_nearer({name: one for name, one in others.items() if "in_cells" in name}, "weighted_in_cells", pool)
        figures |= figures_of(others)
    return figures


def times(makes: Mapping[str, Make], recording: Recording) -> Figures:
    """Prints what a forecast costs, and how many times as long the dynamic filter takes, and M4."""
    alone, many = costs(makes, recording), costs(ONE_PASS, recording, rows=1000, cells=30)
    print("\nMicroseconds to take in a cell and forecast the loss, or the passage: a row alone, and each of 1,000")
    rows = [[name, *(f"{us:.2f}" for us in (*cost, *many.get(name, ())))] for name, cost in alone.items()]
    table(["", "loss", "passage", "of 1,000", "of 1,000"], [[*row, "-", "-"][:5] for row in rows])
    ratios = {
        "dkf_vs_one_pass": alone["dkf"].loss / statistics.median(alone[name].loss for name in BASELINES),
        "dkf_vs_one_pass_1000": many["dkf"].loss / statistics.median(many[name].loss for name in BASELINES),
        "m4_vs_dkf": alone["m4"].loss / alone["dkf"].loss if "m4" in alone else None,
    }
    print(f"loss: {', '.join(f'{name} {ratio:.1f}' for name, ratio in ratios.items() if ratio)}")
    return ratios | {f"{name}_us_{what}": us for name, cost in alone.items() for what, us in cost._asdict().items()}


def show(studies: Mapping[str, Study], pool: Sequence[Recording]) -> None:
    """Prints what they did, by part seen."""
    parts, asked = [*map(_part, PARTS)], [*map(_part, PARTS[1:]), "all"]
    for kind in KINDS:
        print(f"\nRelative error of the loss at cell {AHEAD}, {kind}: median (mean)")
        table(["", *parts], [
            [name, *(f"{over(np.median, e):.3g} ({over(np.mean, e):.2g})" for e in one.errors[kind])]
            for name, one in studies.items()
        ])  # fmt: skip
    show_nearer(studies, "weighted", pool)
    said = {name: [_brief(one.scores["mixed", part]) for part in (*PARTS[1:], 0)] for name, one in studies.items()}
    titles = ("Work left, median |ln(R^ / R)|", "% of truths at most q10/q50/q90",
              f"% false drop/false keep/never kept, dropped at a chance below {DROP}", "The same, the median believed",
              )  # fmt: skip
    for k, title in enumerate(titles):
        print(f"\n{title}, mixed")
        table(["", *asked], [[name, *(brief[k] for brief in row)] for name, row in said.items()])
    for kind in KINDS:
        print(f"\nData needed, |S^ - S| / S, {kind}: median (mean, at most {CAP:g} each)")
        table(["", *asked], [
            [name, *(f"{s.data:.2f} ({s.data_mean:.2f})" for s in (one.scores[kind, p] for p in (*PARTS[1:], 0)))]
            for name, one in studies.items()
        ])  # fmt: skip


def show_nearer(studies: Mapping[str, Study], base: str, pool: Sequence[Recording]) -> None:
    """Prints how often the others are nearer to the loss ahead than the one called ``base``."""
    errors = studies[base].errors["mixed"]
    print(f"\nNearer to that loss than {base}: % of recordings (by median, how many families), mixed")
    table(["", *map(_part, PARTS)], [
        [name, *(f"{share:.0%} ({wins} of {of})" for share, wins, of in nearer(one.errors["mixed"], errors, pool))]
        for name, one in studies.items() if name != base
    ] + [["recordings", *(~np.isnan(errors)).sum(axis=1).tolist()]])  # fmt: skip


def _part(part: float) -> str:
    return f"{part:.0%}"


def _brief(s: Score) -> list[str]:
    triples = ((s.q10, s.q50, s.q90), (s.drop, s.keep, s.never), (s.point_drop, s.point_keep, s.point_never))
    return [f"{s.work:.2f}", *("/".join(f"{100 * share:.0f}" for share in triple) for triple in triples)]


def figures_of(studies: Mapping[str, Study]) -> Figures:
    """Numbers under names such as ``dkf_error_pure_5``; null where nothing was asked, or the median is never."""
    numbers: dict[str, float] = {}
    for name, one in studies.items():
        for kind, errors in one.errors.items():
            for part, some in zip(PARTS, errors, strict=True):
                numbers[f"{name}_error_{kind}_{100 * part:g}"] = over(np.median, some)
                numbers[f"{name}_mean_error_{kind}_{100 * part:g}"] = over(np.mean, some)
            numbers[f"{name}_data_{kind}"] = one.scores[kind, 0].data
        for part in PARTS[1:]:
            numbers[f"{name}_work_{100 * part:g}"] = one.scores["mixed", part].work
            numbers[f"{name}_q90_{100 * part:g}"] = one.scores["mixed", part].q90
        numbers |= {f"{name}_{what}": number for what, number in one.scores["mixed", 0]._asdict().items()}
    return {name: number if np.isfinite(number) else None for name, number in numbers.items()}


if __name__ == "__main__":
    main("forecasts.extrapolation", __doc__.splitlines()[0], measure, curves=SHIPPED, plots=None)
