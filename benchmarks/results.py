"""All measured figures in one file, ``docs/results.json``, and the pages that are generated from it.

A benchmark writes its figures with ``--results docs/results.json``: they replace those of the same benchmark at the
same size. ``python -m benchmarks.results`` (``make results``) then writes ``docs/results.md`` and the table in
``README.md``.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, README = ROOT / "docs" / "results.json", ROOT / "docs" / "results.md", ROOT / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
Run = dict[str, Any]

# Benchmarks in the order of the page, each with its heading.
HEADINGS = {
    "shares": "Shares of one device",
    "pool": "Scripts and a bundle on one pool",
    "devices": "Two devices",
    "overhead": "Overhead of the callback",
    "decide": "A round of the scheduler",
    "waiting": "How long a person waits",
    "core": "Policies on recorded curves",
    "extrapolation": "Estimators on recorded curves",
    "demo": "The demo",
    "decor": "Ending at the deadline (decor)",
    "resize": "Another number of devices",
    "saved": "Device-seconds saved",
    "cluster": "A published cluster trace",
    "spot": "Spot market",
    "spot_live": "Spot market, live",
    "placement": "Edge and cloud",
}
ESTIMATORS = ("posterior", "least_squares", "weighted", "log_time", "kalman", "dkf")
# What a figure is, and how it is shown. Of a benchmark without an entry all figures are shown, by their names.
WORDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "shares": {
        "worst_share_error": ("Worst error of a share over any 10 s", "{:.2g} of the share"),
        "device_use": ("Device used while jobs share it", "{:.2f}"),
        "reaction_s": ("Time until a changed grant acts", "{:.2f} s"),
        "held_cpu": ("Cores used by a held job", "{:.2g}"),
        "solo_drift": ("Drift of a job alone, before and after", "{:.2g}"),
    },
    "pool": {
        "worst_share_error": (
            "Worst error of a share over any 10 s, two scripts and a bundle of three",
            "{:.2g} of the share",
        ),
        "uneven": ("Unevenness over 20 s", "{:.2g} of the mean"),
        "device_use": ("Work done together, of what one job alone does", "{:.2f}"),
        "kill_s": ("Time until the others have the share of a killed script", "{:.2g} s"),
        "leave_s": ("Time until the others have the share of a script that left", "{:.2g} s"),
    },
    "devices": {
        "two_on_two": ("Work per device, two jobs on two devices", "{:.2f}"),
        "four_on_two": ("Work per device, four jobs on two devices", "{:.2f}"),
    },
    "overhead": {
        "callback_us": ("Hooks of the callback per batch, median", "{:.2g} µs"),
        "callback_p99_us": ("Hooks of the callback per batch, 99th percentile", "{:.2g} µs"),
        "blocking_call_ratio": ("Blocking actor call, as a multiple", "{:.0f}"),
        "tune_report_ratio": ("Ray Tune's report callback, as a multiple", "{:.0f}"),
    },
    "decide": {
        "ms_100": ("Round over 100 jobs, lara", "{:.2g} ms"),
        "ms_10000": ("Round over 10,000 jobs, lara", "{:.2g} ms"),
        "exponent": ("Growth of a round with the number n of jobs, lara: n to the power of", "{:.2f}"),
        "ms_100_on_8": ("Round over 100 jobs on eight devices, guarded_edf", "{:.2g} ms"),
        "ms_10000_on_8": ("Round over 10,000 jobs on eight devices, guarded_edf", "{:.2g} ms"),
        "laira_ms_10000": ("Round over 10,000 jobs, laira", "{:.2g} ms"),
        "ours_ms_10000": ("Round over 10,000 jobs, triage", "{:.2g} ms"),
        "ours_anew_ms_10000": ("Round over 10,000 jobs, triage, every curve with a new cell", "{:.2g} ms"),
        "bank_ms_10000": ("A cell of 10,000 curves into the dynamic Kalman filters", "{:.2g} ms"),
        "bank_vs_filterpy": ("The same with filterpy row by row, as a multiple", "{:.0f}"),
    },
    "waiting": {
        "import_lightning": ("Import of Lightning, for comparison", "{:.2g} s"),
        "first_line_of_run": ("First line of `run`", "{:.2g} s"),
        "up": ("`up` with two workers", "{:.2g} s"),
        "up_submit_and_met_by_its_first_job": ("`up` until its first job has met its target", "{:.2g} s"),
        "submit": ("`submit`", "{:.2g} s"),
        "submit_checked_on_the_spot": ("`submit`, checked on the spot", "{:.2g} s"),
        "status": ("`status`", "{:.2g} s"),
        "down": ("`down`", "{:.2g} s"),
    },
    "core": {
        "ours_ceiling_fraction": ("triage: part of the deadlines met that a clairvoyant meets", "{:.2f}"),
        "ours_vs_lara": ("triage: deadlines met, as a multiple of lara", "{:.2f}"),
        "ours_vs_laira": ("triage: deadlines met, as a multiple of laira", "{:.2f}"),
        "switches_per_job": ("triage: switches per job", "{:.2f}"),
        "ours_behind_cells": ("Settings in which triage is behind a published policy", "{:.0f}"),
        "coverage_q90": ("Work left below the 90 % quantile of the forecast", "{:.2f}"),
    },
    "extrapolation": {
        **{
            f"{name}_work": (f"Work left, median absolute ln(forecast / truth): {name}", "{:.2f}")
            for name in ESTIMATORS
        },
        **{f"{name}_q90": (f"Truths below the 90 % quantile: {name}", "{:.2f}") for name in ESTIMATORS},
        **{f"{name}_error_mixed_10": (f"Loss ahead, median error, 10 % seen: {name}", "{:.2f}") for name in ESTIMATORS},
    },
    "resize": {
        "warm_s": ("From decision to first batch, two warm workers", "{:.2g} s"),
        "cold_s": ("From decision to first batch, processes started anew", "{:.2g} s"),
        "cold_ratio": ("The second as a multiple of the first", "{:.0f}"),
        "warm_to_two_s": ("From decision to first batch, one device to two, warm", "{:.2g} s"),
        "cold_to_two_s": ("From decision to first batch, one device to two, started anew", "{:.2g} s"),
        "steps_compared": ("Steps compared with those of a run without resizes", "{:.0f}"),
        "loss_difference": ("Difference of the last loss with resizes and without", "{:.2g}"),
        "loss_spread_of_seeds": ("Difference of the last loss between seeds", "{:.2g}"),
    },
    "saved": {
        "saved_pct": ("Device-seconds saved against the fewest fixed devices that meet the same deadlines", "{:.1f} %"),
        "device_seconds": ("Device-seconds of five jobs on four logical devices under decor", "{:.0f}"),
        "fixed_device_seconds": ("Device-seconds with fixed devices", "{:.0f}"),
        "met": ("Deadlines met under decor", "{:.0f} of 5"),
        "fixed_met": ("Deadlines met with fixed devices", "{:.0f} of 5"),
    },
    "cluster": {
        "bound_pct": ("Deadlines that can be met at all", "{:.1f} %"),
        "as_asked_pct": ("Deadlines met with the devices that each job asked for", "{:.1f} %"),
        "jobs": ("Jobs of the trace", "{:.0f}"),
    },
    "spot": {
        "gap_closed_ours": ("Part of the way from on-demand alone to the optimum, A100 market: chain", "{:.1f} %"),
        "gap_closed_ahap_last": ("... ahap with the last value as forecast", "{:.1f} %"),
        "gap_closed_ours_binary": ("... on markets of all or nothing: chain", "{:.1f} %"),
        "gap_closed_msu_binary": ("... on markets of all or nothing: max-spot", "{:.1f} %"),
        "ours_over_msu_binary_in_standard_errors": ("... the difference of the two, in standard errors", "{:.1f}"),
        "guarded_misses": ("Jobs late that could be on time", "{:.0f}"),
        "selector_shortfall_ratio": ("Selector after 500 jobs: part of the way from best to mean policy", "{:.3f}"),
        "pool_112x1000_s": ("The paper's pool of 112 policies on 1,000 jobs, one core", "{:.3g} s"),
        "pool_alone_ratio": ("The same with tables of its own for each policy (50 jobs), as a multiple", "{:.0f}"),
    },
    "placement": {
        "saving_vs_one_period_pct": ("Saved against one period planned ahead, 400 jobs", "{:.1f} %"),
        "saving_vs_incremental_pct": ("Saved against one task after the other, 400 jobs", "{:.1f} %"),
        "solve_s_a": ("Plan of 400 jobs to a gap of 0.1 %, one core", "{:.2g} s"),
        "solve_s_4000": ("Plan of 4,000 jobs to a gap of 0.1 %, one core", "{:.2g} s"),
    },
}


class Quoted(NamedTuple):
    """A row of the README's table: which figures it shows, and how."""

    benchmark: str
    figures: tuple[str, ...]
    what: str
    shown: str


FIVE = (
    Quoted(
        "overhead",
        ("callback_us", "callback_p99_us"),
        "Cost of the callback per batch: median; 99th percentile",
        "{:.0f} µs; {:.0f} µs",
    ),
    Quoted(
        "shares",
        ("worst_share_error",),
        "Worst error of a share over any 10 s, three jobs on one device",
        "{:.2g} of the share",
    ),
    Quoted(
        "decide",
        ("ours_ms_10000",),
        "A round of the scheduler over 10,000 jobs, all changed, under `triage`",
        "{:.0f} ms",
    ),
    Quoted(
        "core",
        ("ours_ceiling_fraction",),
        "Deadlines met by `triage` on recorded curves, of those that a clairvoyant meets",
        "{:.2f}",
    ),
    Quoted(
        "spot",
        ("gap_closed_ours",),
        "Spot market: part of the way from on-demand cost to the optimum, all jobs on time",
        "{:.1f} %",
    ),
)


def merge(benchmark: str, size: str, command: str, figures: Mapping[str, float | None], path: Path = RESULTS) -> None:
    """Write the figures of a run, in place of those of the same benchmark at the same size.

    Args:
        benchmark: Name of the module in ``benchmarks/``.
        size: ``quick``, ``default`` or ``full``.
        command: Command that measured them, with its options.
        figures: Numbers by name; None for what was not measured.
        path: File of all results.
    """
    runs = [run for run in read(path) if (run["benchmark"], run["size"]) != (benchmark, size)]
    runs.append({"benchmark": benchmark, "size": size, "command": command, "day": date.today().isoformat(),
                 **machine(), "figures": {name: _short(number) for name, number in figures.items()}})  # fmt: skip
    write(runs, path)


def machine() -> dict[str, Any]:
    """Return cores, memory and processor family of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory / 2**30), "processor": platform.machine()}


def read(path: Path = RESULTS) -> list[Run]:
    """Return all runs; none if the file is missing."""
    return list(json.loads(path.read_text())["runs"]) if path.exists() else []


def write(runs: list[Run], path: Path = RESULTS) -> None:
    """Write all runs, in the order of the page."""
    order = list(HEADINGS)
    place = {name: k for k, name in enumerate(order)}
    sizes = ("quick", "default", "full")
    runs = sorted(runs, key=lambda run: (place.get(run["benchmark"], len(order)), run["benchmark"],
                                         sizes.index(run["size"]), run["command"]))  # fmt: skip
    path.write_text(json.dumps({"runs": runs}, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


# ---------------------------------------------------------------------------------------------------- pages


def page(runs: list[Run]) -> str:
    """Return ``docs/results.md``."""
    lines = [
        "<!-- Generated from docs/results.json by `make results`; do not edit. -->",
        "",
        "# Results",
        "",
        "Every figure here comes from `docs/results.json`, which the benchmarks write. Each table names the command",
        "that repeats it, its size, and the day and the machine of the run. The machines are small and shared: the",
        "throughput of a job alone drifts by 5 to 20 % within a run, so small differences mean nothing.",
    ]
    for benchmark in dict.fromkeys(run["benchmark"] for run in runs):
        lines += ["", f"## {HEADINGS.get(benchmark, benchmark)}"]
        for run in runs:
            if run["benchmark"] == benchmark:
                lines += ["", *_block(run)]
    return "\n".join(lines) + "\n"


def _block(run: Run) -> list[str]:
    words = WORDS.get(run["benchmark"], {})
    rows = []
    order = [*(name for name in words if name in run["figures"]), *run["figures"]]
    for name, number in {name: run["figures"][name] for name in order}.items():
        if number is None or (words and name not in words and not isinstance(number, str)):
            continue
        what, shown = words.get(name, (name.replace("_", " "), "{:.3g}"))
        rows.append(f"| {what} | {number if isinstance(number, str) else shown.format(number)} |")
    return [f"`{run['command']}`, {about(run)}:", "", "| figure | value |", "|---|---|", *rows]


def about(run: Run) -> str:
    """Return size, day and machine of a run in words."""
    cores = f"{run['cores']} core{'s' * (run['cores'] > 1)}"
    memory = "" if run.get("memory_gib") is None else f", {run['memory_gib']} GiB"
    return f"{run['size']}, {run['day']}, {cores}{memory}"


def five(runs: list[Run]) -> str:
    """Return the README's table of five figures: of each the newest run."""
    lines = ["| figure | value | command | day |", "|---|---|---|---|"]
    for row in FIVE:
        known = [run for run in runs if run["benchmark"] == row.benchmark
                 and all(isinstance(run["figures"].get(name), float | int) for name in row.figures)]  # fmt: skip
        if not known:
            continue
        run = max(known, key=lambda run: (run["day"], run["size"] == "full"))
        value = row.shown.format(*(run["figures"][name] for name in row.figures))
        lines.append(f"| {row.what} | {value} | `{run['command']}` | {run['day']} |")
    return "\n".join(lines)


def in_readme(text: str, runs: list[Run]) -> str:
    """Return the README with its table of figures as the runs have it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{five(runs)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(read()))
    README.write_text(in_readme(README.read_text(), read()))
