"""Compare policies that buy spot and on-demand instances under a deadline: cost, and part of the possible savings.

The paper's job, baselines and two policies, and ours, on recorded markets from random starts; each job is alone in its
market, and all policies have the same starts. Each launch of a node costs a tenth of an interval, as in a market that
bills; the paper's own figures count changes of the total number alone. Utility is the value of the job less what was
paid; the offline optimum knows the market in advance. *Gap closed* is the part of the gap between on-demand only and
the optimum. With the safety net every job that can be on time is, so that costs compare at equal punctuality; without
it the cost of a late job includes the on-demand instances that finish it.

The paper's figures: :mod:`benchmarks.market.spot_paper` and :mod:`benchmarks.market.spot_selector`. The markets:
:mod:`benchmarks.market.spot_traces`. One node, and launches of any length: :mod:`benchmarks.market.late`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.market.spot_paper import paper_figures, paper_percentages
from benchmarks.market.spot_selector import noises
from benchmarks.market.spot_soft import soft_figures
from benchmarks.market.spot_speed import measure_speed
from benchmarks.market.spot_traces import PRICE, TRACES, Trace, load, paper_jobs
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import (
    Arima,
    Autoregressive,
    Forecaster,
    LastValue,
    MarketForecaster,
    Noisy,
    Perfect,
    Seasonal,
    errors,
)
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.spot_job import Overhead
from lightning_core.parts.market.spot_policies import (
    Ahanp,
    Ahap,
    AllOrNothing,
    Chain,
    MaxSpot,
    NextLifetime,
    OnDemand,
    SemiMarkov,
    UniformProgress,
)
from lightning_core.parts.market.spot_policies.paper_pool import REPAIRED_POOL, make_pool

STARTS: Mapping[Size, int] = {"quick": 100, "default": 200, "full": 200}
ON_DEMAND, MSU, AHAP, OURS = "on-demand only", "MSU", "AHAP 2, 1", "ours: SemiMarkov"
RIVALS = (MSU, AHAP, "AHAP 5, 1", "AHAP 5, 1 rollout")
ONLY = {
    "standings": "only the standings of the policies on each market",
    "percentages": "only the paper's percentages, beside those of its algorithms as printed and repaired",
    "figures": "only the paper's figures 4 to 10, as printed and repaired",
    "soft": "only what a deadline that may be passed at a price saves",
    "speed": "only time the paper's pool of policies on 1,000 jobs",
}
# Errors of the forecasts in the search for a missed deadline.
NOISES = (0.1, 0.5, 1.0, 2.0)


def policies() -> dict[str, SpotPolicy]:
    """Return all rows of the standings."""
    return {
        ON_DEMAND: OnDemand(),
        MSU: MaxSpot(),
        "UP": UniformProgress(),
        "UP, all or nothing": AllOrNothing(),
        "next lifetime": NextLifetime(),
        "AHANP 0.9": Ahanp(0.9),
        "AHANP 0.9, printed": Ahanp(0.9, mode="paper"),
        AHAP: Ahap(2, 1),
        "AHAP 2, 1, printed": Ahap(2, 1, mode="paper"),
        "AHAP 5, 1": Ahap(5, 1),
        "AHAP 5, 1 rollout": Ahap(5, 1, end="rollout"),
        "Chain": Chain(),
        OURS: SemiMarkov(),
    }


def forecasters(size: Size) -> dict[str, Forecaster]:
    """Return all forecasters; ARIMA, which takes minutes, only in a full run."""
    found: dict[str, Forecaster] = {
        "last value": LastValue(),
        "autoregression": Autoregressive(),
        "yesterday": Seasonal(),
        "perfect": Perfect(),
    }
    return found | ({"ARIMA": Arima()} if size == "full" else {})


def measure(size: Size, traces: Path, plots: Path | None, **only: bool) -> Figures:
    """Print all tables and return their figures; with one of ``ONLY`` just these."""
    if only["speed"]:
        return measure_speed()
    found = load(traces)
    several = [one for one in found if one.max_nodes > 1]
    of_paper = next((one for one in several if one.priced), several[0])
    if only["percentages"]:
        return paper_percentages(of_paper, size)
    if only["figures"]:
        return paper_figures(of_paper, size, plots, whole=True)
    starts = STARTS[size]
    if only["soft"]:
        return soft_figures(several, size)
    _show(found)
    figures = all_standings(several, starts)
    if only["standings"]:
        return figures
    if size == "full":
        single(found, starts)
    for trace in several:
        forecasts(trace, min(starts, 40) if size == "quick" else starts, size)
    misses = guarded_misses(found, 5 if size == "quick" else 50 if size == "default" else starts, size)
    published = paper_percentages(of_paper, size) | paper_figures(of_paper, size, plots, whole=False)
    return {**figures, "guarded_misses": misses, "pool_112x1000_s": None, **published}


def all_standings(traces: Sequence[Trace], starts: int) -> Figures:
    """Print the standings on each market, and return the gaps closed and how far ours is ahead of others."""
    closed, ahead = {}, list[dict[str, float]]()
    for trace in traces:
        closed[trace.name], lead = standings(trace, starts)
        ahead.append(lead)

    def mean_closed(name: str, *, priced: bool) -> float | None:
        each = [closed[one.name][name] for one in traces if one.priced == priced]
        return float(np.mean(each)) if each else None

    return {
        "gap_closed_ahap_last": mean_closed(AHAP, priced=True),
        "gap_closed_ours": mean_closed(OURS, priced=True),
        "gap_closed_ours_binary": mean_closed(OURS, priced=False),
        "gap_closed_msu_binary": mean_closed(MSU, priced=False),
        "markets": float(len(traces)),
        "ours_over_msu_se": min((lead[MSU] for lead in ahead), default=None),
        "ours_over_ahap_se": min((lead[name] for lead in ahead for name in lead if name != MSU), default=None),
    }


def _show(traces: list[Trace]) -> None:
    print(f"markets; without recorded prices a spot instance costs {PRICE} of an on-demand one")
    rows = []
    for one in traces:
        market = one.market
        price = float(market.price.mean()) if one.priced else "assumed"
        count = float(market.available.mean())
        rows.append([one.name, len(market), one.max_nodes, count, 100 * one.extreme, price])
    table(["market", "intervals", "max of a job", "mean instances", "none or all, %", "mean price"], rows)


def standings(trace: Trace, starts: int) -> tuple[dict[str, float], dict[str, float]]:
    """Print all policies, with the last value as their forecast.

    Returns:
        Gaps closed, per cent, by policy; and how far our utility is above that of MSU and of each AHAP, in standard
        errors of the difference.
    """
    batch = trace.jobs(starts)
    best = optimum(batch)
    named = policies()
    guarded, bare = (
        dict(
            zip(
                named,
                backtest(list(named.values()), batch, MarketForecaster(LastValue()), guarded=guarded),
                strict=True,
            )
        )
        for guarded in (True, False)
    )
    for ledger in (*guarded.values(), *bare.values()):
        assert (ledger.utility <= best + 1e-6).all(), "no policy may be better than the optimum"
    base, other = guarded[ON_DEMAND].utility, guarded[MSU].utility
    print(f"\n{trace.name}: {starts} starts, forecast: last value; with the safety net, and without it (bare)")
    rows, closed = [], {}
    for name, ledger in guarded.items():
        closed[name] = gap_closed(ledger.utility, base, best)
        loose = bare[name]
        more, error = paired(ledger.utility, other)
        rows.append([
            name, float(ledger.cost.mean()), float(ledger.utility.mean()), spread(ledger.utility), closed[name],
            f"{more:+.2f} ± {error:.2f}", 100 * float(loose.on_time.mean()), float(loose.cost.mean()),
            float(loose.utility.mean()),
        ])  # fmt: skip
    rows.append(
        ["optimum", "", float(best.mean()), spread(best), 100.0, "{:+.2f} ± {:.2f}".format(*paired(best, other))]
    )
    rows[-1] += ["", "", ""]
    table(
        [
            "policy",
            "cost",
            "utility",
            "±",
            "gap closed, %",
            "over MSU",
            "bare: on time, %",
            "bare: cost",
            "bare: utility",
        ],
        rows,
    )
    leads = {name: paired(guarded[OURS].utility, guarded[name].utility) for name in RIVALS}
    print("ours over " + "; ".join(f"{name} {more:+.2f} ± {error:.2f}" for name, (more, error) in leads.items()))
    return closed, {name: more / error if error else 0.0 for name, (more, error) in leads.items()}


def single(traces: list[Trace], starts: int) -> None:
    """Print the gaps closed on markets of one instance, where there is little to decide."""
    print("\nmarkets of one instance: gap closed, %")
    rows = []
    for trace in (one for one in traces if one.max_nodes == 1):
        batch, named = trace.jobs(starts), policies()
        best = optimum(batch)
        ledgers = dict(zip(named, backtest(list(named.values()), batch, MarketForecaster(LastValue())), strict=True))
        base = ledgers[ON_DEMAND].utility
        rows.append([trace.name, *(gap_closed(one.utility, base, best) for one in ledgers.values())])
    if rows:
        table(["market", *policies()], rows)


def forecasts(trace: Trace, starts: int, size: Size) -> None:
    """Print each forecaster's error relative to the last value, and the gap that AHAP closes with it."""
    batch = trace.jobs(starts)
    best, named = optimum(batch), {"2": Ahap(2, 1), "5": Ahap(5, 1), "5r": Ahap(5, 1, end="rollout")}
    [base] = backtest([OnDemand()], batch, MarketForecaster(LastValue()))
    counts, prices = trace.market.available.astype(float), trace.market.price
    known = {kind: errors(LastValue().table(values, 6), values) for kind, values in (("n", counts), ("p", prices))}
    rows = []
    for name, forecaster in {**forecasters(size), "50 % wrong": Noisy(0.5), "200 % wrong": Noisy(2.0)}.items():
        # Prices have random numbers of their own.
        apart = replace(forecaster, seed=1) if isinstance(forecaster, Noisy) else forecaster
        wrong = errors(forecaster.table(counts, 6), counts)
        priced = errors(forecaster.table(prices, 6), prices)
        beside = [float(wrong[ahead] / known["n"][ahead]) for ahead in (0, 2, 5)]
        cost = float(priced[0] / known["p"][0]) if known["p"][0] else "-"
        closed = [
            gap_closed(ledger.utility, base.utility, best)
            for ledger in backtest(list(named.values()), batch, MarketForecaster(forecaster, apart))
        ]
        rows.append([name, float(wrong[0]), *beside, cost, *closed])
    print(f"\n{trace.name}: forecasters; errors relative to those of the last value, and the gap that AHAP closes")
    of = ["1 interval", "3 intervals", "6 intervals", "price, 1 interval"]
    table(["forecaster", "mean |error|", *of, "AHAP 2, %", "AHAP 5, %", "5 rollout, %"], rows)


def guarded_misses(traces: list[Trace], starts: int, size: Size) -> float:
    """Play all policies with every forecaster and noise; assert that no utility is above the optimum.

    Returns:
        Number of jobs that were late though they could have been on time.
    """
    pool = make_pool(REPAIRED_POOL) | {
        name: policy for name, policy in policies().items() if name not in (OURS, "Chain")
    }
    known = {"last value": LastValue()} if size == "quick" else forecasters(size)
    foresights: dict[str, MarketForecaster] = {name: MarketForecaster(one) for name, one in known.items()}
    for by in (2.0,) if size == "quick" else NOISES:
        foresights |= noises(by)
    misses, played, last = 0, 0, MarketForecaster(LastValue())
    for trace in traces:
        if trace.max_nodes > 1:
            each = [trace.jobs(starts, seed=1, overhead=overhead) for overhead in get_args(Overhead)]
            some, batches = foresights, [*each, paper_jobs(trace, starts, seed=2)]
        else:  # markets of one instance are many and simple
            some, batches = {"last value": last}, [trace.jobs(max(starts // 10, 1), seed=1)]
        for batch in batches:
            best, feasible = optimum(batch), batch.feasible
            runs = [backtest([SemiMarkov(), Chain()], batch, last)]  # they have their own forecast
            runs += [backtest(list(pool.values()), batch, forecasts) for forecasts in some.values()]
            for ledger in itertools.chain(*runs):
                misses += int((feasible & ~ledger.on_time).sum())
                played += int(feasible.sum())
                assert (ledger.utility <= best + 1e-6).all(), "no policy may be better than the optimum"
    print(
        f"\nsafety net: {misses} of {played} jobs late that could have been on time; {len(pool) + 2} policies, "
        f"{len(foresights)} forecasts, {len(traces)} markets; up to {2 * starts} jobs each"
    )
    return misses


def gap_closed(utility: FloatArray, base: FloatArray, best: FloatArray) -> float:
    """Return the part of the gap between a base and the best that is closed, over all starts, in per cent."""
    return float(100 * (utility - base).mean() / (best - base).mean())


def spread(values: FloatArray) -> float:
    """Return the standard error of the mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5)


def paired(one: FloatArray, other: FloatArray) -> tuple[float, float]:
    """Return the mean difference and its standard error."""
    return float((one - other).mean()), spread(one - other)


if __name__ == "__main__":
    main(
        "market.spot",
        str(__doc__).partition("\n")[0],
        measure,
        flags=ONLY,
        traces=TRACES,
        plots=None,
    )
