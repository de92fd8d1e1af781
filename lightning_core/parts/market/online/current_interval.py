"""The interval in progress: the nodes requested and present in it, and the hand-over from old nodes to new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.saved_state import decode, encode
from lightning_core.parts.market.cloud_events import IntervalEnded
from lightning_core.parts.market.node_counts import NodeCounts

# Fraction of an interval for which surplus nodes may stay while their replacements start; then they are requested.
HANDOVER_FRACTION = 0.5


class Rest(NamedTuple):
    """The rest of an interval."""

    number: int
    elapsed: float
    """Fraction of it that is over, 0 to 1."""
    present: NodeCounts
    preempted: bool
    """Whether requested nodes have been lost."""


class Toll(NamedTuple):
    """Cost of a job's faults so far."""

    incarnation: int
    restarts: int
    lost_batches: int

    @classmethod
    def of(cls, status: JobStatus) -> Toll:
        """Return that of a status."""
        return cls(status.incarnation, status.restarts, status.lost_batches)

    def since(self, before: Toll) -> Toll:
        """Return the cost since another toll; another job of the same name counts from 0."""
        return Toll(*(max(now - then, 0) for now, then in zip(self, before, strict=True)))


@dataclass
class CurrentInterval:
    """The nodes of an interval, second by second.

    Surplus nodes are returned only once their replacements are warm; until then they train.

    Attributes:
        number: Number of the interval.
        began: Scheduler time at which it was first seen.
        price: Price of a spot node.
        available: Spot nodes on offer.
        on_demand: Price of an on-demand node.
        planned: Nodes that the plans of all jobs hold together.
        present: Nodes present when last seen.
        tolls: Cost of each job's faults at its beginning, by name.
        requested: Nodes to be held: the planned ones, and those that stay because a replacement is missing.
        held: The largest number of requested nodes present at once.
        hands_over: Whether surplus nodes stay until their replacements are warm.
        decided: Scheduler time at which the nodes were planned.
        seen: Scheduler time at which it was last seen.
        device_seconds: Seconds in which a device trained, summed over devices.
        batches: Batches trained in it that are counted already: those of jobs that are over.
        surplus_seconds: Seconds for which nodes beyond those held were billed, summed over nodes.
    """

    number: int
    began: float
    price: float
    available: int
    on_demand: float
    planned: NodeCounts
    present: NodeCounts
    tolls: dict[str, Toll]
    requested: NodeCounts = field(init=False)
    held: NodeCounts = field(init=False)
    hands_over: bool = False
    decided: float = field(init=False)
    seen: float = field(init=False)
    device_seconds: float = 0.0
    surplus_seconds: float = 0.0
    batches: int = 0

    def __post_init__(self) -> None:
        self.requested, self.seen, self.decided = self.planned, self.began, self.began
        self.held = self.planned.minimum(self.present)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {one.name: encode(getattr(self, one.name)) for one in fields(self)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> CurrentInterval:
        """Return the interval whose state was saved."""
        body = {name: decode(value) for name, value in state.items()}
        body |= {name: NodeCounts(*body[name]) for name in ("planned", "present", "requested", "held")}
        body["tolls"] = {name: Toll(*toll) for name, toll in body["tolls"].items()}
        later = {one.name: body.pop(one.name) for one in fields(cls) if not one.init}
        made = cls(**body)
        for name, value in later.items():
            setattr(made, name, value)
        return made

    def begin(self, warm: int) -> NodeCounts:
        """Return the nodes to ask for first: the planned ones, and the present ones while replacements start.

        Args:
            warm: Devices with a worker on them.
        """
        planned, present = self.planned, self.present
        are_all_there = planned.minimum(present) == planned
        first = planned.plus(self._stay(present, warm)) if are_all_there else planned.maximum(present)
        self.hands_over = first != planned
        return first

    def replan(self, now: float, planned: NodeCounts, price: float, available: int, on_demand: float) -> None:
        """Record the nodes that the plans hold from now on, their prices, and the number of spot nodes on offer."""
        self.decided, self.planned, self.requested = now, planned, planned
        self.price, self.available, self.on_demand = price, available, on_demand

    def _stay(self, present: NodeCounts, warm: int) -> NodeCounts:
        """Return the surplus nodes that stay: one of the other kind for each planned node that is missing or cold."""
        kept, cold = self.planned.minimum(present), max(present.all - warm, 0)
        surplus, missing = present.minus(kept), self.planned.minus(kept)
        lacks = self.planned.minimum(missing.plus(NodeCounts(cold, cold)))
        return NodeCounts(min(surplus.spot, lacks.on_demand), min(surplus.on_demand, lacks.spot))

    def settle(
        self, now: float, present: NodeCounts, warm: int, seconds: float, money: float | None = None
    ) -> NodeCounts | None:
        """Return the nodes to request once the hand-over is over or late; None to leave the request unchanged.

        Args:
            now: Scheduler time.
            present: Nodes present now.
            warm: Devices with a worker on them.
            seconds: Seconds of an interval.
            money: Money that is left; None for any. Nodes that would cost more until the interval ends do not stay.
        """
        if not self.hands_over:
            return None
        planned, stay = self.planned, self._stay(present, warm)
        if planned.minimum(present) == planned and not stay.all:
            self.hands_over, self.requested = False, planned
            return planned
        if now - self.decided > HANDOVER_FRACTION * seconds:  # nodes that stay from now on are held
            if money is not None and self.rest_of_cost(planned.plus(stay), now, seconds) > money:
                self.hands_over, self.requested = False, planned
                return planned
            self.requested = planned.plus(stay)
            return self.requested
        return None

    def rest(self, now: float, present: NodeCounts, seconds: float) -> Rest:
        """Record the nodes that are present, and return the rest of the interval."""
        had = self.present.minimum(self.requested)
        self.present = present
        elapsed = min((now - self.number * seconds) / seconds, 1.0)
        return Rest(self.number, elapsed, present, preempted=had != had.minimum(present))

    def add(self, rest: Rest, more: NodeCounts) -> NodeCounts:
        """Return the nodes to ask for: more than before, and only those spot nodes that a preemption has left."""
        if rest.preempted:
            self.planned = self.requested = NodeCounts(rest.present.spot, self.requested.on_demand).plus(more)
            self.hands_over = False
        else:
            self.planned, self.requested = self.planned.plus(more), self.requested.plus(more)
        return self.requested

    def give_up(self) -> None:
        """Request no nodes any more."""
        self.planned = self.requested = NodeCounts()
        self.hands_over = False

    def rest_of_cost(self, nodes: NodeCounts, now: float, seconds: float) -> float:
        """Return the cost of a number of nodes from now to the end of the interval."""
        left = min(max((self.number + 1) * seconds - now, 0.0) / seconds, 1.0)
        return left * nodes.cost(self.price, self.on_demand)

    def count(self, now: float, jobs: Iterable[JobStatus], present: NodeCounts, billed: int) -> None:
        """Account for the time since it was last seen; ``billed``: the number of nodes that are."""
        self.held = self.held.maximum(present.minimum(self.requested))
        used = {device for job in jobs if job.trains and job.state is State.RUNNING for device in job.devices}
        self.device_seconds += len(used) * (now - self.seen)
        self.surplus_seconds += max(billed - self.held.all, 0) * (now - self.seen)
        self.seen = now

    def record(self, jobs: Mapping[str, JobStatus], batches: int, cost: float) -> IntervalEnded:
        """Return the record of the interval.

        Args:
            jobs: Statuses at its end, by name.
            batches: Batches trained in it and not counted yet.
            cost: Its cost.
        """
        pairs = [(self.tolls[name], Toll.of(job)) for name, job in jobs.items() if name in self.tolls]
        seconds = max(self.seen - self.began, 1e-9)
        return IntervalEnded(
            self.number, self.price, self.available, self.held.spot, self.held.on_demand,
            self.surplus_seconds / seconds, self.device_seconds / seconds, cost, self.batches + batches,
            *map(sum, zip(Toll(0, 0, 0), *(after.since(before) for before, after in pairs), strict=True)),
        )  # fmt: skip

    def unobserved(self, number: int, price: float, available: int, on_demand: float, cost: float) -> IntervalEnded:
        """Return the record of a later interval that passed unobserved: its nodes are billed, nothing else is known."""
        return IntervalEnded(number, price, available, *self.held, 0.0, 0.0, cost, 0, 0, 0, 0)
