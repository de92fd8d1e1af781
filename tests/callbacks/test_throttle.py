"""A job never uses more than its share of the device: by a limit of the kernel where possible, otherwise by pauses."""

from __future__ import annotations

import logging

import pytest

from lightning_core.agent.steering import throttle
from lightning_core.agent.steering.throttle import MAX_PAUSE, Throttle
from lightning_core.node import cpu_quota as quotas


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Group:
    """A control group that records its calls."""

    def __init__(self) -> None:
        self.told: list[float | None] = []
        self.closed = False

    def limit(self, cores: float | None) -> None:
        self.told.append(cores)

    def close(self) -> None:
        self.closed = True


def paced(part: float, seconds: float, batch: float, wobble: float = 0.0) -> float:
    """Return the fraction of the time in which a throttled training works, for given seconds per batch.

    Its part may wobble by so much, every half second and also while it pauses.
    """
    clock = Clock()
    made = Throttle("job", on_host=False, clock=clock)
    made.set(part)
    worked, changes = 0.0, 0
    while clock.now < 100.0 + seconds:
        while (ahead := made.ahead()) > 0:
            made.end()
            clock.now += min(ahead, 0.5) if wobble else ahead
            if wobble and clock.now > 100.0 + 0.5 * changes:
                changes += 1
                made.set(part + (wobble if changes % 2 else -wobble))
        made.begin()
        clock.now += batch
        worked += batch
    return worked / (clock.now - 100.0)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.75, 0.95])
@pytest.mark.parametrize("batch", [0.001, 0.04, 0.3])
def test_pausing_keeps_the_share(part: float, batch: float) -> None:
    assert paced(part, 60.0, batch) == pytest.approx(part, abs=0.02)


@pytest.mark.parametrize("batch", [0.04, 0.3])
def test_a_share_that_changes_often_is_kept(batch: float) -> None:
    assert paced(0.3, 60.0, batch, wobble=0.02) == pytest.approx(0.3, abs=0.02)


def test_pauses_are_short_and_end_with_a_new_grant() -> None:
    clock = Clock()
    made = Throttle("job", on_host=False, clock=clock)
    made.set(0.01)
    made.begin()
    clock.now += 5.0
    assert made.ahead() == MAX_PAUSE
    made.set(None)
    assert made.ahead() == 0.0


def test_time_lost_by_waiting_is_not_made_up_at_once() -> None:
    clock = Clock()
    made = Throttle("job", on_host=False, clock=clock)
    made.set(0.5)
    clock.now += 1000.0  # others had the device
    assert made.ahead() == 0.0
    made.begin()
    clock.now += 3.0 * MAX_PAUSE
    assert made.ahead() > 0.0


def test_the_kernel_limits_the_share_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    monkeypatch.setattr(quotas, "open_quota", lambda **_: group)
    made = Throttle("job", on_host=True)
    assert not made.by_kernel
    made.set(0.35)
    assert made.by_kernel
    made.begin()
    assert made.ahead() == 0.0
    made.set(0.35)
    made.set(None)
    assert not made.by_kernel
    assert group.told == [0.35, None]
    made.close()
    assert group.closed


def test_a_share_of_several_cores_sets_cores_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    group, threads = Group(), list[int]()
    monkeypatch.setattr(quotas, "open_quota", lambda **_: group)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    made = Throttle("job", on_host=True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    made.set(0.3, 4)
    made.set(0.25, 4)
    made.set(None, 4)
    assert group.told == [pytest.approx(1.2), 1.0, None]
    assert threads == [2, 1, 3]  # in the end as many as there were


def test_a_share_leaves_the_threads_that_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    threads = list[int]()
    monkeypatch.setattr(quotas, "open_quota", lambda **_: Group())
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    made = Throttle("job", on_host=True)
    for share in (0.8, 1.0, None):
        made.set(share, 4)
    assert threads == [1, 1, 1]


def test_without_a_control_group_it_pauses_and_logs_that_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(tell: object) -> None:
        assert callable(tell)
        tell("CPU time cannot be limited here: read-only")

    monkeypatch.setattr(quotas, "open_quota", refuses)
    clock = Clock()
    made = Throttle("job", on_host=True, clock=clock)
    with caplog.at_level(logging.WARNING, throttle.__name__):
        for part in (0.5, 0.4, None, 0.5):
            made.set(part)
    assert caplog.text.count("the training pauses between batches instead") == 1
    made.begin()
    clock.now += 0.5
    assert made.ahead() == pytest.approx(0.5)
