"""A Ray cluster with a pool of warm workers, on which bundles run one after another."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import ray
from ray.exceptions import GetTimeoutError, RayError

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.preflight import check_folder
from lightning_core.bundle.problems import BundleError
from lightning_core.cluster.bundle_runner import CLOSE_TIMEOUT, SHUTDOWN_GRACE, BundleRunner
from lightning_core.cluster.device_groups import LOCATION_LABEL
from lightning_core.cluster.local_machines import HEALTH
from lightning_core.cluster.nodes_back import give_nodes_back, still_billed
from lightning_core.cluster.pool_manager import start_pool_manager
from lightning_core.cluster.ray_calls import answer, call
from lightning_core.cluster.ray_cluster import has_token, start_local_ray
from lightning_core.core.events import Event
from lightning_core.core.supplies import NodeSource
from lightning_core.node.signals import descendants, kill_all, recorded_signals
from lightning_core.run.follow import POLL, Watcher
from lightning_core.run.run_folder import write_spec
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.server.ray_settings import Actor
from lightning_core.server.start_scheduler import start_scheduler

log = logging.getLogger(__name__)

# Seconds for which Ray's control process may be unreachable before it counts as dead. Ray itself waits for 60 s.
MAX_GCS_SILENCE = 3.0


class Cluster:
    """A local Ray, or the one that this process has joined, with a pool of devices; use it in ``with``.

    Args:
        workers: Number of processes to keep warm, evenly over the devices: the maximum number of jobs in memory.
        kind: Kind of the devices.
        devices: Number of devices.
        cores: Cores of each device, if they are CPUs.
        locations: Location of each device (label :data:`~.device_groups.LOCATION_LABEL` of nodes); empty for any.
        min_devices: Number of devices that the pool needs to open, if nodes come and go; None for all.
        warming: Called while the pool opens, with the number of warm workers and of all workers.

    Attributes:
        name: Name of the pool, with which the names of its actors begin.
        scheduler: Actor of the scheduler of the current run; None between runs.
    """

    def __init__(
        self,
        workers: int,
        kind: str = "cpu",
        devices: int = 1,
        cores: int = 1,
        locations: Sequence[str] = (),
        min_devices: int | None = None,
        warming: Callable[[int, int], None] | None = None,
    ) -> None:
        if locations and len(locations) != devices:
            raise ValueError(f"locations must be one for each of {devices} devices, got {len(locations)}")
        if workers < devices or devices < 1:
            raise ValueError(f"workers must be at least one a device ({devices} of them), got {workers}")
        self.devices = devices
        self.locations = tuple(locations)
        self._min_devices = min_devices
        self._warming = warming
        self.workers = workers
        self.workers_per_device = math.ceil(workers / devices)
        self._kind = kind
        self._cores = cores
        self.name = f"pool-{uuid.uuid4().hex[:8]}"
        self._temp = Path(tempfile.mkdtemp(prefix="lc-"))
        self._owns_ray = False
        self._killed = False
        self._lost_since: float | None = None
        self._pool_manager: Actor | None = None
        self.scheduler: Actor | None = None

    @staticmethod
    def workers_of(bundle: BundleSpec) -> int:
        """Return the number of workers that a bundle asks to keep warm; where nodes come and go, of each node one."""
        if bundle.settings.supply is not None:
            return bundle.settings.devices
        return bundle.settings.resident or max(len(bundle.jobs), bundle.settings.devices)

    @classmethod
    def of(cls, bundle: BundleSpec, warming: Callable[[int, int], None] | None = None) -> Self:
        """Return a cluster of the size that a bundle asks for, without nodes at first if they come and go."""
        settings, workers = bundle.settings, cls.workers_of(bundle)
        fewest = None if settings.supply is None else 0
        return cls(workers, bundle.kind, settings.devices, settings.cores, settings.locations, fewest, warming)

    @property
    def comes_and_goes(self) -> bool:
        """Whether nodes join and leave it while it is up."""
        return self._min_devices is not None

    def __enter__(self) -> Self:
        if self.locations and not ray.is_initialized():
            raise ValueError(
                f"locations must be of a Ray that has been joined: nodes carry them as the label {LOCATION_LABEL}"
            )
        try:
            with recorded_signals() as received:
                if not ray.is_initialized():
                    self._owns_ray = True
                    if self.comes_and_goes:  # its nodes have the devices, and are missed within seconds
                        os.environ |= HEALTH
                    start_local_ray(self._temp, self._kind, 0 if self.comes_and_goes else self.devices)
                elif not has_token():
                    log.warning(
                        "this Ray requires no token: anyone who can reach its ports can run code (set RAY_AUTH_MODE)"
                    )
                memory = self._temp / "manager.json"
                self._pool_manager = start_pool_manager(
                    self.name,
                    self.devices,
                    self.workers_per_device,
                    self._kind,
                    self._cores,
                    memory,
                    self.locations,
                    self._min_devices,
                )
                answer(self._pool_manager.open.remote(), received, self._tell_warming)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        children = descendants(str(self._temp)) if self._owns_ray else {}
        # A pool manager that does not answer is not asked to close: everything ends with its Ray.
        if self._pool_manager is not None and not (self._owns_ray and (self._killed or self.is_lost())):
            try:
                ray.get(self._pool_manager.close.remote(), timeout=CLOSE_TIMEOUT if self._owns_ray else SHUTDOWN_GRACE)
            except (RayError, GetTimeoutError) as error:
                if not self._owns_ray:  # otherwise everything ends with its Ray
                    log.warning("the pool did not close by itself: %s", str(error).strip().rpartition("\n")[2])
            ray.kill(self._pool_manager)
        if self._owns_ray:
            ray.shutdown()
            kill_all(children)  # processes that were still starting
        shutil.rmtree(self._temp, ignore_errors=True)

    def _tell_warming(self) -> None:
        if self._warming is not None and self._pool_manager is not None:
            with contextlib.suppress(RayError, GetTimeoutError):  # reported the next time
                self._warming(*ray.get(self._pool_manager.starting.remote(), timeout=POLL))

    def is_lost(self) -> bool:
        """Return whether the control process of the local Ray is dead: actors still answer, but none can be started."""
        if not self._owns_ray or not ray.is_initialized():
            return False
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
            self._lost_since = None
        except OSError:
            self._lost_since = self._lost_since or time.monotonic()
        return self._lost_since is not None and time.monotonic() - self._lost_since > MAX_GCS_SILENCE

    @property
    def pool_manager(self) -> Actor:
        """Actor of the pool manager."""
        if self._pool_manager is None:
            raise RuntimeError("use the cluster in a 'with' statement")
        return self._pool_manager

    def tell(self, event: Event) -> None:
        """Send an event to the scheduler of the current run.

        Raises:
            RuntimeError: If there is no current run, or it has no such job.
        """
        call(self._running(), "event", event)

    def _running(self) -> Actor:
        if self.scheduler is None:
            raise RuntimeError("there is no current run")
        return self.scheduler

    def settings(self, bundle: BundleSpec) -> Settings:
        """Return the settings of a bundle, limited to as many jobs in memory as this cluster has workers for.

        Raises:
            BundleError: If it asks for more devices than there are, or others.
        """
        wanted = bundle.settings.devices
        if bundle.settings.locations not in ((), self.locations):
            raise BundleError([
                f"pool.devices: the bundle shares {', '.join(bundle.settings.locations)}, the cluster has "
                f"{', '.join(self.locations) or 'no locations'}"
            ])  # fmt: skip
        if wanted > self.devices:
            raise BundleError([f"pool.devices: the bundle shares {wanted} devices, the cluster has {self.devices}"])
        workers_per_device = (
            self.workers_per_device
            if bundle.settings.resident is None
            else min(self.workers_per_device, bundle.settings.resident // wanted)
        )
        return replace(bundle.settings, resident=workers_per_device * wanted, locations=self.locations[:wanted])

    def run(
        self,
        bundle: BundleSpec,
        run_dir: Path,
        watcher: Watcher | None = None,
        before: BundleSpec | None = None,
        nodes: NodeSource | None = None,
    ) -> Summary:
        """Run a bundle to its end; deadlines count from its submission.

        Args:
            bundle: Bundle to run.
            run_dir: Empty folder for the journal, spec, summary, logs and checkpoints; or that of a run to resume.
            watcher: Object that is shown the jobs.
            before: Bundle of the run to resume, as it was.
            nodes: Nodes of the pool; None for those of the bundle's supply if they come and go, else for devices that
                stay.
        """
        settings = self.settings(bundle)
        if nodes is None and bundle.supply is not None and self.comes_and_goes:
            nodes = bundle.supply.nodes(settings, self.name, self._kind, local=self._owns_ray)
        check_folder(run_dir)
        if before is None:  # a resumed run's own is replaced once the changes are in the journal
            write_spec(bundle, run_dir)
        name = f"{self.name}-{uuid.uuid4().hex[:8]}"
        self.scheduler = start_scheduler(name, settings, run_dir, on_verdict=bundle.on_verdict)
        provisioner: Actor | None = None
        if nodes is not None:
            provisioner = nodes.start(self.name, name, run_dir)

        def give_back() -> None:
            nonlocal provisioner
            if provisioner is not None:
                self._give_back(provisioner)
            provisioner = None

        runner = BundleRunner(name, self.scheduler, self.pool_manager, self.is_lost, watcher, give_back)
        try:
            return runner.run(bundle, settings, run_dir, before)
        finally:
            self._killed = self._killed or bool(runner.busy)
            give_back()
            if watcher is not None:
                watcher.close()
            ray.kill(self.scheduler)
            self.scheduler = None
            if bundle.supply is not None:
                bundle.supply.left(run_dir)

    def _give_back(self, provisioner: Actor) -> None:
        """Give all nodes back, and log an error if some remain."""
        if not give_nodes_back(provisioner):
            log.error("%s", still_billed(provisioner))
        ray.kill(provisioner)
