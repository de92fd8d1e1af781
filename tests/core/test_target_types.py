"""Every kind of target, the shipped ones and one made up here, behaves as the scheduler and the views expect."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from lightning_core.bundle.values import read_target
from lightning_core.core.answers import Verdict
from lightning_core.core.codec import decode_event, encode_event, status_from_dict, status_to_dict
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import (
    TARGETS,
    BatchTarget,
    LossTarget,
    Target,
    as_target,
    parse_target,
    target_from_dict,
)
from lightning_core.core.targets.base import STEP_LOSS
from lightning_core.core.validation import checked
from lightning_core.history.history import History
from lightning_core.report.card import card
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.view.text import clean


@dataclass(frozen=True, slots=True)
class PerplexityTarget(Target):
    """A perplexity of at most a threshold: exp of the loss that ``training_step`` returns."""

    KEY: ClassVar[str] = "perplexity"
    KEYS: ClassVar[tuple[str, ...]] = ("perplexity",)
    FORMS: ClassVar[tuple[str, ...]] = ("perplexity 20",)

    perplexity: float

    def __post_init__(self) -> None:
        if not self.perplexity > 1:
            raise ValueError(f"target perplexity must be above 1, got {self.perplexity}")

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        match = re.fullmatch(r"perplexity (\S+)", text)
        return None if match is None else cls(float(match[1]))

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        return cls(float(terms["perplexity"])) if terms.keys() == {"perplexity"} else None

    @property
    def quantity(self) -> str:
        return "perplexity"

    @property
    def observed(self) -> str:
        return STEP_LOSS

    @property
    def goal(self) -> float:
        return math.log(self.perplexity)

    @property
    def grows(self) -> bool:
        return False

    def show(self, value: float) -> str:
        return f"{math.exp(value):.3g}"

    def to_dict(self) -> dict[str, Any]:
        return {"perplexity": self.perplexity}

    def __str__(self) -> str:
        return f"perplexity {self.perplexity:g}"


EXAMPLES: list[Target] = [
    BatchTarget(40),
    LossTarget("loss", 0.5),
    LossTarget("nll", -2.0),
    LossTarget("val_acc", at_least=90.0, best=100.0, for_evaluations=2),
    PerplexityTarget(4.0),
]


@pytest.fixture(autouse=True)
def with_a_kind_of_our_own() -> Iterator[None]:
    TARGETS.append(PerplexityTarget)
    yield
    TARGETS.remove(PerplexityTarget)


@pytest.fixture(params=EXAMPLES, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


def test_every_kind_has_an_example() -> None:
    assert {type(target) for target in EXAMPLES} == set(TARGETS)
    assert len({kind.KEY for kind in TARGETS}) == len(TARGETS)


def test_it_is_read_from_its_own_spelling(target: Target) -> None:
    assert parse_target(str(target)) == target
    assert as_target(target) is target
    assert as_target(str(target)) == target
    assert target_from_dict(json.loads(json.dumps(target.to_dict()))) == target
    assert read_target(target.to_dict()) == target
    assert read_target(str(target)) == target
    assert target.KEY in target.to_dict()
    assert set(target.to_dict()) <= set(target.KEYS)
    assert pickle.loads(pickle.dumps(target)) == target
    assert checked(target, Target) is target


def test_no_other_kind_takes_its_spelling(target: Target) -> None:
    for kind in TARGETS:
        if kind is not type(target):
            assert kind.from_line(str(target)) is None
            assert kind.from_terms(target.to_dict()) is None
    assert all(type(parse_target(form)) is type(target) for form in type(target).FORMS)


def test_what_falls_comes_down_to_the_threshold_as_the_value_reaches_the_goal(target: Target) -> None:
    assert target.logged(target.falling(0.3)) == pytest.approx(0.3)
    assert target.reaches(target.goal)
    if target.work is None:
        assert target.falling(target.goal) == target.threshold
        worse = target.logged(target.threshold + 0.5)
        assert not target.reaches(worse)
        assert target.better(worse, target.goal) == target.goal
    else:
        assert math.isnan(target.threshold)


def test_it_is_met_by_what_was_done_or_seen(target: Target) -> None:
    goal, batches = target.goal, target.work or 100
    values = [goal] * max(5, target.evaluations)
    assert target.is_met(batches, values, False, 5)
    assert target.is_met(batches, values, True, 5)
    assert target.reached(batches, values, True, 5) == pytest.approx(goal)
    if target.work is None:
        assert not target.is_met(batches, [], True, 5)
        assert not target.is_met(batches, values[:4], False, 5)
        assert target.reached(batches, [], False, 5) is None
    else:
        assert not target.is_met(batches - 1, values, True, 5)


def test_people_are_told_of_it(target: Target) -> None:
    for words in (target.show(target.goal), target.axis, target.quantity, target.observed, str(target)):
        assert clean(words) == words != ""
    assert target.show(target.goal) in target.describe_progress(3, target.goal)
    assert target.describe_progress(3, None)
    assert str(target).replace("<", "&lt;").replace(">", "&gt;") in card("a", target, [(1.0, 0.5)], None)


def test_it_goes_through_journal_scheduler_and_history_until_it_is_met(target: Target, tmp_path: Path) -> None:
    scheduler, history = (
        Scheduler(Settings(policy="edf", estimator="posterior")),
        History(Settings(policy="edf", estimator="posterior")),
    )
    job = Job("a", 900.0, target)
    submit = Submit((job,))
    assert decode_event(encode_event(submit)) == submit
    change = SetTerms("a", target=target)
    assert decode_event(encode_event(change)) == change
    history.take(submit, 0.0, scheduler.handle(submit, 0.0), scheduler.accepted)
    for number in range(1, 12):
        value = target.goal if number > 2 else target.logged(target.falling(target.goal) + 0.5)
        evaluated = target.evaluations > 1
        report = Report(
            "a", 1, number, 1, 4 * number, float(number), (Cell(number, 4 * number, value),), evaluated=evaluated
        )
        answers = scheduler.handle(report, float(number))
        history.take(report, float(number), answers, scheduler.accepted)
        scheduler.check()
        [status] = scheduler.status()
        assert status_from_dict(json.loads(json.dumps(status_to_dict(status)))) == status
    assert status.verdict is Verdict.MET
    assert status.value is not None
    assert target.reaches(status.value)
    assert history.of("a").verdict is Verdict.MET
    assert history.of("a").reached == pytest.approx(status.value)
    assert len(history.of("a").curve())
