"""Room for one warm worker on a device."""

from __future__ import annotations

from lightning_core.server.ray_settings import Actor
from lightning_core.worker.assignment import Incarnation


class WorkerSlot:
    """Room for one warm worker on a device.

    Attributes:
        worker: The worker; None while there is none.
        incarnation: Incarnation of a job that the worker has; None while it is idle.
        settled: Whether the state of a worker that is older than the pool manager is known.
        filling: Whether a worker for this slot is being started.
        reserved: Whether the slot is kept for a job while its other workers are asked whether they are ready.
        problem: Reason why there is no worker.
        failures: Failed starts since there last was a worker; 1 from the start if that one did not answer.
        unavailable: Whether it is unknown when there will be a worker.
        exit_awaited: Whether the end of the worker's run is awaited; otherwise the worker is asked whether it is idle.
        silent_for: Seconds for which the worker has not answered.
        ended_since: Monotonic time at which the job was first found to have ended.
        more_grace: Seconds more than others for which the worker may continue with a job that has ended.
    """

    def __init__(self, device: int, number: int) -> None:
        self.device = device
        self.number = number
        self.worker: Actor | None = None
        self.incarnation: Incarnation | None = None
        self.settled = False
        self.filling = False
        self.reserved = False
        self.problem = "its worker is starting"
        self.failures = 0
        self.unavailable = True
        self.exit_awaited = False
        self.silent_for = 0.0
        self.ended_since: float | None = None
        self.more_grace = 0.0

    @property
    def name(self) -> str:
        """Name of the worker's actor, without that of the pool."""
        return f"worker-{self.device}-{self.number}"

    def holds(self, worker: Actor) -> bool:
        """Return whether a worker is still the one of this slot: it may have been killed and replaced."""
        return self.worker is worker

    def assign(
        self,
        worker: Actor | None,
        incarnation: Incarnation | None = None,
        *,
        exit_awaited: bool = False,
        more_grace: float = 0.0,
    ) -> None:
        """Set the worker of this slot, and its assignment."""
        self.more_grace = more_grace
        self.worker, self.incarnation, self.exit_awaited = worker, incarnation, exit_awaited
        self.silent_for, self.ended_since, self.failures = 0.0, None, 0
        self.unavailable = self.unavailable and worker is None
