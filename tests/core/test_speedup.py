"""SpeedUp: throughput by number of devices, given or measured."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.speedup import SpeedUp


def observed(sizes: tuple[int, ...], *observations: tuple[float, int, float]) -> SpeedUp:
    speed = SpeedUp(sizes)
    for devices, batches, seconds in observations:
        speed.observe(devices, batches, seconds)
    return speed


def test_throughput_is_unknown_before_the_first_observation() -> None:
    speed = SpeedUp((1, 2, 4))
    assert not speed.known
    assert speed.seconds == 0
    assert math.isnan(speed.throughput(1))
    assert math.isnan(speed.devices_for(1.0))
    assert speed.best(3) == 2  # the largest size that fits, as nothing was measured
    assert speed.best(0) == 0
    assert speed.throughput(0) == 0
    assert speed.seen(2) == 0


def test_what_earlier_runs_had_is_expected_until_it_is_measured() -> None:
    speed = SpeedUp((1, 2, 4))
    speed.expect({1: 5.0, 2: 9.0})
    assert [speed.throughput(n) for n in (1, 2)] == pytest.approx([5.0, 9.0], rel=0.1)
    assert 9.0 < speed.throughput(4) < 18.0
    speed.observe(1, 1000, 100.0)
    assert speed.throughput(1) == pytest.approx(10.0, rel=1e-3)


def test_no_throughput_needs_no_device() -> None:
    measured = observed((1, 2), (1, 100, 10.0))
    for speed in (SpeedUp((1, 2)), SpeedUp((1, 2), (10.0, 18.0)), measured):
        assert speed.devices_for(0.0) == speed.devices_for(-1.0) == 0.0


def test_devices_that_slow_a_job_down_are_taken_to_make_no_difference() -> None:
    speed = observed((1, 2, 3, 4), (1, 100, 10.0), (2, 100, 20.0))
    assert 5.0 < speed.throughput(4) < 10.0  # between those that were measured
    assert speed.throughput(3) == speed.throughput(4)


def test_given_throughputs_are_used_as_they_are() -> None:
    speed = SpeedUp((1, 2, 4), (10.0, 18.0, 15.0))
    assert speed.known
    assert speed.seconds == speed.seen(4) == math.inf
    assert [speed.throughput(n) for n in (0.5, 1, 2, 3, 4, 9)] == [5.0, 10.0, 18.0, 18.0, 15.0, 15.0]
    assert [speed.devices_for(throughput) for throughput in (0, 5.0, 10.0, 12.0, 18.5)] == [0, 0.5, 1, 2, math.inf]
    assert [speed.best(n) for n in (0, 1, 3, 8)] == [0, 1, 2, 2]
    speed.observe(1, 1, 1.0)
    assert speed.throughput(1) == 10.0
    assert SpeedUp((2, 4), (3.0, 5.0)).throughput(1) == 1.5


def test_two_measured_sizes_predict_a_third() -> None:
    """With batches of 0.06 s / n + 0.04 s, one and three devices predict two."""
    speed = observed((1, 2, 3), *[(1.0, 100, 10.0), (3.0, 100, 6.0)] * 3)
    assert speed.throughput(2) == pytest.approx(1 / 0.07, rel=0.02)
    assert speed.devices_for(1 / 0.07) == pytest.approx(2, rel=0.05)
    assert speed.best(3) == 3
    assert speed.seen(2) == 0
    assert 15 < speed.seen(3) < 18  # older observations weigh slightly less


def test_untried_smaller_sizes_are_estimated_high() -> None:
    """The job then tries them while an error can be corrected; no estimate is below the proportional one."""
    speed = observed((1, 2, 3), (3.0, 300, 10.0))
    assert 30 / 3 < speed.throughput(1) < speed.throughput(2) < speed.throughput(3) == pytest.approx(30, rel=0.01)
    parts = observed((1,), (1.0, 100, 10.0))  # shares of one device scale almost proportionally
    assert parts.throughput(0.5) == pytest.approx(5.0, rel=0.05)
    assert parts.devices_for(5.0) == pytest.approx(0.5, rel=0.05)


def test_newer_observations_weigh_more() -> None:
    speed = observed((1,), *[(1.0, 100, 10.0)] * 10, *[(1.0, 50, 10.0)] * 10)
    assert 5.0 < speed.throughput(1) < 6.6


def test_the_fit_handles_no_speedup_and_linear_speedup() -> None:
    flat = observed((1, 2), *[(1.0, 100, 10.0), (2.0, 90, 10.0)] * 5)
    assert flat.throughput(1) == pytest.approx(10, rel=0.06)
    assert flat.devices_for(20.0) == math.inf
    linear = observed((1, 2), *[(1.0, 100, 10.0), (2.0, 240, 10.0)] * 5)
    assert linear.throughput(2) == pytest.approx(24, rel=0.1)


@given(
    st.lists(st.tuples(st.sampled_from([0.05, 0.5, 1.0, 2.0, 4.0]), st.integers(1, 10**6), st.floats(1e-3, 1e3))),
    st.floats(1e-3, 1e9),
)
def test_more_devices_are_never_slower_by_the_fit(
    observations: list[tuple[float, int, float]], throughput: float
) -> None:
    speed = observed((1, 2, 4), *observations)
    if not observations:
        return
    fitted = [speed.throughput(n) for n in (0.1, 0.3, 0.7, 1.5, 3.0)]  # none of them was measured directly
    assert all(0 < one <= other * (1 + 1e-9) for one, other in pairwise(fitted))
    assert all(speed.throughput(n) > 0 for n in (1, 2, 4))
    assert speed.best(4) in (1, 2, 4)
    assert speed.devices_for(throughput) >= 0
