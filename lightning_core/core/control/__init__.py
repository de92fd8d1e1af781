"""Requests of controllers for jobs, the rights to make them, and events for controllers."""

from __future__ import annotations

from lightning_core.core.control.asks import (
    NOTHING,
    RIGHTS,
    Ask,
    Asked,
    Asker,
    Rights,
    check_known,
    declare_rights,
    rights_of,
)
from lightning_core.core.control.cloud import (
    Allowance,
    CloudPart,
    CloudTrouble,
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    PoolAnswer,
    Quoted,
    QuotedBefore,
)
from lightning_core.core.control.wall_clock import WallClock

__all__ = [
    "NOTHING",
    "RIGHTS",
    "Allowance",
    "Ask",
    "Asked",
    "Asker",
    "CloudPart",
    "CloudTrouble",
    "IntervalEnded",
    "NodesSeen",
    "NodesWanted",
    "PoolAnswer",
    "Quoted",
    "QuotedBefore",
    "Rights",
    "WallClock",
    "check_known",
    "declare_rights",
    "rights_of",
]
