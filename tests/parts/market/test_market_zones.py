"""A market of several zones: where its nodes are wanted, interval by interval and when they are lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.codec import decode_answers
from lightning_core.core.control import part_objects
from lightning_core.parts.market.cloud_events import NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.cloud_line import cloud_line
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer, PlacedNodes
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.checks import saved_and_restored
from tests.parts.market.market_pool import MarketPool
from tests.parts.market.market_world import CACHES, World, controller, elastic

EAST, WEST = "us-east-1a", "us-west-2b"


@dataclass
class Zones(World):
    """A cloud of several zones: a list of counts, interval by interval, and a price for each."""

    counts: dict[str, list[int]] = field(default_factory=dict)
    prices: dict[str, list[float]] = field(default_factory=dict)
    egress: float = 0.0
    there: dict[str, PlacedNodes] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Zones that have lost their spot nodes within an interval, unknown to quotes."""

    @property
    def nodes(self) -> NodesSeen:
        seen = super().nodes
        return NodesSeen(seen.spot, seen.on_demand, seen.warm, tuple(self.there.values()))

    def offers(self, interval: int) -> list[Offer]:
        row = min(interval, *(len(counts) - 1 for counts in self.counts.values()))
        return [Offer(zone, "", self.prices[zone][row], counts[row]) for zone, counts in self.counts.items()]

    def quote(self, run: MarketController) -> None:
        while self._quoted < int(self.now // 10) + 2:
            self.tell(run, Quoted.of(self.offers(self._quoted), self._quoted, self.egress))
            self._quoted += 1

    def obey(self) -> None:
        offered = {offer.zone: offer.available for offer in self.offers(int(self.now // 10))}
        wanted = self.wanted[-1].places if self.wanted else ()
        self.there = {
            place.zone: PlacedNodes(place.zone, "", self._come(place, offered[place.zone]), place.on_demand)
            for place in wanted
        }  # fmt: skip
        there = self.there.values()
        self.present = NodeCounts(sum(place.spot for place in there), sum(place.on_demand for place in there))

    def _come(self, place: PlacedNodes, offered: int) -> int:
        return 0 if place.zone in self.lost else min(place.spot, offered)

    def live(self, run: MarketController, seconds: float, step: float = 0.5) -> None:
        """Let time pass; spot nodes go when an interval begins, before the market hears of it."""
        for _ in range(int(seconds / step)):
            self.obey()
            super().live(run, step, step)

    @property
    def places(self) -> list[tuple[str, ...]]:
        """Zones in which spot nodes were wanted, each time that it has changed."""
        zones = [tuple(place.zone for place in wanted.places if place.spot) for wanted in self.wanted]
        return [zone for before, zone in zip([None, *zones], zones, strict=False) if zone != before and zone]


def zones(batches: int, deadline: float, east: list[int], west: list[int], **more: Any) -> Zones:
    prices = more.pop("prices", {EAST: [0.4] * 40, WEST: [0.4] * 40})
    return Zones({"a": elastic("a", batches, deadline)}, counts={EAST: east, WEST: west}, prices=prices, **more)


def fixed(**more: Any) -> MarketController:
    return controller(initial_throughput=1.0, **more)


def test_a_job_comes_back_in_the_other_zone_and_stays_there() -> None:
    world, run = zones(300, 200.0, [4, 4, 4, 0, 0, 4, 4, 4, 4], [0, 0, 0, 4, 4, 4, 4, 4, 4]), fixed()
    world.live(run, 78.0)
    assert world.places == [(EAST,), (WEST,)]
    assert world.held[:7] == [(4, 0)] * 7
    assert sum(place.spot for place in world.wanted[-1].places) == world.wanted[-1].spot


def test_a_move_to_another_region_pays_its_egress_once() -> None:
    first, second = [], []
    for egress in (0.0, 0.5):
        counts = [4, 4, 4, 0, 0, 4, 4, 4, 4], [0, 0, 0, 4, 4, 4, 4, 4, 4]
        world, run = zones(300, 200.0, *counts, egress=egress), fixed()
        world.live(run, 90.0)
        assert world.places == [(EAST,), (WEST,)]
        assert not world.present.all
        first.append(world.spent)
        world.submit(run, elastic("b", 40, 30.0))  # its own checkpoints are nowhere yet
        world.live(run, 30.0)
        assert not world.is_active("b")
        second.append(world.spent - first[-1])
    assert first[1] - first[0] == pytest.approx(0.5)
    assert second[1] == pytest.approx(second[0])


def test_money_for_a_move_to_another_region_is_kept_back() -> None:
    """The nodes of an interval cost 1.6: they are lost after three of them, when 1.2 of 6 are left."""
    for egress, intervals in ((0.0, 3), (1.0, 3), (2.0, 2)):
        world = zones(300, 200.0, [4] * 3 + [0] * 9, [0] * 3 + [2] * 9, egress=egress)
        run = fixed(budget=6.0)
        world.live(run, 29.0)
        assert sum(nodes.all for nodes in world.held) + world.present.all == 4 * intervals
        world.live(run, 60.0)
        assert world.spent <= 6.0


def test_nodes_that_are_lost_within_an_interval_are_wanted_elsewhere_at_once() -> None:
    world, run = zones(300, 200.0, [4] * 20, [4] * 20), fixed()
    world.live(run, 14.0)
    world.lost.add(EAST)
    world.live(run, 1.0)
    assert world.places == [(EAST,), (WEST,)]
    assert str(world.wanted[-1].reason) == "spot nodes preempted; requesting them in another zone"
    assert world.there == {WEST: PlacedNodes(WEST, "", 4, 0)}
    world.lost.clear()
    world.live(run, 20.0)
    assert world.places == [(EAST,), (WEST,)]


def test_nodes_that_are_lost_everywhere_are_awaited_where_they_were() -> None:
    world, run = zones(100, 300.0, [4] * 20, [0] * 20), fixed()
    world.live(run, 14.0)
    world.lost.add(EAST)
    world.live(run, 4.0)
    assert world.present == (0, 0)
    assert world.places == [(EAST,)]


@pytest.mark.parametrize(
    ("deadline", "egress", "moves"),
    [(200.0, 0.0, True), (200.0, 9.0, False), (89.0, 0.0, False)],
    ids=["pays", "costs more than it saves", "has no time for it"],
)
def test_nodes_move_to_a_cheaper_zone_if_that_pays_and_there_is_time(
    deadline: float, egress: float, moves: bool
) -> None:
    prices = {EAST: [0.4] * 40, WEST: [0.9] * 3 + [0.1] * 37}
    world, run = zones(330, deadline, [4] * 40, [4] * 40, prices=prices, egress=egress), fixed()
    world.live(run, 50.0)
    assert world.places == ([(EAST,), (WEST,)] if moves else [(EAST,)])
    assert [row.price for row in world.rows[:4]] == [0.4, 0.4, 0.4, 0.1 if moves else 0.4]


def test_no_more_is_spent_than_there_is_wherever_the_nodes_are() -> None:
    """Nodes for 0.8 at most in an interval: two in the cheap zone, but it has one, so that the other costs more."""
    prices = {EAST: [0.2] * 40, WEST: [0.7] * 40}
    world, run = zones(100, 300.0, [1] * 40, [4] * 40, prices=prices), fixed(budget=0.8)
    world.live(run, 9.0)
    assert not world.present.all


class ZonePool(MarketPool):
    """A pool on a market of two zones, whose nodes come where they are wanted, in a zone that has not lost them."""

    lost = ""

    def quote_zones(self, east: int, west: int) -> None:
        self.tell(Quoted.of([Offer(EAST, "", 0.4, east), Offer(WEST, "", 0.4, west)], egress=0.1))

    def see(self, spot: int, on_demand: int) -> None:
        places = [place for place in self.market.wanted.places if place.zone != self.lost]
        spot, on_demand = sum(place.spot for place in places), sum(place.on_demand for place in places)
        names = tuple(f"s{k}" for k in range(spot)), tuple(f"d{k}" for k in range(on_demand))
        self.tell(NodesSeen(*names, warm=spot + on_demand, places=tuple(places)))


@pytest.mark.promise("R28")
@pytest.mark.parametrize("stops", [False, True])
def test_a_journal_with_zones_replays_and_a_pool_that_was_stopped_wants_the_same(stops: bool, tmp_path: Path) -> None:
    made = ZonePool(path=tmp_path / "journal.db")
    made.quote_zones(4, 4)
    made.submit(elastic("a", 1000, 1200.0))
    for lost, east, west in (("", 4, 4), (EAST, 4, 4), ("", 0, 4), (WEST, 4, 0)):
        made.lost = lost
        made.live(14.0)
        made.quote_zones(east, west)
        if stops:
            made.host.close()
            made.open()
    where = f"in {EAST}: 4 spot and 0 on-demand"
    line = cloud_line(made.market.describe())
    assert f"4 spot and 0 on-demand nodes {where}, of 4 and 0 wanted {where} (" in line
    made.host.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        for again in (replay(journal), replay(journal, whole=True)):
            assert again.scheduler.describe_controllers() == made.scheduler.describe_controllers()
            assert again.scheduler.state()["controllers"] == made.scheduler.state()["controllers"]
        answers = [answer for entry in journal.entries() for answer in decode_answers(entry.answers)]
    zones = [[place.zone for place in one.places] for one in part_objects(answers) if isinstance(one, NodesWanted)]
    assert [zone for zone, _ in groupby(zones)] == [[EAST], [WEST], [EAST]]


def test_what_is_known_of_zones_is_saved_and_restored() -> None:
    world, run = zones(300, 200.0, [4, 4, 0, 4, 4, 4], [0, 2, 4, 4, 0, 4], egress=0.1), fixed()
    other, twin = zones(300, 200.0, [4, 4, 0, 4, 4, 4], [0, 2, 4, 4, 0, 4], egress=0.1), fixed()
    for second in range(60):
        if second == 36:
            world.lost, other.lost = {WEST}, {WEST}
        world.live(run, 1.0)
        other.live(twin, 1.0)
        run = saved_and_restored(run, fixed(), CACHES)
    assert world.wanted == other.wanted
    assert len(world.places) >= 3
