"""Estimators that take learning rates into account: a small one, the suite on it, and curves above a floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray, kept_by_row
from lightning_core.core.protocols import KnowsSchedule
from lightning_core.core.saved_state import Stateful
from lightning_core.estimators import LeastSquares
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.testing.checks import saved_and_restored
from lightning_core.testing.estimator_conformance import CHECKS
from lightning_core.testing.schedule_checks import check_schedule


class Scheduled(Stateful):
    """Least squares on losses that fall by a fixed factor as the learning rate does."""

    STATE = ("line", "taken")

    def __init__(self, mistake: str = "") -> None:
        self.line = LeastSquares()
        self.mistake = mistake
        self.taken: dict[int, tuple[FloatArray, FloatArray]] = {}

    def grow(self, rows: int) -> None:
        self.line.grow(rows)

    def keep(self, stays: BoolArray) -> None:
        self.line.keep(stays)
        self.taken = self.taken if self.mistake == "keeps" else kept_by_row(self.taken, stays)

    def schedule(self, row: int, position: FloatArray, rate: FloatArray) -> None:
        if self.mistake == "first" and row in self.taken:
            return
        if self.mistake == "changes":
            rate *= 0.5
        if self.mistake == "all":
            self.taken = dict.fromkeys(range(3), (position, rate))
        self.taken[row] = position, rate

    def factor(self, rows: IntArray, position: FloatArray) -> FloatArray:
        rate = np.ones(len(rows))
        for k, row in enumerate(rows.tolist()):
            if row in self.taken:
                rate[k] = np.interp(position[k], *self.taken[row]) * (0.9 if self.mistake == "biased" else 1.0)
        return np.exp(-0.5 * (1.0 - rate))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        self.line.observe(rows, position, np.clip(loss, 1e-300, 1e300) / self.factor(rows, position))

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        return self.line.predict(rows, position) * self.factor(rows, position)

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        end = self.factor(rows, np.full(len(rows), 1e300))
        return self.line.first_passage(rows, np.clip(threshold, 5e-324, 1e299) / end)

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        if self.mistake == "forgets":
            self.taken = {}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_estimator_with_learning_rates_conforms(check: Any) -> None:
    assert isinstance(Scheduled(), KnowsSchedule)
    assert not isinstance(LeastSquares(), KnowsSchedule)
    check(Scheduled)


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("biased", "a rate of 1 throughout must change no forecast"),
        ("first", "learning rates must replace those that a row took earlier"),
        ("changes", r"schedule\(\) must not change its arguments"),
        ("all", "a row must not change with the learning rates of others"),
        ("keeps", r"keep\(\) must keep the learning rates"),
        ("forgets", r"restore\(\) must bring all that is remembered back"),
    ],
)
def test_the_suite_names_the_rule_that_learning_rates_break(mistake: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_schedule(lambda: Scheduled(mistake))


COOLING = np.array([1.0, 4000.0, 8000.0]), np.array([1.0, 1.0, 0.0])


def curve(batches: float, down: float) -> float:
    """Return a loss under :data:`COOLING`, moved down."""
    return float(2.0 * batches**-0.6 * np.exp(-0.5 * (1.0 - np.interp(batches, *COOLING)))) - down


@pytest.mark.parametrize("when", ["before the first cell", "half-way"])
def test_a_curve_above_a_floor_keeps_its_learning_rates(when: str) -> None:
    """The floor rises as the run goes on, so the curve is presented anew, in another row of the bank."""
    curves = AboveFloor(Scheduled)
    moved: set[int | None] = set()
    curves.grow(2)
    curves.aim(1, -2.99)
    for batches in range(10, 8000, 10):
        if batches == (10 if when == "before the first cell" else 4000):
            curves.schedule(1, *COOLING)
        curves.observe(1, batches, curve(batches, 3.0))
        moved.add(curves._raised[1].row)
        curves = saved_and_restored(curves, AboveFloor(Scheduled)) if batches % 1000 == 0 else curves
    assert len(moved) > 2
    bank, newest = curves._other, curves._raised[1].row
    assert isinstance(bank, Scheduled)
    assert newest is not None
    assert [column.tolist() for column in bank.taken[newest]] == [column.tolist() for column in COOLING]
    curves.keep(np.array([False, True]))
    assert (list(bank.taken), list(curves._schedules)) == ([0], [0])
    curves.schedule(0, np.array([1.0]), np.array([1.0]))
    assert bank.taken[0][1].tolist() == [1.0]


def test_a_target_that_moves_below_zero_keeps_the_learning_rates() -> None:
    curves = AboveFloor(Scheduled)
    curves.grow(1)
    curves.schedule(0, *COOLING)
    curves.observe(0, 10, 0.5)
    curves.aim(0, -3.0)
    curves.observe(0, 20, 0.4)
    assert isinstance(curves._other, Scheduled)
    assert list(curves._other.taken) == [0]


def test_learning_rates_for_an_estimator_that_takes_none_are_left_out() -> None:
    curves = AboveFloor(LeastSquares)
    curves.grow(1)
    curves.schedule(0, *COOLING)
    assert curves.state()["_schedules"] == {"dict": []}
