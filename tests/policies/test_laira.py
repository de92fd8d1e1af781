"""LaiRA: each equation against values worked by hand, and exploration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import e, exp, inf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest

from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import LooksAtCurves
from lightning_core.core.reasons import CODES, Reason
from lightning_core.estimators.kalman import Kalman
from lightning_core.policies import Laira
from lightning_core.scheduler.settings import Settings
from tests.estimators.test_ridge import ROW, feed
from tests.views import view


def said(plan: Plan, row: int, *, waits: bool = False) -> str:
    code = (plan.waiting if waits else plan.codes)[row]
    return str(Reason(CODES[code], tuple(plan.numbers[row].tolist())))


# -------------------------------------------------------------------------------------- rates and scores, eqs. 11 to 13

# A slice of 5 s takes the job from s = e^2 to e^3; its loss stands at e, its goal at 1, and 2 units of ln s are left.
SPEED = (e**3 - e**2) / 5
LEFT = (e**4 - e**2) / SPEED


def by_hand(policy: Laira) -> float:
    """The score of that job: its line is the one worked by hand above."""
    for bank in policy.banks:
        feed(bank, [1, e, e**2], [e**2, e, 1])
    jobs = view([9], [LEFT], cells=[3], throughput=[SPEED], loss=[e], goal=[1], position=[e**2])
    plan = policy.plan(jobs, 0.0)
    assert CODES[plan.codes[0]] == "slice"
    return float(plan.numbers[0, 0])


def test_the_score_equals_a_value_worked_by_hand() -> None:
    """It must fall by (1 - 0) / (4 - 2), and falls by (1 - (1 - 3/3)) / (3 - 2): twice as fast."""
    hand: dict[str, Any] = {"look_ahead": False, "explore": 3, "gamma": 1.0, "ridge": 1.0}
    assert by_hand(Laira(**hand, ucb=False)) == pytest.approx(2.0)
    # With the bound worked by hand above, r is lower by beta sqrt(1.6).
    beta = 2 + 0.5 * sqrt(4 + 2 * log(8.5))
    optimist = Laira(**hand, bound=2.0, noise=0.5, delta=exp(-2))
    assert by_hand(optimist) == pytest.approx(2 * (1 + beta * sqrt(1.6)))
    # Half the time in units twice as short is the same slice.
    assert by_hand(Laira(**hand, ucb=False, initial_units=10, unit=0.5)) == pytest.approx(2.0)
    # A slice of 3 s gets to s = e^2 + 3 N, and the line there stands at 1 - x / 3.
    x = log(e**2 + 3 * SPEED)
    assert by_hand(Laira(**hand, ucb=False, initial_units=3)) == pytest.approx(2 * (x / 3) / (x - 2))


def test_the_best_score_gets_the_slice() -> None:
    """Two equal jobs, but the second must fall by 2 in the same distance: it improves half as fast as required."""
    policy = Laira(look_ahead=False, ucb=False, explore=3, gamma=1.0, ridge=1.0)
    for row in (0, 1):
        feed(policy.banks[0], [1, e, e**2], [e**2, e, 1], row)
    alike: dict[str, Any] = {"cells": [3] * 2, "throughput": [SPEED] * 2, "loss": [e] * 2, "position": [e**2] * 2}
    plan = policy.plan(view([9, 9], [LEFT, LEFT], goal=[exp(-1), 1], **alike), 0.0)
    assert plan.order.tolist() == [1, 0]
    assert plan.share.tolist() == [0, 1]
    assert said(plan, 1) == "runs in this time slice of 5.0s: improving 2 times as fast as required"
    assert said(plan, 0, waits=True) == "waiting for a time slice: improving 1 times as fast as required"


def test_ties_are_broken_by_deadline_then_by_submission() -> None:
    policy = Laira(look_ahead=False)
    plan = policy.plan(view([10, 20, 10], [20, 40, 20], exact=[True] * 3), 0.0)  # all have twice the time
    assert plan.order.tolist() == [0, 2, 1]


def test_rising_curves_rank_behind_falling_ones_and_by_their_goal() -> None:
    """rho_hat / rho alone would put the harder of the two that rise first."""
    policy = Laira(look_ahead=False, ucb=False, explore=3)
    for row, slope in enumerate((0.3, 0.3, -0.1)):
        feed(policy.banks[0], [10, 20, 40], [s**slope for s in (10, 20, 40)], row)
    jobs = view(
        [9] * 3, [50, 50, 50], cells=[3] * 3, loss=[40**0.3] * 2 + [40**-0.1], goal=[0.1, 0.5, 0.3], position=[40] * 3
    )
    plan = policy.plan(jobs, 0.0)
    assert plan.order.tolist() == [2, 1, 0]
    assert said(plan, 0, waits=True).endswith("improving 0 times as fast as required")


def test_the_published_score_starves_a_job_near_its_deadline() -> None:
    """The required improvement grows without bound, so the score falls to 0, and the other job gets the slice."""

    def first(until: float) -> int:
        policy = Laira(look_ahead=False, explore=3)
        for row in (0, 1):
            feed(policy.banks[0], [100, 200, 300], [s**-0.5 for s in (100, 200, 300)], row)
        jobs = view([3, 3], [until, 100], cells=[3] * 2, loss=[300**-0.5] * 2, goal=[0.05, 0.04], position=[300] * 2)
        return int(policy.plan(jobs, 0.0).order[0])

    assert [first(until) for until in (100.0, 60.0, 12.0, 1.0)] == [0, 0, 1, 1]


def test_a_batch_target_is_scored_by_time_over_work() -> None:
    policy = Laira()
    jobs = view([10, 10, 30], [15, 40, 20], exact=[True] * 3)
    plan = policy.plan(jobs, 0.0)
    assert plan.order.tolist() == [1, 0, 2]
    assert said(plan, 1) == "runs in this time slice of 5.0s: improving 4 times as fast as required"
    assert CODES[plan.waiting[2]] == "out_of_reach"  # 30 s of work in 20 s
    assert np.isnan(plan.finish[2])
    assert plan.finish[:2].tolist() == [20, 10]
    alone = Laira(look_ahead=False).plan(view([30], [20], exact=[True]), 0.0)
    assert CODES[alone.codes[0]] == "slice"


# ---------------------------------------------------------------------------------------------------- look-ahead, eq. 8


def test_feasibility_follows_the_published_extrapolation_to_the_deadline() -> None:
    """Undamped, F^D by matrix power: D cells of 10 batches more, at 10 batches a second."""
    position = np.arange(10.0, 400.0, 10.0)
    bank = Kalman(damping=None)
    feed(bank, position.tolist(), (4 * position**-0.6).tolist())
    state = bank.belief(ROW)[0][0]
    delta = 1e-3
    f = np.eye(6)
    f[:2, 2:4] = f[2:4, 4:] = delta * np.eye(2)
    f[:2, 4:] = delta**2 / 2 * np.eye(2)
    slack, cells = 50.0, 50
    ahead = np.linalg.matrix_power(f, cells) @ state
    there = exp(ahead[0] * log(position[-1] + 10 * cells) + ahead[1])

    def passed_over(goal: float) -> bool:
        policy = Laira(dkf={"damping": None})
        for bank in policy.banks:
            for row in (0, 1):
                feed(bank, position.tolist(), (4 * position**-0.6).tolist(), row)
        jobs = view(
            [9, 9], [slack, slack], position=position[[-1, -1]].tolist(), loss=[0.2, 0.2], goal=[goal, there * 2]
        )
        return str(CODES[policy.plan(jobs, 0.0).waiting[0]]) == "out_of_reach"

    assert (passed_over(there * 0.999), passed_over(there * 1.001)) == (True, False)


def falling(policy: Laira, goals: Sequence[float], deadlines: Sequence[float]) -> JobView:
    """Jobs of one curve, 4 s^-0.6 over 390 batches, that have other goals and deadlines."""
    position = np.arange(10.0, 400.0, 10.0)
    for bank in policy.banks:
        for row in range(len(goals)):
            feed(bank, position.tolist(), (4 * position**-0.6).tolist(), row)
    n = len(goals)
    return view([9] * n, deadlines, position=[390.0] * n, cells=[39] * n, loss=[4 * 390**-0.6] * n, goal=goals)


def test_an_infeasible_job_is_skipped_and_tested_again_each_slice() -> None:
    policy = Laira()
    jobs = falling(policy, [1e-6, 0.1], [1e6, 500])
    plan = policy.plan(jobs, 0.0)
    assert plan.share.tolist() == [0, 1]
    assert said(plan, 0, waits=True) == (
        "not scheduled: by forecast it misses its target even if it trains alone until its deadline"
    )
    nearer = replace(jobs, goal=np.array([0.1, 0.1]))  # the target is made easier
    assert CODES[policy.plan(nearer, 1.0).waiting[0]] == "out_of_reach"  # until the next slice
    assert CODES[policy.plan(replace(nearer, batches=jobs.batches + 1), 2.0).waiting[0]] == "out_of_reach"
    assert CODES[policy.plan(nearer, 7.0).waiting[0]] == "slower"


def test_all_jobs_are_tried_if_none_is_feasible() -> None:
    policy = Laira()
    plan = policy.plan(falling(policy, [1e-6, 1e-7], [1e3, 1e3]), 0.0)
    assert plan.order.tolist() == [0, 1]
    assert plan.share.tolist() == [1, 0]
    assert said(plan, 0) == "no job is forecast to finish in time; all of them are tried"


def test_without_look_ahead_no_job_is_skipped() -> None:
    policy = Laira(look_ahead=False)
    assert len(policy.banks) == 1
    plan = policy.plan(falling(policy, [1e-6, 1e-7], [1e6, 1e6]), 0.0)
    assert [CODES[code] for code in plan.waiting] == ["slower", "slower"]
    assert isinstance(policy, LooksAtCurves)


# ---------------------------------------------------------------------------------------------------------- exploration


def test_every_job_is_explored_first_in_turn() -> None:
    policy, heads, words = Laira(), [], []
    for cells in ([0, 0, 9], [4, 0, 9], [5, 0, 9], [5, 4, 9], [5, 5, 9]):
        plan = policy.plan(view([9] * 3, [9, 8, 7], cells=cells, batches=[10 * c for c in cells]), float(sum(cells)))
        heads.append(int(plan.order[0]))
        words.append(said(plan, int(plan.order[0])))
        assert plan.share.sum() == 1
    assert heads[:4] == [0, 0, 1, 1]
    assert words[1] == "being explored: 4 of 5 loss cells seen"
    assert words[4].startswith("too few reports")  # the banks of this test have no data


def test_exploration_is_bounded_and_skips_known_work() -> None:
    jobs = view([9, 9, 9], [99, 98, 97], cells=[0, 0, 3], batches=[501, 0, 30], exact=[False, True, False])
    assert Laira().plan(jobs, 0.0).order[0] == 2


def test_a_new_job_is_explored_when_the_slice_is_over() -> None:
    policy = Laira()
    heads = []
    for now, n in ((0.0, 1), (1.0, 1), (2.0, 2), (5.9, 2), (6.0, 2)):
        jobs = view([9] * n, [99] * n, exact=[True, False][:n], cells=[0] * n, batches=[10 * int(now + 1), 0][:n])
        heads.append(int(policy.plan(jobs, now).order[0]))
    assert heads == [0, 0, 0, 0, 1]


# ------------------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"explore": 2}, "explore must be at least 3 cells, got 2"),
        ({"unit": 0}, "unit must be positive and finite, got 0"),
        ({"stall_timeout": inf}, "stall_timeout must be positive and finite, got inf"),
        ({"initial_units": 0}, "initial_units must be at least 1 and at most max_units 50, got 0"),
        ({"initial_units": 9, "max_units": 8}, "initial_units must be at least 1 and at most max_units 8, got 9"),
        ({"kp": nan}, "kp must be finite, got nan"),
        ({"delta": 1.0}, "delta must be above 0 and below 1, got 1.0"),
        ({"bound": -1}, "bound must be at least 0 and finite, got -1"),
        ({"gamma": 0.0}, "gamma must be above 0 and at most 1, got 0.0"),
        ({"dkf": {"measurement": 0}}, "measurement must be positive and finite, got 0"),
        ({"dkf": {"no": 1}}, "policy laira: .*unexpected keyword argument 'no'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings(policy="laira", policy_args=arguments)
