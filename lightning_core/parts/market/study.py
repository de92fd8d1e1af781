"""The file of ``lightning-core market``: a market as in a bundle, a job, and what moves between zones cost.

::

    market: {trace: a100.csv, interval: 30m, minimum_charge: 60s, policies: [semi-markov, "ahap:omega=3"]}
    job: {work: 80, deadline: 10, max_nodes: 12, launch_time: 0.1}
    starts: 40
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from lightning_core.bundle.problems import BundleError, Position, Problems, require
from lightning_core.bundle.values import non_negative_int
from lightning_core.cli.arguments import new_file, whole_number
from lightning_core.core.durations import format_duration
from lightning_core.core.names import did_you_mean
from lightning_core.core.validation import positive_int, read_number
from lightning_core.parts.market.counterfactual import batches_left
from lightning_core.parts.market.forecasters import FORECASTERS
from lightning_core.parts.market.market_section import read_market
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.online.throughput_table import throughput_table
from lightning_core.parts.market.spot_job import Overhead, SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost
from lightning_core.view.text import clean

MAX_INTERVALS, MAX_NODES = 100_000, 10_000


def _throughput(value: Any) -> list[float]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of the work in an interval on 1, 2, .. nodes, got {value!r}")
    return [read_number(one) for one in value]


def _overhead(value: Any) -> Any:
    if value not in get_args(Overhead):
        raise ValueError(f"must be one of {', '.join(get_args(Overhead))}, got {value!r}")
    return value


def _at_least_0(value: Any) -> float:
    if not 0 <= (number := read_number(value)) < math.inf:
        raise ValueError(f"must be at least 0 and finite, got {value!r}")
    return number


KEYS = ("market", "job", "moves", "starts", "seed")
# Keys of a job, each with its reader: those of SpotJob, or a job of a run, by its folder and its name.
JOB: Mapping[str, Callable[[Any], Any]] = {
    "work": read_number, "deadline": partial(positive_int, maximum=MAX_INTERVALS),
    "min_nodes": partial(positive_int, maximum=MAX_NODES), "max_nodes": partial(positive_int, maximum=MAX_NODES),
    "throughput": _throughput, "launch_time": read_number, "hand_over_time": read_number,
    "preemption_cost": read_number, "overhead": _overhead, "run": str, "name": str,
}  # fmt: skip
MOVES = dict.fromkeys(("checkpoint", "egress", "transfer"), _at_least_0)
# Fraction of a launch that a hand-over takes unless it is said: simulated nodes take 2 s of 10 to 15.
HAND_OVER = 0.2


@dataclass(frozen=True, slots=True)
class Study:
    """What a file and the options describe.

    Args:
        terms: Terms of the market.
        traces: Recordings of its zones; none for the one that is shipped.
        policies: Specs of the spot policies that are named; empty if none is.
        forecaster: Spec of the forecaster.
        job: Keys of the job.
        moves: By name, the size of a checkpoint in GB, the price of a GB that leaves a region, and the intervals that a
            launch takes longer where the checkpoint comes from another region.
        starts: Number of starts of a backtest.
        seed: Seed of the starts.
    """

    terms: MarketTerms
    traces: tuple[Path, ...]
    policies: tuple[str, ...]
    forecaster: str
    job: Mapping[str, Any]
    moves: Mapping[str, float]
    starts: int
    seed: int

    @property
    def has_zones(self) -> bool:
        """Whether there are recordings of several zones."""
        return len(self.traces) > 1

    def markets(self) -> list[Market]:
        """Return the recordings."""
        return [replace(self.terms, trace=str(path)).market() for path in self.traces] or [self.terms.market()]

    def market(self) -> Market:
        """Return the only recording, and print its summary.

        Raises:
            ValueError: If there are several.
        """
        if self.has_zones:
            raise ValueError(f"trace must be a single recording, got {len(self.traces)}")
        [market] = self.markets()
        each = f"recorded: {market.price.min():.3g} to {market.price.max():.3g}"
        price = each if self.terms.price is None else f"assumed: {self.terms.price:g}"
        print(f"market {clean(market.name)}: {len(market)} intervals of {format_duration(market.seconds)}, "
              f"{market.available.min()} to {market.available.max()} spot nodes; price {price}, on-demand "
              f"{market.on_demand:g}")  # fmt: skip
        return market

    def job_on(self, market: Market) -> SpotJob:
        """Return the job, with the value that it has on a market.

        Raises:
            ValueError: If a key is missing or out of its range, or keys do not go together.
        """
        given = dict(self.job)
        run, name = given.pop("run", None), given.pop("name", None)
        if run is not None:
            given |= _measured(Path(run), str(name), given, market)
        elif "throughput" in given:
            given.setdefault("max_nodes", len(given["throughput"]))
            given["throughput"] = (0.0, *given["throughput"])
        if not {"work", "deadline"} <= given.keys():
            raise ValueError("a job needs its deadline, and its work or the run that has it")
        overhead, kept = given.pop("overhead", None), self.terms.kept_fraction
        job = SpotJob(**given, growth_fraction=kept, shrink_fraction=kept, grace=self.terms.grace)
        if overhead is not None:
            if "hand_over_time" in given or self.terms.minimum_charge:
                raise ValueError(f"hand_over_time and minimum_charge need no overhead, got overhead: {overhead}")
            job = replace(job, overhead=overhead)
        else:
            hand_over = given.get("hand_over_time", HAND_OVER * min(job.launch, 1.0))
            charge = min(self.terms.minimum_charge / market.seconds, 1.0)
            job = replace(job, hand_over_time=hand_over, minimum_charge=charge)
        job = replace(job, value=self.terms.value * on_demand_cost(job, market.on_demand))
        return job.softened() if self.terms.soft_deadlines else job


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which market is looked at."""
    words = "file with the sections market, as in a bundle, job and moves, and starts and seed of a backtest"
    parser.add_argument("--config", type=Path, metavar="FILE", help=words)
    trace = "recording, instead of the file's; repeat it for several zones (default: 28 days of A100 cards, shipped)"
    parser.add_argument("--trace", type=Path, action="append", metavar="FILE", help=trace)


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is planned."""
    work = "work left, instead of the file's; 1 is what one node does in an interval"
    parser.add_argument("--work", type=float, metavar="W", help=work)
    deadline = "intervals from now, or from each start, instead of the file's"
    parser.add_argument("--deadline", type=whole_number(1, MAX_INTERVALS), metavar="INTERVALS", help=deadline)
    policy = (
        "spot policy, such as ahap:omega=3, instead of the file's; several for a backtest, or paper or repaired for 112"
    )
    parser.add_argument("--policy", action="append", metavar="NAME", help=policy)
    parser.add_argument("--picture", type=new_file, metavar="FILE", help="draw a picture: PNG, SVG or PDF")


def read_study(arguments: argparse.Namespace) -> Study:
    """Return what the file and the options describe.

    Raises:
        BundleError: With every problem of the file.
        ValueError: If the options do not go together.
    """
    require("yaml")
    from lightning_core.bundle.yaml_loader import load_yaml

    path = arguments.config
    content, found = ({}, Problems(Position("market"))) if path is None else load_yaml(path, "file is empty")
    if not isinstance(content, Mapping):
        found.add(f"expected a mapping of {', '.join(KEYS)}, got {type(content).__name__}")
        raise BundleError(found.messages)
    found.check_keys(content, KEYS)
    folder = Path() if path is None else path.parent
    section = content.get("market") or {}
    section = dict(section) if isinstance(section, Mapping) else {"trace": section}
    traces = section.pop("trace", None) or []
    traces = [folder / str(trace) for trace in (traces if isinstance(traces, list) else [traces])]
    forecaster = found.at("market", "forecaster").read(_forecaster, section.pop("forecaster", "last"))
    terms = found.at("market").read(lambda value: _terms(value, folder), section)
    job = _mapping(content.get("job"), JOB, found.at("job"))
    if ("run" in job) != ("name" in job):
        found.at("job").add("run and name go together: the folder of a run, and the name of its job")
    moves = dict.fromkeys(MOVES, 0.0) | _mapping(content.get("moves"), MOVES, found.at("moves"))
    starts = found.at("starts").read(partial(positive_int, maximum=MAX_INTERVALS), content.get("starts", 40))
    seed = found.at("seed").read(non_negative_int, content.get("seed", 0))
    if found.messages or terms is None or forecaster is None or starts is None or seed is None:
        raise BundleError(found.messages)
    if "run" in job:
        job["run"] = folder / job["run"]
    typed = vars(arguments)
    job |= {key: typed[key] for key in ("work", "deadline") if typed.get(key) is not None}
    if typed.get("job") is not None:
        job |= dict(zip(("run", "name"), typed["job"], strict=True))
    policies = typed.get("policy") or (terms.policies if "policies" in section else ())
    return Study(terms, tuple(arguments.trace or traces), tuple(policies), forecaster, job, moves, starts, seed)


def _terms(section: Mapping[str, Any], folder: Path) -> MarketTerms:
    found = read_market(section, folder)
    if found.commands:
        raise ValueError(f"{min(found.commands)} is of a market that goes on, and this one is recorded")
    return MarketTerms(**found.terms)


def _forecaster(value: Any) -> str:
    FORECASTERS.make(str(value))
    return str(value)


def _mapping(section: Any, readers: Mapping[str, Callable[[Any], Any]], found: Problems) -> dict[str, Any]:
    """Return the values of a section, each read by the reader of its key; problems are added to those found."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        found.add(f"expected a mapping of {', '.join(readers)}, got {section!r}")
        return {}
    found.check_keys(section, tuple(readers))
    return {key: found.at(key).read(readers[key], value) for key, value in section.items() if key in readers}


def _measured(run: Path, name: str, given: Mapping[str, Any], market: Market) -> dict[str, Any]:
    """Return batches left, fewest and most nodes, and batches in an interval by number of nodes, of a run's job."""
    from lightning_core.storage.journals.journal import Journal
    from lightning_core.storage.journals.replay import replay

    path = run / "journal.db" if run.is_dir() else run
    with Journal.open(path, read_only=True) as journal:
        scheduler = replay(journal).scheduler
    if name not in scheduler.names():
        raise ValueError(f"{path.parent} has no job {name!r}{did_you_mean(name, scheduler.names())}")
    min_nodes, throughput = throughput_table(scheduler.speedup(name), market.seconds, given.get("max_nodes"))
    work = given["work"] if "work" in given else batches_left(scheduler, name)
    told = ", ".join(f"{n}: {rate:.4g}" for n, rate in enumerate(throughput) if n >= min_nodes)
    print(f"job {clean(name)}: {work:.6g} batches left; batches in an interval by number of nodes: {told}")
    return {"work": work, "min_nodes": min_nodes, "max_nodes": len(throughput) - 1, "throughput": throughput}
