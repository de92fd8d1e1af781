"""Arguments of commands that put jobs on a spot market: ``run`` and ``simulate``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.cli.arguments import new_file

if TYPE_CHECKING:
    from lightning_core.cli.on_market.market_options import MarketOptions

NAMES = (
    "interval",
    "price",
    "spot_policy",
    "forecaster",
    "minimum_charge",
    "market_start",
    "market_history",
    "feedback",
    "provision",
    "picture",
)


def add_terms(parser: argparse.ArgumentParser, market: str) -> None:
    """Add the arguments of a recorded market.

    Args:
        parser: Parser of the command.
        market: Help for ``--market``.
    """
    parser.add_argument("--market", type=Path, metavar="TRACE", help=market)
    interval = "on a market: length of an interval, such as 30m (default: as recorded, or 30m)"
    parser.add_argument("--interval", metavar="TIME", help=interval)
    price = "with --market: price of a spot node, if none is recorded"
    parser.add_argument("--price", type=float, metavar="P", help=price)
    policy = "on a market: spot policy for all jobs, such as ahap:omega=5 (default: one is chosen for each job)"
    parser.add_argument("--spot-policy", metavar="NAME", help=policy)
    forecaster = "on a market: forecaster of policies with a window, such as seasonal (default: last)"
    parser.add_argument("--forecaster", metavar="NAME", help=forecaster)
    start = "with --market: time of the recording that is past when the pool begins, such as 7d; plans begin with it"
    parser.add_argument("--market-start", metavar="TIME", help=start)
    history = "on a market: recording of its past, with which plans begin"
    parser.add_argument("--market-history", type=Path, metavar="TRACE", help=history)
    feedback = "on a market: feedback.json of an earlier run, or its folder: policies are chosen by its jobs as well"
    parser.add_argument("--feedback", type=Path, metavar="FILE", help=feedback)
    charge = "on a market: time for which a node is billed at least, such as 60s (default: none)"
    parser.add_argument("--minimum-charge", metavar="TIME", help=charge)


def add_market(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a run whose nodes are rented."""
    add_terms(parser, "recording of spot prices: a run on nodes that come and go, simulated here or real with --ray")
    quotes = (
        'command that prints the current price and availability as JSON, {"price": 0.4, "available": 3}, or a list '
        "of offers of several zones"
    )
    parser.add_argument("--quotes", metavar="COMMAND", help=quotes)
    provision = (
        "on a market, with --ray: a provisioner with its options, or a command that is given the wanted number of "
        "nodes (default: autoscaler, Ray's)"
    )
    parser.add_argument("--provision", metavar="COMMAND", help=provision)
    picture = "on a market: draw the intervals: PNG, SVG or PDF"
    parser.add_argument("--picture", type=new_file, metavar="FILE", help=picture)


def market_of(arguments: argparse.Namespace) -> MarketOptions | None:
    """Return the options of the market; None without one.

    Raises:
        ValueError: If they do not go together, or there is no market.
    """
    if arguments.market is None and arguments.quotes is None:
        for name in NAMES:
            if getattr(arguments, name, None) is None:
                continue
            if getattr(arguments, "resume", None) is not None:
                problem = "cannot be changed: --resume continues with the terms in the run's market.json"
            else:
                problem = "needs a run on a market: --market TRACE or --quotes COMMAND"
            raise ValueError(f"--{name.replace('_', '-')} {problem}")
        return None
    from lightning_core.cli.on_market.market_options import MarketOptions

    return MarketOptions(
        arguments.market, arguments.quotes, arguments.interval, arguments.price, arguments.spot_policy,
        getattr(arguments, "ray", None), arguments.provision, getattr(arguments, "picture", None),
        arguments.forecaster, arguments.market_start, arguments.market_history, arguments.feedback,
        arguments.minimum_charge,
    )  # fmt: skip
