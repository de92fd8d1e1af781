"""The papers' policies on bundles of the sizes of the papers' tables, as read here and as printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import Recording
from benchmarks.curves.replay import Cell, Contender, play
from benchmarks.papers.printed import AT_DEFAULTS, PAPERS, PRINTED_ROWS, SLICES_TOO, rows
from benchmarks.policies.standings import ceiling_fractions, error, gain, met, print_met

# Bundles of the papers' tables: LARA's five jobs, LARA's and LaiRA's ten.
CELLS = (Cell(5, True), Cell(10, False), Cell(10, True))
# Above every length that a slice reaches.
NO_CAP = 10**6
# The gains of LaiRA's slices here, subtracted; printed is a plus, and no size.
PRINTED_GAINS = {"kp": 20.0, "kd": 5.0}


def as_printed(contenders: Mapping[str, Contender]) -> dict[str, Contender]:
    """Return LARA and LaiRA with what their papers print, where the defaults here are another reading, by row name.

    LARA explores 8,000 batches of each job (section 4.1); LaiRA extrapolates its drift over all the time left (eq. 8).
    """
    lara, laira = contenders["LARA"], contenders["LaiRA"]
    dkf = {**laira.arguments.get("dkf", {}), "damping": None}
    return {
        PRINTED_ROWS["LARA"]: replace(lara, arguments={**lara.arguments, "explore": 0, "explore_batches": 8000}),
        PRINTED_ROWS["LaiRA"]: replace(laira, arguments={**laira.arguments, "dkf": dkf}),
    }


def with_constants(contenders: Mapping[str, Contender]) -> dict[str, Contender]:
    """Return the baselines with their tuned constants and at their defaults, and LaiRA with and without printed slices.

    LARA and LaiRA were tuned with the same number of trials (:mod:`benchmarks.policies.tune`), and kept their defaults.
    """
    found: dict[str, Contender] = {}
    for name, at_defaults in AT_DEFAULTS.items():
        tuned = contenders[name]
        found |= {name: tuned, at_defaults: replace(tuned, arguments={}, estimator_arguments={})}
    eq8 = as_printed(contenders)[PRINTED_ROWS["LaiRA"]]
    gains = {gain: -default for gain, default in PRINTED_GAINS.items()}
    slices = replace(eq8, arguments={**eq8.arguments, **gains, "max_units": NO_CAP})
    return {**found, PRINTED_ROWS["LaiRA"]: eq8, SLICES_TOO: slices}


def constants(pool: Sequence[Recording], bundles: int, contenders: Mapping[str, Contender]) -> Figures:
    """Play bundles of the papers' sizes under :func:`with_constants`; print the jobs met and return their figures.

    Args:
        pool: Recordings.
        bundles: Number of bundles of each size.
        contenders: The papers' policies by row name.
    """
    results = play(pool, dict.fromkeys(CELLS, bundles), with_constants(contenders))
    print("\nTuned and not, printed slices and not")
    print_met(results)
    figures: Figures = {"constants_bundles": float(bundles)}
    for cell, played in results.items():
        for name, some_played in played.items():
            figures[f"constants_{name_of(cell)}_fraction_{name}"] = ceiling_fractions(results, name)[cell]
            figures[f"constants_{name_of(cell)}_met_{name}"] = float(met(some_played).mean())
    return figures


def compare(pool: Sequence[Recording], bundles: int, contenders: Mapping[str, Contender], ours: str) -> Figures:
    """Play bundles of the papers' sizes under their policies and ours; print the jobs met and return them.

    Args:
        pool: Recordings.
        bundles: Number of bundles of each size.
        contenders: The papers' policies and ours by row name.
        ours: Row name of ours.
    """
    some = {name: contenders[name] for name in (*PAPERS, ours)}
    results = play(pool, dict.fromkeys(CELLS, bundles), {**some, **as_printed(contenders)})
    print("\nJobs met that the papers print, on their own bundles")
    table(["bundle", "met"], rows())
    print_met(results)
    figures: Figures = {"papers_bundles": float(bundles)}
    for cell, played in results.items():
        fractions = {name: ceiling_fractions(results, name)[cell] for name in played}
        figures[f"papers_{name_of(cell)}_ceiling"] = float(np.mean([one.ceiling for one in played[ours]]))
        for name, some_played in played.items():
            figures[f"papers_{name_of(cell)}_met_{name}"] = float(met(some_played).mean())
            figures[f"papers_{name_of(cell)}_se_{name}"] = error(met(some_played))
            figures[f"papers_{name_of(cell)}_fraction_{name}"] = fractions[name]
    for name, printed in PRINTED_ROWS.items():
        figures[f"papers_change_{printed}"], figures[f"papers_change_se_{printed}"] = gain(results, printed, name)
    return figures


def name_of(cell: Cell) -> str:
    """Return the name of a cell in the names of figures."""
    return f"{'pure' if cell.pure else 'mixed'}_{cell.size}"
