"""The Keeper: one detached actor that looks after devices and workers, apart from the scheduler that decides.

Rules

1. One permanent placement group of one device for each device of the pool; workers take a hundredth of it each, so that
   several are warm on one device. Who trains is decided by grants and turns, not by Ray.
2. Groups, turnstiles and workers are detached and named. A Keeper that is started again adopts them by their names.
3. Results go from worker to scheduler. The Keeper only watches whether workers are alive, and speaks for the dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lightning_core.drivers.ray_actor import NAMESPACE, Actor
from lightning_core.launch.turnstile import Turnstile
from lightning_core.launch.worker import Assignment, Worker
from lightning_core.types import WorkerLeft

# Part of a device's Ray resource that each process on it takes.
PART = 0.01
# Seconds between two looks at the workers.
LOOK = 1.0


class TurnstileActor:
    """Hosts a device's turnstile on the device's node."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lc-"))  # private to the user
        self._turnstile = Turnstile(self._folder / "turn")

    def path(self) -> str:
        """Of the socket."""
        return str(self._turnstile.path)

    def close(self) -> None:
        """Ends the turnstile."""
        self._turnstile.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Keeper:
    """Looks after one device and its workers.

    Args:
        name: of the pool; everything it makes is named after it.
        workers: how many to keep warm.
        kind: of the device, ``"cpu"`` or ``"gpu"``.
    """

    def __init__(self, name: str, workers: int, kind: str) -> None:
        self._name = name
        self._kind = kind
        self._resource = "GPU" if kind == "gpu" else "device"
        self._group: Any = None
        self._turnstile: Actor | None = None
        self._workers: list[Actor | None] = [None] * workers
        self._watch: asyncio.Task[None] | None = None
        self._jobs: dict[int, tuple[str, str]] = {}
        self._prepared: dict[int, tuple[str, str]] = {}

    async def open(self, patience: float = 120.0) -> None:
        """Brings up, or finds again, the device's group, its turnstile and its workers.

        Raises:
            RuntimeError: if no node has the device free.
        """
        if self._group is None:
            self._group = await asyncio.to_thread(self._find_group)
            if not await asyncio.to_thread(self._group.wait, 10.0):
                raise RuntimeError(f"no free device: the cluster has no {self._resource} to give")
        self._turnstile = self._detached(TurnstileActor, "turnstile").remote()
        path = await self._turnstile.path.remote()
        for k, worker in enumerate(self._workers):
            if worker is None:
                self._workers[k] = self._worker(k, path)
        await asyncio.wait_for(asyncio.gather(*(w.pid.remote() for w in self._workers if w is not None)), patience)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._look_after())

    async def prepare(self, assignments: list[Assignment]) -> dict[str, str]:
        """Has each job built by a worker of its own.

        Returns:
            The traceback of each job that could not be built.

        Raises:
            ValueError: if there are more jobs than workers.
        """
        if len(assignments) > len(self._workers):
            raise ValueError(f"{len(assignments)} jobs need as many workers, the pool has {len(self._workers)}")
        await self.open()
        for k, worker in enumerate(self._workers):
            if worker is not None and await worker.job.remote() is not None:  # of a run that was given up
                ray.kill(worker)
                self._workers[k] = None
        await self.open()
        self._jobs = self._prepared = {}
        answers = await asyncio.gather(
            *(w.prepare.remote(a) for w, a in zip(self._workers, assignments, strict=False) if w is not None),
            return_exceptions=True,
        )
        self._prepared = {k: (a.job, a.scheduler) for k, a in enumerate(assignments) if answers[k] is None}
        self._jobs = dict(self._prepared)
        return {a.job: str(said) for a, said in zip(assignments, answers, strict=True) if said is not None}

    async def start(self) -> None:
        """Lets every prepared job train; a worker that has none, or trains already, does nothing."""
        for k, lost in self._prepared.items():
            if self._workers[k] is None:  # died before the scheduler knew the job
                await self._mourn(*lost)
        await self.open()
        for worker in self._workers:
            if worker is not None:
                worker.fit.remote()

    async def busy(self) -> list[str]:
        """Jobs whose worker has not put them down yet. Asked now and then, a restarted Keeper takes up its watch."""
        if self._watch is None or self._watch.done():
            await self.open()
        return [job for job, _ in self._jobs.values()]

    async def pids(self) -> list[int]:
        """Of the workers' processes."""
        return list(await asyncio.gather(*(w.pid.remote() for w in self._workers if w is not None)))

    async def pid(self) -> int:
        """Of the Keeper's own process."""
        return os.getpid()

    async def close(self) -> None:
        """Ends workers, turnstile and group, also those of a Keeper before this one."""
        if self._watch is not None:
            self._watch.cancel()
        for k in range(len(self._workers)):
            self._end(f"worker-{k}")
        try:
            turnstile = ray.get_actor(f"{self._name}-turnstile", namespace=NAMESPACE)
            await turnstile.close.remote()
        except (ValueError, RayError):
            pass  # there is none, or it died: its process took the socket with it
        self._end("turnstile")
        await asyncio.to_thread(lambda: remove_placement_group(self._find_group()))

    def _end(self, name: str) -> None:
        with contextlib.suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(f"{self._name}-{name}", namespace=NAMESPACE))

    def _find_group(self) -> Any:
        name = f"{self._name}-device-0"
        with_name = {"name": name, "lifetime": "detached"}
        try:
            return ray.util.get_placement_group(name)
        except ValueError:  # there is none yet
            return placement_group([{self._resource: 1}], strategy="PACK", **with_name)

    def _detached(self, kind: type[Any], name: str, **options: Any) -> Any:
        resources = {"num_gpus": PART} if self._kind == "gpu" else {"resources": {self._resource: PART}}
        return ray.remote(kind).options(
            name=f"{self._name}-{name}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
            **resources,
            **options,
        )

    def _worker(self, k: int, turnstile: str) -> Actor:
        return self._detached(Worker, f"worker-{k}", max_concurrency=2).remote(turnstile, self._kind)

    async def _look_after(self) -> None:
        while True:
            await asyncio.gather(*(self._look_at(k) for k in range(len(self._workers))))
            await asyncio.sleep(LOOK)

    async def _look_at(self, k: int) -> None:
        worker = self._workers[k]
        if worker is None:
            return
        try:
            job: tuple[str, str] | None = await asyncio.wait_for(worker.job.remote(), 30.0)
        except (TimeoutError, ActorUnavailableError):
            pass  # not known to be dead: the job's deadline will tell
        except RayError:
            self._workers[k] = None  # open() puts another in its place before the next jobs
            if (lost := self._jobs.pop(k, None)) is not None:
                await self._mourn(*lost)
        else:
            if job is None:
                self._jobs.pop(k, None)
            else:
                self._jobs[k] = job

    async def _mourn(self, job: str, scheduler: str) -> None:
        for _ in range(60):
            try:
                actor = ray.get_actor(scheduler, namespace=NAMESPACE)
                await actor.left.remote(WorkerLeft(job, 1, crashed=True, detail="the worker's process died"))
                return
            except ValueError:
                return  # no such scheduler any more, nobody to tell
            except RayError:
                await asyncio.sleep(0.5)  # it is being restarted


def start_keeper(name: str, workers: int, kind: str) -> Actor:
    """A named, detached Keeper that Ray starts again whenever it dies; the one of that name if there is one."""
    options = {
        "name": f"{name}-keeper",
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "num_cpus": 0,
    }
    actor: Any = ray.remote(Keeper)
    return actor.options(**options).remote(name, workers, kind)
