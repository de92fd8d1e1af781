"""Whatever finite losses one row shows, its bank answers, and the other rows know nothing of it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_core.estimators import ESTIMATORS
from lightning_core.estimators.above_floor import AboveFloor
from lightning_core.estimators.ridge import Ridge
from tests.examples import examples

BANKS = {**ESTIMATORS, "ridge": Ridge}
POSITIVE = st.floats(min_value=5e-324, max_value=1.7e308)
ANY = st.floats(min_value=-1e300, max_value=1e300)
EXTREMES = [5e-324, 1e-322, 1e290, 1.7e308, 1.0]


def neighbour(position: int) -> float:
    return float(2.0 * position**-0.4)


@pytest.mark.promise("R15")
@pytest.mark.parametrize("name", sorted(BANKS))
def test_a_bank_takes_any_positive_losses(name: str) -> None:
    make = BANKS[name]
    alone = make()
    alone.grow(2)
    rows, goals = np.array([0]), np.array([0.1])
    for position in range(10, 210, 10):
        alone.observe(rows, np.array([float(position)]), np.array([neighbour(position)]))
    expected = alone.first_passage(rows, goals)

    @settings(deadline=None, max_examples=examples(60))
    @given(st.lists(POSITIVE, min_size=10, max_size=20), POSITIVE, st.floats(1.0, 1e12))
    @example([5e-324] * 20, 5e-324, 1.0)
    @example([1.7e308] * 20, 5e-324, 1e12)
    @example(EXTREMES * 4, 1e290, 50.0)
    def check(losses: list[float], threshold: float, step: float) -> None:
        bank = make()
        bank.grow(2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(20):
                position = 10 * (number + 1)
                bank.observe(rows, np.array([float(position)]), np.array([neighbour(position)]))
                if number < len(losses):
                    bank.observe(np.array([1]), np.array([1.0 + step * number]), np.array([losses[number]]))
            both = bank.first_passage(np.array([1, 0]), np.array([threshold, 0.1]))
            said = bank.predict(np.array([1]), np.array([1.0 + step * len(losses)]))
        assert not np.isnan(both[0]).any()
        assert (both[0][1:] >= both[0][:-1]).all()
        assert (both[0] >= 0).all()
        assert not np.isnan(said).any()
        np.testing.assert_array_equal(both[1], expected[0])

    check()


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ANY, min_size=10, max_size=30), ANY)
@example([-1e299, 1e299] * 10, -1e299)
@example([0.0] * 20, 0.0)
@example([5e-324, -5e-324] * 10, -5e-324)
def test_curves_above_a_floor_take_any_losses(losses: list[float], threshold: float) -> None:
    curves = AboveFloor(ESTIMATORS["posterior"])
    curves.grow(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curves.aim(0, threshold)
        for number, loss in enumerate(losses, 1):
            curves.observe(0, 10.0 * number, loss)
        found = curves.first_passage(np.array([0]), np.array([threshold]))
    seen = len(losses) if threshold <= 0 else sum(loss > 0 for loss in losses)
    assert bool(np.isnan(found).any()) == (seen < 3)
