"""Compare how well each estimator forecasts recorded curves: future loss, work left, uncertainty, and jobs to drop.

Only recordings of families on which nothing was tuned are used. What is measured: :mod:`benchmarks.forecasts.scores`.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter

from benchmarks.common import Figures, Size, main, table
from benchmarks.curves.bundles import Recording
from benchmarks.curves.replay import reporting
from benchmarks.forecasts import lara_comparison
from benchmarks.forecasts.coverage import coverage
from benchmarks.forecasts.coverage import show as show_coverage
from benchmarks.forecasts.extrapolation_tables import brief, figures_of, percent, show, show_nearer
from benchmarks.forecasts.offline import Offline
from benchmarks.forecasts.scores import AHEAD, KINDS, PARTS, Make, Study, over, study
from lightning_core.core.arrays import FloatArray
from lightning_core.estimators import ESTIMATORS, Kalman, LeastSquares, Posterior
from lightning_core.simulation.recorded_curves import SHIPPED

# Estimators whose time the dynamic filter's is compared with.
BASELINES = ("least_squares", "weighted", "kalman")


ONE_PASS: dict[str, Make] = {
    **{name: ESTIMATORS[name] for name in ("least_squares", "weighted", "log_time", "kalman", "dkf")},
    "dkf_undamped": partial(Kalman, damping=None),
    "posterior": Posterior,
}


class Cost(NamedTuple):
    """Median microseconds per row to observe a cell and forecast the loss, or the first passage."""

    loss: float
    passage: float


def costs(makes: Mapping[str, Make], recording: Recording, rows: int = 1, cells: int = 200) -> dict[str, Cost]:
    """Time banks of ``rows`` rows, cell by cell; the estimators alternate, so that other load affects all alike.

    The order is random: an estimator that always followed M4 would always find the caches empty.
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
            if k >= 10:  # by then all can forecast
                spent[at].append(np.diff(moments) * 1e6 / rows)
    medians = (np.median(times, axis=0).tolist() for times in spent)
    return {name: Cost(o + loss, o + passage) for name, (o, loss, passage) in zip(makes, medians, strict=True)}


def variants(pool: Sequence[Recording]) -> dict[str, Study]:
    """Vary the papers' constants, and run their filters with s in cells: a prior on ln a depends on the unit."""
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
    """Draw the median relative error by part shown, pure and mixed side by side."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, kind in zip(axes, KINDS, strict=True):
        for k, (name, one) in enumerate(studies.items()):
            medians = [over(np.median, errors) for errors in one.errors[kind]]
            axis.plot(PARTS, medians, "osv^D<>P"[k % 8] + "-", markersize=4, label=name.replace("_", " "))
        recordings = next(iter(studies.values())).errors[kind].shape[1]
        axis.set(xscale="log", yscale="log", xlabel="part of the cells shown", title=f"{kind}: {recordings} recordings")
        axis.set_xticks(PARTS, [f"{part:.0%}" for part in PARTS])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"median error of the loss at cell {AHEAD}")
    axes[1].legend(fontsize="small")
    figure.savefig(path, dpi=120)


def measure(size: Size, curves: Path, plots: Path | None = None, *, lara: bool = False) -> Figures:
    """Print all tables and return their figures.

    Args:
        size: ``full`` adds the estimators that are fitted offline, and other constants.
        curves: Folder of recordings.
        plots: Folder for a picture, if one is wanted.
        lara: Whether to make LARA's comparison only.
    """
    if lara or size == "full":
        lara_comparison.check()
    pool = reporting(curves)
    if lara:
        return lara_comparison.compare(pool)
    makes: dict[str, Make] = {**ONE_PASS, "m4": Offline} if size == "full" else ONE_PASS
    studies = {name: study(make, pool) for name, make in makes.items()}
    if plots:
        plots.mkdir(parents=True, exist_ok=True)
        plot(studies, plots / "extrapolation.png")
    domains = Counter(one.curve.domain for one in pool).most_common()
    named = ", ".join(f"{name} {count}" for name, count in domains)
    print(f"{len(pool)} recordings; pure: those of the largest domain; mixed: all ({named})")
    shorter = sum(len(one.loss) < AHEAD for one in pool)
    print(f"{shorter} are shorter than {AHEAD} cells: the loss at their last cell is forecast instead")
    show(studies, pool)
    by_runs = {runs: coverage(pool, history=runs) for runs in (0, 3)}
    for runs, found in by_runs.items():
        show_coverage(found, f"The posterior with {runs} earlier runs, by part of the way to the target")
    scheduled = [one for one in pool if one.curve.lr is not None]
    for word, schedule in (("without", False), ("with", True)) if scheduled else ():
        found = coverage(scheduled, schedule=schedule)
        show_coverage(found, f"The posterior {word} learning rates, on the {len(scheduled)} recordings that have them")
    figures = figures_of(studies) | times(makes, pool[0]) | by_runs[0].figures()
    if size == "full":
        others = variants(pool)
        print("\nOther constants, and s in cells: median error of the loss, mixed recordings, by part shown; overall:")
        print("work left, coverage of q10/q50/q90, % wrongly dropped/wrongly kept/kept though never reached, two ways")
        rows = [[name, *(f"{over(np.median, e):.3g}" for e in one.errors["mixed"]), *brief(one.scores["mixed", 0])]
                for name, one in others.items()]  # fmt: skip
        table(["", *map(percent, PARTS), "work", "coverage", "chance", "median"], rows)
        show_nearer({name: one for name, one in others.items() if "in_cells" in name}, "weighted_in_cells", pool)
        figures |= figures_of(others) | lara_comparison.compare(pool)
    return figures


def times(makes: Mapping[str, Make], recording: Recording) -> Figures:
    """Print what a forecast costs, and the time of the dynamic filter and of M4 as multiples."""
    alone, many = costs(makes, recording), costs(ONE_PASS, recording, rows=1000, cells=30)
    print("\nMicroseconds per row to observe a cell and forecast the loss, or the first passage: one row; 1,000 rows")
    rows = [[name, *(f"{us:.2f}" for us in (*cost, *many.get(name, ())))] for name, cost in alone.items()]
    table(["", "loss", "passage", "loss, 1,000", "passage, 1,000"], [[*row, "-", "-"][:5] for row in rows])
    ratios = {
        "dkf_vs_one_pass": alone["dkf"].loss / statistics.median(alone[name].loss for name in BASELINES),
        "dkf_vs_one_pass_1000": many["dkf"].loss / statistics.median(many[name].loss for name in BASELINES),
        "m4_vs_dkf": alone["m4"].loss / alone["dkf"].loss if "m4" in alone else None,
    }
    print(f"Times as long for the loss: {', '.join(f'{name} {ratio:.1f}' for name, ratio in ratios.items() if ratio)}")
    return ratios | {f"{name}_us_{what}": us for name, cost in alone.items() for what, us in cost._asdict().items()}


if __name__ == "__main__":
    flags = {"lara": "only LARA's comparison, with engression, on every fourth recording: ten minutes"}
    main("forecasts.extrapolation", __doc__.splitlines()[0], measure, flags, curves=SHIPPED, plots=None)
