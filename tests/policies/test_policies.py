"""The conformance suite on every policy, and tests of each one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.arrays import LEVELS
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.protocols import Policy
from lightning_core.core.reasons import CODES, index
from lightning_core.core.speedup import SpeedUp
from lightning_core.planning.sequencing import completion_times
from lightning_core.policies import (
    POLICIES,
    Decor,
    EasiestFirst,
    Edf,
    Fifo,
    Fixed,
    Laira,
    Lara,
    LeastResourcesFirst,
    RoundRobin,
    Uniform,
    summaries,
)
from lightning_core.testing.policy_conformance import check_policy
from tests.examples import day_and_night, examples
from tests.views import view

# Every registered policy, and variants of some.
MEMBERS: dict[str, Callable[[], Policy]] = {
    **POLICIES,
    "fixed": lambda: Fixed([0.5, 0.3]),
    "lrf-data": lambda: LeastResourcesFirst(count="data"),
    "etf-data": lambda: EasiestFirst(count="data"),
    "lara-edf": lambda: Lara(order="edf"),
    "lara-own-thresholds": lambda: Lara(explore=0, explore_batches={"job-0": 2500, "job-2": 10}),
    "sta": lambda: Laira(look_ahead=False),
    "laira-no-ucb": lambda: Laira(ucb=False),
    "laira-no-pd": lambda: Laira(pd=False),
    "decor-paper": lambda: Decor(mode="paper"),
    "decor-spend": lambda: Decor(idle="spend", min_saving=0.1),
}


@st.composite
def speedups(draw: st.DrawFn, devices: int) -> SpeedUp:
    """Speed-ups of any sizes: given, measured on some of them, or unknown."""
    sizes = sorted(draw(st.sets(st.integers(1, 2 * devices), min_size=1)))
    if draw(st.booleans()):
        return SpeedUp(sizes, [draw(st.floats(1e-6, 1e6)) for _ in sizes])
    speed = SpeedUp(sizes)
    for _ in range(draw(st.integers(0, 3))):
        part = draw(st.sampled_from([0.05, 0.5, *map(float, sizes)]))
        speed.observe(part, draw(st.integers(1, 10_000)), draw(st.floats(1e-3, 60.0)))
    return speed


@st.composite
def views(draw: st.DrawFn, devices: int) -> JobView:
    """Any jobs: unseen, without progress, tied, of several devices, of any weight, or a single one."""
    n = draw(st.integers(1, 10))

    def several(one: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(one, min_size=n, max_size=n))

    unknown = st.sampled_from([nan, inf, 5.0])
    cells = several(st.sampled_from([0, 3, 10, 20, 200]))
    made = view(
        several(st.one_of(st.floats(1e-3, 1e6), unknown)),
        several(st.one_of(st.floats(1e-3, 1e6), st.sampled_from([10.0, 20.0]))),
        row=sorted(draw(st.sets(st.integers(0, 40), min_size=n, max_size=n))),
        batches=several(st.integers(0, 5000)),  # type: ignore[arg-type]
        cells=cells,  # type: ignore[arg-type]
        exact=several(st.booleans()),  # type: ignore[arg-type]
        throughput=several(st.sampled_from([nan, 0.5, 100.0])),
        spread=several(st.one_of(st.just(0.0), st.floats(0, 3))),
        weight=several(st.sampled_from([1.0, 1.0, 2.5, 40.0])),
        size=several(st.integers(1, devices)),  # type: ignore[arg-type]
        loss=[draw(st.sampled_from([0.4, 2.0, 5e-324, 1e300])) if seen else nan for seen in cells],
        position=[seen * draw(st.sampled_from([1.0, 10.0, 1e12])) for seen in cells],
        devices=devices,
        speedup=[draw(speedups(devices)) for _ in range(n)],
        held_devices=several(st.sampled_from([0.0, 0.35, 1.0, float(devices)])),
        trained_since=several(st.sampled_from([inf, 0.0, 5.0])),
        reported_at=several(st.sampled_from([0.0, 3.0, 9.0])),
        resize_seconds=several(st.sampled_from([0.0, 0.3, 60.0])),
        fixed_size=several(st.sampled_from([0, 0, 0, 1, devices])),  # type: ignore[arg-type]
        continues_late=several(st.booleans()),  # type: ignore[arg-type]
        quantum=draw(st.sampled_from([1.0, 0.05])),
    )
    reach = np.array(several(st.sampled_from([1.0, 1.0, 0.8])))  # some may never get there
    beyond = (reach[:, None] < LEVELS) & ~np.isnan(made.quantiles)
    return replace(made, quantiles=np.where(beyond, inf, made.quantiles))


@pytest.mark.parametrize("name", day_and_night(sorted(MEMBERS), POLICIES))
def test_every_policy_conforms_on_the_jobs_of_the_suite(name: str) -> None:
    check_policy(MEMBERS[name])


@pytest.mark.stories
@pytest.mark.parametrize("name", sorted(MEMBERS))
@given(data=st.data())
@settings(max_examples=examples(5), deadline=None)
def test_every_policy_conforms(name: str, data: st.DataObject) -> None:
    conforms(name, data)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(MEMBERS))
@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_every_policy_conforms_at_length(name: str, data: st.DataObject) -> None:
    conforms(name, data)


def conforms(name: str, data: st.DataObject) -> None:
    devices = data.draw(st.sampled_from([1, 2, 4]))
    times = np.cumsum([0.0, data.draw(st.floats(0, 8)), data.draw(st.floats(0, 8))]).tolist()
    check_policy(MEMBERS[name], [(data.draw(views(devices)), now) for now in times])


class Broken(Fifo):
    def __init__(self, **wrong: Any) -> None:
        self.wrong = wrong

    def plan(self, jobs: JobView, now: float) -> Plan:
        return replace(super().plan(jobs, now), **self.wrong)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"order": np.array([0, 0])}, "order must be a permutation of 2 rows"),
        ({"share": np.array([0.5, 1.5])}, r"share must be in \[0, 1\]"),
        ({"share": np.zeros(2)}, "a work-conserving plan must serve at least one job"),
        ({"share": [1.0, 0.0]}, "share must be an array of numbers, got list"),
        ({"size": np.array([2, 2])}, r"size must be one that the job supports, of \(1,\), got 2"),
        ({"codes": np.array(["first_in_line", "behind"])}, "codes must be an array of whole numbers, got <U13"),
        ({"codes": np.full(2, index("crashed"))}, "reasons of plans have two numbers and no text, got crashed"),
        ({"capped": np.ones(2)}, "capped must be an array of booleans, got float64"),
        ({"replan_at": np.nan}, "replan_at must be a time, got nan"),
        ({"numbers": np.full((2, 2), np.nan)}, "numbers must be finite"),
        ({"finish": np.array([-1.0, 3.0])}, "finish must not be before 0.0"),
    ],
)
def test_the_suite_names_the_rule_that_a_plan_breaks(wrong: dict[str, Any], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_policy(lambda: Broken(**wrong), [(view([5, 5], [30, 30]), 0.0)])


def test_the_suite_detects_a_policy_that_halves_large_jobs() -> None:
    with pytest.raises(AssertionError, match="a job of several devices must have them whole"):
        check_policy(HalfOfEach)


class HalfOfEach(Fifo):
    def plan(self, jobs: JobView, now: float) -> Plan:
        return replace(super().plan(jobs, now), share=np.full(len(jobs), 0.5))


def test_the_suite_detects_state_that_is_lost_on_replay() -> None:
    made = iter([1.0, 0.5])
    with pytest.raises(AssertionError, match="must come from earlier calls of plan"):
        check_policy(lambda: Broken(share=np.full(2, next(made))), [(view([5, 5], [30, 30]), 0.0)])


def test_every_policy_has_a_description_of_one_line() -> None:
    said = summaries()
    assert list(said) == list(POLICIES)
    assert all(line.endswith(".") and len(line) < 120 for line in said.values()), said


# ---------------------------------------------------------------------------------------------------- in order


@pytest.mark.parametrize(
    ("work", "size", "devices", "ends"),
    [
        ([4, 2, 3], [1, 1, 1], 1, [4, 6, 9]),
        ([4, 2, 3], [1, 1, 1], 2, [4, 2, 5]),
        ([4, 2, 3, 1], [1, 1, 2, 1], 2, [4, 2, 7, 8]),  # two are free at once only at 4; no later job fills the gap
        ([4, inf, 3, 3], [1, 1, 1, 2], 2, [4, inf, 7, inf]),
        ([4, nan, 3, 3, 1], [1, 1, 1, 2, 1], 2, [4, nan, 7, nan, nan]),
        ([4, 2, 3], [1, 3, 1], 2, [4, inf, 3]),  # larger than the pool: it takes nothing from the others
        ([4, 2, 3], [1, 2, 1], 1, [4, inf, 7]),
    ],
)
def test_end_times_in_order(work: list[float], size: list[int], devices: int, ends: list[float]) -> None:
    made = completion_times(np.array(work, float), np.array(size), np.arange(len(work)), devices, 0.0)
    assert np.array_equal(made, np.array(ends, float), equal_nan=True)


def test_fifo_and_edf_serve_jobs_one_after_another() -> None:
    jobs = view([5, 5, 5], [30, 10, 20])
    assert Fifo().plan(jobs, 0.0).order.tolist() == [0, 1, 2]
    plan = Edf().plan(jobs, 1.0)
    assert plan.order.tolist() == [1, 2, 0]
    assert plan.share.tolist() == [1, 1, 1]
    assert plan.finish.tolist() == [16, 6, 11]
    assert plan.numbers[:, 0].tolist() == [2, 0, 1]
    assert Edf().plan(replace(jobs, devices=2), 1.0).finish.tolist() == [11, 6, 6]


@pytest.mark.parametrize(
    ("devices", "jobs", "share"),
    [
        (1, 4, [1 / 4] * 4),
        (2, 5, [1 / 3] * 3 + [1 / 2] * 2),
        (4, 5, [1 / 2] * 2 + [1.0] * 3),
        (4, 8, [1 / 2] * 8),
        (4, 3, [1.0] * 3),
    ],
)
def test_uniform_fills_the_pool_as_equally_as_possible(devices: int, jobs: int, share: list[float]) -> None:
    plan = Uniform().plan(view([6] * jobs, [30] * jobs, devices=devices), 0.0)
    assert plan.share.tolist() == pytest.approx(share)
    assert plan.finish.tolist() == pytest.approx([6 / part for part in share])


def test_uniform_shares_in_time_while_a_job_needs_several_devices() -> None:
    policy, jobs = Uniform(), view([60] * 3, [300] * 3, size=[1, 2, 1], devices=2)
    assert [policy.plan(jobs, now).order.tolist() for now in (0.0, 4.0, 5.0, 10.0)] == [
        [0, 1, 2], [0, 1, 2], [1, 2, 0], [2, 0, 1],
    ]  # fmt: skip


def test_fixed_grants_the_given_shares_only() -> None:
    plan = Fixed([0.5, 0.3, 0.7]).plan(view([5] * 4, [30] * 4, size=[1, 1, 2, 1], devices=3), 0.0)
    assert plan.share.tolist() == [0.5, 0.3, 1.0, 0]  # the third has its two devices whole
    assert not plan.work_conserving
    assert plan.finish[:3].tolist() == pytest.approx([10, 5 / 0.3, 5])
    assert np.isnan(plan.finish[3])
    assert CODES[plan.waiting[3]] == "no_share"


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, nan])
def test_fixed_refuses_invalid_shares(share: float) -> None:
    with pytest.raises(ValueError, match="shares must be above 0 and at most 1"):
        Fixed([0.5, share])


# ------------------------------------------------------------------------------------------------- round robin


def test_round_robin_serves_jobs_in_turn() -> None:
    policy, jobs = RoundRobin(quantum=5.0), view([60] * 3, [300] * 3)
    heads = [int(policy.plan(jobs, now).order[0]) for now in (0.0, 4.9, 5.0, 9.0, 10.5, 15.4, 15.5)]
    assert heads == [0, 0, 1, 1, 2, 2, 0]


def test_round_robin_on_two_devices_takes_the_next_two() -> None:
    policy, jobs = RoundRobin(), view([60] * 5, [300] * 5, devices=2)
    assert [policy.plan(jobs, 5.0 * k).order[:2].tolist() for k in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_round_robin_ends_a_turn_when_its_job_has_ended_and_lets_new_ones_wait() -> None:
    policy = RoundRobin()
    policy.plan(view([60] * 3, [300] * 3, row=[0, 1, 2]), 0.0)
    left = policy.plan(view([60] * 2, [300] * 2, row=[1, 2]), 2.0)
    assert left.order.tolist() == [0, 1]
    more = policy.plan(view([60] * 3, [300] * 3, row=[1, 2, 3]), 6.9)
    assert more.order.tolist() == [0, 1, 2]  # the turn of row 1 began at 2
    assert policy.plan(view([60] * 3, [300] * 3, row=[1, 2, 3]), 7.0).order.tolist() == [1, 2, 0]


def test_round_robin_keeps_a_turn_that_wraps_round() -> None:
    policy = RoundRobin()
    for now in (0.0, 5.0):
        plan = policy.plan(view([60] * 3, [300] * 3, devices=2), now)
    assert plan.order[:2].tolist() == [2, 0]
    new = policy.plan(view([60] * 4, [300] * 4, devices=2), 6.0)
    assert new.order.tolist() == [2, 0, 3, 1]


def test_round_robin_refuses_a_turn_of_zero_seconds() -> None:
    with pytest.raises(ValueError, match="quantum must be positive and finite, got 0"):
        RoundRobin(0)
