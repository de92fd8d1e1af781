"""Successive halving: the jobs that are left after each round, and jobs that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView
from lightning_core.core.reasons import CODES, Reason
from lightning_core.core.targets import LossTarget
from lightning_core.policies import SuccessiveHalving
from lightning_core.policies.successive_halving import distances
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.views import view


def jobs_at(
    losses: Sequence[float], *, row: Sequence[int] | None = None, deadline: float = 30.0, devices: int = 1
) -> JobView:
    n = len(losses)
    return view([9] * n, [deadline] * n, loss=losses, goal=[1.0] * n, row=row, devices=devices)


def left(policy: SuccessiveHalving, jobs: JobView, now: float) -> list[int]:
    """Return the rows of jobs that are not dropped."""
    plan = policy.plan(jobs, now)
    places: list[int] = jobs.row[plan.share > 0].tolist()
    return places


@pytest.mark.parametrize(
    ("n", "after"),
    [
        (1, []),
        (2, [1]),
        (3, [2, 1]),
        (5, [3, 2, 1]),
        (8, [4, 2, 1]),
        (9, [5, 3, 2, 1]),
    ],
)
def test_rounds_are_equal_and_keep_the_better_half(n: int, after: list[int]) -> None:
    policy, jobs = SuccessiveHalving(), jobs_at([float(n - k) for k in range(n)], deadline=130.0)
    assert len(left(policy, jobs, 10.0)) == n
    for k, many in enumerate(after):
        end = 10 + 120 * (k + 1) / len(after)
        assert len(left(policy, jobs, end - 0.1)) == (n, *after)[k]
        assert left(policy, jobs, end) == list(range(n - many, n))  # the last ones have the lowest losses
    assert left(policy, jobs, 500.0) == [n - 1]  # the last one runs on


def test_rounds_that_passed_unseen_count() -> None:
    policy, jobs = SuccessiveHalving(), jobs_at([4, 3, 2, 1])
    left(policy, jobs, 0.0)
    assert left(policy, jobs, 31.0) == [3]


def test_remaining_jobs_take_turns_before_the_dropped_ones() -> None:
    policy, jobs = SuccessiveHalving(quantum=5.0), jobs_at([1.5, 9, 1.2, 3])
    heads = [policy.plan(jobs, now).order[0] for now in (0.0, 4.9, 5.0, 10.0, 15.0, 20.0, 25.0)]
    assert heads == [0, 0, 1, 2, 0, 2, 0]
    plan = policy.plan(jobs, 26.0)
    assert plan.order.tolist() == [0, 2, 3, 1]
    assert plan.finish[[1, 3]].tolist() == [inf, inf]
    assert str(Reason(CODES[plan.waiting[3]], tuple(plan.numbers[3]))) == (
        "dropped for jobs closer to their targets: it is a factor of 3 away from its own"
    )


def test_jobs_are_ranked_by_their_distance_to_the_target() -> None:
    jobs = view(
        [9, 9, 30, 9, 9], [99] * 5, loss=[0.8, 6.0, nan, nan, nan], goal=[0.2, 5.0, nan, 1.0, nan],
        exact=[False, False, True, False, True], batches=[1, 1, 100, 0, 0], throughput=[10, 10, 10, 10, nan],
    )  # fmt: skip
    assert distances(jobs).tolist() == pytest.approx([4, 1.2, (100 + 300) / 100, inf, inf])


def test_ties_are_broken_by_deadline() -> None:
    policy, jobs = SuccessiveHalving(), view([9] * 3, [30, 20, 10], loss=[2.0] * 3, goal=[1.0] * 3)
    left(policy, jobs, 0.0)
    assert left(policy, jobs, 15.0) == [1, 2]


def test_ended_jobs_leave_the_round_and_new_jobs_join_it() -> None:
    policy = SuccessiveHalving()
    assert len(left(policy, jobs_at([8, 7, 6, 5]), 0.0)) == 4
    assert left(policy, jobs_at([8, 7, 6, 9], row=[0, 1, 2, 4]), 14.0) == [0, 1, 2, 4]
    assert left(policy, jobs_at([8, 7, 6, 9], row=[0, 1, 2, 4]), 15.0) == [1, 2]
    assert left(policy, jobs_at([8, 7, 6, 9, 5], row=[0, 1, 2, 4, 5]), 16.0) == [1, 2, 5]


def test_halving_restarts_when_no_job_is_left_or_new_jobs_arrive() -> None:
    policy = SuccessiveHalving()
    left(policy, jobs_at([1, 2, 3, 4]), 0.0)
    assert left(policy, jobs_at([1, 2, 3, 4]), 15.0) == [0, 1]
    rest = jobs_at([3, 4], row=[2, 3], deadline=60.0)
    assert left(policy, rest, 20.0) == [2, 3]
    assert [left(policy, rest, now) for now in (59.9, 60.0)] == [[2, 3], [2]]
    more = jobs_at([3, 4, 1, 2], row=[2, 3, 4, 5], deadline=100.0)
    assert left(policy, more, 60.0) == [2, 3, 4, 5]
    assert left(policy, more, 80.0) == [4, 5]


def test_halving_stops_when_the_rest_fits_the_devices() -> None:
    policy, jobs = SuccessiveHalving(), jobs_at([8, 7, 6, 5, 4, 3, 2, 1], devices=2)
    left(policy, jobs, 0.0)
    assert [len(left(policy, jobs, now)) for now in (14.9, 15.0, 30.0, 99.0)] == [8, 4, 2, 2]


def test_halving_misses_deadlines_that_edf_meets() -> None:
    """Twelve jobs of 8.6 s, one due every 9 s."""
    position: FloatArray = np.arange(10.0, 5001.0, 10.0)
    jobs = [
        SimulatedJob(Job(f"job{k}", 9.0 * (k + 1), LossTarget("loss", 3 * 400.0**-b)), position, 3 * position**-b, 50.0)
        for k, b in enumerate(np.linspace(0.2, 0.9, 12).tolist())
    ]

    def met(policy: str) -> int:
        return Simulation(Settings(policy=policy), jobs, check=True).run(until=120.0).met

    assert met("fifo") == 12
    assert 1 <= met("successive_halving") < 12


def test_a_round_of_zero_seconds_is_refused() -> None:
    with pytest.raises(ValueError, match="quantum must be positive and finite, got 0"):
        SuccessiveHalving(0)
