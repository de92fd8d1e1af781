"""``lightning-core market``: what to hold in a spot market now, what policies would have cost in it, how well it is
forecast. Nothing is launched and nothing is paid.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lightning_core.bundle.settings_section import parse_policy
from lightning_core.cli.arguments import new_file, whole_number
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.core.names import did_you_mean
from lightning_core.market import JobBatch, LastValue, Ledger, Market, MarketForecaster, SpotJob, backtest
from lightning_core.market.forecasters import FORECASTERS, Forecaster, errors
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.optimum import optimum
from lightning_core.market.policies import SPOT_POLICIES, OnDemand
from lightning_core.market.policies.on_demand import on_demand_cost
from lightning_core.market.traces import read_trace, shipped_trace
from lightning_core.scheduler.market_jobs import batches_left, throughput_table
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.view.tables import print_table
from lightning_core.view.text import clean

COMPARED = ("on-demand", "max-spot", "uniform-progress", "all-or-nothing", "ahanp", "ahap", "chain")
# That look at nothing but the past.
CAUSAL = tuple(name for name in FORECASTERS if name != "perfect")


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The command with its own commands."""
    words = "spot and on-demand instances under a deadline"
    commands = command("market", print, words).add_subparsers(required=True, metavar="WHAT")

    def made(name: str, run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=words, description=words)
        parser.set_defaults(run=run)
        _add_market(parser)
        return parser

    plan = made("plan", _plan, "what to hold now, at the end of a recording, and what after that by forecast")
    _add_job(plan)
    plan.add_argument("--policy", default="chain", metavar="NAME", help=f"of {', '.join(SPOT_POLICIES)}; with "
                      "arguments as ahap:omega=3 (default chain)")  # fmt: skip
    plan.add_argument("--forecaster", default="last", metavar="NAME", choices=CAUSAL, help=f"of {', '.join(CAUSAL)} "
                      "(default last)")  # fmt: skip
    plan.add_argument("--picture", type=new_file, metavar="FILE", help="PNG, SVG or PDF")
    back = made("backtest", _backtest, "what each policy would have cost, from many starts, beside the optimum")
    _add_job(back)
    back.add_argument("--policy", action="append", metavar="NAME", help="to compare, again for more (default: all)")
    back.add_argument("--forecaster", default="last", metavar="NAME", choices=tuple(FORECASTERS), help=f"of "
                      f"{', '.join(FORECASTERS)} (default last)")  # fmt: skip
    back.add_argument("--starts", type=int, default=100, metavar="N", help="(default 100)")
    back.add_argument("--seed", type=int, default=0, metavar="N", help="of the starts (default 0)")
    back.add_argument("--picture", type=new_file, metavar="FILE", help="PNG, SVG or PDF")
    back.add_argument("--json", type=new_file, metavar="FILE", help="write the table here too")
    ahead = made("forecast", _forecast, "how wrong each forecaster is, beside the last value")
    ahead.add_argument("--horizon", type=int, default=6, metavar="INTERVALS", help="(default 6)")
    ahead.add_argument("--arima", action="store_true", help="that too: it takes minutes")


def _add_market(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the market")
    group.add_argument("--trace", type=Path, metavar="FILE", help="recording: CSV of intervals, of events or of SpotLake, "
                       "JSON of the spot traces (default: the one that is shipped, 28 days of A100 cards)")  # fmt: skip
    group.add_argument(
        "--price",
        type=float,
        metavar="P",
        help="of a spot instance for an interval: where none is recorded, or instead",
    )
    group.add_argument("--on-demand", type=float, default=1.0, metavar="P", help="of an on-demand one (default 1)")
    group.add_argument("--interval", metavar="TIME", help="such as 30m (default: as recorded)")
    group.add_argument("--pool", default="", metavar="INSTANCE@ZONE", help="of SpotLake's")


def _add_job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument(
        "--work", type=float, metavar="W", help="that is left: 1 is what one instance does in an interval"
    )
    group.add_argument(
        "--deadline",
        type=whole_number(1, 100_000),
        required=True,
        metavar="INTERVALS",
        help="from now, or from its start",
    )
    group.add_argument(
        "--min-nodes", type=whole_number(1, 10_000), metavar="N", help="instances that it needs (default 1)"
    )
    group.add_argument("--max-nodes", type=whole_number(1, 10_000), metavar="N", help="that it can use (default 12)")
    group.add_argument(
        "--throughput", metavar="H1,H2,...", help="work in an interval on 1, 2, .. instances (default 1,2,..)"
    )
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="of a run: its job's speed as it was measured, and "
                       "the batches that it still has to do")  # fmt: skip
    group.add_argument("--job", metavar="NAME", help="of that run")
    group.add_argument("--kept-fraction", type=float, default=0.9, metavar="PART", help="of an interval in which the number of "
                       "instances changes (default 0.9)")  # fmt: skip
    group.add_argument("--value", type=float, metavar="V", help="of its end in time (default: half as much again as "
                       "it costs on on-demand instances)")  # fmt: skip
    group.add_argument("--grace", type=float, default=1.5, metavar="TIMES", help="its deadline, and it is worth "
                       "nothing any more (default 1.5)")  # fmt: skip


# ------------------------------------------------------------------------------------------------------ the commands


def _plan(arguments: argparse.Namespace) -> int:
    market = _market(arguments)
    job = _job(arguments, market)
    # From the last interval of the recording on: it is seen, the others are what is forecast.
    ahead, steps = FORECASTERS[arguments.forecaster](market), job.deadline - 1
    policy = _policies([arguments.policy])[arguments.policy]
    price, count = (_forecast_from(ahead, values, steps) for values in (market.price, market.available.astype(float)))
    whole = np.maximum(np.floor(count + 0.5), 0).astype(np.int64)
    thought = Market(np.maximum(price, 0.0), whole, market.on_demand, market.seconds, market.name)
    batch = JobBatch([job], thought, [len(market) - 1])
    [ledger] = backtest([policy], batch, MarketForecaster(LastValue()))
    fits = _tell(job, market)
    rows = [
        [str(interval), f"{batch.available[0, interval]}", f"{batch.price[0, interval]:.3f}", f"{ledger.spot[0, interval]}",
         f"{ledger.on_demand[0, interval]}", f"{ledger.progress[0, interval]:.4g}", f"{ledger.paid[0, interval]:.4g}"]
        for interval in range(job.deadline)
    ]  # fmt: skip
    header = ["interval", "there are", "price", "spot", "on-demand", "done", "paid"]
    print_table(
        header, rows, f"plan of {clean(arguments.policy)}; behind interval 0 all is a forecast ({arguments.forecaster})"
    )
    late = int(ledger.late[0])
    end = "in time" if not late else f"{late} intervals late"
    print(f"now: hold {ledger.spot[0, 0]} spot and {ledger.on_demand[0, 0]} on-demand instances")
    print(f"if the forecast comes true, it ends {end} and costs {ledger.cost[0]:.4g}; on-demand alone "
          f"{on_demand_cost(job, market.on_demand):.4g}")  # fmt: skip
    if arguments.picture:
        from lightning_core.report.market_plots import draw_plan

        draw_plan(batch, ledger, arguments.picture, f"{arguments.policy} in {market.name}", now=True)
        print(arguments.picture)
    return EXIT_MET if fits else EXIT_NOT_MET


def _forecast_from(forecaster: Forecaster, values: np.ndarray, steps: int) -> np.ndarray:
    """A series and what follows it by forecast."""
    return np.concatenate([values, forecaster.table(values, steps)[-1]]) if steps else values


def _backtest(arguments: argparse.Namespace) -> int:
    if arguments.starts < 1:
        raise ValueError(f"--starts must be at least 1, got {arguments.starts}")
    market = _market(arguments)
    job = _job(arguments, market)
    named = _policies(arguments.policy or COMPARED)
    if job.deadline > len(market):
        raise ValueError(f"--deadline must be at most the {len(market)} intervals of {market.name}, got {job.deadline}")
    draw = np.random.default_rng(arguments.seed)
    starts = np.sort(draw.integers(0, len(market) - job.deadline + 1, arguments.starts)).tolist()
    batch = JobBatch([job] * len(starts), market, starts)
    fits = _tell(job, market)
    best, forecasts = optimum(batch), MarketForecaster(FORECASTERS[arguments.forecaster](market))
    guarded, bare = (
        dict(zip(named, backtest(list(named.values()), batch, forecasts, guarded=net), strict=True))
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
    rows.append(["offline optimum", f"{cost:.4g}", "", f"{best.mean():.4g}", "100.0 %", "", ""])
    print_table(
        ["policy", "cost", "on time", "utility", "gap closed", "bare: cost", "on time"], rows,
        f"{len(starts)} starts, forecast: {arguments.forecaster}; gap closed: from on-demand alone to the optimum",
    )  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps({"optimum": cost, "policies": body}, indent=2, allow_nan=False) + "\n")
    if arguments.picture:
        from lightning_core.report.market_plots import draw_backtest

        shown = max(body, key=lambda name: body[name]["utility"] or 0.0)
        draw_backtest(batch, guarded, bare, cost, (shown, _telling(guarded[shown])), arguments.picture)
        print(arguments.picture)
    return EXIT_MET if fits else EXIT_NOT_MET


def _telling(ledger: Ledger) -> int:
    """The row in which both kinds were held the most evenly: there is most to see."""
    return int(np.minimum(ledger.spot.sum(1), ledger.on_demand.sum(1)).argmax())


def _forecast(arguments: argparse.Namespace) -> int:
    if arguments.horizon < 1:
        raise ValueError(f"--horizon must be at least 1 interval, got {arguments.horizon}")
    market, horizon = _market(arguments), arguments.horizon
    if len(market) <= horizon:
        raise ValueError(f"--horizon must be below the {len(market)} intervals of {market.name}, got {horizon}")
    shown = sorted({1, (horizon + 1) // 2, horizon})
    for what, values in (("spot instances", market.available.astype(float)), ("price", market.price)):
        if np.ptp(values) == 0:
            print(f"{what}: always {values[0]:g}")
            continue
        last, rows = errors(LastValue().table(values, horizon), values), []
        for name, made in FORECASTERS.items():
            if name == "perfect" or (name == "arima" and not arguments.arima):
                continue
            wrong = errors(made(market).table(values, horizon), values)
            rows.append([name, *(f"{wrong[at - 1]:.4g} ({wrong[at - 1] / last[at - 1]:.2f})" for at in shown)])
        ahead = [f"{at} interval{'s' * (at > 1)} ahead" for at in shown]
        print_table(["forecaster", *ahead], rows, f"{what}: mean error (and as a part of the last value's)")
    return EXIT_MET


def _part(wrong: float, last: float) -> str:
    return f"{wrong / last:.2f}" if last else "-"


# --------------------------------------------------------------------------------------------------- what is given


def _market(arguments: argparse.Namespace) -> Market:
    interval = parse_duration(arguments.interval) if arguments.interval else None
    if arguments.trace is None:
        market = shipped_trace(arguments.price, arguments.on_demand, interval)
    else:
        try:
            market = read_trace(arguments.trace, arguments.price, arguments.on_demand, interval, arguments.pool)
        except ValueError as error:
            option = " (--price)" if "say what" in str(error) else " (--pool)" if "pool must" in str(error) else ""
            raise ValueError(f"{error}{option}") from None
    each = f"{market.price.min():.3g} to {market.price.max():.3g}"
    rule = f"assumed: {arguments.price:g}" if arguments.price is not None else f"recorded: {each}"
    print(f"market {clean(market.name)}: {len(market)} intervals of {format_duration(market.seconds)}, "
          f"{market.available.min()} to {market.available.max()} spot instances; "
          f"price {rule}, on-demand {market.on_demand:g}")  # fmt: skip
    return market


def _job(arguments: argparse.Namespace, market: Market) -> SpotJob:
    throughput: Sequence[float] = ()
    work, min_nodes, max_nodes = arguments.work, arguments.min_nodes or 1, arguments.max_nodes
    if arguments.run_dir is not None:
        work, min_nodes, throughput = _measured(arguments, market)
        max_nodes = len(throughput) - 1
    elif arguments.throughput:
        try:
            throughput = (0.0, *map(float, arguments.throughput.split(",")))
        except ValueError:
            raise ValueError(
                f"--throughput must be numbers with commas between, got {arguments.throughput!r}"
            ) from None
        max_nodes = max_nodes or len(throughput) - 1
    if work is None:
        raise ValueError("a job needs --work, or the --run-dir and the --job of a run")
    max_nodes = max_nodes or 12
    made = SpotJob(work, arguments.deadline, min_nodes, max_nodes, tuple(throughput), arguments.kept_fraction, arguments.kept_fraction, 0.0,
                   arguments.grace)  # fmt: skip
    value = arguments.value
    if value is None:
        value = 1.5 * on_demand_cost(made, market.on_demand)
    return replace(made, value=value)


def _measured(arguments: argparse.Namespace, market: Market) -> tuple[float, int, tuple[float, ...]]:
    """Of a job of a run: batches to do, the fewest instances, batches in an interval by instances."""
    from lightning_core.storage.journal import Journal, replay

    path = arguments.run_dir / "journal.db" if arguments.run_dir.is_dir() else arguments.run_dir
    with Journal.open(path, read_only=True) as journal:
        scheduler = replay(journal).scheduler
    if arguments.job not in scheduler.names():
        raise ValueError(
            f"--job: {path.parent} has no job {arguments.job!r}{did_you_mean(arguments.job or '', scheduler.names())}"
        )
    min_nodes, throughput = throughput_table(scheduler.speedup(arguments.job), market.seconds, arguments.max_nodes)
    work = arguments.work if arguments.work is not None else batches_left(scheduler, arguments.job)
    told = ", ".join(f"{n}: {rate:.4g}" for n, rate in enumerate(throughput) if n >= min_nodes)
    print(f"job {clean(arguments.job)}: {work:.6g} batches to do; batches in an interval by instances: {told}")
    return work, min_nodes, throughput


def _policies(texts: Sequence[str]) -> dict[str, SpotPolicy]:
    found: dict[str, SpotPolicy] = {}
    for text in texts:
        wanted = parse_policy(text)
        name = wanted.pop("name")
        if name not in SPOT_POLICIES:
            raise ValueError(f"--policy must be one of {', '.join(SPOT_POLICIES)}, got {name!r}"
                             f"{did_you_mean(name, list(SPOT_POLICIES))}")  # fmt: skip
        try:
            found[text] = SPOT_POLICIES[name](**wanted)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"--policy {name}: {error}") from None
    return found


def _tell(job: SpotJob, market: Market) -> bool:
    """Says what the job is, and whether it can be ended in time at all."""
    length = format_duration(job.deadline * market.seconds)
    print(f"job: {job.work:g} of work in {job.deadline} intervals ({length}) on {job.min_nodes} to {job.max_nodes} instances; "
          f"worth {job.value:.4g}, nothing after {job.grace:g} times its deadline")  # fmt: skip
    if not job.feasible:
        can = (job.growth_fraction + job.deadline - 1) * job.throughput[-1]
        print(f"warning: it cannot end in time: {job.max_nodes} on-demand instances do {can:.4g} by then, {job.work:g} is "
              "to be done")  # fmt: skip
    return job.feasible
