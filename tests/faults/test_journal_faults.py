"""The scheduler is killed at every failpoint, in every state of a job, and restored from its journal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetTerms
from lightning_core.core.events import (
    Cell,
    Checkpoint,
    Event,
    ExitCause,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
)
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage import failpoints
from lightning_core.storage.failpoints import FailpointError
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.faults.prefixes import first_broken, history_of

POOL = Settings("edf", devices=2, resident=4)
STEP = 3.0


def jobs() -> tuple[Job, ...]:
    return (
        Job("a", 400.0, BatchTarget(4000), retries=1),
        Job("b", 500.0, LossTarget("loss", 0.1)),
        Job("c", 600.0, BatchTarget(4000)),
        Job("d", 700.0, BatchTarget(4000), max_devices=2),
        Job("e", 20.0, BatchTarget(4000), on_miss=OnMiss.HOLD),
    )


def report(
    job: str, number: int, incarnation: int = 1, checkpoint: Checkpoint | None = None, batches_at_start: int = 0
) -> Report:
    done = batches_at_start + 20 * number
    return Report(
        job,
        incarnation,
        number,
        1,
        done,
        2.0 * number,
        (Cell(number, done, 2.0 / number),),
        0,
        batches_at_start,
        checkpoint=checkpoint,
    )


SAVE = Checkpoint(20, "5" * 64)
# Each event finds the jobs as those before it left them: queued, running, held, released, paused, recovering,
# late, ended.
STORY: tuple[Event, ...] = (
    Submit(jobs()),
    report("a", 1, checkpoint=SAVE),
    report("e", 1),
    report("b", 1),
    Pause("a"),
    report("c", 1),
    Pause("b", release=True),
    WorkerExited("b", 1, ExitCause.RELEASED, checkpoint=SAVE),
    Resume("a"),
    WorkerExited("a", 1, ExitCause.LOST, "its worker died", SAVE),
    Resume("b"),
    LaunchTimedOut("b", 2, "no worker came"),
    SetDeadline("e", 300.0),
    SetTerms("e", target=BatchTarget(4000), weight=2.0),
    report("a", 1, incarnation=2, batches_at_start=20),
    WorkerExited("a", 2, ExitCause.RAISED, "ValueError: no"),
    Cancel("e"),
    report("a", 1, incarnation=3, batches_at_start=20),
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def scheduler_is_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test holds the clock: the scheduler is back without delay."""
    monkeypatch.setattr(Journal, "age", lambda journal: 0.0)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def plan(text: str) -> None:
        monkeypatch.setattr(failpoints, "_failures", failpoints.read(text))
        monkeypatch.setattr(failpoints, "_passes", {})

    return plan


def live(journal: Path, first: int = 0, acknowledged: int = -1) -> list[JobStatus]:
    """Handle the story from event ``first`` on; write acknowledged events to the descriptor ``acknowledged``."""
    clock = Clock()
    host = Host(POOL, journal, clock)
    for number, event in enumerate(STORY[first:], first):
        clock.now += max(STEP * (number + 1) - host.now(), 0.0)
        host.handle(event)
        if acknowledged >= 0:
            os.write(acknowledged, b".")
    status = host.scheduler.status()
    host.close()
    return status


def in_a_child(work: Callable[[int], object]) -> tuple[int, bool]:
    """Run a function in a child that may be killed; return what it acknowledged, and whether it finished."""
    inward, outward = os.pipe()
    if not (child := os.fork()):
        try:
            work(outward)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(outward)
    with os.fdopen(inward, "rb") as said:
        count = len(said.read())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return count, code == 0


def events_in(journal: Path) -> int:
    with Journal.open(journal, read_only=True) as read:
        return sum(1 for _ in read.entries())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[JobStatus]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "age", lambda journal: 0.0)
        yield live(tmp_path_factory.mktemp("calm") / "j.db")


def test_the_story_contains_every_state(tmp_path: Path) -> None:
    host = Host(POOL, tmp_path / "j.db", clock := Clock())
    seen: set[str] = set()
    for event in STORY:
        clock.now += STEP
        host.handle(event)
        seen |= {job.state for job in host.scheduler.status()} | {"paused" for j in host.scheduler.status() if j.paused}
    assert seen == {"paused", *State}
    host.close()


@pytest.mark.promise("R1", "F1")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("host.decided", marks=pytest.mark.nightly),
        "journal.before_commit",
        "journal.after_commit",
        "journal.after_anchor",
        "snapshot.written",
        pytest.param("snapshot.before_commit", marks=pytest.mark.nightly),
        "snapshot.after_commit",
        "block.written",
        pytest.param("block.before_commit", marks=pytest.mark.nightly),
        pytest.param("block.after_commit", marks=pytest.mark.nightly),
    ],
)
def test_a_scheduler_killed_at_any_failpoint_resumes_in_the_same_state(
    place: str,
    tmp_path: Path,
    fail: Callable[[str], None],
    undisturbed: list[JobStatus],
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acknowledged events are in the journal; others are sent again, and lead to the same state bit for bit."""
    # Snapshots by the number of events alone: on a busy machine they take longer, and there are fewer.
    monkeypatch.setattr("lightning_core.server.host.SECONDS_TO_REPLAY", 1e9)
    monkeypatch.setattr("lightning_core.server.host.EVENTS_PER_SNAPSHOT", 1 if place.startswith("snapshot") else 3)
    if place.startswith("block"):
        monkeypatch.setattr("lightning_core.storage.journals.journal.EVENTS_PER_BLOCK", 2)
        monkeypatch.setattr("lightning_core.server.host.THIN_EVERY", 2)
        monkeypatch.setattr("lightning_core.storage.journals.snapshots.STRETCH", 3)
    kills = 0
    while True:
        journal = tmp_path / f"{kills}.db"
        fail(f"{place}:crash@{kills + 1}")
        acknowledged, came_to_its_end = in_a_child(lambda pipe, journal=journal: live(journal, acknowledged=pipe))  # type: ignore[misc]
        if came_to_its_end:
            break
        kills += 1
        fail("")
        if not place.startswith("block"):  # in which reports are left out
            events = [event for _, event in history_of(journal).events if event != Tick()]
            assert len(events) in (acknowledged, acknowledged + 1)
        assert live(journal, first=acknowledged) == undisturbed
        if not place.startswith("block"):
            assert first_broken(history_of(journal)) is None
    assert kills >= len(STORY) // (4 if place.startswith("block") else 1)
    record_property("figure", f"{kills} kills at {place}: nothing lost or doubled")


@pytest.mark.promise("F1")
def test_a_scheduler_killed_while_it_replays_replays_again(
    tmp_path: Path, fail: Callable[[str], None], undisturbed: list[JobStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "_note_state", lambda host, journal: None)  # it has no snapshot to begin with
    live(tmp_path / "j.db")
    for number in (1, 7, events_in(tmp_path / "j.db")):
        fail(f"journal.replaying:crash@{number}")
        assert in_a_child(lambda pipe: Host(POOL, tmp_path / "j.db", Clock())) == (0, False)
    fail("")
    host = Host(POOL, tmp_path / "j.db", Clock())
    assert host.scheduler.status() == undisturbed
    host.close()


@pytest.mark.promise("R1", "F7")
@pytest.mark.parametrize("place", ["host.decided", "journal.before_commit"])
def test_an_event_that_could_not_be_written_has_no_effect(
    place: str, tmp_path: Path, fail: Callable[[str], None]
) -> None:
    host = Host(POOL, tmp_path / "j.db", clock := Clock())
    host.handle(STORY[0])
    clock.now += STEP
    host.catch_up()
    before = host.scheduler.status()
    fail(f"{place}:raise")
    with pytest.raises(FailpointError):
        host.handle(STORY[1])
    fail("")
    assert host.scheduler.status() == before
    host.handle(STORY[1])
    after = host.scheduler.status()
    host.close()
    with Journal.open(tmp_path / "j.db") as journal:
        assert replay(journal).scheduler.status() == after
