"""Data that a package keeps with jobs, the groups that they form, and commands in a name of its own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.problems import BundleError
from lightning_core.core import parts
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.codec import job_from_dict, job_to_dict, status_from_dict, status_to_dict
from lightning_core.core.commands import (
    Cancel,
    Command,
    Pause,
    Resume,
    SetDeadline,
    SetDevices,
    SetLocation,
    check_sender,
)
from lightning_core.core.control import Ask, Asker, Rights, declare_rights, rights_of
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Job
from lightning_core.core.parts import AbsentPartError, Group, Part, check_job_data, group_of, register, unregister
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.job_specs import check
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.view.group_lines import group_lines, groups_of, is_listed
from lightning_core.view.why import rows
from tests.builders import spec

from .conftest import forget
from .test_outside import Clock

NEIGHBOUR = Asker("neighbour")
BUNDLE = "jobs: {{a: {{model: tests.tiny.Line, deadline: 1m, target: 9 batches, parts: {parts}}}}}"


def job(name: str, **noise: Any) -> Job:
    return Job(name, 600.0, BatchTarget(1000), parts={"quiet": noise} if noise else {})


def host_of(folder: Path, clock: Clock) -> Host:
    return Host(Settings(policy="fifo", devices=4), folder / "journal.db", clock)


@pytest.fixture
def host(quiet: Path, tmp_path: Path) -> Host:
    made = host_of(tmp_path, Clock())
    made.handle(Submit((job("a", room="attic"), job("b", room="attic", decibels=90), job("c"))))
    return made


def seen(host: Host) -> dict[str, JobStatus]:
    return {status.name: status for status in host.status()}


# ------------------------------------------------------------------------------------------------------------- data


def test_data_of_a_job_are_read_from_a_bundle_and_stay_with_it(quiet: Path, tmp_path: Path) -> None:
    bundle = BundleSpec.from_text(BUNDLE.format(parts="{quiet: {room: attic}}"), tmp_path)
    [one] = bundle.jobs
    assert one.job.parts == {"quiet": {"room": "attic"}}
    assert one.to_dict()["parts"] == {"quiet": {"room": "attic"}}
    assert job_from_dict(job_to_dict(one.job)) == one.job
    host = host_of(tmp_path, Clock())
    host.handle(Submit((one.job,)))
    assert seen(host)["a"].parts == {"quiet": {"room": "attic"}}
    assert [status_from_dict(status_to_dict(status)) for status in host.status()] == host.status()
    again = host_of(tmp_path, Clock())  # it was killed
    assert again.status() == host.status()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert History.read(journal).of("a").terms.parts == {"quiet": {"room": "attic"}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{quit: {room: attic}}", "no part 'quit' is installed; did you mean 'quiet'?"),
        ("{quiet: {}}", "room"),
        ("{quiet: {room: 3}}", "quiet: room: expected str, got 3"),
        ("{quiet: {rom: attic}}", "quiet: unknown field 'rom'; did you mean 'room'?"),
        ("{quiet: {room: attic, decibels: 200}}", "quiet: decibels must be from 0 to 120, got 200"),
        ("{plain: {room: attic}}", "part plain keeps no data of jobs"),
        ("{quiet: attic}", "must be a mapping of values for each part, got {'quiet': 'attic'}"),
        ("attic", "must be a mapping of values for each part, got 'attic'"),
    ],
)
def test_data_of_another_form_are_refused_before_submission(quiet: Path, tmp_path: Path, data: str, words: str) -> None:
    register("plain", Part())
    with pytest.raises(BundleError) as refused:
        BundleSpec.from_text(BUNDLE.format(parts=data), tmp_path)
    unregister("plain")
    [line] = str(refused.value).splitlines()
    assert "parts: " in line
    assert words in line


def test_a_server_checks_the_data_of_what_it_launches(quiet: Path) -> None:
    assert len(check([spec(job("a", room="attic"))], set())) == 1
    with pytest.raises(ValueError, match="decibels must be from 0 to 120"):
        check([spec(job("a", room="attic", decibels=500))], set())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"quiet": {"room": "x" * 9000}}, "characters of parts must be at most 8,192"),
        ({"quiet": {"room": float("nan")}}, "parts must be JSON values"),
        ({"quiet": {"room": {1, 2}}}, "parts must be JSON values"),
        ({"quiet": "attic"}, "parts must be a mapping of values for each part"),
    ],
)
def test_what_no_journal_could_hold_is_refused(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Job("a", 600.0, BatchTarget(1), parts=data)


def test_data_are_what_json_makes_of_them_and_cost_nothing_where_there_are_none() -> None:
    made = Job("a", 600.0, BatchTarget(1), parts={"quiet": {"rooms": ("attic", "cellar")}})
    assert made.parts == {"quiet": {"rooms": ["attic", "cellar"]}}
    assert job_from_dict(job_to_dict(made)) == made
    assert "parts" not in job_to_dict(job("c"))
    assert len({made, job("c")}) == 2


# ----------------------------------------------------------------------------------------------------------- groups


def test_a_group_is_a_line(host: Host) -> None:
    jobs = host.status()
    assert group_lines(jobs) == ["quiet attic: 2 jobs, up to 90 dB"]
    assert [is_listed(one) for one in jobs] == [True, True, True]
    held = [replace(one, paused=True) for one in jobs]
    assert [is_listed(one) for one in held] == [False, False, True]
    ended = [replace(one, state=State.ENDED, finished_at=1.0) for one in jobs]
    assert [group.is_over for group in groups_of(ended)] == [True]


def test_status_lists_the_jobs_of_a_group(quiet: Path) -> None:
    from lightning_core.cli.main import make_parser

    assert make_parser(with_parts=True).parse_args(["status", "--quiet", "attic"]).group == ("quiet", "attic")
    assert make_parser().parse_args(["status"]).group is None


def test_a_part_that_fails_to_group_costs_the_line_alone(quiet: Path) -> None:
    def fail(what: Any) -> str:
        raise KeyError("no room")

    register("broken", Part(group=Group(fail, fail)))
    register("mute", Part(group=Group(lambda data: "all", fail)))
    assert group_of({"broken": {}}) is None
    assert group_of({"broken": {}, "quiet": {"room": "attic"}}) == ("quiet", "attic")
    assert group_of({"gone": {}}) is None
    assert parts.group_words("mute", []) == "KeyError: 'no room'"
    assert parts.group_words("gone", []) == ""
    unregister("broken")
    unregister("mute")


def test_a_part_says_how_a_job_was_submitted(host: Host, tmp_path: Path) -> None:
    """In its histories, also of a job that has ended; one that fails says so."""

    def fail(what: Any) -> str:
        raise KeyError("no form")

    register("form", Part(submission=lambda data: f"by form {data['number']}"))
    register("broken", Part(submission=fail))
    register("mute", Part(submission=lambda data: ""))
    form = {"form": {"number": 7}, "broken": {}, "mute": {}, "gone": {}}
    host.handle(Submit((Job("d", 600.0, BatchTarget(1000), parts=form), Job("e", 600.0, BatchTarget(1000)))))
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        history = History.read(journal)
    told = [rows(history.of(name))[0].reason for name in ("d", "e")]
    assert told == ["1000 batches, deadline 10m, KeyError: 'no form', by form 7", "1000 batches, deadline 10m"]
    for name in ("form", "broken", "mute"):
        unregister(name)


# ---------------------------------------------------------------------------------------------------------- askers


def test_an_asker_steers_jobs_and_a_person_stands_above_it(host: Host, tmp_path: Path) -> None:
    host.handle(Pause("a", by=NEIGHBOUR, who="ann"))
    host.handle(SetDevices("b", 0, NEIGHBOUR, "ann"))
    assert str(seen(host)["a"].grant_reason) == "paused by the neighbour"
    assert str(seen(host)["b"].grant_reason) == "holds no devices at the request of the neighbour"
    host.handle(Resume("a", who="ann"))
    assert not seen(host)["a"].paused
    host.handle(Resume("a", NEIGHBOUR))
    host.handle(Pause("a", who="ann"))
    host.handle(Resume("a", NEIGHBOUR))
    assert str(seen(host)["a"].grant_reason) == "paused by ann"
    host.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest
        assert [remark.by for remark in History.read(journal).of("b").remarks] == ["neighbour"]


@pytest.mark.parametrize(
    ("command", "is_allowed"),
    [
        (Pause("a", by=NEIGHBOUR), True),
        (Resume("a", NEIGHBOUR), True),
        (SetDevices("a", 1, NEIGHBOUR), True),
        (SetLocation("a", "edge", by=NEIGHBOUR), False),
        (SetDeadline("a", 9.0, NEIGHBOUR), False),
        (Pause("a", by=Asker.CALENDAR), False),
        (Pause("a", by=Asker("quiet")), False),
        (Pause("a", by=Asker("stranger")), False),
        (SetDeadline("a", 9.0), True),
        (Cancel("a"), True),
    ],
)
def test_an_asker_sends_what_its_rights_say(quiet: Path, command: Command, is_allowed: bool) -> None:
    if is_allowed:
        check_sender(command)
    else:
        with pytest.raises(ValueError, match=f"a: {type(command).__name__} is no command that .* may send"):
            check_sender(command)


def test_an_asker_is_no_controller_and_stands_below_a_person(quiet: Path) -> None:
    register("bold", Part(askers={"bold": Rights("the bold", holds=True, rank=0)}))
    assert rights_of(Asker("bold")) == Rights("the bold", holds=True, rank=1, commands=True)
    unregister("bold")
    with pytest.raises(ValueError, match="a: the neighbour asks by commands, got neighbour"):
        Ask("a", NEIGHBOUR, hold=True)
    with pytest.raises(ValueError, match="controller neighbour: a part asks by commands under this name"):
        declare_rights(NEIGHBOUR, Rights("the neighbour", holds=True))
    with pytest.raises(ValueError, match="rank of at least 1 and without commands, got"):
        declare_rights(Asker("other"), Rights("the other", commands=True))


def test_a_pool_whose_asker_is_not_installed_says_so_and_leaves_its_journal(
    host: Host, quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.handle(Pause("a", by=NEIGHBOUR))
    host.close()
    content = (tmp_path / "journal.db").read_bytes()
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(quiet)])
    forget()
    with pytest.raises(AbsentPartError, match="no part that is installed here asks under the name 'neigh"):
        host_of(tmp_path, Clock())
    assert (tmp_path / "journal.db").read_bytes() == content


def test_data_of_a_part_that_is_not_installed_are_kept(
    host: Host, quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.status()
    host.close()
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(quiet)])
    forget()
    again = host_of(tmp_path, Clock())
    assert again.status() == before
    assert group_lines(again.status()) == []
    with pytest.raises(ValueError, match="no part 'quiet' is installed"):
        check_job_data(again.scheduler.job("a").parts)
    again.close()
