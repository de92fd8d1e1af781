"""Commands: each changes one property of a job and records who asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from lightning_core.core.answers import Accepted, Grant
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import (
    TERMS,
    Cancel,
    Command,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    SetTerms,
)
from lightning_core.core.control import Asker
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Capability, Job, OnMiss, OnNan
from lightning_core.core.names import check_program, sender_name
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.history import History
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.builders import OPERATOR, RESIZER

CAN = frozenset(Capability)
POOL = Settings(policy="fifo", devices=2, locations=("edge", "cloud"))
JOB = Job("a", 60.0, BatchTarget(100), begin=1.0, max_devices=2, sizes=(1, 2), can=CAN)


def submitted(job: Job = JOB) -> Scheduler:
    scheduler = Scheduler(POOL)
    scheduler.handle(Submit((job,)), 5.0)
    return scheduler


@pytest.mark.parametrize(
    "other",
    [
        SetTerms("a", weight=2.0),
        SetTerms("a", target=BatchTarget(50)),
        SetDevices("a", 1, RESIZER),
        SetLocation("a", "cloud", 1, OPERATOR),
        Pause("a"),
    ],
)
def test_a_new_deadline_outlives_every_other_change(other: Command) -> None:
    scheduler = submitted()
    scheduler.handle(SetDeadline("a", 500.0), 10.0)
    scheduler.handle(other, 20.0)
    assert scheduler.last("a").deadline == 510.0
    assert scheduler.job("a").deadline == 505.0  # seconds from submission


def test_a_new_deadline_may_count_from_submission() -> None:
    scheduler = submitted()
    scheduler.handle(SetDeadline("a", 500.0, from_submission=True), 10.0)
    assert scheduler.last("a").deadline == 505.0
    assert scheduler.job("a").deadline == 500.0


def test_terms_that_are_not_named_stay_as_they_are() -> None:
    scheduler = submitted()
    scheduler.handle(SetTerms("a", weight=3.0, work=None), 6.0)
    scheduler.handle(SetTerms("a", on_miss=OnMiss.HOLD, retries=2), 7.0)
    job = scheduler.job("a")
    assert (job.weight, job.on_miss, job.retries, job.target) == (3.0, OnMiss.HOLD, 2, BatchTarget(100))


def test_the_command_between_two_versions_of_a_job_names_what_differs() -> None:
    new = Job("a", 60.0, BatchTarget(70), weight=2.0, max_devices=1)
    command = SetTerms.between(JOB, new)
    assert command == SetTerms("a", target=BatchTarget(70), begin=0.0, weight=2.0)
    assert SetTerms.between(new, new) is None
    assert "deadline" not in TERMS


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Pause("a"), "paused by a person"),
        (Pause("a", release=True, by=OPERATOR), "paused by the operator"),
        (Pause("a", by=RESIZER), "paused by the resizer"),
        (SetDevices("a", 0, RESIZER), "holds no devices at the request of the resizer"),
        (SetDevices("a", 0), "holds no devices at the request of a person"),
        (Pause("a", who="ann"), "paused by ann"),
        (SetDevices("a", 0, who="ann"), "holds no devices at the request of ann"),
        (Cancel("a", "ann"), "cancelled by ann"),
        (Cancel("a", "ann through mcp (claude-code)"), "cancelled by ann through mcp (claude-code)"),
        (SetLocation("a", "edge", 0, OPERATOR), "holds no devices at the request of the operator"),
    ],
)
def test_a_reason_names_who_asked(command: Command, words: str) -> None:
    scheduler = submitted()
    scheduler.handle(command, 10.0)
    assert str(scheduler.last("a").grant_reason) == words


def test_a_reason_names_the_person_who_asked_for_just_that() -> None:
    """Another person who sets the devices of a paused job, or its deadline, has not paused it."""
    scheduler = submitted()
    scheduler.handle(Pause("a", who="ann"), 10.0)
    scheduler.handle(SetDevices("a", 1, who="bob"), 11.0)
    scheduler.handle(SetDeadline("a", 99.0), 12.0)
    assert str(scheduler.last("a").grant_reason) == "paused by ann"
    scheduler.handle(Pause("a", who="bob"), 14.0)
    assert str(scheduler.last("a").grant_reason) == "paused by bob"
    restored = Scheduler(scheduler.settings)
    restored.restore(json.loads(json.dumps(scheduler.state())))
    assert str(restored.last("a").grant_reason) == "paused by bob"
    restored.handle(Pause("a"), 15.0)
    assert str(restored.last("a").grant_reason) == "paused by a person"


@pytest.mark.parametrize("who", ["a b", "-rf", "<b>", "ann\n", "x" * 64, "j\u043eb", "\x1b[2J"])
def test_a_name_that_is_none_of_a_person_is_refused(who: str) -> None:
    with pytest.raises(ValueError, match="invalid name of a person"):
        Cancel("a", who)
    with pytest.raises(ValueError, match="invalid name of a person"):
        replace(JOB, owner=who)


@pytest.mark.parametrize(
    "program",
    ["", "mcp ", "mcp (a) (b)", "mcp ()", "mcp (a", "-rf", "a b", "x" * 33, f"mcp ({'x' * 33})", "m\u0441p", "a\n"],
)
def test_a_name_that_is_none_of_a_program_is_refused(program: str) -> None:
    with pytest.raises(ValueError, match="invalid name of a program"):
        check_program(program)
    with pytest.raises(ValueError, match="invalid name of a person"):
        Cancel("a", f"ann through {program}")
    assert sender_name("", "mcp") == ""  # without a person there is none for whom a program could ask


def test_a_reason_names_the_one_who_has_its_way() -> None:
    scheduler = submitted()
    scheduler.handle(Pause("a", by=OPERATOR), 10.0)
    assert [a for a in scheduler.handle(Pause("a"), 11.0) if isinstance(a, Grant)] == []
    assert str(scheduler.last("a").grant_reason) == "paused by a person"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (SetDeadline("a", 0.5, from_submission=True), "begin must be before the deadline 0.5, got 1.0"),
        (SetLocation("a", "moon"), "requires location moon, where the pool has no device"),
        (SetTerms("a", begin=60.0), "begin must be before the deadline 60.0, got 60.0"),
        (SetTerms("a", begin=70.0), "begin must be before the deadline 60.0, got 70.0"),
        (Resume("b"), "no job 'b'"),
    ],
)
def test_an_unsupported_command_changes_nothing_and_can_be_refused(command: Command, words: str) -> None:
    scheduler = submitted()
    with pytest.raises(ValueError, match=words):
        scheduler.check_command(command, 6.0)
    before = scheduler.last("a"), scheduler.job("a")
    assert scheduler.handle(command, 5.0) == []
    assert (scheduler.last("a"), scheduler.job("a")) == before


@pytest.mark.parametrize(
    "terms", [{"weight": 0.0}, {"begin": -1.0}, {"restarts": -1}, {"work": 0.0}, {"resize_seconds": float("inf")}]
)
def test_a_term_out_of_its_range_is_refused_at_once(terms: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(terms))} must be "):
        SetTerms("a", **terms)  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan")])
def test_a_deadline_is_positive(deadline: float) -> None:
    with pytest.raises(ValueError, match="deadline must be positive, got"):
        SetDeadline("a", deadline)


def test_every_command_goes_through_the_journal() -> None:
    commands: list[Command] = [
        SetDeadline("a", 9.0, RESIZER, from_submission=True),
        SetDevices("a", 0, OPERATOR),
        SetLocation("a", "edge", None, OPERATOR),
        SetTerms("a", target=LossTarget("loss", 0.5), on_nan=OnNan.STOP, restarts=None, by=OPERATOR),
        SetTerms("a"),
        Pause("a", by=OPERATOR),
        Resume("a", OPERATOR),
        *(kind("a", who="ann") for kind in (Pause, Resume)),
        SetDeadline("a", 9.0, who="ann"),
        SetDevices("a", 0, who="ann"),
        SetLocation("a", "edge", who="ann"),
        SetTerms("a", weight=2.0, who="ann"),
        Pause("a", who=sender_name("x" * 63, f"{'y' * 32} ({'z' * 32})")),
    ]
    for command in commands:
        assert decode_event(encode_event(command)) == command
        assert type(decode_event(encode_event(command)).by) is Asker  # type: ignore[union-attr]  # all have it


def test_a_history_names_who_asked() -> None:
    history = History(POOL)
    history.take(Submit((JOB,)), 0.0, [], [Accepted("a")])
    history.take(Pause("a", release=True, by=OPERATOR), 1.0, [], [Accepted("a")])
    history.take(SetLocation("a", "cloud", 1, OPERATOR), 2.0, [], [Accepted("a")])
    history.take(SetDeadline("a", 90.0), 3.0, [], [Accepted("a")])
    history.take(SetDevices("a", 2, RESIZER), 4.0, [], [Accepted("a")])
    history.take(Resume("a", who="ann"), 5.0, [], [Accepted("a")])
    history.take(SetTerms("a", weight=2.0, who="bob"), 6.0, [], [Accepted("a")])
    history.take(Cancel("a", "ann"), 7.0, [], [Accepted("a")])
    assert [(remark.by, remark.words) for remark in history.of("a").remarks] == [
        ("operator", "pause, and free its memory"),
        ("operator", "location any to cloud, devices: 1"),
        ("person", "deadline 60.0s to 93.0s"),
        ("resizer", "number of devices: 2 (overruled by the operator)"),
        ("person", "ann: resume"),
        ("person", "bob: new terms: weight 1 to 2"),
        ("person", "ann: cancel"),
    ]


def test_the_digest_of_a_spec_is_in_the_journal_and_changes_with_the_spec() -> None:
    """Journals of scripts, which have no spec, stay as they were."""
    job = replace(JOB, spec_sha256="0" * 64)
    assert decode_event(encode_event(Submit((job,)))) == Submit((job,))
    assert "spec_sha256" not in encode_event(Submit((JOB,)))
    scheduler = submitted(job)
    changed = SetTerms("a", spec_sha256="f" * 64)
    assert decode_event(encode_event(changed)) == changed
    scheduler.handle(changed, 10.0)
    assert scheduler.job("a") == replace(job, spec_sha256="f" * 64)


@pytest.mark.parametrize("digest", ["0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n", "../x"])
def test_a_digest_of_another_form_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match="spec_sha256 must be 64 hexadecimal digits or empty"):
        replace(JOB, spec_sha256=digest)
    with pytest.raises(ValueError, match="spec_sha256 must be"):
        SetTerms("a", spec_sha256=digest)


@pytest.mark.parametrize(
    "command",
    [
        partial(Cancel, "a"), partial(Pause, "a"), partial(Resume, "a"), partial(SetDeadline, "a", 9.0),
        partial(SetDevices, "a", 1), partial(SetLocation, "a", "edge"), partial(SetTerms, "a", weight=2.0),
    ],
    ids=lambda command: command.func.__name__,
)  # fmt: skip
def test_a_command_refuses_a_sender_that_is_no_name(command: Callable[..., Command]) -> None:
    assert command(who="ann").who == "ann"
    assert command().who == ""
    with pytest.raises(ValueError, match="invalid name of a person"):
        command(who="\x1b[2J")
