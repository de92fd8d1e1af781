"""Plans that decide within an interval: at a loss, or when what is on offer has changed, unless nodes are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import IntArray
from lightning_core.core.control import Ask, part_objects
from lightning_core.core.events import Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.cloud_events import NodesWanted, Quoted
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.checks import saved_and_restored
from lightning_core.testing.controller_conformance import check_controller, random_events
from tests.parts.market.market_world import CACHES, World, controller, elastic


class Follows:
    """All spot nodes on offer for at most 0.42; without any, one on-demand node."""

    horizon = 0
    decides_on_events = True

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        spot = np.minimum(observation.available, 4) * (observation.price <= 0.42)
        return spot, (spot == 0).astype(np.int64)


class Keeps(Follows):
    """The same in intervals."""

    decides_on_events = False


class Watched(Simulation):
    """A simulation of which the wanted nodes are kept: when, how many of each kind, and why."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.wanted: list[tuple[float, int, int, str]] = []
        super().__init__(*arguments, **more)

    def _hear(self, answers: Any) -> None:
        wanted = [one for one in part_objects(answers) if isinstance(one, NodesWanted)]
        self.wanted += [(self._queue.now, one.spot, one.on_demand, one.reason.code) for one in wanted]
        super()._hear(answers)


@pytest.fixture(autouse=True)
def policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPOT_POLICIES, "follows", Follows)
    monkeypatch.setitem(SPOT_POLICIES, "keeps", Keeps)


def offered(price: float, available: int) -> Quoted:
    return Quoted(price, available, 1.0)


def begun(policy: str, available: int) -> tuple[World, MarketController]:
    """Return a world in the middle of its first interval of ten seconds, and its market."""
    world, run = World({"a": elastic("a", 300, 400.0)}), controller(policy, initial_throughput=1.0)
    world.tell(run, offered(0.4, available))
    world.live(run, 3.0)
    return world, run


@pytest.mark.parametrize(
    ("was", "quote", "wanted"),
    [
        (2, offered(0.4, 4), (4, 0)),  # more are on offer
        (2, offered(0.4, 1), (1, 0)),  # not even those that are held
        (2, offered(0.45, 2), (2, 1)),  # 12 % dearer: the spot nodes stay until the other one is warm
        (2, offered(0.43, 2), (2, 0)),  # 7 %: nothing
        (4, offered(0.4, 4), (4, 0)),
        (0, offered(0.4, 4), (0, 1)),  # an on-demand node is kept
    ],
)
def test_what_is_on_offer_is_acted_on_at_once_if_it_has_changed_enough(
    was: int, quote: Quoted, wanted: tuple[int, int]
) -> None:
    world, run = begun("follows", was)
    before = world.asked_for
    world.tell(run, quote)
    assert world.asked_for == wanted
    assert (world.wanted[-1].reason.code == "market.nodes_replanned") == (wanted != before)
    world, run = begun("keeps", was)
    world.tell(run, quote)
    world.live(run, 6.5)
    assert world.asked_for == before
    world.live(run, 1.0)  # the next interval
    assert (world.asked_for != before) == (was != quote.available or quote.price > 0.42)
    assert (world.rows[0].price, world.rows[0].available) == (0.4, was)  # what it was planned for


@pytest.mark.parametrize(("left", "wanted"), [(0, (0, 1)), (1, (1, 0))])
def test_a_loss_is_acted_on_at_once(left: int, wanted: tuple[int, int]) -> None:
    for policy, expected, code in (
        ("follows", wanted, "market.nodes_replanned"),
        ("keeps", (2, 0), "market.nodes_planned"),
    ):
        world, run = begun(policy, 2)
        world.tell(run, offered(0.4, 2))
        world.spot, world.present = left, NodeCounts(left, 0)
        world.live(run, 0.5)
        assert (world.asked_for, world.wanted[-1].reason.code) == (expected, code)
        world.spot = 2
        world.live(run, 3.0)
        assert world.asked_for == expected  # what was quoted before the loss is no news
        world.tell(run, offered(0.4, 2))
        assert world.asked_for == (wanted if policy == "follows" and not left else (2, 0))


def handing_over() -> tuple[World, MarketController]:
    """Return a world that has two of four spot nodes for its on-demand one, of which three are still on offer."""
    world, run = begun("follows", 0)
    world.spot = 2
    world.tell(run, offered(0.4, 4))
    world.live(run, 8.0)  # into the next interval
    world.tell(run, offered(0.4, 3))
    world.live(run, 1.0)
    assert (world.asked_for, world.present) == ((4, 1), (2, 1))
    return world, run


def test_while_nodes_are_replaced_only_a_loss_counts_and_the_news_once_they_are() -> None:
    world, run = handing_over()
    world.spot, world.present = 1, NodeCounts(1, 1)
    world.live(run, 0.5)
    assert world.asked_for == (1, 0)
    world, first = handing_over()
    second = saved_and_restored(first, controller("follows", initial_throughput=1.0), CACHES)
    world.spot = 4
    world.live(second, 1.5)
    assert world.asked_for == (3, 0)


class Mixed(World):
    """A world in which the job ``b`` keeps its intervals."""

    def tell(self, run: MarketController, event: Any) -> list[Any]:
        run._plans._drawn = {"a": "follows", "b": "keeps"}
        return super().tell(run, event)


@pytest.mark.parametrize("after", [0.0, 3.0])
def test_a_job_whose_policy_keeps_its_intervals_does_so_beside_one_that_does_not(after: float) -> None:
    world = Mixed({"a": elastic("a", 300, 400.0), "b": elastic("b", 300, 500.0)})
    run = controller("", initial_throughput=1.0)
    world.tell(run, offered(0.4, 8))
    world.live(run, 10.0)
    world.tell(run, Tick())
    world.live(run, after)
    world.tell(run, offered(0.4, 2))
    assert world.asked_for == (6, 0)
    assert [(ask.job, ask.devices) for ask in world.told] == [("a", 4), ("b", 4), ("a", 2)]


def test_a_job_that_comes_with_a_loss_is_asked_for_once() -> None:
    world, run = begun("follows", 2)
    world.spot, world.present = 0, NodeCounts()
    answers = world.submit(run, elastic("b", 60, 17.0))
    asks = [(answer.job, answer.devices) for answer in answers if isinstance(answer, Ask)]
    assert asks == [("a", 1), ("b", 4)]
    assert world.asked_for == (0, 5)


@pytest.mark.nightly
def test_the_policy_of_the_project_decides_on_events_and_passes_the_suite_and_published_ones_do_not() -> None:
    on_events = {name for name, make in SPOT_POLICIES.items() if getattr(make, "decides_on_events", False)}
    assert on_events == {"semi-markov", "follows"}
    for seed in range(2):
        check_controller(lambda: controller("follows", interval=1800.0), random_events(seed), CACHES)


def test_decisions_within_intervals_are_made_again_from_the_journal(tmp_path: Path) -> None:
    """What is on offer is quoted every ten minutes, and the plans have intervals of an hour."""
    job = Job("a", 8 * 3600.0, BatchTarget(7200), can=frozenset(Capability))
    cells = list(range(150, 7201, 150))
    simulated = SimulatedJob(job, cells, [1.0] * len(cells), 0.5)
    available = np.array([0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1] * 5)
    cloud = VirtualCloud(Market(np.full(len(available), 0.3), available, seconds=600.0), 60.0)
    cloud.ahead = False
    terms = {"interval": 3600.0, "policy": "semi-markov", "initial_throughput": 0.5}
    settings = Settings("edf", period=300.0, devices=2, controllers={"market": terms})
    path = tmp_path / "journal.db"
    simulation = Watched(settings, [simulated], Delays(report_every=300.0), path, check=True, nodes=cloud)
    [ended] = simulation.run().jobs
    assert ended.verdict is Verdict.MET
    first = [
        (now, spot, on_demand) for now, spot, on_demand, why in simulation.wanted if why == "market.nodes_replanned"
    ][:3]
    assert first == [(1200.0, 1, 0), (4200.0, 0, 0), (5400.0, 1, 0)]  # when it comes, goes, and comes again
    with Journal.open(path, read_only=True) as journal:
        again, digest = replay(journal, whole=True), journal.digest
    assert again.digest == digest
    assert again.scheduler.state() == simulation._scheduler.state()
