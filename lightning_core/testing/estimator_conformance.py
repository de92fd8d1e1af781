"""Conformance suite for estimators, whatever their curves.

Run it on an estimator of your own::

    check_estimator(MyEstimator)

Each check of :data:`CHECKS` can be run by itself as well.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.protocols import Estimator, KeepsRows
from lightning_core.testing.checks import require, saved_and_restored
from lightning_core.testing.history_checks import check_history
from lightning_core.testing.sample_curves import (
    ROW,
    Make,
    feed,
    is_close,
    is_sorted,
    make_bank,
    median,
    passage,
    power_laws,
)  # fmt: skip
from lightning_core.testing.schedule_checks import check_schedule

# Cells by which a bank must have a forecast: no verdict is given before.
ENOUGH_CELLS = 10
# Rows of a bank that is large enough to be worked on in blocks.
MANY_ROWS = 5500
_HOSTILE_LOSSES = {
    "constant": np.full(200, 0.5),
    "rising": np.geomspace(1e-6, 1e6, 200),
    "falling": np.geomspace(1e6, 1e-6, 200),
    "subnormal": np.full(200, 5e-324),
    "huge": np.full(200, 1e300),
    "alternating": np.tile([1e-300, 1e300], 100),
    "dropping to nothing": np.append(np.full(199, 1.0), 1e-300),
}
_HOSTILE_POSITIONS = {
    "up to 1e12": np.geomspace(1.0, 1e12, 200),
    "beyond 1e12": 1e12 + np.arange(200.0),
    "with a jump to 1e12": np.append(np.arange(1.0, 200.0), 1e12),
}


def check_estimator(make: Make) -> None:
    """Run all checks on an estimator.

    The accuracy of forecasts depends on the estimator: :func:`check_power_laws` and :func:`check_coverage` accept
    bounds, and run with their defaults here.

    Args:
        make: Creates a bank without rows.

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.estimators import LeastSquares
        >>> check_estimator(LeastSquares)
    """
    for check in (*CHECKS, check_power_laws, check_coverage):
        check(make)


def check_silence(make: Make) -> None:
    """Check that a row without cells has no forecast, and that one with enough of them has."""
    bank = make_bank(make)
    require(isinstance(bank, Estimator), "an estimator must have the methods grow, observe, predict and first_passage")
    rows, ahead = np.array([1, 0]), np.array([500.0, 500.0])
    for cells in range(ENOUGH_CELLS + 1):
        loss, quantiles = bank.predict(rows, ahead), passage(bank, 0.1, rows)
        require(loss.shape == (2,), f"predict must return shape (2,) for 2 rows, got {loss.shape}")
        shape = (2, len(LEVELS))
        require(quantiles.shape == shape, f"first_passage must return shape {shape}, got {quantiles.shape}")
        silent = bool(np.isnan(loss[0]))
        unseen = bool(np.isnan(loss[1]) and np.isnan(quantiles[1]).all())
        require(unseen and (silent or cells > 0), "a row without cells must have no forecast (NaN)")
        same = bool(np.isnan(quantiles[0]).all() if silent else not np.isnan(quantiles[0]).any())
        require(same, f"after {cells} cells predict and first_passage must agree on whether there is a forecast")
        feed(bank, np.array([10.0 * (cells + 1)]), np.array([(cells + 1.0) ** -0.5]))
    require(not silent, f"after {ENOUGH_CELLS} cells there must be a forecast")


def check_quantiles(make: Make) -> None:
    """Check that quantiles increase along each row, and that a lower threshold is reached later."""
    rows = np.arange(40)
    bank = make_bank(make, 40)
    feed(bank, *power_laws(40, 60, noise=0.3), rows)
    asked = [passage(bank, threshold, rows) for threshold in (1.0, 0.3, 0.1, 0.01, 1e-4)]
    require(all(map(is_sorted, asked)), "quantiles must increase along each row")
    later = all((median(lower) >= median(higher)).all() for higher, lower in pairwise(asked))
    require(later, "a lower threshold must not be reached earlier")
    require(bool(np.isfinite(asked[2]).any()), "a threshold near the last loss must be reached")


def check_rows(make: Make) -> None:
    """Check that rows know nothing of each other, and survive growth and the leaving of others."""
    bank = make_bank(make)
    positions = np.arange(10.0, 300.0, 10.0)
    feed(bank, positions, positions**-0.5)
    before = passage(bank, 0.01), bank.predict(ROW, np.array([500.0]))
    feed(bank, positions, positions**-0.1, np.array([0]))
    for rows in (4, 5, 50, 7):  # fewer than there are must change nothing
        bank.grow(rows)
    feed(bank, positions, positions**-0.2, np.array([49, 2]))
    after = passage(bank, 0.01), bank.predict(ROW, np.array([500.0]))
    same = all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    require(same, "a row must not change with the cells of other rows, nor as the bank grows")
    if isinstance(bank, KeepsRows):
        bank.keep(np.isin(np.arange(50), (1, 49)))
        bank.grow(3)
        feed(bank, positions, positions**-0.5, np.array([2]))
        for row in (0, 2):  # the row that was 1, and a new one
            after = passage(bank, 0.01, np.array([row])), bank.predict(np.array([row]), np.array([500.0]))
            same = all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
            require(same, "keep() must leave the rows that stay as they were, and new ones without a past")


def check_batching(make: Make) -> None:
    """Check that many rows at once equal one at a time, and a large bank small ones."""
    together, alone = make_bank(make, 12), make_bank(make, 12)
    rows = np.random.default_rng(5).permutation(12)[:9]
    positions, losses = power_laws(9, 40)
    feed(together, positions, losses, rows)
    for k, row in enumerate(rows):
        feed(alone, positions, losses[:, k], np.array([row]))
    ahead, goal = np.geomspace(450.0, 1e6, 9), losses[-1] * 0.7
    one_by_one = np.array([alone.first_passage(rows[k : k + 1], goal[k : k + 1])[0] for k in range(9)])
    rule = "many rows at once must give the same as one row at a time"
    require(is_close(together.first_passage(rows, goal), one_by_one), rule)
    require(is_close(together.predict(rows, ahead), alone.predict(rows, ahead)), rule)
    require(bool(np.isfinite(one_by_one).any()), "a threshold near the last loss must be reached")
    rows = np.random.default_rng(6).permutation(MANY_ROWS)
    positions, losses = power_laws(MANY_ROWS, 6)
    large, small = make_bank(make, MANY_ROWS), make_bank(make, MANY_ROWS)
    feed(large, positions, losses, rows)
    for some in np.split(np.arange(MANY_ROWS), [1, 700, 1900]):
        feed(small, positions, losses[:, np.argsort(rows)][:, some], some)
    every, goal = np.arange(MANY_ROWS), losses[-1].take(np.argsort(rows)) * 0.8
    require(is_close(large.first_passage(every, goal), small.first_passage(every, goal)), rule)


def check_replay(make: Make) -> None:
    """Check that a bank is the same to the last bit as one that is saved and restored, and leaves arguments alone."""
    bank, twin = make_bank(make), make_bank(make)
    rows, threshold, ahead = np.array([1, 0]), np.array([0.2, 0.1]), np.array([900.0, 900.0])
    for position, losses in zip(*power_laws(2, 40), strict=True):
        given = rows.copy(), np.full(2, position), losses.copy()
        bank.observe(*given)
        kept = (rows, np.full(2, position), losses)
        require(all(map(np.array_equal, given, kept)), "observe() must not change its arguments")
        twin.observe(*kept)
        twin = saved_and_restored(twin, make())
        bank.predict(rows, ahead)  # questions must not change the bank, so only one of the two is asked
        bank.first_passage(rows, threshold)
    require(threshold.tolist() == [0.2, 0.1], "first_passage() must not change its arguments")
    same = np.array_equal(bank.first_passage(rows, threshold), twin.first_passage(rows, threshold), equal_nan=True)
    same &= np.array_equal(bank.predict(rows, ahead), twin.predict(rows, ahead), equal_nan=True)
    require(same, "the state of an estimator must come from its cells alone, and restore() must bring it back")


def check_hostile_numbers(make: Make) -> None:
    """Check that no curve, however odd, leaves a NaN or a warning of NumPy."""
    for curve, losses in _HOSTILE_LOSSES.items():
        for grid, positions in _HOSTILE_POSITIONS.items():
            where = f"losses {curve}, positions {grid}"
            try:
                with np.errstate(all="raise", under="ignore"):
                    _check_curve(make_bank(make), positions, losses, where)
            except FloatingPointError as error:
                raise AssertionError(f"NumPy must have nothing to warn of ({where}): {error}") from error


def _check_curve(bank: Estimator, positions: FloatArray, losses: FloatArray, where: str) -> None:
    feed(bank, positions, losses)
    for position in (1.0, positions[-1], 1e13, 1e300):
        finite = np.isfinite(bank.predict(ROW, np.array([position]))).all()
        require(bool(finite), f"the loss at {position:g} must be finite ({where})")
    for threshold in (5e-324, 1e-9, 0.4, 1e300):
        quantiles = passage(bank, threshold, np.array([1, 2]))
        require(not np.isnan(quantiles[0]).any(), f"first_passage must not be NaN after 200 cells ({where})")
        require(is_sorted(quantiles[:1]), f"quantiles must increase along each row ({where})")
        require(bool(np.isnan(quantiles[1]).all()), f"a row without cells must have no forecast (NaN) ({where})")


def check_constant_loss(make: Make) -> None:
    """Check that a constant loss is not expected to fall with an even chance within 50 times its batches."""
    bank = make_bank(make)
    feed(bank, np.arange(1.0, 100.0), np.full(99, 0.5))
    require(bool(median(passage(bank, 0.4))[0] > 50 * 99.0), "a constant loss must not be expected to fall soon")


def check_long_run(make: Make, cells: int = 3000) -> None:
    """Check that a long run keeps its head: far from the start, on a grid, over twelve orders of magnitude, constant.

    Args:
        make: Creates a bank without rows.
        cells: Length of the run.
    """
    bank = make_bank(make, 4)
    rows, draw, n = np.arange(4), np.random.default_rng(0), np.arange(1.0, cells + 1)
    positions = np.stack([1e9 + n, 10 * n, np.geomspace(1, 1e12, cells), n], axis=1)
    losses = np.stack([n**-0.3, 3 * n**-0.3, np.geomspace(1e6, 1e-6, cells), np.full(cells, 0.5)], axis=1)
    losses[:, :2] *= draw.lognormal(0, 0.05, (cells, 2))
    for position, loss in zip(positions, losses, strict=True):
        bank.observe(rows, position, loss)
    newest = positions[-1]
    require(bool(np.isfinite(bank.predict(rows, 100 * newest)).all()), f"after {cells} cells losses must be finite")
    # The next value equals the last one, whatever was learned about the slope.
    near = np.allclose(bank.predict(rows, newest), losses[-1], rtol=0.5, atol=0.0)
    require(near, f"after {cells} cells the forecast of the newest loss must be near it")
    quantiles = bank.first_passage(rows, losses[-1] / 2)
    require(is_sorted(quantiles), "quantiles must increase along each row")
    later = bool((quantiles[:, -1] >= newest).all())
    require(later, "a loss not yet seen must be reached later than the newest cell, by the highest quantile")


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_silence, check_quantiles, check_rows, check_batching, check_replay, check_hostile_numbers,
    check_constant_loss, check_long_run, check_history, check_schedule,
)  # fmt: skip
"""Checks that must pass for every estimator, however it forecasts."""


def check_power_laws(make: Make, within: float = 0.15) -> None:
    """Check that power laws without noise are forecast.

    Args:
        make: Creates a bank without rows.
        within: Relative error that the forecast loss may have at twice the length of the run.
    """
    positions = np.arange(10.0, 1000.0, 10.0)
    for scale, slope in ((3.0, 0.4), (2.0, 0.5), (5e-4, 0.3), (7e5, 0.6)):
        bank, law = make_bank(make), f"{scale:g} s^-{slope:g}"
        feed(bank, positions, scale * positions**-slope)
        truth = scale * 2000.0**-slope
        off = abs(bank.predict(ROW, np.array([2000.0]))[0] / truth - 1.0)
        require(bool(off <= within), f"the forecast of {law} must be within {within:g} of it, got {off:.2g}")
        # An error of the loss is 1 / slope times as large in the logarithm of the position.
        off = abs(np.log(median(passage(bank, truth))[0] / 2000.0))
        bound = within / slope + 1e-9
        require(bool(off <= bound), f"the median of {law} must be within {bound:.2g} in ln s, got {off:.2g}")


def check_coverage(make: Make, low: float = 0.75, high: float = 1.0) -> None:
    """Check that the interval from the 10 % to the 90 % quantile contains the truth as often as it should.

    Args:
        make: Creates a bank without rows.
        low: Smallest part of 200 noisy power laws that it must contain; 0.8 would be exact.
        high: Largest part.
    """
    rows, draw = np.arange(200), np.random.default_rng(0)
    bank = make_bank(make, 200)
    positions = np.arange(10.0, 800.0, 10.0)
    feed(bank, positions, 2.0 * positions[:, None] ** -0.5 * draw.lognormal(0, 0.05, (len(positions), 200)), rows)
    quantiles = passage(bank, 0.05, rows)
    require(is_sorted(quantiles), "quantiles must increase along each row")
    first, last = (np.sqrt(quantiles[:, k] * quantiles[:, k + 1]) for k in (1, 17))
    inside = float(((first <= 1600.0) & (last >= 1600.0)).mean())
    require(low <= inside <= high, f"the 80 % interval must contain {low:g} to {high:g} of the truths, got {inside:g}")
    # An interval from now to never would contain it too: the middle must be right within a factor of 2.5, typically.
    left = np.maximum(median(quantiles) - positions[-1], 1.0)
    off = float(np.median(np.abs(np.log(left / (1600.0 - positions[-1])))))
    require(off < np.log(2.5), f"the median must be right within a factor of 2.5, typically, got {np.exp(off):.2g}")
