"""A Ray with one pool of warm workers, and bundles run on it one after another."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Self

import ray
import yaml
from ray.exceptions import GetTimeoutError, RayError

from lightning_core.drivers.ray_actor import NAMESPACE, Actor, start_scheduler
from lightning_core.launch.bundle import Bundle, Kind
from lightning_core.launch.keeper import start_keeper
from lightning_core.launch.loading import BundleError
from lightning_core.launch.worker import Assignment
from lightning_core.summary import Summary
from lightning_core.types import JobStatus, State, WorkerLeft

log = logging.getLogger(__name__)

POLL = 0.25
# Polls between two words to the Keeper, which takes up its watch again if it has been restarted.
KEEPER_EVERY = 8
# How long the scheduler may be silent (it restarts in seconds), and jobs may take to leave once told to.
PATIENCE = 60.0
GRACE = 30.0


class Watcher(Protocol):
    """Is shown the jobs of a run."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""

    def close(self) -> None:
        """The run is over."""


class Cluster:
    """A local Ray, or the one that this process has joined, with a pool of one device; use it in ``with``.

    Args:
        workers: processes to keep warm on the device: the most jobs that a bundle may have.
        kind: of the device.
    """

    def __init__(self, workers: int, kind: Kind = "cpu") -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._workers = workers
        self._kind = kind
        self._name = f"pool-{uuid.uuid4().hex[:8]}"
        self._temp: Path | None = None
        self._keeper: Actor | None = None
        self.scheduler: Actor | None = None
        """Of the run that is going on."""

    def __enter__(self) -> Self:
        if not ray.is_initialized():
            self._temp = Path(tempfile.mkdtemp(prefix="lc-"))
            start_local_ray(self._temp, self._kind)
        self._keeper = start_keeper(self._name, self._workers, self._kind)
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
        if self._temp is not None:
            ray.shutdown()
            shutil.rmtree(self._temp, ignore_errors=True)

    @property
    def keeper(self) -> Actor:
        """The Keeper's actor."""
        if self._keeper is None:
            raise RuntimeError("use the cluster in a 'with' statement")
        return self._keeper

    def run(self, bundle: Bundle, run_dir: Path, watcher: Watcher | None = None) -> Summary:
        """Runs a bundle to its end; deadlines count from when all its jobs are built and may start.

        Args:
            bundle: at most as many jobs as the cluster has workers.
            run_dir: an empty folder for journal, spec and summary.
            watcher: is shown the jobs.
        """
        if len(bundle.jobs) > self._workers:
            raise BundleError([f"jobs: {len(bundle.jobs)} jobs need as many workers, the cluster has {self._workers}"])
        (run_dir / "bundle.yaml").write_text(yaml.safe_dump(bundle.to_dict(), sort_keys=False))
        name = f"{self._name}-{uuid.uuid4().hex[:8]}"
        self.scheduler = scheduler = start_scheduler(name, bundle.settings, run_dir / "journal.db")
        try:
            paths = (str(bundle.folder), str(Path.cwd()))
            assignments = [
                Assignment(
                    job=spec.job.name,
                    target=spec.job.target,
                    config=spec.config,
                    cell=spec.cell,
                    scheduler=name,
                    folder=str(run_dir / "jobs" / spec.job.name),
                    paths=paths,
                    kind=bundle.kind,
                )
                for spec in bundle.jobs
            ]
            failed: dict[str, str] = ray.get(self.keeper.prepare.remote(assignments))
            ray.get(scheduler.submit.remote(tuple(spec.job for spec in bundle.jobs)))
            for job, traceback in failed.items():
                ray.get(scheduler.left.remote(WorkerLeft(job, 1, crashed=True, detail=traceback)))
            _call(self.keeper, "start")
            with _signals() as received:
                now, jobs = self._follow(scheduler, received, watcher)
            summary = Summary.of(bundle.settings, now, jobs, run_dir, received[0] if received else None)
            summary.write(run_dir / "summary.json")
            _call(scheduler, "close")
            return summary
        finally:
            if watcher is not None:
                watcher.close()
            ray.kill(scheduler)
            self.scheduler = None

    def _follow(self, scheduler: Actor, received: list[int], watcher: Watcher | None) -> tuple[float, list[JobStatus]]:
        cancelled = False
        for look in itertools.count():
            if look % KEEPER_EVERY == 0:
                self.keeper.busy.remote()  # nobody waits for the answer
            now, jobs = _call(scheduler, "status")
            if watcher is not None:
                watcher.update(now, jobs)
            if all(job.state is State.ENDED for job in jobs):
                break
            if received and not cancelled:
                _call(scheduler, "cancel", tuple(job.name for job in jobs))
                cancelled = True
            time.sleep(POLL)
        until = time.monotonic() + GRACE
        while (busy := _call(self.keeper, "busy")) and time.monotonic() < until:
            time.sleep(POLL)
        if busy:
            log.warning("still busy after %.0f s, ended by force when the pool closes: %s", GRACE, ", ".join(busy))
        return now, jobs


def start_local_ray(temp: Path, kind: Kind = "cpu") -> None:
    """A Ray of this process's own: with a token, without a dashboard, its files in ``temp``.

    Ray turns a loopback address for the node into the machine's own, so its ports can be reached from outside: the
    token is the wall.
    """
    # Ray writes its token and its folders with the permissions of the process.
    mask = os.umask(0o077)
    try:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            resources={"device": 1} if kind == "cpu" else None,
            object_store_memory=100 * 2**20,
            _temp_dir=str(temp),
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
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _call(actor: Actor, method: str, *args: Any) -> Any:
    """Calls until it answers: an actor that died is back within seconds, and may be called twice."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ray.get(getattr(actor, method).remote(*args), timeout=10.0)
        except (RayError, GetTimeoutError):
            if time.monotonic() > until:
                raise
            time.sleep(POLL)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM while the jobs run; the second one is not collected but acts as ever."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def collect(number: int, frame: object) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, collect)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
