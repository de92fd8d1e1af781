"""Pictures of what the benchmarks measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.decor import CHANGED_AT, CHANGED_TO, CORES, Run
from benchmarks.replay import Cell, Played
from lightning_core.core.arrays import FloatArray

Results = Mapping[Cell, Mapping[str, Sequence[Played]]]
# Ours stand out, the papers' two are strong, what everybody knows is grey.
COLOURS = {"triage": "#c1440e", "guarded EDF": "#e8a33d", "index-EDF": "#8a6d3b", "LARA": "#1f5f8b", "LaiRA": "#4aa3c7"}
OTHERS = "#b0b0b0"


def shares(results: Results, path: Path) -> None:
    """Part of the ceiling by number of jobs, pure and mixed side by side."""
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
    axes[0].set_ylabel("jobs met, part of the ceiling")
    _legend(figure, axes[1])
    figure.savefig(path, dpi=120)


def switches(results: Results, path: Path) -> None:
    """Switches a job by number of jobs."""
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
    axis.set_ylabel("switches a job")
    _legend(figure, axis)
    figure.savefig(path, dpi=120)


def switch_costs(by_cost: Mapping[float, Mapping[str, float]], path: Path) -> None:
    """Part of the ceiling by what a switch costs."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    costs = list(by_cost)
    for name in by_cost[costs[0]]:
        _line(axis, np.arange(len(costs)), [by_cost[cost][name] for cost in costs], name)
    axis.set_xticks(np.arange(len(costs)), [f"{cost:g} s" for cost in costs])
    axis.set_xlabel("a switch costs")
    axis.set_ylabel("jobs met, part of the ceiling")
    axis.set_ylim(0, 1)
    _legend(figure, axis)
    figure.savefig(path, dpi=120)


def courses(runs: Sequence[Run], folder: Path) -> None:
    """Progress beside its ramp, and devices, as time went by (DECOR-NN's figures 2 to 5): a picture a kind and model.

    Args:
        runs: the first of each setting is drawn.
        folder: for the pictures, made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for kind, model in dict.fromkeys((run.setting.kind, run.setting.model) for run in runs):
        some = {run.setting: run for run in reversed(runs) if (run.setting.kind, run.setting.model) == (kind, model)}
        some = dict(reversed(some.items()))
        figure = Figure(figsize=(9, 2.2 * len(some)), layout="constrained")
        for axis, run in zip(figure.subplots(len(some), 1, squeeze=False)[:, 0], some.values(), strict=True):
            _course(axis, run, CORES if kind == "cpu" else 1)
        figure.savefig(folder / f"{kind}-{model}.png", dpi=110)


def _course(axis, run: Run, each: int) -> None:  # type: ignore[no-untyped-def]
    setting = run.setting
    times = [moment.now for moment in run.course]
    axis.plot(times, [moment.progress for moment in run.course], color="#1f5f8b", lw=1.6, label="progress, %")
    if setting.changed:
        at = next(k for k, moment in enumerate(run.course) if moment.progress >= 100 * CHANGED_AT)
        before = run.deadline / CHANGED_TO
        kink = times[at], 100 * times[at] / before
        axis.plot([0, kink[0]], [0, kink[1]], color="#888888", lw=1, ls="--", label="ramp")
        axis.plot([kink[0], run.deadline], [run.course[at].progress, 100], color="#888888", lw=1, ls="--")
    else:
        axis.plot([0, setting.alpha * run.deadline], [0, 100], color="#888888", lw=1, ls="--", label="ramp")
    axis.axvline(run.deadline, color="#c1440e", lw=1)
    axis.set_ylim(0, 105)
    axis.set_ylabel("progress, %")
    words = [f"d_c {setting.tightness:g}", f"alpha {setting.alpha:g}"]
    words += ["deadline cut to 80 %"] * setting.changed + ["a neighbour takes half a core"] * setting.neighbour
    axis.set_title(f"{', '.join(words)}: {run.error:+.2f} %", fontsize=9, loc="left")
    right = axis.twinx()
    right.step(times, [each * moment.devices for moment in run.course], where="post", color="#e8a33d", lw=1.2)
    right.set_ylabel("cores" if setting.kind == "cpu" else "devices", color="#8a6d3b")
    right.set_ylim(0, 2.2)
    axis.spines[["top"]].set_visible(False)
    right.spines[["top"]].set_visible(False)


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


def weights(found: Mapping[str, FloatArray], ends: Sequence[int], path: Path) -> None:
    """Weights of policies, of shape ``(jobs, policies)``, as they move; the phases end at ``ends``."""
    figure = Figure(figsize=(9, 3 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, each) in zip(axes, found.items(), strict=True):
        shown = axis.imshow(
            np.maximum(each.T, 1e-4), aspect="auto", origin="lower", norm="log", vmin=1e-3, vmax=1, cmap="magma",
            interpolation="nearest",
        )  # fmt: skip
        for end in ends[:-1]:
            axis.axvline(end, color="white", linewidth=0.8, linestyle=":")
        axis.set_title(name, fontsize=10)
        axis.set_ylabel("policy")
        figure.colorbar(shown, ax=axis, label="weight")
    axes[-1].set_xlabel("job")
    figure.savefig(path, dpi=120)
