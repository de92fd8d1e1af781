"""The compact curve of a job: bounded for any length, the same after a restart."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.earlier_runs import MAX_POINTS, BinnedCurve, EarlierRun, check_run
from lightning_core.core.saved_state import restored


def curve_of(length: int, step: int = 1) -> BinnedCurve:
    curve = BinnedCurve()
    for batches in range(step, length * step + 1, step):
        curve.add(batches, 3.0 * batches**-0.5)
    return curve


@pytest.mark.parametrize(("length", "step"), [(1, 1), (50, 10), (5000, 1), (20_000, 50), (300, 10**9)])
def test_a_curve_of_any_length_has_at_most_128_points_and_is_near_the_truth(length: int, step: int) -> None:
    batches, losses = curve_of(length, step).points()
    check_run(EarlierRun("x", batches, losses))
    assert min(length, 35) <= len(batches) <= MAX_POINTS
    assert np.allclose(losses, 3.0 * np.array(batches, float) ** -0.5, rtol=0.05)  # of positions that are whole numbers
    assert batches[0] == step
    assert batches[-1] > 0.8 * length * step


def test_points_are_means() -> None:
    curve = BinnedCurve()
    for batches, loss in ((1000, 1.0), (1001, 2.0), (1002, 6.0), (5000, 4.0)):
        curve.add(batches, loss)
    assert curve.points() == ((1001, 5000), (3.0, 4.0))
    assert len(curve) == 2


def test_wider_bins_keep_every_cell() -> None:
    curve = BinnedCurve()
    positions = np.unique(np.geomspace(1, 1e12, 4000).astype(np.int64))
    for batches in positions.tolist():
        curve.add(batches, 2.0)
    assert sum(curve._counts) == len(positions)
    assert set(curve.points()[1]) == {2.0}


def test_a_saved_curve_goes_on_as_if_it_had_never_stopped() -> None:
    one, other = curve_of(700), curve_of(300)
    other = restored(BinnedCurve(), other.state())
    for batches in range(301, 701):
        other.add(batches, 3.0 * batches**-0.5)
    assert other.state() == one.state()
    assert restored(BinnedCurve(), BinnedCurve().state()).points() == ((), ())


@pytest.mark.parametrize(
    ("losses", "falls"),
    [((), True), ((1.0,), True), ((2.0, 1.0), True), ((0.1,) * 40, False), ((1.0, 2.0), False), ((-1.0, -2.0), True)],
)
def test_a_curve_falls_if_its_newer_half_lies_lower(losses: tuple[float, ...], falls: bool) -> None:
    curve = BinnedCurve()
    for number, loss in enumerate(losses, 1):
        curve.add(10 * number, loss)
    assert curve.falls() is falls
