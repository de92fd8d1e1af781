"""Plots of a spot market: nodes of jobs by interval, and cost against on-time share by policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.report.figure_file import save_figure

SPOT, ON_DEMAND, IDLE, OFFERED, INK = "#1f5f8b", "#e8a33d", "#d5dae1", "#8fb8d0", "#17202a"


class IntervalSeries(NamedTuple):
    """Intervals to draw; each series is of shape ``(S,)``."""

    available: IntArray | Sequence[int]
    """Spot nodes on offer."""
    spot: IntArray | Sequence[int]
    """Spot nodes held."""
    on_demand: IntArray | Sequence[int]
    """On-demand nodes held."""
    progress: FloatArray | Sequence[float]
    """Fraction of the work done by the end of each interval."""
    max_nodes: int
    """Most nodes that can be used."""
    deadline: float
    """Deadline, in intervals."""
    failures: Sequence[int] = ()
    """Failures in each interval."""
    numbers: Sequence[int] = ()
    """Numbers of the intervals; from 0 if empty."""


def draw_plan(batch: JobBatch, ledger: Ledger, path: Path, title: str, now: bool = False) -> None:
    """Draw the intervals of one job.

    Args:
        batch: Batch whose first job is drawn.
        ledger: Its ledger.
        path: File to write; its suffix is the format.
        title: Title of the plot.
        now: Whether only the first interval is known and the others are a forecast.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    _draw_series(figure.subplots(), _of(batch, ledger, 0), title, now)
    save_figure(figure, path)


def draw_backtest(
    batch: JobBatch,
    guarded: Mapping[str, Ledger],
    bare: Mapping[str, Ledger],
    best: float,
    shown: tuple[str, int],
    path: Path,
) -> None:
    """Draw cost against on-time share, and the intervals of one job under one policy.

    Args:
        batch: The jobs.
        guarded: Ledgers by policy, with the safety net.
        bare: Ledgers by policy, without it.
        best: Mean cost of the offline optimum.
        shown: Policy and row whose intervals are drawn.
        path: File to write; its suffix is the format.
    """
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(5, 6))
    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, (name, ledger) in enumerate(guarded.items()):
        colour, loose = colours[number % len(colours)], bare[name]
        ends = [(100 * one.on_time.mean(), one.cost.mean()) for one in (loose, ledger)]
        left.plot(*zip(*ends, strict=True), "-", color=colour, linewidth=0.8, alpha=0.6)
        left.plot(*ends[0], "o", color=colour, markerfacecolor="white")
        left.plot(*ends[1], "o", color=colour, label=name)
    left.axhline(best, color=INK, linewidth=1, linestyle="--", label="offline optimum")
    left.set(
        xlabel="jobs on time, % (hollow: without the safety net)", ylabel="mean cost", title="cost and on-time share"
    )
    left.set_xlim(right=103)
    left.grid(alpha=0.25)
    legend = left.legend(loc="best", fontsize=8)
    name, row = shown
    words = f"{name}, from interval {int(batch.starts[row])} of {batch.markets[row].name}"
    _draw_series(right, _of(batch, guarded[name], row), words)
    for text in (*legend.get_texts(), right.title):
        text.set_parse_math(False)  # names are not formulas
    save_figure(figure, path)


def draw_intervals(series: IntervalSeries, path: Path, title: str) -> None:
    """Draw the intervals of a run.

    Args:
        series: Its intervals.
        path: File to write; its suffix is the format.
        title: Title of the plot.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    _draw_series(figure.subplots(), series, title)
    save_figure(figure, path)


def _of(batch: JobBatch, ledger: Ledger, row: int) -> IntervalSeries:
    """Return the intervals of one job of a backtest."""
    job = batch.jobs[row]
    at = np.arange(job.deadline)
    progress = ledger.progress[row, at] / (job.work * batch.units[row])
    return IntervalSeries(batch.available[row, at], ledger.spot[row, at], ledger.on_demand[row, at], progress,
    job.max_nodes,
                 job.due)  # fmt: skip


def _draw_series(axes: Axes, series: IntervalSeries, title: str, now: bool = False) -> None:
    """Draw a bar per interval over the spot nodes on offer, and the work done."""
    there, spot, on_demand, progress = map(np.asarray, series[:4])
    at = np.asarray(series.numbers if len(series.numbers) else np.arange(len(there)))
    intervals = max(int(at[-1]) + 1 if len(at) else 0, series.deadline)
    axes.bar(at, there, width=1.0, color=OFFERED, alpha=0.35, label="spot nodes on offer")
    axes.bar(at, spot, width=0.8, color=SPOT, label="spot")
    axes.bar(at, on_demand, width=0.8, bottom=spot, color=ON_DEMAND, label="on-demand")
    begun = np.concatenate([[False], progress[:-1] >= 1 - 1e-9])
    idle = at[(spot + on_demand == 0) & ~begun]
    if len(idle):
        axes.plot(idle, np.full(len(idle), 0.25), "s", color=INK, markersize=4, label="idle")
    # Counts far beyond the usable number are cut off at the top.
    top = max(min(int(there.max()), 2 * series.max_nodes), series.max_nodes, 1)
    if len(lost := at[np.asarray(series.failures, int) > 0] if len(series.failures) else at[:0]):
        axes.plot(lost, np.full(len(lost), 1.1 * top), "x", color="#b3261e", label="failure")
    axes.axhline(series.max_nodes, color=INK, linewidth=0.6, linestyle=":")
    axes.text(intervals - 0.55, series.max_nodes, " usable", va="bottom", ha="right", fontsize=7, color=INK)
    if now:
        axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=":")
        axes.text(0.55, top * 1.16, "forecast", fontsize=8, va="top")
    axes.set(xlabel="interval", ylabel="nodes", ylim=(0, 1.2 * top), xlim=(-0.6, intervals - 0.4), title=title)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.title.set_parse_math(False)
    done = axes.twinx()
    ends = np.concatenate([at[:1] - 0.5, at + 0.5])
    done.plot(ends, np.concatenate([[0.0], progress]) * 100, color="#007a59", label="work done")
    done.plot([-0.5, series.deadline - 0.5], [0, 100], color="#007a59", linewidth=0.7, linestyle="--", label="evenly")
    if intervals > series.deadline:
        done.axvline(series.deadline - 0.5, color=INK, linewidth=1)
        done.text(series.deadline - 0.5, 118, " deadline", fontsize=8, va="top")
    done.set(ylabel="work done, %", ylim=(0, 120))
    handles = [one for axis in (axes, done) for one in axis.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=7, fontsize=7, frameon=False)
