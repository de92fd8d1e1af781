"""Earliest deadline first among jobs that are likely to end in time."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from lightning_core.core.reasons import CODES, Reason
from lightning_core.policies import GuardedEdf
from tests.views import view


def test_guarded_edf_is_edf_among_jobs_likely_to_meet_their_deadline() -> None:
    plan = GuardedEdf().plan(view([50, 5, 5], [10, 30, 20]), 0.0)
    assert plan.order.tolist() == [2, 1, 0]
    assert plan.share.tolist() == [0, 1, 1]
    assert plan.finish[1:].tolist() == [10, 5]
    assert not plan.finish[0] <= 10
    told = Reason(CODES[plan.waiting[0]], tuple(plan.numbers[0]))
    assert str(told) == "not scheduled: needs about 50s, 0% likely in time on its own"


@pytest.mark.parametrize(
    ("work", "slack", "spread", "passes"),
    [
        (15.0, 10.0, 0.4, True),  # ln(10 / 15) / 0.4 = -1.01: 16 %
        (15.3, 10.0, 0.4, False),  # 14 %
        (28.0, 10.0, 1.0, True),
        (28.6, 10.0, 1.0, False),
        (10.0, 10.0, 0.0, True),
        (10.1, 10.0, 0.0, False),
    ],
)
def test_guarded_edf_uses_the_uncertainty_of_a_forecast(work: float, slack: float, spread: float, passes: bool) -> None:
    plan = GuardedEdf().plan(view([work, 1], [slack + 7, 99], spread=[spread, 0]), 7.0)
    assert (plan.share[0] == 1) == passes


def test_guarded_edf_does_not_judge_early() -> None:
    early = GuardedEdf().plan(view([inf, 999, nan, 1], [10, 20, 30, 40], cells=[3, 1, 0, 50]), 0.0)
    assert early.order.tolist() == [0, 1, 2, 3]
    assert early.share.tolist() == [1, 1, 1, 1]
    assert [CODES[c] for c in early.codes[:3]] == ["unjudged"] * 3
    seen = GuardedEdf().plan(view([inf, 999, nan, 1], [10, 20, 30, 40], cells=[4] * 4), 0.0)
    assert seen.share.tolist() == [0, 0, 1, 1]  # not even the throughput of the third is known


def test_guarded_edf_uses_a_stated_throughput_until_one_is_measured() -> None:
    said = GuardedEdf().plan(view([50, 1], [10, 20], exact=[True, False], throughput=[nan, 10.0]), 0.0)
    seen = GuardedEdf().plan(view([50, 1], [10, 20], exact=[True, False]), 0.0)
    assert (said.share.tolist(), seen.share.tolist()) == ([1, 1], [0, 1])


def test_guarded_edf_runs_the_most_likely_job_if_no_job_passes() -> None:
    plan = GuardedEdf().plan(view([100, 30, inf], [10, 11, 12]), 0.0)
    assert plan.order.tolist() == [1, 0, 2]
    assert plan.share[1] == 1
    assert CODES[plan.codes[1]] == "likeliest"


def test_guarded_edf_serves_dropped_jobs_last_most_likely_first() -> None:
    plan = GuardedEdf().plan(view([60, 5, 30], [10, 99, 11]), 0.0)
    assert plan.order.tolist() == [1, 2, 0]


def test_guarded_edf_puts_heavy_jobs_first_only_if_weights_differ() -> None:
    """The light one is more urgent, and both do not fit."""
    work, deadline = [8.0, 8.0], [10.0, 12.0]
    assert GuardedEdf().plan(view(work, deadline), 0.0).order.tolist() == [0, 1]
    plan = GuardedEdf().plan(view(work, deadline, weight=[1, 3]), 0.0)
    assert plan.order.tolist() == [1, 0]
    assert plan.share.tolist() == [1, 1]  # skipped, not given up: it comes after the heavy one
    assert CODES[plan.waiting[0]] == "others_first"
    assert GuardedEdf().plan(view(work, deadline, weight=[1, 3], devices=2), 0.0).order.tolist() == [0, 1]


def test_guarded_edf_expects_devices_to_be_free_at_each_deadline() -> None:
    """The first may need 12 s and has 10: the second is counted to begin at 10."""
    plan = GuardedEdf().plan(view([12, 5], [10, 20], spread=[0.5, 0.0]), 0.0)
    assert plan.finish.tolist() == [12, 15]


def test_guarded_edf_tests_dropped_jobs_again() -> None:
    policy = GuardedEdf()
    assert policy.plan(view([30, 1], [10, 99]), 0.0).share.tolist() == [0, 1]
    assert policy.plan(view([8, 1], [10, 99]), 1.0).share.tolist() == [1, 1]


@pytest.mark.parametrize(("field", "value"), [("judge_after", -1), ("min_chance", 1.0), ("min_chance", -0.1)])
def test_guarded_edf_refuses_arguments_out_of_range(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 0.*, got {value}"):
        GuardedEdf(**{field: value})  # type: ignore[arg-type]


def test_guarded_edf_on_two_devices_ends_jobs_by_deadline() -> None:
    plan = GuardedEdf().plan(view([4, 6, 5], [30, 20, 25], devices=2), 0.0)
    assert plan.order.tolist() == [1, 2, 0]
    assert np.allclose(plan.finish, [9, 6, 5])
