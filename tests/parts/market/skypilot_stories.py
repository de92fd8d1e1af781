"""The provisioner on the real SkyPilot, on a cloud whose machines are processes of this machine.

Run as ``python -m tests.parts.market.skypilot_stories STORY FOLDER``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.parts.market.cloud import check_provision
from lightning_core.parts.market.cloud.provisioner import MARKET_TYPES, TYPE_LABEL, ZONE_LABEL, count_nodes
from lightning_core.parts.market.cloud.skypilot_clusters import SkyPilotClusters
from lightning_core.parts.market.cloud.skypilot_provisioner import SkyPilotProvisioner
from lightning_core.parts.market.cloud.skypilot_task import Joining, read_task
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from lightning_core.parts.market.provisioner_conformance import check_provisioner
from lightning_core.worker.process_group import free_port
from tests.conftest import ROOT
from tests.parts.market.sky_cloud import api_server, end_servers, machines, switch_off

PATIENCE = 400.0
TOKEN = "5ec7e7" * 10
PREFIX = "lc-0badcafe-"


class World:
    """A SkyPilot with its cloud.

    Args:
        folder: Its folder.
        ray: Script in place of Ray's command on machines.
    """

    def __init__(self, folder: Path, ray: str) -> None:
        self.folder, self.cloud = folder, folder / "cloud"
        (folder / "ray").write_text(f"#!/bin/bash\n{ray}\n")
        (folder / "ray").chmod(0o755)
        self.file = folder / "node.yaml"
        self.write(infra="runpod", accelerators="RTX4090:1")

    def write(self, **resources: Any) -> None:
        """Write the user's file."""
        self.file.write_text(
            yaml.safe_dump({"resources": resources, "envs": {"LIGHTNING_CORE_NODE_RAY": str(self.folder / "ray")}})
        )

    def provisioner(self) -> SkyPilotProvisioner:
        """Return a provisioner, for whose nodes Ray is made up: each is there as long as its machine."""
        joining = Joining("127.0.0.1:1", TOKEN, "night", "device")
        clusters = SkyPilotClusters(read_task([str(self.file)]), joining)
        return SkyPilotProvisioner(
            [], leave=0.0, clusters=clusters, prefix=PREFIX, warn=lambda *_: None,
            joined=lambda: {one["cluster"] for one in machines(self.cloud).values()},
        )  # fmt: skip

    def counts(self) -> NodeCounts:
        """Return the machines of each kind, as the cloud bills them."""
        spot = [one["spot"] for one in machines(self.cloud).values()]
        return NodeCounts(spot.count(True), spot.count(False))

    def places(self) -> list[PlacedNodes]:
        """Return the machines of each offer, by their labels, which must be true."""
        found = []
        for one in machines(self.cloud).values():
            zone, its_type = (one["labels"].get(label, "") for label in (ZONE_LABEL, TYPE_LABEL))
            assert zone in ("", one["zone"])
            assert its_type in ("", one["type"])
            assert one["labels"]["ray.io/market-type"] == MARKET_TYPES[not one["spot"]]
            found.append((zone, its_type, one["spot"]))
        return sorted(
            PlacedNodes(*place, found.count((*place, True)), found.count((*place, False)))
            for place in {one[:2] for one in found}
        )


def wait_for(true: Callable[[], object]) -> None:
    """Wait for a condition."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.2)


def abandon(made: SkyPilotProvisioner) -> None:
    """Have a provisioner do nothing more, as if it had been killed."""
    made._step = lambda: time.sleep(10**6)  # type: ignore[method-assign]


def conforms(world: World) -> None:
    """The conformance suite; machines sleep."""
    check_provisioner(world.provisioner, world.counts, PATIENCE, world.places)
    assert not list(world.cloud.glob("*.machine"))


def checked(world: World) -> None:
    """What a user gets wrong is named before anything starts."""
    check_provision(f"skypilot {world.file}", simulated=False)
    for resources, words in (
        ({"infra": "runpod", "accelerators": "RTX4090:2"}, "a node has one device"),
        ({"infra": "nowhere"}, "nowhere"),
        ({"infra": "runpod", "instance_type": "enormous"}, "enormous"),
        ({"infra": "runpod", "zone": "zone-c"}, "zone"),
        ({"accelerator": "RTX4090"}, "accelerator"),
    ):
        world.write(**resources)
        with pytest.raises(ValueError, match=words):
            check_provision(f"skypilot {world.file}", simulated=False)
    assert not (world.cloud / "attempts").exists()


def survives(world: World) -> None:
    """A zone without machines, a slow cloud, a preemption, a restart, a cloud that ends nothing, a server that dies."""
    (world.cloud / "zone-a.full").touch()
    (world.cloud / "zone-b.full").touch()
    made = world.provisioner()
    made.scale_to(NodeCounts(1, 0))
    wait_for(lambda: made.trouble)
    assert "SkyPilot" in made.trouble, made.trouble
    print("full:", made.trouble)
    assert {line.split()[1] for line in (world.cloud / "attempts").read_text().splitlines()} == {"zone-a", "zone-b"}
    (world.cloud / "zone-b.full").unlink()
    wait_for(lambda: world.counts() == NodeCounts(1, 0) and not made.trouble)
    [(name, machine)] = machines(world.cloud).items()
    assert (machine["zone"], machine["autostop"]["down"]) == ("zone-b", True)
    assert 0 < machine["autostop"]["idle_minutes"] <= 2

    switch_off(world.cloud, name)  # preempted
    wait_for(lambda: world.counts() == NodeCounts(1, 0) and name not in machines(world.cloud))
    wait_for(lambda: made.present() == NodeCounts(1, 0))

    (world.cloud / "slow").touch()  # a launch is cancelled while the cloud works on it
    made.scale_to(NodeCounts(1, 1))
    attempts = (world.cloud / "attempts").read_text().count("\n")
    wait_for(lambda: (world.cloud / "attempts").read_text().count("\n") > attempts)
    made.scale_to(NodeCounts(1, 0))
    wait_for(lambda: len(made.remaining()) == 1)
    (world.cloud / "slow").unlink()
    time.sleep(10)
    assert world.counts() == NodeCounts(1, 0)

    abandon(made)
    heir = world.provisioner()
    wait_for(lambda: heir.present() == NodeCounts(1, 0))
    heir.scale_to(NodeCounts(1, 0))
    time.sleep(10)
    assert (world.counts(), len(heir.remaining())) == (NodeCounts(1, 0), 1)

    (world.cloud / "stubborn").touch()
    heir.scale_to(NodeCounts())
    wait_for(lambda: "could not be ended" in heir.trouble)
    print("stubborn:", heir.trouble)
    assert (len(heir.remaining()), world.counts()) == (1, NodeCounts(1, 0))
    (world.cloud / "stubborn").unlink()
    wait_for(lambda: not heir.remaining())
    assert world.counts() == NodeCounts()

    heir.scale_to(NodeCounts(0, 1))
    wait_for(lambda: heir.present() == NodeCounts(0, 1))
    end_servers(dict(os.environ))  # the next call of SkyPilot's client starts another
    heir.close()
    assert (heir.remaining(), world.counts()) == ([], NodeCounts())
    for path in (world.folder / "home").rglob("*"):  # what SkyPilot keeps; its database of requests is its own affair
        if path.is_file() and ".log" in path.suffixes:
            assert TOKEN.encode() not in path.read_bytes(), path


def trains(world: World) -> None:
    """A run on real Ray: its nodes are raylets that SkyPilot's machines start, and they end with it."""
    from lightning_core.cluster.local_machines import local_machines

    quotes = world.folder / "quotes.sh"
    quotes.write_text('#!/bin/sh\necho \'{"price": 0.3, "available": 2, "on_demand": 0.7}\'\n')
    quotes.chmod(0o755)
    job = {
        "seed_everything": 1,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(world.folder), "pause": 0.05},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False}, "deadline": "30m", "target": {"batches": 200}, "save_every": "2s",
    }  # fmt: skip
    market = {"quotes": str(quotes), "interval": "20s", "policies": ["max-spot"], "provision": "skypilot node.yaml"}
    bundle = world.folder / "bundle.yaml"
    bundle.write_text(json.dumps({"period": "0.5s", "market": market, "jobs": {"a": job}}))
    with local_machines() as cluster:
        words = [sys.executable, "-m", "lightning_core.cli.main", "run", str(bundle), "--ray", cluster.address]
        words += ["--run-dir", str(world.folder / "run")]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
        print(ran.stdout, ran.stderr, sep="\n")
        assert ran.returncode == 0
        assert machines(world.cloud) == {}
        attempts = (world.cloud / "attempts").read_text().splitlines()
        assert 1 <= len({line.split()[0] for line in attempts}) <= 4

        made = SkyPilotProvisioner([str(world.file)], "night", "device", leave=2.0)
        made.scale_to(NodeCounts(1, 0))
        wait_for(lambda: count_nodes() == NodeCounts(1, 0))
        assert world.counts() == NodeCounts(1, 0)
        abandon(made)
        time.sleep(10)  # what it does now is over
    wait_for(lambda: machines(world.cloud) == {})  # the head is gone, and with it each machine's command


RAY = {
    # Its words, and whether it was told the token, are noted; then it is there until the machine is switched off.
    "sleeps": 'test "$RAY_AUTH_TOKEN" = ' + TOKEN + " && exec sleep 600",
    "real": f'exec {sys.executable} -m ray.scripts.scripts "$@" --num-cpus=1 --object-store-memory={80 * 2**20}',
}
STORIES = {"conforms": (conforms, "sleeps"), "checked": (checked, "sleeps"), "survives": (survives, "sleeps"),
           "trains": (trains, "real")}  # fmt: skip


def main(story: str, folder: Path) -> None:
    """Play a story."""
    play, ray = STORIES[story]
    with api_server(folder, free_port()) as environment:
        os.environ |= environment
        play(World(folder, RAY[ray]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
