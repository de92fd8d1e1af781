"""The plan of a day as a picture: what each place gives in each period."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib.figure import Figure

from lightning_core.placement import CLOUD, Placed
from lightning_core.placement.day import DayResult

COLOURS = ("#1f5f8b", "#e8a33d", "#007a59", "#8a6d3b")
INK = "#17202a"


def draw(placed: Placed, path: Path) -> None:
    """Writes GPUs by place, period and level, beside what each node has.

    Args:
        placed: the plan.
        path: of the file; its ending says the format.
    """
    demands = placed.demands
    figure = Figure(figsize=(2.2 + 2.4 * len(demands.periods), 0.6 * len(demands.places) + 2.0), layout="constrained")
    panels = figure.subplots(1, len(demands.periods), sharey=True, squeeze=False)[0]
    at = np.arange(len(demands.places))[::-1]
    for period, (axes, name) in enumerate(zip(panels, demands.periods, strict=True)):
        left = np.zeros(len(demands.places))
        for colour, level in zip(np.resize(COLOURS, len(demands.levels)), demands.levels, strict=True):
            units = np.array([_units(placed, place, period, level) for place in demands.places])
            axes.barh(at, units, left=left, height=0.6, color=str(colour), label=level)
            left += units
        for y, place in zip(at, demands.places, strict=True):
            if place != CLOUD:
                has = sum(demands.nodes[place].gpus.values())
                axes.plot([has, has], [y - 0.4, y + 0.4], color=INK, linewidth=1.5)
        axes.set(title=name, xlabel="GPUs")
        axes.title.set_parse_math(False)
        axes.grid(axis="x", alpha=0.25)
    panels[0].set_yticks(at, demands.places)
    for text in panels[0].get_yticklabels():
        text.set_parse_math(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  title="level (black: what a node has)", title_fontsize=8, fontsize=8)  # fmt: skip
    figure.savefig(path, dpi=120)


def draw_day(placed: Placed, lived: Mapping[str, DayResult], path: Path) -> None:
    """Writes the GPUs that each place gives, step by step, beside what a node has.

    Args:
        placed: the plan.
        lived: what became of the day, by who foresaw it.
        path: of the file; its ending says the format.
    """
    demands = placed.demands
    places = demands.places
    figure = Figure(figsize=(8.0, 1.5 * len(places) + 1.2), layout="constrained")
    panels = figure.subplots(len(places), 1, sharex=True, squeeze=False)[:, 0]
    steps = len(next(iter(lived.values())).loads[places[0]])
    for axes, place in zip(panels, places, strict=True):
        # Whoever is told first lies below: where they are the same the last is seen.
        for colour, (name, one) in zip(np.resize(COLOURS, len(lived)), lived.items(), strict=True):
            axes.step(np.arange(steps), one.loads[place], where="post", color=str(colour), label=name, linewidth=1.4)
        if place != CLOUD:
            axes.axhline(sum(demands.nodes[place].gpus.values()), color=INK, linewidth=1.2)
        for period in range(1, len(demands.periods)):
            axes.axvline(period * steps / len(demands.periods), color=INK, alpha=0.25, linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(place, parse_math=False)
        axes.grid(axis="y", alpha=0.25)
    for period, name in enumerate(demands.periods):
        at = (period + 0.5) * steps / len(demands.periods)
        panels[0].annotate(name, (at, 1.02), xycoords=("data", "axes fraction"), ha="center", parse_math=False)
    panels[-1].set_xlabel("step")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                  title="GPUs by place (black: what a node has)", title_fontsize=8, fontsize=8)  # fmt: skip
    figure.savefig(path, dpi=120)


def _units(placed: Placed, place: str, period: int, level: str) -> float:
    return sum(
        choice.units
        for choices in placed.served.values()
        if (choice := choices[period]) is not None and choice.place == place and choice.level == level
    )
