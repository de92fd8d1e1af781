"""The market: spot and on-demand nodes under a deadline, at the least cost.

In this folder stand the model (market, jobs, backtest, ledger, forecasters, selector) with ``spot_policies/``,
``programs/``, ``online/`` and ``zones/``; the controller ``market`` with the plans of the jobs on it; the section
``market`` of a bundle; in ``cloud/`` who brings the nodes; the command ``market``; and what reports show of it. Source:
the paper on spot markets (``docs/parts/spot.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_core.core.parts import Html, LivePage, Part, later
from lightning_core.parts.market.cloud_events import (
    CloudTrouble,
    EarlierFeedback,
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    Quoted,
    QuotedAhead,
    QuotedBefore,
    SelectorFeedback,
)

_HERE = "lightning_core.parts.market"


def _history(settings: Any) -> Any:
    if "market" not in settings.controllers:
        return None
    from lightning_core.parts.market.market_history import MarketHistory

    return MarketHistory.of(settings)


def _money(history: Any) -> str:
    if "market" not in history.parts:
        return ""
    from lightning_core.parts.market.market_tables import money_by_job

    return Html(money_by_job(history))


def _offers(history: Any) -> str:
    if "market" not in history.parts:
        return ""
    from lightning_core.parts.market.market_tables import offers

    return Html(offers(history, history.last))


def _rents(about: Mapping[str, Any]) -> bool:
    """Return whether the description of a pool says that it rents nodes on a market."""
    return "market" in about["settings"]["controllers"]


part = Part(
    controllers={"market": later(f"{_HERE}.market_controller", "MarketController")},
    events={
        "nodes_seen": NodesSeen,
        "quoted": Quoted,
        "quoted_before": QuotedBefore,
        "quoted_ahead": QuotedAhead,
        "trouble": CloudTrouble,
        "selector_feedback": SelectorFeedback,
        "earlier_feedback": EarlierFeedback,
    },
    answers={"nodes_wanted": NodesWanted, "interval_ended": IntervalEnded},
    supplies={"market": later(f"{_HERE}.supply", "MarketSupply")},
    tasks={"market": later(f"{_HERE}.feedback_task", "FeedbackTask")},
    histories={"market": _history},
    lines={"market": later(f"{_HERE}.cloud_line", "cloud_line")},
    figures={"market": later(f"{_HERE}.cloud_line", "figures")},
    panels={"Money by job": _money, "On offer at the end": _offers},
    reasons={
        "spot_policy": "{text}, with {0:.0%} of the weight after feedback from {1:# job}",
        "spot_policy_known": "{text}, with {0:.0%} of the weight after feedback from {1:# job} and {2:# earlier one}",
        "nodes_held": "{0:.0f} spot and {1:.0f} on-demand nodes are held for it",
        "nodes_held_by_forecast": "{0:.0f} spot and {1:.0f} on-demand nodes are held for it, for {2:fb} more batches, "
        "which are {3:.0%} likely to be enough",
        "nodes_held_in_doubt": "{0:.0f} spot and {1:.0f} on-demand nodes are held for it: by its forecast too little "
        "time is left to be {2:.0%} sure",
        "no_nodes": "no job needs a node",
        "nodes_planned": "the plans of {0:# job}, for {1:.4g} an interval",
        "nodes_replanned": "the plans of {0:# job} within the interval, for {1:.4g} an interval",
        "nodes_kept": "the plans of {0:# job}; nodes stay until their replacements are ready",
        "nodes_elsewhere": "spot nodes preempted; requesting them in another zone",
        "nodes_replaced": "nodes lost; a job cannot wait for the next interval",
        "nodes_for_new": "a job cannot wait for the next interval",
        "pool_closes": "the pool is shutting down",
        "money_ends": "stopping: the remaining {0:.4g} covers draining the nodes",
        "no_money": "its nodes would cost more than the remaining {0:.4g}",
    },
    commands=later(f"{_HERE}.market_commands", "add_commands"),
    pages={"Market": LivePage(later(f"{_HERE}.market_page", "draw"), _rents)},
)
"""What ``lightning_core`` registers as the part ``market``."""
