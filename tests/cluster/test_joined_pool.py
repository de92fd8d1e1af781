"""Pools in a Ray cluster that is there: by location, several at once, and Ray stays when they go."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from lightning_core.cluster.local_machines import MEMORY
from tests.conftest import ROOT
from tests.waiting import until

RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
       "--include-log-monitor=false", "--num-cpus=1", f"--object-store-memory={MEMORY}"]  # fmt: skip
# Seconds that Ray may take to start on a busy machine, and a command.
START, PATIENCE = 90.0, 180.0


class Joined:
    """A Ray cluster of processes of this machine: a head without devices, and nodes at two locations.

    Args:
        folder: Folder of its files.
        nodes: Location of each node, with the environment variables of what runs there.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._at_first = {"edge": {}, "cloud": {}} if nodes is None else nodes
        self.folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._environment = ours | token | {"HOME": str(folder), "PYTHONPATH": str(ROOT)}
        try:
            self._start_cluster()
        except BaseException:
            self.close()
            raise

    def _start_cluster(self) -> None:
        self._start("--head", "--port=0", f"--temp-dir={self.folder / 'ray'}", "--include-dashboard=false")
        note = self.folder / "ray" / "ray_current_cluster"
        self._until(note.exists)
        self.address = note.read_text().strip()
        for location, variables in self._at_first.items():
            self.start_node(location, **variables)

    def start_node(self, location: str, **variables: str) -> None:
        """Start a node with two devices, and wait until it is one of the cluster."""
        before = self._nodes()
        labels = f"--labels=lightning-core/location={location}"
        self._start(f"--address={self.address}", '--resources={"device":2}', labels, **variables)
        # One after the other: two raylets that start at once on a machine may take the same socket.
        self._until(lambda: self._nodes() == before + 1)

    def lose_newest_node(self) -> None:
        """Kill the raylet of the node that was started last."""
        [raylet] = [
            child for child in psutil.Process(self._processes[-1].pid).children(recursive=True)
            if child.name() == "raylet"
        ]  # fmt: skip
        raylet.kill()

    def by_location(self) -> Path:
        """Return the file of a pool with a device at each location."""
        (path := self.folder / "by_location.yaml").write_text("pool: {devices: {edge: 1, cloud: 1}}")
        return path

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self.python("-m", "lightning_core.cli.main", *map(str, words))

    def python(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python to its end."""
        environment = self._environment | variables
        return subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def jobs(self, pool: Path) -> dict[str, Any]:
        """Return the jobs of a pool."""
        told = self.command("status", "--json", "--all", "--pool", pool)
        return {job["name"]: job for job in json.loads(told.stdout)["jobs"]}

    def unavailable(self, pool: Path) -> list[dict[str, Any]]:
        """Return the devices on which a pool does not plan."""
        told = self.command("status", "--json", "--pool", pool)
        return list(json.loads(told.stdout)["unavailable"])

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    os.killpg(process.pid, number)
            time.sleep(2.0)
        for process in self._processes:
            process.wait()

    def _start(self, *words: str, **variables: str) -> None:
        environment = self._environment | variables
        with (self.folder / "ray.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen([*RAY, *words], env=environment, start_new_session=True, stdout=log, stderr=log)
            )

    def _nodes(self) -> int:
        code = ("import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); "
                "print(sum(node['Alive'] and 'device' in node['Resources'] for node in ray.nodes()))")  # fmt: skip
        told = subprocess.run(
            [sys.executable, "-c", code, self.address], env=self._environment, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        return int(told.stdout.split()[-1]) if told.returncode == 0 else 0

    @staticmethod
    def _until(holds: Any) -> None:
        until = time.monotonic() + START
        while not holds():
            assert time.monotonic() < until, "Ray did not start in time"
            time.sleep(0.5)


@pytest.fixture
def joined() -> Iterator[Joined]:
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        made = Joined(Path(folder))
        try:
            yield made
        finally:
            made.close()


@pytest.mark.nightly
@pytest.mark.cluster
def test_two_pools_share_a_cluster_and_leave_it_alone(joined: Joined) -> None:
    first, second = joined.folder / "first", joined.folder / "second"
    job = {"model": "tests.tiny.Line", "data": "tests.tiny.Points", "deadline": "10m", "target": {"batches": 30}}
    said = joined.command("up", "--ray", joined.address, "--config", joined.by_location(), "--folder", first)
    assert said.returncode == 0, said.stderr
    said = joined.command("up", "--ray", joined.address, "--devices", "2", "--folder", second)
    assert said.returncode == 0, said.stderr
    assert "a pool is up already" in joined.command("up", "--ray", joined.address, "--folder", second).stderr
    for pool, more in ((first, {"location": "cloud"}), (second, {})):
        body = {"pool": {"devices": {"edge": 1, "cloud": 1}} if more else {}, "jobs": {"a": job | more}}
        (bundle := pool.with_suffix(".yaml")).write_text(json.dumps(body))
        said = joined.command("run", bundle, "--pool", pool)
        assert said.returncode == 0, said.stdout + said.stderr
        assert joined.jobs(pool)["a"]["verdict"] == "met"
    for pool in (first, second):
        said = joined.command("down", "--folder", pool)
        assert (said.returncode, said.stderr) == (0, "")
    assert joined._nodes() == 2
    said = joined.command("up", "--ray", joined.address, "--folder", first)
    assert said.returncode == 0, said.stderr
    assert joined.command("down", "--folder", first).returncode == 0


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_script_joins_a_pool_of_a_cluster_by_the_address_of_its_ray(joined: Joined) -> None:
    pool = joined.folder / "pool"
    assert "no pool is up in that Ray" in joined.command("status", "--pool", joined.address).stderr
    said = joined.command("up", "--ray", joined.address, "--devices", "2", "--folder", pool)
    assert said.returncode == 0, said.stderr
    script = joined.python("-m", "tests.script", "s", "10m", "20", LIGHTNING_CORE_POOL=joined.address)
    assert script.returncode == 0, script.stderr
    assert joined.jobs(pool)["s"]["verdict"] == "met"
    assert joined.command("down", "--folder", pool).returncode == 0


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("F21", "R11")
def test_the_device_of_a_node_that_is_lost_while_idle_is_not_planned_on_until_it_is_back(joined: Joined) -> None:
    pool = joined.folder / "pool"
    said = joined.command("up", "--ray", joined.address, "--config", joined.by_location(), "--folder", pool)
    assert said.returncode == 0, said.stderr
    until(lambda: joined.unavailable(pool) == [])
    joined.lose_newest_node()
    [lost] = until(lambda: joined.unavailable(pool))
    assert lost["device"] == 1
    assert "its node is lost" in until(lambda: joined.unavailable(pool))[0]["why"]
    assert "device 1: unavailable: its node is lost" in joined.command("status", "--pool", pool).stdout
    joined.start_node("cloud")
    until(lambda: joined.unavailable(pool) == [])
    job = {"model": "tests.tiny.Line", "data": "tests.tiny.Points", "deadline": "10m", "target": {"batches": 30}}
    body = {"pool": {"devices": {"edge": 1, "cloud": 1}}, "jobs": {"a": job | {"location": "cloud"}}}
    (bundle := pool.with_suffix(".yaml")).write_text(json.dumps(body))
    said = joined.command("run", bundle, "--pool", pool)
    assert said.returncode == 0, said.stdout + said.stderr
    assert joined.command("down", "--folder", pool).returncode == 0


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_pool_that_finds_too_few_devices_leaves_those_that_there_are_to_others(joined: Joined) -> None:
    large, small = joined.folder / "large", joined.folder / "small"
    said = joined.command("up", "--ray", joined.address, "--devices", "50", "--folder", large)
    assert "no free device" in said.stderr
    said = joined.command("up", "--ray", joined.address, "--devices", "2", "--folder", small)
    assert said.returncode == 0, said.stderr
    assert joined.command("down", "--folder", small).returncode == 0
