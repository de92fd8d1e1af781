"""The provisioner's actor without Ray: its scheduler, and what there is, are made up."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from lightning_core.cluster import nodes_back
from lightning_core.controllers import PublishedLevel
from lightning_core.core.parts import message_body
from lightning_core.core.reasons import Reason
from lightning_core.parts.market.cloud import asked_provisioner, provisioner_actor, quotes
from lightning_core.parts.market.cloud.cloud_spec import SIMULATED, CloudSpec
from lightning_core.parts.market.cloud.provisioner_actor import ProvisionerActor
from lightning_core.parts.market.cloud_events import MAX_NODES, CloudPart, CloudTrouble, NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from tests.cluster.test_pool_manager import Method
from tests.waiting import until_async

LEASE = 0.5
GOOD = '{"price": 0.4, "available": 3}'


class Provisioner:
    """Brings what it is asked for at once."""

    def __init__(self, there: dict[str, str]) -> None:
        self.there, self.requests, self.closed = there, list[NodeCounts](), False
        self.hangs = threading.Event()
        self.hangs.set()
        self.brings: Callable[[NodeCounts], dict[str, str]] = named

    def scale_to(self, wanted: NodeCounts) -> None:
        self.requests.append(wanted)
        assert self.hangs.wait(60)
        there = self.brings(wanted)
        self.there.clear()
        self.there.update(there)

    def close(self) -> None:
        self.closed = True
        assert self.hangs.wait(60)


def named(counts: NodeCounts) -> dict[str, str]:
    return {f"spot-{n}": "spot" for n in range(counts.spot)} | {
        f"on-demand-{n}": "on-demand" for n in range(counts.on_demand)
    }


class World:
    """A scheduler that answers as it is told to, and the nodes that there are.

    Attributes:
        wanted: What the scheduler wants.
        away: Whether it does not answer.
        heard: What it was told.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.wanted, self.away = NodesWanted(0, 0, 0, Reason("market.no_nodes")), False
        self.began = time.monotonic()
        self.heard: list[Any] = []
        self.there: dict[str, str] = {}
        self.leaving: dict[str, str] = {}
        self.warm = 0
        self.provisioner = Provisioner(self.there)
        self.scheduler = SimpleNamespace(published=Method(self._want), event=Method(self._hear))
        for name, seconds in (
            ("NEWS_TIMEOUT", 0.02), ("REPLY_TIMEOUT", 0.3), ("AWAY_PAUSE", 0.01), ("ERROR_PAUSE", 0.01),
            ("LOOK_PAUSE", 0.01), ("GIVE_BACK_TIMEOUT", 1.0), ("CLOSE_TIMEOUT", 0.3),
        ):  # fmt: skip
            monkeypatch.setattr(provisioner_actor, name, seconds)
        monkeypatch.setattr(asked_provisioner, "REPEAT", 0.4)
        monkeypatch.setattr(asked_provisioner, "RETRY", 0.1)
        world = self
        monkeypatch.setattr(ProvisionerActor, "_scheduler", lambda _: world.scheduler)
        monkeypatch.setattr(ProvisionerActor, "_listed", lambda _: dict(world.there))
        monkeypatch.setattr(ProvisionerActor, "_billed", lambda _: (world.there | world.leaving, {"s": "mark"}))
        monkeypatch.setattr(ProvisionerActor, "_make", lambda _: world.provisioner)

        async def warm(_: ProvisionerActor) -> int:
            return world.warm

        monkeypatch.setattr(ProvisionerActor, "_warm", warm)

    def _want(self, by: str, version: int, timeout: float) -> Any:
        assert by == "market"
        if self.away:
            return ActorUnavailableError("cut off", None)
        answer = time.monotonic() - self.began, PublishedLevel(self.wanted.version, message_body(self.wanted))
        return _later(answer, timeout) if version == self.wanted.version else answer

    def _hear(self, event: Any) -> Any:
        if self.away:
            return ActorUnavailableError("cut off", None)
        self.heard.append(event.decoded())
        return None

    def want(self, spot: int, on_demand: int = 0) -> None:
        self.wanted = NodesWanted(self.wanted.version + 1, spot, on_demand, Reason("market.no_nodes"))

    def start(self, *, quotes_by: str | None = None, interval: float = 0.2, lease: float = LEASE) -> ProvisionerActor:
        """Start the actor, in the running event loop; it reads its cloud from the folder."""
        trace = self.folder / "market.csv"
        trace.write_text("available,price\n" + "3,0.4\n" * 50)
        terms = {"interval": interval, "trace": str(trace)} if quotes_by is None else None
        cloud = CloudSpec("pool", "device", SIMULATED, interval, terms, quotes_by, lease=lease)
        cloud.save(self.folder)
        return ProvisionerActor("scheduler", "pool-manager", str(self.folder))

    @property
    def requests(self) -> list[NodeCounts]:
        return self.provisioner.requests

    def told(self, kind: Any) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]

    def troubles(self, part: CloudPart) -> list[str]:
        return [event.words for event in self.told(CloudTrouble) if event.part is part]


def _later(answer: Any, seconds: float) -> asyncio.Future[Any]:
    return asyncio.ensure_future(asyncio.sleep(seconds, answer))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    tmp_path.chmod(0o700)
    return World(tmp_path, monkeypatch)


def kill(actor: ProvisionerActor) -> None:
    """End what the actor does, as a kill would."""
    for task in actor._tasks:
        task.cancel()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def and_end() -> None:
        await story()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(and_end())


# ------------------------------------------------------------------------------------------------ nodes


def test_what_is_wanted_is_asked_for_once_per_change_and_what_there_is_is_told(world: World) -> None:
    async def story() -> None:
        world.start()
        world.want(2, 1)
        await until_async(lambda: world.there)
        world.warm = 3
        await until_async(lambda: NodesSeen(("spot-0", "spot-1"), ("on-demand-0",), 3) in world.heard)
        world.want(1, 0)
        await until_async(lambda: NodesSeen(("spot-0",), (), 3) in world.heard)
        seen = len(world.told(NodesSeen))
        await asyncio.sleep(1.0)
        assert world.requests[-2:] == [NodeCounts(2, 1), NodeCounts(1, 0)]
        assert set(world.requests[:-2]) <= {NodeCounts()}
        assert len(world.told(NodesSeen)) == seen  # what has not changed is not told again
        assert world.troubles(CloudPart.NODES) == [""]

    run(story)


def test_nodes_that_start_or_leave_are_told_as_billed(world: World) -> None:
    """A node has one name on the bill from its launch on: its mark, if it has one."""

    async def story() -> None:
        world.leaving = {"mark": "spot", "leaving": "on-demand", "s": "spot"}
        world.start()
        await until_async(lambda: NodesSeen(billed_spot=("mark",), billed_on_demand=("leaving",)) in world.heard)
        world.provisioner.brings = lambda _: {"s": "spot"}
        world.want(1)
        await until_async(lambda: NodesSeen(("mark",), (), 0, (), (), ("leaving",)) in world.heard)
        world.leaving = {}
        await until_async(lambda: world.told(NodesSeen)[-1] == NodesSeen(("mark",)))

    run(story)


def test_nodes_that_go_are_asked_for_again_and_people_are_told_until_it_is_over(world: World) -> None:
    async def story() -> None:
        world.start()
        world.want(2)
        await until_async(lambda: len(world.there) == 2)
        world.provisioner.brings = lambda _: named(NodeCounts(1, 0))
        del world.there["spot-1"]
        words = "2 spot and 0 on-demand nodes are wanted, and 1 spot and 0 on-demand nodes are there"
        await until_async(lambda: words in world.troubles(CloudPart.NODES))
        world.provisioner.brings = named
        await until_async(lambda: world.troubles(CloudPart.NODES)[-1] == "" and len(world.there) == 2)
        assert world.troubles(CloudPart.NODES)[-2:] == [words, ""]

    run(story)


@pytest.mark.parametrize(
    ("brings", "seen"),
    [
        (lambda _: named(NodeCounts(MAX_NODES, 3)), lambda told: len(told.spot) == MAX_NODES // 2),
        (lambda _: named(NodeCounts(1, 0)), lambda told: len(told.spot) == 1),
        (lambda _: named(NodeCounts(0, 2)), lambda told: len(told.on_demand) == 2),
        (lambda _: {"a": "", "b": "other"}, lambda told: told == NodesSeen()),
    ],
    ids=["far too many", "too few", "the wrong kind", "without a kind"],
)
def test_whatever_nodes_come_the_scheduler_is_told_and_people_too(
    world: World, brings: Callable[[NodeCounts], dict[str, str]], seen: Callable[[NodesSeen], bool]
) -> None:
    async def story() -> None:
        world.provisioner.brings = brings
        world.start()
        world.want(2)
        await until_async(lambda: any(map(seen, world.told(NodesSeen))))
        await until_async(lambda: any("are wanted, and" in words for words in world.troubles(CloudPart.NODES)))
        await until_async(lambda: world.requests.count(NodeCounts(2, 0)) > 2)  # asked for again

    run(story)


@pytest.mark.promise("R25")
def test_a_provisioner_that_hangs_delays_neither_the_lease_nor_what_is_told_and_is_not_asked_twice(
    world: World,
) -> None:
    async def story() -> None:
        world.want(1)
        actor = world.start()
        await until_async(lambda: world.there)
        world.provisioner.hangs.clear()
        world.want(2)
        await until_async(lambda: world.requests[-1] == NodeCounts(2, 0))
        asked = len(world.requests)
        await until_async(lambda: any("has not answered" in words for words in world.troubles(CloudPart.NODES)))
        world.there["spot-9"] = "spot"
        await until_async(lambda: any("spot-9" in told.spot for told in world.told(NodesSeen)))
        await until_async(lambda: not actor._lease.is_over(time.monotonic()))  # it is renewed all the while
        assert len(world.requests) == asked
        world.provisioner.hangs.set()
        await until_async(lambda: len(world.there) == 2 and world.troubles(CloudPart.NODES)[-1] == "")

    run(story)


def test_giving_back_takes_no_longer_than_it_may_and_says_whether_nodes_are_left(world: World) -> None:
    async def story() -> None:
        world.want(2)
        actor = world.start()
        await until_async(lambda: len(world.there) == 2)
        world.provisioner.hangs.clear()
        began = time.monotonic()
        assert await actor.give_back() is False
        assert time.monotonic() - began < 10
        world.provisioner.hangs.set()

    run(story)


def test_giving_back_closes_the_provisioner(world: World) -> None:
    async def story() -> None:
        world.want(2)
        actor = world.start()
        await until_async(lambda: len(world.there) == 2)
        assert await actor.held() == (NodeCounts(2, 0), False)
        assert await actor.give_back() is True
        assert (world.requests[-1], world.there, world.provisioner.closed) == (NodeCounts(), {}, True)

    run(story)


def test_giving_back_names_the_nodes_that_the_provisioner_has_not_ended(world: World) -> None:
    async def story() -> None:
        world.want(1)
        world.provisioner.remaining = lambda: ["lc-1"]  # type: ignore[attr-defined]
        world.provisioner.close_seconds = 30.0  # type: ignore[attr-defined]
        actor = world.start()
        await until_async(lambda: len(world.there) == 1)
        before = provisioner_actor.GIVE_BACK_TIMEOUT - provisioner_actor.CLOSE_TIMEOUT
        assert await actor.patience() == before + 30.0
        assert await actor.give_back() is False
        assert await actor.remaining() == ["lc-1"]

    run(story)


def test_giving_back_waits_for_a_provisioner_that_is_being_made_and_closes_it(world: World) -> None:
    """Else an actor that has just been restarted would leave what an earlier one has launched."""

    async def story() -> None:
        actor = world.start()
        assert actor._provisioner.provisioner is None
        assert await actor.give_back() is True
        assert world.provisioner.closed

    run(story)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["lc-1", "lc-2"], "check your cloud console: lc-1, lc-2"), ([], "check your cloud console"), (None, "console")],
)
def test_the_warning_about_nodes_that_are_left_names_them(
    names: list[str] | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_: Any, timeout: float) -> Any:
        if names is None:
            raise ActorDiedError()
        return names

    monkeypatch.setattr(ray, "get", get)
    actor = SimpleNamespace(remaining=SimpleNamespace(remote=lambda: None))
    assert nodes_back.still_billed(actor).endswith(words)


@pytest.mark.parametrize(
    ("answers", "done"),
    [
        ([True], True),
        ([False], False),
        ([ActorUnavailableError("cut off", None), ActorDiedError(), True], True),  # it is being restarted
        ([GetTimeoutError()] * 1000, False),
    ],
)
def test_a_provisioner_that_is_being_restarted_is_asked_again_to_give_nodes_back(
    world: World, answers: list[Any], done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(answers)

    def get(call: str, timeout: float) -> Any:
        if call == "patience":
            return 0.0
        if isinstance(answer := next(left), Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(nodes_back, "GIVE_BACK_TIMEOUT", 2.0)
    monkeypatch.setattr(nodes_back, "REPLY_TIMEOUT", 0.0)
    calls = {name: SimpleNamespace(remote=lambda name=name: name) for name in ("patience", "give_back")}
    actor = SimpleNamespace(**calls)
    assert nodes_back.give_nodes_back(actor) is done


# ------------------------------------------------------------------------------------------------ the lease


@pytest.mark.promise("R25")
def test_without_an_answer_within_the_lease_all_nodes_are_given_back_and_then_asked_for_anew(world: World) -> None:
    async def story() -> None:
        world.want(2)
        world.start()
        await until_async(lambda: len(world.there) == 2)
        world.away, gone = True, time.monotonic()
        await until_async(lambda: not world.there)
        assert LEASE - 0.1 < time.monotonic() - gone < LEASE + 5
        assert world.requests[-1] == NodeCounts()
        world.away = False
        await until_async(lambda: len(world.there) == 2)
        assert world.requests[-2:] == [NodeCounts(), NodeCounts(2, 0)]
        await until_async(lambda: world.told(NodesSeen)[-1] == NodesSeen(("spot-0", "spot-1"), (), 0))

    run(story)


@pytest.mark.promise("R25")
def test_a_scheduler_that_is_away_for_less_than_the_lease_costs_no_node(world: World) -> None:
    async def story() -> None:
        world.want(2)
        world.start(lease=30.0)
        await until_async(lambda: len(world.there) == 2)
        for _ in range(3):
            world.away = True
            await asyncio.sleep(0.2)
            world.away = False
            await asyncio.sleep(0.1)
        assert len(world.there) == 2
        assert world.requests.count(NodeCounts(2, 0)) == 1
        assert NodeCounts() not in world.requests[1:]

    run(story)


@pytest.mark.promise("R24")
def test_a_restarted_provisioner_leaves_the_nodes_of_the_earlier_one_until_the_pool_has_answered(world: World) -> None:
    async def story() -> None:
        world.want(2)
        before = world.start(lease=30.0)
        await until_async(lambda: len(world.there) == 2)
        kill(before)
        world.away = True
        world.requests.clear()
        world.start(lease=30.0)
        await asyncio.sleep(0.3)
        assert (world.requests, len(world.there)) == ([], 2)
        world.want(1)
        world.away = False
        await until_async(lambda: len(world.there) == 1)
        assert world.requests == [NodeCounts(1, 0)]

    run(story)


@pytest.mark.promise("R25")
def test_a_restarted_provisioner_gives_nodes_back_if_the_pool_does_not_answer_within_the_lease(world: World) -> None:
    async def story() -> None:
        world.there.update(named(NodeCounts(2, 1)))  # of an earlier one
        world.away, began = True, time.monotonic()
        world.start()
        await until_async(lambda: not world.there)
        assert LEASE - 0.1 < time.monotonic() - began < LEASE + 5
        assert world.requests == [NodeCounts()]

    run(story)


def test_a_restarted_provisioner_tells_that_a_trouble_of_the_earlier_one_is_over(world: World) -> None:
    async def story() -> None:
        world.start()
        await until_async(lambda: world.troubles(CloudPart.NODES) == [""])

    run(story)


# ------------------------------------------------------------------------------------------------ quotes


def command(world: World, code: str) -> str:
    script = world.folder / "quotes.py"
    script.write_text(code)
    return f"{sys.executable} -S {script}"


def test_a_recording_is_told_of_interval_by_interval_and_one_ahead(world: World) -> None:
    async def story() -> None:
        world.start()
        await until_async(lambda: len(world.told(Quoted)) > 5)
        numbers = [quote.interval for quote in world.told(Quoted)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert world.told(Quoted)[0].price == 0.4

    run(story)


def test_the_newest_offer_holds_for_a_provisioner_that_is_made_late(world: World) -> None:
    """Otherwise a restart within an interval would bring spot nodes that are not on offer."""
    offers = list[int]()

    async def story() -> None:
        made = threading.Event()

        def slow(self: ProvisionerActor) -> Any:
            assert made.wait(60)
            self._simulated = SimpleNamespace(offer=lambda spot, _: offers.append(spot))  # type: ignore[assignment]
            self._simulated.offer(self._offers.available, ())  # type: ignore[union-attr]
            return world.provisioner

        world.monkeypatch.setattr(ProvisionerActor, "_make", slow)
        actor = world.start(quotes_by=command(world, f"print({GOOD!r})"), interval=600.0)
        await until_async(lambda: actor._offers is not None)
        assert offers == []
        made.set()
        await until_async(lambda: offers == [3])

    run(story)


# What the command does while a file is there, and what people are told then.
BAD = [
    ("hangs", "import time; time.sleep(60)", "no answer within 4 s"),
    ("fails", "sys.exit('the price list is gone')", "exit code 1: the price list is gone"),
    ("prints another form", "print('price: 0.4')", "must print"),
    ("prints too much", "while True: print('x' * 65536)", "printed more than 32,768 bytes"),
    ("prints nonsense", """print('{"price": 1e99, "available": -3}')""", "price must be 0 to 1,000,000,000"),
]


@pytest.mark.parametrize(("does", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_quote_is_told_once_and_the_last_one_stays_until_there_is_a_good_one(
    world: World, does: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotes, "QUOTE_TIMEOUT", 4.0 if "no answer" in words else 60.0)
    bad = world.folder / "bad"
    code = f"import os, sys\nif os.path.exists({str(bad)!r}):\n    {does}\nelse:\n    print({GOOD!r})\n"

    async def story() -> None:
        world.start(quotes_by=command(world, code))
        await until_async(lambda: len(world.told(Quoted)) > 1)
        assert world.troubles(CloudPart.QUOTES) == [""]
        bad.touch()
        await until_async(lambda: len(world.troubles(CloudPart.QUOTES)) == 2)
        quoted = len(world.told(Quoted))
        await asyncio.sleep(1.0)  # it is asked some times more
        assert len(world.told(Quoted)) <= quoted + 1
        assert words in world.troubles(CloudPart.QUOTES)[1]
        bad.unlink()
        await until_async(lambda: len(world.troubles(CloudPart.QUOTES)) == 3)
        await until_async(lambda: len(world.told(Quoted)) > quoted + 1)
        assert world.troubles(CloudPart.QUOTES)[2] == ""
        assert set(world.told(Quoted)) == {Quoted(0.4, 3)}

    run(story)


def test_a_quote_that_comes_late_delays_neither_nodes_nor_the_lease(world: World) -> None:
    async def story() -> None:
        actor = world.start(quotes_by=command(world, f"import time; time.sleep(1.5); print({GOOD!r})"))
        world.want(1)
        await until_async(lambda: world.there)
        assert not world.told(Quoted)
        await until_async(lambda: not actor._lease.is_over(time.monotonic()))  # it is renewed all the while
        await until_async(lambda: world.told(Quoted) == [Quoted(0.4, 3)])

    run(story)


def test_a_quote_made_while_the_scheduler_is_away_is_told_once_it_is_back(world: World) -> None:
    """The command is not run again for it: it may cost something."""
    runs = world.folder / "runs"
    code = f"open({str(runs)!r}, 'a').write('x')\nprint({GOOD!r})"

    async def story() -> None:
        world.away = True
        world.start(quotes_by=command(world, code), interval=600.0)
        await until_async(runs.exists)
        await asyncio.sleep(0.3)
        world.away = False
        await until_async(lambda: world.told(Quoted) == [Quoted(0.4, 3)])
        assert runs.read_text() == "x"

    run(story)


def test_a_damaged_cloud_is_an_error_at_once(world: World) -> None:
    (world.folder / "cloud.json").write_text(json.dumps({"pool": "pool"}))

    async def story() -> None:
        with pytest.raises(ValueError, match="is not the cloud of a pool"):
            ProvisionerActor("scheduler", "pool-manager", str(world.folder))

    asyncio.run(story())
