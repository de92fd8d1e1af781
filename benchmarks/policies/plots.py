"""Pictures of policies on recorded curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.curves.replay import Cell, Played

Results = Mapping[Cell, Mapping[str, Sequence[Played]]]
# Our policies stand out, the papers' two are strong, and common baselines are grey.
COLOURS = {"triage": "#c1440e", "guarded EDF": "#e8a33d", "index-EDF": "#8a6d3b", "LARA": "#1f5f8b", "LaiRA": "#4aa3c7"}
OTHERS = "#b0b0b0"


def ceiling_fractions(results: Results, path: Path) -> None:
    """Draw the fraction of the ceiling by number of jobs, pure and mixed side by side."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, pure in zip(axes, (False, True), strict=True):
        cells = sorted(cell for cell in results if cell.pure == pure)
        for name in next(iter(results.values())):
            part = [
                sum(p.met for p in results[c][name]) / max(sum(p.ceiling for p in results[c][name]), 1) for c in cells
            ]
            _line(axis, np.arange(len(cells)), part, name)
        axis.set_xticks(np.arange(len(cells)), [str(cell.size) for cell in cells])
        axis.set_xlabel("jobs")
        axis.set_title("of one domain" if pure else "of all domains", fontsize=10)
        axis.set_ylim(0, 1)
    axes[0].set_ylabel("jobs met, fraction of the ceiling")
    _legend(figure, axes[1])
    figure.savefig(path, dpi=120)


def switches(results: Results, path: Path) -> None:
    """Draw the switches per job by number of jobs."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    sizes = sorted({cell.size for cell in results})
    for name in next(iter(results.values())):
        per_job = [
            np.mean([p.switches / c.size for c in results if c.size == size for p in results[c][name]])
            for size in sizes
        ]
        _line(axis, np.arange(len(sizes)), per_job, name)
    axis.set_yscale("log")
    axis.set_xticks(np.arange(len(sizes)), list(map(str, sizes)))
    axis.set_xlabel("jobs")
    axis.set_ylabel("switches per job")
    _legend(figure, axis)
    figure.savefig(path, dpi=120)


def switch_costs(by_cost: Mapping[float, Mapping[str, float]], path: Path) -> None:
    """Draw the fraction of the ceiling by the cost of a switch."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    costs = list(by_cost)
    for name in by_cost[costs[0]]:
        _line(axis, np.arange(len(costs)), [by_cost[cost][name] for cost in costs], name)
    axis.set_xticks(np.arange(len(costs)), [f"{cost:g} s" for cost in costs])
    axis.set_xlabel("cost of a switch")
    axis.set_ylabel("jobs met, fraction of the ceiling")
    axis.set_ylim(0, 1)
    _legend(figure, axis)
    figure.savefig(path, dpi=120)


def _line(axis, x, y, name: str) -> None:  # type: ignore[no-untyped-def]
    ours = name in COLOURS
    axis.plot(x, y, color=COLOURS.get(name, OTHERS), lw=2 if ours else 1, marker="o", ms=4 if ours else 2.5,
              label=name, zorder=3 if ours else 2)  # fmt: skip
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", lw=0.4, alpha=0.5)


def _legend(figure: Figure, axis) -> None:  # type: ignore[no-untyped-def]
    handles, labels = axis.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: -handles[k].get_ydata()[-1])
    figure.legend([handles[k] for k in order], [labels[k] for k in order], loc="outside right center", frameon=False,
                  fontsize=8)  # fmt: skip
