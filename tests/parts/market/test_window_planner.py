"""Plans of a few intervals, and the grid of progress that they are made on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import Observation, SpotForecast
from lightning_core.parts.market.programs.progress_grid import exact_grid, group_of, groups_of
from lightning_core.parts.market.programs.window_planner import End, Table, WindowPlanner, _end_of
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market


def seen(job: SpotJob, interval: int, done: float, counts: int, price: float = 0.4, ahead: int = 4) -> Observation:
    batch = JobBatch([job], Market(np.full(job.deadline, price), np.full(job.deadline, counts)), [0])
    progress, none = np.array([done]), np.zeros(1, np.int64)
    forecast = SpotForecast(np.full((1, ahead + 1), price), np.full((1, ahead + 1), counts))
    return Observation(batch, interval, progress, none, none, forecast, progress, progress)


def test_a_table_knows_which_progress_it_covers_and_stops_at_its_last_cell() -> None:
    group = group_of(SpotJob(8.0, 4, max_nodes=2, growth_fraction=1.0, shrink_fraction=1.0))
    assert group.unit == 1.0
    worth = np.zeros((3, 1, 5))
    table = Table(group, np.array([2]), np.array([4]), [worth], np.zeros((1, 1, 3)))

    def cell(progress: float) -> IntArray:
        return table.cell(np.array([progress]))

    assert [cell(progress).tolist() for progress in (2.0, 3.5, 6.0, 60.0)] == [[0], [1], [4], [4]]
    assert [table.has(np.array([progress])) for progress in (1.9, 2.0, 4.9, 5.0)] == [False, True, True, False]


@pytest.mark.parametrize("interval", [2, 3])
def test_the_worth_of_a_plan_counts_the_last_interval_and_is_unknown_after_it(interval: int) -> None:
    job = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0)
    planner = WindowPlanner("literal")
    # Two nodes do what is left in the intervals that are left, each for 0.4.
    left = 2.0 * (4 - interval)
    assert planner.worth(seen(job, interval, 8.0 - left, 2), 9) == pytest.approx([20.0 - 0.4 * left])
    assert np.isnan(planner.worth(seen(job, 4, 6.0, 2), 9)).all()


@pytest.mark.parametrize(
    ("end", "worth"),
    [
        # Two nodes do half of the work within the window, for 1.6. As printed (eq. 10) V~ of that: two more intervals
        # of two on-demand nodes, counted from the deadline 4, at whose end, 6, the job is worth nothing.
        ("literal", 0.0 - 4.0 - 1.6),
        ("target", 20.0 - 1.6),  # half of the work is due at the window's end: nothing is missing
        ("rollout", 20.0 - 4.0 - 1.6),  # the two intervals begin at the window's end, so the job is in time
    ],
)
def test_the_worth_at_the_end_of_a_window_is_that_of_its_end(end: End, worth: float) -> None:
    job = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0)
    assert WindowPlanner(end).worth(seen(job, 0, 0.0, 2), 1) == pytest.approx([worth])


def test_the_worth_of_the_work_left_is_that_of_the_job_by_the_nodes_that_it_holds() -> None:
    """V~ (eq. 9), on demand at 2.5: a job that holds all nodes launches none, which takes half an interval."""
    job = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=0.5, shrink_fraction=0.5)
    batch = JobBatch([job], Market(np.full(4, 0.4), np.full(4, 2), on_demand=2.5), [0])
    left = [0.0, 1.0, 2.0, 3.0, 8.0]
    worth = _end_of(batch, np.array([0]), np.array([left]), job.deadline, 3)
    assert worth[:, 0].tolist() == [[job.worth_of_rest(one, held, 2.5) for one in left] for held in range(3)]
    assert worth[2, 0, 2] == 20.0 - 10.0 - 5.0 != worth[1, 0, 2]


@pytest.mark.parametrize(("end", "nodes"), [("literal", 2), ("target", 0)])
def test_as_printed_a_job_that_is_ahead_buys_what_is_left_all_the_same(end: End, nodes: int) -> None:
    """At the end of the window three quarters are due, and done. As printed, the last quarter is as if it were late."""
    job = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0)
    spot, on_demand = WindowPlanner(end).plan(seen(job, 1, 6.0, 2), 1, 2)
    assert (spot.sum(), on_demand.sum()) == (nodes, 0)


def test_the_last_interval_before_a_deadline_is_planned_and_none_after_it() -> None:
    job = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0)
    assert WindowPlanner().plan(seen(job, 3, 6.0, 2), 9, 1)[0].tolist() == [[2]]
    assert WindowPlanner().plan(seen(job, 4, 6.0, 2), 9, 1)[0].tolist() == [[0]]


def test_a_job_whose_deadline_has_passed_hides_no_other() -> None:
    short = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0)
    batch = JobBatch([short, replace(short, deadline=8)], Market(np.full(8, 0.4), np.full(8, 2)), [0, 0])
    done, none = np.full(2, 6.0), np.zeros(2, np.int64)
    forecast = SpotForecast(np.full((2, 5), 0.4), np.full((2, 5), 2))
    observation = Observation(batch, 5, done, none, none, forecast, done, done)
    assert WindowPlanner("literal").worth(observation, 9) == pytest.approx([np.nan, 20.0 - 0.8], nan_ok=True)
    assert WindowPlanner("literal").plan(observation, 4, 3)[0].sum(axis=1).tolist() == [0, 2]


def test_a_table_is_kept_while_it_covers_the_progress_and_the_forecast_is_the_same() -> None:
    job = SpotJob(8.0, 4, max_nodes=2, value=20.0, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0)
    planner, first = WindowPlanner(), seen(job, 1, 2.0, 2)
    [table] = planner._tables_of(first, 2)
    for done, is_kept in ((2.0, True), (4.0, False), (0.0, False)):
        later = replace(first, progress=np.array([done]))
        [again] = planner._tables_of(later, 2)
        assert (again is table) is is_kept
        assert planner.plan(later, 2, 2)[0].tolist() == WindowPlanner().plan(later, 2, 2)[0].tolist()


def test_no_more_than_all_of_the_work_is_due() -> None:
    job = SpotJob(8.0, 4, max_nodes=2)
    assert [seen(job, 1, 0.0, 2).due(ahead).item() for ahead in (-1, 0, 2, 9)] == [2.0, 4.0, 8.0, 8.0]


def test_numbers_of_nodes_that_the_job_cannot_use_are_not_planned() -> None:
    job = SpotJob(8.0, 4, min_nodes=2, max_nodes=3, value=20.0)
    planner = WindowPlanner()
    [table] = planner._tables_of(seen(job, 0, 0.0, 3), 2)
    assert np.isinf(table.cost[..., 1]).all()
    assert np.isfinite(table.cost[..., [0, 2, 3]]).all()


@pytest.mark.parametrize(
    ("throughput", "fractions", "unit"),
    [
        ((0.0, 1.0, 2.0), (), 1.0),
        ((0.0, 0.5, 1.5), (), 0.5),
        ((0.0, 1.0, 2.0), (0.9,), 0.1),
        ((0.0, 1.0, 2.0), (0.75, 0.5), 0.25),
        ((0.0, 1.0, 2**0.5), (), None),
        ((0.0, 4000.0), (), 1.0),
        ((0.0, 4001.0), (), None),
    ],
)
def test_a_grid_is_exact_if_the_work_of_every_interval_is_a_multiple_of_its_unit(
    throughput: tuple[float, ...], fractions: tuple[float, ...], unit: float | None
) -> None:
    assert exact_grid(np.array(throughput), *fractions) == unit


def sizes(count: int, **terms: Any) -> list[int]:
    """Return the numbers of jobs in the groups of so many equal jobs."""
    job = SpotJob(growth_fraction=0.99, shrink_fraction=1.0, **terms)
    batch = JobBatch([job] * count, Market(np.ones(job.deadline), np.ones(job.deadline, np.int64)), [0] * count)
    groups = groups_of(batch)
    assert np.concatenate([group.rows for group in groups]).tolist() == list(range(count))
    return [len(group.rows) for group in groups]


def test_jobs_that_are_alike_share_tables_of_a_bounded_size() -> None:
    assert sizes(70, work=10.0, deadline=20, max_nodes=1) == [64, 6]
    # 100,000 cells of a hundredth, by 0 to 4 nodes: two jobs have a million entries together.
    assert sizes(5, work=1000.0, deadline=2000, max_nodes=4) == [2, 2, 1]
    # Its deadline comes before it could be done: no more cells than can be reached.
    assert sizes(5, work=1000.0, deadline=50, max_nodes=4) == [5]
