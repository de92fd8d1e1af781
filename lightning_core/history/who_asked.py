"""Requests of users and controllers for a job, as text, and whether another request overrules them."""

from __future__ import annotations

from lightning_core.core.commands import Asking, Cancel, Command, Pause, Resume, level_after
from lightning_core.core.control import NOTHING, Asked, Asker
from lightning_core.core.control.asks import first, first_words, settled


def command_words(event: Cancel | Pause | Resume) -> str:
    """Return a command as text."""
    match event:
        case Cancel():
            return "cancel"
        case Pause(release=True):
            return "pause, and free its memory"
        case Pause():
            return "pause"
        case Resume():
            return "resume"


def sent_words(event: Command, words: str) -> str:
    """Return a command as text, prefixed with the name of its sender if known.

    Example::

        >>> sent_words(Cancel("vit", "ann"), "cancel"), sent_words(Cancel("vit"), "cancel")
        ('ann: cancel', 'cancel')
    """
    return f"{event.who}: {words}" if event.who else words


def take_level(levels: dict[Asker, Asked], event: Asking) -> str:
    """Record the request in an event, and return who overrules it, as text; empty if none does.

    Args:
        levels: Requests for the job by asker; modified in place.
        event: The event.

    Example::

        >>> levels = {Asker.PERSON: Asked(hold=True)}
        >>> take_level(levels, Resume("vit", Asker.CALENDAR))
        ' (overruled by a person)'
    """
    after = levels[event.by] = level_after(event, levels.get(event.by, NOTHING))
    levels.update(settled(levels))
    for name in ("hold", "location", "devices"):
        wanted = getattr(after, name)
        had, by = first(levels, name)
        if wanted is not None and by is not None and had != wanted:
            return f" (overruled by {first_words(levels, name)})"
    return ""
