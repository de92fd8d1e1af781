"""LaiRA's slices: their length, beginning and end, and whole runs in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.core.jobs import Job
from lightning_core.core.plans import JobView
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.estimators.ridge import Ridge
from lightning_core.planning.time_slices import SliceController, SliceHolders
from lightning_core.policies import Laira
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.estimators.test_ridge import ROW, feed
from tests.views import view

# ------------------------------------------------------------------------------------------------------------- how long


@pytest.mark.parametrize(
    ("kp", "kd", "errors", "units"),
    [
        (20, 5, [0.1, 0.1, 0.2], 2),  # 5 - 20 * 0.1 - 5 * 0.1 = 2.5
        (-20, -5, [0.1, 0.1, 0.2], 7),  # the printed sign: a rising error lengthens
        (20, 5, [0.2, 0.2, 0.1], 7),
        (20, 0, [0.3, 0.2, 0.1], 7),
        (0, 5, [0.3, 0.2, 0.1], 5),  # no change of the change
        (20, 5, [9, 9, 9], 5),  # a steady error, however large
        (20, 5, [0, 0, 9], 1),
        (20, 5, [9, 9, 0], 50),
        (20, 5, [9, 0], 5),  # fewer than three slices
        (1, 0, [0.1, 0.1, 0.5, 0.1, 0.5, 0.1], 5),  # back to where it was: the part beyond the limit is not lost
    ],
)
def test_slice_lengths_follow_the_published_law(kp: float, kd: float, errors: list[float], units: int) -> None:
    law = SliceController(5, 50, kp, kd)
    for error in errors:
        law.update(error)
    assert law.units == units


def lengths(policy: Laira, errors: Sequence[float]) -> list[float]:
    """Seconds of each slice of a job whose ln l after each comes out so far above what the line said before it."""
    positions = [20.0, 40.0, 60.0, 80.0, 100.0]
    for bank in policy.banks:
        feed(bank, positions, [s**-0.5 for s in positions])
    line = policy.banks[0]
    assert isinstance(line, Ridge)
    made, now, s, loss = [], 0.0, 100.0, 0.1
    for error in [*errors, 0.0]:
        jobs = view([9], [1e4], cells=[5], batches=[int(s)], loss=[loss], goal=[0.01], position=[s])
        made.append(float(policy.plan(jobs, now).numbers[0, 1]))
        policy.plan(replace(jobs, batches=jobs.batches + 1), now)  # it is seen to train
        now, s = now + made[-1], s + 50.0
        loss = float(line.predict(ROW, np.array([s]))[0]) * exp(error)
    return made


def test_slice_lengths_follow_the_forecast_error_at_their_end() -> None:
    errors = [0.1, 0.1, -0.1, 0.2, 0.0, 0.0]
    assert lengths(Laira(look_ahead=False), errors) == [5, 5, 5, 5, 2, 8, 7]
    assert lengths(Laira(look_ahead=False, unit=2.0), errors) == [10, 10, 10, 10, 5 - 1, 16, 14]
    assert lengths(Laira(look_ahead=False, pd=False), errors) == [5] * 7


@pytest.mark.parametrize(
    ("errors", "last"),
    [
        # Means 0.1, 0.1 and 0.2 of three jobs: 5 - 20 * 0.1 - 5 * 0.1 = 2.5 units. Neither the sum nor the largest
        # error, nor the middle one, gives that.
        ([(0.1, 0.1, 0.1), (0.0, 0.0, 0.3), (0.6, 0.0, 0.0)], 2),
        ([(0.1, 0.1, 0.1), (0.0, 0.0, -0.3), (-0.3, 0.3, 0.0)], 2),  # of absolute errors: they do not cancel
    ],
)
def test_the_error_of_a_slice_is_the_mean_over_its_jobs(errors: Sequence[Sequence[float]], last: int) -> None:
    """Eq. 10: the sum of the absolute errors over the jobs of the slice, divided by how many they are."""
    policy = Laira(look_ahead=False)
    line, positions, rows = policy.banks[0], [20.0, 40.0, 60.0, 80.0, 100.0], np.arange(3)
    assert isinstance(line, Ridge)
    for row in rows.tolist():
        feed(line, positions, [s**-0.5 for s in positions], row)
    now, s, loss, units = 0.0, 100.0, np.full(3, 0.1), 0
    for error in [*errors, (0.0, 0.0, 0.0)]:
        jobs = view([9] * 3, [1e4] * 3, cells=[5] * 3, batches=[int(s)] * 3, goal=[0.01] * 3, position=[s] * 3,
                    loss=loss.tolist(), devices=3)  # fmt: skip
        units = int(policy.plan(jobs, now).numbers[0, 1])
        policy.plan(replace(jobs, batches=jobs.batches + 1), now)
        now, s = now + units, s + 50.0
        loss = line.predict(rows, np.full(3, s)) * np.exp(error)
    assert units == last


# ----------------------------------------------------------------------------------------------------------- since when


def in_slices(n: int, **changed: Any) -> tuple[Laira, JobView]:
    """Jobs with known work; the first has the most time for it, and so on."""
    policy = Laira(stall_timeout=20.0, **changed)
    return policy, view([10] * n, [100.0 - k for k in range(n)], exact=[True] * n, batches=[100] * n)


def heads(policy: Laira, jobs: JobView, told: Sequence[tuple[float, Sequence[int]]]) -> list[int]:
    """Return the first job at each time, given the batches done by then."""
    made = []
    for now, batches in told:
        work = np.where(np.array(batches) > 100, 1e3, jobs.work)
        made.append(int(policy.plan(replace(jobs, batches=np.array(batches), work=work), now).order[0]))
    return made


def test_a_slice_begins_when_its_job_first_trains() -> None:
    """For 7 s its process starts, or the stop report of the previous job is in transit: its slice has not begun."""
    told = [(0.0, (100, 100)), (7.0, (100, 100)), (8.0, (110, 100)), (12.9, (150, 100)), (13.0, (160, 100))]
    assert heads(*in_slices(2), told) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("said_at", "ends"), [(6.0, 11.0), (8.0, 13.0), (99.0, 31.0)])
def test_a_slice_begins_when_the_previous_job_has_stopped(said_at: float, ends: float) -> None:
    """The second job trains from 6 s on, in turns with the first until that has received its grant. A job that never
    reports its stop is waited for at most as long as for any report, here 20 s."""
    policy, jobs = in_slices(2)
    assert heads(policy, jobs, [(0.0, (100, 100)), (1.0, (110, 100)), (6.0, (150, 100))]) == [0, 0, 1]
    for now in np.arange(6.0, 40.0, 0.5).tolist():
        told = replace(jobs, batches=np.array([150, 101]), work=np.array([10, 1e3]))
        plan = policy.plan(replace(told, acknowledged=np.array([now >= said_at, True])), now)
        if plan.order[0] == 0:
            break
    assert now == ends


def test_a_job_that_continues_gets_its_next_slice_whole() -> None:
    policy, jobs = in_slices(1)
    for now, batches in ((0.0, 100), (1.0, 110)):
        policy.plan(replace(jobs, batches=np.array([batches])), now)
    assert policy._turns.goes_on(5.9)
    assert not policy._turns.goes_on(6.0)
    policy.plan(replace(jobs, batches=np.array([160])), 6.0)
    assert policy._turns.goes_on(10.9)
    assert not policy._turns.goes_on(11.0)


def test_a_slice_ends_with_its_job() -> None:
    policy, jobs = in_slices(3)
    assert policy.plan(jobs, 0.0).order[0] == 0
    assert policy.plan(jobs, 1.0).order[0] == 0
    gone = view([10] * 2, [99, 98], exact=[True] * 2, batches=[100] * 2, row=[1, 2])
    plan = policy.plan(gone, 1.5)
    assert plan.order.tolist() == [0, 1]
    assert plan.share.tolist() == [1, 0]


def test_a_job_without_progress_is_skipped_with_growing_pauses() -> None:
    policy, jobs = in_slices(2)
    still = (100, 100)
    assert heads(policy, jobs, [(0.0, still), (19.9, still), (20.0, still)]) == [0, 0, 1]
    # The other one moves, and has slice after slice until the 20 s are over.
    assert [int(policy.plan(replace(jobs, batches=np.array([100, int(now * 10)])), now).order[0])
            for now in (21.0, 26.0, 31.0, 36.0, 41.0)] == [1, 1, 1, 1, 0]  # fmt: skip
    policy.plan(replace(jobs, batches=np.array([100, 500])), 61.0)
    later = [(now, policy._turns.sits_out(jobs, now).tolist()) for now in (61.0, 100.9, 101.0)]
    assert later == [(61.0, [True, False]), (100.9, [True, False]), (101.0, [False, False])]


def test_an_explored_job_without_progress_does_not_block_others() -> None:
    turns, jobs = SliceHolders(stall_timeout=20.0), view([9, 9], [99, 99], cells=[0, 0], batches=[5, 5])
    turns.start(jobs, np.array([0, 1]), 0.0, None)
    moved = replace(jobs, batches=np.array([6, 5]))
    turns.observe(moved, 15.0)
    turns.observe(moved, 34.9)
    assert turns.holds(moved).tolist() == [True, False]
    turns.observe(moved, 35.0)
    assert turns.holds(moved).tolist() == [False, False]
    assert turns.sits_out(moved, 54.9).tolist() == [True, False]


def test_a_single_job_is_never_skipped() -> None:
    policy, jobs = Laira(stall_timeout=5.0), view([nan], [1e4], cells=[0])
    for now in range(0, 60, 3):
        assert policy.plan(jobs, float(now)).share.tolist() == [1]


# ------------------------------------------------------------------------------------------------------ several devices


def test_the_best_jobs_that_fit_share_the_slice() -> None:
    policy, jobs = in_slices(4)
    pool = replace(jobs, devices=2)
    assert policy.plan(pool, 0.0).share.tolist() == [1, 1, 0, 0]
    one_moves = replace(pool, batches=np.array([110, 100, 100, 100]))
    policy.plan(one_moves, 3.0)
    assert policy._turns.goes_on(9.0)  # the clock waits for the other
    policy.plan(replace(pool, batches=np.array([120, 110, 100, 100])), 4.0)
    assert not policy._turns.goes_on(9.0)


def test_jobs_of_several_devices_get_whole_devices() -> None:
    policy, jobs = in_slices(3)
    for size, share in (([2, 1, 1], [1, 0, 0]), ([1, 2, 1], [1, 0, 0]), ([1, 1, 2], [1, 1, 0])):
        sized = replace(jobs, size=np.array(size), devices=2)
        assert Laira().plan(sized, 0.0).share.tolist() == share
    assert policy.plan(replace(jobs, weight=np.array([1.0, 9.0, 1.0])), 0.0).order[0] == 0  # weights are not part of it


# ----------------------------------------------------------------------------------------------------------- whole runs


def pool(n: int, seed: int) -> list[SimulatedJob]:
    """Noisy power laws: alone, each reaches its target after 5 to 30 s; every third never does; one is in batches."""
    draw = np.random.default_rng(seed)
    position = np.arange(10, 8001, 10)
    jobs = []
    for k in range(n):
        slope, work = float(draw.uniform(0.3, 0.9)), float(draw.uniform(5, 30))
        goal = 3 * (50 * work) ** -slope * (0.2 if k % 3 == 2 else 1.0)
        target = BatchTarget(int(50 * work)) if k == 1 else LossTarget("loss", goal)
        loss: FloatArray = 3 * position**-slope * draw.lognormal(0, 0.05, len(position))
        jobs.append(SimulatedJob(Job(f"job{k}", float(draw.uniform(40, 120)), target), position, loss, 50.0, 2.0 * k))
    return jobs


DELAYS = Delays(report=0.1, switch=0.5, release=1.0, start=3.0)


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("arguments", [{}, {"look_ahead": False}, {"ucb": False, "pd": False}], ids=str)
@pytest.mark.nightly
def test_a_pool_under_laira_breaks_no_invariant_and_replays(
    tmp_path: Path, devices: int, arguments: dict[str, Any]
) -> None:
    settings = Settings(policy="laira", policy_args=arguments, devices=devices, resident=2 * devices)
    path = tmp_path / "journal.db"
    outcome = Simulation(settings, pool(7, seed=devices), DELAYS, path, check=True).run(until=150.0)
    assert outcome.met >= 2
    with Journal.open(path, read_only=True) as journal:
        assert replay(journal).digest == journal.digest


def test_laira_drops_infeasible_jobs_and_short_term_allocation_does_not() -> None:
    """The infeasible job falls fastest: 3 s^-0.9 is 0.0022 after all 60 s. The other one needs 31 s."""
    position = np.arange(10.0, 20001.0, 10.0)
    jobs = [
        SimulatedJob(Job("hopeless", 60.0, LossTarget("loss", 0.002)), position, 3 * position**-0.9, 50.0),
        SimulatedJob(Job("slow", 60.0, LossTarget("loss", 0.69)), position, 3 * position**-0.2, 50.0),
    ]

    def verdicts(look_ahead: bool) -> list[Verdict | None]:
        settings = Settings(policy="laira", policy_args={"look_ahead": look_ahead, "ucb": False})
        return [job.verdict for job in Simulation(settings, jobs, check=True).run(until=61.0).jobs]

    assert verdicts(look_ahead=True) == [Verdict.MISSED, Verdict.MET]
    assert verdicts(look_ahead=False) == [Verdict.MISSED, Verdict.MISSED]
