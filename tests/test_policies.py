"""One conformance suite for every policy, and each one's own point."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.policies import POLICIES, Edf, Fifo, Fixed, Lara, Uniform
from lightning_core.policies.moore_hodgson import largest_feasible_set
from lightning_core.protocols import Policy
from lightning_core.reasons import CODES
from lightning_core.types import FloatArray, JobView

MEMBERS: dict[str, Callable[[], Policy]] = {
    "fifo": Fifo,
    "edf": Edf,
    "uniform": Uniform,
    "fixed": lambda: Fixed([0.5, 0.3]),
    "lara": Lara,
    "lara-edf": lambda: Lara(order="edf"),
}


def view(
    work: list[float],
    deadline: list[float],
    cells: list[int] | None = None,
    exact: list[bool] | None = None,
    batches: list[int] | None = None,
) -> JobView:
    n = len(work)
    seconds = np.array(work, float)
    return JobView(
        place=np.arange(n),
        deadline=np.array(deadline, float),
        batches=np.array([0] * n if batches is None else batches),
        cells=np.array([100] * n if cells is None else cells),
        exact=np.array([False] * n if exact is None else exact),
        remaining=seconds * 10,
        throughput=np.where(np.isnan(seconds), np.nan, 10.0),
        work=seconds,
    )


_WORK = st.one_of(st.floats(1e-3, 1e6), st.just(float("inf")), st.just(float("nan")))
_JOBS = st.lists(st.tuples(_WORK, st.floats(1e-3, 1e6), st.integers(0, 30), st.booleans()), min_size=1, max_size=12)


@pytest.mark.parametrize("name", sorted(MEMBERS))
@given(jobs=_JOBS)
@settings(max_examples=60, deadline=None)
def test_every_plan_fits_the_device_and_says_why(name: str, jobs: list[tuple[float, float, int, bool]]) -> None:
    made = MEMBERS[name]()
    assert isinstance(made, Policy)
    work, deadline, cells, exact = map(list, zip(*jobs, strict=True))
    jobs_view = view(work, deadline, cells, exact)
    plan = made.plan(jobs_view, 0.0)
    assert plan.duty.shape == plan.finish.shape == plan.codes.shape == (len(jobs),)
    assert np.all((plan.duty >= 0) & (plan.duty <= 1))
    assert plan.duty.sum() <= 1 + 1e-9
    if name != "fixed":
        assert plan.duty.sum() == pytest.approx(1.0)  # nothing is wasted while a job is left
    assert np.all((plan.codes >= 0) & (plan.codes < len(CODES)))
    assert np.isfinite(plan.numbers).all()
    again = made.plan(jobs_view, 0.0)
    assert np.array_equal(plan.duty, again.duty)


def test_every_policy_is_in_the_suite() -> None:
    assert {type(make()) for make in MEMBERS.values()} == set(POLICIES.values())


def test_fifo_and_edf_give_all_to_one() -> None:
    jobs = view([5, 5, 5], [30, 10, 20])
    assert Fifo().plan(jobs, 0.0).duty.tolist() == [1, 0, 0]
    plan = Edf().plan(jobs, 1.0)
    assert plan.duty.tolist() == [0, 1, 0]
    assert plan.finish.tolist() == [16, 6, 11]
    assert plan.numbers[:, 0].tolist() == [2, 0, 1]


def test_uniform_and_fixed() -> None:
    jobs = view([5, 5, 5, 5], [30, 10, 20, 5])
    assert Uniform().plan(jobs, 0.0).duty.tolist() == [0.25] * 4
    assert Fixed([0.5, 0.3]).plan(jobs, 0.0).duty.tolist() == [0.5, 0.3, 0, 0]


def brute_force(work: FloatArray, deadline: FloatArray) -> int:
    """The most jobs that fit one after the other by deadline, by trying all."""
    order = np.argsort(deadline, kind="stable")
    for size in range(len(work), 0, -1):
        for kept in combinations(order, size):
            rows = list(kept)
            if np.all(np.cumsum(work[rows]) <= deadline[rows]):
                return size
    return 0


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=9))
@settings(max_examples=300, deadline=None)
def test_moore_hodgson_equals_brute_force(jobs: list[tuple[int, int]]) -> None:
    work, deadline = np.array(jobs, float).T
    kept = largest_feasible_set(work, deadline, 0.0)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(deadline[rows], kind="stable")]
    assert np.all(np.cumsum(work[rows]) <= deadline[rows])
    assert kept.sum() == brute_force(work, deadline)


def test_impossible_work_is_never_kept() -> None:
    kept = largest_feasible_set(np.array([np.inf, np.nan, 1.0]), np.array([9.0, 9.0, 9.0]), 0.0)
    assert kept.tolist() == [False, False, True]


def test_lara_explores_first_and_equally() -> None:
    plan = Lara(explore=10).plan(view([5, 5, float("nan")], [30, 10, 20], cells=[12, 3, 40]), 0.0)
    assert plan.duty.tolist() == [0, 0.5, 0.5]
    assert [CODES[c] for c in plan.codes] == ["explored", "explore", "explore"]


def test_lara_need_not_explore_known_work() -> None:
    plan = Lara().plan(view([5, 5], [30, 10], cells=[0, 50], exact=[True, False]), 0.0)
    assert plan.duty.min() > 0


def test_lara_does_not_explore_for_ever_what_shows_no_loss() -> None:
    plan = Lara(explore=10).plan(view([5, float("nan")], [30, 10], cells=[12, 0], batches=[100, 1001]), 0.0)
    assert plan.duty.tolist() == [1, 0]


def test_lara_shares_as_printed() -> None:
    """Two kept jobs: alpha = 2/4 and 3/(8 - 2), so shares 0.5 and 0.25 before they are rescaled to fill the device."""
    plan = Lara().plan(view([3, 2, 50], [8, 4, 20]), 0.0)
    assert plan.duty.tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert [CODES[c] for c in plan.codes] == ["chosen", "chosen", "dropped"]


def test_lara_in_the_order_of_deadlines() -> None:
    plan = Lara(order="edf").plan(view([3, 2, float("inf")], [8, 4, 20]), 0.0)
    assert plan.duty.tolist() == [0, 1, 0]
    assert [CODES[c] for c in plan.codes] == ["chosen_later", "chosen", "not_falling"]
    assert plan.finish[:2].tolist() == [5, 2]


def test_lara_tries_all_when_nothing_fits() -> None:
    plan = Lara().plan(view([30, float("inf")], [8, 4]), 0.0)
    assert plan.duty.tolist() == [0.5, 0.5]


def test_lara_drops_the_longest_and_not_the_most_urgent() -> None:
    """LARA's own point (section 4.1): a short deadline that is hard must not starve the others."""
    plan = Lara(order="edf").plan(view([9, 3, 3, 3], [10, 11, 12, 13]), 0.0)
    assert plan.duty.tolist() == [0, 1, 0, 0]
