"""Nodes of a pool on a market, in virtual time: they come on request, and spot nodes go with the market.

Rules

1. Each node provides one device, the lowest free one; the pool receives the same events as from live nodes.
2. An interval begins before anything else at its instant: spot nodes beyond the new offer are gone, or have their
   notice, before the market decides for it. The pool hears of it at once, as of a cloud whose preemptions are seen a
   moment before the clock strikes, or some seconds later, as where nodes are processes.
3. The quote of an interval arrives when the one before it begins; after the recording its last interval continues.
4. A node that is to go takes no new work. It goes as soon as its job has left it, unless the cloud lets it stay, or
   when its time is up, and then a worker that is still on it is lost. As with live nodes, that counts as a preemption
   where there was a notice; without one only a process is seen to die.
5. A node is billed from its launch, which is its request, to its end. The pool hears at once which nodes are billed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.events import DevicesUnavailable, Event, ExitCause, PartEvent
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.counterfactual import CounterfactualReplay
from lightning_core.parts.market.earlier_feedback import known_before
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.parts.market.market_ledger import MarketLedger
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.spot_market import Market
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.event_queue import EventQueue
from lightning_core.simulation.virtual_pool import VirtualPool

# Intervals for which the last one of a recording continues.
AHEAD = 10_000


class NodeUsage(NamedTuple):
    """A past node, as a cloud would bill it."""

    node: str
    """Its id."""
    kind: str
    """``"spot"`` or ``"on-demand"``."""
    launched: float
    """Scheduler time of its launch, from which on it is billed."""
    since: float
    """Scheduler time from which on it was up; inf if it never was."""
    until: float
    """Scheduler time of its end; inf while it exists."""


@dataclass(slots=True, eq=False)
class _VirtualNode:
    """A node that was asked for."""

    number: int
    is_spot: bool
    launched: float
    """Scheduler time of its request."""
    since: float | None = None
    """Scheduler time from which on it is up; None until then."""
    is_warm: bool = False
    """Whether there is a worker on it."""
    device: int | None = None
    """Its device; None until it is warm and one is free."""
    goes: str = ""
    """Reason why it takes no new work; empty while it stays."""
    is_missed: bool = False
    """Whether the pool has heard that it goes."""

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def kind(self) -> str:
        return "spot" if self.is_spot else "on-demand"

    @property
    def is_seen(self) -> bool:
        return self.since is not None and not self.is_missed

    def lease(self, until: float) -> NodeUsage:
        return NodeUsage(self.id, self.kind, self.launched, math.inf if self.since is None else self.since, until)


class VirtualCloud:
    """Nodes in virtual time, for one :class:`~lightning_core.simulation.simulation.Simulation`.

    Args:
        market: Market, whose first interval is the simulation's first.
        start_up: Seconds from the request for a node until the pool sees it.
        notice: Seconds from a preemption notice to the end of the node; 0 for no notice.
        leave: Seconds that a job has to leave a node which is returned.
        warm_up: Seconds from seeing a node until there is a worker on it.
        heard: Seconds until the pool hears that a node goes, or has gone without notice.
        settings: Settings of the pool, by which its selector learns; None if it draws no policies.

    Attributes:
        early: Whether a node that is to go does so as soon as its job has left it; else it stays for all of its time.
        ahead: Whether an interval is quoted when the one before it begins. Otherwise quotes are current, as those of a
            command, and the market's intervals need not be those of the plans.

    Raises:
        ValueError: If a time is negative or not finite.
    """

    def __init__(
        self, market: Market, start_up: float = 0.0, notice: float = 0.0, leave: float = 10.0, warm_up: float = 0.0,
        heard: float = 0.0, settings: Settings | None = None,
    ) -> None:  # fmt: skip
        times = {"start_up": start_up, "notice": notice, "leave": leave, "warm_up": warm_up, "heard": heard}
        for name, value in times.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 seconds and finite, got {value}")
        self.market = market
        self._start_up, self._notice, self._leave, self._warm_up, self._heard = start_up, notice, leave, warm_up, heard
        self.early = self.ahead = True
        self._settings, self._rows = settings, list[IntervalEnded]()
        self._replay = None if settings is None else CounterfactualReplay.of(settings)
        self._nodes: list[_VirtualNode] = []  # the newest last
        self._gone: list[_VirtualNode] = []  # those that have gone, and the pool has not heard of it
        self._requested = self._begun = 0  # nodes and intervals so far
        self._wanted, self._offered = NodeCounts(), 0
        self._seen, self._unavailable = NodesSeen(), dict[int, str]()
        self._leases: list[NodeUsage] = []

    def join(self, pool: VirtualPool, queue: EventQueue, tell: Callable[[Event], None]) -> None:
        """Join a simulation.

        Args:
            pool: Its workers and devices; each device comes with its node.
            queue: Its actions to come.
            tell: Tells the scheduler of an event.

        Raises:
            ValueError: If it has joined one before.
        """
        if hasattr(self, "_pool"):
            raise ValueError("cloud: each simulation needs one of its own")
        self._pool, self._queue, self._tell = pool, queue, tell
        pool.on_free = self._look_soon
        for device in range(pool.device_count):
            pool.close(device)

    def first_events(self) -> list[PartEvent]:
        """Return what the selector and the policies know before the first interval."""
        return [] if self._settings is None else [PartEvent.of(event) for event in known_before(self._settings)]

    def due_events(self, scheduler: Scheduler, now: float) -> list[PartEvent]:
        """Return the feedback of the jobs whose deadlines have passed."""
        due = [] if self._replay is None else self._replay.due(scheduler, now)
        return [PartEvent.of(self._replay.feedback(job)) for job in due if self._replay is not None]

    def hear(self, answer: Any) -> None:
        """Take in what the market wants, or a row of its ledger."""
        if isinstance(answer, NodesWanted):
            self._queue.at(self._queue.now, self.want, answer)
        elif isinstance(answer, IntervalEnded):
            self._rows.append(answer)

    def record(self, scheduler: Scheduler) -> MarketLedger:
        """Return the ledger."""
        market = scheduler.controllers.get(MARKET)
        known = market.reference_costs(self.recording) if isinstance(market, MarketController) else None
        return MarketLedger(list(self._rows), known)

    @property
    def recording(self) -> Market:
        """The market as the pool sees it, extended beyond the recording."""
        market, ahead = self.market, (0, AHEAD)
        price = np.pad(market.price, ahead, mode="edge")
        return replace(market, price=price, available=np.pad(market.available, ahead, mode="edge"))

    @property
    def invoice(self) -> list[NodeUsage]:
        """The nodes that there were, in the order in which they came; last those that never did."""
        there = [node.lease(math.inf) for node in self._nodes]
        return sorted([*self._leases, *there], key=lambda lease: (lease.since, int(lease.node.rpartition("-")[2])))

    @property
    def is_empty(self) -> bool:
        """Whether there is no node, and none is requested."""
        return not self._nodes and not self._wanted.all

    # ------------------------------------------------------------------------------------------------ what happens

    @property
    def next_at(self) -> float:
        """Scheduler time at which the next interval begins."""
        return self._begun * self.market.seconds

    def begin_interval(self) -> None:
        """Begin the next interval: spot nodes that are no longer on offer go, and the one after it is quoted."""
        number, self._begun = self._begun, self._begun + 1
        self._offered = int(self.market.available[self._row(number)])
        staying = [node for node in self._nodes if node.is_spot and not node.goes]
        if not self.ahead:
            self._tell(PartEvent.of(self._quote(number, None)))
        self._let_go(staying[self._offered :], self._notice, "its node was preempted")
        self._say()
        for quoted in () if not self.ahead else (0, 1) if number == 0 else (number + 1,):
            self._tell(PartEvent.of(self._quote(quoted, quoted)))
        self._balance()
        self._say()

    def want(self, wanted: NodesWanted) -> None:
        """Record the pool's new request."""
        self._wanted = NodeCounts(wanted.spot, wanted.on_demand)
        self._balance()
        self._say()

    def _quote(self, number: int, interval: int | None) -> Quoted:
        row = self._row(number)
        price, available = float(self.market.price[row]), int(self.market.available[row])
        return Quoted(price, available, self.market.on_demand, interval)

    def _row(self, interval: int) -> int:
        return min(interval, len(self.market) - 1)

    # ------------------------------------------------------------------------------------------------ nodes

    def _balance(self) -> None:
        """Request missing nodes, and return the newest surplus ones."""
        new = []
        for is_spot, wanted in ((True, min(self._wanted.spot, self._offered)), (False, self._wanted.on_demand)):
            kept = [node for node in self._nodes if node.is_spot is is_spot and not node.goes]
            self._let_go(kept[wanted:], self._leave, "its node was given back")
            number, now = self._requested + 1, self._queue.now
            new += [_VirtualNode(number + k, is_spot, now) for k in range(wanted - len(kept))]
            self._requested += max(wanted - len(kept), 0)
        if new:
            self._nodes += new
            self._queue.at(self._queue.now + self._delays(new[0].number)[0], self._arrive, new)

    def _delays(self, number: int) -> tuple[float, float]:
        """Return the seconds until the pool sees a node, by its number from 1 on, and from then until it is warm."""
        return self._start_up, self._warm_up

    def _arrive(self, nodes: Sequence[_VirtualNode]) -> None:
        """Bring nodes that were requested together, unless they are no longer wanted."""
        for node in nodes:
            if node in self._nodes:
                node.since = self._queue.now
        if warm_up := self._delays(nodes[0].number)[1]:
            self._queue.at(self._queue.now + warm_up, self._get_warm, nodes)
            self._say()
        else:
            self._get_warm(nodes)

    def _get_warm(self, nodes: Sequence[_VirtualNode]) -> None:
        for node in nodes:
            node.is_warm = node.since is not None
        self._give_devices()
        self._say()

    def _give_devices(self) -> None:
        """Give each node that has none the lowest device that is free; the oldest nodes come first."""
        taken = {node.device for node in (*self._nodes, *self._gone)}
        free = [device for device in range(self._pool.device_count) if device not in taken]
        without = [node for node in self._nodes if node.is_warm and not node.goes and node.device is None]
        for node, device in zip(without, free, strict=False):
            node.device = device
            self._pool.open(device)

    def _let_go(self, nodes: Sequence[_VirtualNode], seconds: float, why: str) -> None:
        """End nodes after some seconds at the latest; one that has not come yet ends at once."""
        never_came = [node for node in nodes if node.since is None]
        self._leases += [node.lease(self._queue.now) for node in never_came]
        self._nodes = [node for node in self._nodes if node not in never_came]
        go = [node for node in nodes if node.since is not None]
        if not go:
            return
        for node in go:
            node.goes, node.is_missed = why, not self._heard
            if node.device is not None:
                self._pool.close(node.device)
        if self._heard:
            self._queue.at(self._queue.now + self._heard, self._miss, go)
        for node in go:
            if seconds:
                self._queue.at(self._queue.now + seconds, self._time_is_up, node)
            else:
                self._end(node, ExitCause.LOST, self._heard)
        self._look_soon()  # once the pool has heard of it

    def _miss(self, nodes: Sequence[_VirtualNode]) -> None:
        """Notify the pool of nodes that leave or have left."""
        for node in nodes:
            node.is_missed = True
        self._gone = [node for node in self._gone if node not in nodes]
        self._give_devices()
        self._say()
        self._look_soon()

    def _time_is_up(self, node: _VirtualNode) -> None:
        if node in self._nodes:
            self._end(node, ExitCause.PREEMPTED)
            self._say()

    def _look_soon(self) -> None:
        if self.early:
            self._queue.at(self._queue.now, self._end_deserted, None)

    def _end_deserted(self, _: None) -> None:
        """End the nodes that are to go and that no job is on any more."""
        for node in [node for node in self._nodes if node.is_missed]:
            if node.device is None or self._pool.is_free(node.device):
                self._end(node, ExitCause.PREEMPTED)
        self._say()

    def _end(self, node: _VirtualNode, cause: ExitCause, heard: float = 0.0) -> None:
        """End a node; the pool learns of it some seconds later."""
        self._nodes.remove(node)
        self._leases.append(node.lease(self._queue.now))
        if heard:
            self._gone.append(node)
        if node.device is not None:
            self._pool.end_device(node.device, cause, node.goes, heard)
        self._give_devices()

    # ------------------------------------------------------------------------------------------------ the pool

    def _say(self) -> None:
        """Notify the pool of changes of its nodes and of devices that take no work.

        The nodes come first: the market may decide at any event, and must not count on nodes that have gone.
        """
        stay = [node for node in (*self._nodes, *self._gone) if node.is_seen]
        others = [node for node in self._nodes if not node.is_seen]
        spot, on_demand, *billed = (
            tuple(node.id for node in several if node.is_spot is kind)
            for several in (stay, others) for kind in (True, False)
        )  # fmt: skip
        warm = sum(node.device is not None for node in stay)
        seen = NodesSeen(spot, on_demand, warm, billed_spot=billed[0], billed_on_demand=billed[1])
        goes = {node.device: "its node is draining" for node in self._nodes if node.is_missed}
        usable = {node.device for node in stay}
        unavailable = {
            device: goes.get(device, "no node provides it")
            for device in range(self._pool.device_count)
            if device not in usable
        }
        if seen != self._seen:
            self._seen = seen
            self._tell(PartEvent.of(seen))
        if unavailable.keys() != self._unavailable.keys():
            self._unavailable = unavailable
            words = "; ".join(f"device {device}: {why}" for device, why in unavailable.items())
            self._tell(DevicesUnavailable(tuple(unavailable), words))
