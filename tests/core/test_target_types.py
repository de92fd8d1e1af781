"""Every type of target, the shipped ones and one defined here, behaves as the scheduler and the views expect."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.codec import decode_event, encode_event, status_from_dict, status_to_dict
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import (
    TARGETS,
    BatchTarget,
    EpochTarget,
    LossTarget,
    Target,
    as_target,
    parse_target,
)
from lightning_core.core.targets.base import STEP_LOSS
from lightning_core.history.history import History
from lightning_core.report.card import card
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.testing.target_conformance import (
    CHECKS,
    check_met,
    check_registered,
    check_scale,
    check_spelling,
    check_target,
    check_words,
)
from lightning_core.view.text import clean


@dataclass(frozen=True, slots=True)
class PerplexityTarget(Target):
    """A perplexity of at most a threshold: exp of the loss that ``training_step`` returns."""

    KEY: ClassVar[str] = "perplexity"
    KEYS: ClassVar[tuple[str, ...]] = ("perplexity",)
    FORMS: ClassVar[tuple[str, ...]] = ("perplexity 20",)
    MAPPINGS: ClassVar[tuple[str, ...]] = ("{perplexity: X}",)

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
        return STEP_LOSS  # goal and values are losses; show() makes perplexities of them

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
    EpochTarget(3),
    EpochTarget(3, 20),
    EpochTarget(3, 20, "val_loss"),
    EpochTarget(3, metric="val_acc", mode="max"),
    LossTarget("loss", 0.5),
    LossTarget("nll", -2.0),
    LossTarget("val_acc", at_least=90.0, best=100.0, for_evaluations=2),
    PerplexityTarget(4.0),
    *(parse_target(form) for kind in TARGETS for form in kind.FORMS),
]


@pytest.fixture(autouse=True)
def with_a_kind_of_our_own() -> Iterator[None]:
    before = list(TARGETS)
    TARGETS.append(PerplexityTarget)
    yield
    TARGETS[:] = before


@pytest.fixture(params=EXAMPLES, ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_target_conforms(check: Callable[[Target], None], target: Target) -> None:
    check(target)


def test_bundles_and_pages_accept_every_target(target: Target) -> None:
    assert as_target(target.to_dict()) == target
    assert as_target(str(target)) == target
    assert pickle.loads(pickle.dumps(target)) == target
    for words in (target.show(target.goal), target.axis, target.quantity, target.observed, str(target)):
        assert clean(words) == words
    assert str(target).replace("<", "&lt;").replace(">", "&gt;") in card("a", target, [(1.0, 0.5)], None)


@dataclass(frozen=True, slots=True)
class WrongTarget(PerplexityTarget):
    """A correct target; each class derived from it has one mistake."""

    KEY: ClassVar[str] = "wrong"
    KEYS: ClassVar[tuple[str, ...]] = ("wrong", "perplexity")
    FORMS: ClassVar[tuple[str, ...]] = ("wrong 20",)

    @classmethod
    def from_line(cls, text: str) -> Self | None:
        match = re.fullmatch(r"wrong (\S+)", text)
        return None if match is None else cls(float(match[1]))

    @classmethod
    def from_terms(cls, terms: Mapping[str, Any]) -> Self | None:
        return cls(float(terms["wrong"])) if terms.keys() == {"wrong"} else None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(value["wrong"])

    def to_dict(self) -> dict[str, Any]:
        return {"wrong": self.perplexity}

    def __str__(self) -> str:
        return f"wrong {self.perplexity:g}"


def wrong(**members: Any) -> Target:
    """Return a target in which the given members are wrong."""
    kind = type("Mistaken", (WrongTarget,), {"__slots__": (), "__module__": __name__, **members})
    globals()["Mistaken"] = kind  # where pickle looks for it
    TARGETS.append(kind)
    made: Target = kind(4.0)
    return made


@pytest.mark.parametrize(
    ("members", "check", "rule"),
    [
        ({"KEY": "metric"}, check_registered, "KEY 'metric' of Mistaken must be its own, but is that of LossTarget"),
        ({"KEYS": ("x",)}, check_registered, r"keys of KEYS \('x',\), got \['wrong'\]"),
        ({"__str__": lambda self: f"wrong {self.perplexity + 1:g}"}, check_spelling, r"parse_target\('wrong 5'\) must"),
        ({"__str__": lambda _: "9 batches"}, check_spelling, "'9 batches' must not be read as a BatchTarget"),
        ({"threshold": 0.0}, check_scale, "threshold must be falling"),
        ({"grows": True}, check_scale, "falling values improve"),
        ({"is_met": lambda *_: True}, check_met, "no evaluation must not meet it"),
        ({"is_met": lambda *_: False}, check_met, "values at the goal must meet it"),
        ({"evaluations": 3, "is_met": lambda *a: len(a[2]) > 1}, check_met, "2 evaluations must not meet it"),
        ({"show": lambda *_: ""}, check_words, "show must be words on one line"),
        ({"describe_progress": lambda *_: "?"}, check_words, "describe_progress must name the goal"),
    ],
)
def test_the_suite_names_the_rule_that_a_target_breaks(members: dict[str, Any], check: Any, rule: str) -> None:
    check_target(wrong())
    TARGETS.pop()
    with pytest.raises(AssertionError, match=rule):
        check(wrong(**members))


def test_an_unregistered_target_is_refused_with_advice() -> None:
    TARGETS.remove(PerplexityTarget)
    with pytest.raises(AssertionError, match=r"PerplexityTarget must be in lightning_core\.core\.targets\.TARGETS"):
        check_target(PerplexityTarget(4.0))


def test_every_target_passes_through_journal_scheduler_and_history(target: Target, tmp_path: Path) -> None:
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
    epoch = None if target.observes else target.epoch_batches or 1  # the training says what is not known
    each = max(4, (target.resolved(epoch or 1).work or 0) // 10)  # batches of a report
    for number in range(1, 12):
        value = target.goal if number > 2 else target.logged(target.falling(target.goal) + 0.5)
        evaluated = target.evaluations > 1
        report = Report(
            "a", 1, number, 1, each * number, float(number), (Cell(number, each * number, value),), evaluated=evaluated,
            epoch_batches=epoch,
        )  # fmt: skip
        answers = scheduler.handle(report, float(number))
        history.take(report, float(number), answers, scheduler.accepted)
        scheduler.check()
        [status] = scheduler.status()
        assert status_from_dict(json.loads(json.dumps(status_to_dict(status)))) == status
    assert status.verdict is Verdict.MET
    assert status.value is not None
    assert status.target.reaches(status.value)
    assert history.of("a").verdict is Verdict.MET
    assert history.of("a").reached == pytest.approx(status.value)
    assert len(history.of("a").curve())
