"""Entries of a journal as a history takes them: reports, which nearly all of them are, without a check for each cell.

The cells of a report are checked together. Everything else is decoded and checked as anywhere.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import NamedTuple

from lightning_core.core.answers import Accepted, Answer
from lightning_core.core.codec import accepted_from_dicts, answers_from_dicts, event_from_dict
from lightning_core.core.events import Event
from lightning_core.core.limits import shown
from lightning_core.core.validation import MAX_INTEGER
from lightning_core.storage.journals.journal_database import KEPT_ON, LEFT_OUT_BEFORE, JournalEntry
from lightning_core.storage.journals.thinning import AFTER_A_BREAK

_REPORT = '{"kind":"report"'
# Keys of answers: those of a report that was only accepted have none of them.
_ANSWER = '"reason":'


class Taken(NamedTuple):
    """An entry as a history takes it."""

    event: Event
    """The event; a report is without its cells, which are among what was accepted."""
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
    body, parts = json.loads(entry.event), json.loads(entry.answers)
    if not entry.event.startswith(_REPORT):
        event = event_from_dict(body)
        return Taken(event, answers_from_dicts(parts), accepted_from_dicts(parts, event))
    told = body.pop("cells", ())
    thinned = entry.digest in (KEPT_ON, LEFT_OUT_BEFORE)
    breaks = tuple(k for k, cell in enumerate(told) if thinned and cell[0] == AFTER_A_BREAK)
    cells = [(batches, value) for _, batches, value in told]
    job = body["job"]
    for part in parts:
        if "accepted" in part and part["job"] == job and (own := part["accepted"].pop("cells", None)) is not None:
            cells = [(batches, value) for batches, value in own]
    for batches, value in cells:
        if type(batches) is not int or not -MAX_INTEGER <= batches <= MAX_INTEGER or not isfinite(value):
            raise ValueError(f"expected the cell of a report, got {shown([batches, value])}")
    event = event_from_dict(body)
    accepted = [
        one._replace(cells=tuple(cells)) if cells and one.job == job else one
        for one in accepted_from_dicts(parts, event)
    ]
    return Taken(event, answers_from_dicts(parts), accepted, breaks)


def says_nothing_of(entry: JournalEntry, job: str) -> bool:
    """Return whether an entry is the report of another job, and was only accepted."""
    name = json.dumps(job)
    return entry.event.startswith(_REPORT) and f'"job":{name}' not in entry.event and _ANSWER not in entry.answers
