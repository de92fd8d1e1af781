"""Numbers of jobs met that the papers print, which are those of their own bundles.

Their bundles cannot be repeated: data, models and thresholds are not all published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# The papers' policies and their baselines, by the names of their tables.
PAPERS = ("FIFO", "UA", "STF", "RR", "SH", "LRF", "ETF", "STA", "LARA", "LaiRA")
# Rows of the papers' own policies with what is printed. Of LaiRA that is the look-ahead. Its slices (a plus in the law,
# no cap) are another row, and its exploration stays ours: the paper does not say how long it is.
PRINTED_ROWS = {"LARA": "LARA as printed", "LaiRA": "LaiRA, eq. 8 as printed"}
SLICES_TOO = "LaiRA, eq. 8 and slices as printed"
# Rows of the baselines that have tuned constants, with the defaults that users get.
AT_DEFAULTS = {name: f"{name} at its defaults" for name in ("RR", "LRF", "ETF")}


class PrintedBundle(NamedTuple):
    """A bundle of a paper.

    Attributes:
        paper: Name of the policy that the paper is on.
        where: Section and figure.
        kind: ``pure`` or ``mixed``, of one or of several data sets.
        jobs: Number of jobs.
        met: Jobs met by each policy, as far as the text gives numbers.
        remark: What else the paper says.
    """

    paper: str
    where: str
    kind: str
    jobs: int
    met: Mapping[str, int]
    remark: str = ""


PRINTED = (
    PrintedBundle("LARA", "4.1, fig. 4(a)", "pure", 5, {"LARA": 4, "LRF": 2, "ETF": 2, "UA": 0, "STF": 0}),
    PrintedBundle("LARA", "4.2, fig. 4(b)", "mixed", 10, {"LARA": 8, "UA": 6, "LRF": 4, "ETF": 4, "STF": 2}),
    PrintedBundle("LARA", "4.2, fig. 4(c)", "mixed", 10, {"LARA": 6, "STF": 5, "UA": 3}, "second thresholds"),
    PrintedBundle("LaiRA", "fig. 2(a)", "pure", 10, {"STA": 3, "RR": 2}, "4 infeasible; LaiRA best"),
    PrintedBundle("LaiRA", "fig. 2(b)", "mixed", 10,
                  {"LaiRA": 6, "LARA": 3, "UA": 3, "RR": 3, "STA": 2, "STF": 1, "SH": 1}, "4 infeasible"),
)  # fmt: skip


def rows() -> list[tuple[str, str]]:
    """Return each bundle and its results in words."""
    found = []
    for one in PRINTED:
        met = ", ".join(f"{name} {jobs}" for name, jobs in one.met.items())
        remark = f"; {one.remark}" * bool(one.remark)
        found.append((f"{one.paper}, {one.where}: {one.kind}, {one.jobs} jobs", f"{met}{remark}"))
    return found


GAMMAS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


class Sweep(NamedTuple):
    """A figure on one constant of one policy; of its values the papers print few.

    Attributes:
        paper: Name of the policy.
        where: Figure.
        title: Constant, as the paper names it.
        values: Values that are played.
        kinds: Whether bundles are pure, for each curve of the figure.
    """

    paper: str
    where: str
    title: str
    values: tuple[float, ...]
    kinds: tuple[bool, ...]


SWEEPS = {
    "lara_explore": Sweep("LARA", "fig. 11(a)", "H", (250, 1000, 2000, 4000, 6000, 8000, 16_000), (False,)),
    "lara_gamma": Sweep("LARA", "fig. 11(b)", "gamma", GAMMAS, (False,)),
    "laira_delta": Sweep("LaiRA", "fig. 7(a)", "Delta", (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0), (True, False)),
    "laira_gamma": Sweep("LaiRA", "fig. 7(b)", "gamma", GAMMAS, (True, False)),
}
JOBS_SWEPT = 10


def figure_of(name: str, value: float) -> str:
    """Return the beginning of the names of a value's figures."""
    return f"swept_{name}_{value:g}"
