"""The workers and devices of a pool in virtual time: how workers start, train, leave and are lost.

Rules

1. A worker reports as a live one does: when it is up, while it trains and when it stops. It numbers its reports, saves
   and leaves when it is granted other devices, and comes back as the next incarnation.
2. Devices change hands once an instant, when everything that happens at that instant is known.
3. A training ends when its deadline has passed and its recording is over.
4. A lost process loses its unsaved progress. Its job restarts as the scheduler decides.
5. A device may come and go with its node: nothing is launched on a closed one, and one that
   ends takes its worker with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from lightning_core.core.answers import Grant, Placement
from lightning_core.core.events import Event, ExitCause, WorkerExited
from lightning_core.simulation.event_queue import EventQueue
from lightning_core.simulation.scenario import Delays
from lightning_core.simulation.virtual_workers import Device, Devices, VirtualWorker

# Seconds after which a worker that may train beside others reports its progress, as a live one does.
PROGRESS_EVERY = 1.0
# Seconds of training after which a worker reports how fast it is on its devices, where they are of several kinds.
FIRST_PROGRESS = 10.0
# Throughput of a job beside others, by its name and theirs, as a fraction of its throughput alone.
Pace = Callable[[str, Sequence[str]], float]


class VirtualPool:
    """Workers and devices in virtual time.

    Args:
        workers: Worker of each job, by name.
        devices: Number of devices.
        slots: Launched processes that may be resident on one device; None for any number.
        delays: Everything that takes time other than training.
        save_every: Batches between two checkpoints; 0 if a job is saved only when it leaves.
        queue: Actions to come.
        send: Sends an event to the scheduler.
        pace: Returns how fast a job trains beside others; None where none does.
        kinds: Kind of each device; empty if all are alike.
        machines: Machine of each device; empty if all are on one.
    """

    def __init__(
        self,
        workers: Mapping[str, VirtualWorker],
        devices: int,
        slots: int | None,
        delays: Delays,
        save_every: int,
        queue: EventQueue,
        send: Callable[[Event], None],
        pace: Pace | None = None,
        kinds: Sequence[str] = (),
        machines: Sequence[str] = (),
    ) -> None:
        self.workers = workers
        self._devices = [Device() for _ in range(devices)]
        self._slots = slots
        self._delays = delays
        self._save_every = save_every
        self._queue = queue
        self._send = send
        # A pace is measured from report to report; alone, cells are enough.
        self._kinds, self._unlike, self._machines = kinds, len(set(kinds)) > 1, machines
        self._pace, self._progress_every = pace, math.inf if pace is None else PROGRESS_EVERY
        # Devices on which nothing is launched; called when a process has left its devices.
        self._closed: set[int] = set()
        self.on_free: Callable[[], None] = _nothing
        # Work for the end of an instant: devices that change hands; whether a job may need a process.
        self._unsettled: set[int] = set()
        self._unplaced = False

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do at this instant."""
        return not self._unsettled and not self._unplaced

    # ------------------------------------------------------------------------------------------------ answers

    def obey(self, grant: Grant) -> None:
        """Carry a grant out; a worker that is not up is looked after when the instant is over."""
        worker = self.workers[grant.job]
        if not worker.ready:
            self._unplaced |= bool(grant.devices)
        elif grant.version > worker.version:
            worker.version = grant.version
            if worker.launched and sorted(grant.devices) != sorted(worker.at):
                self._leave(worker)
            else:
                self._train(worker, grant.share, grant.devices, grant.beside)

    def end(self, worker: VirtualWorker) -> None:
        """End a job."""
        if worker.over:
            return
        worker.over = True
        self._stop(worker)
        if not worker.leaving:
            self._free(worker)
            if worker.memory is not None:  # others may wait for it
                self._queue.at(self._queue.now, self._send, WorkerExited(worker.name, worker.incarnation))

    def look_at_placements(self, _: None = None) -> None:
        """Look at the placements when the instant is over."""
        self._unplaced = True

    # ------------------------------------------------------------------------------------------------ workers

    def begin(self, worker: VirtualWorker) -> None:
        """Start a worker; the answer to its first report is its grant."""
        if not worker.over:
            worker.begin(self._queue.now)
            self._send(worker.report(self._queue.now, worker.cells))

    def lose(self, worker: VirtualWorker) -> None:
        """Kill the process of a worker."""
        if worker.over or not worker.ready:
            return
        self._lose(worker, ExitCause.LOST, "its process died")

    def _lose(self, worker: VirtualWorker, cause: ExitCause, detail: str, heard: float = 0.0) -> None:
        starts = not (worker.ready or worker.leaving)  # so it has nothing to lose yet
        self._stop(worker)
        worker.leaving = False
        self._free(worker)
        save = None if starts else worker.set_back(self._save_every)
        lost = WorkerExited(worker.name, worker.incarnation, cause, detail, save)
        if heard:
            self._queue.at(self._queue.now + heard, self._send, lost)
        else:
            self._send(lost)

    def report_due(self, worker: VirtualWorker) -> None:
        """Send the next report of a worker; end a training whose deadline and recording are over."""
        now = self._queue.now
        worker.advance(now)
        worker.done = worker.until
        self._send(worker.report(now, worker.seen))
        if now >= worker.deadline and worker.cells >= worker.recorded:
            self._send(WorkerExited(worker.name, worker.incarnation))
            self.end(worker)
        else:
            self._schedule_report(worker)

    def _schedule_report(self, worker: VirtualWorker) -> None:
        every = self._progress_every
        if self._unlike and worker.reported <= worker.since:
            every = min(every, FIRST_PROGRESS)
        worker.entry = self._queue.at(worker.aim(self._delays.report_every, every), self.report_due, worker)

    def _train(self, worker: VirtualWorker, share: float, at: Devices, beside: int = 0) -> None:
        """Continue a worker with a share or beside others; without either it stops and reports that."""
        now = self._queue.now
        worker.advance(now)
        before = worker.at if worker.trains else ()
        after = at if share or beside else ()
        if before != after:
            for device in before:
                self._devices[device].training.remove(worker)
            for device in after:
                self._devices[device].training.append(worker)
        self._unsettled.update(before, after)
        worker.share, worker.at, worker.beside = share, at, beside
        if before and not after:
            worker.set_throughput(now, 0.0)
            worker.entry = 0
            self._send(worker.report(now, worker.closed()))

    def _leave(self, worker: VirtualWorker) -> None:
        """Make a worker save and leave."""
        left_at = self._queue.now + self._delays.release
        if worker.trains:
            self._train(worker, 0.0, worker.at)
            for device in worker.at:
                self._devices[device].clear = max(self._devices[device].clear, left_at)
        else:
            self._send(worker.report(self._queue.now, worker.closed()))
        worker.ready, worker.leaving = False, True
        self._queue.at(left_at, self._left, (worker, worker.incarnation))

    def _left(self, of: tuple[VirtualWorker, int]) -> None:
        worker, incarnation = of
        if not worker.leaving or worker.incarnation != incarnation:
            return  # it was lost before
        worker.leaving = False
        self._free(worker)
        self._send(WorkerExited(worker.name, worker.incarnation, ExitCause.RELEASED, checkpoint=worker.save()))

    def _stop(self, worker: VirtualWorker) -> None:
        """Stop a training without a report."""
        worker.advance(self._queue.now)
        if worker.trains:
            for device in worker.at:
                self._devices[device].training.remove(worker)
            self._unsettled.update(worker.at)
        worker.set_throughput(self._queue.now, 0.0)
        worker.share, worker.beside = 0.0, 0
        worker.entry = 0
        worker.ready = False

    def _free(self, worker: VirtualWorker) -> None:
        """Free the devices of a worker whose process has gone."""
        if worker.launched:
            for device in worker.at:
                self._devices[device].resident -= 1
            self._unplaced = True
        worker.at = ()
        self.on_free()

    # ------------------------------------------------------------------------------------------------ devices

    @property
    def device_count(self) -> int:
        """Number of devices, whether they are there or not."""
        return len(self._devices)

    def is_free(self, device: int) -> bool:
        """Return whether no launched process is on a device, or about to be."""
        return not self._devices[device].resident

    def close(self, device: int) -> None:
        """Launch nothing on a device from now on."""
        self._closed.add(device)

    def open(self, device: int) -> None:
        """Bring a device that is new: launches may begin there."""
        self._devices[device] = Device()
        self._closed.discard(device)
        self._unplaced = True

    def end_device(self, device: int, cause: ExitCause, detail: str, heard: float = 0.0) -> None:
        """End a device and lose its workers; the scheduler is notified ``heard`` seconds later."""
        self.close(device)
        for worker in self.workers.values():
            if device in worker.at:
                self._lose(worker, cause, detail, heard)
        self._devices[device].settle(self._queue.now, self._delays)

    def settle(self, placements: Callable[[], Iterable[Placement]]) -> None:
        """Hand over devices, or launch placed jobs, now that the instant is over.

        Args:
            placements: Returns the jobs that should have workers.
        """
        if self._unplaced:
            self._unplaced = False
            self._launch(placements())
            return
        delays, devices = self._delays, self._devices
        changed = sorted(self._unsettled)
        self._unsettled.clear()
        for at in changed:
            devices[at].settle(self._queue.now, delays)
        for worker in {worker.name: worker for at in changed for worker in devices[at].members}.values():
            self._set_throughput(worker)

    def finish(self) -> None:
        """Complete the counts at the end of a run."""
        for device in self._devices:
            device.training.clear()
            device.settle(self._queue.now, self._delays)

    def _set_throughput(self, worker: VirtualWorker) -> None:
        worker.advance(self._queue.now)
        on = [self._devices[at] for at in worker.at]
        start = max(self._queue.now, *[device.clear for device in on])
        company = on[0].company(worker)
        time_share = sum(one.share for one in company) * on[0].training_share(self._delays)
        pace = 1.0
        if self._pace is not None and len(company) > 1:
            pace = self._pace(worker.name, [one.name for one in company if one is not worker])
        same = time_share == worker.time_share and pace == worker.pace
        worker.pace = pace
        if self._kinds:
            worker.on_kind = worker.paces.get(self._kinds[worker.at[0]], 1.0)
        worker.spread = worker.apart if len({self._machines[at] for at in worker.at if self._machines}) > 1 else 1.0
        if same and start == max(self._queue.now, worker.since):
            return  # nothing has changed for it
        worker.set_throughput(start, time_share)
        if time_share * pace > 0:
            self._schedule_report(worker)
        else:
            worker.entry = 0

    def _launch(self, placements: Iterable[Placement]) -> None:
        """Launch placed jobs that have no process, where there is room; the others wait until a process leaves."""
        for name, incarnation, at, _ in placements:
            worker = self.workers[name]
            on = [self._devices[device] for device in at]
            full = self._slots is not None and any(device.resident >= self._slots for device in on)
            if full or worker.at or worker.over or incarnation == worker.incarnation or self._closed.intersection(at):
                continue
            for device in on:
                device.resident += 1
            worker.at, worker.incarnation = at, incarnation
            took = worker.restart if worker.batches and worker.restart is not None else self._delays.start
            self._queue.at(self._queue.now + took, self._started, (worker, incarnation))

    def _started(self, of: tuple[VirtualWorker, int]) -> None:
        worker, incarnation = of
        if worker.at and worker.incarnation == incarnation:  # else it was lost before
            self.begin(worker)


def _nothing() -> None:
    """Do nothing: the default observer."""
