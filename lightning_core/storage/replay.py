"""Replay: a scheduler that handles every event of a journal again."""

from __future__ import annotations

from typing import NamedTuple

from lightning_core.core.codec import decode_event, encode_answers
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journal import Journal
from lightning_core.storage.journal_database import digest_of
from lightning_core.storage.journal_errors import JournalError, reading


class Replay(NamedTuple):
    """A scheduler in the state in which the journal ends."""

    scheduler: Scheduler
    now: float
    """Scheduler time of the last event, in seconds."""
    events: int
    """Number of events."""
    digest: str
    """Digest over the recorded events and the recomputed answers; equal to the journal's if no answer differs."""


def replay(journal: Journal, *, strict: bool = True) -> Replay:
    """Handle every event of a journal again.

    Args:
        journal: Journal to replay.
        strict: Whether an answer that differs from the recorded one is an error.

    Raises:
        JournalError: If the journal is damaged or a part of another, or if an answer differs and ``strict`` is set;
            the message has the number of the first such event.
    """
    if (whole := journal.part_of) is not None:
        raise JournalError(
            f"{journal.path}: cannot be replayed alone: it is a part of the journal of the pool at {whole.folder}; "
            "replay that one"
        )
    scheduler = Scheduler(journal.settings())
    digest = journal.first_digest
    now, count = 0.0, 0
    with reading(journal.path):
        for entry in journal.entries():
            event = decode_event(entry.event)
            answers = scheduler.handle(event, entry.now)
            answer = encode_answers(answers, scheduler.accepted, event)
            if strict and answer != entry.answers:
                raise JournalError(f"{journal.path}: event {entry.number} does not replay: {entry.event}")
            digest = digest_of(digest, repr(entry.now), entry.event, answer)
            now, count = entry.now, count + 1
            reach("journal.replaying")
    return Replay(scheduler, now, count, digest)
