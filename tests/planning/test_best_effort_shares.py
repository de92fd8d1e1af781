"""What jobs without a deadline have of the devices that are left, and whose turn it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from lightning_core.core.plans import JobView
from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.best_effort import Leftovers, fewest, is_owed_a_turn, share_what_is_left, slowed
from tests.views import view

TURN = 10.0


def waiting(jobs: int, **more: Any) -> JobView:
    """Return jobs without a deadline."""
    return view([5.0] * jobs, [inf] * jobs, **more)


def of_two_devices(jobs: int) -> JobView:
    return waiting(jobs, size=[2] * jobs, devices=2, speedup=[SpeedUp((2,))] * jobs)


def shared(
    left: float,
    jobs: JobView,
    served: Sequence[float] | None = None,
    trains: Sequence[bool] | None = None,
    now: float = 100_000.0,
) -> Leftovers:
    seconds = np.zeros(len(jobs)) if served is None else np.array(served)
    return share_what_is_left(left, jobs, seconds, np.array(trains or [False] * len(jobs)), now, TURN)


@pytest.mark.parametrize(
    ("left", "shares"),
    [
        (0.6, [0.2, 0.2, 0.2]),
        (0.05, [0.025, 0.025, 0.0]),  # less is not worth a switch
        (0.0, [0.0, 0.0, 0.0]),
        (1.0, [1 / 3, 1 / 3, 1 / 3]),
        (2.5, [0.5, 0.5, 1.0]),  # whole devices, side by side
        (9.0, [1.0, 1.0, 1.0]),
    ],
)
def test_jobs_of_one_device_share_what_is_left_equally(left: float, shares: list[float]) -> None:
    rest = shared(left, waiting(3), served=[9.0, 0.0, 0.0])
    assert rest.share.tolist() == pytest.approx(shares)
    assert rest.order.tolist() == [0, 1, 2]
    assert rest.size.tolist() == [1, 1, 1]


def test_jobs_of_several_devices_get_no_part_of_one() -> None:
    assert shared(0.9, of_two_devices(2)).share.tolist() == [0.0, 0.0]
    assert shared(2.0, of_two_devices(2)).share.tolist() == [1.0, 1.0]
    grow = waiting(3, devices=2, speedup=[SpeedUp((2,))] * 3)  # from the one that each has
    assert shared(2.0, grow).share.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("served", "trains", "order"),
    [
        ([50.0, 10.0], [False, False], [1, 0]),  # the one that has had less comes first
        ([50_000.0, 100.0], [True, False], [1, 0]),
        ([50_000.0, 50_005.0], [True, False], [0, 1]),  # both alike: the one that trains stays
        ([50_000.0, 49_990.1], [True, False], [0, 1]),
        ([50_000.0, 49_989.9], [True, False], [1, 0]),  # ... until another lags by a turn
        # More than ten turns ahead counts as ten turns, so that the first is only five seconds ahead of the second.
        ([3000.0, 2095.0, 905.0], [True, False, False], [2, 0, 1]),
    ],
)
def test_the_turn_is_that_of_the_job_that_lags_most(served: list[float], trains: list[bool], order: list[int]) -> None:
    rest = shared(2.0, of_two_devices(len(served)), served, trains)
    assert rest.order.tolist() == order
    assert rest.size.tolist() == [2] * len(served)


def test_lag_counts_device_seconds_since_the_submission() -> None:
    """Ten seconds on two devices are more than 15 on one; of two served alike, the older has waited for longer."""
    jobs = waiting(2, size=[2, 1], devices=2, speedup=[SpeedUp((2,)), SpeedUp((1,))])
    assert shared(2.0, jobs, [10.0, 15.0], now=100.0).order.tolist() == [1, 0]
    younger = replace(of_two_devices(2), submitted=np.array([90.0, 0.0]))
    assert shared(2.0, younger, [10.0, 10.0], now=100.0).order.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("left", "more", "size"),
    [
        (5.0, {}, 2),  # 2.5 devices each
        (8.0, {}, 4),
        (2.0, {}, 1),
        (0.5, {}, 1),  # the fewest that it can use
        (5.0, {"held_devices": [1.0, 0.0], "trained_since": [91.0, inf]}, 1),  # a size is kept for a turn
        (5.0, {"held_devices": [1.0, 0.0], "trained_since": [90.0, inf]}, 2),
        (5.0, {"held_devices": [4.0, 0.0], "trained_since": [91.0, inf]}, 2),  # ... unless it is more than its part
        (5.0, {"fixed_size": [4, 0]}, 4),
    ],
)
def test_a_job_that_can_be_resized_has_the_most_devices_of_its_part(
    left: float, more: dict[str, Any], size: int
) -> None:
    jobs = waiting(2, devices=8, speedup=[SpeedUp((1, 2, 4)), SpeedUp((2,))], **more)
    rest = shared(left, jobs, now=100.0)
    sizes = dict(zip(rest.order.tolist(), rest.size.tolist(), strict=True))
    assert sizes == {0: size, 1: 2}


def test_sizes_are_as_they_are_where_a_policy_does_not_choose_them() -> None:
    jobs = replace(waiting(2, size=[3, 1], devices=4), speedup=np.empty(0, np.object_))
    assert shared(4.0, jobs).size.tolist() == [3, 1]
    assert fewest(waiting(2, speedup=[SpeedUp((2, 4)), SpeedUp((1,))])).tolist() == [2, 1]


def test_work_takes_longer_where_a_part_of_the_time_is_kept() -> None:
    jobs = view([6.0, 3.0], [100.0, 200.0])
    slow = slowed(jobs, 0.25)
    for name in ("remaining", "work", "quantiles"):
        assert getattr(slow, name) == pytest.approx(getattr(jobs, name) / 0.75), name
    assert slow.deadline.tolist() == [100, 200]


@pytest.mark.parametrize(
    ("served", "trains", "owed"),
    [
        (15.0, False, False),  # of 100 s on 2 devices a quarter is theirs, 50 device-seconds: 20 more are a turn
        (14.9, False, True),
        (24.9, True, True),  # a turn lasts until nothing is owed
        (25.0, True, False),
    ],
)
def test_a_turn_begins_once_all_of_it_is_owed(served: float, trains: bool, owed: bool) -> None:
    jobs = replace(of_two_devices(2), submitted=np.array([20.0, 0.0]))
    assert is_owed_a_turn(jobs, np.array([0.0, served]), np.array([False, trains]), 100.0, TURN, 0.25) is owed
