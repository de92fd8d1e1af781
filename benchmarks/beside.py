"""Measure two trainings at once on one device: with paces measured on GPUs in virtual time, and on CPUs live."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.companies import processes
from benchmarks.companies.measured import GPUS, Paces, halves
from benchmarks.companies.virtual import Played, bundle, endless, with_deadlines
from benchmarks.curves.bundles import Recording
from benchmarks.curves.replay import reporting
from lightning_core.core.jobs import Beside
from lightning_core.simulation.recorded_curves import SHIPPED

# Plays of ten endless trainings on each GPU; bundles of each cell.
ENDLESS: Mapping[Size, int] = {"quick": 6, "default": 16, "full": 40}
BUNDLES: Mapping[Size, int] = {"quick": 6, "default": 16, "full": 40}
TRAININGS = 10
LOADS = ("load 0.8", "load 1.2", "load 2.0")
SIZES: Mapping[Size, Sequence[int]] = {"quick": (5, 10), "default": (5, 10, 20), "full": (5, 10, 20)}
# Deadlines are played with the paces of this GPU.
OF = "v100"


class Met(NamedTuple):
    """Deadlines met of one bundle as a fraction of the ceiling of turns."""

    beside: float
    turns: float
    losing: float
    """Part of the device's time in pairs that lose."""


def measure(size: Size, curves: Path = SHIPPED, *, live: bool = False, virtual: bool = False) -> Figures:
    """Measure all, or what is asked for."""
    figures: Figures = {}
    if virtual or not live:
        figures |= _gains(size, curves) | _deadlines(size, curves)
    if live or not virtual:
        figures |= processes.measure(size)
    return figures


def _gains(size: Size, curves: Path) -> Figures:
    """Play ten trainings that share a device by turns, on each GPU."""
    seeds = range(ENDLESS[size])
    figures: Figures = {}
    rows = []
    for gpu in GPUS:
        played = _all(partial(_endless, curves, gpu), seeds)
        work, matched = (
            float(np.mean(column)) for column in zip(*((one.work, known) for one, known in played), strict=True)
        )
        losing = float(np.mean([one.losing for one, _ in played]))
        figures |= {f"gain_{gpu}": work, f"gain_known_{gpu}": matched, f"losing_{gpu}": losing}
        rows.append([gpu, work, matched, losing])
    print(f"Work done over turns, ten endless trainings, {len(seeds)} plays: paces unknown at first, and all known")
    table(["gpu", "unknown", "known", "time in pairs that lose"], rows)
    return figures


def _deadlines(size: Size, curves: Path) -> Figures:
    """Play bundles with deadlines under the default policy, beside each other and by turns."""
    seeds = range(BUNDLES[size])
    cells = {(jobs, load): _all(partial(_with_deadlines, curves, jobs, load), seeds)
             for jobs in SIZES[size] for load in LOADS}  # fmt: skip
    rows, behind = [], 0
    for (jobs, load), found in cells.items():
        more = np.array([one.beside - one.turns for one in found if one is not None])
        error = float(more.std(ddof=1) / len(more) ** 0.5)
        behind += bool(more.mean() < -error)
        beside, turns = (float(np.mean([getattr(one, name) for one in found if one])) for name in ("beside", "turns"))
        rows.append([jobs, load, beside, turns, f"{more.mean():+.3f} ± {error:.3f}"])
    print(
        f"\nDeadlines met on {OF}, as a fraction of what a clairvoyant scheduler meets by turns; {len(seeds)} bundles"
    )
    table(["jobs", "load", "beside", "turns", "difference"], rows)
    all_of = [one for found in cells.values() for one in found if one is not None]
    return {
        f"met_{OF}": float(np.mean([one.beside for one in all_of])),
        f"met_turns_{OF}": float(np.mean([one.turns for one in all_of])),
        "met_behind_cells": float(behind),
        "bad_pairs": float(np.mean([one.losing for one in all_of])),
    }


def _endless(curves: Path, gpu: str, seed: int) -> tuple[Played, float]:
    paces, pool = Paces(gpu), _recordings(curves)
    names = random.Random(seed).sample(halves()[1], TRAININGS)
    return endless(paces, names, pool, seed, "rr"), paces.matched(names)


def _with_deadlines(curves: Path, jobs: int, load: str, seed: int) -> Met | None:
    """Return what is met of one bundle; None if nothing can be."""
    drawn = bundle(_recordings(curves), jobs, load, seed)
    if not drawn.ceiling:
        return None
    paces, names = Paces(OF), halves()[1]
    beside, turns = (with_deadlines(paces, drawn, names, seed, how) for how in (Beside.AUTO, Beside.NEVER))
    return Met(beside.met / drawn.ceiling, turns.met / drawn.ceiling, beside.losing)


_KNOWN: dict[Path, list[Recording]] = {}


def _recordings(curves: Path) -> list[Recording]:
    if curves not in _KNOWN:
        _KNOWN[curves] = reporting(curves)
    return _KNOWN[curves]


def _all(play: Callable[[int], Any], seeds: Sequence[int]) -> list[Any]:
    """Play all seeds, on all cores."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as workers:
        return list(workers.map(play, seeds))


if __name__ == "__main__":
    main(
        "beside",
        str(__doc__).partition("\n")[0],
        measure,
        flags={"live": "measure on CPUs alone", "virtual": "play in virtual time alone"},
        curves=SHIPPED,
    )
