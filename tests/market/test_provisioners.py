"""The conformance suite on every provisioner, without Ray: nodes are processes that sleep, or lines of a file.

The autoscaler runs it in tests/faults/autoscaled.py, against Ray's own simulated cloud.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_core.cloud import PROVISIONERS, CommandProvisioner, conformance, parse_provision, simulated_provisioner
from lightning_core.cloud.conformance import check_provisioner
from lightning_core.cloud.provisioner import MARKET_LABEL, SPOT
from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner
from lightning_core.market.online.node_counts import NodeCounts


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


class Machines:
    """Stands in for ``ray.cluster_utils.Cluster``: each node is a process that sleeps."""

    address = "nowhere:0"

    def __init__(self) -> None:
        self.nodes: list[tuple[str, Any]] = []

    def add_node(self, labels: dict[str, str], **_: Any) -> Any:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.nodes.append((labels[MARKET_LABEL], process))
        return SimpleNamespace(node_id="n", all_processes={"raylet": [SimpleNamespace(process=process)]})

    def count(self) -> NodeCounts:
        types = [market_type for market_type, process in self.nodes if process.poll() is None]
        return NodeCounts(types.count(SPOT), len(types) - types.count(SPOT))


@pytest.fixture
def machines() -> Iterator[Machines]:
    made = Machines()
    yield made
    for _, process in made.nodes:
        process.kill()
        process.wait()


def test_simulated_nodes_conform(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_provisioner, "POLL_SECONDS", 0.01)
    check_provisioner(lambda: SimulatedProvisioner(machines, leave=0.0), machines.count)


class Wrong:
    """A cloud that is a file, with one mistake."""

    def __init__(self, file: Path, mistake: str) -> None:
        self.file, self.mistake = file, mistake

    def scale_to(self, wanted: NodeCounts) -> None:
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
        monkeypatch.setattr(conformance, "REQUEST_SECONDS", 0.1)
    with pytest.raises(AssertionError, match=rule):
        check_provisioner(lambda: Wrong(file, mistake), lambda: count(file), timeout=0.1)


def test_a_provisioner_is_chosen_by_its_name_or_by_a_command() -> None:
    assert parse_provision("command sh -c 'up 1'") == ("command", ["sh", "-c", "up 1"])
    assert parse_provision("sh -c 'up 1'") == ("command", ["sh", "-c", "up 1"])
    assert parse_provision("autoscaler") == parse_provision(None) == ("autoscaler", [])
    assert {"autoscaler", "command"} <= set(PROVISIONERS)


def test_provisioners_are_imported_without_ray() -> None:
    code = "import sys, lightning_core.cloud.simulated_provisioner; print('ray' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert said.stdout == "False\n"
