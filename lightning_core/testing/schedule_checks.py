"""Check of the estimators that take learning rates into account, a part of their conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.limits import MAX_RATES
from lightning_core.core.protocols import Estimator, KeepsRows, KnowsSchedule
from lightning_core.testing.checks import require, saved_and_restored
from lightning_core.testing.sample_curves import Make, feed, is_sorted, make_bank, passage, power_laws

CELLS = 40
ROWS = np.arange(3)
Schedule = tuple[Sequence[float] | FloatArray, Sequence[float] | FloatArray]
# Schedules of a run of 800 batches; the cells show the first half.
_COSINE: Schedule = (np.arange(1.0, 800.0, 8.0), (0.5 + 0.5 * np.cos(np.pi * np.arange(1.0, 800.0, 8.0) / 800)))
_STEPS: Schedule = ([200.0, 201.0, 600.0, 601.0], [1.0, 0.1, 0.1, 0.01])
_FLAT: Schedule = ([1.0, 300.0, 301.0, 1e12], [1.0, 1.0, 1.0, 1.0])
_HOSTILE: dict[str, Schedule] = {
    "one point": ([7.0], [0.5]),
    "zero throughout": ([1.0, 800.0], [0.0, 0.0]),
    "zero in the end": ([1.0, 400.0, 401.0], [1.0, 1.0, 0.0]),
    "warm-up from zero": ([1.0, 100.0], [0.0, 1.0]),
    "to and fro": (np.arange(1.0, MAX_RATES + 1), np.tile([0.0, 1.0], MAX_RATES // 2)),
    "far ahead": ([1e11, 1e12], [1.0, 0.0]),
    "in one batch": ([399.0, 400.0], [5e-324, 1.0]),
}


def check_schedule(make: Make) -> None:
    """Check an estimator that takes learning rates into account; one that does not passes.

    Args:
        make: Creates a bank without rows.

    Raises:
        AssertionError: If a rule is broken; the message names it.
    """
    if isinstance(make(), KnowsSchedule):
        _check_constant_rate(make)
        _check_times(make)
        _check_hostile_rates(make)


def _check_constant_rate(make: Make) -> None:
    """Check that a constant rate has no effect, whenever it comes, and that it replaces earlier ones."""
    plain = _fed(make)
    rule = "a rate of 1 throughout must change no forecast"
    require(_same(plain, _fed(make, before=_FLAT)), rule)
    require(_same(plain, _fed(make, half_way=_FLAT)), rule)
    replaced = make_bank(make)
    _take(replaced, _STEPS)
    _take(replaced, _FLAT)
    feed(replaced, *power_laws(3, CELLS), ROWS)
    require(_same(plain, replaced), "learning rates must replace those that a row took earlier")


def _check_times(make: Make) -> None:
    """Check learning rates before the first cell and half-way, and that they are kept with the rows."""
    for before, half_way in ((_COSINE, None), (None, _STEPS), (_COSINE, _STEPS)):
        bank, asked = _fed(make, before, half_way), _fed(make, before, half_way, asks=True)
        rule = "questions must not change a bank, and learning rates count from when they are taken"
        require(_same(bank, asked), rule)
        _take(asked, half_way or before)
        require(_same(bank, asked), "the same learning rates, taken again, must change nothing")
        plain = _fed(make)
        rows = np.array([0, 2])
        require(_same(bank, plain, rows), "a row must not change with the learning rates of others")
        if isinstance(bank, KeepsRows):
            bank.keep(np.array([False, True, True]))
            bank.grow(3)
            require(_same(bank, asked, np.array([0, 1]), np.array([1, 2])), "keep() must keep the learning rates")
            feed(bank, *power_laws(1, CELLS, seed=9), np.array([2]))
            new = make_bank(make)
            feed(new, *power_laws(1, CELLS, seed=9), np.array([2]))
            require(_same(bank, new, np.array([2])), "keep() must leave new rows without learning rates")


def _check_hostile_rates(make: Make) -> None:
    for name, schedule in _HOSTILE.items():
        try:
            with np.errstate(all="raise", under="ignore"):
                for bank in (_fed(make, before=schedule), _fed(make, half_way=schedule)):
                    for threshold in (5e-324, 1e-3, 0.4, 1e300):
                        quantiles = passage(bank, threshold, ROWS)
                        require(not np.isnan(quantiles).any(), f"first_passage must not be NaN (rates {name})")
                        require(is_sorted(quantiles), f"quantiles must increase along each row (rates {name})")
                    for position in (1.0, 400.0, 1e13, 1e300):
                        finite = np.isfinite(bank.predict(ROWS, np.full(3, position))).all()
                        require(bool(finite), f"the loss at {position:g} must be finite (rates {name})")
        except FloatingPointError as error:
            raise AssertionError(f"NumPy must have nothing to warn of (rates {name}): {error}") from error


def _fed(make: Make, before: Schedule | None = None, half_way: Schedule | None = None, asks: bool = False) -> Estimator:
    """Return a bank of three rows, saved and restored meanwhile; the middle one has learning rates.

    Args:
        make: Creates a bank without rows.
        before: Learning rates that it takes before the first cell.
        half_way: Learning rates that it takes between two cells.
        asks: Whether it is asked for forecasts meanwhile.
    """
    bank = make_bank(make)
    _take(bank, before)
    positions, losses = power_laws(3, CELLS)
    half = CELLS // 2
    for part in (slice(0, half), slice(half, None)):
        feed(bank, positions[part], losses[part], ROWS)
        if asks:
            _forecasts(bank, ROWS)
        if part.start == 0:
            bank = saved_and_restored(bank, make())
            _take(bank, half_way)
    return saved_and_restored(bank, make())


def _take(bank: Estimator, schedule: Schedule | None) -> None:
    if schedule is not None and isinstance(bank, KnowsSchedule):
        given = tuple(np.array(column, np.float64) for column in schedule)
        position, rate = (column.copy() for column in given)
        bank.schedule(1, position, rate)
        same = np.array_equal(position, given[0]) and np.array_equal(rate, given[1])
        require(same, "schedule() must not change its arguments")


def _forecasts(bank: Estimator, rows: IntArray) -> tuple[FloatArray, ...]:
    ahead = [bank.predict(rows, np.full(len(rows), position)) for position in (450.0, 700.0, 5000.0)]
    return *ahead, *(passage(bank, threshold, rows) for threshold in (0.3, 0.1, 0.02))


def _same(one: Estimator, other: Estimator, rows: IntArray = ROWS, other_rows: IntArray | None = None) -> bool:
    """Return whether two banks say the same to the bit."""
    theirs = _forecasts(other, rows if other_rows is None else other_rows)
    return all(map(np.array_equal, _forecasts(one, rows), theirs))
