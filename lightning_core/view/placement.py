"""The plan of a day as a picture: what each place gives in each period."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib.figure import Figure

from lightning_core.placement import CLOUD, Placed

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


def _units(placed: Placed, place: str, period: int, level: str) -> float:
    return sum(
        choice.units
        for choices in placed.served.values()
        if (choice := choices[period]) is not None and choice.place == place and choice.level == level
    )
