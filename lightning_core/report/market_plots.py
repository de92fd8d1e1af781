"""Pictures of a spot market: what jobs held interval by interval, and what policies cost beside how many jobs were on time."""

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
from lightning_core.market import JobBatch, Ledger

SPOT, ON_DEMAND, IDLE, THERE, INK = "#1f5f8b", "#e8a33d", "#d5dae1", "#8fb8d0", "#17202a"


class IntervalSeries(NamedTuple):
    """Intervals of jobs, as they are drawn; a row is of shape ``(S,)``."""

    available: IntArray | Sequence[int]
    """Spot instances that there were."""
    spot: IntArray | Sequence[int]
    """Held."""
    on_demand: IntArray | Sequence[int]
    """Held."""
    progress: FloatArray | Sequence[float]
    """Part of the work that was done by the end of each."""
    max_nodes: int
    """Instances that can be used."""
    deadline: float
    """In intervals."""
    failures: Sequence[int] = ()
    """In each."""
    numbers: Sequence[int] = ()
    """Their numbers; from 0 if none are given."""


def draw_plan(batch: JobBatch, ledger: Ledger, path: Path, title: str, now: bool = False) -> None:
    """Writes the intervals of one job.

    Args:
        batch: of the job; its first row counts.
        ledger: what it held.
        path: of the file; its ending says the format.
        title: above it.
        now: whether only the first interval is known, the others being a forecast.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    _strip(figure.subplots(), _of(batch, ledger, 0), title, now)
    figure.savefig(path, dpi=120)


def draw_backtest(
    batch: JobBatch,
    guarded: Mapping[str, Ledger],
    bare: Mapping[str, Ledger],
    best: float,
    shown: tuple[str, int],
    path: Path,
) -> None:
    """Writes cost against on-time share, and the intervals of one job under one policy.

    Args:
        batch: the jobs.
        guarded: what they held by policy, with the safety net.
        bare: the same without it.
        best: mean cost of the offline optimum.
        shown: the policy and the row whose intervals are drawn.
        path: of the file; its ending says the format.
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
    _strip(right, _of(batch, guarded[name], row), words)
    for text in (*legend.get_texts(), right.title):
        text.set_parse_math(False)  # a name is no formula
    figure.savefig(path, dpi=120)


def draw_intervals(strip: IntervalSeries, path: Path, title: str) -> None:
    """Writes the intervals of a run.

    Args:
        strip: its intervals.
        path: of the file; its ending says the format.
        title: above them.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    _strip(figure.subplots(), strip, title)
    figure.savefig(path, dpi=120)


def _of(batch: JobBatch, ledger: Ledger, row: int) -> IntervalSeries:
    """One job as it was played."""
    job = batch.jobs[row]
    at = np.arange(job.deadline)
    progress = ledger.progress[row, at] / (job.work * batch.units[row])
    return IntervalSeries(batch.available[row, at], ledger.spot[row, at], ledger.on_demand[row, at], progress, job.max_nodes,
                 job.deadline)  # fmt: skip


def _strip(axes: Axes, strip: IntervalSeries, title: str, now: bool = False) -> None:
    """A bar an interval over the spot instances that there are, and the work that is done."""
    there, spot, on_demand, progress = map(np.asarray, strip[:4])
    at = np.asarray(strip.numbers if len(strip.numbers) else np.arange(len(there)))
    intervals = max(int(at[-1]) + 1 if len(at) else 0, strip.deadline)
    axes.bar(at, there, width=1.0, color=THERE, alpha=0.35, label="spot instances there are")
    axes.bar(at, spot, width=0.8, color=SPOT, label="spot")
    axes.bar(at, on_demand, width=0.8, bottom=spot, color=ON_DEMAND, label="on-demand")
    begun = np.concatenate([[False], progress[:-1] >= 1 - 1e-9])
    idle = at[(spot + on_demand == 0) & ~begun]
    if len(idle):
        axes.plot(idle, np.full(len(idle), 0.25), "s", color=INK, markersize=4, label="idle")
    # What goes far beyond what can be used runs off the top.
    top = max(min(int(there.max()), 2 * strip.max_nodes), strip.max_nodes, 1)
    if len(lost := at[np.asarray(strip.failures, int) > 0] if len(strip.failures) else at[:0]):
        axes.plot(lost, np.full(len(lost), 1.1 * top), "x", color="#b3261e", label="a node was lost")
    axes.axhline(strip.max_nodes, color=INK, linewidth=0.6, linestyle=":")
    axes.text(intervals - 0.55, strip.max_nodes, " can use", va="bottom", ha="right", fontsize=7, color=INK)
    if now:
        axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=":")
        axes.text(0.55, top * 1.16, "forecast", fontsize=8, va="top")
    axes.set(xlabel="interval", ylabel="instances", ylim=(0, 1.2 * top), xlim=(-0.6, intervals - 0.4), title=title)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.title.set_parse_math(False)
    done = axes.twinx()
    ends = np.concatenate([at[:1] - 0.5, at + 0.5])
    done.plot(ends, np.concatenate([[0.0], progress]) * 100, color="#007a59", label="work done")
    done.plot([-0.5, strip.deadline - 0.5], [0, 100], color="#007a59", linewidth=0.7, linestyle="--", label="evenly")
    if intervals > strip.deadline:
        done.axvline(strip.deadline - 0.5, color=INK, linewidth=1)
        done.text(strip.deadline - 0.5, 118, " deadline", fontsize=8, va="top")
    done.set(ylabel="work done, %", ylim=(0, 120))
    handles = [one for axis in (axes, done) for one in axis.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=7, fontsize=7, frameon=False)
