"""Replay: a scheduler that handles the events of a journal again."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from lightning_core.core.codec import decode_event, encode_answers
from lightning_core.core.saved_state import StateError, restored
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import digest_of
from lightning_core.storage.journals.journal_errors import JournalError, reading


class Replay(NamedTuple):
    """A scheduler in the state in which the journal ends."""

    scheduler: Scheduler
    now: float
    """Scheduler time of the last event, in seconds."""
    events: int
    """Number of events."""
    digest: str
    """Digest over the recorded events and the recomputed answers; equal to the journal's if no answer differs."""


def replay(journal: Journal, *, strict: bool = True, whole: bool = False) -> Replay:
    """Bring a scheduler to the state in which a journal ends: from its newest snapshot, by the events behind it.

    Args:
        journal: Journal to replay.
        strict: Whether an answer that differs from the recorded one is an error.
        whole: Whether to handle all events again, from the first one on.

    Raises:
        JournalError: If the journal is damaged or a part of another, or if an answer differs and ``strict`` is set;
            the message has the number of the first such event.
    """
    if (part_of := journal.part_of) is not None:
        raise JournalError(
            f"{journal.path}: cannot be replayed alone: it is a part of the journal of the pool at {part_of.folder}; "
            "replay that one"
        )
    settings = journal.settings()
    scheduler, count, now, digest = Scheduler(settings), 0, 0.0, journal.first_digest
    for snapshot in [] if whole else journal.snapshots():
        with suppress(StateError):  # of a policy that has changed: the one before it, or all events
            scheduler = restored(Scheduler(settings), snapshot.state)
            count, now, digest = snapshot.number, snapshot.now, snapshot.digest
            break
    with reading(journal.path):
        for entry in journal.entries():
            if entry.number <= count:
                continue  # the snapshot holds it; it was verified
            event = decode_event(entry.event)
            answers = scheduler.handle(event, entry.now)
            answer = encode_answers(answers, scheduler.accepted, event)
            if strict and answer != entry.answers:
                raise JournalError(f"{journal.path}: event {entry.number} does not replay: {entry.event}")
            digest = digest_of(digest, repr(entry.now), entry.event, answer)
            now, count = entry.now, count + 1
            reach("journal.replaying")
    return Replay(scheduler, now, count, digest)
