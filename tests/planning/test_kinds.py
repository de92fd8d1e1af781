"""On which kind of devices each job should train, where they differ in how fast they are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.planning import kinds
from lightning_core.planning.kinds import KindNeeds, in_order, in_time, place, prices


def needs(work: list[list[float]], slack: list[float], devices: list[int], **more: list[float]) -> KindNeeds:
    n = len(work)
    return KindNeeds(
        np.array(work, np.float64),
        np.array(slack, np.float64),
        np.array(more.get("size", [1] * n), np.int64),
        np.array(more.get("weight", [1.0] * n), np.float64),
        np.array(devices, np.int64),
        np.array(more.get("kind", [-1] * n), np.int64),
        np.array(more.get("move", [0.0] * n), np.float64),
    )


def test_an_urgent_job_is_placed_where_it_is_fast_and_one_with_time_where_it_suffices() -> None:
    found = place(needs([[10, 30], [10, 30]], [12, 35], [1, 1]))
    assert found.kind.tolist() == [0, 1]
    assert found.in_time.all()


def test_the_job_that_gains_most_by_a_fast_device_has_it() -> None:
    # Both may be in time on either: one is ten times as fast there, the other hardly faster.
    found = place(needs([[10, 100], [90, 100]], [110, 110], [1, 1]))
    assert found.kind.tolist() == [0, 1]


def test_a_job_stays_where_it_is_unless_more_are_in_time_if_it_does_not() -> None:
    at_slow = needs([[10, 11]], [100], [1, 1], kind=[1], move=[5])
    assert place(at_slow).kind.tolist() == [1]
    # Now the slow one is too slow: it moves, and pays for it.
    assert place(at_slow._replace(work=np.array([[10.0, 110.0]]))).kind.tolist() == [0]
    # With a move that takes too long nothing is in time, and it stays.
    dear = at_slow._replace(work=np.array([[10.0, 110.0]]), move=np.array([95.0]))
    assert place(dear).kind.tolist() == [1]
    assert not place(dear).in_time.any()


def test_a_job_that_would_wait_takes_an_idle_device_of_another_kind() -> None:
    found = place(needs([[50, 500], [60, 600]], [100, 100], [1, 1]))
    assert sorted(found.kind.tolist()) == [0, 1]


def test_a_job_larger_than_a_kind_is_not_placed_on_it() -> None:
    found = place(needs([[1, 10], [1, 10]], [100, 100], [1, 4], size=[4, 1]))
    assert found.kind.tolist() == [1, 0]
    assert place(needs([[1, 10]], [100], [1, 1], size=[4])).kind.tolist() == [-1]


def test_of_jobs_that_exclude_one_another_the_heavier_is_in_time() -> None:
    found = place(needs([[10, np.inf], [10, np.inf]], [11, 11], [1, 1], weight=[1, 3]))
    assert found.in_time.tolist() == [False, True]


def best_of_all(needs: KindNeeds) -> int:
    """Return the most jobs that any choice of kinds has in time, if devices can be divided at will."""
    n, k = needs.work.shape
    best = 0
    by_deadline = np.argsort(needs.slack, kind="stable")
    for choice in product(range(-1, k), repeat=n):
        due = np.zeros(k)
        for row in by_deadline.tolist():
            if choice[row] < 0:
                continue
            due[choice[row]] += needs.work[row, choice[row]] * needs.size[row]
            late = due > needs.devices * needs.slack[row] + 1e-9
            if late.any() or needs.work[row, choice[row]] > needs.slack[row]:
                break
        else:
            best = max(best, sum(one >= 0 for one in choice))
    return best


@pytest.mark.parametrize("seed", range(3))
def test_nearly_as_many_are_in_time_as_by_the_best_choice(seed: int) -> None:
    draw = np.random.default_rng(seed)
    found, best = 0, 0
    for _ in range(8):
        fast = draw.uniform(5, 50, 6)
        work: FloatArray = np.stack([fast, fast * draw.uniform(1, 8, 6)], axis=1)
        some = needs(work.tolist(), (fast * draw.uniform(1.1, 5, 6)).tolist(), [1, 2])
        in_time, most = int(place(some).in_time.sum()), best_of_all(some)
        assert in_time <= most
        found, best = found + in_time, best + most
    assert found >= 0.9 * best


def test_of_many_jobs_nearly_as_many_are_in_time_and_none_is_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    fast = draw.lognormal(4, 1, 1500)
    work = np.stack([fast, fast * draw.uniform(1, 8, 1500)], axis=1)
    slack = fast * draw.uniform(1.1, 4, 1500) + draw.uniform(0, fast.sum() / 16, 1500)
    many = needs(work.tolist(), slack.tolist(), [4, 8])
    found = in_time(many)
    for kind in range(2):
        on = np.flatnonzero(found.in_time & (found.kind == kind))
        on = on[np.argsort(slack[on], kind="stable")]
        assert np.all(work[on, kind].cumsum() <= many.devices[kind] * slack[on] + 1e-6)
    monkeypatch.setattr(kinds, "DEADLINES", 10**6)
    exact = int(in_time(many).in_time.sum())
    assert 0.98 * exact <= found.in_time.sum() < 1500


def test_prices_are_how_fast_jobs_are() -> None:
    assert prices(np.array([[1.0, 4.0], [1.0, 9.0], [1.0, np.inf]])).round(3).tolist() == [1.0, 0.167]


def test_in_an_order_each_takes_the_kind_on_which_it_ends_first() -> None:
    some = needs([[10, 15], [10, 15], [10, 15]], [99, 99, 99], [1, 1])
    assert in_order(some, np.array([2, 1, 0])).tolist() == [0, 1, 0]
    moved = some._replace(kind=np.array([-1, -1, 1]), move=np.array([0.0, 0.0, 9.0]))
    assert in_order(moved, np.array([2, 1, 0])).tolist() == [0, 0, 1]
