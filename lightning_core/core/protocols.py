"""The plugs: what the scheduler needs of an estimator, a policy and a client. Few methods each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from lightning_core.core.answers import Directive, JobForecast, JoinReply
from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView, Plan


class JoinRefused(ValueError):
    """The pool does not take the job; the message says why."""


class NameTaken(JoinRefused):
    """Another job of the pool that has not ended has the name."""


class DeviceNotShared(JoinRefused):
    """The process trains on a device that the pool does not share, and so takes nothing from anybody in the pool."""


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
        """Estimators that the scheduler feeds with every cell; their rows are the jobs' ``place``."""


@runtime_checkable
class Client(Protocol):
    """How a training process speaks with its scheduler, wherever that lives.

    Called from one daemon thread at a time, never from the training thread. A call that fails raises
    :class:`ConnectionError`; that never means that it was not carried out, so whoever calls repeats it with the same
    number.
    """

    def join(self, job: Job, device: str) -> JoinReply:
        """Adds a job that a person has started, and whose process speaks from now on through this client.

        Args:
            job: as it is submitted.
            device: on which the process trains: ``"cpu"``, or a GPU's UUID.

        Raises:
            JoinRefused: if the pool does not take it: :class:`NameTaken` and :class:`DeviceNotShared` say why. All but
                the latter may change with time.
        """

    def report(self, report: Report) -> Directive | None:
        """Delivers a report; the answer is the newest directive if the worker's is older."""

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        """Returns as soon as the job has a directive newer than ``version``; None after ``timeout`` seconds."""

    def job_forecast(self, job: str) -> JobForecast | None:
        """What is forecast for the job; None if it is not known."""

    def left(self, event: WorkerExited) -> None:
        """Says that the worker is gone."""

    def close(self) -> None:
        """Lets go of the connection."""


@runtime_checkable
class Turns(Protocol):
    """How a training process takes its turns on a device that it shares.

    Called from the training thread. ``held`` and ``spent`` cost nothing; ``take`` waits, ``give`` does not.
    """

    held: bool
    """Whether it is this process's turn."""

    def take(self, share: float, timeout: float) -> bool:
        """Waits for the turn, for ``timeout`` seconds at most; ``share`` weighs it against the others."""

    def spent(self) -> bool:
        """Whether the turn has lasted long enough and another process waits for it."""

    def give(self, *, again: bool, share: float = 0.0) -> None:
        """Gives the turn back; ``again`` asks for the next one in the same breath."""

    def bind(self) -> None:
        """Keeps the training thread on the device, where cores are the device; the first turn does so too."""

    def close(self) -> None:
        """Leaves for good."""
