"""A job that shows its loss seldom, such as a validation loss, is not starved beside one that shows it often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.planning.exploration import may_show_more
from lightning_core.policies import POLICIES, Laira, Lara
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from tests.examples import day_and_night
from tests.views import view

# Batches per second alone.
SPEED = 100.0


def falling(name: str, every: int, deadline: float, *, evaluated: bool = False) -> SimulatedJob:
    """Return a job whose loss falls as a power of the batches; alone it takes a minute to its target."""
    position = np.arange(every, 180 * SPEED, every)
    loss = 3.0 * position**-0.3 * (1.0 + 0.002 * np.sin(position / every))
    target = LossTarget("val_loss" if evaluated else "train_loss", 3.0 * (60 * SPEED) ** -0.3)
    return SimulatedJob(Job(name, deadline, target), position, loss, SPEED, evaluated=evaluated)


def verdicts(jobs: Sequence[SimulatedJob], **settings: Any) -> dict[str, Verdict | None]:
    outcome = Simulation(Settings(**settings), jobs, check=True).run()
    return {job.name: job.verdict for job in outcome.jobs}


@pytest.mark.parametrize("policy", day_and_night(POLICIES, ["decor", "edf", "laira", "lara", "triage"]))
def test_both_meet_their_targets(policy: str) -> None:
    jobs = [falling("train", 20, 150.0), falling("val", 1500, 150.0, evaluated=True)]
    args = {"shares": [0.5, 0.5]} if policy == "fixed" else {}
    assert verdicts(jobs, policy=policy, policy_args=args) == {"train": Verdict.MET, "val": Verdict.MET}


@pytest.mark.parametrize("every", [1500, 3000])
@pytest.mark.parametrize("policy", ["lara", "laira"])
def test_one_with_little_time_is_not_given_up_for_want_of_cells(policy: str, every: int) -> None:
    """At 1,500 its line is known in time; at 3,000 it shows no loss before the others are judged."""
    jobs = [falling("train", 20, 200.0), falling("val", every, 100.0, evaluated=True)]
    assert verdicts(jobs, policy=policy) == {"train": Verdict.MET, "val": Verdict.MET}


def test_a_job_is_waited_for_until_it_has_shown_enough() -> None:
    jobs = view([1.0] * 5, [9.0] * 5, batches=[900, 1100, 1100, 1100, 1100], shown=[50, 0, 1, 9, 10])
    assert may_show_more(jobs, 10).tolist() == [True, False, True, True, False]


def test_lara_shares_the_rest_among_the_jobs_that_it_can_judge() -> None:
    nan = float("nan")
    jobs = view([nan, 4.0, 2.0, nan], [90.0, 8.0, 4.0, 90.0], batches=[5000] * 4, cells=[0, 50, 50, 50],
                throughput=[10.0] * 4)  # fmt: skip
    plan = Lara().plan(jobs, 0.0)
    # By eqs. 3.8 and 3.10: 2 / 4 = 1/2 for the more urgent one, then 1/2 * 4 / (8 - 2) = 1/3; 3/5 and 2/5 of the rest.
    assert plan.share == pytest.approx([0.25, 0.75 * 0.4, 0.75 * 0.6, 0.0])
    assert plan.order.tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize(("now", "first"), [(99.0, 1), (101.0, 0)])
def test_laira_owes_an_equal_share_of_the_time_to_a_job_that_has_shown_nothing(now: float, first: int) -> None:
    policy = Laira(look_ahead=False)
    row = np.array([1])
    policy.banks[0].grow(2)
    for position in (100.0, 200.0, 300.0, 400.0, 500.0):
        policy.banks[0].observe(row, np.array([position]), np.array([3.0 * position**-0.3]))
    jobs = view([float("nan"), 9.0], [900.0, 900.0], batches=[1000, 1000], cells=[0, 5], position=[0.0, 500.0],
                throughput=[20.0, 20.0])  # fmt: skip
    assert policy.plan(jobs, now).order[0] == first  # it has trained for 50 s
