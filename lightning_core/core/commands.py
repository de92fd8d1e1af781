"""Commands: the events by which a user changes the terms of a job.

Each changes one thing and leaves the rest unchanged: two simultaneous commands cannot undo each other. Each names its
sender.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from lightning_core.core.control.asks import Ask, Asked, Asker, check_devices, rights_of
from lightning_core.core.jobs import Job, OnMiss, OnNan, check_term
from lightning_core.core.limits import Deadline
from lightning_core.core.names import check_sender_name
from lightning_core.core.targets import Target


def _check_who(who: str) -> None:
    if who:
        check_sender_name(who)


class Unchanged(Enum):
    """The type of :data:`UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED = Unchanged.UNCHANGED
"""Marks a term that a command leaves unchanged: None is a value of some terms."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job.

    Args:
        job: Name of the job.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown.
    """

    job: str
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold the job until :class:`Resume`.

    Args:
        job: Name of the job.
        release: Whether its memory is freed too.
        by: Sender.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown, or if no user did.
    """

    job: str
    release: bool = False
    by: Asker = Asker.PERSON
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a paused job, or one that a controller holds.

    It revokes a pause. A job that is not paused but held by a controller trains regardless of controllers.

    Args:
        job: Name of the job.
        by: Sender.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown, or if no user did.
    """

    job: str
    by: Asker = Asker.PERSON
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Give a job another deadline.

    Args:
        job: Name of the job.
        deadline: Seconds from now; inf for none.
        by: Sender.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown, or if no user did.
        from_submission: Whether ``deadline`` counts from the job's submission instead; it may then be past.

    Raises:
        ValueError: If the deadline is not positive.
    """

    job: str
    deadline: Deadline
    by: Asker = Asker.PERSON
    from_submission: bool = False
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)
        check_term("deadline", self.deadline)

    def deadline_at(self, submitted_at: float, now: float) -> float:
        """Return the new deadline in scheduler time."""
        return (submitted_at if self.from_submission else now) + self.deadline

    def apply(self, job: Job, submitted_at: float, now: float) -> Job:
        """Return the job with its new deadline.

        Raises:
            ValueError: If the job may not begin before it.
        """
        deadline = self.deadline if self.from_submission else now + self.deadline - submitted_at
        return replace(job, deadline=deadline)


@dataclass(frozen=True, slots=True)
class SetDevices:
    """Set the number of devices of a job.

    Args:
        job: Name of the job.
        devices: Number of devices: the job takes the largest size that it supports and that is not above it. With 0 it
            holds no devices until another number is set. None revokes earlier requests, also for the location.
        by: Sender.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown, or if no user did.

    Raises:
        ValueError: If the number is negative.
    """

    job: str
    devices: int | None
    by: Asker = Asker.PERSON
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)
        if self.devices is not None:
            check_devices(self.devices)


@dataclass(frozen=True, slots=True)
class SetLocation:
    """Move a job to another location of the pool.

    Args:
        job: Name of the job.
        location: Name of the location, as the pool's settings spell it; empty for any.
        devices: Number of devices that it trains on there, as in :class:`SetDevices`; None leaves it unchanged.
        by: Sender.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown, or if no user did.

    Raises:
        ValueError: If the number of devices is negative.
    """

    job: str
    location: str
    devices: int | None = None
    by: Asker = Asker.PERSON
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)
        if self.devices is not None:
            check_devices(self.devices)

    def apply(self, job: Job) -> Job:
        """Return the job at its new location.

        Raises:
            ValueError: If it cannot be moved.
        """
        return replace(job, location=self.location)


@dataclass(frozen=True, slots=True)
class SetTerms:
    """Change other terms of a job; those not named stay unchanged.

    Properties fixed at submission cannot be changed: the capabilities of its process, its device and its sizes.

    Args:
        job: Name of the job.
        target: See :class:`~lightning_core.core.jobs.Job`, also for the others.
        begin: Seconds from submission.
        weight: Weight of the job.
        on_miss: Action when its deadline passes.
        on_nan: Action when its losses are NaN or infinite.
        restarts: Limit of restarts after lost workers.
        retries: Limit of restarts after errors of its own code.
        work: Seconds of work expected by the user.
        resize_seconds: Seconds that a resize costs.
        spec_sha256: SHA-256 of the text of a new spec.
        by: Sender.
        who: Who sent it (:func:`.names.sender_name`), set by the server; empty if unknown, or if no user did.

    Raises:
        ValueError: If a term is out of its range.
    """

    job: str
    target: Target | Unchanged = UNCHANGED
    begin: float | Unchanged = UNCHANGED
    weight: float | Unchanged = UNCHANGED
    on_miss: OnMiss | Unchanged = UNCHANGED
    on_nan: OnNan | Unchanged = UNCHANGED
    restarts: int | Unchanged | None = UNCHANGED
    retries: int | Unchanged = UNCHANGED
    work: float | Unchanged | None = UNCHANGED
    resize_seconds: float | Unchanged | None = UNCHANGED
    spec_sha256: str | Unchanged = UNCHANGED
    by: Asker = Asker.PERSON
    who: str = ""

    def __post_init__(self) -> None:
        _check_who(self.who)
        for name, value in self.terms().items():
            check_term(name, value)

    def terms(self) -> dict[str, Any]:
        """Return the terms that change, by name."""
        return {name: value for name in TERMS if (value := getattr(self, name)) is not UNCHANGED}

    def apply(self, job: Job) -> Job:
        """Return the job with its new terms.

        Raises:
            ValueError: If they do not fit the job.
        """
        terms = self.terms()
        if isinstance(target := terms.get("target"), Target) and (known := job.target.epoch_batches) is not None:
            terms["target"] = target.resolved(known)
        return replace(job, **terms)

    @classmethod
    def between(cls, before: Job, after: Job, by: Asker = Asker.PERSON) -> SetTerms | None:
        """Return the command that turns one version of a job into another; None if no term of it differs."""
        wanted = {name: getattr(after, name) for name in TERMS}
        changes = {name: value for name, value in wanted.items() if value != getattr(before, name)}
        return cls(after.name, by=by, **changes) if changes else None


TERMS = tuple(f.name for f in fields(SetTerms) if f.name not in ("job", "by", "who"))
"""Names of the terms that :class:`SetTerms` can change."""


Change = SetDeadline | SetDevices | SetLocation | SetTerms
"""Commands that change the terms of a job that has not ended."""

Command = Cancel | Pause | Resume | Change
"""Every command of a user about a job."""

Asking = Ask | Pause | Resume | SetDevices | SetLocation
"""Events that set the level of their sender (:mod:`lightning_core.core.control.asks`)."""


_NEEDED = {Pause: "holds", Resume: "holds", SetDevices: "sizes", SetLocation: "places"}


def check_sender(command: Command) -> None:
    """Check that a command is one that its sender may send: all are a person's.

    Raises:
        ValueError: If it is not.
    """
    if (by := getattr(command, "by", Asker.PERSON)) == Asker.PERSON:
        return
    rights, kind = rights_of(by), type(command)
    if not rights.commands or kind not in _NEEDED or not getattr(rights, _NEEDED[kind]):
        raise ValueError(f"{command.job}: {kind.__name__} is no command that {by} may send")


def level_after(event: Asking, before: Asked) -> Asked:
    """Return the sender's new requests for a job, given its earlier ones.

    Example::

        >>> level_after(Pause("vit", release=True), Asked(devices=2))
        Asked(hold=True, release=True, location=None, devices=2, reason=None, held_by='', placed_by='', sized_by='')
    """
    if isinstance(event, Ask):
        return event.asked
    who = event.who if event.by == Asker.PERSON else ""
    match event:
        case Pause(_, release):
            return before._replace(hold=True, release=release, held_by=who)
        case Resume():
            # Its own pause is revoked. Other holds on the job are overruled.
            if before.hold:
                return before._replace(hold=None, release=False, held_by="")
            return before._replace(hold=False, release=False, held_by=who)
        case SetDevices(_, None):
            return before._replace(devices=None, location=None, sized_by="", placed_by="")
        case SetDevices(_, devices):
            return before._replace(devices=devices, sized_by=who)
        case SetLocation(_, location, None):
            return before._replace(location=location, placed_by=who)
        case SetLocation(_, location, devices):
            return before._replace(location=location, placed_by=who, devices=devices, sized_by=who)
