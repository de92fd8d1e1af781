"""A scheduler's view of the cloud: existing nodes, requested nodes, and the money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from lightning_core.core.control.cloud import (
    ANY_MONEY,
    NOTHING_WANTED,
    PoolAnswer,
    places_from_lists,
    wanted_from_list,
    wanted_to_list,
)
from lightning_core.core.control.offers import PlacedNodes
from lightning_core.core.reasons import reason_from_list

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
            "nodes": [
                list(self.nodes.spot),
                list(self.nodes.on_demand),
                self.nodes.warm,
                list(map(list, self.nodes.places)),
                list(self.nodes.billed_spot),
                list(self.nodes.billed_on_demand),
            ],
            "wanted": wanted_to_list(self.wanted),
            "allowance": [self.allowance.money, list(self.allowance.reason)],
            "spent": self.spent,
            "trouble": {str(part): words for part, words in self.trouble.items()},
            "failed": {str(by): words for by, words in self.failed.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state that :meth:`state` returned."""
        spot, on_demand, warm, places, *billed = state["nodes"]
        billed_spot, billed_on_demand = map(tuple, billed)
        seen = places_from_lists(places)
        self.nodes = NodesSeen(tuple(spot), tuple(on_demand), warm, seen, billed_spot, billed_on_demand)
        self.wanted = wanted_from_list(state["wanted"])
        money, reason = state["allowance"]
        self.allowance = Allowance(money, reason_from_list(reason))
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
