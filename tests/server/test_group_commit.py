"""Events are committed together by a thread, and nothing that rests on them leaves before their commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import Grant
from lightning_core.core.commands import Pause
from lightning_core.core.events import Event, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server import host
from lightning_core.server.host import EventNotPersistedError
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.storage import failpoints
from lightning_core.storage.failpoints import FailpointError
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import DamagedJournalError
from lightning_core.storage.journals.replay import replay
from tests.waiting import PATIENCE

NAMES = ("a", "b", "c")


def report(job: str, number: int) -> Report:
    return Report(job, 1, number, 0, 10 * number, 0.5 * number)


def events_in(folder: Path) -> list[str]:
    """The events in a journal, without the passing of time; it must replay."""
    with Journal.open(folder / "journal.db") as journal:
        assert replay(journal).digest == journal.digest
        return [entry.event for entry in journal.entries() if '"tick"' not in entry.event]


class Gate:
    """A disk: commits wait while it is shut, and the next ones fail if they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.failures, self.commits = threading.Event(), 0, 0
        self.open.set()
        commit = Journal.commit

        def committed(journal: Journal) -> None:
            assert self.open.wait(PATIENCE)
            if self.failures:
                self.failures -= 1
                raise sqlite3.OperationalError("database or disk is full")
            self.commits += 1
            commit(journal)

        monkeypatch.setattr(Journal, "commit", committed)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def play(folder: Path, story: Callable[[SchedulerActor], Awaitable[None]]) -> None:
    """Play a story with an actor of three jobs."""

    async def live() -> None:
        actor = SchedulerActor({"policy": "uniform", "devices": 3, "period": 1000.0}, str(folder))
        await actor.submit(tuple(Job(name, 900.0, BatchTarget(5000)) for name in NAMES))
        async with asyncio.timeout(PATIENCE):
            await story(actor)
        await actor.close()

    asyncio.run(live())


async def started(*calls: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Start calls, and return when none of them can go on without the disk."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(call) for call in calls]
    for _ in range(20):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.promise("R1")
def test_nothing_that_rests_on_an_event_leaves_before_its_commit(tmp_path: Path, gate: Gate) -> None:
    async def story(actor: SchedulerActor) -> None:
        version = (await actor.event(report("a", 1))).version  # type: ignore[union-attr]  # a grant
        listener = asyncio.ensure_future(actor.wait("a", version, PATIENCE))
        placed = asyncio.ensure_future(actor.placements(await actor.placements(None, 0.0), PATIENCE))
        await asyncio.sleep(0)
        gate.open.clear()
        calls = await started(
            actor.event(Pause("a", release=True)), actor.event(report("b", 1)), actor.status(),
            actor.wait("a", version, 5.0), actor.job_forecast("a"), actor.have_ended([("a", 1)]),
            actor.submit((Job("d", 9.0, BatchTarget(5)),)),
        )  # fmt: skip
        assert [call.done() for call in (*calls, listener, placed)] == [False] * 9
        gate.open.set()
        _, granted, (_, jobs), heard, _, ended, _ = await asyncio.gather(*calls)
        assert isinstance(granted, Grant)
        assert (await listener) == heard
        assert heard.share == 0.0
        assert [job.paused for job in jobs] == [True, False, False]
        assert ended == [False]
        assert await placed

    play(tmp_path, story)


def test_what_arrives_while_a_commit_is_written_is_committed_at_once(tmp_path: Path, gate: Gate) -> None:
    async def story(actor: SchedulerActor) -> None:
        gate.open.clear()
        calls = await started(actor.event(report("a", 1)))
        calls += await started(*(actor.event(report(name, number)) for number in range(2, 12) for name in NAMES))
        before = gate.commits
        gate.open.set()
        await asyncio.gather(*calls)
        assert gate.commits - before == 2

    play(tmp_path, story)
    assert len(events_in(tmp_path)) == 1 + 1 + 30


@pytest.mark.promise("F7", "R19")
def test_after_a_failed_commit_nothing_that_was_waiting_has_happened(tmp_path: Path, gate: Gate) -> None:
    async def story(actor: SchedulerActor) -> None:
        await actor.event(report("a", 1))
        gate.open.clear()
        gate.failures = 1
        first = await started(actor.event(report("a", 2)))
        calls = first + await started(actor.event(report("b", 1)), actor.submit((Job("d", 9.0, BatchTarget(5)),)))
        [asked] = await started(actor.status())
        gate.open.set()
        refused = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in refused] == [EventNotPersistedError] * 3
        _, jobs = await asked
        assert [(job.name, job.batches) for job in jobs] == [("a", 10), ("b", 0), ("c", 0)]
        actor._host._refuses_until = 0.0
        await actor.event(report("a", 2))

    play(tmp_path, story)
    assert len(events_in(tmp_path)) == 3


def test_an_event_that_cannot_be_handled_undoes_no_other(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Scheduler.handle

    def handled(scheduler: Scheduler, event: Any, now: float) -> Any:
        answers = handle(scheduler, event, now)
        if event == report("b", 1):
            raise ZeroDivisionError("a policy with an error")
        return answers

    monkeypatch.setattr(Scheduler, "handle", handled)

    async def story(actor: SchedulerActor) -> None:
        calls = [asyncio.ensure_future(actor.event(report(name, 1))) for name in NAMES]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Grant, ZeroDivisionError, Grant]
        assert [job.batches for job in (await actor.status())[1]] == [10, 0, 10]

    play(tmp_path, story)
    assert len(events_in(tmp_path)) == 3


def test_a_journal_that_cannot_be_read_for_a_while_refuses_events_and_loses_none(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(journal: Journal) -> Any:
        raise DamagedJournalError(journal.path, "an error of the disk")

    async def story(actor: SchedulerActor) -> None:
        await actor.event(report("a", 1))
        with monkeypatch.context() as patch:
            patch.setattr(host, "replay", unreadable)
            gate.failures = 1
            for _ in range(2):
                with pytest.raises((EventNotPersistedError, DamagedJournalError), match="an error of the disk"):
                    await actor.event(report("b", 1))
        await actor.event(report("c", 1))
        assert [job.batches for job in (await actor.status())[1]] == [10, 0, 10]

    play(tmp_path, story)
    assert len(events_in(tmp_path)) == 3


def test_events_are_committed_although_the_journal_cannot_be_kept_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(journal: Journal, *_: object) -> None:
        raise KeyError("an error of thinning")

    monkeypatch.setattr(Journal, "take_snapshot", broken)
    monkeypatch.setattr(host, "EVENTS_PER_SNAPSHOT", 2)

    async def story(actor: SchedulerActor) -> None:
        for number in range(1, 7):
            await actor.event(report("a", number))
        monkeypatch.setattr(Journal, "take_snapshot", lambda *_: None)

    play(tmp_path, story)
    assert len(events_in(tmp_path)) == 7


@pytest.mark.parametrize("full", [False, True])
def test_an_event_that_cannot_be_handled_while_the_disk_is_full(
    full: bool, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is refused, whichever of the two errors comes first."""
    handle = Scheduler.handle

    def handled(scheduler: Scheduler, event: Any, now: float) -> Any:
        answers = handle(scheduler, event, now)
        if event == report("b", 1):
            gate.failures = int(full)
            raise ZeroDivisionError("a policy with an error")
        return answers

    monkeypatch.setattr(Scheduler, "handle", handled)

    async def story(actor: SchedulerActor) -> None:
        calls = [asyncio.ensure_future(actor.event(report(name, 1))) for name in NAMES[:2]]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [EventNotPersistedError if full else Grant, ZeroDivisionError]
        assert [job.batches for job in (await actor.status())[1]] == [0 if full else 10, 0, 0]

    play(tmp_path, story)


def test_what_a_failed_commit_could_not_write_is_written_before_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(Settings())
    events: list[Event] = [Submit((Job("a", 900.0, BatchTarget(5000)),)), report("a", 1)]
    with Journal.create(tmp_path / "journal.db", scheduler.settings) as journal:
        monkeypatch.setattr(failpoints, "_failures", failpoints.read("journal.before_commit:raise@1"))
        monkeypatch.setattr(failpoints, "_passes", {})
        journal.add(events[0], 0.0, scheduler.handle(events[0], 0.0), scheduler.accepted)
        with pytest.raises(FailpointError):
            journal.commit()
        journal.append(events[1], 1.0, scheduler.handle(events[1], 1.0), scheduler.accepted)
    assert len(events_in(tmp_path)) == 2


@pytest.mark.promise("R1", "F1")
@pytest.mark.parametrize("place", ["journal.before_commit", "journal.after_commit", "journal.after_anchor"])
def test_all_that_was_acknowledged_survives_a_kill_in_the_middle_of_a_group(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inward, outward = os.pipe()
    if not (child := os.fork()):
        try:
            monkeypatch.setattr(failpoints, "_failures", failpoints.read(f"{place}:crash@8"))
            monkeypatch.setattr(failpoints, "_passes", {})

            async def story(actor: SchedulerActor) -> None:
                async def live(name: str) -> None:
                    for number in range(1, 100):
                        await actor.event(report(name, number))
                        os.write(outward, name.encode())

                await asyncio.gather(*map(live, NAMES))

            play(tmp_path, story)
        finally:
            os._exit(1)
    os.close(outward)
    with os.fdopen(inward, "rb") as said:
        acknowledged = said.read().decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    kept = [event for event in events_in(tmp_path) if '"report"' in event]
    for name in NAMES:
        count = sum(f'"job":"{name}"' in event for event in kept)
        assert acknowledged.count(name) in (count, count - 1)
    assert len(acknowledged) >= 6
