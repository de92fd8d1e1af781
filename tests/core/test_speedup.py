"""How fast a job is on how many devices: given, or learned from what was seen."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.speedup import SpeedUp


def seen(sizes: tuple[int, ...], *observations: tuple[float, int, float]) -> SpeedUp:
    speed = SpeedUp(sizes)
    for devices, batches, seconds in observations:
        speed.observe(devices, batches, seconds)
    return speed


def test_nothing_is_known_before_anything_is_seen() -> None:
    speed = SpeedUp((1, 2, 4))
    assert not speed.known
    assert speed.seconds == 0
    assert math.isnan(speed.rate(1))
    assert math.isnan(speed.devices_for(1.0))
    assert speed.best(3) == 2  # all that there are: nothing says that fewer are as fast
    assert speed.best(0) == 0
    assert speed.rate(0) == 0
    assert speed.seen(2) == 0


def test_rates_that_are_given_are_believed() -> None:
    speed = SpeedUp((1, 2, 4), (10.0, 18.0, 15.0))
    assert speed.known
    assert speed.seconds == speed.seen(4) == math.inf
    assert [speed.rate(n) for n in (0.5, 1, 2, 3, 4, 9)] == [5.0, 10.0, 18.0, 18.0, 15.0, 15.0]
    assert [speed.devices_for(rate) for rate in (0, 5.0, 10.0, 12.0, 18.5)] == [0, 0.5, 1, 2, math.inf]
    assert [speed.best(n) for n in (0, 1, 3, 8)] == [0, 1, 2, 2]
    speed.observe(1, 1, 1.0)
    assert speed.rate(1) == 10.0
    assert SpeedUp((2, 4), (3.0, 5.0)).rate(1) == 1.5


def test_what_was_seen_on_two_sizes_says_what_a_third_is() -> None:
    """A batch takes 0.06 s / n + 0.04 s."""
    speed = seen((1, 2, 3), *[(1.0, 100, 10.0), (3.0, 100, 6.0)] * 3)
    assert speed.rate(2) == pytest.approx(1 / 0.07, rel=0.02)
    assert speed.devices_for(1 / 0.07) == pytest.approx(2, rel=0.05)
    assert speed.best(3) == 3
    assert speed.seen(2) == 0
    assert 15 < speed.seen(3) < 18  # the oldest count a little less


def test_before_fewer_devices_are_tried_they_are_thought_rather_too_fast() -> None:
    """So that an error is found while it can be mended; nothing is thought slower than its part of the whole."""
    speed = seen((1, 2, 3), (3.0, 300, 10.0))
    assert 30 / 3 < speed.rate(1) < speed.rate(2) < speed.rate(3) == pytest.approx(30, rel=0.01)
    parts = seen((1,), (1.0, 100, 10.0))  # of one device nearly in proportion
    assert parts.rate(0.5) == pytest.approx(5.0, rel=0.05)
    assert parts.devices_for(5.0) == pytest.approx(0.5, rel=0.05)


def test_the_newest_counts_most() -> None:
    speed = seen((1,), *[(1.0, 100, 10.0)] * 10, *[(1.0, 50, 10.0)] * 10)
    assert 5.0 < speed.rate(1) < 6.6


def test_what_does_not_get_faster_or_only_shared_work_is_fitted_too() -> None:
    flat = seen((1, 2), *[(1.0, 100, 10.0), (2.0, 90, 10.0)] * 5)
    assert flat.rate(1) == pytest.approx(10, rel=0.06)
    assert flat.devices_for(20.0) == math.inf
    linear = seen((1, 2), *[(1.0, 100, 10.0), (2.0, 240, 10.0)] * 5)
    assert linear.rate(2) == pytest.approx(24, rel=0.1)


@given(
    st.lists(st.tuples(st.sampled_from([0.05, 0.5, 1.0, 2.0, 4.0]), st.integers(1, 10**6), st.floats(1e-3, 1e3))),
    st.floats(1e-3, 1e9),
)
def test_whatever_was_seen_more_devices_are_never_slower_by_the_fit(
    observations: list[tuple[float, int, float]], rate: float
) -> None:
    speed = seen((1, 2, 4), *observations)
    if not observations:
        return
    fitted = [speed.rate(n) for n in (0.1, 0.3, 0.7, 1.5, 3.0)]  # none of them has been seen as such
    assert all(0 < one <= other * (1 + 1e-9) for one, other in pairwise(fitted))
    assert all(speed.rate(n) > 0 for n in (1, 2, 4))
    assert speed.best(4) in (1, 2, 4)
    assert speed.devices_for(rate) >= 0
