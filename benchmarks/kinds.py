"""Measure deadlines met on a cluster of three kinds of GPUs: ours, ours blind to kinds, EDF, and Gavel's program.

Rates are measured ones, jobs are drawn (:mod:`benchmarks.unlike.measured_kinds`), and all is played in virtual time.
The blind take all devices for alike; ``learns`` knows that they differ and nothing else: it sees rates as jobs train,
and has them try kinds. Gavel is the better of its two rows, all deadlines dropped from the program or the shortfall
kept small where not all can be kept. A job that resumes on other devices loses 30 s, or nothing in the cells that say
so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.unlike.gavel_kinds import GavelOnKinds
from benchmarks.unlike.measured_kinds import draw, most_in_time
from benchmarks.unlike.play_kinds import RESTART, KindContender, play
from benchmarks.unlike.unseen_rates import foreseen

DEVICES = {"v100": 8, "p100": 8, "k80": 8}
# At the last load of each size all jobs are there at once, nearly: there the blind meet about half.
LOADS: Mapping[Size, Sequence[float]] = {"quick": (4, 60), "default": (1, 2, 4, 8, 14, 60),
                                         "full": (1, 2, 4, 8, 14, 60)}  # fmt: skip
SEEDS: Mapping[Size, int] = {"quick": 3, "default": 10, "full": 30}
JOBS: Mapping[Size, int] = {"quick": 100, "default": 100, "full": 100}
OURS, LEARNS, BLIND, EDF = "ours", "learns", "blind", "edf"
GAVEL = ("gavel", "gavel relaxed")
ROWS = {
    OURS: KindContender("triage"),
    LEARNS: KindContender("triage", knows="kinds"),
    BLIND: KindContender("triage", knows="nothing"),
    EDF: KindContender("edf"),
    "gavel": KindContender(GavelOnKinds),
    "gavel relaxed": KindContender(GavelOnKinds, {"relaxed": True}),
    "guarded_edf": KindContender("guarded_edf"),
    "decor": KindContender("decor"),
    "lara": KindContender("lara"),
    "laira": KindContender("laira"),
    "fifo": KindContender("fifo"),
}
FIRST = (OURS, LEARNS, BLIND, EDF, *GAVEL)
# Rows of the cells in which a move costs nothing.
FREE = (OURS, BLIND, *GAVEL)
Cell = tuple[str, float, float]


def measure(size: Size) -> Figures:
    """Play all cells."""
    rows, seeds, count = FIRST if size == "quick" else tuple(ROWS), range(SEEDS[size]), JOBS[size]
    cells = [(row, load, RESTART) for load in LOADS[size] for row in rows]
    cells += [(row, load, 0.0) for load in LOADS[size] for row in FREE]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as workers:
        bounds = {load: [workers.submit(_bound, count, load, seed) for seed in seeds] for load in LOADS[size]}
        played = {cell: [workers.submit(_play, cell, count, seed) for seed in seeds] for cell in cells}
        bound = {load: np.array([one.result() for one in some]) for load, some in bounds.items()}
        met = {cell: np.array([one.result() for one in some]) for cell, some in played.items()}
    for (row, load, _), found in met.items():
        if (found > bound[load] + 1e-6).any():
            raise AssertionError(f"{row} met {found} of {bound[load]}, the upper bound, at load {load}")
    figures: Figures = {}
    for restart, some in ((RESTART, rows), (0.0, FREE)):
        print(f"\nDeadlines met of {count} jobs on {DEVICES}, a move costs {restart:g} s; {len(seeds)} seeds")
        table(["load", "bound", *some], [
            [load, bound[load].mean(), *(_with_error(met[row, load, restart] / count) for row in some)]
            for load in LOADS[size]
        ])  # fmt: skip
        figures |= _figures(met, LOADS[size], restart, some, count)
    figures |= foreseen()
    figures["bound"] = float(np.mean([bound[load].mean() for load in LOADS[size]])) / count
    return figures


def _figures(
    met: Mapping[Cell, np.ndarray], loads: Sequence[float], restart: float, rows: Sequence[str], count: int
) -> Figures:
    after = "" if restart else "_free_moves"
    # The load at which the blind are nearest to half; and by how much ours are ahead there.
    half = min(loads, key=lambda load: abs(met[BLIND, load, restart].mean() / count - 0.5))
    figures: Figures = {
        f"half_load{after}": float(half),
        f"over_blind{after}": float(met[OURS, half, restart].mean() / met[BLIND, half, restart].mean()),
    }
    behind = 0
    for load in loads:
        gavel = max((met[row, load, restart] for row in GAVEL), key=np.mean)
        more = met[OURS, load, restart] - gavel
        behind += bool(more.mean() < -more.std(ddof=1) / len(more) ** 0.5)
    figures[f"behind_gavel_cells{after}"] = float(behind)
    for row in (*rows, "gavel best"):
        of_row = [
            np.max([met[one, load, restart] for one in GAVEL], axis=0)
            if row == "gavel best"
            else met[row, load, restart]
            for load in loads
        ]
        over = np.mean(of_row, axis=0) / count  # of each seed, over the loads
        name = row.replace(" ", "_")
        figures[f"{name}_met{after}"] = float(over.mean())
        figures[f"{name}_met_error{after}"] = float(over.std(ddof=1) / len(over) ** 0.5)
    return figures


def _with_error(parts: np.ndarray) -> str:
    return f"{parts.mean():.3f} ± {parts.std(ddof=1) / len(parts) ** 0.5:.3f}"


def _play(cell: Cell, count: int, seed: int) -> int:
    row, load, restart = cell
    return play(draw(count, DEVICES, load, seed), DEVICES, ROWS[row], restart).met


def _bound(count: int, load: float, seed: int) -> float:
    return most_in_time(draw(count, DEVICES, load, seed), DEVICES)


if __name__ == "__main__":
    main("kinds", __doc__, measure)
