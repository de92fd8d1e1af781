"""The paper's figures 4 to 8, and its claims compared with what is measured, as printed and repaired.

Its figures have no numbers; four percentages are in its text. It does not give the value of a job and how it decays,
the forecast in figures 5 to 8, or what MSU does near the deadline. The first two are chosen in
:mod:`benchmarks.market.spot_traces`, the forecast is the last value, and the bare MSU buys on-demand instances in the
last two intervals. AHAP and AHANP are represented by the best of the pool in hindsight; without the safety net they
are as printed, but that a job holds no more nodes than end it in its last interval, with it they are repaired. Figures
9 and 10:
:mod:`benchmarks.market.spot_selector`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, table
from benchmarks.market.spot_selector import SELECTED, figure_9, figure_10, print_claim, selected, utilities_of
from benchmarks.market.spot_traces import DEADLINE, GRACE, VALUE, WORK, Trace, scaled
from benchmarks.papers.on_markets import AXES, BASELINES, CLAIMED, POINTS, figure_of
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster, Perfect
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.programs.window_planner import WindowPlanner
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_policies import Ahanp, Ahap, Chain, MaxSpot, OnDemand, UniformProgress
from lightning_core.parts.market.spot_policies.ahap import Mode
from lightning_core.parts.market.spot_policies.paper_pool import MAX_OMEGA, SIGMAS

MODES: Mapping[Mode, str] = {"paper": "as printed, trimmed", "default": "repaired"}
# Minutes to launch an instance at 800 Mbps.
LAUNCH = 3.0
STARTS: Mapping[Size, int] = {"quick": 20, "default": 100, "full": 200}
COMPARED: Mapping[Size, int] = {"quick": 20, "default": 200, "full": 200}


class Setting(NamedTuple):
    """One point of a figure: its market and its jobs."""

    at: float
    trace: Trace
    deadline: int = DEADLINE
    growth_fraction: float = 0.9


def paper_figures(trace: Trace, size: Size, plots: Path | None, *, whole: bool) -> Figures:
    """Print all figures of the paper for one market, and return their numbers; all points of each, or some if quick."""
    figures = figure_4(trace, STARTS[size])
    whole |= size != "quick"
    ladder = slice(None) if whole else slice(1, None, 2)

    def settings(number: str, make: Callable[[float], Setting]) -> list[Setting]:
        return [make(value)._replace(at=value) for value in POINTS[number][ladder]]

    def market(counts: float | None = None, prices: float | None = None) -> Setting:
        return Setting(0.0, replace(trace, market=scaled(trace.market, counts, prices)))

    shown = {
        "5": settings("5", lambda d: Setting(0.0, trace, int(d))),
        "6": settings("6", lambda b: Setting(0.0, trace, growth_fraction=1 - LAUNCH * 800 / b / 30)),
        "7": settings("7", lambda n: market(counts=n)),
        "8": settings("8", lambda p: market(prices=p)),
    }
    observation = {
        (number, guarded): figure(number, points, STARTS[size], guarded=guarded)
        for number, points in shown.items()
        for guarded in (False, True)
    }
    claims(observation)
    for (number, guarded), found in observation.items():
        for point, row in zip(shown[number], found, strict=True):
            mode = "repaired" if guarded else "printed"
            figures |= {figure_of(number, point.at, name, mode): utility for name, utility in row.items()}
    figures |= figure_9(trace, SELECTED[size], (0.3, 2.0) if whole else (2.0,))
    return figures | figure_10(trace, 0.05 if size == "quick" else 0.3 if size == "default" else 1.0, plots)


# ----------------------------------------------------------------------------------------------------- figures 4 to 8


class Constant:
    """A forecaster that always answers the same value."""

    def __init__(self, value: float) -> None:
        self.value = value

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        return np.full((len(values), horizon), self.value)


def figure_4(trace: Trace, starts: int) -> Figures:
    """Print and return the benefit of right and wrong forecasts: 20 units within 5 intervals, without overhead."""
    part = 20 / WORK
    job = SpotJob(20.0, 5, growth_fraction=1.0, shrink_fraction=1.0, value=part * VALUE, overhead="total")
    begin = np.random.default_rng(4).integers(0, len(trace.market) - 4, starts)
    batch = JobBatch([job] * starts, trace.market, begin.tolist())
    last, perfect, six = (
        MarketForecaster(LastValue()),
        MarketForecaster(Perfect()),
        MarketForecaster(LastValue(), Constant(6.0)),
    )
    rows: dict[str, Ledger] = {
        "on-demand only": backtest([OnDemand()], batch, last)[0],
        "spot first": backtest([MaxSpot()], batch, last, guarded=False)[0],
        "progress tracking": backtest([UniformProgress()], batch, last)[0],
        "perfect forecast": backtest([Ahap(4, 1)], batch, perfect)[0],
        "forecast of 6": backtest([Ahap(4, 1)], batch, six)[0],
    }
    print(f"\nfigure 4: 20 units in 5 intervals, {starts} starts")
    table(
        ["strategy", "cost", "on time, %"],
        [[name, float(one.cost.mean()), 100 * float(one.on_time.mean())] for name, one in rows.items()],
    )
    worse = float((rows["forecast of 6"].cost > rows["progress tracking"].cost + 1e-9).mean())
    costs = {name: float(one.cost.mean()) for name, one in rows.items()}
    print_claim("a perfect forecast has the lowest cost of all that are on time", costs["perfect forecast"] <= min(
        cost for name, cost in costs.items() if rows[name].on_time.all()) + 1e-9)  # fmt: skip
    print_claim("a wrong forecast can cost more than none", worse > 0, f"in {worse:.0%} of the starts")
    figures: Figures = {"fig4_wrong_worse_pct": 100 * worse}
    for name, one in rows.items():
        figures |= {f"fig4_cost_{name}": costs[name], f"fig4_on_time_{name}": 100 * float(one.on_time.mean())}
    return figures


def contenders(*, guarded: bool) -> dict[str, list[SpotPolicy]]:
    """Return the policies of figures 5 to 8; of several under one name the best in hindsight counts."""
    mode: Mode = "default" if guarded else "paper"
    shared = WindowPlanner("target" if guarded else "literal")
    return {
        "OD": [OnDemand()],
        "MSU": [MaxSpot(0 if guarded else 2)],
        "UP": [UniformProgress()],
        "AHANP": [Ahanp(sigma, mode=mode) for sigma in SIGMAS],
        "AHAP": [Ahap(w, v, mode=mode, planner=shared) for w in range(1, MAX_OMEGA + 1) for v in range(1, w + 1)],
        "chain": [Chain()],
    }


def figure(number: str, points: Sequence[Setting], starts: int, *, guarded: bool) -> list[dict[str, float]]:
    """Mean utility of each contender at each point."""
    found = []
    for point in points:
        batch = point.trace.jobs(starts, 5, point.deadline, point.growth_fraction, overhead="total")
        best, groups = optimum(batch), contenders(guarded=guarded)
        each = [policy for group in groups.values() for policy in group]
        ledgers = iter(backtest(each, batch, MarketForecaster(LastValue()), guarded=guarded))
        several = {name: [next(ledgers) for _ in group] for name, group in groups.items()}
        assert all((one.utility <= best + 1e-6).all() for group in several.values() for one in group)
        means = {name: max(float(one.utility.mean()) for one in group) for name, group in several.items()}
        found.append({**means, "optimum": float(best.mean())})
    net = "with" if guarded else "without"
    print(f"\nfigure {number}: {AXES[number]}; mean utility, {net} the safety net, {starts} starts")
    table(["", *found[0]], [[f"{point.at:g}", *row.values()] for point, row in zip(points, found, strict=True)])
    return found


def paper_percentages(trace: Trace, size: Size) -> Figures:
    """Print the utility of AHAP and of the selector above the others, per cent, beside the paper's claims.

    Of the pools of 105 and 7 policies the best in hindsight counts. *As printed* are algorithms 1, 2 and 3 to the
    letter, but that a job holds no more nodes than end it in its last interval; *repaired* are the defaults of this
    project; the selector has the printed step in both.

    Returns:
        AHAP as printed without the safety net, and repaired with it, above each of the others; None above one whose
        utility is not positive.
    """
    starts = COMPARED[size]
    batch, last = trace.jobs(starts, 5, overhead="total"), MarketForecaster(LastValue())
    rows: list[list[object]] = [["the paper", "", "", *(f"{one:+.1f}" for one in CLAIMED.values())]]
    figures: Figures = {}
    for guarded, net in ((False, "no safety net"), (True, "safety net")):
        baselines = backtest(
            [OnDemand(), MaxSpot(0 if guarded else 2), UniformProgress()], batch, last, guarded=guarded
        )
        for mode, words in MODES.items():
            utilities, _ = utilities_of(batch, last, guarded=guarded, mode=mode)
            means = utilities.mean(1)
            ahap, ahanp = float(means[: -len(SIGMAS)].max()), float(means[-len(SIGMAS) :].max())
            others = [*(float(one.utility.mean()) for one in baselines), ahanp]
            chosen = float(selected(utilities, batch, starts)[0].mean())
            for name, utility in (("AHAP", ahap), ("selector", chosen)):
                over = {
                    other: 100 * (utility / base - 1) if base > 0 else None
                    for other, base in zip(CLAIMED, others, strict=True)
                }
                shown = ("-" if one is None else f"{one:+.1f}" for one in over.values())
                rows.append([f"{name} {words}", net, utility, *shown])
                if name == "AHAP" and guarded == (mode == "default"):
                    kept = "printed" if mode == "paper" else "repaired"
                    figures |= {f"ahap_{kept}_over_{other.lower()}": one for other, one in over.items()}
    print(f"\nutility above that of each other, %, at a deadline of {DEADLINE} intervals; {starts} starts")
    print(f"value {VALUE:g} and grace {GRACE:g}, which the paper does not give, are chosen closest to its percentages")
    table(["", "", "utility", *CLAIMED], rows)
    return figures


def claims(observation: Mapping[tuple[str, bool], Sequence[Mapping[str, float]]]) -> None:
    """Print which of the paper's claims on figures 5 to 8 hold."""
    print("\nClaims of the paper on figures 5 to 8")
    for guarded in (False, True):
        net = "with the safety net" if guarded else "without"
        for (number, kept), rows in observation.items():
            if kept != guarded:
                continue
            for name in ("AHAP", "AHANP"):
                above = sum(row[name] > max(row[one] for one in BASELINES) for row in rows)
                words = f"figure {number}, {net}: {name} above OD, MSU and UP at every point"
                print_claim(words, above == len(rows), f"{above} of {len(rows)}")
        slow, fast = observation["6", guarded][0], observation["6", guarded][-1]
        lost = {name: fast[name] - slow[name] for name in ("AHANP", "AHAP")}
        print_claim(
            f"figure 6, {net}: AHANP loses less by overhead than AHAP", lost["AHANP"] < lost["AHAP"],
            f"AHANP {lost['AHANP']:.1f}, AHAP {lost['AHAP']:.1f}",
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- figures 9 and 10
