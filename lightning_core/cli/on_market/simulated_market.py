"""The market of ``lightning-core simulate``: the jobs of a bundle on nodes in virtual time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_core.cli.arguments import parse_times
from lightning_core.cli.on_market.flags import add_terms
from lightning_core.cloud.provisioner import LEAVE_SECONDS
from lightning_core.core.limits import check_seconds
from lightning_core.history.market_ledger import MarketLedger
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.bundle_curves import PlayedBundle
from lightning_core.simulation.scenario import Outcome
from lightning_core.simulation.virtual_cloud import VirtualCloud

if TYPE_CHECKING:  # they need extras that a simulation does without
    from lightning_core.cli.on_market.market_options import MarketOptions

# Seconds that a node takes to come, to go after a notice, and to be left, unless they are given.
NODES = {"start_up": 60.0, "notice": 0.0, "leave": LEAVE_SECONDS}


def add_market_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a simulation on a market."""
    add_terms(parser, "recording of spot prices: play the jobs on nodes that come and go")
    told = ",".join(f"{name}={seconds:g}s" for name, seconds in NODES.items())
    parser.add_argument("--nodes", default="", metavar="NAME=SECONDS,...", help="with --market: seconds until a node "
                        "is there, from a preemption notice to its end, and to leave one that is given back (default "
                        f"{told})")  # fmt: skip


def market_of(arguments: argparse.Namespace) -> MarketOptions | None:
    """Return the options of the market; None without one.

    Raises:
        ValueError: If an option goes with a market only, or with none.
    """
    if arguments.market is None:
        for flag in (
            "interval",
            "price",
            "spot_policy",
            "forecaster",
            "minimum_charge",
            "market_start",
            "market_history",
            "feedback",
            "nodes",
        ):
            if getattr(arguments, flag):
                raise ValueError(f"--{flag.replace('_', '-')} needs a market: --market TRACE")
        return None
    for flag in ("devices", "seeds"):
        if getattr(arguments, flag) is not None:
            raise ValueError(f"--{flag} does not go with --market, whose recording says how many nodes there are")
    from lightning_core.cli.on_market.market_options import MarketOptions

    return MarketOptions(
        arguments.market, None, arguments.interval, arguments.price, arguments.spot_policy,
        forecaster=arguments.forecaster, start=arguments.market_start, history=arguments.market_history,
        feedback=arguments.feedback, minimum_charge=arguments.minimum_charge,
    )  # fmt: skip


def place(options: MarketOptions, bundle: PlayedBundle) -> PlayedBundle:
    """Return the same jobs on a market, as ``run --market`` would place them.

    Raises:
        BundleError: If a job cannot be there, or the market cannot be read.
    """
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.bundle.job_spec import JobSpec

    specs = tuple(JobSpec(played.given.job, {}) for played in bundle.jobs)
    placed = options.apply(BundleSpec(specs, bundle.settings))
    jobs = []
    for played, spec in zip(bundle.jobs, placed.jobs, strict=True):
        job = replace(played.given.job, save_every=spec.save_interval)
        jobs.append(replace(played, given=replace(played.given, job=job)))
    return PlayedBundle(tuple(jobs), options.rented(placed.settings))


def read_nodes(text: str) -> dict[str, float]:
    """Return the seconds that nodes take, of the option ``--nodes``.

    Raises:
        ValueError: If it cannot be read.
    """
    seconds = NODES | parse_times("--nodes", text, tuple(NODES))
    for name, value in seconds.items():
        check_seconds(f"--nodes: {name}", value)
    return seconds


def make_cloud(settings: Settings, nodes: Mapping[str, float]) -> VirtualCloud:
    """Return the nodes of a simulation on a market.

    Args:
        settings: Settings of the scheduler.
        nodes: Seconds that nodes take (:func:`read_nodes`).
    """
    terms = settings.market_terms()
    assert terms is not None  # a market that is recorded has terms
    return VirtualCloud(terms.market(), **nodes)


def ledger_of(outcome: Outcome) -> MarketLedger:
    """Return the ledger of a simulation on a market."""
    return MarketLedger(list(outcome.rows), outcome.references)
