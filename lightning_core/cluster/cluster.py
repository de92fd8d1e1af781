"""A Ray with one pool of warm workers, and bundles run on it one after another."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import socket
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.preflight import check_folder
from lightning_core.bundle.problems import BundleError
from lightning_core.cloud.ray_cluster import has_token, start_local_ray
from lightning_core.cluster.pool_manager import start_pool_manager
from lightning_core.cluster.worker_slots import LOCATION_LABEL
from lightning_core.core.commands import Cancel, SetDeadline, SetLocation, SetTerms
from lightning_core.core.events import Close, Event, WorkersLost
from lightning_core.core.jobs import Job
from lightning_core.node.signals import SignalReceivedError, descendants, describe_signal, kill_all, recorded_signals
from lightning_core.run.follow import POLL, Watcher, follow
from lightning_core.run.run_folder import write_spec
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import PoolLostError, Summary
from lightning_core.server.ray_actor import Actor, start_scheduler
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import SAVE_EVERY
from lightning_core.storage.journal import Journal, JournalError
from lightning_core.storage.private_files import owner_only

log = logging.getLogger(__name__)

# How long the scheduler may be silent (it restarts in seconds), jobs may take to leave once told to, and all that is
# left to end after that.
PATIENCE = 60.0
GRACE = 30.0
CLOSE = 3.0
# How long Ray's control process may not be reached before it counts as dead. Ray ends everybody after 60 s.
SILENT = 3.0


class Cluster:
    """A local Ray, or the one that this process has joined, with a pool of devices; use it in ``with``.

    Args:
        workers: processes to keep warm, shared out evenly over the devices: the most jobs that are in memory at once.
        kind: of the devices.
        devices: of the pool.
        cores: of each of them, if they are CPUs.
        locations: Location of each device (label :data:`~.worker_slots.LOCATION_LABEL` of nodes); empty for any.
        least: devices that must be there when it opens; the others may come, and go, later. None for all.
        warming: is told how many workers are warm, and of how many, while the pool opens.
    """

    def __init__(
        self,
        workers: int,
        kind: str = "cpu",
        devices: int = 1,
        cores: int = 1,
        locations: Sequence[str] = (),
        least: int | None = None,
        warming: Callable[[int, int], None] | None = None,
    ) -> None:
        if locations and len(locations) != devices:
            raise ValueError(f"locations must be one for each of {devices} devices, got {len(locations)}")
        if workers < devices or devices < 1:
            raise ValueError(f"workers must be at least one a device ({devices} of them), got {workers}")
        self.devices = devices
        self.locations = tuple(locations)
        self._least = least
        self._warming = warming
        self.workers = workers
        self.slots = math.ceil(workers / devices)
        self._kind = kind
        self._cores = cores
        self._name = f"pool-{uuid.uuid4().hex[:8]}"
        self._temp = Path(tempfile.mkdtemp(prefix="lc-"))
        self._own = False
        self._by_force = False
        self._save_every: dict[str, float] = {}
        self._lost_since: float | None = None
        self._keeper: Actor | None = None
        self.scheduler: Actor | None = None
        """Of the run that is going on."""

    @staticmethod
    def workers_of(bundle: BundleSpec) -> int:
        """As many as a bundle wants to keep warm."""
        return bundle.settings.resident or max(len(bundle.jobs), bundle.settings.devices)

    @classmethod
    def of(cls, bundle: BundleSpec, warming: Callable[[int, int], None] | None = None) -> Self:
        """As large as a bundle wants it."""
        settings = bundle.settings
        workers = cls.workers_of(bundle)
        return cls(workers, bundle.kind, settings.devices, settings.cores, settings.locations, warming=warming)

    def __enter__(self) -> Self:
        if self.locations and not ray.is_initialized():
            raise ValueError(
                f"locations must be of a Ray that has been joined: nodes carry them as the label {LOCATION_LABEL}"
            )
        try:
            with recorded_signals() as received:
                if not ray.is_initialized():
                    self._own = True
                    start_local_ray(self._temp, self._kind, self.devices)
                elif not has_token():
                    log.warning("this Ray asks for no token: whoever reaches its ports can run code (RAY_AUTH_MODE)")
                memory = self._temp / "keeper.json"
                self._keeper = start_pool_manager(
                    self._name,
                    self.devices,
                    self.slots,
                    self._kind,
                    self._cores,
                    memory,
                    self.locations,
                    self._least,
                )
                answer(self._keeper.open.remote(), received, self._tell_warming)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        mine = descendants(str(self._temp)) if self._own else {}
        # Who does not answer is not asked to end: all of it ends with its Ray.
        if self._keeper is not None and not (self._own and (self._by_force or self.is_lost())):
            try:
                ray.get(self._keeper.close.remote(), timeout=CLOSE if self._own else GRACE)
            except (RayError, GetTimeoutError) as error:
                if not self._own:  # else all of it ends with its Ray
                    log.warning("the pool did not close by itself: %s", str(error).strip().rpartition("\n")[2])
            ray.kill(self._keeper)
        if self._own:
            ray.shutdown()
            kill_all(mine)  # who was still starting has not heard of it
        shutil.rmtree(self._temp, ignore_errors=True)

    def _tell_warming(self) -> None:
        if self._warming is not None and self._keeper is not None:
            with contextlib.suppress(RayError, GetTimeoutError):  # the next look may tell
                self._warming(*ray.get(self._keeper.starting.remote(), timeout=POLL))

    def is_lost(self) -> bool:
        """Whether the control process of our own Ray is dead: what runs still answers, nothing new can be had."""
        if not self._own or not ray.is_initialized():
            return False
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
            self._lost_since = None
        except OSError:
            self._lost_since = self._lost_since or time.monotonic()
        return self._lost_since is not None and time.monotonic() - self._lost_since > SILENT

    @property
    def pool_manager(self) -> Actor:
        """The Keeper's actor."""
        if self._keeper is None:
            raise RuntimeError("use the cluster in a 'with' statement")
        return self._keeper

    def job(self, name: str) -> Job:
        """A job of the run that is going on, with its terms as they are now.

        Raises:
            RuntimeError: if no run is going on, or has no such job.
        """
        found: Job = call(self._running(), "job", name)
        return found

    def rates(self, name: str) -> dict[int, float]:
        """Batches a second that a job is believed to do on each number of devices; none while nothing is known.

        Raises:
            RuntimeError: if no run is going on, or has no such job.
        """
        found: dict[int, float] = call(self._running(), "rates", name)
        return found

    def save_every(self, name: str) -> float:
        """Seconds of training of a job that may have to be done again if its devices go without notice."""
        return self._save_every.get(name, SAVE_EVERY)  # one that is gone on with may no longer be in the bundle

    def warm(self) -> int:
        """Devices that there is a worker on, and will be."""
        return int(call(self.pool_manager, "warm"))

    def tell(self, event: Event) -> None:
        """Hands an event to the scheduler of the run that is going on.

        Raises:
            RuntimeError: if no run is going on, or has no such job.
        """
        call(self._running(), "event", event)

    def _running(self) -> Actor:
        if self.scheduler is None:
            raise RuntimeError("no run is going on")
        return self.scheduler

    def settings(self, bundle: BundleSpec) -> Settings:
        """The bundle's, with as many jobs in memory as this cluster has workers for.

        Raises:
            BundleError: if it wants more devices than there are, or others.
        """
        wanted = bundle.settings.devices
        if bundle.settings.locations not in ((), self.locations):
            raise BundleError([
                f"pool.devices: the bundle shares {', '.join(bundle.settings.locations)}, the cluster has "
                f"{', '.join(self.locations) or 'no locations'}"
            ])  # fmt: skip
        if wanted > self.devices:
            raise BundleError([f"pool.devices: the bundle shares {wanted} devices, the cluster has {self.devices}"])
        slots = self.slots if bundle.settings.resident is None else min(self.slots, bundle.settings.resident // wanted)
        return replace(bundle.settings, resident=slots * wanted, locations=self.locations[:wanted])

    def run(
        self, bundle: BundleSpec, run_dir: Path, watcher: Watcher | None = None, before: BundleSpec | None = None
    ) -> Summary:
        """Runs a bundle to its end; deadlines count from its submission.

        Args:
            bundle: what to run.
            run_dir: an empty folder for journal, spec, summary and what the jobs save; or that of a run to go on with.
            watcher: is shown the jobs.
            before: the bundle of the run to go on with, as it was.
        """
        settings = self.settings(bundle)
        check_folder(run_dir)
        write_spec(bundle, run_dir)
        name = f"{self._name}-{uuid.uuid4().hex[:8]}"
        self._save_every = {spec.job.name: spec.save_interval for spec in bundle.jobs}
        self.scheduler = scheduler = start_scheduler(name, settings, run_dir, on_verdict=bundle.on_verdict)
        try:
            with recorded_signals() as received:
                self._begin(scheduler, name, bundle, run_dir, before, received)
                follow(lambda: call(scheduler, "status"), lambda: received or self.is_lost(), watcher)
                until, lost = time.monotonic() + GRACE, self.is_lost()
                if received or lost:
                    log.warning("%s: jobs save and leave, within %.0f s", _why(received), GRACE)
                    call(scheduler, "event", Close(describe_signal(received[0]) if received else ""), until=until)
                busy = self._wait_until_idle(scheduler, watcher, until)
                now, jobs = call(scheduler, "status", until=until + CLOSE)
                if busy:
                    self._by_force = True
                    log.warning("not gone after %.0f s, ended by force: %s", GRACE, ", ".join(busy))
            number = received[0] if received else None
            down = 0.0 if before is None else _seconds_down(run_dir)
            summary = Summary.of(settings, now, jobs, run_dir, number, lost=lost, down=down)
            with owner_only():
                summary.write(run_dir / "summary.json")
            call(scheduler, "close", until=until + CLOSE)
            return summary
        except RayTaskError as error:  # what the scheduler refuses, in its words
            raise BundleError([" ".join(str(error.cause).split())]) from error
        except (RayError, GetTimeoutError) as error:
            raise PoolLostError(f"the pool does not answer any more: {error}") from error
        finally:
            if watcher is not None:
                watcher.close()
            ray.kill(scheduler)
            self.scheduler, self._save_every = None, {}

    def _begin(
        self,
        scheduler: Actor,
        name: str,
        bundle: BundleSpec,
        run_dir: Path,
        before: BundleSpec | None,
        received: list[int],
    ) -> None:
        """Hands the bundle over; what an interrupted beginning has handed over already is not handed over again."""
        _, known = answer(scheduler.status.remote(), received)
        if known and before is not None:
            for event in _changes(before, bundle, run_dir):
                answer(scheduler.event.remote(event), received)
        answer(self.pool_manager.serve.remote(name, str(run_dir)), received)
        there = {job.name for job in known}
        bundle = bundle.submit(datetime.now(), except_for=there)
        write_spec(bundle, run_dir)
        new = [spec.for_worker(bundle.folder) for spec in bundle.jobs if spec.job.name not in there]
        answer(scheduler.launch.remote(new), received)

    def _wait_until_idle(self, scheduler: Actor, watcher: Watcher | None, until: float) -> list[str]:
        """The jobs whose workers have not put them down by then."""
        while True:
            busy: list[str] = call(self.pool_manager, "busy", until=until)
            if not busy or time.monotonic() > until:
                return busy
            if watcher is not None:
                watcher.update(*call(scheduler, "status", until=until))
            time.sleep(POLL)


def _why(received: list[int]) -> str:
    return describe_signal(received[0]) if received else "Ray's control process has died"


def _seconds_down(run_dir: Path) -> float:
    try:
        with Journal.open(run_dir / "journal.db", read_only=True) as journal:
            return journal.seconds_down()
    except (JournalError, sqlite3.DatabaseError) as error:  # a figure is not worth a summary
        log.warning("how long the run was left is not known: %s", error)
        return 0.0


def _changes(before: BundleSpec, now: BundleSpec, run_dir: Path) -> list[Event]:
    """What brings a run that was left to the bundle as it is now; new jobs apart."""
    events: list[Event] = [WorkersLost()]
    old = {spec.job.name: spec for spec in before.jobs}
    new = {spec.job.name: spec for spec in now.jobs}
    events += [Cancel(name) for name in old if name not in new]
    for name in old.keys() & new.keys():
        job, was = new[name].job, old[name].job
        if job.deadline != was.deadline:
            events.append(SetDeadline(name, job.deadline, from_submission=True))
        if (terms := SetTerms.between(was, job)) is not None:
            events.append(terms)
        if job.location != was.location:
            events.append(SetLocation(name, job.location))
        if new[name].to_dict() != old[name].to_dict():
            with owner_only():
                write_whole(run_dir / "jobs" / name / "spec.json", json.dumps(new[name].for_worker(now.folder)))
    return events


def call(actor: Actor, method: str, *args: Any, until: float | None = None) -> Any:
    """Calls until it answers: an actor that died is back within seconds, and may be called twice.

    Args:
        actor: to ask.
        method: of it.
        args: of the method.
        until: when to give up, of the monotonic clock; None for a minute from now.
    """
    until = time.monotonic() + PATIENCE if until is None else until
    while True:
        try:
            return ray.get(getattr(actor, method).remote(*args), timeout=max(min(10.0, until - time.monotonic()), 1.0))
        except RayTaskError:
            raise
        except (RayError, GetTimeoutError):
            if time.monotonic() > until:
                raise
            time.sleep(POLL)


def answer(asked: Any, received: list[int], meanwhile: Callable[[], None] | None = None) -> Any:
    """Return what an actor answers, however long that takes.

    Args:
        asked: the call.
        received: numbers of the signals that have come.
        meanwhile: called now and then, and once more before the answer is returned.

    Raises:
        SignalReceivedError: if a signal came meanwhile.
    """
    while not ray.wait([asked], timeout=POLL)[0]:
        if received:
            raise SignalReceivedError(received[0])
        if meanwhile is not None:
            meanwhile()
    found = ray.get(asked)
    if meanwhile is not None:
        meanwhile()
    return found
