"""What the ranks of one training tell one another of their memory, and what rank 0 makes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from lightning_core.agent.reporting.memory_meter import MAX_PERIOD, MIN_PERIOD, MemoryMeter
from lightning_core.agent.reporting.rank_memory import SOON, UNMEASURABLE, RankMemory, RankUse
from lightning_core.core.reported import MemoryUse
from tests.waiting import until


@dataclass
class Pair:
    """Rank 0, and what another rank answers."""

    own: int = 100
    other: RankUse = field(default_factory=lambda: RankUse(7, 1, 0, 0))
    now: float = 0.0
    first: RankMemory = field(init=False)

    def __post_init__(self) -> None:
        self.first = RankMemory(0, MemoryMeter(lambda: self.own, self.clock), self.clock)

    def clock(self) -> float:
        return self.now

    def ask(self) -> None:
        self.first.take([self.first.own(), self.other])

    def gap(self) -> float:
        """Seconds until the others are asked again."""
        self.ask()
        since = self.now
        while not self.first.due():
            self.now += 0.5
        return self.now - since


def test_nothing_is_told_before_all_ranks_have_measured() -> None:
    pair = Pair()
    assert not pair.first.due()  # it has not trained yet
    assert pair.first.look() is None
    assert pair.first.due()
    pair.ask()
    assert pair.first.look() is None
    pair.other = RankUse(7, 1, 300, 200)
    pair.ask()
    assert pair.first.look() == MemoryUse(300, 200)
    pair.other = RankUse(7, 1, 90, 40)
    pair.ask()
    assert pair.first.look() == MemoryUse(100, 100)


def test_a_rank_that_cannot_measure_is_not_waited_for() -> None:
    pair = Pair(other=RankUse(7, 1, UNMEASURABLE, 0))
    pair.first.look()
    pair.ask()
    assert pair.first.look() == MemoryUse(100, 100)
    assert RankMemory(0, MemoryMeter(None)).own()[2:] == (UNMEASURABLE, 0)


def test_others_are_asked_less_often_while_they_need_no_more() -> None:
    pair = Pair()
    pair.first.look()
    assert pair.gap() == SOON
    pair.other = RankUse(7, 1, 300, 200)
    assert [pair.gap() for _ in range(6)] == [MIN_PERIOD, 4.0, 8.0, 16.0, MAX_PERIOD, MAX_PERIOD]
    pair.other = RankUse(7, 1, 400, 200)
    assert pair.gap() == MIN_PERIOD


def test_only_ranks_on_the_same_node_may_be_its_own_processes() -> None:
    pair = Pair()
    node = pair.first.own().node
    pair.first.take([pair.first.own(), RankUse(node, 11, 1, 1), RankUse(node + 1, 12, 1, 1)])
    assert pair.first.other_ranks == {11}


def test_another_rank_measures_once_it_is_asked() -> None:
    readings = 0

    def read() -> int:
        nonlocal readings
        readings += 1
        return 500

    rank = RankMemory(1, MemoryMeter(read))
    try:
        assert rank.own()[1:] == (os.getpid(), 0, 0)
        assert not rank.due()
        assert readings == 0
        rank.take([])
        until(lambda: rank.own().peak == 500)
    finally:
        rank.close()
    assert readings == 1
