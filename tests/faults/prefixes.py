"""Conditions that every prefix of any journal must meet: the scheduler is checked after each event.

>>> from lightning_core.core.events import Submit, Tick
>>> from lightning_core.core.jobs import Job
>>> from lightning_core.core.targets import BatchTarget
>>> history = History(Settings("fifo"), [(0.0, Submit((Job("a", 60.0, BatchTarget(100)),))), (30.0, Tick())])
>>> first_broken(history) is None
True
>>> str(first_broken(history, Limits(ready=20.0))).splitlines()[0]
'after event 2, Tick(): a: placed on (0,) for 30.0s, and its workers are neither there nor missed'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lightning_core.core.answers import Answer, End, Grant, JobStatus, State
from lightning_core.core.codec import decode_event
from lightning_core.core.control import PartAnswer
from lightning_core.core.events import Checkpoint, Event, Report, WorkerExited
from lightning_core.core.jobs import Capability
from lightning_core.scheduler.retry_budgets import JITTER, MAX_DELAY
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal

# Maximum seconds between two events while the pool is up.
LONGEST_GAP = 30.0


class History(NamedTuple):
    """History of a scheduler: its settings, and each event with its time."""

    settings: Settings
    events: Sequence[tuple[float, Event]]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Maximum seconds that a job may be in a transient state. They hold only for jobs under a pool manager."""

    ready: float = 90.0
    """From a placement to the first report of its incarnation, or the event that its workers are missing."""
    leaving: float = 90.0
    """From the order to leave to the event that it has left: it saves first, and is killed after a grace period."""
    away: float = MAX_DELAY * (1 + JITTER) + 5.0
    """After a fault, though it may come back."""


class Broken(NamedTuple):
    """The first prefix that breaks a condition."""

    number: int
    """Number of its last event, from 1 on."""
    event: Event
    story: str
    scheduler: Scheduler

    def __str__(self) -> str:
        return f"after event {self.number}, {self.event}: {self.story}"


class Witness:
    """Checks the pool by the directives of its workers alone."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._grants: dict[str, Grant] = {}
        self._versions: dict[str, int] = {}

    def hear(self, answers: Iterable[Answer]) -> None:
        """Check the directives of the workers.

        Raises:
            AssertionError: If a device is oversold, has two owners, or a version of a grant went back.
        """
        for answer in answers:
            assert isinstance(answer, PartAnswer) or str(answer.reason), f"{answer.job}: told without a reason"
            if not isinstance(answer, Grant | End) or not answer.version:
                continue
            assert answer.version >= self._versions.get(answer.job, 0), f"{answer.job}: its version went back"
            self._versions[answer.job] = answer.version
            if isinstance(answer, End):
                self._grants.pop(answer.job, None)
            else:
                self._grants[answer.job] = answer
        load, owners = [0.0] * self._devices, [0] * self._devices
        for grant in self._grants.values():
            assert sorted(set(grant.devices)) == list(grant.devices), f"{grant.job}: a device twice: {grant.devices}"
            assert grant.devices or not grant.share, f"{grant.job}: a share and no device"
            for device in grant.devices:
                assert 0 <= device < self._devices, f"{grant.job}: no such device: {device}"
                load[device] += grant.share
                owners[device] += grant.share > 1 - 1e-6
        assert max(load) <= 1 + 1e-6, f"a device is oversold: {load}"
        assert max(owners) <= 1, f"a device has two owners: {owners}"


class Watch:
    """Checks a scheduler after each event, and that it never takes back what is final."""

    def __init__(self, scheduler: Scheduler, limits: Limits | None = None) -> None:
        self._scheduler = scheduler
        self._limits = limits
        self._witness = Witness(scheduler.settings.devices)
        self._incarnations: dict[str, int] = {}
        self._saves: dict[str, tuple[Checkpoint, ...]] = {}
        self._since: dict[tuple[str, int, str], float] = {}
        self._awake = self._last = 0.0

    def after(self, event: Event, now: float, answers: Iterable[Answer]) -> None:
        """Check the scheduler after an event.

        Raises:
            AssertionError: If a condition is broken.
        """
        self._scheduler.check()
        self._witness.hear(answers)
        for name in self._scheduler.names():
            incarnation, before = self._scheduler.incarnation(name), self._incarnations.get(name, 0)
            assert incarnation >= before, f"{name}: its incarnation went back from {before} to {incarnation}"
            self._accepted(name, event, before)
            self._incarnations[name], self._saves[name] = incarnation, self._scheduler.checkpoints(name)
        if self._limits is not None:
            self._in_time(now, self._limits)

    def _accepted(self, name: str, event: Event, incarnation: int) -> None:
        """Check that new checkpoints were reported by the incarnation that was current."""
        for save in set(self._scheduler.checkpoints(name)) - set(self._saves.get(name, ())):
            assert isinstance(event, Report | WorkerExited), f"{name}: {save} of no job"
            reported = event.job, event.incarnation, event.checkpoint
            assert reported == (name, incarnation, save), f"{name}: {save} of {event}"

    def _in_time(self, now: float, limits: Limits) -> None:
        # Time without events, while the pool was down, does not count.
        self._awake += min(now - self._last, LONGEST_GAP)
        self._last = now
        passing = {}
        for status in self._scheduler.status():
            if (
                status.state is State.ENDED
                or status.paused
                or Capability.RELEASE not in self._scheduler.job(status.name).can
            ):
                continue
            if (said := self._passes(status, limits)) is not None:
                passing[status.name, status.incarnation, said[1]] = said
        self._since = {key: self._since.get(key, self._awake) for key in passing}
        for key, (limit, story) in passing.items():
            passed = self._awake - self._since[key]
            assert passed <= limit, f"{key[0]}: {story.format(passed)}"

    def _passes(self, status: JobStatus, limits: Limits) -> tuple[float, str] | None:
        """Return the maximum seconds of the job's present state, and the message if they are exceeded."""
        table = self._scheduler._table
        reported = table.last_report[table.row_of[status.name]] > 0
        if status.devices and not reported:
            return (
                limits.ready,
                f"placed on {status.devices} for {{:.1f}}s, and its workers are neither there nor missed",
            )
        if not status.devices and reported:
            return limits.leaving, "told to leave for {:.1f}s, and it has not left"
        if status.grant_reason.code == "recovering":
            return limits.away, "away after a fault for {:.1f}s, though it may come back"
        return None


def first_broken(history: History, limits: Limits | None = None) -> Broken | None:
    """Replay event by event; return the first prefix that breaks a condition, or None."""
    scheduler = Scheduler(history.settings)
    watch = Watch(scheduler, limits)
    for number, (now, event) in enumerate(history.events, 1):
        try:
            answers = scheduler.handle(event, now)
            watch.after(event, now, answers)
        except Exception as error:
            return Broken(number, event, str(error) or type(error).__name__, scheduler)
    return None


def history_of(path: Path) -> History:
    """Read the history from a journal."""
    with Journal.open(path, read_only=True) as journal:
        events = [(entry.now, decode_event(entry.event)) for entry in journal.entries()]
        return History(journal.settings(), events)
