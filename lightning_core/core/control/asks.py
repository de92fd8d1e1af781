"""Requests for a job beside the plan of its policy: whether it is held, where it trains, and on how many devices.

A person asks by commands, and so may programs that parts bring; a controller asks by :class:`Ask`. What each asks is a
level: it holds until the same one asks for something else or withdraws it. Where several differ, the one with the
lowest rank has its way (:class:`Rights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from lightning_core.core.limits import MAX_DEVICES, check_at_most, shown
from lightning_core.core.parts import AbsentPartError, brought
from lightning_core.core.reasons import Reason


class Asker(str):
    """Name of one who asks: a person, a controller, or whom a part brings.

    Example::

        >>> Asker.CALENDAR, Asker("lamp").words
        ('calendar', 'lamp')
    """

    __slots__ = ()

    PERSON: ClassVar[Asker]
    CALENDAR: ClassVar[Asker]
    """The times at which the pool may train."""

    @property
    def words(self) -> str:
        """The asker as a reason names it."""
        return rights_of(self).words


class Rights(NamedTuple):
    """What one may ask of a job, and whose word stands above it.

    A controller has it as its attribute ``rights``; of those who ask by commands, the part that brings them says it.
    """

    words: str
    """Who asks, as a reason names it."""
    holds: bool = False
    """Whether it may hold a job, or let it train."""
    places: bool = False
    """Whether it may choose the location of a job."""
    sizes: bool = False
    """Whether it may choose the number of devices of a job."""
    rank: int = 70
    """Where several ask for something, the lowest rank has its way; 0 is a person's, and all others have at least 1."""
    is_pure: bool = False
    """Whether a replay asks the controller again. It then has to answer as it did, with any version that reads the
    journal; the answers of all others are recorded."""
    commands: bool = False
    """Whether it asks by commands; a controller does not."""


Asker.PERSON, Asker.CALENDAR = Asker("person"), Asker("calendar")

_DECLARED: dict[Asker, Rights] = {}
RIGHTS: Mapping[Asker, Rights] = {
    Asker.PERSON: Rights("a person", holds=True, places=True, sizes=True, rank=0, commands=True),
    Asker.CALENDAR: Rights("the calendar", holds=True, rank=20, is_pure=True),
}
"""Rights of those that the core knows, in the order of their rank."""


def declare_rights(by: Asker, rights: Rights) -> None:
    """Note the rights of a controller of a part.

    Raises:
        ValueError: If the name is one of the library's own, or the rank is that of a person.
    """
    if by in RIGHTS:
        raise ValueError(f"controller {by}: the library has one of this name")
    if brought("askers", by) is not None:
        raise ValueError(f"controller {by}: a part asks by commands under this name")
    if not isinstance(rights, Rights) or rights.rank < 1 or rights.commands:
        rule = "must be Rights with a rank of at least 1 and without commands"
        raise ValueError(f"controller {by}: rights {rule}, got {rights!r}")
    _DECLARED[by] = rights


def rights_of(by: Asker) -> Rights:
    """Return the rights of one who asks. Of a controller that is not known here only its name is."""
    return _known(by) or Rights(str(by), holds=True, places=True, sizes=True)


def check_known(by: Asker) -> None:
    """Check that the rights of an asker are known: its requests cannot be ranked without them.

    Raises:
        AbsentPartError: If no installed part brings the asker.
    """
    if _known(by) is None:
        raise AbsentPartError(f"no part that is installed here asks under the name {shown(str(by))}")


def _known(by: Asker) -> Rights | None:
    if (known := RIGHTS.get(by) or _DECLARED.get(by)) is not None:
        return known
    if (found := brought("askers", by)) is not None and isinstance(found[0], Rights):
        return found[0]._replace(rank=max(found[0].rank, 1), commands=True)
    found = brought("controllers", by)
    known = getattr(found[0], "rights", None) if found is not None else None
    if not isinstance(known, Rights):  # not noted: anyone may send any name
        return None
    _DECLARED[by] = known
    return known


class Asked(NamedTuple):
    """What one asks of a job; None for what it leaves to the others."""

    hold: bool | None = None
    """Whether the job is held."""
    release: bool = False
    """Whether its memory is freed while it is held."""
    location: str | None = None
    """Name of the location at which it trains; empty for any."""
    devices: int | None = None
    """Number of devices: it takes the largest size that it supports and that is not above it; 0 for none."""
    reason: Reason | None = None
    """Why, if a controller asks."""
    held_by: str = ""
    """Name of the person who asked for ``hold``; empty if unknown, or if no person did."""
    placed_by: str = ""
    """The same for ``location``."""
    sized_by: str = ""
    """The same for ``devices``."""


NOTHING = Asked()
# The reason of an ask for nothing.
WITHDRAWN = Reason("withdrawn")
# Who asks, until the scheduler has set the name of the controller.
UNNAMED = Asker("")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a controller asks of a job from now on, in place of what it asked before.

    Args:
        job: Name of the job.
        by: The controller. The scheduler sets it for those of parts: the name under which a pool has the controller.
        hold: As in :class:`Asked`, as are the others.
        release: Whether its memory is freed while it is held.
        location: Name of its location.
        devices: Number of devices.
        reason: Why. Its numbers should stay the same while the request does: another reason is another request, which
            goes to the journal.

    Raises:
        ValueError: If the controller has no right to ask for it, or the number of devices is out of its range.

    Example::

        >>> Ask("vit", Asker.CALENDAR, devices=2)
        Traceback (most recent call last):
        ...
        ValueError: vit: the calendar may not choose the number of devices, got 2
    """

    job: str
    by: Asker = UNNAMED
    hold: bool | None = None
    release: bool = False
    location: str | None = None
    devices: int | None = None
    reason: Reason = WITHDRAWN

    def __post_init__(self) -> None:
        if (rights := rights_of(self.by)).commands:
            raise ValueError(f"{self.job}: {rights.words} asks by commands, got {self.by}")
        for asked, may, what in (
            (self.hold, rights.holds, "hold a job"),
            (self.location, rights.places, "choose its location"),
            (self.devices, rights.sizes, "choose the number of devices"),
        ):
            if asked is not None and not may:
                raise ValueError(f"{self.job}: {rights.words} may not {what}, got {asked}")
        if self.devices is not None:
            check_devices(self.devices)

    @property
    def asked(self) -> Asked:
        """What is asked."""
        asked = Asked(self.hold, self.release, self.location, self.devices)
        return asked if asked == NOTHING or self.reason == WITHDRAWN else asked._replace(reason=self.reason)

    @property
    def words(self) -> str:
        """What is asked, for histories."""
        parts = []
        if self.hold is not None:
            parts.append(("hold, and free its memory" if self.release else "hold") if self.hold else "train")
        if self.location is not None:
            parts.append(f"location {self.location or 'any'}")
        if self.devices is not None:
            parts.append(f"devices {self.devices}")
        if not parts:
            return str(WITHDRAWN)
        return ", ".join(parts) if self.reason == WITHDRAWN else f"{', '.join(parts)}: {self.reason}"


def settled(levels: Mapping[Asker, Asked]) -> dict[Asker, Asked]:
    """Return what each asks, once a person's word against a hold is forgotten with the last hold: it was for that one.

    Example::

        >>> settled({Asker.PERSON: Asked(hold=False, devices=2), Asker.CALENDAR: Asked()})[Asker.PERSON].hold is None
        True
    """
    after = dict(levels)
    person = after.get(Asker.PERSON, NOTHING)
    if person.hold is False and not any(one.hold for one in after.values()):
        after[Asker.PERSON] = person._replace(hold=None, held_by="")
    return after


def check_devices(devices: int) -> None:
    """Check a number of devices that is asked for; a ValueError says what is wrong with it."""
    if not devices >= 0:
        raise ValueError(f"devices must be at least 0, got {devices}")
    check_at_most("devices", devices, MAX_DEVICES)


def first(levels: Mapping[Asker, Asked], name: str) -> tuple[Any, Asker | None]:
    """Return the request of the highest-ranking asker that sets a field, and that asker; (None, None) if none does.

    Example::

        >>> levels = {Asker.CALENDAR: Asked(devices=3), Asker.PERSON: Asked(devices=1, hold=True)}
        >>> first(levels, "devices"), first(levels, "location")
        ((1, 'person'), (None, None))
    """
    for by in sorted(levels, key=lambda by: rights_of(by).rank) if len(levels) > 1 else levels:
        if (value := getattr(levels[by], name)) is not None:
            return value, by
    return None, None


def first_words(levels: Mapping[Asker, Asked], name: str) -> str:
    """Return who has its way, in words: the name of a person where it is known; empty if none asks.

    Args:
        levels: What each asks of the job.
        name: Name of a field of :class:`Asked`.

    Example::

        >>> first_words({Asker.PERSON: Asked(hold=True, held_by="ann")}, "hold")
        'ann'
        >>> first_words({Asker.PERSON: Asked(hold=True)}, "hold")
        'a person'
    """
    _, by = first(levels, name)
    return "" if by is None else getattr(levels[by], _NAMED_IN[name]) or by.words


_NAMED_IN = {"hold": "held_by", "location": "placed_by", "devices": "sized_by"}
