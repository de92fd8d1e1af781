"""Curves that misbehave are drawn by seed, and do what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.curves.bundles import recordings
from benchmarks.curves.misbehaving import misbehaving, rise, second_descent, spike, step_down
from lightning_core.simulation.recorded_curves import SHIPPED, load_curves

PART = np.linspace(0.001, 1.0, 1000)


def test_the_same_seed_gives_the_same_curves_and_another_seed_others() -> None:
    pool = recordings(load_curves(SHIPPED))[:8]
    one, same, other = misbehaving(pool, 1), misbehaving(pool, 1), misbehaving(pool, 2)
    assert all(np.array_equal(a.loss, b.loss) for a, b in zip(one, same, strict=True))
    assert not any(np.array_equal(a.loss, b.loss) for a, b in zip(one, other, strict=True))
    assert all((np.diff(a.smooth[4:]) <= 0).all() and (a.loss > 0).all() for a in one)


@pytest.mark.parametrize("seed", range(5))
def test_each_does_what_its_name_says(seed: int) -> None:
    at, draw = 0.3, np.random.default_rng(seed)
    descent, step = second_descent(PART, at, draw), step_down(PART, at, draw)
    assert descent.max() > 1.15
    assert descent[-1] < descent.max()
    assert step[100] > 1.25
    assert step[-1] == pytest.approx(1.0)
    jump = spike(PART, at, draw)
    assert (jump[:298] == 1.0).all()
    assert jump[300] > 1.4
    rises = rise(PART, at, draw)
    assert (np.diff(rises) >= 0).all()
    assert rises[-1] > 1.1
