"""Statistics and tables of policies that were played on the same bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import ttest_rel

from benchmarks.common import table
from benchmarks.curves.replay import Cell, Played
from benchmarks.curves.verdicts import PARTS_OF_THE_WAY, Trust, trust
from lightning_core.core.arrays import FloatArray

Results = Mapping[Cell, Mapping[str, Sequence[Played]]]


def ceiling_fractions(results: Results, row: str) -> dict[Cell, float]:
    """Return the jobs met as a fraction of the ceiling, in each cell."""
    return {
        cell: sum(p.met for p in rows[row]) / max(sum(p.ceiling for p in rows[row]), 1)
        for cell, rows in results.items()
    }


def mean_fraction(results: Results, row: str, min_jobs: int = 0) -> float:
    """Return the mean fraction over the cells of at least ``min_jobs`` jobs, weighted equally."""
    return float(np.mean([part for cell, part in ceiling_fractions(results, row).items() if cell.size >= min_jobs]))


def met(played: Sequence[Played]) -> FloatArray:
    """Return the jobs met of each bundle, in order."""
    return np.array([p.met for p in played], float)


def error(values: FloatArray) -> float:
    """Return the standard error of the mean; 0 for one value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def behind(results: Results, row: str, other: str) -> list[Cell]:
    """Return the cells in which ``row`` meets fewer jobs than ``other`` by more than a standard error, by pairs."""
    differences = {cell: met(rows[row]) - met(rows[other]) for cell, rows in results.items()}
    return [cell for cell, by in differences.items() if by.mean() < -error(by)]


def ahead(results: Results, row: str, others: Sequence[str]) -> dict[tuple[int, str], float]:
    """Test whether ``row`` is ahead of each other row at each size, with the cells of a size pooled.

    Returns:
        p-value of a paired one-sided t-test for each size and other row, Holm-corrected over all of them.
    """
    raw: dict[tuple[int, str], float] = {}
    for size in sorted({cell.size for cell in results}):
        for other in others:
            pairs = [(met(rows[row]), met(rows[other])) for cell, rows in results.items() if cell.size == size]
            mine, its = (np.concatenate(side) for side in zip(*pairs, strict=True))
            same = np.all(mine == its)
            raw[size, other] = 1.0 if same else float(ttest_rel(mine, its, alternative="greater").pvalue)
    corrected, worst = {}, 0.0
    for rank, key in enumerate(sorted(raw, key=lambda key: raw[key])):
        worst = max(worst, min(1.0, raw[key] * (len(raw) - rank)))
        corrected[key] = worst
    return corrected


def gain(results: Results, row: str, other: str) -> tuple[float, float]:
    """Return how much more of the ceiling ``row`` meets than ``other``, the mean over the cells, and its error."""
    gains, variances = [], []
    for rows in results.values():
        ceiling = np.mean([p.ceiling for p in rows[row]])
        by = (met(rows[row]) - met(rows[other])) / ceiling
        gains.append(float(by.mean()))
        variances.append(error(by) ** 2)
    return float(np.mean(gains)), float(np.sqrt(np.sum(variances)) / len(gains))


def switches_per_job(results: Results, row: str) -> float:
    """Return the mean switches per job over the cells, weighted equally."""
    return float(np.mean([np.mean([p.switches for p in rows[row]]) / cell.size for cell, rows in results.items()]))


def trust_in(results: Results, row: str) -> Trust:
    """Return how far the verdicts of a row can be trusted, over the jobs of all cells."""
    return trust([job for rows in results.values() for played in rows[row] for job in played.jobs])


def print_met(results: Results) -> None:
    """Print the jobs met by each policy in each cell, with standard errors and fractions of the ceiling."""
    cells = list(results)
    rows = [["ceiling", *(f"{np.mean([p.ceiling for p in next(iter(results[c].values()))]):.2f}" for c in cells), ""]]
    for name in next(iter(results.values())):
        by_cell = ceiling_fractions(results, name)
        texts = [
            f"{met(results[c][name]).mean():.2f}±{error(met(results[c][name])):.2f} ({by_cell[c]:.0%})" for c in cells
        ]
        rows.append([name, *texts, f"{mean_fraction(results, name):.3f}"])
    bundles = ", ".join(f"{cell}: {len(next(iter(rows.values())))}" for cell, rows in results.items())
    print(
        f"\nJobs met, mean ± standard error (% of the ceiling); last: mean fraction of the ceiling. "
        f"Number of bundles: {bundles}"
    )
    table(["policy", *map(str, cells), "all"], rows)


def print_switches(results: Results) -> None:
    """Print the switches per job of each policy in each cell."""
    print("\nSwitches per job")
    rows = [
        [name, *(float(np.mean([p.switches for p in results[cell][name]])) / cell.size for cell in results)]
        for name in next(iter(results.values()))
    ]
    table(["policy", *map(str, results)], rows)


def print_verdicts(results: Results) -> None:
    """Print how far the verdicts under each policy can be trusted."""
    print(
        "\nVerdicts: of the jobs that could be met, the part ever told infeasible, and told so while they still could; "
        "of the others, the part told so; changes per job, median and mean; then how often 'feasible' and 'at risk' "
        "came true, by the part seen"
    )
    parts = [f"{part:.0%}" for part in PARTS_OF_THE_WAY]
    rows = []
    for name in next(iter(results.values())):
        found = trust_in(results, name)
        true = [f"{one:.2f} of {asked}" for one, (asked, _) in zip(found.feasible, found.asked, strict=True)]
        true += [f"{one:.2f} of {asked}" for one, (_, asked) in zip(found.at_risk, found.asked, strict=True)]
        rows.append([name, found.told, found.wrongly, found.found, *found.changes, *true])
    columns = [f"{verdict} {part}" for verdict in ("feasible", "at risk") for part in parts]
    table(["policy", "infeasible", "wrongly", "found", "median", "mean", *columns], rows)


def print_ahead(results: Results, row: str, sure: Mapping[tuple[int, str], float]) -> None:
    """Print the p-values of :func:`ahead`."""
    print(f"\nIs {row} ahead of the others? p-values of paired one-sided t-tests, Holm-corrected together")
    sizes = sorted({size for size, _ in sure})
    others = list(dict.fromkeys(other for _, other in sure))
    table(["", *(f"{n} jobs" for n in sizes)], [[o, *(f"{sure[n, o]:.1e}" for n in sizes)] for o in others])


def print_one(results: Results, title: str) -> None:
    """Print the mean fraction of the ceiling and the switches per job of each policy."""
    print(f"\n{title}")
    table(
        ["policy", "fraction of the ceiling", "switches per job"],
        [
            [name, mean_fraction(results, name), switches_per_job(results, name)]
            for name in next(iter(results.values()))
        ],
    )
