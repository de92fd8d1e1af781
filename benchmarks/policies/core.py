"""Compare policies on bundles of recorded loss curves: jobs met, as a fraction of what a clairvoyant scheduler meets.

Bundles, their ceiling and the scheduler in virtual time: :mod:`benchmarks.curves.bundles`,
:mod:`benchmarks.curves.replay`. Families of tasks on which constants were tuned (``split.json``,
:mod:`benchmarks.policies.tune`) are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from benchmarks.common import Figures, add_files, keep, table, tables_apart
from benchmarks.curves.bundles import Recording
from benchmarks.curves.histories import Mismatch, with_enough
from benchmarks.curves.misbehaving import misbehaving
from benchmarks.curves.replay import Cell, Contender, play, reporting
from benchmarks.forecasts import extrapolation, lara_comparison
from benchmarks.forecasts.coverage import coverage
from benchmarks.papers.printed import PAPERS
from benchmarks.policies import as_printed, mismatches, plots, swept, variants, watched_laira
from benchmarks.policies.decide import PAST_A_SLICE, ROUNDS, round_ms
from benchmarks.policies.standings import (
    Results,
    ahead,
    behind,
    gain,
    mean_fraction,
    print_ahead,
    print_met,
    print_one,
    print_switches,
    print_verdicts,
    switches_per_job,
    trust_in,
)
from benchmarks.policies.tune import contender, tuned
from lightning_core.simulation.recorded_curves import SHIPPED
from lightning_core.simulation.scenario import Delays

OURS, GUARDED = "triage", "guarded EDF"
WITHOUT, WRONG = "triage without history", "triage, wrong history"
NO_RATES = "triage without learning rates"
SWITCH_COSTS = (0.0, 0.2, 1.0)
# Numbers of jobs for which decisions are timed.
JOBS = (10, 100, 1000, 10_000)


def contenders() -> dict[str, Contender]:
    """Return the papers' policies and ours with tuned constants, by row name."""

    def by_deadline(policy: str) -> Contender:  # it uses no forecast: the cheapest estimator will do
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


def with_history(rows: Mapping[str, Contender], runs: int) -> dict[str, Contender]:
    """Return the rows with earlier runs for ours, and ours without them and with those of other tasks."""
    ours = rows[OURS]
    return {
        **rows,
        OURS: replace(ours, history=runs),
        WITHOUT: ours,
        WRONG: replace(ours, history=runs, mismatch=Mismatch(task=True)),
    }


def with_schedule(rows: Mapping[str, Contender]) -> dict[str, Contender]:
    """Return the rows with learning rates for ours, and ours without them."""
    ours = {name: replace(row, schedule=True) for name, row in rows.items() if name in (OURS, WITHOUT, WRONG)}
    return {**rows, **ours, NO_RATES: rows[OURS]}


def print_decisions(numbers: Sequence[int]) -> dict[str, float]:
    """Print and return the milliseconds of a whole round by number of jobs."""
    policies = ("edf", "lara", "laira", "guarded_edf", "triage")
    cost = {(p, n): round_ms(n, p, ROUNDS, step=PAST_A_SLICE)[0] for p in policies for n in numbers}
    print("\nA whole round in which all shares change and no curve does: median ms")
    table(["jobs", *policies], [[n, *(cost[p, n] for p in policies)] for n in numbers])
    return {f"{p}_ms_{n}": cost[p, n] for p in ("lara", "laira", "triage") for n in numbers}


Size = Literal["quick", "default", "full"]
BUNDLES: Mapping[Size, Mapping[int, int]] = {
    "quick": {5: 12, 10: 12, 20: 12},
    "default": {5: 78, 10: 36, 25: 30},
    "full": {5: 78, 10: 36, 25: 30, 50: 30, 100: 30},
}
# Bundles of each size of the papers' tables.
PAPERS_BUNDLES: Mapping[Size, int] = {"quick": 12, "default": 36, "full": 78}
PARTS = (
    "policies", "misbehaving", "papers", "constants", "variants", "swept", "watched", "costs", "sensitivity",
    "mismatches", "forecasts", "decisions",
)  # fmt: skip
PARTS_OF: Mapping[Size, Sequence[str]] = {
    "quick": ("policies", "misbehaving"),
    "default": (
        "policies",
        "misbehaving",
        "papers",
        "constants",
        "variants",
        "swept",
        "watched",
        "costs",
        "forecasts",
        "decisions",
    ),
    "full": PARTS,
}
# Two rows more take longer.
QUICK_WITH_HISTORY = {5: 12, 10: 10, 20: 6}
QUICK = ("STF", "LARA", "LaiRA", GUARDED, OURS)


def measure(
    size: Size,
    parts: Collection[str],
    rows: Mapping[str, Contender],
    curves: Path,
    picture: Path | None,
    history: int = 0,
    *,
    schedule: bool = False,
) -> Figures:
    """Run the parts that are wanted, print their tables and return their figures."""
    if "forecasts" in parts and size == "full":
        lara_comparison.check()
    pool = reporting(curves)
    if history:
        remembered = with_enough(pool, history)
        families = len({one.curve.family for one in pool} - {one.curve.family for one in remembered})
        left_out = f"{len(pool) - len(remembered)} of {len(pool)} recordings have fewer and are left out"
        print(f"{history} earlier runs of the same task for each job: {left_out}, with them {families} families\n")
        pool, rows = remembered, with_history(rows, history)
    if schedule:
        known = sum(one.curve.lr is not None for one in pool)
        print(f"Jobs of ours report their learning rates: those of {known} of {len(pool)} recordings are known\n")
        rows = with_schedule(rows)
    bundles = QUICK_WITH_HISTORY if history and size == "quick" else BUNDLES[size]
    cells = {Cell(jobs, pure): count for jobs, count in bundles.items() for pure in (False, True)}
    figures: Figures = {}
    if "policies" in parts:
        figures |= _policies(pool, cells, rows, picture)
    some = {Cell(jobs, pure): 24 if size == "full" else 12 for jobs in (10, 25) for pure in (False, True)}
    if "misbehaving" in parts and not history:
        figures |= _misbehaving(pool, cells, rows)
    if "papers" in parts:
        figures |= as_printed.compare(pool, PAPERS_BUNDLES[size], contenders(), OURS)
    if "constants" in parts:
        figures |= as_printed.constants(pool, PAPERS_BUNDLES[size], contenders())
    if "variants" in parts:
        figures |= variants.measure(pool, some, contenders()["LaiRA"])
    if "swept" in parts:
        figures |= swept.measure(pool, 24 if size == "full" else 12, contenders())
    if "watched" in parts:
        figures |= watched_laira.measure(pool, PAPERS_BUNDLES[size], contenders()["LaiRA"])
    if "costs" in parts:
        _costs(pool, {cell: count for cell, count in some.items() if not cell.pure}, picture)
    if "sensitivity" in parts:
        print_one(play(pool, some, variants.sensitivity()), "Sensitivity: one constant at a time")
    if "mismatches" in parts and history:
        figures |= mismatches.measure(pool, cells, contenders()[OURS], history)
    if "decisions" in parts:
        figures |= print_decisions(JOBS[:2] if size == "quick" else JOBS)
    if "forecasts" in parts:
        figures |= extrapolation.measure(size, curves, picture)
    return figures


def _policies(
    pool: Sequence[Recording], cells: Mapping[Cell, int], rows: Mapping[str, Contender], picture: Path | None
) -> Figures:
    results = play(pool, cells, rows)
    print_met(results)
    print_switches(results)
    print_verdicts(results)
    sure = ahead(results, OURS, [name for name in PAPERS if name in rows])
    print_ahead(results, OURS, sure)
    late = behind(results, OURS, GUARDED)
    if late:
        print(f"{OURS} is behind {GUARDED} by more than a standard error in: {', '.join(map(str, late))}")
    if picture:
        plots.ceiling_fractions(results, picture / "shares.png")
        plots.switches(results, picture / "switches.png")
    return {
        "ours_ceiling_fraction": mean_fraction(results, OURS),
        **(_history_figures(results) if WITHOUT in rows else {}),
        **(_schedule_figures(results) if NO_RATES in rows else {}),
        **{
            f"ours_vs_{name.lower()}": mean_fraction(results, OURS, 10) / mean_fraction(results, name, 10)
            for name in ("LARA", "LaiRA")
            if name in rows
        },
        "ours_behind_cells": float(len(late)),
        "switches_per_job": switches_per_job(results, OURS),
        **trust_in(results, OURS).figures(),
        **coverage(pool).figures(),
        "ahead_of_papers": float(sum(p < 0.05 for p in sure.values())),
        "ahead_of_papers_of": float(len(sure)),
    }


def _misbehaving(
    pool: Sequence[Recording], cells: Mapping[Cell, int], rows: Mapping[str, Contender]
) -> dict[str, float]:
    """Play the same bundles of curves that misbehave, and return what ours meets."""
    results = play(misbehaving(pool, seed=0), cells, rows)
    print_one(results, "Curves that misbehave: fraction of the ceiling")
    best = max((mean_fraction(results, name) for name in rows if name != OURS), default=0.0)
    return {"misbehaving_ceiling_fraction": mean_fraction(results, OURS), "misbehaving_best_other": best}


def _history_figures(results: Results) -> Figures:
    more, error = gain(results, OURS, WITHOUT)
    wrong, wrong_error = gain(results, WRONG, WITHOUT)
    gains = f"By earlier runs {more:+.3f} ± {error:.3f} of the ceiling; "
    print(f"{gains}by those of other tasks {wrong:+.3f} ± {wrong_error:.3f}")
    return {
        "ours_without_history": mean_fraction(results, WITHOUT),
        "history_gain": more,
        "history_gain_se": error,
        "wrong_history_change": wrong,
    }


def _schedule_figures(results: Results) -> Figures:
    more, error = gain(results, OURS, NO_RATES)
    print(f"By learning rates {more:+.3f} ± {error:.3f} of the ceiling")
    return {"schedule_gain": more, "schedule_gain_se": error}


def _costs(pool: Sequence[Recording], cells: Mapping[Cell, int], picture: Path | None) -> None:
    costs: dict[float, Results] = {}
    rows = contenders()
    names = ("STF", "RR", "LARA", "LaiRA", GUARDED, OURS)
    for cost in SWITCH_COSTS:
        costs[cost] = play(pool, cells, {name: replace(rows[name], delays=Delays(switch=cost)) for name in names})
    print("\nFraction of the ceiling by the cost of a switch in seconds, mixed bundles")
    table(
        ["policy", *(f"{cost} s" for cost in SWITCH_COSTS)],
        [[name, *(mean_fraction(costs[cost], name) for cost in SWITCH_COSTS)] for name in names],
    )
    if picture:
        by_cost = {cost: {name: mean_fraction(played, name) for name in names} for cost, played in costs.items()}
        plots.switch_costs(by_cost, picture / "switch_costs.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.core", description=(__doc__ or "").splitlines()[0]
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", dest="size", action="store_const", const="quick", help="about a minute on 2 cores")
    how.add_argument("--full", dest="size", action="store_const", const="full", help="everything: takes an hour or two")
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, metavar="PART", help=f"run only these parts: {', '.join(PARTS)}"
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="run only these rows of the first table, and ours")
    parser.add_argument(
        "--curves",
        type=Path,
        default=SHIPPED,
        metavar="DIR",
        help="folder of recorded loss curves (default: the shipped ones)",
    )
    parser.add_argument(
        "--history", type=int, choices=range(4), default=0, metavar="M",
        help="earlier runs of the same task that each job of ours has, up to 3; other rows have none (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--schedule", action="store_true", help="jobs of ours report their learning rates, where the recording has them"
    )
    add_files(parser)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write pictures to this folder")
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
    files = arguments.curves, arguments.plots
    with tables_apart(arguments):
        figures = measure(arguments.size, parts, some, *files, arguments.history, schedule=arguments.schedule)
        print()
        table(["figure", "value"], [[name, value] for name, value in figures.items()])
    keep("policies.core", arguments, figures)


if __name__ == "__main__":
    main()
