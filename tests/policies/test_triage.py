"""Triage and index-EDF: the jobs that are kept, that go first and that are given up, and the slices."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from lightning_core.core.plans import JobView
from lightning_core.core.reasons import CODES
from lightning_core.planning.chance import PRIOR_CELLS, cell_seconds, prior_work
from lightning_core.policies import IndexEdf, Triage
from tests.views import view


def order(policy: Triage | IndexEdf, jobs: JobView, now: float = 0.0) -> list[int]:
    rows: list[int] = policy.plan(jobs, now).order.tolist()
    return rows


@pytest.mark.parametrize("policy", [Triage(), IndexEdf()])
def test_the_most_jobs_are_kept_and_the_most_urgent_goes_first(policy: Triage | IndexEdf) -> None:
    """The first by deadline would cost two others their time."""
    assert order(policy, view([9, 4, 5], [10, 11, 12])) == [1, 2, 0]


@pytest.mark.parametrize("policy", [Triage(), IndexEdf()])
def test_no_job_is_dropped_while_all_fit(policy: Triage | IndexEdf) -> None:
    jobs = view([3, 4, 2], [20, 10, 30])
    plan = policy.plan(jobs, 0.0)
    assert plan.order.tolist() == [1, 0, 2]
    assert plan.share.tolist() == [1, 1, 1]
    assert plan.finish.tolist() == pytest.approx([7, 4, 9])


def test_an_unlikely_job_is_given_up_with_a_reason() -> None:
    plan = Triage().plan(view([50, 4], [10, 30]), 0.0)
    assert plan.order.tolist() == [1, 0]
    assert plan.share.tolist() == [0, 1]
    assert CODES[plan.waiting[0]] == "unlikely"
    assert CODES[plan.codes[1]] == "has_a_chance"


def test_without_a_feasible_job_the_most_likely_goes_first() -> None:
    plan = Triage().plan(view([80, 30], [10, 12]), 0.0)
    assert plan.order.tolist() == [1, 0]
    assert [CODES[code] for code in plan.codes] == ["likeliest", "likeliest"]


def test_an_uncertain_job_is_planned_with_an_optimistic_quantile() -> None:
    """By its median the first does not fit beside the second, by its 30 % quantile it does."""
    jobs = view([12, 5], [14, 14])
    spread = np.exp(np.linspace(-1.5, 1.5, 20))
    doubtful = replace(jobs, quantiles=np.stack([12 * spread, np.full(20, 5.0)]))
    assert CODES[Triage(level=0.3).plan(doubtful, 0.0).waiting[0]] == "more_urgent"
    assert CODES[Triage(level=0.6).plan(doubtful, 0.0).waiting[0]] == "others_first"


def test_an_unseen_job_is_not_explored_but_waits_by_deadline() -> None:
    jobs = view([5, nan], [20, 300], cells=[100, 0])
    plan = Triage().plan(jobs, 0.0)
    assert plan.order.tolist() == [0, 1]
    assert CODES[plan.waiting[1]] == "unjudged_later"


def test_a_job_with_few_cells_is_not_given_up() -> None:
    jobs = view([inf, 5], [20, 30], cells=[13, 100])
    assert order(Triage(judge_after=14), jobs)[0] == 0
    assert order(Triage(judge_after=13), jobs) == [1, 0]


def test_the_prior_of_the_work_uses_the_pace_of_other_jobs() -> None:
    """The second takes 10 batches a cell at 5 batches a second, 2 s a cell; the third has shown nothing."""
    jobs = view([nan, 40, nan], [500, 500, 500], cells=[0, 20, 0], throughput=[nan, 5.0, nan])
    jobs = replace(jobs, position=np.array([0.0, 200.0, 0.0]))
    work = prior_work(jobs.cells, cell_seconds(jobs), jobs.deadline)
    assert work[0] == pytest.approx(2.0 * PRIOR_CELLS)
    assert work[1] == pytest.approx(2.0 * np.maximum(PRIOR_CELLS - 20, 0.3 * PRIOR_CELLS))
    unknown = replace(jobs, throughput=np.full(3, nan))
    assert prior_work(jobs.cells, cell_seconds(unknown), jobs.deadline)[0, 8] == pytest.approx(250.0, rel=0.15)


def test_a_slice_lasts_a_number_of_cells_or_seconds() -> None:
    """A more urgent job comes up while the first is in its slice."""
    policy = Triage(slice_cells=8, max_slice=10.0)
    alone = view([20], [100], cells=[30])
    policy.plan(alone, 0.0)

    def both(cells: int) -> JobView:
        return view([20, 5], [100, 40], cells=[cells, 50])

    assert order(policy, both(37), 5.0) == [0, 1]
    assert order(policy, both(38), 6.0) == [1, 0]  # eight cells shown
    by_time = Triage(slice_cells=8, max_slice=10.0)
    by_time.plan(alone, 0.0)
    assert order(by_time, both(31), 9.9) == [0, 1]
    assert order(by_time, both(31), 10.0) == [1, 0]


def test_a_slice_ends_when_its_job_is_no_longer_kept() -> None:
    policy = Triage(slice_cells=50)
    policy.plan(view([20], [100]), 0.0)
    assert order(policy, view([200, 5], [100, 40]), 1.0) == [1, 0]


def test_a_training_job_stays_kept_if_that_drops_no_other() -> None:
    """One of the two fits; the shorter would be kept if none of them trained."""
    policy = Triage(slice_cells=1)
    policy.plan(view([6], [10]), 0.0)
    assert order(policy, view([5.9, 5.5], [10, 9.5]), 1.0) == [0, 1]
    assert order(Triage(), view([5.9, 5.5], [10, 9.5]), 1.0) == [1, 0]


def test_two_devices_have_two_slices() -> None:
    policy = Triage(slice_cells=8)
    policy.plan(view([20, 20], [100, 90], devices=2), 0.0)
    plan = policy.plan(view([20, 20, 5], [100, 90, 30], devices=2), 1.0)
    assert sorted(plan.order[:2].tolist()) == [0, 1]


@pytest.mark.parametrize("policy", [Triage(), IndexEdf()])
def test_a_heavier_job_is_kept_if_not_all_fit(policy: Triage | IndexEdf) -> None:
    for weight in ([1.0, 3.0], [3.0, 1.0]):
        assert order(policy, view([6, 6], [10, 11], weight=weight))[0] == int(np.argmax(weight))


def test_index_edf_admits_the_most_probable_job_for_its_work() -> None:
    """With equal deadlines and room for one, the more probable job is kept, although it takes a little longer."""
    jobs = view([6, 7], [10, 10])
    spread = np.exp(np.linspace(-2, 2, 20))
    assert order(IndexEdf(), replace(jobs, quantiles=np.stack([7 * spread, np.full(20, 6.0)])))[0] == 1


def test_the_prior_decides_for_the_first_losses_only() -> None:
    """By default 4 of them are enough to judge a job in triage, 20 in index-EDF."""
    for policy, cells in ((Triage(), 4), (IndexEdf(), 20)):
        for shown, judged in ((cells - 1, False), (cells, True)):
            plan = policy.plan(view([inf, 5], [20, 30], cells=[shown, 100]), 0.0)
            assert (CODES[plan.waiting[0]] == "never") is judged


def test_triage_counts_the_devices_of_a_job() -> None:
    """Both jobs take both devices, so only one of them ends in time."""
    plan = Triage().plan(view([5, 6.5], [10, 11], size=[2, 2], devices=2), 0.0)
    assert [CODES[code] for code in plan.waiting] == ["more_urgent", "others_first"]
    plan = Triage().plan(view([5, 6.5], [10, 11], size=[1, 1], devices=2), 0.0)
    assert [CODES[code] for code in plan.waiting] == ["more_urgent", "more_urgent"]


def test_of_equal_jobs_index_edf_keeps_those_that_came_first() -> None:
    """Ten of thirty fit; the thirty in between are of half the weight."""
    plan = IndexEdf().plan(view([1] * 60, [10] * 60, weight=[1.0, 0.5] * 30), 0.0)
    assert plan.order[:10].tolist() == list(range(0, 20, 2))
    assert [CODES[code] for code in plan.waiting[18:21]] == ["more_urgent", "others_first", "others_first"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 0.0}, "level must be above 0 and below 1, got 0.0"),
        ({"level": 1.0}, "level must be above 0 and below 1, got 1.0"),
        ({"slice_cells": 0}, "slice_cells must be at least 1, got 0"),
        ({"max_slice": -1.0}, "max_slice must be at least 0 seconds and finite, got -1.0"),
        ({"judge_after": -1}, "judge_after must be at least 0 cells, got -1"),
        ({"min_chance": 1.0}, "min_chance must be at least 0 and below 1, got 1.0"),
    ],
)
def test_wrong_arguments_name_the_rule_and_the_value(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Triage(**arguments)  # type: ignore[arg-type]
    if "level" in arguments:
        with pytest.raises(ValueError, match=message):
            IndexEdf(**arguments)  # type: ignore[arg-type]
