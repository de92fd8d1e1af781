"""The order in which the rows of a plan are served."""

from __future__ import annotations

import numpy as np

from lightning_core.core.plans import Plan
from lightning_core.core.reasons import CODES
from lightning_core.planning.job_rows import PlanRow, job_rows, make_plan
from lightning_core.planning.reservations import Demand
from tests.views import view


def planned(*rows: PlanRow, held: list[float], ends: list[float], quantum: float = 1.0) -> Plan:
    """Return the plan of jobs that hold devices and should end at some time before their deadline, 100 s."""
    jobs = view([5.0] * len(rows), [100.0] * len(rows), held_devices=held, quantum=quantum)
    demands = [Demand(5.0, end, (1,), (1.0,)) for end in ends]
    return make_plan(jobs, job_rows(jobs, 0.5), demands, rows, again=7.0)


def served(size: int, rank: int = 0, share: float = 1.0) -> PlanRow:
    return PlanRow(rank, share, size, 50.0, "on_ramp")


def test_jobs_that_keep_their_devices_come_first_and_those_that_grow_last() -> None:
    plan = planned(served(2), served(1), served(2), held=[1, 2, 2], ends=[10, 20, 30])
    assert plan.order.tolist() == [2, 1, 0]
    assert planned(served(1), served(1, share=0.5), held=[0.5, 1], ends=[10, 20], quantum=0.05).order.tolist() == [0, 1]


def test_among_alike_jobs_the_one_that_should_end_first_comes_first() -> None:
    assert planned(served(1), served(1), served(1), held=[1, 1, 1], ends=[30, 20, 20]).order.tolist() == [1, 2, 0]


def test_jobs_that_are_served_now_come_before_those_planned_for_later() -> None:
    plan = planned(served(1, rank=2), served(1, rank=1), served(2), held=[1, 1, 1], ends=[10, 20, 30])
    assert plan.order.tolist() == [2, 1, 0]
    assert [CODES[code] for code in plan.waiting] == ["on_ramp", "on_ramp", "no_room"]
    assert plan.replan_at == 7.0


def test_only_a_share_of_a_served_job_is_capped() -> None:
    plan = planned(served(1), served(1, share=0.5), served(1, rank=1, share=0.5), held=[0, 0, 0], ends=[10, 20, 30])
    assert plan.capped is not None
    assert plan.capped.tolist() == [False, True, False]
    assert plan.share.tolist() == [1.0, 0.5, 0.5]
    assert not np.isnan(plan.finish).any()
