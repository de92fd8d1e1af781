"""Protocols of parts that stand around the scheduler: supplies of nodes, tasks beside it, and readers of journals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from lightning_core.core.jobs import Job


class NodeSource(Protocol):
    """Nodes for one pool, which an actor named ``POOL-provisioner`` brings and gives back."""

    def start(self, pool: str, scheduler: str, folder: Path) -> Any:
        """Start the actor in the joined Ray; return its handle, whose ``give_back`` returns all nodes for good.

        Args:
            pool: Name of the pool.
            scheduler: Name of its scheduler's actor.
            folder: Folder of the pool.
        """


class VirtualNodes(Protocol):
    """Nodes in virtual time, for one simulation; their devices come and go."""

    @property
    def next_at(self) -> float:
        """Scheduler time at which they change next."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no node, and none is wanted."""

    def join(self, pool: Any, queue: Any, tell: Callable[[Any], None]) -> None:
        """Join a simulation: its pool, its queue, and a function that hands the scheduler an event."""

    def begin_interval(self) -> None:
        """Change the nodes at :attr:`next_at`."""

    def hear(self, answer: Any) -> None:
        """Take in an answer of the part, at once."""

    def first_events(self) -> Iterable[Any]:
        """Return the events that the scheduler handles first."""

    def due_events(self, scheduler: Any, now: float) -> Iterable[Any]:
        """Return the events that the scheduler handles before the next jobs are submitted."""

    def record(self, scheduler: Any) -> Any:
        """Return what the simulation's outcome has of the nodes; its ``figures`` are texts by their names."""


@runtime_checkable
class Supply(Protocol):
    """Where a pool's nodes come from, if they come and go with what a controller wants.

    A part brings a class of it under the key of its section (:attr:`Part.supplies <lightning_core.core.parts.Part>`),
    which is the name of its controller as well.
    """

    save_every: float
    """Seconds between two checkpoints of a job that does not say."""

    @classmethod
    def read(cls, section: Any, folder: Path) -> Self:
        """Read the section of a bundle, or of the file of ``up --config``.

        Args:
            section: Its value in the file.
            folder: Folder to which paths are relative.

        Raises:
            ValueError: If it is wrong.
        """

    @classmethod
    def left(cls, folder: Path, scheduler: Any | None = None) -> None:
        """Leave what later pools of a folder begin with, once its pool or run is over; does nothing for any other.

        Args:
            folder: Folder of the run or pool, with its journal.
            scheduler: Its scheduler, if it is at hand.
        """

    @classmethod
    def again(cls, folder: Path, settings: Any) -> Any:
        """Return the settings of a new pool, which begins with what earlier ones have left in its folder."""

    def section(self) -> Any:
        """Return the section as in a file; :meth:`read` reads it."""

    def check(self, *, local: bool) -> None:
        """Check what must be there to start; a ValueError says what is not.

        Args:
            local: Whether the nodes are processes of this machine.
        """

    def settings(self, settings: Any, jobs: Sequence[Job] | None = None) -> Any:
        """Return settings with the controller.

        Args:
            settings: Settings of a pool whose devices are set already.
            jobs: Jobs of its run; None if the pool does not know which will come.

        Raises:
            ValueError: If the section needs to know, and does not say; or does not go with the jobs.
        """

    def announce(self) -> str:
        """Return what a run says of its nodes before it starts: ``of 20 intervals``."""

    def nodes(self, settings: Any, pool: str, kind: str, *, local: bool) -> NodeSource:
        """Return the nodes of a pool.

        Args:
            settings: Its settings.
            pool: Its name.
            kind: Kind of its devices, ``"cpu"`` or ``"gpu"``.
            local: Whether they are processes of this machine.
        """

    def virtual(self, settings: Any, delays: Mapping[str, float]) -> VirtualNodes:
        """Return nodes for a simulation.

        Args:
            settings: Settings of the pool.
            delays: Seconds of ``node_start``, ``notice``, ``leave``, each if it is given.

        Raises:
            ValueError: If nothing is recorded that could be played.
        """

    def show_run(self, run_dir: Path) -> None:
        """Print what the nodes of a run have cost, and write it into its folder."""

    def show_record(self, record: Any) -> None:
        """Print the same of a simulation, from :meth:`VirtualNodes.record`."""

    def record_to_dict(self, record: Any) -> dict[str, Any]:
        """Return a simulation's record as JSON values."""


class BesideTask(Protocol):
    """A task beside the scheduler, which computes for a controller and hands in events."""

    def begin(self) -> None:
        """Begin; the scheduler takes events from now on."""

    async def begun(self) -> None:
        """Return once jobs can be submitted."""

    def start_if_due(self) -> None:
        """Start what is due, unless it runs already."""

    def seconds_to_next(self) -> float | None:
        """Return the seconds until something is due; None if nothing is."""


class PartHistory(Protocol):
    """What a part reads from a journal, for reports and pages."""

    def take(self, event: Any, now: float) -> None:
        """Record an event; those of parts as their objects."""

    def answer(self, answer: Any, now: float) -> None:
        """Record an answer of a part, as its object."""

    def hold(self, job: Any) -> None:
        """Record that the grant of a job has changed."""
