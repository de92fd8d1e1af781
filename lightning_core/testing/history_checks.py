"""Check of the estimators that use earlier runs, a part of their conformance suite."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.core.protocols import Estimator, KeepsRows, UsesHistory
from lightning_core.testing.checks import require, saved_and_restored
from lightning_core.testing.sample_curves import Make, feed, make_bank


def check_history(make: Make) -> None:
    """Check the use of earlier runs by a bank, if it uses them (:class:`~lightning_core.core.protocols.UsesHistory`).

    They change the forecast of one row, stay with it as others leave, and come back with the saved state.
    """
    bank = make_bank(make, 4)
    if not isinstance(bank, UsesHistory):
        return
    positions = np.arange(10, 800, 10)
    curves = [
        EarlierRun(f"run {slope}", tuple(positions.tolist()), tuple((2.0 * positions**-slope).tolist()))
        for slope in (0.5, 0.4, 0.6)
    ]
    rows, goal = np.arange(4), np.full(4, 0.2)
    before = bank.first_passage(rows, goal)
    bank.history(2, curves)
    feed(bank, np.arange(10.0, 60.0, 10.0), 2.0 * np.arange(10.0, 60.0, 10.0) ** -0.5, np.array([1, 2]))
    ready, share = bank.ready(rows), bank.history_share(rows)
    require(ready.shape == share.shape == (4,), "ready() and history_share() must return shape (4,) for 4 rows")
    require(ready.dtype == np.bool_, f"ready() must return whether, got {ready.dtype}")
    right = bool(((share >= 0) & (share <= 1) | np.isnan(share)).all())
    require(right, f"history_share() must lie in [0, 1], got {share}")
    others = np.nan_to_num(share[[0, 1, 3]])
    unseen = np.array_equal(bank.first_passage(rows[[0, 3]], goal[[0, 3]]), before[[0, 3]], equal_nan=True)
    require(unseen and not others.any(), "earlier runs must leave the rows alone that are not to know of them")
    with_them, without = bank.first_passage(rows[[2, 1]], goal[[2, 1]])  # of two rows with the same cells
    used = share[2] > 0 or not np.array_equal(with_them, without, equal_nan=True)
    require(used, "earlier runs must change the forecast of their row, or its history_share()")
    twin = saved_and_restored(bank, make())
    _check_same(bank, twin, rows, "restore() must bring earlier runs back")
    if isinstance(twin, KeepsRows):
        twin.keep(np.array([False, False, True, True]))
        asked = bank.first_passage(rows[2:3], goal[2:3]), twin.first_passage(rows[:1], goal[:1])
        same = np.array_equal(*asked, equal_nan=True)
        require(same, "earlier runs must stay with their row when others leave")


def _check_same(bank: Estimator, twin: Estimator, rows: IntArray, rule: str) -> None:
    goal = np.full(len(rows), 0.2)
    same = np.array_equal(bank.first_passage(rows, goal), twin.first_passage(rows, goal), equal_nan=True)
    require(same, rule)
