"""Worker slots: the devices of a pool, each with room for some warm workers.

Rules

1. Each device of the pool has one permanent placement group. Each worker takes a hundredth of the device, so that
   several are warm on one device. Grants and the device arbiter decide which of them trains, not Ray.
2. Placement groups, arbiters and workers are detached and named: a restarted pool manager finds them by name.
3. Each slot is filled independently: a device whose node is lost delays only the jobs that want that device.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from lightning_core.cluster.arbiter_actor import ArbiterActor
from lightning_core.cluster.device_groups import DeviceGroups
from lightning_core.cluster.worker_slot import WorkerSlot
from lightning_core.node.core_claims import CoreClaim
from lightning_core.node.device_cores import CORES
from lightning_core.server.ray_settings import NAMESPACE, Actor
from lightning_core.worker.assignment import Incarnation
from lightning_core.worker.worker import Worker

log = logging.getLogger(__name__)

# Share of a device's Ray resource that each process on it takes.
RESOURCE_SHARE = 0.01
# Seconds that the cluster may take to provide a device.
DEVICE_TIMEOUT = 10.0
# Seconds that a worker may take to answer, and seconds between two attempts to fill a slot.
MAX_SILENCE = 8.0
RETRY_INTERVAL = 2.0
MAX_RETRY_INTERVAL = 30.0
# Failed starts of a worker after which opening the pool fails.
MAX_START_FAILURES = 2
# Seconds that it may take to find out why a worker died.
EXPLAIN_TIMEOUT = 2.0
# Seconds between two checks for devices while the pool opens.
POLL_INTERVAL = 0.1
# Seconds that a worker may take to start before its device counts as unavailable.
START_TIMEOUT = 60.0


class WorkerSlots:
    """All worker slots of a pool.

    Args:
        name: Name of the pool, with which all names of actors and placement groups begin.
        devices: Number of devices.
        workers_per_device: Number of workers to keep warm on each device.
        kind: Kind of the devices, ``"cpu"`` or ``"gpu"``.
        cores: Cores of each device, if they are CPUs.
        locations: Location of each device, as of :class:`~.device_groups.DeviceGroups`; empty for any.

    Attributes:
        arbiters: Path of each device arbiter's socket; empty until it is known.
        names: Name of each device; that of a GPU is its UUID, once a worker has reported it.
        changed: Set whenever a worker comes, goes or becomes idle.
    """

    # Whether a device counts as available once its first worker is being started: a job that is placed there waits.
    awaits_workers = True

    def __init__(
        self, name: str, devices: int, workers_per_device: int, kind: str, cores: int = 1, locations: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self._cores = cores
        self._claim = CoreClaim(CORES)
        self._first_core = self._claim.claim(devices * cores) if kind == "cpu" and not locations else 0
        self.arbiters = [""] * devices
        self.names = [f"{kind}{device}" for device in range(devices)]
        self.changed = asyncio.Event()
        self._all = [WorkerSlot(device, number) for device in range(devices) for number in range(workers_per_device)]
        self._name = name
        self._groups = DeviceGroups(name, devices, "GPU" if kind == "gpu" else "device", locations)
        self._opened = False
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[WorkerSlot]:
        return iter(self._all)

    def of(self, incarnation: Incarnation) -> list[WorkerSlot]:
        """Return the slots whose workers have an incarnation of a job."""
        return [slot for slot in self._all if slot.incarnation == incarnation]

    def busy(self) -> list[WorkerSlot]:
        """Return the slots whose workers have a job."""
        return [slot for slot in self._all if slot.incarnation is not None]

    def find_free(self, device: int) -> WorkerSlot | str:
        """Return a slot of a device whose worker is idle; otherwise why there is none, empty if all are busy."""
        on_device = [slot for slot in self._all if slot.device == device]
        for slot in on_device:
            if slot.worker is not None and slot.incarnation is None and not slot.reserved:
                return slot
        return next((slot.problem for slot in on_device if slot.worker is None), "")

    def unavailable(self) -> dict[int, str]:
        """Return the devices on which nothing should be launched for now, each with the reason."""
        found = {}
        for device in range(len(self.names)):
            on_device = [slot for slot in self._all if slot.device == device]
            if device in self._groups.draining:
                found[device] = "its node is draining"
            elif all(slot.worker is None and slot.unavailable for slot in on_device):
                found[device] = on_device[0].problem
        return found

    def is_draining(self, device: int) -> bool:
        """Return whether the node of a device is draining."""
        return device in self._groups.draining

    async def refresh(self) -> None:
        """Look up which nodes are draining, so that jobs on them can write a checkpoint and leave."""
        await asyncio.to_thread(self._groups.update_draining)

    async def found(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the kind and the machine of each device; see :meth:`DeviceGroups.found`."""
        return await asyncio.to_thread(self._groups.found)

    async def open(self) -> None:
        """Create or find the placement groups of the devices, and begin to fill the slots.

        Raises:
            RuntimeError: If no node has a free device.
        """
        async with self._opening:
            if self._opened:
                return
            await asyncio.to_thread(self._groups.create)
            until = time.monotonic() + DEVICE_TIMEOUT
            while lacking := await asyncio.to_thread(self._groups.unplaced):
                if time.monotonic() > until:
                    raise RuntimeError(f"no free device: {self._groups.missing(lacking[0])}")
                await asyncio.sleep(POLL_INTERVAL)
            self._opened = True
            for slot in self._all:
                self.spawn(self._fill(slot))

    async def wait_until_warm(self) -> None:
        """Wait until each slot has a worker.

        Raises:
            RuntimeError: If one has repeatedly failed to start.
        """
        await self._wait_while(lambda: [slot for slot in self._all if slot.worker is None])

    async def wait_until_shared(self) -> None:
        """Wait until scripts can share each device; the name of a GPU comes from the first worker on it.

        Raises:
            RuntimeError: If the first worker of a device has repeatedly failed to start.
        """
        firsts = [slot for slot in self._all if slot.number == 0]
        await self._wait_while(
            lambda: [p for p in firsts if not self.arbiters[p.device] or (self.kind == "gpu" and not p.worker)]
        )

    async def _wait_while(self, lacking: Callable[[], Sequence[WorkerSlot]]) -> None:
        while slots := lacking():
            for slot in slots:
                if slot.failures >= MAX_START_FAILURES:
                    raise RuntimeError(slot.problem)
            self.changed.clear()
            await self.changed.wait()

    async def wait_until_settled(self) -> None:
        """Wait until the state of each older worker is known."""
        while not all(slot.settled for slot in self._all):
            self.changed.clear()
            await self.changed.wait()

    def release(self, slot: WorkerSlot) -> None:
        """Mark a slot as idle: its worker has left its job."""
        slot.assign(slot.worker)
        self.changed.set()

    def kill(self, slot: WorkerSlot, problem: str) -> None:
        """Kill the worker of a slot; another one is started."""
        if slot.worker is not None:
            ray.kill(slot.worker)
            slot.assign(None)
            slot.problem = problem
            self.spawn(self._fill(slot))
        self.changed.set()

    def suspect(self, slot: WorkerSlot) -> None:
        """Mark a slot whose worker did not answer as unavailable until it has another: its node may be lost.

        Ray takes a minute to be sure of that, for which a job would wait there. A worker that is being started on the
        same device may never be there either.
        """
        for one in self._all:
            if one is slot or (one.device == slot.device and one.worker is None):
                one.unavailable, one.failures = True, max(one.failures, 1)

    async def why_died(self, device: int) -> tuple[bool, str]:
        """Return whether a worker on a device was killed for memory, and a text that explains its death.

        Its device arbiter, which is on the same node, has looked. If that does not answer, nothing is known.
        """
        try:
            arbiter = ray.get_actor(f"{self._name}-arbiter-{device}", namespace=NAMESPACE)
            async with asyncio.timeout(EXPLAIN_TIMEOUT):
                killed, words = await arbiter.why_died.remote()
                return bool(killed), str(words)
        except Exception as error:  # whatever the error: the death itself must be reported
            log.info("the arbiter of device %d does not say why a worker died: %s", device, error)
            return False, ""

    async def close(self) -> None:
        """End workers, arbiters and placement groups, including those of an earlier pool manager."""
        for task in self._tasks:
            task.cancel()
        for slot in self._all:
            self._kill_actor(slot.name)
        for k in range(len(self.names)):
            with contextlib.suppress(ValueError, RayError, TimeoutError):  # its process took the socket with it
                arbiter = ray.get_actor(f"{self._name}-arbiter-{k}", namespace=NAMESPACE)
                async with asyncio.timeout(MAX_SILENCE):
                    await arbiter.close.remote()
            self._kill_actor(f"arbiter-{k}")
            await asyncio.to_thread(self._groups.remove, k)
        self._claim.release()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task and keep a reference to it, which the event loop does not."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------ filling

    async def _fill(self, slot: WorkerSlot) -> None:
        """Give a slot its worker: an existing one, or a new one."""
        if slot.filling:
            return
        slot.filling = True
        done = False
        while (not done or slot.worker is None) and self._groups.has(slot.device):
            try:
                await self._try_to_fill(slot)
                done = True
            except Exception as error:  # whatever Ray raises: the slot must not stay empty
                if not self._groups.has(slot.device):
                    break  # its node has gone, and the slot says so
                slot.failures += 1
                slot.unavailable = True
                slot.problem = await asyncio.to_thread(self._groups.problem, slot.device) or _start_problem(error)
                log.warning("%s: %s", slot.name, slot.problem)
                self.changed.set()
                await asyncio.sleep(min(RETRY_INTERVAL * slot.failures, MAX_RETRY_INTERVAL))
        slot.filling = False
        self.changed.set()

    async def _try_to_fill(self, slot: WorkerSlot) -> None:
        if slot.worker is None and (before := self._find_actor(slot.name)) is not None:
            try:
                async with asyncio.timeout(MAX_SILENCE):
                    slot.assign(before, await before.job.remote())
            except (TimeoutError, RayError):
                self._kill_actor(slot.name)  # it hangs or is dying; its job is lost
        slot.settled = True
        self.changed.set()
        arbiter = self._detached(ArbiterActor, f"arbiter-{slot.device}", slot.device).remote(self._first_core)
        self.arbiters[slot.device] = await self._await_start(slot, arbiter.path.remote())
        self.changed.set()
        if slot.worker is None:
            arguments = self.arbiters[slot.device], self.kind, self._cores
            worker = self._detached(Worker, slot.name, slot.device, max_concurrency=2).remote(*arguments)
            slot.assign(worker, await self._await_start(slot, worker.job.remote()))
        if self.kind == "gpu" and slot.worker is not None:
            async with asyncio.timeout(MAX_SILENCE):
                self.names[slot.device] = await slot.worker.device.remote()

    async def _await_start(self, slot: WorkerSlot, answer: Any) -> Any:
        """Wait for a process that is being started, for as long as that takes: Ray never reports that it cannot be."""
        asked = asyncio.ensure_future(answer)
        waited = 0.0
        try:
            while not (await asyncio.wait({asked}, timeout=RETRY_INTERVAL))[0]:
                problem = await asyncio.to_thread(self._groups.problem, slot.device)
                if not self._groups.has(slot.device):  # it may have gone meanwhile
                    raise RuntimeError(slot.problem)
                waited += RETRY_INTERVAL
                waits = slot.unavailable and not self.awaits_workers
                slot.unavailable = waits or bool(problem) or waited > START_TIMEOUT or slot.failures > 0
                slot.problem = problem or "its worker is starting"
            return await asked
        finally:
            asked.cancel()

    # ------------------------------------------------------------------------------------------------ Ray

    def _find_actor(self, name: str) -> Actor | None:
        try:
            return ray.get_actor(f"{self._name}-{name}", namespace=NAMESPACE)
        except ValueError:  # it does not exist
            return None

    def _kill_actor(self, name: str) -> None:
        if (actor := self._find_actor(name)) is not None:
            ray.kill(actor)

    def _detached(self, kind: type[Any], name: str, device: int, **options: Any) -> Any:
        share = {"num_gpus": RESOURCE_SHARE} if self.kind == "gpu" else {"resources": {"device": RESOURCE_SHARE}}
        return ray.remote(kind).options(
            name=f"{self._name}-{name}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=self._groups.strategy(device),
            **share,
            **options,
        )


def _start_problem(error: Exception) -> str:
    """Return why a worker could not be started; Ray gives no reason for a process that died."""
    if isinstance(error, ActorUnavailableError):
        return "its node does not answer"
    if isinstance(error, RayActorError) and not getattr(error, "actor_init_failed", False):
        return "its worker could not be started: a process died"
    return f"its worker could not be started: {' '.join(str(error).split()) or repr(error)}"
