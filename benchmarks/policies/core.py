"""Every policy on bundles of recorded loss curves: jobs met, beside a clairvoyant and the papers' policies.

Bundles, ceiling and the shipped scheduler in virtual time: :mod:`benchmarks.curves.bundles`,
:mod:`benchmarks.curves.replay`. No result is of a family of tasks on which constants were tuned (``split.json``,
:mod:`benchmarks.policies.tune`).
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.stats import ttest_rel

from benchmarks.common import Figures, add_files, keep, table
from benchmarks.curves.bundles import Recording
from benchmarks.curves.replay import Cell, Contender, Played, play, reporting
from benchmarks.forecasts import extrapolation
from benchmarks.policies import plots
from benchmarks.policies.decide import PAST_A_SLICE, ROUNDS, round_ms
from benchmarks.policies.tune import contender, tuned
from lightning_core.core.arrays import FloatArray
from lightning_core.simulation.recorded_curves import SHIPPED
from lightning_core.simulation.scenario import Delays

Results = Mapping[Cell, Mapping[str, Sequence[Played]]]

OURS, GUARDED = "triage", "guarded EDF"
# The rows of the papers: their policies and those that they compare with.
PAPERS = ("FIFO", "UA", "STF", "RR", "SH", "LRF", "ETF", "STA", "LARA", "LaiRA")
# What the papers say in words and tables (their bundles cannot be run again: data, models and thresholds are theirs).
PRINTED = (
    ("LARA, pure, 5 jobs", "LARA 4, LRF 2, ETF 2, UA 0, STF 0"),
    ("LARA, mixed, 10 jobs, first thresholds", "LARA 8, UA 6, LRF 4, ETF 4, STF 2"),
    ("LARA, mixed, 10 jobs, second thresholds", "LARA 6, STF 5, UA 3"),
    ("LaiRA, pure, 10 jobs, 4 infeasible", "STA 3, RR 2, LaiRA best"),
    ("LaiRA, mixed, 10 jobs, 4 infeasible", "LaiRA 6, LARA 3, UA 3, RR 3, STA 2, STF 1, SH 1"),
)
SWITCH_COSTS = (0.0, 0.2, 1.0)
# Decisions are timed for so many jobs.
JOBS = (10, 100, 1000, 10_000)


def contenders() -> dict[str, Contender]:
    """The papers' policies and ours, with their tuned constants, by the names of their rows."""

    def by_deadline(policy: str) -> Contender:  # who follows no forecast is spared making one
        return replace(contender(policy, tuned(policy)), estimator="log_time")

    laira, lara = tuned("laira"), tuned("lara")
    return {
        "FIFO": by_deadline("fifo"),
        "UA": by_deadline("uniform"),
        "STF": by_deadline("edf"),
        "RR": by_deadline("rr"),
        "SH": by_deadline("successive_halving"),
        "LRF": contender("lrf", tuned("lrf")),
        "ETF": contender("etf", tuned("etf")),
        "STA": contender("laira", {**laira, "look_ahead": False}),
        "LARA": contender("lara", lara),
        "LaiRA": contender("laira", laira),
        GUARDED: contender("guarded_edf", tuned("guarded_edf")),
        "index-EDF": contender("index_edf", tuned("index_edf")),
        OURS: contender("triage", tuned("triage")),
    }


def variants() -> dict[str, Contender]:
    """Ablations of LaiRA, and our variants of the papers' policies: rows of their own."""
    laira, lara, ours = tuned("laira"), tuned("lara"), tuned("triage")
    own = {name: value for name, value in ours.items() if not name.startswith("estimator.")}
    return {
        "LaiRA without UCB": contender("laira", {**laira, "ucb": False}),
        "LaiRA without PD": contender("laira", {**laira, "pd": False}),
        "LaiRA without DKF (STA)": contender("laira", {**laira, "look_ahead": False}),
        "LARA's set by EDF": contender("lara", {**lara, "order": "edf"}),
        "... and the posterior": replace(contender("lara", {"order": "edf"}), estimator="posterior"),
        "triage on WLS": replace(contender("triage", own), estimator="weighted"),
        "triage on log-time": replace(contender("triage", own), estimator="log_time"),
        "triage on DKF": replace(contender("triage", own), estimator="dkf"),
    }


def sensitivity() -> dict[str, Contender]:
    """One constant at a time, the others as tuned."""
    laira, lara, ours = tuned("laira"), tuned("lara"), tuned("triage")
    rows = {f"LARA gamma {g}": contender("lara", {**lara, "estimator.gamma": g}) for g in (0.85, 0.9, 0.95, 0.99)}
    rows |= {f"LARA H {h}": contender("lara", {**lara, "explore": h}) for h in (5, 10, 20, 40, 80)}
    rows |= {f"LaiRA delta {d:g}": contender("laira", {**laira, "dkf.delta": d}) for d in (0.0, 1e-3, 1e-2, 1e-1)}
    rows |= {f"LaiRA gamma {g}": contender("laira", {**laira, "gamma": g}) for g in (0.85, 0.9, 0.95, 0.99)}
    rows |= {f"triage level {q}": contender("triage", {**ours, "level": q}) for q in (0.1, 0.2, 0.3, 0.4, 0.5)}
    rows |= {f"triage judge_after {n}": contender("triage", {**ours, "judge_after": n}) for n in (10, 14, 20, 40)}
    rows |= {f"triage min_chance {p}": contender("triage", {**ours, "min_chance": p}) for p in (0.05, 0.15, 0.3)}
    return rows


# ---------------------------------------------------------------------------------------------------- statistics


def shares(results: Results, row: str) -> dict[Cell, float]:
    """Jobs met over the ceiling, in each cell."""
    return {
        cell: sum(p.met for p in rows[row]) / max(sum(p.ceiling for p in rows[row]), 1)
        for cell, rows in results.items()
    }


def mean_share(results: Results, row: str, least: int = 0) -> float:
    """The cells of at least so many jobs weighed equally."""
    return float(np.mean([share for cell, share in shares(results, row).items() if cell.size >= least]))


def met(played: Sequence[Played]) -> FloatArray:
    """Jobs met of each bundle, in the order of the bundles."""
    return np.array([p.met for p in played], float)


def error(values: FloatArray) -> float:
    """Standard error of the mean; 0 for one value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def behind(results: Results, row: str, other: str) -> list[Cell]:
    """The cells in which ``row`` meets fewer jobs than ``other`` by more than a standard error, paired by bundle."""
    differences = {cell: met(rows[row]) - met(rows[other]) for cell, rows in results.items()}
    return [cell for cell, by in differences.items() if by.mean() < -error(by)]


def ahead(results: Results, row: str, others: Sequence[str]) -> dict[tuple[int, str], float]:
    """How sure it is that ``row`` is ahead of each other at each size, its cells pooled.

    Returns:
        For each size and other the p-value of a paired one-sided t-test, corrected by Holm for all of them together.
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


def switches_per_job(results: Results, row: str) -> float:
    """The cells weighed equally."""
    return float(np.mean([np.mean([p.switches for p in rows[row]]) / cell.size for cell, rows in results.items()]))


# -------------------------------------------------------------------------------------------------------- tables


def print_met(results: Results) -> None:
    """Jobs met by each contender in each cell, with standard errors and the part of the ceiling."""
    cells = list(results)
    rows = [["ceiling", *(f"{np.mean([p.ceiling for p in next(iter(results[c].values()))]):.2f}" for c in cells), ""]]
    for name in next(iter(results.values())):
        by_cell = shares(results, name)
        texts = [
            f"{met(results[c][name]).mean():.2f}±{error(met(results[c][name])):.2f} ({by_cell[c]:.0%})" for c in cells
        ]
        rows.append([name, *texts, f"{mean_share(results, name):.3f}"])
    bundles = ", ".join(f"{cell}: {len(next(iter(rows.values())))}" for cell, rows in results.items())
    print(
        f"\nJobs met, mean ± standard error (part of the ceiling); last: the cells weighed equally. Bundles {bundles}"
    )
    table(["policy", *map(str, cells), "all"], rows)


def print_switches(results: Results) -> None:
    print("\nSwitches a job")
    rows = [
        [name, *(float(np.mean([p.switches for p in results[cell][name]])) / cell.size for cell in results)]
        for name in next(iter(results.values()))
    ]
    table(["policy", *map(str, results)], rows)


def print_ahead(results: Results, sure: Mapping[tuple[int, str], float]) -> None:
    print(f"\nIs {OURS} ahead? Paired one-sided t-tests, all corrected together (Holm): p")
    sizes = sorted({size for size, _ in sure})
    others = list(dict.fromkeys(other for _, other in sure))
    table(["of", *(f"{n} jobs" for n in sizes)], [[o, *(f"{sure[n, o]:.1e}" for n in sizes)] for o in others])


def print_one(results: Results, title: str) -> None:
    """One number a row: the mean part of the ceiling, and switches."""
    print(f"\n{title}")
    table(
        ["policy", "of the ceiling", "switches a job"],
        [[name, mean_share(results, name), switches_per_job(results, name)] for name in next(iter(results.values()))],
    )


def print_decisions() -> dict[str, float]:
    """Milliseconds of a whole round by number of jobs."""
    policies = ("edf", "lara", "laira", "guarded_edf", "triage")
    cost = {(p, n): round_ms(n, p, ROUNDS, step=PAST_A_SLICE)[0] for p in policies for n in JOBS}
    print("\nA whole round, all shares changed, curves unchanged since the last: median ms")
    table(["jobs", *policies], [[n, *(cost[p, n] for p in policies)] for n in JOBS])
    return {f"{p}_ms_{n}": cost[p, n] for p in ("laira", "triage") for n in JOBS}


# ----------------------------------------------------------------------------------------------------------- run

Size = Literal["quick", "default", "full"]
BUNDLES: Mapping[Size, Mapping[int, int]] = {
    "quick": {5: 12, 10: 12, 20: 12},
    "default": {5: 78, 10: 36, 25: 30},
    "full": {5: 78, 10: 36, 25: 30, 50: 30, 100: 30},
}
PARTS = ("policies", "variants", "costs", "sensitivity", "forecasts", "decisions")
PARTS_OF: Mapping[Size, Sequence[str]] = {
    "quick": ("policies",),
    "default": ("policies", "variants", "costs", "forecasts", "decisions"),
    "full": PARTS,
}
QUICK = ("STF", "LARA", "LaiRA", GUARDED, OURS)


def measure(
    size: Size,
    parts: Collection[str],
    rows: Mapping[str, Contender],
    curves: Path,
    picture: Path | None,
) -> Figures:
    pool = reporting(curves)
    cells = {Cell(jobs, pure): count for jobs, count in BUNDLES[size].items() for pure in (False, True)}
    figures: Figures = {}
    if "policies" in parts:
        figures |= _policies(pool, cells, rows, picture)
    some = {Cell(jobs, pure): 24 if size == "full" else 12 for jobs in (10, 25) for pure in (False, True)}
    if "variants" in parts:
        print_one(play(pool, some, {"LaiRA": contenders()["LaiRA"], **variants()}), "Ablations and variants")
    if "costs" in parts:
        _costs(pool, {cell: count for cell, count in some.items() if not cell.pure}, picture)
    if "sensitivity" in parts:
        print_one(play(pool, some, sensitivity()), "Sensitivity: one constant at a time")
    if "decisions" in parts:
        figures |= print_decisions()
    if "forecasts" in parts:
        figures |= extrapolation.measure(size, curves, picture)
    return figures


def _policies(
    pool: Sequence[Recording], cells: Mapping[Cell, int], rows: Mapping[str, Contender], picture: Path | None
) -> Figures:
    results = play(pool, cells, rows)
    print("What the papers print, on bundles of theirs: jobs met")
    table(["bundle", "met"], PRINTED)
    print_met(results)
    print_switches(results)
    sure = ahead(results, OURS, [name for name in PAPERS if name in rows])
    print_ahead(results, sure)
    late = behind(results, OURS, GUARDED)
    if late:
        print(f"Behind {GUARDED} by more than a standard error: {', '.join(map(str, late))}")
    if picture:
        plots.shares(results, picture / "shares.png")
        plots.switches(results, picture / "switches.png")
    return {
        "ours_ceiling_fraction": mean_share(results, OURS),
        **{
            f"ours_vs_{name.lower()}": mean_share(results, OURS, 10) / mean_share(results, name, 10)
            for name in ("LARA", "LaiRA")
            if name in rows
        },
        "ours_behind_cells": float(len(late)),
        "switches_per_job": switches_per_job(results, OURS),
        "coverage_q90": extrapolation.coverage_q90(pool),
        "ahead_of_papers": float(sum(p < 0.05 for p in sure.values())),
        "ahead_of_papers_of": float(len(sure)),
    }


def _costs(pool: Sequence[Recording], cells: Mapping[Cell, int], picture: Path | None) -> None:
    costs: dict[float, Results] = {}
    rows = contenders()
    names = ("STF", "RR", "LARA", "LaiRA", GUARDED, OURS)
    for cost in SWITCH_COSTS:
        costs[cost] = play(pool, cells, {name: replace(rows[name], delays=Delays(switch=cost)) for name in names})
    print("\nA switch costs so many seconds: part of the ceiling, mixed bundles")
    table(
        ["policy", *(f"{cost} s" for cost in SWITCH_COSTS)],
        [[name, *(mean_share(costs[cost], name) for cost in SWITCH_COSTS)] for name in names],
    )
    if picture:
        by_cost = {cost: {name: mean_share(played, name) for name in names} for cost, played in costs.items()}
        plots.switch_costs(by_cost, picture / "switch_costs.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.core", description=(__doc__ or "").splitlines()[0]
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", dest="size", action="store_const", const="quick", help="within 50 seconds on 2 cores")
    how.add_argument("--full", dest="size", action="store_const", const="full", help="everything, an hour or two")
    parser.add_argument("--part", nargs="+", choices=PARTS, metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows of the first table, and ours")
    parser.add_argument("--curves", type=Path, default=SHIPPED, metavar="DIR", help="recordings (default: the shipped)")
    add_files(parser)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw pictures here (PNG)")
    parser.set_defaults(size="default")
    arguments = parser.parse_args()
    if arguments.plots:
        arguments.plots.mkdir(parents=True, exist_ok=True)
    parts = arguments.part or PARTS_OF[arguments.size]
    rows = contenders()
    names = arguments.rows or (QUICK if arguments.size == "quick" else list(rows))
    if unknown := [name for name in names if name not in rows]:
        parser.error(f"rows must be of {', '.join(rows)}, got {', '.join(unknown)}")
    some = {name: row for name, row in rows.items() if name in {*names, OURS, GUARDED}}
    figures = measure(arguments.size, parts, some, arguments.curves, arguments.plots)
    print()
    table(["figure", "value"], [[name, value] for name, value in figures.items()])
    keep("policies.core", arguments, figures)


if __name__ == "__main__":
    main()
