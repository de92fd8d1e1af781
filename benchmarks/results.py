"""The record of all measured figures, ``docs/results.json``, and what is generated from it.

A benchmark writes its figures with ``--results docs/results.json``. They replace figures of the same command, which
includes its size and options; figures that the run did not measure keep their day, and other commands keep theirs.
``python -m benchmarks.results`` (``make results``) then writes ``docs/results.md``, the table in ``README.md`` and the
figures in ``docs/faq.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import faq_page
from benchmarks.labels import HEADINGS, LABELS, QUOTED, SIZES
from benchmarks.papers.decor_page import decor_section
from benchmarks.papers.papers_page import section
from benchmarks.papers.trained_page import tables_section
from lightning_core.storage.atomic_files import write_whole

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, README = ROOT / "docs" / "results.json", ROOT / "docs" / "results.md", ROOT / "README.md"
FAQ = ROOT / "docs" / "faq.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
Run = dict[str, Any]


def merge(
    benchmark: str,
    size: str,
    command: str,
    figures: Mapping[str, float | None],
    path: Path = RESULTS,
    device: str = "",
    left_out: Mapping[str, str] | None = None,
) -> str:
    """Write the figures of a run in place of the same figures of the same command.

    A figure that the earlier run has and this one does not stays, with its day; why others were left out does not.
    Runs of another size or with other options are left alone: ``--quick`` never replaces a figure of a full run.

    Args:
        benchmark: Name of the module in ``benchmarks/``.
        size: ``quick``, ``default`` or ``full``.
        command: Command that measured them, with its options.
        figures: Numbers by name; None for what was not measured.
        path: File of all results.
        device: Name of the GPU that it is about, if it is about one.
        left_out: Why parts of the benchmark were not measured, by their names.

    Returns:
        What was replaced and what was kept, in words.
    """
    measured = {name: _short(number) for name, number in figures.items() if number is not None}
    runs, replaced, kept = [], 0, []
    for run in read(path):
        if (run["benchmark"], run["size"], run["command"]) == (benchmark, size, command):
            rest = {name: value for name, value in run["figures"].items() if name not in measured and value is not None}
            replaced += len(run["figures"].keys() & measured.keys())
            if not rest:
                continue
            run = {name: value for name, value in run.items() if name != "left_out"} | {"figures": rest}
        if run["benchmark"] == benchmark:
            kept.append(f"kept {len(run['figures'])} of `{run['command']}` ({run['size']}, {run['day']})")
        runs.append(run)
    about_it = {"device": device} if device else {}
    missing = {"left_out": dict(left_out)} if left_out else {}
    runs.append({"benchmark": benchmark, "size": size, "command": command, "day": date.today().isoformat(),
                 **machine(), **about_it, "figures": measured, **missing})  # fmt: skip
    write(runs, path)
    words = [f"{len(measured)} figures of `{command}` ({size}) written, {replaced} of them replaced", *kept]
    return f"{path}: " + "; ".join(words)


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
    position = {name: k for k, name in enumerate(order)}
    runs = sorted(runs, key=lambda run: (position.get(run["benchmark"], len(order)), run["benchmark"],
                                         SIZES.index(run["size"]), run["command"], run["day"]))  # fmt: skip
    write_whole(path, json.dumps({"runs": runs}, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _short(number: float) -> float:
    return float(f"{number:.4g}")


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
        "",
        "`--curves DIR` is a folder of published loss curves, which come with the repository:",
        "`python -m benchmarks.curves.published DIR` writes it, and `benchmarks/curves/PUBLISHED.md` says where each",
        "one is from. Figures on them are those of 88 curves, of families of tasks on which nothing was tuned.",
        "",
        "[The last section](#what-the-papers-say-and-what-was-measured) holds the papers on LARA and LaiRA against",
        "what was measured.",
    ]
    for benchmark in dict.fromkeys(run["benchmark"] for run in runs):
        lines += ["", f"## {HEADINGS.get(benchmark, benchmark)}"]
        for run in runs:
            if run["benchmark"] == benchmark and (block := _block(run)):
                lines += ["", *block]
    return "\n".join([*lines, *tables_section(runs), *decor_section(runs), *section(runs)]) + "\n"


def _block(run: Run) -> list[str]:
    """Return the table of a run; nothing if all of its figures are in other tables."""
    labels = LABELS.get(run["benchmark"], {})
    rows = []
    order = [*(name for name in labels if name in run["figures"]), *run["figures"]]
    for name, number in {name: run["figures"][name] for name in order}.items():
        if number is None or (labels and name not in labels and not isinstance(number, str)):
            continue
        label, form = labels.get(name, (name.replace("_", " "), "{:.3g}"))
        rows.append(f"| {label} | {number if isinstance(number, str) else form.format(number, **run['figures'])} |")
    table = ["", "| figure | value |", "|---|---|", *rows] if rows else []
    why = [f"Not measured: {part}, {words}." for part, words in run.get("left_out", {}).items()]
    return [f"`{run['command']}`, {about(run)}:", *table, *(["", *why] if why else [])] if table or why else []


def about(run: Run) -> str:
    """Return size, day and machine of a run in words."""
    cores = f"{run['cores']} core{'s' * (run['cores'] > 1)}"
    memory = "" if run.get("memory_gib") is None else f", {run['memory_gib']} GiB"
    device = f", {run['device']}" if "device" in run else ""
    return f"{run['size']}, {run['day']}, {cores}{memory}{device}"


def five(runs: list[Run]) -> str:
    """Return the README's table of five figures, each of its largest run, and the newest of these.

    Runs with earlier runs of each job's task are left out: they are of fewer recordings.
    """
    lines = ["| figure | value | command | day |", "|---|---|---|---|"]
    for row in QUOTED:
        known = [run for run in runs if run["benchmark"] == row.benchmark and "--history" not in run["command"]
                 and all(isinstance(run["figures"].get(name), float | int) for name in row.figures)]  # fmt: skip
        if not known:
            continue
        run = max(known, key=lambda run: (SIZES.index(run["size"]), run["day"]))
        value = row.form.format(*(run["figures"][name] for name in row.figures))
        lines.append(f"| {row.label} | {value} | `{run['command']}` | {run['day']} |")
    return "\n".join(lines)


def in_readme(text: str, runs: list[Run]) -> str:
    """Return the README with its table of figures brought up to date."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{five(runs)}\n{END}{after}"


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.results", description="Write docs/results.md and the figures of "
                            "README.md and docs/faq.md from docs/results.json.").parse_args()  # fmt: skip
    write_whole(PAGE, page(read()))
    write_whole(README, in_readme(README.read_text(), read()))
    write_whole(FAQ, faq_page.filled(FAQ.read_text(), read()))
