"""Every figure and table of the five papers, and where it stands here."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.papers.on_policies import FIRST

# Where there is nothing to compare.
DRAWING, SETTING = "a drawing", "settings, which are used where bundles follow the paper"
PICTURE = "a picture of one run on the paper's own jobs"
DECOR = "[in a section of their own](#decor-nns-tables-and-the-same-conditions-here)"


class Shown(NamedTuple):
    """A figure or table.

    Attributes:
        paper: Short name of the paper.
        number: Number of the figure or table.
        shows: What it shows.
        here: Where our figures stand beside it; or why there are none.
        source: A benchmark and a figure of the command that repeats it; empty if none does.
    """

    paper: str
    number: str
    shows: str
    here: str
    source: tuple[str, str] | tuple[()] = ()


def _above(paper: str, number: str, shows: str, benchmark: str, figure: str) -> Shown:
    return Shown(paper, number, shows, "above", (benchmark, figure))


INVENTORY = (
    Shown("LARA", "figs 1, 2, 3, 7", "method", DRAWING),
    Shown("LARA", "tables 1, 2", "bundles", SETTING),
    _above("LARA", "fig. 4", "jobs met", "core", "papers_bundles"),
    _above("LARA", "fig. 5", "forecast errors and times", "extrapolation", "lara_engression_of_logs_s"),
    _above("LARA", "fig. 6(a)", "jobs met by number of jobs", "core", FIRST),
    _above("LARA", "fig. 6(b)", "time of a round", "core", "lara_ms_100"),
    Shown("LARA", "figs 8, 10", "fits of single models", f"{PICTURE}; errors and times as in figure 5"),
    Shown("LARA", "fig. 9", "shares over time", f"{PICTURE}; what is met in the end as in figure 4"),
    _above("LARA", "fig. 11", "exploration threshold, discount factor", "core", "swept_bundles"),
    Shown("LaiRA", "figs 1, 6", "linearised curves", f"{PICTURE}, without a number"),
    Shown("LaiRA", "tables 1, 2", "bundles", SETTING),
    _above("LaiRA", "fig. 2", "jobs met", "core", "papers_bundles"),
    _above("LaiRA", "fig. 3", "forecast errors and times", "extrapolation", "dkf_error_mixed_1"),
    _above("LaiRA", "fig. 4", "jobs met and switches by number of jobs", "core", FIRST),
    _above("LaiRA", "fig. 5", "ablations", "core", "ablation_ucb_10_worth"),
    _above("LaiRA", "fig. 7", "step size, discount factor", "core", "swept_bundles"),
    _above("LaiRA", "figs 8, 9", "shares of feasible and infeasible jobs", "core", "watched_bundles"),
    _above("LaiRA", "figs 10, 11", "priorities with and without UCB", "core", "watched_bundles"),
    Shown("DECOR-NN", "fig. 1", "architecture", DRAWING),
    Shown("DECOR-NN", "tables I to IV", "errors and devices", DECOR, ("decor", "table_I_inception_1_paper_error")),
    Shown("DECOR-NN", "figs 2 to 5", "progress and devices of VGG-19", "pictures of rows of tables I to IV"),
    Shown("Spot", "figs 1, 2", "throughput by GPUs; the authors' market", "their recording is not published"),
    Shown("Spot", "fig. 3", "forecasts by ARIMA", "a picture, without a number"),
    _above("Spot", "figs 4 to 10", "cost and utility", "spot", "fig10_4_best"),
    Shown("Edge and cloud", "fig. 1, table I", "architecture, notation", DRAWING),
    _above("Edge and cloud", "figs 2 to 5", "cost, accuracy and GPUs of A and B", "placement",
           "equal_cost_plan_as_published"),
)  # fmt: skip
