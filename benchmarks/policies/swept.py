"""The figures on constants: LARA's figure 11 and LaiRA's figure 7, one constant at a time.

The rows are the policies as printed, and LARA has the paper's other constant: a threshold of 6,000 batches where the
forgetting factor differs, a factor of 0.9 where the threshold does. LaiRA's paper prints no value of either constant,
and no range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import Recording
from benchmarks.curves.replay import Cell, Contender, play
from benchmarks.papers.printed import JOBS_SWEPT, PRINTED_ROWS, SWEEPS, figure_of
from benchmarks.policies.as_printed import as_printed, name_of
from benchmarks.policies.standings import ceiling_fractions


def contenders(printed: Mapping[str, Contender]) -> dict[str, Contender]:
    """Return a row for each value of each constant, by the name of its figure.

    Args:
        printed: The papers' policies as printed, by row name.
    """
    lara, laira = (printed[PRINTED_ROWS[paper]] for paper in ("LARA", "LaiRA"))

    def row(name: str, value: float) -> Contender:
        if name == "lara_explore":
            return _with(lara, explore_batches=int(value))
        if name == "lara_gamma":
            return replace(_with(lara, explore_batches=6000), estimator_arguments={"gamma": value})
        if name == "laira_delta":
            return _with(laira, dkf={**laira.arguments["dkf"], "delta": value})
        return _with(laira, gamma=value)

    return {figure_of(name, value): row(name, value) for name, sweep in SWEEPS.items() for value in sweep.values}


def _with(row: Contender, **arguments: Any) -> Contender:
    return replace(row, arguments={**row.arguments, **arguments})


def measure(pool: Sequence[Recording], bundles: int, known: Mapping[str, Contender]) -> Figures:
    """Play the sweeps; print the part of the ceiling met and return it.

    Args:
        pool: Recordings.
        bundles: Number of bundles of each kind.
        known: The papers' policies by row name.
    """
    rows = contenders(as_printed(known))
    results: dict[str, dict[Cell, float]] = {}
    for pure in (False, True):
        some = {figure_of(name, value): rows[figure_of(name, value)] for name, sweep in SWEEPS.items()
                if pure in sweep.kinds for value in sweep.values}  # fmt: skip
        played = play(pool, {Cell(JOBS_SWEPT, pure): bundles}, some)
        for name in some:
            results.setdefault(name, {}).update(ceiling_fractions(played, name))
    figures: Figures = {"swept_bundles": float(bundles)}
    for name, parts in results.items():
        figures |= {f"{name}_{name_of(cell)}": part for cell, part in parts.items()}
    for name, sweep in SWEEPS.items():
        print(f"\n{sweep.paper}, {sweep.where}: part of the ceiling met by {sweep.title}")
        table([sweep.title, *("pure" if pure else "mixed" for pure in sorted(sweep.kinds))],
              [[value, *results[figure_of(name, value)].values()] for value in sweep.values])  # fmt: skip
    return figures
