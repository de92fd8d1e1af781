"""Wrapper of a provisioner that may fail, hang or bring the wrong nodes: one request at a time, troubles reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from lightning_core.core.limits import MAX_TEXT
from lightning_core.parts.market.cloud.provisioner import Provisioner
from lightning_core.parts.market.cloud_events import CloudPart, CloudTrouble
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.storage.failpoints import reach

# Seconds for which the text of a trouble stays although a newer one exists: an error may differ each time.
STAY = 60.0
# Seconds after which a request is repeated if nodes are missing or surplus nodes remain, and seconds after which a
# provisioner counts as not answering, which is reported.
REPEAT = 60.0
# Seconds before a provisioner that has failed is asked again.
RETRY = 5.0
Places = tuple[PlacedNodes, ...]


class Troubles:
    """Current troubles, and those reported last.

    Reports of an earlier provisioner are unknown, so each part is reported once, even if it has no trouble.
    """

    def __init__(self) -> None:
        self._are: dict[CloudPart, str] = {}
        self._told: dict[CloudPart, tuple[str, float]] = {}

    def set(self, part: CloudPart, words: str) -> None:
        """Record a trouble; an empty one has ended."""
        words = " ".join(words.split())
        self._are[part] = words if len(words) <= MAX_TEXT else f"{words[: MAX_TEXT - 3]}..."

    def news(self, now: float) -> list[CloudTrouble]:
        """Return the troubles to report."""
        news = []
        for part, words in self._are.items():
            told, since = self._told.get(part, (None, now))
            if words != told and not (words and told and now < since + STAY):
                news.append(CloudTrouble(part, words))
        return news

    def tell(self, trouble: CloudTrouble, now: float) -> None:
        """Record that troubles were reported."""
        self._told[trouble.part] = trouble.words, now


class Nodes(NamedTuple):
    """Nodes, and how many of them are of each offer, in the order of the names, if that is known."""

    counts: NodeCounts
    places: Places = ()


class AskedProvisioner:
    """Asks a provisioner for the nodes that are wanted, in a thread; a call that hangs is waited for.

    Args:
        make: Makes the provisioner; it is called in that thread too, and again if it fails.
        troubles: Collects troubles to report.

    Attributes:
        provisioner: The provisioner, once it is made.
    """

    def __init__(self, make: Callable[[], Provisioner], troubles: Troubles) -> None:
        self.provisioner: Provisioner | None = None
        self._make, self._troubles = make, troubles
        self._call: asyncio.Future[None] | None = None  # the call that has not returned
        self._since = self._again_at = float("-inf")
        self._calls_for: Nodes | None = None
        self._asked: Nodes | None = None

    def bring(
        self, wanted: NodeCounts | None, there: NodeCounts, now: float, places: Places = (), there_in: Places = ()
    ) -> None:
        """Request nodes after a change of the request, or if the existing ones have differed from it for long.

        It returns at once.

        Args:
            wanted: Requested nodes; None to leave those of an earlier provisioner until the request is known.
            there: Existing nodes that are not about to leave.
            now: Monotonic time.
            places: Requested nodes of each offer; empty for any.
            there_in: Existing nodes of each offer.
        """
        where = there_in if places else ()
        try:
            if self._has_answered(now):
                self._bring(None if wanted is None else Nodes(wanted, places), Nodes(there, where), now)
        except Exception as error:  # a provisioner may raise anything
            self._troubles.set(CloudPart.NODES, f"{type(error).__name__}: {error}")
            self._asked, self._again_at = None, now + RETRY

    def _bring(self, wanted: Nodes | None, there: Nodes, now: float) -> None:
        if self.provisioner is None:
            if now > self._again_at:
                self._begin(self._find, None, now)
            return
        # Failures in a thread of its own.
        trouble: str = getattr(self.provisioner, "trouble", "")
        if trouble:
            self._troubles.set(CloudPart.NODES, trouble)
        if wanted is None:
            return
        if wanted == there == self._asked:
            self._again_at = now + REPEAT
            self._troubles.set(CloudPart.NODES, trouble)
        elif now > self._again_at or self._asked not in (None, wanted):
            if wanted == self._asked:
                words = trouble or f"{_words(wanted)} are wanted, and {_words(there)} are there"
                self._troubles.set(CloudPart.NODES, words)
            self._begin(lambda: self._ask(wanted), wanted, now)

    def _has_answered(self, now: float) -> bool:
        """Return whether the last call has returned.

        Raises:
            Exception: Whatever it has raised.
        """
        if (call := self._call) is None:
            return True
        if not call.done():
            if now > self._since + REPEAT:
                self._troubles.set(CloudPart.NODES, f"the provisioner has not answered for {REPEAT:g} s")
            return False
        self._call = None
        call.result()
        if self._calls_for is not None:
            self._asked, self._again_at = self._calls_for, now + REPEAT
        return True

    def _begin(self, call: Callable[[], None], wanted: Nodes | None, now: float) -> None:
        self._call = asyncio.ensure_future(asyncio.to_thread(call))
        self._since, self._calls_for = now, wanted

    def _find(self) -> None:
        self.provisioner = self._make()

    def _ask(self, wanted: Nodes) -> None:
        assert self.provisioner is not None  # else it is found first
        reach("provisioner.before_asking")
        if wanted.places:
            self.provisioner.scale_to(wanted.counts, wanted.places)
        else:
            self.provisioner.scale_to(wanted.counts)
        reach("provisioner.asked")


def _words(nodes: Nodes) -> str:
    counts = nodes.counts
    where = ", ".join(f"{place.spot} and {place.on_demand} in {place.name}" for place in nodes.places)
    return f"{counts.spot} spot and {counts.on_demand} on-demand nodes" + (f" ({where})" if where else "")
