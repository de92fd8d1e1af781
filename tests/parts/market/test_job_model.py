"""A job as the market sees it: what it can do on how many nodes, what it needs, and what changes cost it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.parts.market.job_model import MAX_WORK, JobModel, JobSpan
from lightning_core.parts.market.spot_job import SpotJob

MODEL = JobModel(seconds=100.0, kept_fraction=0.7, save_every=30.0, initial_throughput=2.0, minimum_charge=60.0)
RESIZED = Job("a", 900.0, BatchTarget(5000), max_devices=4, sizes=(1, 2, 4), can=frozenset(Capability))


def seen(
    model: JobModel = MODEL,
    job: Job = RESIZED,
    work: float = 5000.0,
    throughputs: dict[int, float] | None = None,
    start_up: float = 20.0,
    hand_over: float | None = 10.0,
) -> SpotJob:
    found = model.spot_job(job, work, JobSpan(0, 9), throughputs or {}, start_up, hand_over)
    assert found is not None
    return found


def test_what_was_measured_comes_before_what_is_expected() -> None:
    assert seen(throughputs={1: 3.0, 2: 5.0}).throughput == (0.0, 300.0, 500.0)
    assert seen().throughput == (0.0, 200.0, 400.0, 400.0, 800.0)
    assert seen(job=Job("b", 900.0, BatchTarget(5000), min_devices=2, max_devices=2)).throughput == (0.0, 0.0, 400.0)
    assert replace(MODEL, initial_throughput=None).spot_job(RESIZED, 1.0, JobSpan(0, 9), {}, 1.0, None) is None


def test_a_loss_is_never_planned_with_more_than_nodes_can_do() -> None:
    loss = replace(RESIZED, target=LossTarget("loss", 0.1))
    assert seen(job=loss, work=math.inf).work == MAX_WORK * 9 * 800.0
    assert seen(job=loss, work=70.0).work == 70.0
    assert seen(work=1e9).work == 1e9  # batches are what they are


@pytest.mark.parametrize(
    ("hand_over", "start_up", "costs"),
    [
        (10.0, 20.0, (0.1, 0.2)),
        (10.0, 5.0, (0.1, 0.1)),  # a launch takes as long as a hand-over at least
        (None, 20.0, (0.3, 0.3)),  # what the fraction leaves, until it is measured
        (150.0, 20.0, (1.0, 1.5)),  # no more than the interval is lost in it
    ],
)
def test_changes_of_nodes_cost_parts_of_an_interval(
    hand_over: float | None, start_up: float, costs: tuple[float, float]
) -> None:
    job = seen(hand_over=hand_over, start_up=start_up)
    assert (job.hand_over_time, job.launch_time) == pytest.approx(costs)


def test_a_loss_of_nodes_costs_a_start_and_what_was_not_saved() -> None:
    assert seen().preemption_cost == pytest.approx((20.0 + 30.0) / 100.0)
    assert seen(job=replace(RESIZED, save_every=5.0)).preemption_cost == pytest.approx(0.25)
    assert seen(job=replace(RESIZED, save_every=0.0)).preemption_cost == pytest.approx(0.2)


def test_a_node_is_billed_for_no_more_than_the_interval_at_least() -> None:
    assert seen().minimum_charge == pytest.approx(0.6)
    assert seen(replace(MODEL, minimum_charge=250.0)).minimum_charge == 1.0
