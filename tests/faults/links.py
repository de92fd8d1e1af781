"""A pool on two machines whose link can be cut: two network namespaces, so only as root.

Run as ``unshare --net python -m tests.faults.links FOLDER``, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as Nodes

from lightning_core.server.ray_settings import NAMESPACE
from tests.faults.nodes import live_through, node_of
from tests.faults.test_workers import Story, Told, begun

NEAR, FAR = "10.99.0.1", "10.99.0.2"
# Shorter and longer than a worker may be silent (8 s), seconds.
BLINK, CUT = 5.0, 30.0


class Line:
    """A link between this network namespace, which must be separate, and another; both end with this process."""

    def __init__(self) -> None:
        self._beyond = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        ours = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self._beyond.pid}/ns/net") == ours:
            time.sleep(0.01)
        _run("ip link set lo up")
        _run(f"ip link add near type veth peer name far netns {self._beyond.pid}")
        _run(f"ip addr add {NEAR}/24 dev near")
        _run("ip link set near up")
        for command in ("ip link set lo up", f"ip addr add {FAR}/24 dev far", "ip link set far up"):
            _run(" ".join([*self.beyond, command]))

    @property
    def beyond(self) -> list[str]:
        """Return the prefix of a command that runs on the other side."""
        return ["nsenter", "--target", str(self._beyond.pid), "--net"]

    def cut(self) -> None:
        """Cut the link; no process on this side is notified."""
        _run(" ".join([*self.beyond, "ip link set far down"]))

    def mend(self) -> None:
        _run(" ".join([*self.beyond, "ip link set far up"]))


def for_a_while(seconds: float) -> Told:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def nodes() -> list[dict[str, Any]]:
    listed: Any = ray.nodes  # it has no types
    return [node for node in listed() if node["Alive"]]


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    line = Line()
    own = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="lc-")
    device = {"num_cpus": 1, "resources": {"device": 1}}
    machines: Any = Nodes(
        initialize_head=True,
        head_node_args={"node_ip_address": NEAR, "include_dashboard": False, "temp_dir": f"{own}/ray", **device},
    )
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", machines.address, "--block"]
    options = ["--node-ip-address", FAR, "--num-cpus", "1", "--resources", json.dumps(device["resources"])]
    subprocess.Popen([*line.beyond, *start, *options], stdout=subprocess.DEVNULL)
    ray.init(address=machines.address, namespace=NAMESPACE, log_to_driver=False, _node_ip_address=NEAR)
    while len(nodes()) < 2:
        time.sleep(0.2)
    [far] = [node["NodeID"] for node in nodes() if node["NodeManagerAddress"] == FAR]

    def tell(story: Story) -> Told:
        yield from story.until(lambda jobs: jobs and min(job.batches for job in jobs.values()) > 20)
        [name] = [name for name in story.jobs if node_of(story, name) == far]
        [other] = story.jobs.keys() - {name}
        pid = story.pid(name)

        line.cut()
        yield from for_a_while(BLINK)
        line.mend()
        before = story.jobs[name].batches
        yield from story.until(lambda jobs: jobs[name].batches > before + 20)
        found["blink"] = {job.name: job.incarnation for job in story.jobs.values()}

        line.cut()
        began = time.monotonic()
        yield from story.until(lambda jobs: jobs[name].incarnation == 2)
        found["known"] = time.monotonic() - began
        found["words"] = str(story.jobs[name].fault)
        yield from for_a_while(began + CUT - time.monotonic())
        found["behind"] = Path(f"/proc/{pid}").exists()
        found["other"] = story.jobs[other].incarnation
        line.mend()
        mended = time.monotonic()
        yield from story.until(lambda _: not Path(f"/proc/{pid}").exists(), 90)
        found["gone"] = time.monotonic() - mended
        yield from story.until(begun(2, name), 90)
        found["again"] = time.monotonic() - mended
        found["incarnations"] = {job.name: job.incarnation for job in story.jobs.values()}

    live_through(tell, folder, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
