"""A package outside the library: what it brings works as the library's own does, and what it breaks breaks nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.pool_section import pool_to_dict
from lightning_core.bundle.problems import BundleError
from lightning_core.core import parts
from lightning_core.core.answers import Accepted, Verdict
from lightning_core.core.codec import status_from_dict, status_to_dict
from lightning_core.core.control import Ask, Asker, Note, Rights
from lightning_core.core.events import Cell, PartEvent, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.parts import AbsentPartError, Part, figures_of, lines_of, register, unregister
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, as_target, target_from_dict
from lightning_core.history.history import History
from lightning_core.parts.market.cloud import make_provisioner, parse_provision
from lightning_core.policies import Edf
from lightning_core.report.page import page
from lightning_core.scheduler.allocation import Caps
from lightning_core.scheduler.divider import Membership
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.controller_conformance import check_controller
from lightning_core.view.job_line import COLUMNS, line
from tests.socket_servers import found_pool, socket_pool
from tests.waiting import until

from .conftest import forget, install


class Clock:
    """A clock that the test holds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


SETTINGS: dict[str, Any] = {
    "policy": "heaviest_first",
    "estimator": "straight_line",
    "controllers": {"quiet": {"spares": "a"}},
}


def jobs() -> Submit:
    """Three jobs of different weights, one of which has a target of the package."""
    return Submit((
        Job("a", 600.0, as_target("3 halvings of 2.4"), weight=1.0),
        Job("b", 600.0, as_target("loss<=0.5"), weight=3.0),
        Job("c", 600.0, as_target({"halves": 2, "start": 2.0}), weight=2.0),
    ))  # fmt: skip


def train(host: Host, clock: Clock, reports: int, start: int = 1) -> None:
    """Let each job report losses that fall, as far as it holds a share."""
    for number in range(start, start + reports):
        clock.now += 1.0
        for name in host.scheduler.names(active=True):
            directive = host.scheduler.directive(name)
            assert directive is not None
            cells = (Cell(number, 10 * number, 2.0 / number),)
            host.handle(Report(name, 1, number=number, version=directive.version, batches=10 * number,
                               busy=0.5 * number, cells=cells))  # fmt: skip


def make_host(folder: Path, clock: Clock, **settings: Any) -> Host:
    return Host(Settings(**SETTINGS | settings), folder / "journal.db", clock)


def test_every_part_works_in_a_pool_that_is_killed_and_goes_on(quiet: Path, tmp_path: Path) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    assert host.scheduler.packages == {
        "policy heaviest_first": "quiet-nights 1.2",
        "estimator straight_line": "quiet-nights 1.2",
        "controller quiet": "quiet-nights 1.2",
    }
    host.handle(jobs())
    first = {status.name: status.share for status in host.status()}
    assert first == {"a": 0.0, "b": 1.0, "c": 0.0}  # the heaviest
    assert str(host.status()[1].grant_reason) == "heaviest of 3 jobs"

    train(host, clock, 3)
    host.handle(PartEvent("quiet.night_began", {"events": 4}))
    held = {status.name: status for status in host.status()}
    assert [held[name].paused for name in "abc"] == [False, True, True]
    assert str(held["b"].grant_reason) == "paused by the quiet night: it is night for 4 more events"
    before = [(status.name, status.share, status.paused, status.finish) for status in host.status()]
    # It is killed: nothing is closed, and the policy would draw other lots now.
    again = make_host(tmp_path, clock)
    assert [(status.name, status.share, status.paused, status.finish) for status in again.status()] == before
    train(again, clock, 10, start=4)
    met = {status.name: status.verdict for status in again.status()}
    assert met["a"] is Verdict.MET
    assert met["c"] is Verdict.MET
    again.close()

    journal = Journal.open(tmp_path / "journal.db", read_only=True)
    assert replay(journal, whole=True).digest == journal.digest
    history = History.read(journal)
    job = next(one for one in history.jobs if one.name == "b")
    words = [str(remark) for remark in job.remarks]
    assert any("it is night for 4 more events" in one for one in words), words
    drawn = page(history)
    assert "What became of them" in drawn
    assert "<td>met</td>" in drawn
    journal.close()


def test_a_column_is_shown_with_the_job(quiet: Path, tmp_path: Path) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    host.handle(jobs())
    train(host, clock, 2)
    status = next(one for one in host.status() if one.name == "a")
    assert "halvings 0.7 of 3" in line(clock.now, status)[COLUMNS.index("reason")]
    register("silent", Part(columns={"nothing": lambda job: None}))  # type: ignore[dict-item,return-value]
    assert "nothing" not in parts.columns_of(status)
    unregister("silent")
    host.close()


def test_an_upgrade_neither_stops_a_restart_nor_damages_the_journal(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    host.handle(jobs())
    train(host, clock, 4)
    before = [(status.name, status.share) for status in host.status()]

    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(install(tmp_path / "newer", "2.0")))
    forget()
    module = __import__("quiet_nights")
    monkeypatch.setattr(module.HeaviestFirst, "STATE", ("plans", "more"))  # saved states do not fit any more
    monkeypatch.setattr(module.HeaviestFirst, "more", 0, raising=False)
    plain = module.HeaviestFirst.plan

    def plan(self: Any, view: Any, now: float) -> Any:  # it decides otherwise now
        return plain(self, view.__class__(**{**_columns(view), "weight": -view.weight}), now)

    monkeypatch.setattr(module.HeaviestFirst, "plan", plan)
    again = make_host(tmp_path, clock)
    assert [(status.name, status.share) for status in again.status()] == before
    clock.now += 2.0
    again.catch_up()
    assert again.scheduler.packages["policy heaviest_first"] == "quiet-nights 2.0"
    shares = {status.name: status.share for status in again.status()}
    assert shares["b"] == 0.0  # the heaviest is last now
    again.close()
    journal = Journal.open(tmp_path / "journal.db", read_only=True)
    assert replay(journal).digest == journal.digest
    journal.close()


def _columns(view: Any) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__dataclass_fields__}


def test_a_package_that_is_not_there_is_named_and_the_journal_stays_as_it_is(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    host.handle(jobs())
    train(host, clock, 3)
    host.close()
    content = (tmp_path / "journal.db").read_bytes()
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(quiet)])
    forget()
    with pytest.raises(AbsentPartError, match=r"policy heaviest_first is from quiet-nights 1\.2, which"):
        Host(Settings(), tmp_path / "journal.db", clock)
    assert (tmp_path / "journal.db").read_bytes() == content


@pytest.mark.parametrize("how", ["raises", "is of another shape"])
def test_a_policy_that_fails_is_replaced_and_the_failure_is_in_the_journal(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock, controllers={})
    host.handle(jobs())
    train(host, clock, 2)
    module = sys.modules["quiet_nights"]
    plain = module.HeaviestFirst.plan

    def plan(self: Any, view: Any, now: float) -> Any:
        if how == "raises":
            raise RuntimeError("no more")
        whole = plain(self, view, now)
        return whole.__class__(**{**_columns(whole), "share": whole.share[:-1]})

    monkeypatch.setattr(module.HeaviestFirst, "plan", plan)
    train(host, clock, 1, start=3)
    words = host.scheduler.failed_parts["policy heaviest_first"]
    assert words.startswith("RuntimeError: no more" if how == "raises" else "ValueError: share must have shape")
    monkeypatch.setattr(module.HeaviestFirst, "plan", plain)  # a replay fails at the same event all the same
    train(host, clock, 8, start=4)
    assert sum(status.verdict is Verdict.MET for status in host.status()) >= 2
    assert make_host(tmp_path, clock).scheduler.failed_parts == {"policy heaviest_first": words}
    host.close()


def test_a_simulation_says_that_a_policy_failed(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lightning_core.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    line = ["simulate", "lightning-core-example/bundle.yaml", "--policy", "heaviest_first"]
    main([*line, "--run-dir", "fine"])
    assert "warning" not in capsys.readouterr().err

    def plan(self: Any, view: Any, now: float) -> Any:
        sys.exit("no more")

    monkeypatch.setattr(sys.modules["quiet_nights"].HeaviestFirst, "plan", plan)
    main([*line, "--run-dir", "failed"])
    words = "policy heaviest_first: SystemExit: no more"
    assert f"warning: under heaviest_first: a part failed, and is asked no more: {words}" in capsys.readouterr().err
    with Journal.open(tmp_path / "failed" / "journal.db", read_only=True) as journal:
        history = History.read(journal)
    assert history.failed == {"policy heaviest_first plan": "SystemExit: no more"}
    assert "SystemExit: no more" in page(history)


@pytest.mark.parametrize("method", ["observe", "first_passage"])
def test_an_estimator_that_fails_is_replaced_by_one_that_has_seen_the_curves(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock, controllers={}, policy="edf")
    host.handle(jobs())
    train(host, clock, 3)

    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(sys.modules["quiet_nights"].StraightLine, method, fail)
    train(host, clock, 1, start=4)
    clock.now += 2.0
    host.catch_up()
    assert host.scheduler.failed_parts == {"estimator straight_line": "ZeroDivisionError: by zero"}
    assert make_host(tmp_path, clock).status() == host.status()
    host.close()


def test_quantiles_may_be_infinite(quiet: Path, tmp_path: Path) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock, controllers={}, policy="edf")
    host.handle(Submit((Job("a", 600.0, as_target("loss<=0.5")),)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1, 14):  # the loss rises
            clock.now += 1.0
            cells = (Cell(number, 10 * number, 2.0 + number),)
            directive = host.scheduler.directive("a")
            assert directive is not None
            host.handle(Report("a", 1, number=number, version=directive.version, batches=10 * number,
                               busy=0.5 * number, cells=cells))  # fmt: skip
            host.catch_up()
    assert host.scheduler.failed_parts == {}
    host.close()


def test_a_controller_that_fails_is_told_nothing_more_and_its_holds_stay(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    host.handle(jobs())
    host.handle(PartEvent("quiet.night_began", {"events": 9}))

    def fail(*arguments: Any) -> Any:
        raise KeyError("nights")

    monkeypatch.setattr(sys.modules["quiet_nights"].Quiet, "handle", fail)
    monkeypatch.setattr(sys.modules["quiet_nights"].Quiet, "wakeup", fail)
    host.handle(Tick())
    assert host.scheduler.failed_parts == {"controller quiet": "KeyError: 'nights'"}
    assert [status.paused for status in host.status()] == [False, True, True]
    assert make_host(tmp_path, clock).status() == host.status()
    host.close()


def test_a_target_that_raises_is_not_met_and_its_training_goes_on(quiet: Path, tmp_path: Path) -> None:
    from lightning_core.core.targets import outside

    outside.ERRORS.clear()
    clock = Clock()
    host = make_host(tmp_path, clock, controllers={})
    halving = as_target("3 halvings of 2.4")

    class Broken(type(halving)):  # type: ignore[misc]
        def reaches(self, value: float) -> bool:
            raise OverflowError("too much")

    register("broken", Part(targets=[Broken]))  # read before those of `quiet`
    host.handle(Submit((Job("a", 600.0, Broken(3, 2.4)),)))
    train(host, clock, 12)
    [status] = host.status()
    assert status.verdict is not Verdict.MET
    assert status.batches == 120
    [(part, words)] = host.scheduler.failed_parts.items()
    assert part.endswith("Broken")
    assert words == "reaches: OverflowError: too much"
    host.close()
    unregister("broken")
    outside.ERRORS.clear()


def test_targets_of_a_package_are_read_in_every_form(quiet: Path) -> None:
    target = as_target("3 halvings of 2.4")
    assert target == as_target({"halves": 3, "start": 2.4}) == target_from_dict(target.to_dict())
    with pytest.raises(ValueError, match="halves and start must be positive, got -1 and 2"):
        as_target({"halves": -1, "start": 2.0})


def test_a_bundle_names_parts_and_classes_by_their_path(quiet: Path, tmp_path: Path) -> None:
    text = """
        pool: {devices: 1, controllers: {quiet: {spares: a}, quiet_nights.Quiet: {}}}
        policy: {class_path: quiet_nights.HeaviestFirst, init_args: {seed: 3}}
        jobs: {a: {config: a.yaml, deadline: 1m, target: 2 halvings of 2.0}}
    """
    (tmp_path / "a.yaml").write_text("model: {class_path: x.Y}\n")
    bundle = BundleSpec.from_text(text, tmp_path)
    assert (bundle.settings.policy, dict(bundle.settings.policy_args)) == ("quiet_nights.HeaviestFirst", {"seed": 3})
    assert bundle.settings.packages["policy quiet_nights.HeaviestFirst"] == "quiet-nights 1.2"
    assert list(bundle.settings.make_controllers()) == ["quiet", "quiet_nights.Quiet"]
    assert BundleSpec.from_dict(bundle.to_dict(), tmp_path).settings == bundle.settings


def test_settings_with_other_parts_name_the_packages_of_these(quiet: Path) -> None:
    one = Settings(policy="heaviest_first")
    assert replace(one, estimator="straight_line").packages == {
        "policy heaviest_first": "quiet-nights 1.2",
        "estimator straight_line": "quiet-nights 1.2",
    }
    assert replace(one, policy="edf").packages == {}


def test_policies_of_packages_are_listed(quiet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lightning_core.cli.main import main

    register("loud", Part(policies={"edf": __import__("quiet_nights").HeaviestFirst}))
    assert main(["policies"]) == 0
    unregister("loud")
    said = capsys.readouterr()
    assert "The heaviest job first, ties by lot" in said.out
    assert "(quiet-nights 1.2)" in said.out
    assert "the policy edf of quiet-nights 1.2 is never used: the library has one of this name" in said.err


@dataclass(frozen=True)
class Lunch:
    """An event that takes whatever it is given."""

    on: bool
    guest: str | None = None
    dishes: Any = ()


def test_values_of_an_event_are_checked_against_its_annotations() -> None:
    register("lunch", Part(events={"began": Lunch}))
    taken: list[dict[str, Any]] = [
        {"on": True},
        {"on": False, "guest": "ann", "dishes": ["soup"]},
        {"on": True, "guest": None},
    ]
    for body in taken:
        PartEvent("lunch.began", body).decoded()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"on": "no"}, "on: expected bool, got 'no'"),
        ({"on": True, "guest": 3}, "guest: expected "),
    ]
    for body, words in refused:
        with pytest.raises(ValueError, match=f"event lunch.began: {words}"):
            PartEvent("lunch.began", body).decoded()
    unregister("lunch")


def test_the_suite_says_that_keys_of_a_target_are_arguments(quiet: Path) -> None:
    from lightning_core.testing.target_conformance import check_spelling

    class Renamed(type(as_target("3 halvings of 2.4"))):  # type: ignore[misc]
        FORMS = ()

        def to_dict(self) -> dict[str, Any]:
            return {"half": self.halves, "start": self.start}

    with pytest.raises(AssertionError, match=r"by default the keys of to_dict\(\) are the arguments of Renamed"):
        check_spelling(Renamed(3, 2.4))


def halved(folder: Path, clock: Clock, policy: str) -> Host:
    """Return a pool of four devices, of which heavy jobs and light ones may each have two."""
    return Host(Settings(policy, devices=4, divider={"halves": {"heavy": 2.0}}), folder / "journal.db", clock)


def devices_of(host: Host) -> dict[str, float]:
    return {status.name: status.share * len(status.devices) for status in host.status()}


WEIGHTS = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 4.0}
HALVES = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 1.0}  # of the heavy jobs, c comes last under both policies


def weighty() -> Submit:
    return Submit(tuple(
        Job(name, 700.0 if name == "c" else 600.0, as_target("loss<=0.1"), weight=weight)
        for name, weight in WEIGHTS.items()
    ))  # fmt: skip


@pytest.mark.parametrize("policy", ["edf", "heaviest_first"])
def test_a_divider_of_a_package_divides_a_pool_that_is_killed_and_goes_on(
    quiet: Path, tmp_path: Path, policy: str
) -> None:
    clock = Clock()
    host = halved(tmp_path, clock, policy)
    assert host.scheduler.packages["divider halves"] == "quiet-nights 1.2"
    host.handle(weighty())
    assert devices_of(host) == HALVES
    host.scheduler.check()
    assert host.scheduler.shares() == [{"half": "heavy", "jobs": 3}, {"half": "light", "jobs": 1}]
    train(host, clock, 3)
    assert not host.scheduler.failed_parts
    again = halved(tmp_path, clock, policy)  # nothing is closed
    assert devices_of(again) == HALVES
    train(again, clock, 3, start=4)
    again.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest


def _raises(*_: Any) -> Any:
    raise RuntimeError("no more")


def _half_a_plan(self: Any, round: Any, view: Any, policy_of: Any) -> Any:
    return round.plan(policy_of("all"), view), Caps([0], [1.0], [1.0])


def _negative(self: Any, job: Any) -> Any:
    return Membership("all", -1.0)


@pytest.mark.parametrize("policy", ["edf", "heaviest_first"])
@pytest.mark.parametrize(
    ("method", "does", "words"),
    [
        ("plan", _raises, "RuntimeError: no more"),
        ("plan", _half_a_plan, "ValueError: of must have one of 1 groups for each of 5 jobs, got [0]"),
        ("count", _raises, "RuntimeError: no more"),
        ("admit", _raises, "RuntimeError: no more"),
        ("admit", _negative, "ValueError: cap and quota must not be negative, got -1.0 and 0"),
    ],
)
def test_a_divider_that_fails_divides_no_more(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, does: Any, words: str, policy: str
) -> None:
    clock = Clock()
    host = halved(tmp_path, clock, policy)
    host.handle(weighty())
    train(host, clock, 2)
    with monkeypatch.context() as broken:
        broken.setattr(sys.modules["quiet_nights"].Halves, method, does)
        host.handle(Submit((Job("e", 50.0, as_target("loss<=0.1"), weight=9.0),)))
        train(host, clock, 2, start=3)
    assert host.scheduler.failed_parts["divider halves"] == words
    assert sum(devices_of(host).values()) == 4.0  # of five jobs of which four are heavy
    assert host.scheduler.shares() == []
    division = host.scheduler._state.division
    assert division is not None
    division.forget()
    assert list(division.policies) == [""]  # that which plans all of them stays, and hears of their losses
    assert division.policy_of("a") is division.policy_of("e") is division.policies[""]
    again = halved(tmp_path, clock, policy)  # it would not fail any more, and has failed all the same
    assert again.scheduler.failed_parts == {"divider halves": words}
    assert devices_of(again) == devices_of(host)
    train(again, clock, 2, start=5)
    again.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest


def test_an_upgraded_divider_stops_no_restart(quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the policy once a round where it asked it twice, and puts all jobs into one group."""
    clock = Clock()
    host = halved(tmp_path, clock, "heaviest_first")
    host.handle(weighty())
    train(host, clock, 3)
    before = devices_of(host)

    def plan(self: Any, round: Any, view: Any, policy_of: Any) -> Any:
        whole = round.plan(policy_of("all"), view)
        whole.share[whole.order[1:]] = 0.0
        return whole, Caps([0] * len(view), [1.0], [1.0])

    halves = sys.modules["quiet_nights"].Halves
    monkeypatch.setattr(halves, "plan", plan)
    monkeypatch.setattr(halves, "admit", lambda self, job: Membership("all", 1.0))
    monkeypatch.setattr(halves, "check", lambda self, table: None)
    again = halved(tmp_path, clock, "heaviest_first")
    assert devices_of(again) == before
    train(again, clock, 1, start=4)
    assert sum(devices_of(again).values()) == 1.0
    assert not again.scheduler.failed_parts
    again.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest


def test_the_terms_of_a_divider_stand_in_the_section_of_the_pool(quiet: Path, tmp_path: Path) -> None:
    text = "pool: {{devices: {}, halves: {}}}\njobs: {{a: {{config: a.yaml, deadline: 1m, target: 9 batches}}}}"
    (tmp_path / "a.yaml").write_text("model: {class_path: x.Y}\n")
    spec = BundleSpec.from_text(text.format(2, 1.5), tmp_path)
    assert spec.settings.divider == {"halves": {"heavy": 1.5}}
    assert pool_to_dict(spec.settings, "cpu")["halves"] == 1.5
    with pytest.raises(BundleError, match=r"pool\.halves: could not convert string to float: 'much'"):
        BundleSpec.from_text(text.format(2, "much"), tmp_path)
    with pytest.raises(BundleError, match="halves: devices must be even, got 3"):
        BundleSpec.from_text(text.format(3, 2), tmp_path)
    with pytest.raises(ValueError, match="a pool must have at most one divider, got owners, halves"):
        Settings(divider={"owners": {}, "halves": {}})


def test_a_class_path_comes_only_from_who_starts_the_pool(quiet: Path, tmp_path: Path) -> None:
    from lightning_core.bundle.pool_section import ExistingPool

    text = "policy: this.Zen\njobs: {a: {config: {model: x.Y}, deadline: 1m, target: 9 batches}}"
    forget()
    with pytest.raises(BundleError, match="policy: only who starts a pool may give it a class"):
        BundleSpec.from_text(text, tmp_path, ExistingPool(1, "cpu"))
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Settings(policy="quiet_nights.HeaviestLast"), "policy quiet_nights.HeaviestLast: quiet_nights has no"),
        (lambda: Settings(policy="quiet_nights.Shelf"), "must be a class with the method plan"),
        (lambda: Settings(policy="loud_nights.Policy"), "policy loud_nights.Policy: no module 'loud_nights' is"),
        (lambda: Settings(policy="heaviest_frst"), "got 'heaviest_frst'; did you mean 'heaviest_first'"),
        (lambda: Settings(policy="heaviest_first", policy_args={"sed": 1}), "unknown argument 'sed'; did you mean 'se"),
        (lambda: Settings(policy=3), "policy must have the method plan, and int has none"),  # type: ignore[arg-type]
        (lambda: Settings(controllers={"quiet": {"spare": 1}}), "controller quiet: unknown argument 'spare'"),
        (
            lambda: Settings(policy="heaviest_first", policy_args={"seed": "x"}),
            "policy heaviest_first of quiet-nights 1.2: seed: expected int | null, got 'x'",
        ),
        (
            lambda: PartEvent("quiet.night_began", {"events": 0}).decoded(),
            "quiet.night_began: events must be a p",
        ),
        (lambda: PartEvent("quiet.night_began", {}).decoded(), "event quiet.night_began: "),
        (lambda: register("a.b", Part()), "name of a part must be without dots"),
        (lambda: register("loud", 3), "part loud: must be a lightning_core.Part, got int"),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_part_the_rule_and_the_value(quiet: Path, make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_what_a_constructor_raises_is_named_with_its_type(quiet: Path) -> None:
    def lost() -> Any:
        raise KeyError("way")

    register("lost", Part(policies={"lost": lost}))
    with pytest.raises(ValueError, match=r"policy lost of .*: KeyError: 'way'"):
        Settings(policy="lost")
    unregister("lost")


def test_two_parts_may_not_bring_the_same_name(quiet: Path) -> None:
    module = __import__("quiet_nights")
    parts.all_parts()
    with pytest.raises(ValueError, match="part loud: quiet brings 'heaviest_first' of policies too; rename one"):
        register("loud", Part(policies={"heaviest_first": module.HeaviestFirst}))


def test_a_policy_may_be_a_class_or_an_object(quiet: Path) -> None:
    policy = __import__("quiet_nights").HeaviestFirst
    assert Settings(policy=policy).policy == "quiet_nights.HeaviestFirst"
    given = policy(seed=4)
    made = Settings(policy=given).make_policy()
    assert type(made) is policy
    assert made is not given


def test_a_provisioner_and_a_command_of_a_package(quiet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lightning_core.cli.main import main

    assert parse_provision("shelf one two") == ("shelf", ["one", "two"])
    assert type(make_provisioner("shelf", "p", "r", [])).__name__ == "Shelf"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "hold the jobs of a pool for a while" in capsys.readouterr().out
    assert main(["night", "3", "--pool", "/nowhere"]) == 2


def test_a_part_that_cannot_be_loaded_is_named_where_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "site")
    (folder / "quiet_nights").unlink()
    (folder / "quiet_nights.py").write_text("raise ImportError('no nights here')\n")
    monkeypatch.syspath_prepend(str(folder))
    forget()
    with pytest.raises(ValueError, match=r"the part quiet cannot be loaded: quiet-nights 1\.2: ImportError: no nights"):
        Settings(policy="heaviest_first")
    monkeypatch.undo()
    forget()
    parts._broken.clear()


def test_of_two_packages_with_a_part_of_the_same_name_one_is_left_out(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    (second / "late-3.dist-info").mkdir(parents=True)
    (second / "late-3.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 3\n")
    (second / "late-3.dist-info" / "entry_points.txt").write_text(f"[{parts.GROUP}]\nquiet = late:part\n")
    (second / "late.py").write_text("from lightning_core import Part\npart = Part()\n")
    monkeypatch.syspath_prepend(str(second))
    forget()
    names = {one.package for one in parts.all_parts() if one.name == "quiet"}
    assert len(names) == 1
    other = ({"quiet-nights 1.2", "late 3"} - names).pop()
    assert (
        parts.broken_parts()["quiet"] == f"{other}: ValueError: {names.pop()} has a part of this name too; rename one"
    )
    parts._broken.clear()


def test_what_is_registered_is_found_until_it_is_not(quiet: Path) -> None:
    module = __import__("quiet_nights")
    register("mine", Part(policies={"mine": module.HeaviestFirst}))
    assert type(Settings(policy="mine").make_policy()) is module.HeaviestFirst
    unregister("mine")
    with pytest.raises(AbsentPartError):
        Settings(policy="mine")


def test_calls_are_in_the_journal_once_and_small(quiet: Path, tmp_path: Path) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    host.handle(jobs())
    train(host, clock, 3)
    host.close()
    journal = Journal.open(tmp_path / "journal.db", read_only=True)
    calls = [body for entry in journal.entries() for body in json.loads(entry.answers) if "called" in body]
    assert {body["called"] for body in calls} == {"policy heaviest_first plan", "estimator straight_line first_passage"}
    journal.close()


def test_init_writes_a_package_whose_tests_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_core.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["init", "--part", "my_own"]) == 0
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(tmp_path / "my_own")]
    path = os.pathsep.join([str(tmp_path / "my_own"), *sys.path])
    done = subprocess.run(line, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert main(["init", "--part", "my-own"]) == 2
    assert main(["init", "--part", "numpy"]) == 2


def test_a_journal_of_others_imports_no_class(quiet: Path, tmp_path: Path) -> None:
    clock = Clock()
    host = Host(Settings(policy="quiet_nights.HeaviestFirst"), tmp_path / "journal.db", clock)
    host.handle(jobs())
    train(host, clock, 3)
    host.close()
    forget()
    parts._allowed.clear()  # as in another process
    tmp_path.chmod(0o777)
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        assert len(History.read(journal).jobs) == 3
        assert journal.settings().packages == {"policy quiet_nights.HeaviestFirst": "quiet-nights 1.2"}
        with pytest.raises(AbsentPartError, match=r"from quiet-nights 1\.2, which cannot be loaded here"):
            replay(journal)
    tmp_path.chmod(0o700)
    Host(Settings(), tmp_path / "journal.db", clock).close()  # its own account continues it


def test_a_job_whose_target_is_of_a_missing_part_can_be_shown(quiet: Path, tmp_path: Path) -> None:
    clock = Clock()
    host = make_host(tmp_path, clock)
    host.handle(jobs())
    train(host, clock, 2)
    told = [status_to_dict(status) for status in host.status()]
    host.close()
    sys.path.remove(str(quiet))
    forget()
    shown = [status_from_dict(json.loads(json.dumps(one))) for one in told]
    assert [str(status.target) for status in shown] == ["halves 3, start 2.4", "loss <= 0.5", "halves 2, start 2.0"]
    assert [status.target.to_dict() for status in shown] == [one["target"] for one in told]
    with pytest.raises(ValueError, match="it may be of a part that is not installed here"):
        target_from_dict(told[0]["target"])


def test_its_page_is_beside_those_of_the_library(quiet: Path, tmp_path: Path) -> None:
    from lightning_core.parts.web.visitors import account
    from tests.parts.web.pages import page_of

    with page_of(tmp_path / "pool") as page:
        page.submit(Job("a", 600.0, as_target("loss<=0.5")))
        ann = page.of(account("ann"))
        assert '<a href="/pages/nights">Nights</a>' in ann.get("/").text
        assert "<p>1 jobs sleep &lt;well&gt;</p>" in ann.get("/pages/nights").text


def test_its_companion_stands_beside_a_pool(quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_core.cli.main import main

    monkeypatch.setattr("lightning_core.cluster.head.up", lambda *_, **__: {"token": "", "address": "here"})
    monkeypatch.setattr("lightning_core.cluster.head.down", lambda *_, **__: None)
    assert main(["up", "--folder", str(tmp_path), "--devices", "1", "--owl"]) == 0
    assert (tmp_path / "owl").read_text() == "awake"
    assert main(["down", "--folder", str(tmp_path)]) == 0
    assert not (tmp_path / "owl").exists()


def raises(*_: Any) -> Any:
    raise ZeroDivisionError("by hand")


class Breaks:
    """A history and a task that raise whatever they are asked."""

    def __init__(self, *_: Any) -> None: ...

    begin = begun = start_if_due = seconds_to_next = take = answer = hold = raises


@pytest.fixture
def breaking() -> Iterator[None]:
    """A part of which all raises that is asked beside the scheduler."""
    told = {"calendar": raises}
    register("breaks", Part(histories={"breaks": Breaks}, tasks={"calendar": Breaks}, lines=told, figures=told))
    yield
    unregister("breaks")


def test_a_history_that_raises_is_left_out_and_named(breaking: None) -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 60.0, BatchTarget(9)),)), 0.0, [], [Accepted("a")])
    assert (history.parts.get("breaks"), len(history.jobs)) == (None, 1)
    assert history.failed == {"history breaks": "ZeroDivisionError: by hand"}


def test_a_line_or_figures_that_raise_spoil_no_other(breaking: None) -> None:
    assert lines_of("calendar", {}) == ["calendar: ZeroDivisionError: by hand"]
    assert figures_of("calendar", {}) == []


def test_a_task_that_raises_does_not_stop_the_scheduler(
    breaking: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A script joins, and the scheduler is woken for its next round."""
    open_now = f"not between {(datetime.now().hour + 12) % 24:02d}:00 and {(datetime.now().hour + 13) % 24:02d}:00"
    calendar = {"calendar": {"closed": [open_now]}}
    with socket_pool(tmp_path / "pool", {"controllers": calendar, "period": 0.1}) as made:
        client = SocketClient(made.path)
        client.join(Job("a", 600.0, BatchTarget(1000), can=frozenset({Capability.TIME_SLICE, Capability.HOLD})), "cpu")
        before = made.actor._host.scheduler.now
        until(lambda: made.actor._host.scheduler.now > before)
        client.close()
    assert "a task beside the scheduler raised" in caplog.text


class Answers:
    """A controller that answers whatever a test wants from the second event on."""

    rights = Rights("the tests", holds=True)
    answers: ClassVar[Callable[[], Any]]

    def __init__(self) -> None:
        self.events = 0

    def handle(self, event: Any, now: float, pool: Any) -> Any:
        self.events += 1
        return [] if self.events < 2 else type(self).answers()

    def wakeup(self) -> float | None:
        return None


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (lambda: [Ask("a", hold=True, reason=Reason("low tide"))], "unknown reason 'low tide'"),
        (lambda: [Ask("a", hold=True, reason=Reason("chosen"))], "reason chosen needs 2 numbers, got 0"),
        (lambda: [Note("a", Asker("answers"), Reason("low tide"))], "unknown reason 'low tide'"),
        (lambda: None, "handle() must return a list, got NoneType"),
        (lambda: [Ask("a", devices=2)], "a: the tests may not choose the number of devices, got 2"),
        (lambda: ["hold"], "str must be among the answers of a registered part"),
    ],
)
def test_a_controller_that_answers_what_cannot_be_read_is_disabled(
    tmp_path: Path, answers: Callable[[], Any], words: str
) -> None:
    Answers.answers = staticmethod(answers)
    register("answers", Part(controllers={"answers": Answers}))
    try:
        clock = Clock()
        host = Host(Settings("edf", controllers={"answers": {}}), tmp_path / "journal.db", clock)
        host.handle(Submit((Job("a", 60.0, BatchTarget(100)), Job("b", 60.0, BatchTarget(100)))))
        clock.now = 1.0
        host.handle(Tick())
        assert words in host.scheduler.failed_parts["controller answers"]
        clock.now = 3.0
        host.handle(Tick())
        assert [status.share for status in host.status()] == [1.0, 0.0]  # the jobs train on
        host.close()
        again = Host(Settings("edf", controllers={"answers": {}}), tmp_path / "journal.db", clock)
        assert words in again.scheduler.failed_parts["controller answers"]
        again.close()
    finally:
        unregister("answers")


def test_a_policy_that_gives_sizes_without_choosing_them_is_replaced(tmp_path: Path) -> None:
    class Sizing(Edf):
        def plan(self, jobs: Any, now: float) -> Any:
            return replace(super().plan(jobs, now), size=np.full(len(jobs), 64))

    clock = Clock()
    host = Host(Settings(policy=Sizing), tmp_path / "journal.db", clock)  # type: ignore[arg-type]
    host.handle(Submit((Job("a", 5.0, BatchTarget(1000)), Job("b", 60.0, BatchTarget(1000)))))
    clock.now = 6.0
    host.handle(Tick())
    [(part, words)] = host.scheduler.failed_parts.items()
    assert part.startswith("policy ")
    assert words == "ValueError: size must be None in a plan of a policy without chooses_sizes = True"
    assert host.status()[1].share == 1.0
    host.close()


def test_the_suite_detects_what_a_controller_may_not() -> None:
    class Sizes(Answers):
        def __init__(self) -> None:
            self.names: list[str] = []

        def handle(self, event: Any, now: float, pool: Any) -> Any:
            return [Ask(name, devices=2) for name in pool.names()]

        def state(self) -> dict[str, Any]:
            return {}

        def restore(self, state: Any) -> None: ...

    with pytest.raises(AssertionError, match="a controller that asks for 'devices 2' must have rights with sizes=True"):
        check_controller(Sizes)


def test_the_suite_sends_a_controller_s_own_events(quiet: Path) -> None:
    module = __import__("quiet_nights")

    class Raises(module.Quiet):  # type: ignore[misc, name-defined]
        def handle(self, event: Any, now: float, pool: Any) -> Any:
            if isinstance(event, module.NightBegan):
                raise RuntimeError("it is night")
            return super().handle(event, now, pool)

    check_controller(Raises)
    with pytest.raises(RuntimeError, match="it is night"):
        check_controller(Raises, own=[module.NightBegan(3)])


def test_a_part_that_cannot_be_loaded_is_named_where_its_target_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts._broken, "tides", "tides 1.0: ImportError: no moon")
    words = "; the part tides cannot be loaded: tides 1.0: ImportError: no moon"
    for unknown in ("3 tides", {"tides": 3}):
        with pytest.raises(ValueError, match=re.escape(words)):
            as_target(unknown)
    with pytest.raises(AbsentPartError, match="may be of a part that is not installed here; the part tides"):
        target_from_dict({"tides": 3})


def test_a_journal_with_a_target_of_a_missing_part_is_not_called_damaged(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(Settings("edf"), tmp_path / "journal.db", Clock())
    host.handle(jobs())
    host.close()
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(quiet)])
    forget()
    with (
        Journal.open(tmp_path / "journal.db", read_only=True) as journal,
        pytest.raises(AbsentPartError, match=r"journal\.db: target: target must have one .*not installed here"),
    ):
        list(History.read(journal).jobs)


def test_an_event_is_sent_by_a_command(quiet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lightning_core.cli.main import main

    with found_pool(policy="edf", controllers={"quiet": {}}) as pool:
        where = ["--pool", str(pool.path.parent)]
        pool.do(pool.actor.submit((Job("a", 600.0, BatchTarget(1000)),)))
        assert main(["tell", "quiet.night_began:events=9", *where]) == 0
        assert capsys.readouterr().out == "told: quiet.night_began\n"
        [status] = pool.do(pool.actor.status())[1]
        assert status.paused
        assert main(["tell", "quiet.night_begin:events=9", *where]) == 2
        assert "did you mean 'quiet.night_began'?" in capsys.readouterr().err
        assert main(["tell", "quiet.night_began:events=many", *where]) == 2
        assert "quiet.night_began: events: expected int, got 'many'" in capsys.readouterr().err
