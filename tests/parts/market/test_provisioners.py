"""The conformance suite on every provisioner, without Ray: nodes are processes that sleep, or lines of a file.

The autoscaler runs it in tests/faults/autoscaled.py, against Ray's own simulated cloud.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lightning_core.parts.market import provisioner_conformance
from lightning_core.parts.market.cloud import PROVISIONERS, CommandProvisioner, parse_provision, simulated_provisioner
from lightning_core.parts.market.cloud.machine_notes import Machine, MachineNotes
from lightning_core.parts.market.cloud.simulated_provisioner import SimulatedProvisioner, raylet_command
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import Offer, PlacedNodes
from lightning_core.parts.market.provisioner_conformance import check_provisioner
from tests.waiting import until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nodes"


def count(file: Path) -> NodeCounts:
    """Return a function that counts the nodes of a cloud that is a file with two numbers."""
    text = file.read_text().split() if file.is_file() else []
    return NodeCounts(*map(int, text)) if len(text) == 2 else NodeCounts(-1, -1) if text else NodeCounts()


def test_a_command_conforms(file: Path) -> None:
    script = f"echo $LIGHTNING_CORE_SPOT $LIGHTNING_CORE_ON_DEMAND > {file}.new && mv {file}.new {file}"
    check_provisioner(lambda: CommandProvisioner(["sh", "-c", script]), lambda: count(file))


def test_a_command_that_reads_offers_conforms(file: Path) -> None:
    told = Path(f"{file}.offers")
    script = f"""printf %s "$LIGHTNING_CORE_OFFERS" > {told}.new && mv {told}.new {told}
    echo $LIGHTNING_CORE_SPOT $LIGHTNING_CORE_ON_DEMAND > {file}.new && mv {file}.new {file}"""

    def offers() -> list[PlacedNodes]:
        text = told.read_text() if told.is_file() else ""
        return [PlacedNodes(**offer) for offer in json.loads(text)["offers"]] if text else []

    check_provisioner(lambda: CommandProvisioner(["sh", "-c", script]), lambda: count(file), count_places=offers)


SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def living(folder: Path) -> list[Machine]:
    """Return the noted nodes whose processes run and that are not about to leave."""
    noted = []
    for path in sorted(folder.glob("node-*.json")):
        with suppress(FileNotFoundError):  # its node has just ended
            noted.append(Machine(**json.loads(path.read_text())))
    return [one for one in noted if one.is_alive and one.ends_at is None]


def kinds(folder: Path) -> NodeCounts:
    found = [one.market_type for one in living(folder)]
    return NodeCounts(found.count("spot"), found.count("on-demand"))


def places(folder: Path) -> list[PlacedNodes]:
    found = living(folder)
    kinds = {place: [one.market_type for one in found if one.place == place] for place in {one.place for one in found}}
    return sorted(PlacedNodes(*at, types.count("spot"), types.count("on-demand")) for at, types in kinds.items())


def invoice(folder: Path) -> list[dict[str, Any]]:
    return MachineNotes(folder).invoice()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of simulated nodes, which are ended afterwards."""
    monkeypatch.setattr(simulated_provisioner, "POLL_SECONDS", 0.01)
    folder = tmp_path / "nodes"
    yield folder
    for machine in MachineNotes(folder).find():
        os.killpg(machine.pid, signal.SIGKILL)


def simulated(folder: Path, leave: float = 0.0, notice: float = 0.0, warned: Any = None) -> SimulatedProvisioner:
    def warn(mark: str, seconds: float) -> bool:
        warned.append((mark, seconds))
        return True

    return SimulatedProvisioner(folder, lambda _: SLEEPS, notice, leave, warn, lambda _: True)


def abandon(provisioner: SimulatedProvisioner) -> None:
    """End the thread of a provisioner and none of its nodes, as a kill would."""
    provisioner._closed.set()
    provisioner._thread.join()


def test_simulated_nodes_conform(nodes: Path) -> None:
    check_provisioner(lambda: simulated(nodes), lambda: kinds(nodes), count_places=lambda: places(nodes))
    rows = invoice(nodes)
    assert len({row["node"] for row in rows}) == len(rows)
    assert all(row["since"] < row["until"] for row in rows)


def test_a_node_that_is_given_back_or_preempted_has_notice_and_then_ends(nodes: Path) -> None:
    warned: list[tuple[str, float]] = []
    made = simulated(nodes, leave=0.4, notice=0.3, warned=warned)
    made.scale_to(NodeCounts(2, 1))
    until(lambda: kinds(nodes) == NodeCounts(2, 1))
    first, second = (one.mark for one in living(nodes) if one.market_type == "spot")
    [on_demand] = [one.mark for one in living(nodes) if one.market_type == "on-demand"]
    made.offer(1)  # the newest goes
    until(lambda: warned == [(second, 0.3)])
    assert made.present() == NodeCounts(1, 1)
    made.scale_to(NodeCounts(1, 0))
    until(lambda: warned[1:] == [(on_demand, 0.4)])
    until(lambda: len(invoice(nodes)) == 2)
    assert [one.mark for one in living(nodes)] == [first]
    assert made.preempted == 1
    made.close()
    assert sorted(row["market_type"] for row in invoice(nodes)) == ["on-demand", "spot", "spot"]


def test_no_more_spot_nodes_come_than_are_on_offer(nodes: Path) -> None:
    made = simulated(nodes)
    made.offer(1)
    made.scale_to(NodeCounts(3, 0))
    until(lambda: kinds(nodes) == NodeCounts(1, 0))
    time.sleep(0.1)
    assert kinds(nodes) == NodeCounts(1, 0)
    made.offer(2)
    until(lambda: kinds(nodes) == NodeCounts(2, 0))
    made.close()


def test_spot_nodes_come_and_go_with_the_offer_of_their_zone(nodes: Path) -> None:
    made = simulated(nodes)
    made.offer(3, [Offer("a", available=1), Offer("b", "large", available=2)])
    made.scale_to(
        NodeCounts(4, 1), [PlacedNodes("a", "", 2, 1), PlacedNodes("b", "large", 1, 0), PlacedNodes("c", "", 1)]
    )
    until(lambda: places(nodes) == [PlacedNodes("a", "", 1, 1), PlacedNodes("b", "large", 1, 0)])
    made.offer(2, [Offer("b", "large", available=2)])  # the first zone has none any more
    until(lambda: places(nodes) == [PlacedNodes("a", "", 0, 1), PlacedNodes("b", "large", 1, 0)])
    assert made.preempted == 1
    made.close()
    assert sorted((row["zone"], row["market_type"]) for row in invoice(nodes)) == [
        ("a", "on-demand"), ("a", "spot"), ("b", "spot"),
    ]  # fmt: skip


def test_a_node_is_labelled_with_its_zone_and_type() -> None:
    machine = Machine(1, "spot", zone="us-east-1a", type="p3.2xlarge")
    [labels] = [word for word in raylet_command("here", "pool", {"device": 1})(machine) if word.startswith("--labels=")]
    assert {"ray.io/availability-zone=us-east-1a", "lightning-core/instance-type=p3.2xlarge"} <= set(
        labels.removeprefix("--labels=").split(",")
    )


def test_a_node_that_dies_is_replaced_and_was_paid_for_until_then(nodes: Path) -> None:
    made = simulated(nodes)
    made.scale_to(NodeCounts(1, 0))
    [dead] = until(lambda: living(nodes))
    os.kill(dead.pid, signal.SIGKILL)
    [heir] = until(lambda: [one for one in living(nodes) if one.number != dead.number])
    assert (dead.number, heir.number) == (1, 2)
    assert [row["node"] for row in invoice(nodes)] == [1]
    made.close()


def test_a_node_that_has_not_joined_yet_is_ended_at_once(nodes: Path) -> None:
    """Otherwise it would join, and a job begin on it, while it is about to leave."""
    made = SimulatedProvisioner(nodes, lambda _: SLEEPS, 600.0, 600.0, lambda mark, seconds: False, bool)
    made.scale_to(NodeCounts(1, 0))
    until(lambda: living(nodes))
    made.scale_to(NodeCounts())
    until(lambda: (nodes / "invoice.jsonl").exists())
    made.close()


def test_nodes_start_one_after_the_other(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one starts once the one before has joined, has ended, or is late."""
    joined = set[str]()
    made = SimulatedProvisioner(nodes, lambda _: SLEEPS, 0.0, 0.0, lambda *_: True, joined.__contains__)
    made.scale_to(NodeCounts(2, 2))
    [first] = until(lambda: living(nodes))
    time.sleep(0.1)
    assert kinds(nodes) == NodeCounts(1, 0)
    joined.add(first.mark)
    until(lambda: kinds(nodes) == NodeCounts(2, 0))
    os.kill(living(nodes)[1].pid, signal.SIGKILL)
    until(lambda: [one.number for one in living(nodes)] == [1, 3])
    joined.add(living(nodes)[1].mark)
    until(lambda: kinds(nodes) == NodeCounts(2, 1))
    time.sleep(0.1)
    assert kinds(nodes) == NodeCounts(2, 1)
    monkeypatch.setattr(simulated_provisioner, "JOIN_SECONDS", 0.2)
    until(lambda: kinds(nodes) == NodeCounts(2, 2))
    made.close()


def test_a_cluster_that_does_not_answer_delays_no_request(nodes: Path) -> None:
    hangs = threading.Event()
    made = SimulatedProvisioner(nodes, lambda _: SLEEPS, 0.2, 0.2, lambda mark, seconds: hangs.wait(60), bool)
    made.scale_to(NodeCounts(2, 0))
    until(lambda: kinds(nodes) == NodeCounts(2, 0))
    began = time.monotonic()
    made.offer(1)
    made.scale_to(NodeCounts(0, 1))
    assert time.monotonic() - began < 5
    until(lambda: kinds(nodes) == NodeCounts(0, 1) and len(invoice(nodes)) == 2)
    made.close()
    hangs.set()


@pytest.mark.promise("R24")
def test_a_new_provisioner_takes_over_the_nodes_of_an_earlier_one(nodes: Path) -> None:
    """Those that stay and those about to leave, each with its time; until it is asked, it leaves all as they are."""
    before = simulated(nodes, leave=1.5, warned=[])
    before.scale_to(NodeCounts(1, 2))
    until(lambda: kinds(nodes) == NodeCounts(1, 2))
    before.scale_to(NodeCounts(1, 1))
    until(lambda: kinds(nodes) == NodeCounts(1, 1))
    there = {one.number: one.pid for one in living(nodes)}
    [leaves] = [path for path in nodes.glob("node-*.json") if '"ends_at": null' not in path.read_text()]
    ends_at = json.loads(leaves.read_text())["ends_at"]
    abandon(before)
    heir = simulated(nodes, leave=1.5, warned=[])
    assert heir.present() == NodeCounts(1, 1)
    assert json.loads(leaves.read_text())["ends_at"] == ends_at
    until(lambda: not leaves.exists())
    assert 0 <= invoice(nodes)[0]["until"] - ends_at < 1
    assert {one.number: one.pid for one in living(nodes)} == there
    heir.scale_to(NodeCounts(1, 2))
    until(lambda: kinds(nodes) == NodeCounts(1, 2))
    assert max(one.number for one in living(nodes)) == 4  # no number twice
    heir.close()
    assert sorted(row["node"] for row in invoice(nodes)) == [1, 2, 3, 4]


# Kills itself at the n-th of the calls by which a node begins: its note, its process, and the note of its process.
DIES = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from lightning_core.parts.market.cloud import machine_notes, simulated_provisioner
from lightning_core.parts.market.node_counts import NodeCounts

left = int(sys.argv[2])


def counted(call, after):
    def made(*args, **kwargs):
        global left
        if threading.current_thread() is threading.main_thread():
            return call(*args, **kwargs)
        left -= 1
        if left == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = call(*args, **kwargs)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return made


after = sys.argv[3] == "after"
machine_notes.write_whole = counted(machine_notes.write_whole, after)
subprocess.Popen = counted(subprocess.Popen, after)
sleeps = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
made = simulated_provisioner.SimulatedProvisioner(Path(sys.argv[1]), lambda _: sleeps, 0, 0, lambda *_: True, bool)
made.scale_to(NodeCounts(1, 0))
made._thread.join()
"""


@pytest.mark.promise("R24")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("calls", "call"), [(1, "its note"), (2, "its process"), (3, "the note of its process")])
def test_a_provisioner_killed_while_a_node_begins_leaves_none_behind(
    nodes: Path, calls: int, call: str, moment: str
) -> None:
    words = [sys.executable, "-c", DIES, str(nodes), str(calls), moment]
    killed = subprocess.run(words, timeout=300, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    has_begun = calls == 3 or (calls, moment) == (2, "after")
    heir = simulated(nodes)
    assert heir.present() == NodeCounts(int(has_begun), 0), call
    heir.scale_to(NodeCounts(1, 0))
    until(lambda: kinds(nodes) == NodeCounts(1, 0))
    time.sleep(0.1)
    assert kinds(nodes) == NodeCounts(1, 0)
    heir.close()
    assert len(invoice(nodes)) == 1  # one that never began costs nothing
    assert not list(nodes.glob("node-*.json"))


@pytest.mark.promise("R24")
def test_a_provisioner_killed_while_a_node_ends_bills_it_once(nodes: Path) -> None:
    made = simulated(nodes)
    made.scale_to(NodeCounts(1, 0))
    [machine] = until(lambda: living(nodes))
    note = next(nodes.glob("node-*.json")).read_text()
    abandon(made)
    os.kill(machine.pid, signal.SIGKILL)
    made._kill(machine)
    (nodes / "node-000001.json").write_text(note)  # killed before it removed the note
    with (nodes / "invoice.jsonl").open("a") as file:
        file.write('{"node": 2, "mark')  # and while it wrote the next line
    heir = simulated(nodes)
    heir.scale_to(NodeCounts(1, 0))
    until(lambda: living(nodes))
    heir.close()
    assert [row["node"] for row in invoice(nodes)] == [1, 2]
    assert not list(nodes.glob("node-*.json"))


class Wrong:
    """A cloud that is a file, with one mistake."""

    def __init__(self, file: Path, mistake: str) -> None:
        self.file, self.mistake = file, mistake

    def scale_to(self, wanted: NodeCounts, places: Sequence[PlacedNodes] = ()) -> None:
        match self.mistake:
            case "slow":
                time.sleep(0.2)
            case "swaps":
                wanted = NodeCounts(wanted.on_demand, wanted.spot)
            case "only grows":
                wanted = NodeCounts(*map(max, wanted, count(self.file)))
            case "adds":
                wanted = NodeCounts(*map(sum, zip(wanted, count(self.file), strict=True)))
        self.file.write_text("{} {}".format(*wanted))

    def close(self) -> None:
        if self.mistake != "keeps":
            self.file.write_text("0 0")


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("slow", "scale_to must return within 0.1 s"),
        ("swaps", "a request for 2 spot and 1 on-demand nodes must be met .*, got 1 spot and 2 on-demand nodes"),
        ("only grows", "a request for 1 spot and 0 on-demand nodes must be met"),
        ("adds", "a request for 1 spot and 1 on-demand nodes must be met .*, got 2 spot and 2 on-demand nodes"),
        ("keeps", r"close\(\) must return all nodes"),
    ],
)
def test_the_suite_names_the_rule_that_a_provisioner_breaks(
    mistake: str, rule: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake == "slow":
        monkeypatch.setattr(provisioner_conformance, "REQUEST_SECONDS", 0.1)
    with pytest.raises(AssertionError, match=rule):
        check_provisioner(lambda: Wrong(file, mistake), lambda: count(file), timeout=0.1)


def test_a_provisioner_is_chosen_by_its_name_or_by_a_command() -> None:
    assert parse_provision("command sh -c 'up 1'") == ("command", ["sh", "-c", "up 1"])
    assert parse_provision("sh -c 'up 1'") == ("command", ["sh", "-c", "up 1"])
    assert parse_provision("autoscaler") == parse_provision(None) == ("autoscaler", [])
    assert {"autoscaler", "command"} <= set(PROVISIONERS)


def test_provisioners_are_imported_without_ray() -> None:
    code = "import sys, lightning_core.parts.market.cloud.simulated_provisioner; print('ray' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert said.stdout == "False\n"
