"""Ablations of LaiRA and variants of the other policies, and what changes if one constant is another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.common import Figures, table
from benchmarks.curves.bundles import Recording
from benchmarks.curves.replay import Cell, Contender, play
from benchmarks.policies.as_printed import name_of
from benchmarks.policies.standings import Results, gain, mean_fraction, print_one, switches_per_job
from benchmarks.policies.tune import contender, tuned

WHOLE = "LaiRA"
# What LaiRA is without one of its parts (its figure 5), by row name.
ABLATIONS = {"LaiRA without UCB": "ucb", "LaiRA without PD": "pd", "LaiRA without DKF (STA)": "dkf"}


def variants() -> dict[str, Contender]:
    """Return ablations of LaiRA and variants of the other policies, by row name."""
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
    """Return contenders that vary one constant of ours at a time, by row name."""
    ours = tuned("triage")
    rows = {f"triage level {q}": contender("triage", {**ours, "level": q}) for q in (0.1, 0.2, 0.3, 0.4, 0.5)}
    rows |= {f"triage judge_after {n}": contender("triage", {**ours, "judge_after": n}) for n in (10, 14, 20, 40)}
    rows |= {f"triage min_chance {p}": contender("triage", {**ours, "min_chance": p}) for p in (0.05, 0.15, 0.3)}
    return rows


def measure(pool: Sequence[Recording], cells: Mapping[Cell, int], laira: Contender) -> Figures:
    """Play all variants, print their tables and return the figures of LaiRA's ablations."""
    results = play(pool, cells, {WHOLE: laira, **variants()})
    print_one(results, "Ablations and variants")
    print_ablations(results)
    return ablate(results)


def ablate(results: Results) -> Figures:
    """Return what LaiRA meets and switches without each of its parts, and how much more it meets with all of them."""
    figures: Figures = {}
    for name, part in {WHOLE: "whole", **ABLATIONS}.items():
        figures[f"ablation_{part}_fraction"] = mean_fraction(results, name)
        figures[f"ablation_{part}_switches"] = switches_per_job(results, name)
        for cell, played in results.items():
            one = {cell: played}
            figures[f"ablation_{part}_{name_of(cell)}_fraction"] = mean_fraction(one, name)
            figures[f"ablation_{part}_{name_of(cell)}_switches"] = switches_per_job(one, name)
        if name != WHOLE:
            figures[f"ablation_{part}_worth"], figures[f"ablation_{part}_worth_se"] = gain(results, WHOLE, name)
            for jobs in sorted({cell.size for cell in results}):
                of_size = {cell: played for cell, played in results.items() if cell.size == jobs}
                worth, doubt = gain(of_size, WHOLE, name)
                figures[f"ablation_{part}_{jobs}_worth"], figures[f"ablation_{part}_{jobs}_worth_se"] = worth, doubt
    return figures


def print_ablations(results: Results) -> None:
    """Print what each part of LaiRA is worth, by the number of jobs."""
    sizes = sorted({cell.size for cell in results})
    print("\nWorth of each part of LaiRA: more of the ceiling with it than without, ± its standard error")
    table(
        ["", *(f"{jobs} jobs" for jobs in sizes), "all"],
        [
            [name, *(_worth({c: p for c, p in results.items() if c.size == jobs}, name) for jobs in sizes),
             _worth(results, name)]
            for name in ABLATIONS
        ],
    )  # fmt: skip


def _worth(results: Results, without: str) -> str:
    worth, doubt = gain(results, WHOLE, without)
    return f"{worth:+.3f} ± {doubt:.3f}"
