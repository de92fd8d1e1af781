"""A Ray with one pool of warm workers, and bundles run on it one after another."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
import time
import uuid
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import ray
import yaml
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from lightning_core.drivers.ray_actor import NAMESPACE, NICE, Actor, start_scheduler
from lightning_core.launch.bundle import Bundle
from lightning_core.launch.follow import POLL, Watcher, follow, signals
from lightning_core.launch.keeper import start_keeper
from lightning_core.launch.preflight import check_folder
from lightning_core.launch.problems import BundleError
from lightning_core.settings import Settings
from lightning_core.summary import Summary
from lightning_core.types import Amend, Cancel, Close, Event, JobStatus, WorkersLost

log = logging.getLogger(__name__)

# How long the scheduler may be silent (it restarts in seconds), and jobs may take to leave once told to.
PATIENCE = 60.0
GRACE = 30.0


class Cluster:
    """A local Ray, or the one that this process has joined, with a pool of devices; use it in ``with``.

    Args:
        workers: processes to keep warm, shared out evenly over the devices: the most jobs that are in memory at once.
        kind: of the devices.
        devices: of the pool.
    """

    def __init__(self, workers: int, kind: str = "cpu", devices: int = 1) -> None:
        if workers < devices or devices < 1:
            raise ValueError(f"workers must be at least one a device ({devices} of them), got {workers}")
        self.devices = devices
        self.slots = math.ceil(workers / devices)
        self._kind = kind
        self._name = f"pool-{uuid.uuid4().hex[:8]}"
        self._temp = Path(tempfile.mkdtemp(prefix="lc-"))
        self._own = False
        self._keeper: Actor | None = None
        self.scheduler: Actor | None = None
        """Of the run that is going on."""

    def __enter__(self) -> Self:
        if not ray.is_initialized():
            start_local_ray(self._temp, self._kind, self.devices)
            self._own = True
        self._keeper = start_keeper(self._name, self.devices, self.slots, self._kind, self._temp / "keeper.json")
        try:
            ray.get(self._keeper.open.remote())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            try:
                ray.get(self._keeper.close.remote(), timeout=GRACE)
            except (RayError, GetTimeoutError) as error:
                log.warning("the pool did not close by itself: %s", error)
            ray.kill(self._keeper)
        if self._own:
            ray.shutdown()
        shutil.rmtree(self._temp, ignore_errors=True)

    @property
    def keeper(self) -> Actor:
        """The Keeper's actor."""
        if self._keeper is None:
            raise RuntimeError("use the cluster in a 'with' statement")
        return self._keeper

    def settings(self, bundle: Bundle) -> Settings:
        """The bundle's, with as many jobs in memory as this cluster has workers for.

        Raises:
            BundleError: if it wants more devices than there are.
        """
        wanted = bundle.settings.devices
        if wanted > self.devices:
            raise BundleError([f"pool.devices: the bundle shares {wanted} devices, the cluster has {self.devices}"])
        slots = self.slots if bundle.settings.resident is None else min(self.slots, bundle.settings.resident // wanted)
        return replace(bundle.settings, resident=slots * wanted)

    def run(
        self, bundle: Bundle, run_dir: Path, watcher: Watcher | None = None, before: Bundle | None = None
    ) -> Summary:
        """Runs a bundle to its end; deadlines count from its submission.

        Args:
            bundle: what to run.
            run_dir: an empty folder for journal, spec, summary and what the jobs save; or that of a run to go on with.
            watcher: is shown the jobs.
            before: the bundle of the run to go on with, as it was.
        """
        settings = self.settings(bundle)
        (run_dir / "bundle.yaml").write_text(yaml.safe_dump(bundle.to_dict(), sort_keys=False))
        name = f"{self._name}-{uuid.uuid4().hex[:8]}"
        self.scheduler = scheduler = start_scheduler(name, settings, run_dir, on_verdict=bundle.on_verdict)
        try:
            ray.get(scheduler.pid.remote())
            if before is not None:
                for event in _changes(before, bundle, run_dir):
                    ray.get(scheduler.event.remote(event))
            ray.get(self.keeper.serve.remote(name, str(run_dir)))
            known = set() if before is None else {spec.job.name for spec in before.jobs}
            ray.get(
                scheduler.launch.remote([s.for_worker(bundle.folder) for s in bundle.jobs if s.job.name not in known])
            )
            with signals() as received:
                now, jobs = follow(self._looker(scheduler), received, watcher)
                if received:
                    call(scheduler, "event", Close())
                self._wait_until_idle()
                now, jobs = call(scheduler, "status")
            summary = Summary.of(settings, now, jobs, run_dir, received[0] if received else None)
            summary.write(run_dir / "summary.json")
            call(scheduler, "close")
            return summary
        except RayTaskError as error:  # what the scheduler refuses, in its words
            raise BundleError([" ".join(str(error.cause).split())]) from error
        finally:
            if watcher is not None:
                watcher.close()
            ray.kill(scheduler)
            self.scheduler = None

    def _looker(self, scheduler: Actor) -> Any:
        def look() -> tuple[float, list[JobStatus]]:
            answer: tuple[float, list[JobStatus]] = call(scheduler, "status")
            return answer

        return look

    def _wait_until_idle(self) -> None:
        until = time.monotonic() + GRACE
        while (busy := call(self.keeper, "busy")) and time.monotonic() < until:
            time.sleep(POLL)
        if busy:
            log.warning("still busy after %.0f s, ended by force when the pool closes: %s", GRACE, ", ".join(busy))


def _changes(before: Bundle, now: Bundle, run_dir: Path) -> list[Event]:
    """What brings a run that was left to the bundle as it is now; new jobs apart."""
    events: list[Event] = [WorkersLost()]
    old = {spec.job.name: spec for spec in before.jobs}
    new = {spec.job.name: spec for spec in now.jobs}
    events += [Cancel(name) for name in old if name not in new]
    for name in old.keys() & new.keys():
        if new[name].job != old[name].job:
            events.append(Amend(new[name].job))
        if new[name].to_dict() != old[name].to_dict():
            (run_dir / "jobs" / name / "spec.json").write_text(json.dumps(new[name].for_worker(now.folder)))
    return events


def start_local_ray(temp: Path, kind: str = "cpu", devices: int = 1) -> None:
    """A Ray of this process's own: with a token, without a dashboard, its files in ``temp / "ray"``.

    Ray turns a loopback address for the node into the machine's own, so its ports can be reached from outside: the
    token is the wall.
    """
    os.environ |= NICE
    # Ray writes its token with the permissions of the process, and opens its own folder to everybody.
    mask = os.umask(0o077)
    try:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            resources={"device": devices} if kind == "cpu" else None,
            object_store_memory=100 * 2**20,
            _temp_dir=str(temp / "ray"),
        )
    finally:
        os.umask(mask)
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    if token.exists():
        token.chmod(0o600)


def new_run_dir(wanted: Path | str | None) -> Path:
    """A folder for a run, made now.

    Raises:
        BundleError: if it is there and not empty: a run is never written over another.
    """
    folder = Path(wanted) if wanted is not None else Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise BundleError([f"{folder}: is not empty; name another folder for this run"])
    check_folder(folder)
    return folder.resolve()


def call(actor: Actor, method: str, *args: Any) -> Any:
    """Calls until it answers: an actor that died is back within seconds, and may be called twice."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ray.get(getattr(actor, method).remote(*args), timeout=10.0)
        except (RayError, GetTimeoutError):
            if time.monotonic() > until:
                raise
            time.sleep(POLL)
