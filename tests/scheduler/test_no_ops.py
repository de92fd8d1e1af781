"""Events that change nothing: what they are, and that a story without them is the same story."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import End, Grant
from lightning_core.core.codec import encode_answers
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetLocation
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.events import (
    Close,
    DevicesUnavailable,
    EarlierRuns,
    Event,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.builders import PLANNER
from tests.examples import examples
from tests.scheduler.test_invariants import SECONDS, TOLD, StoryEnds, Teller

JOB = Job("a", 600.0, BatchTarget(1000))
RUN = EarlierRun("before", (10, 20), (0.5, 0.4))


@pytest.fixture
def scheduler() -> Scheduler:
    """One job that trains, one that is paused, and one that has ended."""
    made = Scheduler(Settings("uniform"))
    made.handle(Submit((JOB, Job("paused", 600.0, BatchTarget(9)), Job("over", 600.0, BatchTarget(9)))), 0.0)
    made.handle(Report("a", 1, 5, 9, 50, 1.0), 1.0)
    made.handle(Pause("paused", release=True), 2.0)
    made.handle(Cancel("over"), 3.0)
    return made


@pytest.mark.parametrize(
    "event",
    [
        Report("stranger", 1, 1, 0, 5, 1.0),
        Report("a", 0, 9, 0, 5, 1.0),
        Report("a", 1, 5, 0, 90, 9.0),
        Report("a", 1, 6, 0, -1, 9.0),
        Report("over", 1, 9, 0, 5, 1.0),
        WorkerExited("stranger", 1),
        WorkerExited("a", 2),
        WorkerExited("over", 1),
        LaunchTimedOut("a", 1, "ready after all"),
        Cancel("over"),
        Cancel("stranger"),
        Resume("a"),
        Resume("over"),
        SetDeadline("over", 60.0),
        SetLocation("a", "moon"),
        Submit((JOB,)),
        Submit(()),
        EarlierRuns((), ()),
        EarlierRuns((RUN,), (("over", (0,)), ("stranger", (0,)))),
    ],
)
def test_an_event_that_changes_nothing_is_known(scheduler: Scheduler, event: Event) -> None:
    before = scheduler.status(), scheduler.wakeup()
    answers = scheduler.answers_to_no_op(event, 4.0)
    assert answers is not None
    assert (scheduler.status(), scheduler.wakeup()) == before
    assert [answer for answer in scheduler.handle(event, 3.0) if answer not in answers] == []
    assert (scheduler.status(), scheduler.wakeup()) == before


@pytest.mark.parametrize("event", [SetDeadline("over", 60.0)])
def test_what_finds_no_job_or_plan_needs_no_round(scheduler: Scheduler, event: Event) -> None:
    before = scheduler.wakeup()
    assert scheduler.handle(event, 3.5) == []
    assert scheduler.wakeup() == before


@pytest.mark.parametrize(
    "event",
    [
        Report("a", 1, 6, 0, 60, 1.1),
        WorkerExited("a", 1),
        LaunchTimedOut("paused", 1, ""),
        Cancel("a"),
        Pause("a"),
        Pause("paused", release=True),  # it may explain the grant anew
        Resume("paused"),
        SetDeadline("a", 60.0),
        Submit((Job("over", 9.0, BatchTarget(9)),)),
        Submit((JOB, Job("new", 9.0, BatchTarget(9)))),
        Close(),
        WorkersLost(),
        DevicesUnavailable((0,)),
        Tick(),
        EarlierRuns((RUN,), (("over", (0,)), ("paused", (0,)))),
    ],
)
def test_any_other_event_is_handled(event: Event) -> None:
    scheduler = Scheduler(Settings("uniform", devices=2))
    jobs = JOB, Job("paused", 600.0, BatchTarget(9)), Job("over", 600.0, BatchTarget(9))
    scheduler.handle(Submit(jobs), 0.0)
    scheduler.handle(Report("a", 1, 5, 9, 50, 1.0), 1.0)
    scheduler.handle(Cancel("over"), 3.0)
    if not isinstance(event, LaunchTimedOut):
        scheduler.handle(Pause("paused", release=True), 2.0)
    assert scheduler.answers_to_no_op(event, 4.0) is None


def test_the_worker_of_an_ended_job_leaves_once() -> None:
    """A run waits until its workers have left, which the journal tells."""
    scheduler = Scheduler(Settings("uniform"))
    scheduler.handle(Submit((JOB,)), 0.0)
    scheduler.handle(Report("a", 1, 5, 9, 50, 1.0), 1.0)
    scheduler.handle(Cancel("a"), 2.0)
    assert scheduler.answers_to_no_op(WorkerExited("a", 1), 3.0) is None
    assert scheduler.handle(WorkerExited("a", 1), 3.0) == []
    assert scheduler.answers_to_no_op(WorkerExited("a", 1), 4.0) == []


def test_a_second_close_changes_nothing() -> None:
    scheduler = Scheduler()
    scheduler.handle(Close("Ctrl-C"), 1.0)
    assert scheduler.answers_to_no_op(Close(), 2.0) == []
    scheduler.handle(WorkersLost(), 3.0)
    assert scheduler.answers_to_no_op(Close(), 4.0) is None


def test_the_answers_say_what_the_job_s_state_is(scheduler: Scheduler) -> None:
    def answered(event: Event) -> list[tuple[type, str]]:
        answers = scheduler.answers_to_no_op(event, 4.0)
        assert answers is not None
        return [(type(answer), answer.reason.code) for answer in answers if isinstance(answer, Grant | End)]

    assert answered(Report("stranger", 1, 1, 0, 5, 1.0)) == [(End, "unknown_job")]
    assert answered(Report("a", 0, 1, 0, 5, 1.0)) == [(End, "superseded")]
    assert answered(Report("over", 1, 1, 0, 5, 1.0)) == [(End, "cancelled")]
    [(kind, _)] = answered(Report("a", 1, 5, 0, 90, 9.0))
    assert kind is Grant
    [(kind, _)] = answered(Submit((JOB,)))
    assert kind is Grant
    assert answered(Report("a", 1, 5, 99, 90, 9.0)) == []


def test_to_resume_a_job_that_is_not_paused_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="a is not paused"):
        scheduler.check_command(Resume("a"), 4.0)
    scheduler.check_command(Resume("paused"), 4.0)
    scheduler.check_command(Resume("a", PLANNER), 4.0)  # it says what should train, whatever was before


def test_a_command_that_does_not_fit_is_refused_and_says_why(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="moon"):
        scheduler.check_command(SetLocation("a", "moon"), 4.0)


def told_twice(story: bytes, policy: str) -> None:
    """Tell a story as it is, and without the events that change nothing, at whose times only a tick is told."""
    teller = Teller(story)
    try:
        chosen = teller.settings(policy)
        scheduler, without, now = Scheduler(chosen), Scheduler(chosen), 0.0
        while True:
            event = teller.event(scheduler) if scheduler.names() else teller.bundle(chosen.devices)
            now += SECONDS[teller.dice(len(SECONDS))]
            known = without.answers_to_no_op(event, now)
            resumed = isinstance(event, Resume) and event.job in scheduler.names(active=True)
            planned_anew = resumed or isinstance(event, Submit | Close)
            answers = scheduler.handle(event, now)
            if known is None:
                assert encode_answers(without.handle(event, now)) == encode_answers(answers)
            else:
                assert [answer for answer in known if answer not in answers] == []
                without.handle(Tick(), now)
                if not planned_anew:
                    scheduler.handle(Tick(), now)
            assert without.status() == scheduler.status()
            assert (without.wakeup(), without.placements()) == (scheduler.wakeup(), scheduler.placements())
    except StoryEnds:
        return


@pytest.mark.promise("R1", "R16")
@pytest.mark.parametrize("policy", ["triage", "edf", "decor"])
def test_a_story_without_the_events_that_change_nothing_is_the_same(policy: str) -> None:
    @settings(TOLD, max_examples=examples(16))
    @given(st.binary(min_size=36, max_size=120))
    def told(story: bytes) -> None:
        told_twice(story, policy)

    told()
