"""The plugs: what the scheduler needs of an estimator, a policy and a client. Few methods each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from lightning_core.core.answers import Directive, JobForecast, JoinReply
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.errors import LightningCoreError


class JoinRefusedError(LightningCoreError, ValueError):
    """The pool refuses the job; the message says why."""


class NameTakenError(JoinRefusedError):
    """An active job of the pool has the same name."""


class DeviceNotSharedError(JoinRefusedError):
    """The process trains on a device that the pool does not manage, so it competes with none of the pool's jobs."""


@runtime_checkable
class Estimator(Protocol):
    """Where are these loss curves going? A bank: one row a job, every method over many rows at once.

    Losses are positive and finite, positions (batches done) grow from call to call of a row, and a row stands at most
    once in one call: the scheduler sees to that. Jobs whose target is not above zero are refused, unless a class
    attribute ``any_loss`` is true: then the bank is shown how far such losses lie above a floor.
    """

    def grow(self, rows: int) -> None:
        """Makes room for rows ``0 .. rows - 1``; those that exist keep what they have learned."""

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        """Takes in one cell a row: at ``position`` batches the loss was ``loss``; all of shape ``(n,)``."""

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        """The loss forecast at ``position`` batches; NaN where too little has been seen."""

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        """After how many batches since the run began the loss is forecast to come down to ``threshold``.

        Returns:
            Quantiles at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(n, 20)``, growing along each row;
            inf where the curve does not get there, NaN where too little has been seen.
        """


@runtime_checkable
class Policy(Protocol):
    """Who gets what part of the pool? A function of what the scheduler knows and the time, and of its own state if any.

    Whatever state a policy has, it comes from earlier calls of ``plan`` (and from what its ``banks`` were fed) alone,
    so that a replay brings it back. A policy whose forecasts should come from another estimator than the usual one
    names it in a class attribute ``estimator``; one that takes no target of zero or below sets ``positive_losses``.
    """

    def plan(self, jobs: JobView, now: float) -> Plan:
        """Shares for all the jobs together; called with at least one job."""


@runtime_checkable
class ChoosesSizes(Protocol):
    """A policy that says on how many devices each job trains; it is shown how fast each is on how many."""

    chooses_sizes: Literal[True]


@runtime_checkable
class LooksAtCurves(Protocol):
    """A policy that looks at loss curves in ways of its own, beside the forecasts that it is shown."""

    @property
    def banks(self) -> Sequence[Estimator]:
        """Estimators that the scheduler feeds with every cell; their rows are those of ``JobView.row``."""


@runtime_checkable
class Client(Protocol):
    """A training process's connection to its scheduler, wherever the scheduler runs.

    Called from one daemon thread at a time, never from the training thread. A failed call raises
    :class:`ConnectionError`, which does not mean that the scheduler did not carry it out: the caller repeats it with
    the same number.
    """

    def join(self, job: Job, device: str) -> JoinReply:
        """Add a job that a user has started; its process reports through this client from now on.

        Args:
            job: Job to submit.
            device: Device on which the process trains: ``"cpu"``, or the UUID of a GPU.

        Raises:
            JoinRefusedError: If the pool refuses the job, as :class:`NameTakenError` or :class:`DeviceNotSharedError`
                where one of them fits. All but the latter may be temporary.
        """

    def report(self, report: Report) -> Directive | None:
        """Deliver a report and return the newest directive, if it is newer than the worker's."""

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Return the job's directive as soon as it is newer than ``version``, or None after ``timeout`` seconds."""

    def job_forecast(self, job: str) -> JobForecast | None:
        """Return the forecast of a job, None if the job is unknown."""

    def left(self, event: WorkerExited) -> None:
        """Report that the worker has exited."""

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class DeviceLock(Protocol):
    """Exclusive use of a shared device, held for one quantum at a time.

    Called from the training thread. ``acquire`` waits; the other methods return at once.
    """

    held: bool
    """Whether this process holds the device."""

    def acquire(self, share: float, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the device and return whether it was acquired.

        Args:
            share: Weight against the other processes, in [0, 1].
            timeout: Seconds to wait.
        """

    def expired(self) -> bool:
        """Return whether the quantum is over and another process waits for the device."""

    def release(self, *, again: bool, share: float = 0.0) -> None:
        """Release the device; ``again`` requests the next quantum in the same message."""

    def bind(self) -> None:
        """Pin the training thread to the device's cores, where cores are the device; the first ``acquire`` does too."""

    def close(self) -> None:
        """Release the device and disconnect."""
