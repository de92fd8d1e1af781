"""What is done about each node that SkyPilot brings: asked for, launched, joined, given back, gone; without threads.

Rules

1. What SkyPilot's API server says counts, not what was asked of it: a node is there as long as it lists its cluster or
   has a request to launch it. The names say whose nodes they are, so nothing needs to be noted elsewhere.
2. A node that was asked for counts as there until that is refuted, also if the answer was lost.
3. A launch is cancelled before its cluster is ended: else it might come to life afterwards.
4. Each launch has a name of its own. One that failed is ended, and the next attempt for its kind and place waits, each
   time for twice as long.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from lightning_core.parts.market.cloud.provisioner import MARKET_TYPES
from lightning_core.parts.market.cloud.skypilot_clusters import LAUNCH_SECONDS, Clusters, Sighting, error_words
from lightning_core.parts.market.node_counts import NodeCounts

log = logging.getLogger(__name__)

# Zone and type.
Place = tuple[str, str]
# Seconds that a machine may be up without joining the pool's Ray: what its `setup` does takes its time. And seconds
# for which one that had joined may be missing there.
JOIN_SECONDS, LOST_SECONDS = 1800.0, 120.0
# Seconds for which a cluster may be in no good state, and for which a launch whose answer was lost may still appear.
UNWELL_SECONDS, CONFIRM_SECONDS = 60.0, 60.0
# Seconds before the next attempt after a failed launch, at first and at most; and to end a node.
LAUNCH_PAUSE, MAX_LAUNCH_PAUSE, END_PAUSE = 15.0, 600.0, 30.0


@dataclass
class SkyNode:
    """One node, which is one cluster of SkyPilot. Times are monotonic.

    Args:
        name: Name of the cluster, and mark of the node.
        kind: Its market type.
        place: Digest of its place.
        since: Time at which it was asked for, or found.
    """

    name: str
    kind: str
    place: str
    since: float
    asking: Future[str] | None = None
    """The call that asks for it; None if an earlier provisioner made it."""
    asked_at: float | None = None
    """Time at which that call returned or was given up."""
    seen: Sighting = field(default_factory=Sighting)
    has_joined: bool = False
    absent_since: float | None = None
    """Time since when it is up, and not in the pool's Ray."""
    unwell_since: float | None = None
    ends_at: float | None = None
    """Time at which it is ended; None while it stays."""
    told_at: float = float("-inf")
    told: str = ""
    """Newest request to end it."""
    failed: str | None = None
    """Why its launch failed; empty if it did not, None if that was not asked for yet."""
    stuck: str = ""
    """Why it could not be ended."""

    @property
    def key(self) -> tuple[str, str]:
        """Its market type and the digest of its place."""
        return self.kind, self.place

    @property
    def is_being_asked(self) -> bool:
        """Whether the call that asks for it has not been answered yet."""
        return self.asking is not None and self.asked_at is None

    def request(self) -> str:
        """Return the id of the request that launches it; empty if it is not known."""
        if self.asking is None or not self.asking.done() or self.asking.exception() is not None:
            return ""
        return self.asking.result()


class SkyNodes:
    """Decides what is asked of SkyPilot so that the nodes become those that are wanted.

    Args:
        prefix: Prefix of the names of this pool's clusters.
        clusters: SkyPilot.
        leave: Seconds that a job has to leave a node which is given back.
        warn: Gives a node of the pool's Ray, by its name, notice of this many seconds.
        wake: Called, from any thread, when there is something to do.
    """

    def __init__(
        self,
        prefix: str,
        clusters: Clusters,
        leave: float,
        warn: Callable[[str, float], object],
        wake: Callable[[], object] = lambda: None,
    ) -> None:
        self._prefix, self._clusters, self.leave, self._warn, self._wake = prefix, clusters, leave, warn, wake
        self._nodes: dict[str, SkyNode] = {}
        self._wanted: Mapping[Place, NodeCounts] | None = None
        self._places: dict[str, Place] = {}  # by their digests
        self._pauses: dict[tuple[str, str], tuple[float, float]] = {}  # until when, and how long
        self._reasons: dict[tuple[str, str], str] = {}
        self.has_looked = False
        """Whether SkyPilot has said since :meth:`want` what there is."""
        self.trouble = ""
        """What is wrong, in words; empty if nothing is."""

    def want(self, wanted: Mapping[Place, NodeCounts]) -> None:
        """Set the nodes that should be there; until the first call, those of an earlier provisioner stay."""
        self._places |= {place_digest(place): place for place in wanted}
        self._wanted, self.has_looked = wanted, False

    def remaining(self) -> list[str]:
        """Return the names of clusters that may be there."""
        return sorted(self._nodes)

    def present(self) -> NodeCounts:
        """Return the nodes that SkyPilot has launched and that are to stay."""
        kinds = [one.kind for one in self._nodes.values() if one.ends_at is None and one.seen.status == "UP"]
        return NodeCounts(*(kinds.count(kind) for kind in MARKET_TYPES))

    def step(self, joined: Collection[str] | None, now: float) -> None:
        """Look at the clusters, and ask for what is missing or too much.

        Args:
            joined: Names of the nodes that are in the pool's Ray; None if that is not known.
            now: Monotonic time.

        Raises:
            Exception: If SkyPilot does not say what there is; then nothing is done.
        """
        wanted = self._wanted
        for node in self._nodes.values():  # before the look: one that came in meanwhile is not in what was seen
            self._hear(node, now)
        doubtful = [one.name for one in self._nodes.values() if joined is not None and self._is_lost(one, joined)]
        seen = self._clusters.look(self._prefix, doubtful)
        for name in seen.keys() - self._nodes.keys():
            kind, place = _parsed(name.removeprefix(self._prefix))
            self._nodes[name] = SkyNode(name, kind, place, now)
        for node in list(self._nodes.values()):
            self._note(node, seen.get(node.name, Sighting()), joined, now)
        self.has_looked = wanted is self._wanted
        if wanted is not None:
            needed = {
                (kind, place_digest(place)): number
                for place, counts in wanted.items()
                for kind, number in zip(MARKET_TYPES, counts, strict=True)
            }
            for key in sorted({*needed, *(one.key for one in self._nodes.values())}):
                self._end_surplus(key, needed.get(key, 0), joined or (), now)
            self._send_ends(now)
            self._launch(needed, now)
            self.trouble = self._troubles(needed)

    # ------------------------------------------------------------------------------------------------ one node

    def _hear(self, node: SkyNode, now: float) -> None:
        """Take note of the answer to the call that asks for a node; one that hangs is not awaited for ever."""
        if node.asking is None or not node.is_being_asked:
            return
        if node.asking.done():
            failure = node.asking.exception()
            node.asked_at, node.failed = now, None if failure is None else error_words(failure)
        elif now >= node.since + LAUNCH_SECONDS:
            node.asked_at = now

    def _is_lost(self, node: SkyNode, joined: Collection[str]) -> bool:
        return node.has_joined and node.name not in joined and node.ends_at is None

    def _note(self, node: SkyNode, seen: Sighting, joined: Collection[str] | None, now: float) -> None:
        """Take note of what was seen of a node; one that is gone is forgotten, one that is no good is ended."""
        node.seen = seen
        if joined is not None and node.name in joined and not node.has_joined:
            node.has_joined = True
            self._pauses.pop(node.key, None)
            self._reasons.pop(node.key, None)
        if node.is_being_asked and not (seen.status or seen.launches):
            return
        if seen.launches or seen.ending:
            node.unwell_since = None
        elif not seen.status:
            self._note_missing(node, now)
        elif joined is not None:
            self._note_state(node, node.name in joined, now)

    def _note_missing(self, node: SkyNode, now: float) -> None:
        """Forget a node that SkyPilot does not know, unless it may still hear of it."""
        if node.asked_at is not None and not node.request() and now < node.asked_at + CONFIRM_SECONDS:
            return
        del self._nodes[node.name]
        if node.ends_at is None and node.has_joined:
            log.warning("%s is gone: it was preempted, or ended elsewhere", node.name)
        elif node.ends_at is None:
            self._fail(node, self._failure(node) or f"{node.name} ended before it joined", now)

    def _note_state(self, node: SkyNode, is_joined: bool, now: float) -> None:
        """End a node that is in no good state for long, or does not join the pool's Ray."""
        if is_joined or node.ends_at is not None:
            node.unwell_since = node.absent_since = None
            return
        is_up = node.seen.status == "UP"
        node.unwell_since = None if is_up else now if node.unwell_since is None else node.unwell_since
        node.absent_since = now if node.absent_since is None else node.absent_since
        patience = LOST_SECONDS if node.has_joined else JOIN_SECONDS
        words = "" if node.has_joined else self._failure(node)
        if not words and node.unwell_since is not None and now > node.unwell_since + UNWELL_SECONDS:
            words = f"{node.name} is in the state {node.seen.status}"
        if not words and now > node.absent_since + patience:
            words = f"{node.name} has not been in the pool's Ray for {patience:g} s (sky logs {node.name})"
        if words:
            self._fail(node, words, now)
            node.ends_at = now

    def _failure(self, node: SkyNode) -> str:
        """Return why the launch of a node failed; empty if it did not, or that is not known."""
        if node.failed is None and (request := node.request()):
            node.failed = self._clusters.reason(request)
        return node.failed or ""

    def _fail(self, node: SkyNode, reason: str, now: float) -> None:
        log.warning("%s: %s", node.name, reason)
        pause = min(2 * self._pauses.get(node.key, (0.0, LAUNCH_PAUSE / 2))[1], MAX_LAUNCH_PAUSE)
        self._pauses[node.key] = (now + pause, pause)
        self._reasons[node.key] = reason

    # ------------------------------------------------------------------------------------------------ requests

    def _end_surplus(self, key: tuple[str, str], needed: int, joined: Collection[str], now: float) -> None:
        """Have surplus nodes of a kind and place end: first those that have not joined, of these the newest."""
        staying = [one for one in self._nodes.values() if one.key == key and one.ends_at is None]
        for node in sorted(staying, key=lambda one: (one.name in joined, -one.since))[: max(len(staying) - needed, 0)]:
            is_warned = node.name in joined and self.leave > 0
            node.ends_at = now + (self.leave if is_warned else 0.0)
            if is_warned:
                self._warn(node.name, self.leave)

    def _send_ends(self, now: float) -> None:
        for node in self._nodes.values():
            is_due = node.ends_at is not None and now >= max(node.ends_at, node.told_at + END_PAUSE)
            if not is_due or node.seen.ending or node.is_being_asked:
                continue
            try:
                if node.told:
                    node.stuck = self._clusters.reason(node.told)
                if node.seen.launches:
                    self._clusters.cancel(node.seen.launches)
                if node.seen.status:
                    node.told = self._clusters.down(node.name)
                    node.told_at = now
            except Exception as error:  # the next one is tried all the same
                node.stuck, node.told_at = error_words(error), now

    def _launch(self, needed: Mapping[tuple[str, str], int], now: float) -> None:
        """Ask for a node that is missing; one at a time, so that SkyPilot's client is in one call of this kind."""
        if any(one.is_being_asked for one in self._nodes.values()):
            return
        for key, number in needed.items():
            staying = [one for one in self._nodes.values() if one.key == key and one.ends_at is None]
            if len(staying) >= number or now < self._pauses.get(key, (now, 0.0))[0]:
                continue
            kind, place = key
            name = f"{self._prefix}{kind}-{place}-{secrets.token_hex(3)}"
            node = SkyNode(name, kind, place, now)
            self._nodes[name] = node
            node.asking = self._clusters.launch(name, kind, *self._places[place])
            node.asking.add_done_callback(lambda _: self._wake())
            return

    def _troubles(self, needed: Mapping[tuple[str, str], int]) -> str:
        counts = {key: sum(one.key == key and one.ends_at is None for one in self._nodes.values()) for key in needed}
        failed = [reason for key, reason in self._reasons.items() if counts.get(key, 0) < needed.get(key, 0)]
        stuck = [one for one in self._nodes.values() if one.ends_at is not None and one.stuck]
        return "; ".join([*failed, *(f"{one.name} could not be ended: {one.stuck}" for one in stuck)])


def place_digest(place: Place) -> str:
    """Return the four letters that stand for a place in names, which may be no longer than clouds permit.

    Example::

        >>> place_digest(("us-east-1a", "p3.2xlarge")), place_digest(("", ""))
        ('29e9', 'any')
    """
    return hashlib.sha256("\n".join(place).encode()).hexdigest()[:4] if any(place) else "any"


def _parsed(rest: str) -> tuple[str, str]:
    """Return the market type and the place's digest of a name without its prefix; a foreign one is of no kind."""
    kind, _, number = rest.rpartition("-")[0].rpartition("-")
    return (kind, number) if kind in MARKET_TYPES else ("", rest)
