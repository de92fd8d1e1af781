"""Entries of a journal as a history takes them: an event, its answers, and what was accepted of it."""

from __future__ import annotations

import json
from typing import NamedTuple

from lightning_core.core.answers import Accepted, Answer
from lightning_core.core.codec import accepted_from_dicts, answers_from_dicts, decode_event
from lightning_core.core.events import Event, Report
from lightning_core.core.validation import loads
from lightning_core.storage.journals.journal_database import KEPT_ON, LEFT_OUT_BEFORE, JournalEntry
from lightning_core.storage.journals.thinning import AFTER_A_BREAK

_REPORT = '{"kind":"report"'
# What answers have and accepted parts have not.
_ANSWER = '"kind":'


class Taken(NamedTuple):
    """An entry as a history takes it."""

    event: Event
    answers: list[Answer]
    accepted: list[Accepted]
    breaks: tuple[int, ...] = ()
    """Places of the cells of a report before which others were left out: a thinned journal has few."""


def read_entry(entry: JournalEntry) -> Taken:
    """Return an entry as a history takes it.

    Raises:
        ValueError: If a value is of another type or out of its range; AttributeError, KeyError or TypeError where the
            texts have another form.
    """
    event, parts = decode_event(entry.event), loads(entry.answers)
    breaks: tuple[int, ...] = ()
    if isinstance(event, Report) and entry.digest in (KEPT_ON, LEFT_OUT_BEFORE):  # thinned: numbers of cells are marks
        breaks = tuple(k for k, cell in enumerate(event.cells) if cell.number == AFTER_A_BREAK)
    return Taken(event, answers_from_dicts(parts), accepted_from_dicts(parts, event), breaks)


def says_nothing_of(entry: JournalEntry, job: str) -> bool:
    """Return whether an entry is the report of another job, and was only accepted."""
    name = json.dumps(job)
    return entry.event.startswith(_REPORT) and f'"job":{name}' not in entry.event and _ANSWER not in entry.answers
