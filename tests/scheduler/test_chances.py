"""What a company does to the chances of jobs to be in time."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.arrays import NORMAL
from lightning_core.core.plans import JobView, Plan
from lightning_core.scheduler.company.chances import Member, Prospects


def prospects(work: list[float], deadline: list[float], share: list[float], spread: float = 0.0, devices: int = 1,
              weight: list[float] | None = None) -> Prospects:  # fmt: skip
    """Return the prospects of jobs that are planned one after the other, at time 100.

    Args:
        work: Seconds alone that each needs.
        deadline: Seconds left of each.
        share: Share of the device that each has.
        spread: Standard deviation of the logarithm of the work.
        devices: Devices of the pool.
        weight: Weight of each; all the same for None.
    """
    n, needs = len(work), np.array(work)
    quantiles = needs[:, None] * np.exp(spread * NORMAL)
    zeros, ints = np.zeros(n), np.zeros(n, np.int64)
    view = JobView(
        row=np.arange(n), deadline=100.0 + np.array(deadline), batches=ints, cells=ints, exact=np.ones(n, np.bool_),
        remaining=needs, throughput=np.ones(n), work=needs, quantiles=quantiles, loss=zeros, goal=zeros, position=zeros,
        acknowledged=np.ones(n, np.bool_), weight=np.array(weight or [1.0] * n), size=np.ones(n, np.int64),
        devices=devices,
    )  # fmt: skip
    finish = 100.0 + np.cumsum(needs)
    plan = Plan(np.arange(n), np.array(share), finish, ints, ints, np.zeros((n, 2)))
    return Prospects(view, plan, np.array(share), 100.0)


def test_two_that_lose_nothing_delay_none() -> None:
    found = prospects([60.0, 60.0], [70.0, 200.0], [1.0, 0.0])
    effect = found.effect(0, 1.0, 1.0, [Member(1, 1.0)])
    assert (effect.value, effect.host, effect.others) == (0.0, 0.0, (60.0,))


@pytest.mark.parametrize(("left", "value"), [(99.0, -1.0), (101.0, 0.0)])
def test_the_job_that_has_the_share_ends_later_by_its_pace(left: float, value: float) -> None:
    found = prospects([60.0, 600.0], [left, 2000.0], [1.0, 0.0])
    effect = found.effect(0, 1.0, 0.6, [Member(1, 0.5)])
    assert effect.host == pytest.approx(40.0)
    assert effect.value == value
    # The other has done 50 s of its work by then, and goes on alone.
    assert effect.others == pytest.approx((650.0,))


def test_it_is_faster_again_once_the_other_has_ended() -> None:
    found = prospects([60.0, 10.0], [1000.0, 1000.0], [1.0, 0.0])
    effect = found.effect(0, 1.0, 0.5, [Member(1, 0.5)])
    assert effect.host == pytest.approx(10.0)  # for 20 s it had half of its throughput
    assert effect.others == pytest.approx((20.0,))


def test_a_job_that_is_in_time_only_beside_another_counts() -> None:
    found = prospects([60.0, 60.0], [200.0, 90.0], [1.0, 0.0])
    assert found.effect(0, 1.0, 0.8, [Member(1, 0.8)]).value == 1.0


def test_one_that_waits_between_the_two_begins_later_and_one_behind_both_sooner() -> None:
    late = prospects([60.0, 30.0, 60.0, 10.0], [1000.0, 95.0, 1000.0, 1000.0], [1.0, 0.0, 0.0, 0.0])
    assert late.effect(0, 1.0, 0.8, [Member(2, 0.8)]).value == -1.0
    sooner = prospects([60.0, 30.0, 60.0, 10.0], [1000.0, 1000.0, 1000.0, 130.0], [1.0, 0.0, 0.0, 0.0])
    assert sooner.effect(0, 1.0, 0.8, [Member(2, 0.8)]).value == 1.0


def test_of_several_devices_one_delays_the_others_less() -> None:
    work, left = [60.0, 30.0, 60.0], [1000.0, 95.0, 1000.0]
    assert prospects(work, left, [1.0, 0.0, 0.0]).effect(0, 1.0, 0.8, [Member(2, 0.8)]).value == -1.0
    assert prospects(work, left, [1.0, 0.0, 0.0], devices=8).effect(0, 1.0, 0.8, [Member(2, 0.8)]).value == 0.0


def test_what_is_uncertain_loses_part_of_its_chance() -> None:
    found = prospects([60.0, 600.0], [75.0, 1e6], [1.0, 0.0], spread=0.3)
    effect = found.effect(0, 1.0, 0.8, [Member(1, 0.8)])
    assert -0.5 < effect.value < -0.2


def test_weights_count() -> None:
    found = prospects([60.0, 600.0], [70.0, 1e6], [1.0, 0.0], weight=[3.0, 1.0])
    assert found.effect(0, 1.0, 0.5, [Member(1, 0.5)]).value == -3.0


def test_jobs_that_share_a_device_have_the_time_of_both() -> None:
    found = prospects([50.0, 50.0], [90.0, 90.0], [0.5, 0.5])
    effect = found.effect(0, 1.0, 0.8, [Member(1, 0.8)])  # 62 s instead of 100
    assert effect.value == 2.0
    assert effect.host == 0.0
    assert effect.others == pytest.approx((62.5,))


def test_best_effort_jobs_and_unknown_work_count_for_nothing() -> None:
    found = prospects([60.0, np.nan], [np.inf, 50.0], [1.0, 0.0])
    effect = found.effect(0, 1.0, 0.5, [Member(1, 0.5)])
    assert (effect.value, effect.others) == (0.0, (np.inf,))
