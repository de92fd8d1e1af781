"""Arguments of ``lightning-core market`` that describe the market, the job and the policies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from lightning_core.cli.arguments import whole_number
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.core.names import did_you_mean
from lightning_core.market import Market, SpotJob
from lightning_core.market.online.throughput_table import throughput_table
from lightning_core.market.spot_job import EXACT, Overhead
from lightning_core.market.spot_policies.on_demand import on_demand_cost
from lightning_core.market.traces import read_trace, shipped_trace
from lightning_core.scheduler.selecting.market_jobs import batches_left
from lightning_core.view.text import clean

READINGS = ("hand-over", *get_args(Overhead))
# Part of a launch that a hand-over takes unless it is said: simulated nodes take 2 s of 10 to 15.
HAND_OVER = 0.2


def add_market(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the market."""
    group = parser.add_argument_group("the market")
    group.add_argument("--trace", type=Path, action="append", metavar="FILE", help="recording: a CSV of intervals, of "
                       "events or of SpotLake, or a JSON spot trace; repeat it for several zones (default: the "
                       "shipped one, 28 days of A100 cards)")  # fmt: skip
    group.add_argument(
        "--price",
        type=float,
        metavar="P",
        help="price of a spot node for an interval, if none is recorded or instead",
    )
    group.add_argument(
        "--on-demand", type=float, default=1.0, metavar="P", help="price of an on-demand node (default 1)"
    )
    group.add_argument("--interval", metavar="TIME", help="length of an interval, such as 30m (default: as recorded)")
    group.add_argument("--pool", default="", metavar="INSTANCE@ZONE", help="pool of a SpotLake recording")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the job."""
    group = parser.add_argument_group("the job")
    group.add_argument("--work", type=float, metavar="W", help="work left; 1 is what one node does in an interval")
    group.add_argument(
        "--deadline",
        type=whole_number(1, 100_000),
        required=True,
        metavar="INTERVALS",
        help="intervals from now, or from each start",
    )
    group.add_argument(
        "--min-nodes", type=whole_number(1, 10_000), metavar="N", help="fewest nodes that it needs (default 1)"
    )
    group.add_argument(
        "--max-nodes", type=whole_number(1, 10_000), metavar="N", help="most nodes that it can use (default 12)"
    )
    group.add_argument(
        "--throughput", metavar="H1,H2,...", help="work in an interval on 1, 2, .. nodes (default 1,2,..)"
    )
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="run whose job to plan for, at its measured "
                       "throughput and with its batches left")  # fmt: skip
    group.add_argument("--job", metavar="NAME", help="name of that job")
    group.add_argument("--kept-fraction", type=float, default=0.9, metavar="FRACTION", help="fraction of an "
                       "interval left for training when the number of nodes changes (default 0.9)")  # fmt: skip
    group.add_argument("--launch", type=float, metavar="INTERVALS", help="intervals without training from each "
                       "launch of a node on; may be above 1 (default: what --kept-fraction leaves)")  # fmt: skip
    group.add_argument("--loss", type=float, default=0.0, metavar="INTERVALS", help="intervals at full throughput "
                       "that a preemption without notice costs, the next launch included (default 0)")  # fmt: skip
    group.add_argument("--hand-over", type=float, metavar="INTERVALS", help="intervals for saving, moving and "
                       "restoring a job when nodes change (default: a fifth of a launch)")  # fmt: skip
    group.add_argument("--minimum-charge", metavar="TIME", help="time for which a node is billed at least, such as "
                       "60s; at most an interval (default: none)")  # fmt: skip
    group.add_argument("--overhead", choices=READINGS, help="hand-over: a job trains on while nodes are launched, and "
                       "both are billed, by the second; launches: it stands still for each launch; total: only for a "
                       "larger total, as in the paper; these two bill whole intervals (default: "
                       "hand-over)")  # fmt: skip
    group.add_argument("--value", type=float, metavar="V", help="value of completion in time (default: 1.5 times "
                       "the cost on on-demand nodes)")  # fmt: skip
    group.add_argument("--grace", type=float, default=1.5, metavar="TIMES", help="multiple of the deadline "
                       "after which completion is worth nothing (default 1.5)")  # fmt: skip


def read_market_of(arguments: argparse.Namespace) -> Market:
    """Return the market that the arguments describe, and print its summary."""
    if len(arguments.trace or ()) > 1:
        raise ValueError(f"--trace must be one recording here, got {len(arguments.trace)}")
    market = read_recording(arguments.trace[0] if arguments.trace else None, arguments)
    each = f"{market.price.min():.3g} to {market.price.max():.3g}"
    rule = f"assumed: {arguments.price:g}" if arguments.price is not None else f"recorded: {each}"
    print(f"market {clean(market.name)}: {len(market)} intervals of {format_duration(market.seconds)}, "
          f"{market.available.min()} to {market.available.max()} spot nodes; "
          f"price {rule}, on-demand {market.on_demand:g}")  # fmt: skip
    return market


def read_recording(path: Path | None, arguments: argparse.Namespace) -> Market:
    """Return the market of a recording, read as the arguments say; without one that which is shipped."""
    interval = parse_duration(arguments.interval) if arguments.interval else None
    if path is None:
        return shipped_trace(arguments.price, arguments.on_demand, interval)
    try:
        return read_trace(path, arguments.price, arguments.on_demand, interval, arguments.pool)
    except ValueError as error:
        option = " (--price)" if "give the price" in str(error) else " (--pool)" if "pool must" in str(error) else ""
        raise ValueError(f"{error}{option}") from None


def read_job_of(arguments: argparse.Namespace, market: Market) -> SpotJob:
    """Return the job that the arguments describe."""
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
                f"--throughput must be numbers separated by commas, got {arguments.throughput!r}"
            ) from None
        max_nodes = max_nodes or len(throughput) - 1
    if work is None:
        raise ValueError("a job needs --work W, or --run-dir DIR with --job NAME")
    max_nodes = max_nodes or 12
    made = SpotJob(
        work, arguments.deadline, min_nodes, max_nodes, tuple(throughput), arguments.kept_fraction,
        arguments.kept_fraction, 0.0, arguments.grace, arguments.loss, arguments.launch,
    )  # fmt: skip
    made = _billed(made, arguments, market)
    value = arguments.value
    if value is None:
        value = 1.5 * on_demand_cost(made, market.on_demand)
    return replace(made, value=value)


def _billed(job: SpotJob, arguments: argparse.Namespace, market: Market) -> SpotJob:
    """Return a job with what changes of nodes cost it, and how they are billed."""
    if arguments.overhead in get_args(Overhead):
        overhead: Overhead = arguments.overhead
        for option in ("hand_over", "minimum_charge"):
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                raise ValueError(f"--{name} needs --overhead hand-over, got --overhead {overhead}")
        return replace(job, overhead=overhead)
    least = parse_duration(arguments.minimum_charge) if arguments.minimum_charge else 0.0
    if least > market.seconds:
        raise ValueError(f"--minimum-charge must be at most an interval, {format_duration(market.seconds)}, got "
                         f"{arguments.minimum_charge}")  # fmt: skip
    hand_over, longest = arguments.hand_over, min(job.launch, 1.0)
    if hand_over is not None and not 0 <= hand_over <= longest + EXACT:
        raise ValueError(f"--hand-over must be 0 to a launch and to 1, here {longest:g}, got {hand_over:g}")
    hand_over = HAND_OVER * longest if hand_over is None else hand_over
    return replace(job, hand_over_time=hand_over, minimum_charge=least / market.seconds)


def _measured(arguments: argparse.Namespace, market: Market) -> tuple[float, int, tuple[float, ...]]:
    """Return a job's batches left, its fewest nodes, and its batches in an interval by number of nodes, from a run."""
    from lightning_core.storage.journals.journal import Journal
    from lightning_core.storage.journals.replay import replay

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
    print(f"job {clean(arguments.job)}: {work:.6g} batches left; batches in an interval by number of nodes: {told}")
    return work, min_nodes, throughput
