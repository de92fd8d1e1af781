"""The ledger of a run on a spot market: what each interval held, cost and trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class IntervalRecord(NamedTuple):
    """One interval that has ended.

    Attributes:
        number: Number of the interval, from 0.
        price: Price of a spot node.
        available: Spot nodes on offer.
        spot: Spot nodes held and paid for: the largest number of requested ones present at once.
        on_demand: On-demand nodes held and paid for.
        surplus: Mean number of nodes present beyond those, draining while their replacements start.
        used: Mean number of devices that trained.
        cost: Cost of the interval.
        batches: Batches trained in it.
        incarnations: Incarnations of jobs that began, on another node or another number of devices.
        failures: Incarnations that began because a worker was lost or failed.
        lost: Batches that have to be trained again.
    """

    number: int
    price: float
    available: int
    spot: int
    on_demand: int
    surplus: float
    used: float
    cost: float
    batches: int
    incarnations: int
    failures: int
    lost: int


class JobSpan(NamedTuple):
    """The intervals in which a job lives."""

    start: int
    """Interval in which it began."""
    deadline: int
    """Intervals from there to its deadline."""
    batches: int = 0
    """Batches that the ledger has counted."""


@dataclass(frozen=True, slots=True)
class SpotRunState:
    """State from which a run on a market is resumed.

    Attributes:
        rows: Records of the intervals that have ended.
        spans: Spans of the jobs that have begun, by name.
    """

    rows: tuple[IntervalRecord, ...] = ()
    spans: Mapping[str, JobSpan] = field(default_factory=dict)
