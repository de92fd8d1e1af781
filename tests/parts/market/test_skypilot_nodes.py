"""What is asked of SkyPilot, step by step, with a SkyPilot that is made up; the test holds the clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.parts.market.cloud import anchor_provision, check_provision, skypilot_provisioner
from lightning_core.parts.market.cloud import skypilot_nodes as states
from lightning_core.parts.market.cloud.provisioner import MARKET_TYPES
from lightning_core.parts.market.cloud.skypilot_clusters import Sighting, in_thread, within
from lightning_core.parts.market.cloud.skypilot_nodes import SkyNodes, place_digest
from lightning_core.parts.market.cloud.skypilot_provisioner import SkyPilotProvisioner, ray_token
from lightning_core.parts.market.cloud.skypilot_task import JOIN, Joining, joined_task, overrides, read_task
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.parts.market.provisioner_conformance import check_provisioner
from tests.examples import examples
from tests.waiting import until

PREFIX = "lc-0123abcd-"


class Sky:
    """An API server: requests go on until they are let through, or at once.

    Attributes:
        clusters: Status of each cluster, by its name.
        launching: Name of the cluster of each active launch.
        ending: Names of clusters that are about to end.
        reasons: Why requests failed.
        is_away: Whether it does not answer.
        refuses: Why it takes no launch.
        stubborn: Why it ends no cluster.
        is_quick: Whether requests are done at once.
        lost_answers: Whether it takes launches, and the answers are lost.
        answers_late: Whether it takes launches during the next look, after it has said what there is.
    """

    def __init__(self, *, is_quick: bool = False) -> None:
        self.clusters: dict[str, str] = {}
        self.launching: dict[str, str] = {}
        self.ending: set[str] = set()
        self.places: dict[str, tuple[str, str, str]] = {}
        self.reasons: dict[str, str] = {}
        self.doubted: list[str] = []
        self.is_away, self.refuses, self.stubborn, self.is_quick = False, "", "", is_quick
        self.lost_answers = False
        self.answers_late = False
        self._late: list[tuple[str, str, Future[str]]] = []
        self._numbers = itertools.count()

    def look(self, prefix: str, doubtful: Collection[str] = ()) -> dict[str, Sighting]:
        if self.is_away:
            raise ConnectionError("the server is away")
        self.doubted += doubtful
        names = {*self.clusters, *self.launching.values(), *self.ending}
        seen = {
            name: Sighting(
                self.clusters.get(name, ""),
                tuple(request for request, its in self.launching.items() if its == name),
                name in self.ending,
            )
            for name in names
            if name.startswith(prefix)
        }
        for request, name, made in self._late:
            self.launching[request] = name
            made.set_result(request)
        self._late.clear()
        return seen

    def launch(self, name: str, kind: str, zone: str, its_type: str) -> Future[str]:
        made: Future[str] = Future()
        if self.is_away or self.refuses:
            made.set_exception(ConnectionError(self.refuses or "the server is away"))
            return made
        request = f"launch-{next(self._numbers)}"
        self.places[name] = (kind, zone, its_type)
        if self.answers_late:
            self._late.append((request, name, made))
            return made
        self.launching[request] = name
        if self.lost_answers:
            made.set_exception(TimeoutError("timed out"))
        else:
            made.set_result(request)
        if self.is_quick:
            self.let_up()
        return made

    def let_up(self) -> None:
        """Let all launches succeed."""
        self.clusters |= dict.fromkeys(self.launching.values(), "UP")
        self.launching.clear()

    def let_fail(self, reason: str, status: str = "") -> None:
        """Let all launches fail, and leave their clusters in a state."""
        for request, name in self.launching.items():
            self.reasons[request] = reason
            if status:
                self.clusters[name] = status
        self.launching.clear()

    def cancel(self, requests: Sequence[str]) -> None:
        assert not self.is_away
        for request in requests:
            self.launching.pop(request)

    def down(self, name: str) -> str:
        if self.is_away:
            raise ConnectionError("the server is away")
        assert name in self.clusters, "SkyPilot refuses to end what it does not know"
        assert name not in self.launching.values(), "the launch may bring it to life afterwards"
        request = f"down-{next(self._numbers)}"
        if self.stubborn:
            self.reasons[request] = self.stubborn
        else:
            self.ending.add(name)
            if self.is_quick:
                self.let_end()
        return request

    def let_end(self) -> None:
        """Let all clusters that are about to end be gone."""
        for name in self.ending:
            self.clusters.pop(name, None)
        self.ending.clear()

    def reason(self, request: str) -> str:
        return self.reasons.get(request, "")

    def counts(self) -> NodeCounts:
        kinds = [self.places[name][0] for name in self.clusters if name not in self.ending]
        return NodeCounts(*(kinds.count(kind) for kind in MARKET_TYPES))


class World:
    """The nodes of a pool, in the test's time."""

    def __init__(self, sky: Sky | None = None, now: float = 0.0) -> None:
        self.sky = Sky() if sky is None else sky
        self.warned: list[tuple[str, float]] = []
        self.nodes = SkyNodes(PREFIX, self.sky, 10.0, lambda name, seconds: self.warned.append((name, seconds)))
        self.joined: set[str] = set()
        self.now = now

    def want(self, spot: int, on_demand: int = 0, place: tuple[str, str] = ("", "")) -> None:
        self.nodes.want({place: NodeCounts(spot, on_demand)})

    def step(self, seconds: float = 5.0, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.nodes.step(self.joined, self.now)

    def up(self) -> None:
        """Let launches succeed, and their nodes join."""
        self.sky.let_up()
        self.joined = {name for name, status in self.sky.clusters.items() if status == "UP"}
        self.step()


def test_nodes_are_launched_join_and_are_given_back_after_a_notice() -> None:
    world = World()
    world.want(1, 1)
    world.step(times=3)
    assert sorted(kind for kind, *_ in world.sky.places.values()) == ["on-demand", "spot"]
    assert world.nodes.present() == NodeCounts()
    world.up()
    assert world.nodes.present() == NodeCounts(1, 1)
    world.step(times=20)
    assert len(world.sky.places) == 2
    world.want(0, 1)
    world.step()
    [(gone, seconds)] = world.warned
    assert (seconds, world.sky.ending) == (10.0, set())  # its job has time to save
    world.step(6.0, times=2)
    assert world.sky.ending == {gone}
    world.sky.let_end()
    world.step()
    assert world.nodes.remaining() == [name for name in world.sky.places if name != gone]
    assert world.nodes.trouble == ""


def test_a_node_that_has_not_joined_is_given_back_before_one_that_has() -> None:
    world = World()
    world.want(2)
    world.step(times=2)
    first, second = world.sky.places
    world.sky.let_up()
    world.joined = {second}
    world.step()
    world.want(1)
    world.step()
    assert (world.sky.ending, world.warned) == ({first}, [])


def test_a_launch_in_progress_is_cancelled_before_its_cluster_is_ended() -> None:
    world = World()
    world.want(2)
    world.step(times=2)
    first, second = world.sky.places
    world.sky.clusters[first] = "INIT"  # it is being provisioned; the other is in the queue
    world.want(0)
    world.step()
    assert (world.sky.launching, world.sky.ending, world.warned) == ({}, {first}, [])
    assert world.nodes.remaining() == sorted([first, second])
    world.sky.let_end()
    world.step()
    assert world.nodes.remaining() == []


def test_a_failed_launch_is_named_and_tried_again_later_each_time_for_longer() -> None:
    world = World()
    world.want(1)
    world.step()
    at = []
    for _ in range(4):
        world.sky.let_fail("no capacity in all zones")
        before = len(world.sky.places)
        world.step(1.0)
        assert world.nodes.trouble == "no capacity in all zones"
        began = world.now
        while len(world.sky.places) == before:
            world.step(1.0)
        at.append(world.now - began)
    assert at == [15.0, 30.0, 60.0, 120.0]
    world.up()
    assert world.nodes.trouble == ""


def test_one_that_joins_does_not_hurry_another_that_fails() -> None:
    world = World()
    world.want(1)
    world.step()
    world.up()
    world.want(2)
    world.step()
    for _ in range(3):
        world.sky.let_fail("no capacity")
        world.step(times=10)
    assert len(world.sky.places) == 4  # one, and an attempt at once, after 15 s and after 30 s


def test_a_cluster_that_a_failed_launch_leaves_is_ended() -> None:
    world = World()
    world.want(1)
    world.step()
    [name] = world.sky.places
    world.sky.let_fail("setup failed", "UP")
    world.step()
    assert world.sky.ending == {name}
    assert world.nodes.trouble == "setup failed"


def test_a_preempted_node_is_replaced_at_once() -> None:
    world = World()
    world.want(1)
    world.step()
    world.up()
    [name] = world.sky.places
    world.joined.clear()  # Ray sees it first
    world.step()
    assert world.sky.doubted == [name]  # so the cloud is asked
    assert len(world.sky.places) == 1
    del world.sky.clusters[name]
    world.step()
    assert len(world.sky.places) == 2
    assert world.nodes.trouble == ""


@pytest.mark.parametrize(("has_joined", "seconds"), [(False, 1800.0), (True, 120.0)])
def test_a_machine_that_is_up_without_ray_is_given_back_after_a_while(has_joined: bool, seconds: float) -> None:
    world = World()
    world.want(1)
    world.step()
    if has_joined:
        world.up()
        world.joined.clear()
    world.sky.let_up()
    [name] = world.sky.places
    world.step(0.0)
    world.step(seconds)
    assert world.sky.ending == set()
    world.step(1.0)
    assert world.sky.ending == {name}
    assert f"{name} has not been in the pool's Ray for {seconds:g} s" in world.nodes.trouble


def test_an_unknown_ray_ends_nothing() -> None:
    world = World()
    world.want(1)
    world.step()
    world.up()
    for _ in range(100):
        world.now += 60
        world.nodes.step(None, world.now)
    assert (world.sky.ending, len(world.sky.places)) == (set(), 1)


def test_a_cluster_in_no_good_state_is_ended_unless_its_node_is_in_ray() -> None:
    world = World()
    world.want(2)
    world.step(times=2)
    world.up()
    first, second = world.sky.places
    world.sky.clusters = {first: "INIT", second: "STOPPED"}
    world.joined = {first}
    world.step(times=14)
    assert world.sky.ending == {second}


def test_an_end_that_fails_is_named_and_tried_again() -> None:
    world = World()
    world.want(1)
    world.step()
    world.up()
    [name] = world.sky.places
    world.sky.stubborn = "the cloud is busy"
    world.want(0)
    world.step(times=20)
    assert world.nodes.trouble == f"{name} could not be ended: the cloud is busy"
    assert world.nodes.remaining() == [name]
    world.sky.stubborn = ""
    world.step(times=8)
    world.sky.let_end()
    world.step()
    assert (world.nodes.remaining(), world.nodes.trouble) == ([], "")


def test_a_new_provisioner_takes_over_the_clusters_of_an_earlier_one_and_no_others() -> None:
    sky = Sky()
    before = World(sky)
    place = ("us-east-1a", "p3.2xlarge")
    before.want(2, 1, place)
    before.step(times=3)
    sky.let_up()
    sky.clusters["lc-another-spot-any-1"] = "UP"
    heir = World(sky, 1000.0)
    heir.joined = {name for name in sky.clusters if name.startswith(PREFIX)}
    heir.step(times=3)
    assert heir.nodes.present() == NodeCounts(2, 1)  # all are left as they are until it is told what is wanted
    heir.want(1, 1, place)
    heir.step(times=4)
    assert len(sky.ending) == 1
    sky.let_end()
    heir.step(times=10)
    assert (heir.nodes.present(), len(sky.places)) == (NodeCounts(1, 1), 3)
    heir.nodes.want({})
    heir.step(times=4)
    sky.let_end()
    heir.step()
    assert sky.clusters == {"lc-another-spot-any-1": "UP"}


def test_a_launch_whose_answer_was_lost_counts_as_there() -> None:
    world = World()
    world.sky.lost_answers = True
    world.want(1)
    world.step(times=2)
    world.sky.lost_answers = False
    world.up()
    world.step(times=5)
    assert (len(world.sky.places), world.nodes.present()) == (1, NodeCounts(1, 0))


def test_a_launch_that_is_taken_during_a_look_is_not_taken_to_be_gone() -> None:
    world = World()
    world.sky.answers_late = True
    world.want(1)
    world.step(times=3)
    assert (len(world.sky.places), len(world.sky.launching), world.nodes.trouble) == (1, 1, "")
    world.up()
    assert world.nodes.present() == NodeCounts(1, 0)


def test_a_launch_that_is_not_answered_is_waited_for_and_then_given_up() -> None:
    world = World()
    world.sky.launch = lambda *_: Future()  # type: ignore[method-assign]
    world.want(2)
    world.step(100.0, times=9)
    assert len(world.nodes.remaining()) == 1
    world.want(0)
    world.step(100.0, times=3)
    assert world.nodes.remaining() == []


def test_a_launch_that_was_refused_is_forgotten_once_it_cannot_appear_any_more() -> None:
    world = World()
    world.sky.refuses = "cut off"
    world.want(1)
    world.step(times=2)
    assert len(world.nodes.remaining()) == 1
    world.step(times=14)
    assert world.nodes.trouble == "SkyPilot: cut off"
    world.sky.refuses = ""
    world.step(times=10)
    assert len(world.sky.launching) == 1


def test_nothing_is_done_while_the_server_is_away() -> None:
    world = World()
    world.want(2)
    world.step(times=2)
    world.up()
    world.sky.is_away = True
    with pytest.raises(ConnectionError):
        world.step()
    assert len(world.nodes.remaining()) == 2
    world.sky.is_away = False
    world.step()
    assert world.nodes.present() == NodeCounts(2, 0)


EVENTS = ("want", "up", "fail", "leave", "end", "preempt", "away", "back", "lose", "late", "step")


@given(st.lists(st.sampled_from(EVENTS)))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_happens_no_cluster_is_left_and_what_is_wanted_comes(events: list[str]) -> None:
    """Rule: a cluster that is there is known, and no more are paid for than were ever wanted at once."""
    sky = Sky()
    world = World(sky)
    number = 0
    for event in events:
        match event:
            case "want":
                number = (number + 1) % 4
                world.want(number, 3 - number)
            case "up":
                sky.let_up()
                world.joined |= {name for name in sky.clusters if name not in sky.ending}
            case "fail":
                sky.let_fail("no capacity", "INIT")
            case "leave":
                sky.let_up()
            case "end":
                sky.let_end()
            case "preempt":
                for name in list(sky.clusters)[:1]:
                    world.joined.discard(name)
                    del sky.clusters[name]
                    sky.ending.discard(name)
            case "away" | "back":
                sky.is_away = event == "away"
            case "lose":
                sky.lost_answers = not sky.lost_answers
            case "late":
                sky.answers_late = not sky.answers_late
        world.now += 5.0
        if not sky.is_away:
            world.nodes.step(world.joined, world.now)
            assert {*sky.clusters, *sky.launching.values()} <= {*world.nodes.remaining(), *sky.ending}
            staying = [one for one in world.nodes._nodes.values() if one.ends_at is None]
            assert len(staying) <= 3
    sky.is_away = sky.lost_answers = sky.answers_late = False
    world.want(2, 1)
    for _ in range(400):
        world.now += 5.0
        world.nodes.step(world.joined, world.now)
        sky.let_up()
        sky.let_end()
        world.joined = set(sky.clusters)
    assert world.nodes.present() == sky.counts() == NodeCounts(2, 1)
    assert world.nodes.trouble == ""
    world.nodes.want({})
    for _ in range(50):
        world.now += 5.0
        world.nodes.step(world.joined, world.now)
        sky.let_end()
    assert (world.nodes.remaining(), sky.clusters, sky.launching) == ([], {}, {})


# ------------------------------------------------------------------------------------------------ the provisioner


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skypilot_provisioner, "LOOK_SECONDS", 0.01)


def provisioner(sky: Sky, warn: Callable[[str, float], object] = lambda *_: None) -> SkyPilotProvisioner:
    return SkyPilotProvisioner(
        [], leave=0.0, clusters=sky, prefix=PREFIX, warn=warn, joined=lambda: list(sky.clusters)
    )  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_it_conforms() -> None:
    sky = Sky(is_quick=True)

    def places() -> list[PlacedNodes]:
        found = [sky.places[name] for name in list(sky.clusters)]
        return sorted(
            PlacedNodes(*place, *(sum(one == (kind, *place) for one in found) for kind in MARKET_TYPES))
            for place in {one[1:] for one in found}
        )

    check_provisioner(lambda: provisioner(sky), sky.counts, count_places=places)


@pytest.mark.usefixtures("quick")
def test_closing_names_the_clusters_that_it_could_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(skypilot_provisioner, "CLOSE_SECONDS", 0.3)
    sky = Sky(is_quick=True)
    made = provisioner(sky)
    made.scale_to(NodeCounts(1, 0))
    until(lambda: made.present() == NodeCounts(1, 0))
    sky.stubborn = "no such credentials"
    made.close()
    [name] = sky.clusters
    assert made.remaining() == [name]
    assert f"sky down {name}" in caplog.text
    assert made.trouble == "" or name in made.trouble


@pytest.mark.usefixtures("quick")
def test_closing_without_an_answer_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(skypilot_provisioner, "CLOSE_SECONDS", 0.3)
    sky = Sky()
    sky.is_away = True
    made = provisioner(sky)
    until(lambda: made.trouble == "SkyPilot: the server is away")
    made.close()
    assert "SkyPilot does not say whether nodes are left" in caplog.text


def test_a_call_that_hangs_is_abandoned() -> None:
    with pytest.raises(RuntimeError, match=r"no answer within 0\.05 s"):
        within(0.05, Future[None]().result)
    with pytest.raises(KeyError):
        in_thread(lambda: dict[str, int]()["a"]).result(60)


# ------------------------------------------------------------------------------------------------ the task

TASK = """
resources: {accelerators: "A100:1", any_of: [{infra: aws}, {infra: k8s}]}
workdir: code
file_mounts: {/data: ~/data, /more: "s3://bucket/more", /old: {source: "s3://bucket"}}
envs: {LIGHTNING_CORE_NODE_RAY: ~/venv/bin/ray, A: "1"}
setup: pip install .
"""


def test_the_file_of_a_task_has_absolute_paths_wherever_the_pool_runs(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(TASK)
    task = read_task([str(tmp_path / "node.yaml")])
    assert task["workdir"] == str(tmp_path / "code")
    assert task["file_mounts"] == {
        "/data": str(Path.home() / "data"), "/more": "s3://bucket/more", "/old": {"source": "s3://bucket"},
    }  # fmt: skip
    assert anchor_provision("skypilot node.yaml", tmp_path) == f"skypilot {tmp_path}/node.yaml"
    assert anchor_provision("./nodes.sh node.yaml", tmp_path) == "./nodes.sh node.yaml"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("run: train", "run: the pool runs Ray on a node"),
        ("num_nodes: 2", "num_nodes must be 1, as the pool asks for each node, got 2"),
        ("service: {}", "service: a node serves nothing"),
        ("resources: {use_spot: true}", "resources.use_spot: the market says which nodes are spot"),
        ("resources: {any_of: [{use_spot: true}]}", "resources.use_spot: the market says"),
        ("resources: {autostop: 5}", "resources.autostop: a node ends with the pool"),
        ("resources: a100", "resources must be a mapping, got 'a100'"),
        (
            "envs: {LIGHTNING_CORE_NODE_LABELS: a}",
            "envs.LIGHTNING_CORE_NODE_LABELS: names that begin with LIGHTNING_CORE_NODE_",
        ),
        ("[]", "expected the keys of a SkyPilot task"),
        ("a: [", "node.yaml:1:5: not YAML"),
        ("a: 1\na: 2", "node.yaml"),
    ],
)
def test_a_task_that_asks_for_what_the_pool_decides_is_refused(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(text)
    with pytest.raises(ValueError, match=error.replace(".", r"\.")):
        check_provision(f"skypilot {tmp_path}/node.yaml", simulated=False)


def test_a_file_that_is_not_there_or_not_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"node\.yaml: not found"):
        check_provision(f"skypilot {tmp_path}/node.yaml", simulated=False)
    with pytest.raises(ValueError, match="skypilot takes the file of a SkyPilot task, got none"):
        check_provision("skypilot", simulated=False)


def test_without_skypilot_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sky", None)
    (tmp_path / "node.yaml").write_text("setup: pip install .")
    with pytest.raises(ValueError, match=r"SkyPilot is not installed: run pip install .*\[skypilot\]"):
        check_provision(f"skypilot {tmp_path}/node.yaml", simulated=False)


def test_the_token_is_a_secret_and_in_no_command() -> None:
    joining = Joining("10.0.0.1:6379", "key-of-ray", "night", "GPU")
    made = joined_task({"setup": "a", "secrets": {"B": "b"}}, joining, "lc-1", "spot", "us-east-1a", "p3")
    assert "key-of-ray" not in repr(joining) + JOIN + repr(made["envs"])
    assert made["secrets"] == {"B": "b", "RAY_AUTH_TOKEN": "key-of-ray"}
    assert made["envs"]["RAY_AUTH_MODE"] == "token"
    assert set(made["envs"]["LIGHTNING_CORE_NODE_LABELS"].split(",")) == {
        "ray.io/market-type=spot", "lightning-core/pool=night", "lightning-core/node=lc-1",
        "ray.io/availability-zone=us-east-1a", "lightning-core/instance-type=p3",
    }  # fmt: skip
    assert (made["envs"]["LIGHTNING_CORE_NODE_GPUS"], made["envs"]["LIGHTNING_CORE_NODE_RESOURCES"]) == ("1", "{}")
    bare = joined_task({}, Joining("a:1", "", "night", "device"), "lc-2", "on-demand", "", "")
    assert "secrets" not in bare
    assert (bare["envs"]["LIGHTNING_CORE_NODE_GPUS"], bare["envs"]["LIGHTNING_CORE_NODE_RESOURCES"]) == (
        "0",
        '{"device": 1}',
    )
    assert overrides("spot", "a", "") == {"use_spot": True, "zone": "a"}
    assert overrides("on-demand", "", "p3") == {"use_spot": False, "instance_type": "p3"}


def test_the_token_is_taken_from_where_ray_takes_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of a file\n")
    assert ray_token({"RAY_AUTH_TOKEN": "given", "RAY_AUTH_TOKEN_PATH": "/none"}) == "given"
    assert ray_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}) == "of a file"


def test_places_have_names_of_four_letters() -> None:
    assert len({place_digest((zone, "p3")) for zone in ("a", "b", "c")}) == 3
    assert states._parsed("on-demand-any-1a2b3c") == ("on-demand", "any")
    assert states._parsed("x-1") == ("", "x-1")
