"""Excerpts: the part of a pool's journal that concerns some of its jobs, which is the journal of a run in a pool.

Rules

1. An excerpt is copied from the pool's journal and can be copied again: nothing writes it while jobs run.
2. Entries keep the number, time and digest that they have in the pool's journal. Reports of other jobs and answers to
   them are left out; where such an event led to an answer for these jobs, a tick stands for it.
3. It holds everything that happened to its jobs but cannot be replayed alone, since other jobs affect the grants of
   these: :func:`compare` replays the pool's journal and compares every entry with it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_core.core.codec import encode_event
from lightning_core.core.events import Tick
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import LEFT_OUT_BEFORE, JournalEntry, JournalPart
from lightning_core.storage.journals.journal_errors import JournalError, reading
from lightning_core.storage.journals.replay import Replay, replay

TICK = encode_event(Tick())
# Kinds of events that concern the whole pool, and so every excerpt.
POOL_EVENTS = ("tick", "close", "workers_lost", "devices_unavailable")


def find(part: JournalPart) -> Path | None:
    """Return the journal in which the jobs of a part were submitted, None if it no longer exists.

    A pool archives a journal once all of its jobs have ended.
    """
    folder = Path(part.folder)
    for path in (folder / "journal.db", *sorted(folder.glob("old/journal-*.db"), reverse=True)):
        with (
            suppress(JournalError),
            Journal.open(path, read_only=True) as journal,
        ):  # an archived one may be damaged
            if next(_entries(journal, part), None) is not None:
                return path
    return None


def write(part: JournalPart, path: Path) -> bool:
    """Write the current state of the excerpt, and return whether all of its jobs have ended.

    Args:
        part: The pool and its jobs.
        path: Path of the file, which is replaced when the new one is complete.

    Raises:
        JournalError: If the pool's journal is missing or damaged.
    """
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    running = set(part.jobs)
    try:
        with (
            open_whole(part) as journal,
            Journal.create(
                beside, journal.settings(), durable=False, part_of=part, written_at=journal.written_at
            ) as made,
        ):
            for entry in _entries(journal, part):
                made.insert(entry)
                running -= {answer["job"] for answer in json.loads(entry.answers) if _ends(answer)}
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return not running


def with_workers(part: JournalPart) -> set[str]:
    """Return the jobs of a part that have a worker; a worker may still be saving after its job has ended.

    Raises:
        JournalError: If the pool's journal is missing or damaged.
    """
    workers: dict[str, int] = {}
    mine: set[str] = set()
    begun = False
    with open_whole(part) as journal, reading(journal.path):
        for entry in journal.entries(part.submitted_at):
            body = json.loads(entry.event)
            match body["kind"]:
                case "submit" if not begun:
                    begun, mine = True, set(part.jobs)
                case "submit":  # from here on the name means another job
                    mine -= {job["name"] for job in body["jobs"]}
                    workers = {job: incarnation for job, incarnation in workers.items() if job in mine}
                case "report" if body["job"] in mine:
                    workers[body["job"]] = body["incarnation"]
                case "worker_exited" if workers.get(body["job"]) == body["incarnation"]:
                    del workers[body["job"]]
                case "workers_lost":
                    workers.clear()
    return set(workers)


def compare(journal: Journal, part: JournalPart) -> Replay:
    """Replay the whole journal, and compare each entry of the part with it.

    Entries that have been thinned since there, or from an excerpt made before, are not compared.

    Raises:
        JournalError: If the pool's journal is missing or does not replay, or an entry differs.
    """
    with open_whole(part) as whole:
        again = replay(whole, whole=True)
        thinned_to, _ = whole.end_of_blocks()
        entries = (entry for entry in _entries(whole, part) if entry.number > thinned_to)
        for entry in journal.entries():
            if entry.number > thinned_to and entry != next(entries, None):
                raise JournalError(f"{journal.path}: event {entry.number} differs from the one in {whole.path}")
    return again


def open_whole(part: JournalPart) -> Journal:
    """Open the whole journal to read it.

    Raises:
        JournalError: If it is missing or damaged.
    """
    path = find(part)
    if path is None:
        raise JournalError(
            f"{part.folder}: found no journal in which {', '.join(part.jobs)} were submitted; "
            "has the folder been moved or removed, or has the journal aged out (keep_ended in the bundle)?"
        )
    return Journal.open(path, read_only=True)


def _entries(journal: Journal, part: JournalPart) -> Iterator[JournalEntry]:
    """Yield the entries of a whole journal that concern the jobs, from their submission until the last has ended."""
    running: set[str] = set()
    left_out = False  # whether the entry before was not yielded, and said that others were left out before it
    with reading(journal.path):
        for entry in journal.entries(part.submitted_at):
            body = json.loads(entry.event)
            left_out |= entry.digest == LEFT_OUT_BEFORE
            if not running:
                if entry.now > part.submitted_at:
                    return
                if body["kind"] != "submit" or not set(part.jobs) <= {job["name"] for job in body["jobs"]}:
                    continue
                running = set(part.jobs)
                body["jobs"] = [job for job in body["jobs"] if job["name"] in running]
                event = _text(body)
            elif body["kind"] == "earlier_runs":
                event = _runs_of(body, running)
            elif body["kind"] in POOL_EVENTS or body.get("job") in running:
                event = entry.event
            else:
                event = TICK
            answers = [answer for answer in json.loads(entry.answers) if answer.get("job") in running]
            if event != TICK or entry.event == TICK or answers:
                digest = LEFT_OUT_BEFORE if left_out else entry.digest
                left_out = False
                yield JournalEntry(entry.number, entry.now, event, _text(answers), digest)
            running -= {answer["job"] for answer in answers if _ends(answer)}
            if not running:
                return


def _runs_of(body: dict[str, Any], jobs: set[str]) -> str:
    """Return an event with the earlier runs of some jobs alone; a tick if they have none."""
    found = [(job, places) for job, places in body["found"] if job in jobs]
    used = sorted({place for _, places in found for place in places})
    found = [(job, [used.index(place) for place in places]) for job, places in found]
    runs = [body["runs"][place] for place in used]
    return _text(body | {"runs": runs, "found": found, "paces": []}) if found else TICK  # paces are of other jobs too


def _ends(answer: dict[str, Any]) -> bool:
    return answer.get("kind") == "end"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
