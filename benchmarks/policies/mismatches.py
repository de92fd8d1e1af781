"""What earlier runs are worth that are not those of a job's task: of another one, batch size or scale of the metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import Recording
from benchmarks.curves.histories import Mismatch
from benchmarks.curves.replay import Cell, Contender, play
from benchmarks.policies.standings import gain, mean_fraction, trust_in

WITHOUT = "none"
# What is wrong with the earlier runs, by row name and by name of the figure.
MISMATCHES = {
    ("those of the task", "none"): Mismatch(),
    ("those of another task", "task"): Mismatch(task=True),
    ("at a fourth of their batches", "fewer_batches"): Mismatch(batches=0.25),
    ("at four times their batches", "more_batches"): Mismatch(batches=4.0),
    ("with a third of their losses", "lower_losses"): Mismatch(loss=1 / 3),
    ("with three times their losses", "higher_losses"): Mismatch(loss=3.0),
}


def measure(pool: Sequence[Recording], cells: Mapping[Cell, int], ours: Contender, runs: int) -> Figures:
    """Play bundles without earlier runs, with the right and with wrong ones; print a table and return its figures.

    Args:
        pool: Recordings that have so many earlier runs.
        cells: Number of bundles of each cell.
        ours: The contender, without earlier runs.
        runs: Number of earlier runs of each job.
    """
    rows = {name: replace(ours, history=runs, mismatch=mismatch) for (name, _), mismatch in MISMATCHES.items()}
    results = play(pool, cells, {WITHOUT: ours, **rows})
    print("\nEarlier runs that are not those of the task: fraction of the ceiling, how much more of it than without")
    print("earlier runs, and the part of the jobs that could be met alone and were told infeasible")
    gains = {name: gain(results, name, WITHOUT) for name in rows}
    table(
        ["earlier runs", "fraction", "more", "±", "told infeasible"],
        [
            [name, mean_fraction(results, name), *gains.get(name, ("", "")), trust_in(results, name).told]
            for name in (WITHOUT, *rows)
        ],
    )
    return {f"mismatch_{figure}": gains[name][0] for name, figure in MISMATCHES}
