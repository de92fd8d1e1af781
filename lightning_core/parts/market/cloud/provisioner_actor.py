"""The provisioner: a detached actor that brings the nodes that the scheduler requests, and reports those that exist.

Rules

1. The request is a level. It is repeated while the nodes differ from it, and the nodes are reported whenever they
   change: a lost message, or a restarted actor, costs time and nothing else.
2. It holds nodes under a lease, which each answer of the scheduler renews. Once it expires, all nodes are returned.
3. A task that hangs does not delay the others: each has a loop of its own (requests of the pool, nodes brought, nodes
   seen, quotes, troubles), and blocking calls run in threads. A provisioner that does not answer is awaited, since it
   must not have two requests at once; this is reported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from lightning_core.cluster.ray_nodes import list_nodes
from lightning_core.core.events import PartEvent
from lightning_core.core.validation import made
from lightning_core.parts.market.cloud import make_provisioner, parse_provision
from lightning_core.parts.market.cloud.asked_provisioner import AskedProvisioner, Troubles
from lightning_core.parts.market.cloud.cloud_spec import SIMULATED, CloudSpec
from lightning_core.parts.market.cloud.lease import Lease
from lightning_core.parts.market.cloud.provisioner import ON_DEMAND, SPOT, Provisioner, list_marks, list_zones
from lightning_core.parts.market.cloud.quotes import QUOTES_PER_INTERVAL, QuoteCommand, recorded_quote
from lightning_core.parts.market.cloud.simulated_provisioner import SimulatedProvisioner, raylet_command
from lightning_core.parts.market.cloud_events import MAX_NODES, CloudEvent, CloudPart, NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.parts.market.spot_market import Market
from lightning_core.server.ray_settings import NAMESPACE, Actor
from lightning_core.server.start_scheduler import this_node
from lightning_core.storage.failpoints import reach

log = logging.getLogger(__name__)

# Seconds for which a long poll of the requested nodes waits, at most and as a fraction of a lease, and seconds that any
# answer may take beyond that.
NEWS_TIMEOUT, NEWS_FRACTION, REPLY_TIMEOUT = 5.0, 0.25, 10.0
# Seconds before a scheduler that does not answer is asked again, before a retry after an error, and between two looks.
AWAY_PAUSE, ERROR_PAUSE, LOOK_PAUSE = 0.5, 2.0, 0.5
# Seconds that giving all nodes back may take, and of these, those that the provisioner may take to close.
GIVE_BACK_TIMEOUT, CLOSE_TIMEOUT = 60.0, 10.0


class ProvisionerActor:
    """Brings up the nodes of a pool, and gives them back.

    Args:
        scheduler: Name of the scheduler's actor.
        manager: Name of the pool manager's actor, which knows the devices that are warm.
        folder: Folder of the pool, with the description of its cloud
            (:class:`~lightning_core.parts.market.cloud.CloudSpec`).
    """

    def __init__(self, scheduler: str, manager: str, folder: str) -> None:
        self._names, self._folder = (scheduler, manager), Path(folder)
        self._spec = CloudSpec.load(self._folder)
        self._lease = Lease(self._spec.lease_seconds)
        self._lease.renew(time.monotonic())  # after a restart, too, the pool has as long to answer
        self._wanted: NodesWanted | None = None
        self._origin: float | None = None  # monotonic time at which the scheduler's is 0
        self._changed = asyncio.Event()
        self._closed = False
        self._troubles = Troubles()
        self._provisioner = AskedProvisioner(self._make, self._troubles)
        self._remaining: list[str] = []
        self._simulated: SimulatedProvisioner | None = None
        self._offers: Quoted | None = None  # the current offers
        self._seen: NodesSeen | None = None
        self._market: Market | None = None
        self._quoted = self._offered = -1  # newest interval reported to the pool, and to the simulated market
        loops = (self._follow, self._provision, self._look, self._quote, self._tell_troubles)
        self._tasks = [asyncio.get_running_loop().create_task(self._keep(loop)) for loop in loops]

    async def pid(self) -> int:
        """Return the id of the actor's process."""
        return os.getpid()

    async def held(self) -> tuple[NodeCounts, bool]:
        """Return the nodes that are there, and whether the lease is over."""
        return _counts(await asyncio.to_thread(self._listed)), self._lease.is_over(time.monotonic())

    async def patience(self) -> float:
        """Return the seconds that :meth:`give_back` may take."""
        return GIVE_BACK_TIMEOUT - CLOSE_TIMEOUT + self._close_seconds()

    async def remaining(self) -> list[str]:
        """Return the names of nodes that :meth:`give_back` has left, if its provisioner knows them."""
        return self._remaining

    async def give_back(self) -> bool:
        """Give all nodes back for good; return whether none remains."""
        self._closed = True
        self._changed.set()
        until = time.monotonic() + GIVE_BACK_TIMEOUT - CLOSE_TIMEOUT
        # An actor that has just been restarted finds the nodes of the one before only once its provisioner is made.
        while (self._provisioner.provisioner is None or (await self.held())[0].all) and time.monotonic() < until:
            await asyncio.sleep(AWAY_PAUSE)
        for task in self._tasks:
            task.cancel()
        if (provisioner := self._provisioner.provisioner) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._close_seconds()):
                    await asyncio.to_thread(provisioner.close)
            self._remaining = list(getattr(provisioner, "remaining", list)())
        with suppress(RayError, ValueError, TimeoutError):  # the scheduler may be gone
            await self._tell_nodes()  # this ends the bill
        return not (await self.held())[0].all and not self._remaining

    # ------------------------------------------------------------------------------------------------ loops

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Repeat a loop's body, whatever errors it raises."""
        while True:
            try:
                await loop()
            except (RayError, ValueError, TimeoutError):  # the scheduler is being restarted, or is stalled
                await asyncio.sleep(AWAY_PAUSE)
            except Exception:  # whatever the error: the nodes cost money
                log.exception("the provisioner continues after an error")
                await asyncio.sleep(ERROR_PAUSE)

    async def _follow(self) -> None:
        """Ask the scheduler for its request; each answer renews the lease."""
        version = -1 if self._wanted is None else self._wanted.version
        patience = min(NEWS_TIMEOUT, NEWS_FRACTION * self._lease.seconds)
        async with asyncio.timeout(patience + REPLY_TIMEOUT):
            now, level = await self._scheduler().published.remote("market", version, patience)
        wanted = None if level is None else made(NodesWanted, dict(level.body))
        self._lease.renew(time.monotonic())
        self._origin = time.monotonic() - now
        reach("provisioner.heard")
        if wanted is not None and wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def _provision(self) -> None:
        """Bring the requested nodes."""
        listed = await asyncio.to_thread(self._listed)
        target, there_in = self._target(), await self._places(listed)
        places = self._wanted.places if target is not None and target.all and self._wanted is not None else ()
        self._provisioner.bring(target, _counts(listed), time.monotonic(), places, there_in)
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_PAUSE):
                await self._changed.wait()

    def _target(self) -> NodeCounts | None:
        """Return the nodes that should be there; None to leave those of an earlier provisioner until the pool says."""
        if self._closed or self._lease.is_over(time.monotonic()):
            return NodeCounts()
        return None if self._wanted is None else NodeCounts(self._wanted.spot, self._wanted.on_demand)

    async def _look(self) -> None:
        """Report the existing nodes to the scheduler, if they have changed."""
        await self._tell_nodes()
        await asyncio.sleep(LOOK_PAUSE)

    async def _tell_nodes(self) -> None:
        listed = await asyncio.to_thread(self._listed)
        spot, on_demand = (tuple(sorted(one for one in listed if listed[one] == kind)) for kind in (SPOT, ON_DEMAND))
        most = MAX_NODES // 2  # a provisioner may bring any number
        told = {node: listed[node] for node in (*spot[:most], *on_demand[:most])}
        places = await self._places(told)
        billed, marks = await asyncio.to_thread(self._billed)
        there = [tuple(marks.get(node, node) for node in several[:most]) for several in (spot, on_demand)]
        others = {marks.get(node, node): kind for node, kind in billed.items()}
        known = {*there[0], *there[1]}
        others = {name: kind for name, kind in others.items() if name not in known}
        more = [tuple(sorted(name for name in others if others[name] == kind))[:most] for kind in (SPOT, ON_DEMAND)]
        seen = NodesSeen(there[0], there[1], min(await self._warm(), MAX_NODES), places, *more)
        if seen != self._seen:
            await self._tell(seen)
            self._seen = seen

    async def _quote(self) -> None:
        """Report the current offers to the scheduler."""
        if self._spec.quotes is not None:
            await self._quote_by_command(self._spec.quotes)
        elif self._origin is None:
            await asyncio.sleep(AWAY_PAUSE)
        else:
            await self._quote_recording(self._origin)

    async def _quote_by_command(self, command: str) -> None:
        until = time.monotonic() + self._spec.interval / QUOTES_PER_INTERVAL
        try:
            quote = await asyncio.to_thread(QuoteCommand(command).ask)
        except ValueError as error:
            self._troubles.set(CloudPart.QUOTES, str(error))
        else:
            self._troubles.set(CloudPart.QUOTES, "")
            await self._offer(quote)
            while not await self._is_told(quote) and time.monotonic() < until:
                await asyncio.sleep(AWAY_PAUSE)
        await asyncio.sleep(max(until - time.monotonic(), AWAY_PAUSE))

    async def _quote_recording(self, origin: float) -> None:
        seconds = self._spec.interval
        if self._market is None:
            self._market = await asyncio.to_thread(MarketTerms(**(self._spec.terms or {})).market)
        interval = int((time.monotonic() - origin) // seconds)
        if interval != self._offered:
            await self._offer(recorded_quote(self._market, interval))
            self._offered = interval
        for number in range(max(self._quoted + 1, interval), interval + 2):  # plans for the next one begin with it
            await self._tell(recorded_quote(self._market, number))
            self._quoted = number
        await asyncio.sleep(min(max((interval + 1) * seconds - (time.monotonic() - origin), 0.01), 1.0))

    async def _tell_troubles(self) -> None:
        """Report troubles, and their ends."""
        for trouble in self._troubles.news(time.monotonic()):
            if trouble.words:
                log.warning("%s: %s", trouble.part, trouble.words)
            await self._tell(trouble)
            self._troubles.tell(trouble, time.monotonic())
        await asyncio.sleep(LOOK_PAUSE)

    # ------------------------------------------------------------------------------------------------ within

    def _close_seconds(self) -> float:
        """Return the seconds that closing the provisioner may take."""
        return float(getattr(self._provisioner.provisioner, "close_seconds", CLOSE_TIMEOUT))

    def _scheduler(self) -> Actor:
        return ray.get_actor(self._names[0], namespace=NAMESPACE)

    async def _tell(self, event: CloudEvent) -> None:
        async with asyncio.timeout(REPLY_TIMEOUT):
            await self._scheduler().event.remote(PartEvent.of(event))

    async def _is_told(self, event: CloudEvent) -> bool:
        """Send an event to the scheduler; return whether it has answered."""
        try:
            await self._tell(event)
        except (RayError, ValueError, TimeoutError):  # it is being restarted, or is stalled
            return False
        return True

    async def _warm(self) -> int:
        try:
            manager = ray.get_actor(self._names[1], namespace=NAMESPACE)
            async with asyncio.timeout(REPLY_TIMEOUT):
                return int(await manager.warm.remote())
        except (RayError, ValueError, TimeoutError):  # it is being restarted
            return 0

    def _billed(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the market types of the nodes that are billed, and the marks of those that have one.

        A simulated node is known by its mark from its launch on, any other by its id once it has joined.
        """
        billed = list_nodes(self._spec.resource, self._spec.pool, draining=True)
        if self._simulated is not None:
            billed |= self._simulated.billed()
        return billed, list_marks()

    def _listed(self) -> dict[str, str]:
        return list_nodes(self._spec.resource, self._spec.pool)

    async def _places(self, listed: Mapping[str, str]) -> tuple[PlacedNodes, ...]:
        """Return how many of the nodes are of each offer, in the order of the names; those of no offer are left out."""
        if self._offers is None or not self._offers.offers:
            return ()
        zones, offers = await asyncio.to_thread(list_zones), {(one.zone, one.type) for one in self._offers.offers}
        kinds = Counter[tuple[str, str, str]]()
        for node in listed.keys() & zones.keys():
            zone, its_type = zones[node]
            found = (zone, its_type) if (zone, its_type) in offers else (zone, "")  # without a type it takes any
            kinds[(*found, listed[node])] += found in offers
        places = sorted({kind[:2] for kind, number in kinds.items() if number})
        return tuple(PlacedNodes(*place, kinds[(*place, SPOT)], kinds[(*place, ON_DEMAND)]) for place in places)

    async def _offer(self, quote: Quoted) -> None:
        self._offers = quote
        if self._simulated is not None:
            await asyncio.to_thread(self._simulated.offer, quote.available, quote.offers)

    def _make(self) -> Provisioner:
        """Return the provisioner; it takes over the nodes of an earlier one."""
        spec = self._spec
        if spec.provision == SIMULATED:
            address = ray.get_runtime_context().gcs_address
            command = raylet_command(address, spec.pool, {spec.resource: 1})
            self._simulated = SimulatedProvisioner(self._folder / "nodes", command, spec.notice, spec.leave)
            if self._offers is not None:
                self._simulated.offer(self._offers.available, self._offers.offers)
            return self._simulated
        name, words = parse_provision(spec.provision)
        return make_provisioner(name, spec.pool, spec.resource, words)


def _counts(listed: dict[str, str]) -> NodeCounts:
    kinds = list(listed.values())
    return NodeCounts(kinds.count(SPOT), kinds.count(ON_DEMAND))


def start_provisioner(pool: str, scheduler: str, folder: Path) -> Actor:
    """Start the named, detached provisioner of a pool, which Ray restarts whenever it dies; or find it.

    Args:
        pool: Name of the pool.
        scheduler: Name of its scheduler's actor.
        folder: Its folder, with the description of its cloud.
    """
    actor: Any = ray.remote(ProvisionerActor)
    options = {
        "name": f"{pool}-provisioner", "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True,
        "max_restarts": -1, "num_cpus": 0, "scheduling_strategy": this_node(),
    }  # fmt: skip
    return actor.options(**options).remote(scheduler, f"{pool}-manager", str(folder))
