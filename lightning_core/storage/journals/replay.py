"""Replay: a scheduler that handles the events of a journal again."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from lightning_core.core.codec import decode_calls, decode_event, encode_answers
from lightning_core.core.saved_state import StateError, restored
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.storage.failpoints import reach
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalEntry, digest_of
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError, reading


class Replay(NamedTuple):
    """A scheduler in the state in which the journal ends."""

    scheduler: Scheduler
    now: float
    """Scheduler time of the last event, in seconds."""
    events: int
    """Number of events."""
    after: int
    """Number of the event after which it began: that of a snapshot, or 0."""
    digest: str
    """Digest over the recorded events and the recomputed answers; equal to the journal's if no answer differs."""


def replay(journal: Journal, *, strict: bool = True, whole: bool = False) -> Replay:
    """Bring a scheduler to the state in which a journal ends: from its newest snapshot, by the events behind it.

    Args:
        journal: Journal to replay.
        strict: Whether an answer that differs from the recorded one is an error.
        whole: Whether to handle all events again: from the first one on, or if the oldest ones are thinned, from the
            oldest snapshot on.

    Raises:
        JournalError: If the journal is damaged or a part of another, or if an answer differs and ``strict`` is set;
            the message has the number of the first such event.
    """
    if (part_of := journal.part_of) is not None:
        raise JournalError(
            f"{journal.path}: cannot be replayed alone: it is a part of the journal of the pool at {part_of.folder}; "
            "replay that one"
        )
    scheduler, count, now, digest = beginning(journal, whole=whole)
    after = count
    with reading(journal.path):
        for entry in journal.recent_entries():
            if entry.number <= count:
                continue  # the snapshot holds it; it was verified
            answer = handle_again(scheduler, entry)
            if strict and answer != entry.answers:
                raise JournalError(f"{journal.path}: event {entry.number} does not replay: {entry.event}")
            digest = digest_of(digest, repr(entry.now), entry.event, answer)
            now, count = entry.now, count + 1
            reach("journal.replaying")
    return Replay(scheduler, now, count, after, digest)


def handle_again(scheduler: Scheduler, entry: JournalEntry) -> str:
    """Handle the event of an entry again; return its answers as the journal has them.

    What parts from outside the library returned is taken from the entry.
    """
    event = decode_event(entry.event)
    scheduler.recall(decode_calls(entry.answers))
    answers = scheduler.handle(event, entry.now)
    return encode_answers(answers, scheduler.accepted, event, scheduler.calls)


class Beginning(NamedTuple):
    """A scheduler from which a replay continues."""

    scheduler: Scheduler
    number: int
    """Number of the last event that it has handled."""
    now: float
    """Scheduler time of that event, in seconds."""
    digest: str
    """Digest over all events and answers up to it."""


def beginning(journal: Journal, *, whole: bool = False) -> Beginning:
    """Return the scheduler from which a replay of a journal continues; see :func:`replay`.

    Raises:
        JournalError: If the journal is damaged, or its oldest events are thinned and no snapshot can be restored.
    """
    settings = journal.settings()
    thinned_to, _ = journal.end_of_blocks()
    snapshots = list(journal.snapshots()) if thinned_to or not whole else []
    for snapshot in reversed(snapshots) if whole else snapshots:
        with suppress(StateError):  # of a policy that has changed: the one before it, or all events
            scheduler = restored(Scheduler(settings), snapshot.state)
            return Beginning(scheduler, snapshot.number, snapshot.now, snapshot.digest)
    if thinned_to and not snapshots:
        words = f"its snapshots are missing or damaged, and its events up to {thinned_to} are thinned"
        raise DamagedJournalError(journal.path, words)
    if thinned_to:
        raise JournalError(
            f"{journal.path}: none of its snapshots can be restored, and its events up to {thinned_to} are thinned; "
            "continue it with the release that wrote it"
        )
    return Beginning(Scheduler(settings), 0, 0.0, journal.first_digest)
