"""Protocols of the parts that can be exchanged: estimators, policies, clients and device locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from lightning_core.core.answers import Directive, JobForecast, JoinReply
from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan
from lightning_core.errors import LightningCoreError


class JoinRefusedError(LightningCoreError, ValueError):
    """The pool refuses the job; the message says why."""


class NameTakenError(JoinRefusedError):
    """An active job of the pool has the same name."""


class AccessRefusedError(JoinRefusedError):
    """The user has no right to the request."""


class DeviceNotSharedError(JoinRefusedError):
    """The process trains on a device that the pool does not manage, so it competes with none of the pool's jobs."""


@runtime_checkable
class Estimator(Protocol):
    """A bank of loss curve forecasts: one row per job, every method over many rows at once.

    The scheduler ensures that losses are positive and finite, that the positions of a row (batches done) increase from
    call to call, and that a call contains each row at most once. Jobs with a target of 0 or below are refused unless
    the class attribute ``any_loss`` is true; the bank then receives the distance of their losses from a floor.
    """

    def grow(self, rows: int) -> None:
        """Make room for rows ``0 .. rows - 1``; existing rows keep their state."""

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        """Add one loss cell per row: the loss at ``position`` batches; all arguments have shape ``(n,)``."""

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        """Return the forecast loss at ``position`` batches; NaN where there are too few observations."""

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        """Forecast the number of batches, counted from the start of the run, at which the loss reaches ``threshold``.

        Returns:
            Quantiles at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(n, 20)``, increasing along each row;
            inf where the curve does not reach the threshold, NaN where there are too few observations.
        """


@runtime_checkable
class UsesHistory(Protocol):
    """An estimator that makes use of the curves of earlier runs of the same task."""

    def history(self, row: int, curves: Sequence[EarlierRun]) -> None:
        """Take the curves of earlier runs of the same task, before the row's first cell.

        Args:
            row: Row of the job.
            curves: At most three, the most relevant first; each has at least two points, and positive losses.
        """

    def ready(self, rows: IntArray) -> BoolArray:
        """Return whether each row's forecast is good enough to plan and judge its job, shape ``(n,)``."""

    def history_share(self, rows: IntArray) -> FloatArray:
        """Return which part of the belief in each row's forecast rests on earlier runs, in [0, 1], shape ``(n,)``.

        It is 0 for a row without them, and NaN for one without a forecast.
        """


@runtime_checkable
class KnowsSchedule(Protocol):
    """An estimator that takes the learning rates of a training into account."""

    def schedule(self, row: int, position: FloatArray, rate: FloatArray) -> None:
        """Take the relative learning rates of a row; they replace those that it took earlier.

        A row that takes none has a constant rate. They may come before the first cell or later, and repeatedly.

        Args:
            row: Row of the bank.
            position: Batches, positive and growing, shape ``(n,)``; ``n`` is 1 to
                :data:`~lightning_core.core.limits.MAX_RATES`.
            rate: Learning rate of each of these batches divided by the highest of the training, in [0, 1], shape
                ``(n,)``. It is linear between two positions, and constant before the first and after the last one.
        """


@runtime_checkable
class Policy(Protocol):
    """Division of the pool among the jobs.

    A plan depends on the view, the time and the policy's own state only. That state may depend only on earlier calls of
    ``plan`` and on the observations of its ``banks``, so that a replay restores it. A policy that needs an estimator
    other than the default names it in a class attribute ``estimator``; one that cannot handle targets of 0 or below
    sets ``positive_losses``.
    """

    def plan(self, jobs: JobView, now: float) -> Plan:
        """Return the shares of all jobs; called with at least one job."""


@runtime_checkable
class ChoosesSizes(Protocol):
    """A policy that chooses the number of devices of each job; its view contains their throughput by size."""

    chooses_sizes: Literal[True]


@runtime_checkable
class KnowsKinds(Protocol):
    """A policy that plans all jobs of a pool at once though its devices differ, and says on which kind each trains."""

    knows_kinds: Literal[True]


@runtime_checkable
class KnowsNames(Protocol):
    """A policy with arguments for single jobs; its view contains their names."""

    knows_names: Literal[True]


@runtime_checkable
class Queues(Protocol):
    """A policy that serves jobs in an order that is known beforehand.

    Where devices differ each takes, in that order, the kind on which it ends first.
    """

    keeps_devices: bool
    """Whether a job that has devices keeps them."""

    def queue(self, jobs: JobView) -> IntArray:
        """Return the rows of all jobs, the first to be served first."""


@runtime_checkable
class LooksAtCurves(Protocol):
    """A policy with estimators of its own, in addition to the forecasts in its view."""

    @property
    def banks(self) -> Sequence[Estimator]:
        """Estimators that receive every loss cell, with the rows of ``JobView.row``."""


@runtime_checkable
class KeepsRows(Protocol):
    """A policy or an estimator that can remove rows. Without it no row ever leaves, and its memory grows for ever.

    A policy that remembers nothing, with an empty ``state()``, does not need it. One with ``banks`` passes it on.
    """

    def keep(self, stays: BoolArray) -> None:
        """Drop rows of ended jobs. The others close up, in their order; new rows follow them.

        Args:
            stays: Whether each row stays, shape ``(n,)``. :mod:`lightning_core.core.arrays` helps to do so.
        """


@runtime_checkable
class Client(Protocol):
    """A training process's connection to its scheduler, wherever the scheduler runs.

    Called from daemon threads, never from the training thread: from one at a time, and from a second one that is in
    :meth:`wait` meanwhile. A failed call raises :class:`ConnectionError`, although the scheduler may have carried it
    out: the caller repeats it with the same number.
    """

    report_period: float
    """Seconds that should lie between two reports, as the scheduler has said with its newest answer to one; 0 for any
    number. The more it has to do, the longer."""

    def join(self, job: Job, device: str) -> JoinReply:
        """Add a job whose process the user has started; it reports through this client from now on.

        Args:
            job: Job to submit.
            device: Device on which the process trains: ``"cpu"``, or the UUID of a GPU.

        Raises:
            JoinRefusedError: If the pool refuses the job, as :class:`NameTakenError` or :class:`DeviceNotSharedError`
                where one of them fits. Only the former may be temporary.
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
    """Use of a shared device, held for one quantum at a time, by one process or by a group of them.

    Called from the training thread. ``acquire`` waits; the other methods return at once.
    """

    held: bool
    """Whether this process holds the device."""

    def acquire(self, share: float, timeout: float, beside: int = 0) -> bool:
        """Wait up to ``timeout`` seconds for the device and return whether it was acquired.

        Args:
            share: Weight against the other processes, in [0, 1]; a group weighs as much as its members together.
            timeout: Seconds to wait.
            beside: Number of the group within whose turns it trains; 0 for turns of its own.
        """

    def expired(self) -> bool:
        """Return whether the device must be released: the quantum is over and others wait, or the group's turn ends."""

    def release(self, *, again: bool, share: float = 0.0, beside: int = 0) -> None:
        """Release the device; ``again`` requests the next quantum in the same message."""

    def bind(self) -> None:
        """Pin the training thread to the device's cores, where cores are the device; the first ``acquire`` does too."""

    def close(self) -> None:
        """Release the device and disconnect."""
