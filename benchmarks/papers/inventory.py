"""Every figure and table of the five papers, and where it stands here."""

from __future__ import annotations

from typing import NamedTuple

# Where there is nothing to compare.
DRAWING, SETTING = "a drawing", "settings, which are used where bundles follow the paper"
PICTURE = "a picture of one run on the paper's own jobs"
ABOVE = "above"
DECOR = "[in a section of their own](#decor-nns-tables-and-the-same-conditions-here)"


class Shown(NamedTuple):
    """A figure or table.

    Attributes:
        paper: Short name of the paper.
        number: Number of the figure or table.
        shows: What it shows.
        here: Where our figures stand beside it; or why there are none.
    """

    paper: str
    number: str
    shows: str
    here: str


INVENTORY = (
    Shown("LARA", "figs 1, 2, 3, 7", "method", DRAWING),
    Shown("LARA", "tables 1, 2", "bundles", SETTING),
    Shown("LARA", "fig. 4", "jobs met", ABOVE),
    Shown("LARA", "fig. 5", "forecast errors and times", ABOVE),
    Shown("LARA", "fig. 6(a)", "jobs met by number of jobs", ABOVE),
    Shown("LARA", "fig. 6(b)", "time of a round", ABOVE),
    Shown("LARA", "figs 8, 10", "fits of single models", f"{PICTURE}; errors and times as in figure 5"),
    Shown("LARA", "fig. 9", "shares over time", f"{PICTURE}; what is met in the end as in figure 4"),
    Shown("LARA", "fig. 11", "exploration threshold, forgetting factor", ABOVE),
    Shown("LaiRA", "figs 1, 6", "linearised curves", f"{PICTURE}, without a number"),
    Shown("LaiRA", "tables 1, 2", "bundles", SETTING),
    Shown("LaiRA", "fig. 2", "jobs met", ABOVE),
    Shown("LaiRA", "fig. 3", "forecast errors and times", ABOVE),
    Shown("LaiRA", "fig. 4", "jobs met and switches by number of jobs", ABOVE),
    Shown("LaiRA", "fig. 5", "ablations", ABOVE),
    Shown("LaiRA", "fig. 7", "step size, discount factor", ABOVE),
    Shown("LaiRA", "figs 8, 9", "shares of feasible and infeasible jobs", ABOVE),
    Shown("LaiRA", "figs 10, 11", "priorities with and without UCB", ABOVE),
    Shown("DECOR-NN", "fig. 1", "architecture", DRAWING),
    Shown("DECOR-NN", "tables I to IV", "errors and devices", DECOR),
    Shown("DECOR-NN", "figs 2 to 5", "progress and devices of VGG-19", "pictures of rows of tables I to IV; "
          "`python -m benchmarks.live.decor --plots DIR` draws ours"),
    Shown("Spot", "figs 1, 2", "throughput by GPUs; the authors' market", "their recording is not published"),
    Shown("Spot", "fig. 3", "forecasts by ARIMA", "no number; `python -m benchmarks.market.spot --full` prints ours"),
    Shown("Spot", "figs 4 to 10", "cost and utility", ABOVE),
    Shown("Edge and cloud", "fig. 1, table I", "architecture, notation", DRAWING),
    Shown("Edge and cloud", "figs 2 to 5", "cost, accuracy and GPUs, scenarios A and B", ABOVE),
)  # fmt: skip
