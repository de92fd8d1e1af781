"""Probabilities that jobs end in time, by the quantiles of their work, and the prior of jobs without cells."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_core.core.arrays import LEVELS, NORMAL
from lightning_core.planning.chance import (
    MIN_CELLS_TO_PLAN,
    Judge,
    WorkPrior,
    cell_seconds,
    chances,
    prior_work,
    quantile,
)
from tests.views import view


@pytest.mark.parametrize(
    ("work", "slack", "spread"), [(10, 10, 1.0), (15, 10, 0.4), (28, 10, 1.0), (3, 10, 1.0), (10, 11.0, 0.1)]
)
def test_probabilities_of_log_normal_work(work: float, slack: float, spread: float) -> None:
    quantiles = work * np.exp(spread * NORMAL)[None]
    [chance] = chances(quantiles, np.array([slack]))
    assert chance == pytest.approx(NormalDist().cdf(np.log(slack / work) / spread), abs=0.004)


def test_probabilities_of_certain_and_of_unreachable_work() -> None:
    sure, half, never = [10.0] * 20, [*range(1, 11), *[inf] * 10], [inf] * 20
    quantiles = np.array([sure, sure, half, never], float)
    assert chances(quantiles, np.array([10.0, 9.9, 1e9, 1e9])).round(3).tolist() == [1.0, 0.025, 0.5, 0.0]


@given(st.lists(st.floats(1e-3, 1e6), min_size=20, max_size=20), st.floats(1e-3, 1e6), st.floats(1.0, 10.0))
def test_probabilities_grow_with_the_time_left(work: list[float], slack: float, more: float) -> None:
    quantiles = np.sort(work)[None]
    [less_time], [more_time] = chances(quantiles, np.array([slack])), chances(quantiles, np.array([slack * more]))
    assert 0 <= less_time <= more_time + 1e-12 <= 1 + 1e-12


def test_quantiles_are_interpolated_between_the_given_levels() -> None:
    quantiles = np.array([np.geomspace(1, 2**19, 20), [*[4.0] * 10, *[inf] * 10]])
    assert quantile(quantiles, LEVELS[3]).tolist() == pytest.approx([8.0, 4.0])
    assert quantile(quantiles, (LEVELS[9] + LEVELS[10]) / 2).tolist() == pytest.approx([2**9.5, inf])
    assert quantile(quantiles, 0.001).tolist() == [1.0, 4.0]
    assert quantile(quantiles, 0.999).tolist() == [2.0**19, inf]


def test_the_prior_of_an_unseen_job_follows_the_other_jobs() -> None:
    """Three jobs at 1, 2 and 4 s a cell with 100 cells each, and one without a cell."""
    jobs = view([9] * 3 + [nan], [100] * 4, cells=[100, 100, 100, 0], throughput=[10, 5, 2.5, nan])
    work = prior_work(jobs.cells, cell_seconds(jobs), jobs.deadline)
    assert work[3, 8] == pytest.approx(150 * 2, rel=0.01)  # half of the 85 % that reach it, at median pace
    assert np.isfinite(work[3]).sum() == 17  # 15 % never do
    assert work[:3, 8] == pytest.approx([50, 100, 200], rel=0.01)  # 100 of the 150 cells are done
    assert work[0, 0] == pytest.approx(0.3 * work[3, 0] / 2)  # few jobs need as little as that: it has some work left


def test_the_prior_is_log_normal_among_the_jobs_that_reach_their_targets() -> None:
    """Half of 80 % are 40 %: halfway between the levels 37.5 and 42.5 %."""
    cells = WorkPrior(cells=100.0, spread=0.5, never=0.2).quantiles()
    assert np.sqrt(cells[7] * cells[8]) == pytest.approx(100.0)
    assert np.log(cells[8] / cells[7]) == pytest.approx(0.5 * 2 * NormalDist().inv_cdf(0.425 / 0.8))
    assert np.isfinite(cells).sum() == 16


def test_without_any_curve_the_median_prior_is_half_of_the_deadline() -> None:
    jobs = view([nan, nan], [100, 40], cells=[0, 0])
    work = prior_work(jobs.cells, cell_seconds(jobs), jobs.deadline)
    assert quantile(work, LEVELS[8]).tolist() == pytest.approx([50, 20], rel=0.01)


def test_forecasts_replace_the_prior_after_a_minimum_of_cells() -> None:
    few, enough = MIN_CELLS_TO_PLAN - 1, MIN_CELLS_TO_PLAN
    judged = Judge(20, 0.15)(view([5, 5, 5], [1e6] * 3, cells=[few, enough, 0], exact=[False, False, True]), 0.0)
    assert (judged.work[0] > 5).mean() == 1.0
    assert (judged.work[1] == 5).mean() == 0.8  # the usual work has the rest
    assert (judged.work[2] == 5).all()


@pytest.mark.parametrize(("cells", "usual"), [(12, 0.12), (24, 0.075), (1000, 0.0024)])
def test_the_usual_work_joins_a_forecast_of_few_cells(cells: int, usual: float) -> None:
    """Its part is 0.3 / (1 + n / 8) after n cells; none where the work is known."""
    jobs = view([1e-3] * 3, [1e6] * 3, cells=[cells] * 3, exact=[False, True, False])
    jobs = replace(jobs, ready=np.array([False, False, True]))
    judged = Judge(20, 0.15)(jobs, 0.0)
    part = pytest.approx(usual, abs=0.026)
    assert (judged.work > 1.0).mean(axis=1).tolist() == [part, 0.0, part]


@pytest.mark.parametrize(
    ("job", "known"),
    [
        ({"cells": [19]}, False),
        ({"cells": [20]}, True),
        ({"cells": [0], "exact": [True]}, True),
        ({"cells": [0], "exact": [True], "throughput": [nan]}, False),
        ({"cells": [20], "throughput": [nan]}, False),
    ],
)
def test_a_job_is_judged_once_work_and_throughput_are_known(job: dict[str, list[float]], known: bool) -> None:
    judged = Judge(20, 0.15)(view([99], [10], **job), 0.0)  # type: ignore[arg-type]
    assert judged.known.tolist() == [known]
    assert judged.passes.tolist() == [not known]


def test_a_job_occupies_at_most_the_time_until_its_deadline() -> None:
    judged = Judge(20, 0.15)(view([12, 5, inf], [17, 27, 10]), 7.0)
    assert judged.occupied_time(0.5).tolist() == pytest.approx([10, 5, 3])


def test_a_judge_that_has_seen_jobs_before_judges_as_a_new_one() -> None:
    """Rows move up when others leave, cells come, and time goes on."""
    draw = np.random.default_rng(0)
    before = Judge(4, 0.15)
    for now in range(6):
        n = int(draw.integers(1, 30))
        jobs = view(
            draw.lognormal(3, 2, n).tolist(), draw.uniform(10, 99, n).tolist(), cells=draw.integers(0, 9, n).tolist()
        )
        for old, new in zip(before(jobs, float(now)), Judge(4, 0.15)(jobs, float(now)), strict=True):
            assert np.array_equal(old, new)
