"""LARA and its greedy baselines."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Grant
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.protocols import Policy
from lightning_core.core.reasons import CODES, Reason, index
from lightning_core.core.targets import LossTarget
from lightning_core.policies import EasiestFirst, Lara, LeastResourcesFirst
from lightning_core.policies.lara import stick_breaking
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.examples import examples
from tests.views import view


@pytest.mark.parametrize("policy", [Lara, LeastResourcesFirst, EasiestFirst])
def test_exploration_comes_first_and_is_shared_equally(policy: Callable[..., Policy]) -> None:
    plan = policy(explore=10).plan(view([5, 5, nan], [30, 10, 20], cells=[12, 3, 40]), 0.0)
    assert plan.share.tolist() == [0, 0.5, 0.5]
    assert plan.order.tolist() == [1, 2, 0]
    assert [CODES[c] for c in plan.codes] == ["explored", "explore", "explore"]
    two = policy(explore=10).plan(view([5, 5, nan], [30, 10, 20], cells=[12, 3, 40], devices=2), 0.0)
    assert two.share.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="explore must be at least 0 cells, got -1"):
        policy(explore=-1)


def test_the_printed_exploration_counts_batches() -> None:
    jobs = view([5, 5, 5], [30, 10, 20], cells=[3, 3, 0], batches=[80, 79, 0], exact=[False, False, True])
    plan = Lara(explore=3, explore_batches=80).plan(jobs, 0.0)
    assert plan.share.tolist() == [0, 1, 0]
    assert str(Reason(CODES[plan.codes[1]], tuple(plan.numbers[1]))) == "being explored: 79 of 80 batches trained"
    assert CODES[plan.waiting[0]] == "explored"
    assert Lara(explore=3, explore_batches=79).plan(jobs, 0.0).share.min() > 0
    with pytest.raises(ValueError, match="explore_batches must be at least 0 batches, got -1"):
        Lara(explore_batches=-1)


@pytest.mark.parametrize("kinds", [False, True])
def test_each_job_has_a_printed_threshold_of_its_own_in_a_pool(kinds: bool) -> None:
    """H_k: the scheduler tells the policy the names; where devices differ, too."""
    terms = {"explore": 0, "explore_batches": {"vit": 80, "cnn": 20}}
    devices: dict[str, Any] = {"devices": 2, "locations": ("a", "b")} if kinds else {"devices": 1}
    scheduler = Scheduler(Settings(policy="lara", policy_args=terms, **devices))
    names = ("vit", "cnn", "other")
    jobs = tuple(Job(name, 1e6, LossTarget("loss", 1e-6)) for name in names)
    scheduler.handle(Submit(jobs), 0.0)
    explored: dict[str, list[str]] = {name: [] for name in names}
    shares: dict[str, float] = {}
    for step in range(1, 10):
        for name in names:
            cells = tuple(Cell(number, 10 * number, 1.0 / number) for number in range(1, step + 1))
            scheduler.handle(Report(name, 1, step, 0, 10 * step, float(step), cells), 10.0 * step)
        for answer in scheduler.handle(Tick(), 10.0 * step + 5):
            if isinstance(answer, Grant):
                shares[answer.job] = answer.share
        for status in scheduler.status():
            if status.grant_reason.code == "explore_batches":
                explored[status.name].append(str(status.grant_reason))
        if step == 5 and not kinds:
            assert shares == {"vit": 1.0, "cnn": 0.0, "other": 0.0}, "only vit is yet to be explored"
    assert all(words.endswith("of 80 batches trained") for words in explored["vit"])
    assert explored["vit"]
    assert explored["cnn"] == ["being explored: 10 of 20 batches trained"]
    assert explored["other"] == []


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"vit": -1}, "explore_batches of job 'vit' must be at least 0 batches, got -1"),
        ({"vit": "8000"}, "explore_batches of job 'vit' must be at least 0 batches, got '8000'"),
        (80.5, "explore_batches must be a number of batches, or one for each job, got 80.5"),
    ],
)
def test_wrong_thresholds_of_jobs_are_refused(batches: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lara(explore_batches=batches)


def test_jobs_of_several_devices_are_explored_one_after_the_other() -> None:
    plan = Lara().plan(view([5, 5, 5], [30, 10, 20], cells=[3, 3, 3], size=[1, 2, 1], devices=2), 0.0)
    assert plan.share.tolist() == [1, 1, 1]


def test_known_work_need_not_be_explored() -> None:
    plan = Lara().plan(view([5, 5], [30, 10], cells=[0, 50], exact=[True, False]), 0.0)
    assert plan.share.min() > 0


def test_a_job_without_losses_is_not_explored_for_ever() -> None:
    jobs = view([5, 2, nan], [30, 10, 10], cells=[12, 12, 0], batches=[100, 100, 1001])
    assert (Lara(explore=10).plan(jobs, 0.0).codes == index("explore")).tolist() == [False, False, True]
    rejected = view([5, nan], [30, 10], cells=[12, 0], batches=[100, 1001], shown=[12, 10])
    assert Lara(explore=10).plan(rejected, 0.0).share.tolist() == [1, 0]


def test_the_job_with_the_least_work_goes_first() -> None:
    plan = LeastResourcesFirst().plan(view([5, 3, inf, 2], [9, 99, 9, 9], size=[1, 1, 1, 2], devices=2), 0.0)
    assert plan.order.tolist() == [1, 3, 0, 2]
    assert str(Reason(CODES[plan.codes[3]], tuple(plan.numbers[3]))) == (
        "among the jobs with the least work left: 4.0s of device time"
    )
    assert CODES[plan.waiting[2]] == "not_falling"


def test_the_easiest_job_goes_first() -> None:
    """Work over time left: 5/10, 6/100, 1/1.5, never."""
    plan = EasiestFirst().plan(view([5, 6, 1, inf], [12, 102, 3.5, 12]), 2.0)
    assert plan.order.tolist() == [1, 0, 2, 3]
    assert (
        str(Reason(CODES[plan.waiting[0]], tuple(plan.numbers[0])))
        == "waiting for easier jobs: needs 5.0s and has 10.0s"
    )


def test_greedy_policies_measure_work_in_seconds_or_batches() -> None:
    """5 s at 100 batches a second are 500 batches, 6 s at 10 are 60; in 25 s and 12 s."""
    jobs = view([5, 6], [25, 12], throughput=[100, 10])
    heads = {
        (policy.__name__, count): int(policy(count=count).plan(jobs, 0.0).order[0])
        for policy in (LeastResourcesFirst, EasiestFirst)
        for count in ("seconds", "data")
    }
    assert heads == {
        ("LeastResourcesFirst", "seconds"): 0,
        ("LeastResourcesFirst", "data"): 1,
        ("EasiestFirst", "seconds"): 0,
        ("EasiestFirst", "data"): 1,
    }
    with pytest.raises(ValueError, match="count must be one of seconds, data, got 'batches'"):
        EasiestFirst(count="batches")  # type: ignore[arg-type]


def test_easiest_first_uses_the_whole_time_of_a_job_as_published() -> None:
    """8 s of work in 40 s and 3 s in 20 s: at 15 s there are 25 s and 5 s left, but the second is still the easier."""
    policy = EasiestFirst()
    assert policy.plan(view([8], [40]), 0.0).order.tolist() == [0]
    assert policy.plan(view([8, 3], [40, 20]), 0.0).order.tolist() == [1, 0]
    assert policy.plan(view([8, 3], [40, 20]), 15.0).order.tolist() == [1, 0]
    assert EasiestFirst().plan(view([8, 3], [40, 20]), 15.0).order.tolist() == [0, 1]


def test_lara_shares_equal_the_published_ones() -> None:
    """Two kept jobs: alpha = 2/4 and 3/(8 - 2), so shares 0.5 and 0.25 before they are rescaled to fill the device."""
    plan = Lara().plan(view([3, 2, 50], [8, 4, 20]), 0.0)
    assert plan.share.tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert plan.order.tolist() == [1, 0, 2]
    assert [CODES[c] for c in plan.codes[:2]] == ["chosen", "chosen"]
    assert CODES[plan.waiting[2]] == "dropped"


def test_lara_counts_the_time_left_from_now() -> None:
    """Eq. 3.8 with the time left, D - now: the same jobs 5 s later, with deadlines 5 s later, have the same shares."""
    plan = Lara().plan(view([3, 2, 50], [13, 9, 25]), 5.0)
    assert plan.share.tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert plan.finish[:2].tolist() == pytest.approx([13, 8])
    assert plan.numbers[:, 1].tolist() == [8, 4, 20]


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_published_shares_do_not_depend_on_the_unit_of_time(unit: float) -> None:
    """Eq. 3.8: alpha_k = w_k / (d_k - sum of w before), 2/4 and 3/(8 - 2); share_k = alpha_k prod (1 - alpha before).

    1/2 and 1/4, scaled to fill the device (eq. 3.10).
    """
    shares = stick_breaking(unit * np.array([2.0, 3.0]), unit * np.array([4.0, 8.0]))
    assert shares.tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-9)


def test_no_job_has_more_than_a_device_and_the_others_have_the_excess_in_proportion() -> None:
    """alpha = 1/4, 1/7, 1/14 of two devices: shares 49, 21 and 9 of 79; twice 49/79 is above 1, the rest is 21 : 9."""
    shares = stick_breaking(np.array([2.0, 2.0, 2.0]), np.array([4.0, 8.0, 16.0]), devices=2)
    assert shares.tolist() == pytest.approx([1, 0.7, 0.3], abs=1e-9)


@given(
    jobs=st.lists(st.tuples(st.floats(1e-3, 1e4), st.floats(1e-3, 1e4)), min_size=1, max_size=9),
    devices=st.integers(1, 8),
)
@settings(max_examples=examples(200), deadline=None)
def test_stick_breaking_fills_the_pool_and_never_oversells_it(jobs: list[tuple[float, float]], devices: int) -> None:
    work, slack = np.array(sorted(jobs, key=lambda job: job[1])).T
    share = stick_breaking(work, slack, devices)
    assert np.all((share >= 0) & (share <= 1 + 1e-9))
    assert share.sum() == pytest.approx(min(devices, len(jobs)))


def test_lara_takes_jobs_of_several_devices_in_turn() -> None:
    jobs = view([3, 2, 4], [8, 4, 9], size=[1, 2, 1], devices=2)
    plan = Lara().plan(jobs, 0.0)
    assert plan.share.tolist() == [1, 1, 1]
    assert plan.order.tolist() == [1, 0, 2]
    assert plan.finish.tolist() == [5, 2, 6]


def test_lara_orders_jobs_by_deadline() -> None:
    plan = Lara(order="edf").plan(view([3, 2, inf], [8, 4, 20]), 0.0)
    assert plan.order.tolist() == [1, 0, 2]
    assert plan.share.tolist() == [1, 1, 0]
    assert [CODES[c] for c in plan.waiting] == ["chosen_later", "chosen_later", "not_falling"]
    assert plan.finish[:2].tolist() == [5, 2]


def test_lara_tries_all_jobs_if_none_fits() -> None:
    plan = Lara().plan(view([30, inf], [8, 4]), 0.0)
    assert plan.share.tolist() == [0.5, 0.5]


def test_lara_drops_the_longest_job_and_not_the_most_urgent() -> None:
    """LARA's argument (section 4.1): a hard job with a short deadline must not starve the others."""
    plan = Lara(order="edf").plan(view([9, 3, 3, 3], [10, 11, 12, 13]), 0.0)
    assert plan.order.tolist() == [1, 2, 3, 0]
    heavy = Lara(order="edf").plan(view([9, 3, 3, 3], [10, 11, 12, 13], weight=[9, 1, 1, 1]), 0.0)
    assert heavy.order[0] == 0
