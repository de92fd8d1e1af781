"""Where workers are: the pool's devices, and on each of them room for some warm processes.

Rules

1. One permanent placement group of one device for each device of the pool; workers take a hundredth of it each, so that
   several are warm on one device. Who trains is decided by grants and turns, not by Ray.
2. Groups, turnstiles and workers are detached and named: whoever comes after finds them again by their names.
3. Each place is filled by itself: a device whose node is gone keeps nobody waiting but those who want that device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray._private.state import state as ray_state
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lightning_core.node.cgroups import sweep
from lightning_core.node.core_claims import CoreClaim
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.node.device_cores import CORES, note_first_core
from lightning_core.server.ray_actor import Actor
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.worker.worker import Incarnation, Worker

log = logging.getLogger(__name__)

# Which nodes are at a location says this label of theirs: `ray start --labels=lightning-core/location=NAME`.
LOCATION_LABEL = "lightning-core/location"
# Part of a device's Ray resource that each process on it takes.
PART = 0.01
# How long the cluster may take to give a device to the pool, seconds.
DEVICE = 10.0
# How long a worker that was there before may take to say what it is at, and how soon a place that could not be filled
# is tried again, seconds.
SILENT = 8.0
RETRY = 2.0
MOST_RETRY = 30.0
# So often a worker may fail to start before whoever opens the pool is told.
TRIES = 2
# How often it is looked whether devices have come, while the pool opens.
LOOK = 0.1
# How long a worker may take to start before its device counts as gone, seconds.
SLOW = 60.0


class ArbiterActor:
    """Hosts a device's turnstile on the device's node."""

    def __init__(self, first_core: int = 0) -> None:
        # Private to the user; with a made-up machine's own, so that it goes with it.
        own = os.environ.get("RAY_TMPDIR", "")
        self._folder = Path(tempfile.mkdtemp(prefix="lc-", dir=own if Path(own).is_dir() and own else None))
        self._arbiter = DeviceArbiter(self._folder / "turn")
        note_first_core(self._arbiter.path, first_core)

    def path(self) -> str:
        """Of the socket."""
        return str(self._arbiter.path)

    def close(self) -> None:
        """Ends the turnstile."""
        self._arbiter.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        sweep()  # what workers that were killed have left


class WorkerSlot:
    """Room for one warm worker on a device."""

    def __init__(self, device: int, number: int) -> None:
        self.device = device
        self.number = number
        self.worker: Actor | None = None
        self.life: Incarnation | None = None
        """Of which job, that the worker has."""
        self.settled = False
        """Whether it is known what a worker that was here before the Keeper is at."""
        self.filling = False
        """Whether a worker for it is being looked for."""
        self.reserved = False
        """Whether it is kept for a job whose other places are still being asked."""
        self.trouble = "its worker is starting"
        """Why there is no worker, in words."""
        self.failures = 0
        """How often one could not be started since there was one."""
        self.bare = True
        """Whether nobody can say when there will be one."""
        self.heard_of = False
        """Whether the end of the worker's run will be heard of; if not, it is asked whether it is idle."""
        self.silent = 0.0
        """For how long the worker has not answered, seconds."""
        self.over_since: float | None = None
        """When the job was first seen to be over."""

    @property
    def name(self) -> str:
        """Of the worker's actor, after the pool's name."""
        return f"worker-{self.device}-{self.number}"

    def has(self, worker: Actor) -> bool:
        """Whether it still is this place's worker: it may have been ended on purpose, and another one be here."""
        return self.worker is worker

    def take(self, worker: Actor | None, life: Incarnation | None = None, *, heard_of: bool = False) -> None:
        """The worker that is here from now on, and what it is at."""
        self.worker, self.life, self.heard_of = worker, life, heard_of
        self.silent, self.over_since, self.failures = 0.0, None, 0
        self.bare = self.bare and worker is None


class WorkerSlots:
    """All places of a pool.

    Args:
        name: of the pool; everything made here is named after it.
        devices: of the pool.
        slots: workers to keep warm on each.
        kind: of the devices, ``"cpu"`` or ``"gpu"``.
        cores: of each device, if they are CPUs.
        locations: where each device is: on nodes with that as their label :data:`LOCATION_LABEL`. Empty for anywhere.
    """

    def __init__(
        self,
        name: str,
        devices: int,
        slots: int,
        kind: str,
        cores: int = 1,
        locations: Sequence[str] = (),
    ) -> None:
        self._locations = locations
        self.kind = kind
        self._cores = cores
        self._claim = CoreClaim(CORES)
        self._first_core = self._claim.claim(devices * cores) if kind == "cpu" and not locations else 0
        self.arbiters = [""] * devices
        """Path of each device's; empty until it is known."""
        self.names = [f"{kind}{device}" for device in range(devices)]
        """Of the devices: a GPU's is its UUID, once a worker has seen it."""
        self.moved = asyncio.Event()
        """Set whenever a worker comes, goes, or is idle."""
        self._all = [WorkerSlot(device, number) for device in range(devices) for number in range(slots)]
        self._name = name
        self._resource = "GPU" if kind == "gpu" else "device"
        self._groups: list[Any] = []
        self._leaving: dict[int, str] = {}  # devices whose nodes will be taken away, and those nodes
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[WorkerSlot]:
        return iter(self._all)

    def of(self, life: Incarnation) -> list[WorkerSlot]:
        """Those whose workers have this life of a job."""
        return [place for place in self._all if place.life == life]

    def busy(self) -> list[WorkerSlot]:
        """Those whose workers have a job."""
        return [place for place in self._all if place.life is not None]

    def free(self, device: int) -> WorkerSlot | str:
        """A place on a device whose worker has nothing to do; in words why there is none, empty if all are at work."""
        there = [place for place in self._all if place.device == device]
        for place in there:
            if place.worker is not None and place.life is None and not place.reserved:
                return place
        return next((place.trouble for place in there if place.worker is None), "")

    def gone(self) -> dict[int, str]:
        """Devices on which nobody should be launched for now, each with the reason in words."""
        found = {}
        for device in range(len(self.names)):
            there = [place for place in self._all if place.device == device]
            if device in self._leaving:
                found[device] = "its node is being taken away"
            elif all(place.worker is None and place.bare for place in there):
                found[device] = there[0].trouble
        return found

    def is_leaving(self, device: int) -> bool:
        """Whether its node is being taken away."""
        return device in self._leaving

    async def look(self) -> None:
        """Looks whether nodes will be taken away: who is on them has a moment to save and to leave."""
        self._leaving = await asyncio.to_thread(self._look)

    def _look(self) -> dict[int, str]:
        draining = ray_state.get_draining_nodes()
        if not draining and not self._leaving:
            return {}
        found: dict[int, str] = {}
        for device, group in enumerate(self._groups):
            if group is None:
                continue
            table = placement_group_table(group)
            node = table["bundles_to_node_id"][0] if table.get("state") == "CREATED" else None
            before = self._leaving.get(device)
            # Once it is gone Ray lists it no more; its devices are back when they are somewhere else.
            if node is not None and node in draining:
                found[device] = node
            elif before is not None and node in (before, None):
                found[device] = before
        return found

    async def open(self) -> None:
        """Brings up, or finds again, the devices' groups, and begins to fill the places.

        Raises:
            RuntimeError: if no node has a device free.
        """
        async with self._opening:
            if self._groups:
                return
            groups = await asyncio.to_thread(lambda: [self._find_group(k) for k in range(len(self.names))])
            until = time.monotonic() + DEVICE
            while lacking := await asyncio.to_thread(_without_a_device, groups):
                if time.monotonic() > until:
                    where = f" on a node with {self._selector(lacking[0])}" if self._locations else ""
                    raise RuntimeError(f"no free device: the cluster has no {self._resource} to give{where}")
                await asyncio.sleep(LOOK)
            self._groups = groups
            for place in self._all:
                self.task(self._fill(place))

    async def filled(self) -> None:
        """Waits until there is a worker in each place.

        Raises:
            RuntimeError: if one could not be started, again and again.
        """
        while empty := [place for place in self._all if place.worker is None]:
            for place in empty:
                if place.failures >= TRIES:
                    raise RuntimeError(place.trouble)
            self.moved.clear()
            await self.moved.wait()

    async def shared(self) -> None:
        """Waits until scripts can share each device: a GPU has its name from the first worker on it.

        Raises:
            RuntimeError: if the device's first worker could not be started, again and again.
        """
        firsts = [place for place in self._all if place.number == 0]
        while lacking := [p for p in firsts if not self.arbiters[p.device] or (self.kind == "gpu" and not p.worker)]:
            for place in lacking:
                if place.failures >= TRIES:
                    raise RuntimeError(place.trouble)
            self.moved.clear()
            await self.moved.wait()

    async def settled(self) -> None:
        """Waits until it is known of each place what a worker that was there before is at."""
        while not all(place.settled for place in self._all):
            self.moved.clear()
            await self.moved.wait()

    def vacate(self, place: WorkerSlot) -> None:
        """Its worker has put its job down."""
        place.take(place.worker)
        self.moved.set()

    def end(self, place: WorkerSlot, trouble: str) -> None:
        """Ends a worker by force; another one comes when it can."""
        if place.worker is not None:
            ray.kill(place.worker)
            place.take(None)
            place.trouble = trouble
            self.task(self._fill(place))
        self.moved.set()

    async def close(self) -> None:
        """Ends workers, turnstiles and groups, also those of a Keeper before this one."""
        for task in self._tasks:
            task.cancel()
        for place in self._all:
            self._end(place.name)
        for k in range(len(self.names)):
            with contextlib.suppress(ValueError, RayError, TimeoutError):  # its process took the socket with it
                arbiter = ray.get_actor(f"{self._name}-turnstile-{k}", namespace=NAMESPACE)
                async with asyncio.timeout(SILENT):
                    await arbiter.close.remote()
            self._end(f"turnstile-{k}")
            await asyncio.to_thread(self._remove_group, k)
        self._claim.release()

    def task(self, work: Coroutine[Any, Any, None]) -> None:
        """The loop itself would forget a task that nobody holds."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------ filling

    async def _fill(self, place: WorkerSlot) -> None:
        """Gives a place its worker: the one that was there before, or a new one."""
        if place.filling:
            return
        place.filling = True
        done = False
        while (not done or place.worker is None) and self._is_there(place.device):
            try:
                await self._try_to_fill(place)
                done = True
            except Exception as error:  # whatever Ray says: the pool is not left without this worker for good
                place.failures += 1
                place.bare = True
                place.trouble = await asyncio.to_thread(self._state, place.device) or _words(error)
                log.warning("%s: %s", place.name, place.trouble)
                self.moved.set()
                await asyncio.sleep(min(RETRY * place.failures, MOST_RETRY))
        place.filling = False
        self.moved.set()

    async def _try_to_fill(self, place: WorkerSlot) -> None:
        if (before := self._actor(place.name)) is not None:
            try:
                async with asyncio.timeout(SILENT):
                    place.take(before, await before.job.remote())
            except (TimeoutError, RayError):
                self._end(place.name)  # it hangs, or is dying: what it may have is lost
        place.settled = True
        self.moved.set()
        arbiter = self._detached(ArbiterActor, f"turnstile-{place.device}", place.device).remote(self._first_core)
        self.arbiters[place.device] = await self._patiently(place, arbiter.path.remote())
        self.moved.set()
        if place.worker is None:
            arguments = self.arbiters[place.device], self.kind, self._cores
            worker = self._detached(Worker, place.name, place.device, max_concurrency=2).remote(*arguments)
            place.take(worker, await self._patiently(place, worker.job.remote()))
        if self.kind == "gpu" and place.worker is not None:
            async with asyncio.timeout(SILENT):
                self.names[place.device] = await place.worker.device.remote()

    async def _patiently(self, place: WorkerSlot, answer: Any) -> Any:
        """Waits for a process that is being started: as long as that takes, for Ray never says that it cannot be."""
        asked = asyncio.ensure_future(answer)
        waited = 0.0
        try:
            while not (await asyncio.wait({asked}, timeout=RETRY))[0]:
                if not self._is_there(place.device):
                    raise RuntimeError(place.trouble)
                gone = await asyncio.to_thread(self._state, place.device)
                waited += RETRY
                place.bare = bool(gone) or waited > SLOW or place.failures > 0
                place.trouble = gone or "its worker is starting"
            return await asked
        finally:
            asked.cancel()

    def _state(self, device: int) -> str:
        """What is wrong with a device, in words; empty if nobody can say."""
        try:
            table = placement_group_table(self._groups[device])
        except Exception:  # only words are lost
            return ""
        if table.get("state") == "CREATED":
            return ""
        reason = table.get("stats", {}).get("scheduling_state", "")
        return f"its node is gone, and no other has a {self._resource} to give ({reason or table.get('state')})"

    # ------------------------------------------------------------------------------------------------ Ray

    def _actor(self, name: str) -> Actor | None:
        try:
            return ray.get_actor(f"{self._name}-{name}", namespace=NAMESPACE)
        except ValueError:  # there is none
            return None

    def _end(self, name: str) -> None:
        if (actor := self._actor(name)) is not None:
            ray.kill(actor)

    def _is_there(self, device: int) -> bool:
        """Whether it has a group that its workers can be in."""
        return True

    def _group_name(self, device: int) -> str:
        return f"{self._name}-device-{device}"

    def _remove_group(self, device: int) -> None:
        remove_placement_group(self._find_group(device))

    def _find_group(self, device: int) -> Any:
        name = self._group_name(device)
        try:
            return ray.util.get_placement_group(name)
        except ValueError:  # there is none yet
            where = [self._selector(device)] if self._locations else None
            bundle = [{self._resource: 1}]
            return placement_group(bundle, "PACK", name, "detached", bundle_label_selector=where)

    def _selector(self, device: int) -> dict[str, str]:
        """Labels of the nodes that a device may be on."""
        return {LOCATION_LABEL: self._locations[device]}

    def _detached(self, kind: type[Any], name: str, device: int, **options: Any) -> Any:
        resources = {"num_gpus": PART} if self.kind == "gpu" else {"resources": {self._resource: PART}}
        return ray.remote(kind).options(
            name=f"{self._name}-{name}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[device]),
            **resources,
            **options,
        )


def _words(error: Exception) -> str:
    """Why a worker could not be started; of a process that died in that, Ray knows no more than its number."""
    if isinstance(error, ActorUnavailableError):
        return "its node does not answer"
    if isinstance(error, RayActorError) and not getattr(error, "actor_init_failed", False):
        return "its worker could not be started: a process died"
    return f"its worker could not be started: {' '.join(str(error).split()) or repr(error)}"


def _without_a_device(groups: Sequence[Any]) -> list[int]:
    """Those that are nowhere, and were nowhere before a node went."""
    states = [placement_group_table(group).get("state") for group in groups]
    return [device for device, state in enumerate(states) if state not in ("CREATED", "RESCHEDULING")]
