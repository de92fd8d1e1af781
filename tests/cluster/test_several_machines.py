"""A pool on machines with addresses of their own: ranks meet, a machine is lost, and the head gets another address."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cluster.local_machines import MEMORY
from tests.conftest import ROOT
from tests.machines import NETWORK, Machine, network, why_not
from tests.waiting import until

# Seconds that a command may take, and Ray to start on a busy machine.
PATIENCE = 120.0
PORT = 6379
# Types of GPU, as labels: each machine gives one device, which is a CPU here.
TYPES = ("a100", "h100", "h100")
# Bytes that the second rank has more than the first.
MORE = 2**30
JOB = {
    "model": {"class_path": "tests.tiny.HeavyLine", "init_args": {"more": MORE, "pause": 0.02}},
    "data": {"class_path": "tests.tiny.Points"},
    "deadline": "1h",
    "target": {"batches": 100_000},
    "devices": 2,
    "save_every": 2,
}
NODE_OF = """
import json, sys, ray
from ray.util import get_placement_group, placement_group_table
ray.init(address=sys.argv[1], namespace="lightning_core", log_to_driver=False, logging_level="ERROR")
address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
group = get_placement_group(sys.argv[2])
print(address[placement_group_table(group)["bundles_to_node_id"][0]])
"""


class Site:
    """A Ray on three machines, and a pool on it.

    Args:
        folder: Folder that all machines see.
        machines: Machines, the head first.
    """

    def __init__(self, folder: Path, machines: list[Machine]) -> None:
        self.folder, self.machines, self.pool = folder, machines, folder / "pool"
        self.head = machines[0]
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        own = {"HOME": str(folder), "TMPDIR": str(folder / "own"), "PYTHONPATH": str(ROOT)}
        self._environment = ours | token | own

    @property
    def ray(self) -> str:
        """Address of Ray's head."""
        return f"{self.head.address}:{PORT}"

    def start_ray(self) -> None:
        """Start Ray on all machines."""
        for machine in self.machines:
            self.start_node(machine)

    def start_node(self, machine: Machine) -> None:
        """Start Ray on a machine, and wait until it says so."""
        number = self.machines.index(machine)
        where = ["--head", f"--port={PORT}", f"--temp-dir={self.folder / 'own' / 'ray'}", "--include-dashboard=false"]
        log = self.folder / f"ray-{number}.log"
        log.write_text("")
        machine.start(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
                *(where if machine is self.head else [f"--address={self.ray}"]),
                f"--node-ip-address={machine.address}", "--include-log-monitor=false", "--num-cpus=1",
                f"--object-store-memory={MEMORY}", '--resources={"device":1}',
                f"--labels=lightning-core/location={TYPES[number]}",
            ],
            self._environment, log,
        )  # fmt: skip
        until(lambda: "Ray runtime started" in log.read_text())

    def command(self, *words: object) -> str:
        """Run a command on the head to its end; return what it says."""
        return self._python("-m", "lightning_core.cli.main", *map(str, words))

    def up(self) -> None:
        (config := self.pool.with_name("pool.yaml")).write_text("pool: {devices: {a100: 1, h100: 2}}")
        self.command("up", "--ray", self.ray, "--config", config, "--folder", self.pool)

    def status(self) -> dict[str, Any]:
        """Return what the pool says of itself and its jobs."""
        found: dict[str, Any] = json.loads(self.command("status", "--json", "--pool", self.pool))
        return found

    def until_job(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until something holds of the job; return the job."""

        def look() -> dict[str, Any] | None:
            [job] = self.status()["jobs"]
            return job if holds(job) else None

        found: dict[str, Any] = until(look)
        return found

    def machine_of(self, device: int) -> Machine:
        """Return the machine that gives a device."""
        name = json.loads((self.pool / "head.json").read_text())["name"]
        address = self._python("-c", NODE_OF, self.ray, f"{name}-device-{device}").split()[-1]
        return next(machine for machine in self.machines if machine.address == address)

    def _python(self, *words: str) -> str:
        done = subprocess.run(
            [*self.head.inside, sys.executable, *words], env=self._environment, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def site() -> Iterator[Site]:
    if why := why_not():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="lc-") as name, network(Path(name), len(TYPES)) as machines:
        made = Site(Path(name), machines)
        made.start_ray()
        yield made


@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.promise("R5", "R11", "R20", "F5", "F21")
def test_a_pool_on_several_machines_outlives_a_lost_machine_and_another_address_of_its_head(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    site.up()
    bundle = site.folder / "bundle.yaml"
    bundle.write_text(json.dumps({"pool": {"devices": {"a100": 1, "h100": 2}}, "jobs": {"pair": JOB}}))
    site.command("submit", bundle, "--pool", site.pool)
    begun = site.until_job(lambda job: (job["checkpoint_batches"] or 0) > 20)
    assert len(begun["devices"]) == 2
    assert len({site.machine_of(device).address for device in begun["devices"]}) == 2
    assert begun["restarts"] == 0
    # The rank on the other machine has more memory: what it has counts on both.
    assert MORE < site.until_job(lambda job: (job["memory"] or 0) > MORE)["memory"] < 2 * MORE

    # A machine is switched off under the job: it goes on elsewhere, from what it had saved.
    lost = next(device for device in begun["devices"] if site.machine_of(device) is not site.head)
    machine = site.machine_of(lost)
    machine.switch_off()
    off = site.status()["now"]
    job = site.until_job(lambda job: job["state"] == "running" and job["incarnation"] > 1)
    words = f"a machine of two switched off: its job trained elsewhere after {site.status()['now'] - off:.0f} s"
    record_property("figure", words)
    print(words)
    assert lost not in job["devices"]
    assert job["batches"] >= begun["checkpoint_batches"]
    assert lost in [one["device"] for one in site.status()["unavailable"]]
    why = site.command("why", "pair", "--pool", site.pool)
    assert f"its worker on device {lost} has not answered" in why
    machine.switch_on()
    site.start_node(machine)
    until(lambda: site.status()["unavailable"] == [])

    # The head gets another address: it is told, and the pool begins again with what was saved.
    saved = site.until_job(lambda job: job["checkpoint_batches"] > begun["checkpoint_batches"])
    site.head.change_address(f"{NETWORK}91")
    said = until(lambda: (text := site.command("status", "--pool", site.pool)) * ("has not called" in text))
    assert "end Ray on all nodes, start it again" in said
    assert "does not answer" in site.command("down", "--now", "--folder", site.pool)
    for one in site.machines:
        one.switch_off()
        one.switch_on()
    site.start_ray()
    site.up()
    job = site.until_job(lambda job: job["state"] == "running" and job["incarnation"] > saved["incarnation"])
    assert job["batches"] >= saved["checkpoint_batches"]
    assert job["deadline"] == saved["deadline"]
    site.command("down", "--now", "--folder", site.pool)
