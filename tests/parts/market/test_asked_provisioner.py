"""Provisioners that fail, hang or bring the wrong nodes: each is asked once at a time, and people are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lightning_core.core.limits import MAX_TEXT
from lightning_core.parts.market.cloud.asked_provisioner import REPEAT, RETRY, STAY, AskedProvisioner, Troubles
from lightning_core.parts.market.cloud_events import CloudPart, CloudTrouble
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes

NONE, ONE, TWO = NodeCounts(), NodeCounts(1, 0), NodeCounts(2, 0)


class Provisioner:
    """Records what it is asked for, and then does something."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.requests: list[NodeCounts] = []
        self.at_once = self.most_at_once = 0
        self.then = then

    def scale_to(self, wanted: NodeCounts) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.requests.append(wanted)
        try:
            self.then()
        finally:
            self.at_once -= 1

    def close(self) -> None:
        pass


class Asked:
    """An asked provisioner, with a clock of its own and what people were told."""

    def __init__(self, provisioner: Any, make: Callable[[], Any] | None = None) -> None:
        self.provisioner, self.troubles, self.now = provisioner, Troubles(), 1000.0
        self.told: list[tuple[float, str]] = []
        self.asked = AskedProvisioner(make or (lambda: provisioner), self.troubles)

    async def bring(self, wanted: NodeCounts | None, there: NodeCounts = NONE, after: float = 0.0) -> None:
        """Look twice, some seconds later: a call that returns is noticed at the next look."""
        self.now += after
        for _ in range(2):
            self.asked.bring(wanted, there, self.now)
            if (call := self.asked._call) is not None:
                await asyncio.wait([call], timeout=0.05)
        for trouble in self.troubles.news(self.now):
            self.told.append((self.now, trouble.words))
            self.troubles.tell(trouble, self.now)

    @property
    def requests(self) -> list[NodeCounts]:
        requests: list[NodeCounts] = self.provisioner.requests
        return requests

    @property
    def words(self) -> list[str]:
        return [words for _, words in self.told]


def test_what_is_wanted_is_asked_for_once_per_change() -> None:
    async def story() -> None:
        asked = Asked(Provisioner())
        for _ in range(5):
            await asked.bring(ONE, NONE, 1.0)
        for _ in range(5):
            await asked.bring(ONE, ONE, 1.0)
        await asked.bring(TWO, ONE, 1.0)
        await asked.bring(NONE, ONE, 0.1)
        await asked.bring(NONE, NONE, 10 * REPEAT)
        assert asked.requests == [ONE, TWO, NONE]
        assert asked.words == [""]

    asyncio.run(story())


def test_what_an_earlier_provisioner_brought_stays_until_it_is_known_what_is_wanted() -> None:
    async def story() -> None:
        asked = Asked(Provisioner())
        for _ in range(5):
            await asked.bring(None, TWO, REPEAT)
        assert asked.requests == []
        await asked.bring(TWO, TWO)  # it has not been asked by this process
        assert asked.requests == [TWO]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (NodeCounts(3, 0), "2 spot and 0 on-demand nodes are wanted, and 3 spot and 0 on-demand nodes are there"),
        (NodeCounts(1, 0), "2 spot and 0 on-demand nodes are wanted, and 1 spot and 0 on-demand nodes are there"),
        (NodeCounts(0, 2), "2 spot and 0 on-demand nodes are wanted, and 0 spot and 2 on-demand nodes are there"),
        (NodeCounts(0, 0), "2 spot and 0 on-demand nodes are wanted, and 0 spot and 0 on-demand nodes are there"),
    ],
    ids=["too many", "too few", "the wrong kind", "none"],
)
def test_a_provisioner_that_brings_other_nodes_is_asked_again_each_minute_and_people_are_told_once(
    there: NodeCounts, words: str
) -> None:
    async def story() -> None:
        asked = Asked(Provisioner())
        for _ in range(int(3.5 * REPEAT)):
            await asked.bring(TWO, there, 1.0)
        assert asked.requests == [TWO] * 4
        assert asked.words == [words]
        assert asked.told[0][0] - 1000.0 == pytest.approx(REPEAT, abs=3)
        await asked.bring(TWO, TWO, 1.0)
        assert asked.words == [words, ""]

    asyncio.run(story())


def test_a_provisioner_that_raises_is_asked_again_and_people_are_told_once() -> None:
    errors = iter([RuntimeError("no\nroom in the zone"), KeyError("zone"), None])

    def fail() -> None:
        if (error := next(errors)) is not None:
            raise error

    async def story() -> None:
        asked = Asked(Provisioner(fail))
        for _ in range(4 * int(RETRY)):
            await asked.bring(TWO, NONE, 1.0)
        assert asked.requests == [TWO] * 3
        assert asked.words == ["RuntimeError: no room in the zone"]
        await asked.bring(TWO, TWO, 1.0)
        assert asked.words == ["RuntimeError: no room in the zone", ""]

    asyncio.run(story())


def test_a_provisioner_that_cannot_be_made_is_made_later_and_people_are_told() -> None:
    made = Provisioner()
    tries = iter([False, False, True])

    def make() -> Provisioner:
        if not next(tries):
            raise ValueError("this Ray has no autoscaler")
        return made

    async def story() -> None:
        asked = Asked(made, make)
        for _ in range(4 * int(RETRY)):
            await asked.bring(TWO, NONE, 1.0)
        assert asked.words == ["ValueError: this Ray has no autoscaler"]
        assert asked.requests == [TWO]

    asyncio.run(story())


def waits(event: threading.Event) -> None:
    event.wait(60)


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_provisioner_that_hangs_is_never_asked_twice_at_once_and_then_for_the_newest(hangs: threading.Event) -> None:
    async def story() -> None:
        asked = Asked(Provisioner(lambda: waits(hangs)))
        await asked.bring(TWO)
        for wanted in (ONE, TWO, NONE) * 2:
            await asked.bring(wanted, NONE, REPEAT)
        assert asked.requests == [TWO]
        assert asked.words == [f"the provisioner has not answered for {REPEAT:g} s"]
        hangs.set()
        await asked.bring(ONE, NONE, 1.0)
        await asked.bring(ONE, ONE, 1.0)
        assert asked.requests == [TWO, ONE]
        assert asked.provisioner.most_at_once == 1
        assert asked.words[1:] == [""]

    asyncio.run(story())


def test_a_look_at_a_provisioner_that_hangs_returns_at_once(hangs: threading.Event) -> None:
    async def story() -> None:
        asked = Asked(Provisioner(lambda: waits(hangs)))
        await asked.bring(TWO)
        began = asyncio.get_running_loop().time()
        for _ in range(100):
            asked.asked.bring(NONE, NONE, asked.now)
        assert asyncio.get_running_loop().time() - began < 5
        hangs.set()  # the loop waits for its threads

    asyncio.run(story())


def test_the_error_of_a_provisioner_that_fails_in_its_own_thread_is_told() -> None:
    class Command(Provisioner):
        trouble = ""

    async def story() -> None:
        asked = Asked(made := Command())
        await asked.bring(TWO)
        made.trouble = "cannot request 2 spot and 0 on-demand nodes: sh: exit code 3"
        await asked.bring(TWO, NONE, 1.0)
        await asked.bring(TWO, NONE, REPEAT)
        assert asked.words == [made.trouble]
        made.trouble = ""
        await asked.bring(TWO, TWO, 1.0)
        assert asked.words[1:] == [""]

    asyncio.run(story())


def test_words_that_differ_each_time_are_told_seldom() -> None:
    troubles, told = Troubles(), list[CloudTrouble]()
    for second in range(int(2.5 * STAY)):
        troubles.set(CloudPart.QUOTES, f"exit code 1: at second {second}")
        for trouble in troubles.news(float(second)):
            told.append(trouble)
            troubles.tell(trouble, float(second))
    assert len(told) == 3
    troubles.set(CloudPart.QUOTES, "")
    assert troubles.news(1000.0) == [CloudTrouble(CloudPart.QUOTES, "")]


def test_words_of_any_length_are_told() -> None:
    troubles = Troubles()
    troubles.set(CloudPart.NODES, "x" * 10**6)
    [trouble] = troubles.news(0.0)
    assert len(trouble.words) == MAX_TEXT
    assert trouble.words.endswith("x...")


def test_a_part_of_which_nothing_is_known_is_not_told_of() -> None:
    """An earlier provisioner may have told of a trouble that lasts."""
    troubles = Troubles()
    assert troubles.news(0.0) == []
    troubles.set(CloudPart.NODES, "")
    assert troubles.news(0.0) == [CloudTrouble(CloudPart.NODES, "")]


def test_nodes_in_another_zone_are_not_those_that_are_wanted() -> None:
    calls = list[tuple[NodeCounts, tuple[PlacedNodes, ...]]]()

    class Zoned(Provisioner):
        def scale_to(self, wanted: NodeCounts, places: Any = ()) -> None:
            calls.append((wanted, tuple(places)))

    east, west = (PlacedNodes("east", "", 1, 0),), (PlacedNodes("west", "", 1, 0),)

    async def story() -> None:
        asked = Asked(Zoned())
        for wanted, there in ((east, ()), (east, east), (west, east), (west, east), ((), west)):
            asked.now += REPEAT + 1
            for _ in range(2):
                asked.asked.bring(ONE, ONE, asked.now, wanted, there)
                if (call := asked.asked._call) is not None:
                    await asyncio.wait([call], timeout=0.05)
            asked.told += [(asked.now, trouble.words) for trouble in asked.troubles.news(asked.now + STAY)]
        assert calls == [(ONE, east), (ONE, west), (ONE, west), (ONE, ())]
        one = "1 spot and 0 on-demand nodes"
        words = f"{one} (1 and 0 in west) are wanted, and {one} (1 and 0 in east)"
        assert any(words in told for _, told in asked.told)

    asyncio.run(story())
