"""A scheduler's view of the cloud: existing nodes, requested nodes, and the money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.core.codec import decode_answers, decode_event, encode_answers, encode_event
from lightning_core.core.control import (
    Allowance,
    Asker,
    CloudPart,
    CloudTrouble,
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    Quoted,
)
from lightning_core.core.control.cloud import ANY_MONEY, NOTHING_WANTED, PoolAnswer
from lightning_core.core.control.offers import PlacedNodes

CloudEvent = NodesSeen | CloudTrouble | Quoted


class CloudLevels:
    """The newest level of each; what controllers want is taken in here, and nowhere else.

    Attributes:
        nodes: Nodes that were seen last.
        wanted: Nodes that are wanted.
        allowance: Money that may be spent.
        spent: Money that the intervals of the market have cost.
        trouble: What is wrong now, by the part that has trouble.
        failed: Disabled controllers, which have raised, each with its error.
    """

    def __init__(self) -> None:
        self.nodes = NodesSeen()
        self.wanted, self.allowance, self.spent = NOTHING_WANTED, ANY_MONEY, 0.0
        self.trouble: dict[CloudPart, str] = {}
        self.failed: dict[Asker, str] = {}

    @property
    def money(self) -> float | None:
        """Money that is left; None for any."""
        return None if self.allowance.money is None else self.allowance.money - self.spent

    def changes(self, event: CloudEvent) -> bool:
        """Return whether an event is news, for a pool that has use for it."""
        match event:
            case NodesSeen():
                return event != self.nodes
            case CloudTrouble(part, words):
                return self.trouble.get(part, "") != words
            case Quoted():
                return True

    def take(self, event: CloudEvent) -> None:
        """Take in what was seen; quotes are the market's alone."""
        match event:
            case NodesSeen():
                self.nodes = event
            case CloudTrouble(part, ""):
                self.trouble.pop(part, None)
            case CloudTrouble(part, words):
                self.trouble[part] = words

    def answer(self, answer: PoolAnswer) -> None:
        """Take in what a controller wants."""
        match answer:
            case NodesWanted():
                self.wanted = answer
            case Allowance():
                self.allowance = answer
            case IntervalEnded():
                self.spent += answer.cost

    def to_dict(self) -> dict[str, Any]:
        """Return a description for people, as JSON values."""
        return {
            "spot": len(self.nodes.spot), "on_demand": len(self.nodes.on_demand), "warm": self.nodes.warm,
            "wanted_spot": self.wanted.spot, "wanted_on_demand": self.wanted.on_demand,
            "seen_in": _in_words(self.nodes.places), "wanted_in": _in_words(self.wanted.places),
            "reason": str(self.wanted.reason), "spent": self.spent, "money": self.money,
            "trouble": {str(part): words for part, words in (self.trouble | self.failed).items()},
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return what is known as JSON values."""
        return {
            "nodes": encode_event(self.nodes),
            "answers": encode_answers([self.wanted, self.allowance]),
            "spent": self.spent,
            "trouble": {str(part): words for part, words in self.trouble.items()},
            "failed": {str(by): words for by, words in self.failed.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""
        nodes, (wanted, allowance) = decode_event(state["nodes"]), decode_answers(state["answers"])
        if not (isinstance(nodes, NodesSeen) and isinstance(wanted, NodesWanted) and isinstance(allowance, Allowance)):
            raise ValueError("nodes, wanted ones and the allowance must be saved")
        self.nodes, self.wanted, self.allowance = nodes, wanted, allowance
        self.spent = float(state["spent"])
        self.trouble = {CloudPart(part): str(words) for part, words in state["trouble"].items()}
        self.failed = {Asker(by): str(words) for by, words in state["failed"].items()}


def _in_words(places: Sequence[PlacedNodes]) -> list[str]:
    """Return where nodes are, a text for each offer that has some."""
    return [
        f"{place.name}: {place.spot} spot and {place.on_demand} on-demand"
        for place in places
        if place.spot or place.on_demand
    ]
