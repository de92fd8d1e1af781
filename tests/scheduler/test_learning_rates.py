"""Learning rates that a training reports: what is accepted, who is told, and what a restart remembers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_RATES
from lightning_core.core.protocols import Estimator
from lightning_core.core.reported import LearningRates
from lightning_core.core.saved_state import restored
from lightning_core.core.targets import LossTarget
from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.policies.classic import Edf
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.estimators.test_schedules import Scheduled

RATES = LearningRates((1, 400, 800), (1.0, 0.5, 0.0))


class WithBank(Edf):
    """Earliest deadline first, with a bank of its own that takes learning rates, and one that does not."""

    def __init__(self) -> None:
        self.bank = Scheduled()

    @property
    def banks(self) -> Sequence[Estimator]:
        return [self.bank, ESTIMATORS["dkf"]()]


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setitem(ESTIMATORS, "scheduled", Scheduled)
    monkeypatch.setitem(POLICIES, "with_bank", WithBank)
    scheduler = Scheduler(Settings("with_bank", estimator="scheduled"))
    scheduler.handle(Submit((Job("z", 60.0, LossTarget("loss", 0.1)), Job("a", 60.0, LossTarget("loss", 0.1)))), 0.0)
    return scheduler


def report(number: int, rates: LearningRates | None = None, **more: Any) -> Report:
    return Report("a", more.pop("incarnation", 1), number, 1, 10 * number, float(number), learning_rates=rates, **more)


def taken(scheduler: Scheduler) -> list[dict[int, list[list[float]]]]:
    """Return what the estimator and the bank of the policy have taken."""
    state = scheduler._state
    banks: list[Any] = [state.curves.bank, state.banks[0]]
    return [{row: [column.tolist() for column in two] for row, two in bank.taken.items()} for bank in banks]


def test_accepted_learning_rates_reach_the_estimator_and_the_banks(scheduler: Scheduler) -> None:
    scheduler.handle(report(1, RATES), 1.0)
    assert taken(scheduler) == 2 * [{1: [[1.0, 400.0, 800.0], [1.0, 0.5, 0.0]]}]
    scheduler.handle(report(2), 2.0)
    scheduler.handle(report(2, LearningRates((1,), (0.5,))), 2.5)  # repeated
    scheduler.handle(report(3, LearningRates((1,), (0.5,)), incarnation=2), 2.5)  # of another incarnation
    assert taken(scheduler) == 2 * [{1: [[1.0, 400.0, 800.0], [1.0, 0.5, 0.0]]}]
    scheduler.handle(report(4, LearningRates((1,), (0.5,))), 3.0)
    assert taken(scheduler) == 2 * [{1: [[1.0], [0.5]]}]


def test_a_scheduler_that_is_restored_knows_the_learning_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ESTIMATORS, "scheduled", Scheduled)
    scheduler = Scheduler(Settings(estimator="scheduled"))
    scheduler.handle(Submit((Job("a", 60.0, LossTarget("loss", 0.1)),)), 0.0)
    scheduler.handle(report(1, RATES), 1.0)
    again = restored(Scheduler(scheduler.settings), scheduler.state())
    for n in range(2, 30):
        event = report(n, cells=(Cell(n - 1, 10 * n, n**-0.3),))
        assert scheduler.handle(event, float(n)) == again.handle(event, float(n))
    assert again.state() == scheduler.state()


HOSTILE: list[Any] = [
    LearningRates((), ()),
    LearningRates((1, 2), (1.0,)),
    LearningRates((1,), (1.0, 1.0)),
    LearningRates((2, 1), (1.0, 1.0)),
    LearningRates((1, 1), (1.0, 1.0)),
    LearningRates((0, 1), (1.0, 1.0)),
    LearningRates((-5, 1), (1.0, 1.0)),
    LearningRates((1, 10**12 + 1), (1.0, 1.0)),
    LearningRates((1, 2), (1.0, 1.1)),
    LearningRates((1, 2), (1.0, -0.1)),
    LearningRates((1, 2), (1.0, math.nan)),
    LearningRates((1, 2), (math.inf, 1.0)),
    LearningRates(tuple(range(1, MAX_RATES + 2)), (1.0,) * (MAX_RATES + 1)),
]


@pytest.mark.parametrize("rates", HOSTILE, ids=range(len(HOSTILE)))
def test_a_report_with_hostile_learning_rates_changes_nothing(scheduler: Scheduler, rates: LearningRates) -> None:
    before = scheduler.state()
    assert scheduler.answers_to_no_op(report(1, rates), 0.0) is not None
    scheduler.handle(report(1, rates), 0.0)
    assert scheduler.state() == before
    longest = LearningRates(tuple(range(1, MAX_RATES + 1)), (1.0,) * MAX_RATES)
    scheduler.handle(report(1, longest), 1.0)
    assert np.array_equal(taken(scheduler)[0][1], np.array(longest, np.float64))


def test_learning_rates_round_trip_and_their_types_are_checked() -> None:
    event = report(1, RATES)
    assert decode_event(encode_event(event)) == event
    assert "learning_rates" not in encode_event(report(1))
    wrong: list[Any] = [((1.5,), (1.0,)), ((True,), (1.0,)), ((1,), ("a",)), ((1,), (math.nan,)), (1, 2)]
    for parts in wrong:
        with pytest.raises(ValueError, match="learning_rates"):
            encode_event(report(1, LearningRates(*parts)))
    for text in ("[[1]]", "[1,2]", "5", '"ab"', "[[1],[1],[1]]", '[[1],["a"]]', "[[[1]],[1]]", "{}"):
        with pytest.raises((ValueError, TypeError)):
            decode_event(f'{encode_event(report(1))[:-1]},"learning_rates":{text}}}')
