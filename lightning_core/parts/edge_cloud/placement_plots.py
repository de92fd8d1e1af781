"""Plots of a day's plan: the GPUs that each location gives in each period."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib.figure import Figure

from lightning_core.parts.edge_cloud.placement import CLOUD, TaskPlacement
from lightning_core.parts.edge_cloud.placement.day_simulation import DayResult
from lightning_core.report.figure_file import save_figure

COLOURS = ("#1f5f8b", "#e8a33d", "#007a59", "#8a6d3b")
INK = "#17202a"


def draw(placement: TaskPlacement, path: Path) -> None:
    """Draw GPUs by location, period and level, beside the capacity of each node.

    Args:
        placement: The plan.
        path: File to write; its suffix is the format.
    """
    demands = placement.demands
    figure = Figure(
        figsize=(2.2 + 2.4 * len(demands.periods), 0.6 * len(demands.locations) + 2.0), layout="constrained"
    )
    panels = figure.subplots(1, len(demands.periods), sharey=True, squeeze=False)[0]
    at = np.arange(len(demands.locations))[::-1]
    for period, (axes, name) in enumerate(zip(panels, demands.periods, strict=True)):
        left = np.zeros(len(demands.locations))
        for colour, level in zip(np.resize(COLOURS, len(demands.levels)), demands.levels, strict=True):
            gpu_count = np.array([_units(placement, location, period, level) for location in demands.locations])
            axes.barh(at, gpu_count, left=left, height=0.6, color=str(colour), label=level)
            left += gpu_count
        for y, location in zip(at, demands.locations, strict=True):
            if location != CLOUD:
                has = sum(demands.nodes[location].gpus.values())
                axes.plot([has, has], [y - 0.4, y + 0.4], color=INK, linewidth=1.5)
        axes.set(title=name, xlabel="GPUs")
        axes.title.set_parse_math(False)
        axes.grid(axis="x", alpha=0.25)
    panels[0].set_yticks(at, demands.locations)
    for text in panels[0].get_yticklabels():
        text.set_parse_math(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  title="level (black: capacity of a node)", title_fontsize=8, fontsize=8)  # fmt: skip
    save_figure(figure, path)


def draw_day(placement: TaskPlacement, results: Mapping[str, DayResult], path: Path) -> None:
    """Draw the GPUs that each location gives, step by step, beside the capacity of each node.

    Args:
        placement: The plan.
        results: Results of the day by forecaster.
        path: File to write; its suffix is the format.
    """
    demands = placement.demands
    locations = demands.locations
    figure = Figure(figsize=(8.0, 1.5 * len(locations) + 1.2), layout="constrained")
    panels = figure.subplots(len(locations), 1, sharex=True, squeeze=False)[:, 0]
    steps = len(next(iter(results.values())).loads[locations[0]])
    for axes, location in zip(panels, locations, strict=True):
        # Later lines cover earlier ones where they coincide.
        for colour, (name, one) in zip(np.resize(COLOURS, len(results)), results.items(), strict=True):
            axes.step(np.arange(steps), one.loads[location], where="post", color=str(colour), label=name, linewidth=1.4)
        if location != CLOUD:
            axes.axhline(sum(demands.nodes[location].gpus.values()), color=INK, linewidth=1.2)
        for period in range(1, len(demands.periods)):
            axes.axvline(period * steps / len(demands.periods), color=INK, alpha=0.25, linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(location, parse_math=False)
        axes.grid(axis="y", alpha=0.25)
    for period, name in enumerate(demands.periods):
        at = (period + 0.5) * steps / len(demands.periods)
        panels[0].annotate(name, (at, 1.02), xycoords=("data", "axes fraction"), ha="center", parse_math=False)
    panels[-1].set_xlabel("step")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  title="GPUs by location (black: capacity of a node)", title_fontsize=8, fontsize=8)  # fmt: skip
    save_figure(figure, path)


def _units(placement: TaskPlacement, location: str, period: int, level: str) -> float:
    return sum(
        choice.gpu_count
        for choices in placement.served.values()
        if (choice := choices[period]) is not None and choice.location == location and choice.level == level
    )
