"""``lightning-core market``: nodes to hold in a spot market now, costs of policies, and quality of forecasts.

Nothing is launched and nothing is paid.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lightning_core.cli.arguments import add_pool, new_file
from lightning_core.core.durations import format_duration
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import (
    CAUSAL,
    Forecaster,
    LastValue,
    MarketForecaster,
    errors,
    make_causal_forecaster,
    make_market_forecaster,
)
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.market_terms import DEFAULT_POLICIES
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.several_zones import Zones, print_where, print_zone_backtest, read_zones
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES, OnDemand
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost
from lightning_core.parts.market.spot_policies.paper_pool import make_pool, pool_of
from lightning_core.parts.market.study import Study, add_job, add_study, read_study
from lightning_core.parts.market.traces import INTERVAL
from lightning_core.parts.market.zones.offer_trace import any_of
from lightning_core.run.pool_reference import journal_path
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.storage.atomic_files import write_whole
from lightning_core.view.tables import print_table
from lightning_core.view.text import clean

# Policy of a plan that names none.
SPOT_POLICY = DEFAULT_POLICIES[0]
COMPARED = ("on-demand", "max-spot", "uniform-progress", "all-or-nothing", "ahanp", "ahap", "semi-markov")
# It assumes free swaps: it is compared where they are free.
COMPARED_BY_TOTALS = (*COMPARED[:-1], "chain", COMPARED[-1])


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command with its subcommands."""
    description = "plan spot and on-demand nodes under a deadline"
    commands = command("market", print, description).add_subparsers(required=True, metavar="WHAT")

    def made(name: str, run: Callable[[argparse.Namespace], int], description: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=description, description=description)
        parser.set_defaults(run=run)
        return parser

    plan = made("plan", _plan, "print what to hold now, at the end of a recording, and after that by forecast")
    add_study(plan)
    add_job(plan)
    job = "folder of a run and name of its job, at its measured throughput and with its batches left"
    plan.add_argument("--job", nargs=2, metavar=("DIR", "NAME"), help=job)
    back = made(
        "backtest", _backtest, "compare what each policy would have cost, from many starts, with the offline optimum"
    )
    add_study(back)
    add_job(back)
    back.add_argument("--json", type=new_file, metavar="FILE", help="also write the table to this file")
    ahead = made("forecast", _forecast, "compare the error of each forecaster with that of the last value")
    add_study(ahead)
    ahead.add_argument(
        "--horizon", type=int, default=6, metavar="INTERVALS", help="number of intervals ahead (default 6)"
    )
    ahead.add_argument("--arima", action="store_true", help="include ARIMA, which takes minutes")
    ledger = made("ledger", _ledger, "print what each interval of a pool or run on a market held, cost and trained")
    ledger.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="folder of the run (default: the pool)")
    ledger.add_argument("--picture", type=new_file, metavar="FILE", help="draw the intervals: PNG, SVG or PDF")
    add_pool(ledger)


# ------------------------------------------------------------------------------------------------------ the commands


def _ledger(arguments: argparse.Namespace) -> int:
    from lightning_core.parts.market.ledger_table import draw, print_ledger
    from lightning_core.parts.market.market_ledger import read_ledger
    from lightning_core.pool import Pool

    folder = arguments.folder
    if folder is None:
        with Pool.connect(arguments.pool) as pool:
            folder = pool.folder
    print_ledger(ledger := read_ledger(journal_path(folder)))
    if arguments.picture and ledger.rows:
        draw(ledger, arguments.picture)
        print(arguments.picture)
    return EXIT_MET


def _read(study: Study) -> tuple[Zones | None, Market, SpotJob]:
    """Return the zones (None unless there are several), the market over all of them, and the job on it."""
    if study.has_zones:
        zones = read_zones(study)
        return zones, any_of(zones.traces), zones.job
    market = study.market()
    return None, market, study.job_on(market)


def _plan(arguments: argparse.Namespace) -> int:
    study = read_study(arguments)
    text, *others = study.policies or (SPOT_POLICY,)
    if others:
        raise ValueError(f"a plan has one policy, got {text} and {', '.join(others)}")
    policy = SPOT_POLICIES.make(text)
    make_causal_forecaster(study.forecaster, INTERVAL)  # before anything is printed
    zones, market, job = _read(study)
    ahead = make_causal_forecaster(study.forecaster, market.seconds)
    # The plan starts at the last recorded interval; the others are forecast.
    steps = job.deadline - 1
    price, count = (_forecast_from(ahead, values, steps) for values in (market.price, market.available.astype(float)))
    whole = np.maximum(np.floor(count + 0.5), 0).astype(np.int64)
    thought = Market(np.maximum(price, 0.0), whole, market.on_demand, market.seconds, market.name)
    batch = JobBatch([job], thought, [len(market) - 1])
    [ledger] = backtest([policy], batch, MarketForecaster(LastValue()), preemption_cost=job.preemption_cost)
    fits = print_job(job, market)
    rows = [
        [str(interval), f"{batch.available[0, interval]}", f"{batch.price[0, interval]:.3f}",
         f"{ledger.spot[0, interval]}", f"{ledger.on_demand[0, interval]}",
         f"{ledger.progress[0, interval]:.4g}", f"{ledger.paid[0, interval]:.4g}"]
        for interval in range(job.deadline)
    ]  # fmt: skip
    header = ["interval", "on offer", "price", "spot", "on-demand", "done", "paid"]
    print_table(header, rows, f"plan of {clean(text)}; after interval 0 all is forecast ({study.forecaster})")
    late = int(ledger.late[0])
    end = "in time" if not late else f"{late} intervals late"
    print(f"now: hold {ledger.spot[0, 0]} spot and {ledger.on_demand[0, 0]} on-demand nodes")
    if zones is not None:
        print_where(zones, NodeCounts(int(ledger.spot[0, 0]), int(ledger.on_demand[0, 0])))
    print(f"if the forecast is right, it completes {end} and costs {ledger.cost[0]:.4g}; on-demand only "
          f"{on_demand_cost(job, market.on_demand):.4g}")  # fmt: skip
    if arguments.picture:
        from lightning_core.parts.market.market_plots import draw_plan

        draw_plan(batch, ledger, arguments.picture, f"{text} in {market.name}", now=True)
        print(arguments.picture)
    return EXIT_MET if fits else EXIT_NOT_MET


def _forecast_from(forecaster: Forecaster, values: np.ndarray, steps: int) -> np.ndarray:
    """Return a series continued by its forecast."""
    return np.concatenate([values, forecaster.table(values, steps)[-1]]) if steps else values


def _backtest(arguments: argparse.Namespace) -> int:
    study = read_study(arguments)
    if arguments.picture and study.has_zones:
        raise ValueError("--picture draws one recording: give one trace")
    compared = COMPARED_BY_TOTALS if study.job.get("overhead") == "total" else COMPARED
    named = make_pool(pool_of(study.policies or compared))
    zones, market, job = _read(study)
    if job.deadline > len(market):
        until = "the end of its grace" if job.due < job.deadline else "deadline"
        raise ValueError(f"{until} must be at most the {len(market)} intervals of {market.name}, got {job.deadline}")
    draw = np.random.default_rng(study.seed)
    starts = np.sort(draw.integers(0, len(market) - job.deadline + 1, study.starts)).tolist()
    fits, lost = print_job(job, market), job.preemption_cost
    if zones is not None:
        figures = print_zone_backtest(zones, list(named), study.forecaster, starts)
        if arguments.json:
            write_whole(arguments.json, json.dumps({"policies": figures}, indent=2, allow_nan=False) + "\n")
        return EXIT_MET if fits else EXIT_NOT_MET
    batch = JobBatch([job] * len(starts), market, starts)
    best, forecasts = optimum(batch), make_market_forecaster(study.forecaster, market.seconds)
    guarded, bare = (
        dict(
            zip(named, backtest(list(named.values()), batch, forecasts, guarded=net, preemption_cost=lost), strict=True)
        )
        for net in (True, False)
    )
    [base] = backtest([OnDemand()], batch, forecasts)
    rows, body = [], {}
    for name, ledger in guarded.items():
        clip = float((best - base.utility).mean())
        closed = 100 * float((ledger.utility - base.utility).mean()) / clip if clip > 0 else math.nan
        body[name] = {
            "cost": float(ledger.cost.mean()),
            "on_time": float(ledger.on_time.mean()),
            "utility": float(ledger.utility.mean()),
            "gap_closed": None if math.isnan(closed) else closed,
            "bare_cost": float(bare[name].cost.mean()),
            "bare_on_time": float(bare[name].on_time.mean()),
        }
        of, error = body[name], ledger.utility.std() / math.sqrt(len(starts))
        rows.append([
            clean(name), f"{of['cost']:.4g}", f"{of['on_time']:.0%}", f"{of['utility']:.4g} ± {error:.2g}",
            "-" if math.isnan(closed) else f"{closed:.1f} %", f"{of['bare_cost']:.4g}", f"{of['bare_on_time']:.0%}",
        ])  # fmt: skip
    cost = float(job.value - best.mean())
    name = "offline optimum" if job.due == job.deadline else "offline optimum, with the value lost"
    rows.append([name, f"{cost:.4g}", "", f"{best.mean():.4g}", "100.0 %", "", ""])
    print_table(
        ["policy", "cost", "on time", "utility", "gap closed", "bare: cost", "on time"], rows,
        f"{len(starts)} starts, forecast: {study.forecaster}; gap closed: from on-demand only to the optimum",
    )  # fmt: skip
    if arguments.json:
        write_whole(arguments.json, json.dumps({"optimum": cost, "policies": body}, indent=2, allow_nan=False) + "\n")
    if arguments.picture:
        from lightning_core.parts.market.market_plots import draw_backtest

        shown = max(body, key=lambda name: body[name]["utility"] or 0.0)
        draw_backtest(batch, guarded, bare, cost, (shown, most_mixed_row(guarded[shown])), arguments.picture)
        print(arguments.picture)
    return EXIT_MET if fits else EXIT_NOT_MET


def most_mixed_row(ledger: Ledger) -> int:
    """Return the row in which both kinds of node were held most evenly, the one that shows most."""
    return int(np.minimum(ledger.spot.sum(1), ledger.on_demand.sum(1)).argmax())


def _forecast(arguments: argparse.Namespace) -> int:
    if arguments.horizon < 1:
        raise ValueError(f"--horizon must be at least 1 interval, got {arguments.horizon}")
    market, horizon = read_study(arguments).market(), arguments.horizon
    if len(market) <= horizon:
        raise ValueError(f"--horizon must be below the {len(market)} intervals of {market.name}, got {horizon}")
    shown = sorted({1, (horizon + 1) // 2, horizon})
    for what, values in (("spot nodes", market.available.astype(float)), ("price", market.price)):
        if np.ptp(values) == 0:
            print(f"{what}: always {values[0]:g}")
            continue
        last, rows = errors(LastValue().table(values, horizon), values), []
        for name in CAUSAL:
            if name == "arima" and not arguments.arima:
                continue
            wrong = errors(make_causal_forecaster(name, market.seconds).table(values, horizon), values)
            rows.append([name, *(f"{wrong[at - 1]:.4g} ({wrong[at - 1] / last[at - 1]:.2f})" for at in shown)])
        ahead = [f"{at} interval{'s' * (at > 1)} ahead" for at in shown]
        print_table(["forecaster", *ahead], rows, f"{what}: mean absolute error (relative to that of the last value)")
    return EXIT_MET


# --------------------------------------------------------------------------------------------------- what is given


def print_job(job: SpotJob, market: Market) -> bool:
    """Print the job and return whether it can complete in time at all."""
    length = format_duration(job.due * market.seconds)
    print(f"job: {job.work:g} of work in {job.due} intervals ({length}) on {job.min_nodes} to {job.max_nodes} "
          f"nodes; worth {job.value:.4g}, nothing after {job.grace:g} times its deadline")  # fmt: skip
    if not job.feasible:
        can = (job.deadline - job.launch) * job.throughput[-1]
        print(f"warning: it cannot complete in time: {job.max_nodes} on-demand nodes do {can:.4g} of work by then, "
              f"and {job.work:g} is left")  # fmt: skip
    return job.feasible
