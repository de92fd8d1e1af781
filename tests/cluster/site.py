"""A Ray on machines with addresses of their own, and a pool on it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_core.cluster.local_machines import MEMORY
from tests.conftest import ROOT
from tests.machines import Machine
from tests.waiting import until

# Seconds that a command may take, and Ray to start on a busy machine.
PATIENCE = 120.0
PORT = 6379
NODE_OF = """
import json, sys, ray
from ray.util import get_placement_group, placement_group_table
ray.init(address=sys.argv[1], namespace="lightning_core", log_to_driver=False, logging_level="ERROR")
address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
group = get_placement_group(sys.argv[2])
print(address[placement_group_table(group)["bundles_to_node_id"][0]])
"""

# Prints the process of the worker that has a job on a device: a device has several.
PID_OF = """
import sys, ray
ray.init(address=sys.argv[1], namespace="lightning_core", log_to_driver=False, logging_level="ERROR")
workers = [one for one in ray.util.list_named_actors() if one.startswith(sys.argv[2] + "-")]
for worker in map(ray.get_actor, workers):
    incarnation = ray.get(worker.job.remote(), timeout=30)
    if incarnation is not None and incarnation.job == sys.argv[3]:
        print(ray.get(worker.pid.remote(), timeout=30))
"""


class Site:
    """A Ray on three machines, and a pool on it.

    Args:
        folder: Folder that all machines see.
        machines: Machines, the head first.
        devices: Devices of each; they are CPUs here.
    """

    def __init__(self, folder: Path, machines: list[Machine], devices: int = 1) -> None:
        self.folder, self.machines, self.pool = folder, machines, folder / "pool"
        self._devices = devices
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
                f"--object-store-memory={MEMORY}", f'--resources={{"device":{self._devices}}}',
            ],
            self._environment, log,
        )  # fmt: skip
        until(lambda: "Ray runtime started" in log.read_text())

    def command(self, *words: object) -> str:
        """Run a command on the head to its end; return what it says."""
        return self._python("-m", "lightning_core.cli.main", *map(str, words))

    def up(self, config_text: str) -> None:
        """Start the pool with a configuration."""
        (config := self.pool.with_name("pool.yaml")).write_text(config_text)
        self.command("up", "--ray", self.ray, "--config", config, "--folder", self.pool)

    def status(self) -> dict[str, Any]:
        """Return what the pool says of itself and its jobs."""
        found: dict[str, Any] = json.loads(self.command("status", "--json", "--pool", self.pool))
        return found

    def submit(self, **jobs: dict[str, Any]) -> None:
        """Submit jobs."""
        bundle = self.folder / "bundle.json"
        bundle.write_text(json.dumps({"jobs": jobs}))
        self.command("submit", bundle, "--pool", self.pool)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return what the pool says of its jobs, by name."""
        return {job["name"]: job for job in self.status()["jobs"]}

    def until_job(self, holds: Callable[[dict[str, Any]], bool], name: str = "pair") -> dict[str, Any]:
        """Wait until something holds of a job; return the job."""

        def look() -> dict[str, Any] | None:
            job = self.jobs()[name]
            return job if holds(job) else None

        try:
            found: dict[str, Any] = until(look)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.command('why', name, '--pool', self.pool)}") from None
        return found

    def machine_of(self, device: int) -> Machine:
        """Return the machine that gives a device."""
        address = self._python("-c", NODE_OF, self.ray, f"{self._name}-device-{device}").split()[-1]
        return next(machine for machine in self.machines if machine.address == address)

    def pid_of(self, job: str, device: int) -> int:
        """Return the process that trains a job on a device."""
        return int(self._python("-c", PID_OF, self.ray, f"{self._name}-worker-{device}", job).split()[-1])

    @property
    def _name(self) -> str:
        return str(json.loads((self.pool / "head.json").read_text())["name"])

    def _python(self, *words: str) -> str:
        done = subprocess.run(
            [*self.head.inside, sys.executable, *words], env=self._environment, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr
