"""The scheduler's treatment of jobs that have lost their workers. The test holds the clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightning_core.core.answers import End, Grant, Placement, State, Verdict
from lightning_core.core.control import Ask
from lightning_core.core.events import (
    Checkpoint,
    DevicesUnavailable,
    ExitCause,
    LaunchTimedOut,
    Report,
    Submit,
    Tick,
    WorkerExited,
    WorkersLost,
)
from lightning_core.core.jobs import Capability
from lightning_core.scheduler.retry_budgets import MAX_DELAY, MAX_HANGS, MAX_LAUNCH_TIMEOUTS, restart_delay
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.builders import SIZER, job

TRACE = "Traceback ...\nValueError: no"


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(Settings(policy="edf"))
    yield made
    made.check()


def save(batches: int, mark: str = "a") -> Checkpoint:
    return Checkpoint(batches, mark * 64)


def report(batches: int, number: int = 1, incarnation: int = 1, name: str = "a", **more: object) -> Report:
    return Report(name, incarnation, number, 99, batches, batches / 10, **more)  # type: ignore[arg-type]


def lost(incarnation: int = 1, cause: ExitCause = ExitCause.LOST, name: str = "a", **more: object) -> WorkerExited:
    return WorkerExited(name, incarnation, cause, TRACE, **more)  # type: ignore[arg-type]


def state(scheduler: Scheduler, name: str = "a") -> State:
    return next(job.state for job in scheduler.status() if job.name == name)


@pytest.mark.promise("R10", "F5")
def test_a_lost_worker_resumes_from_its_checkpoint_after_a_pause(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(),)), 0.0)
    scheduler.handle(report(40, checkpoint=save(30)), 4.0)
    [grant] = scheduler.handle(lost(), 5.0)
    assert isinstance(grant, Grant)
    assert (grant.share, grant.devices) == (0.0, ())
    assert scheduler.placements() == []  # it is not to be launched yet
    [status] = scheduler.status()
    assert (status.state, status.restarts, status.checkpoint_batches) == (State.RECOVERING, 1, 30)
    assert str(status.fault) == "ValueError: no; it resumes from batch 30 and repeats 10 batches"
    back = 5.0 + restart_delay("a", 1)
    assert str(status.grant_reason) == "restarts in 1.1s"
    assert scheduler.wakeup() == back
    scheduler.handle(Tick(), back)
    assert scheduler.placements() == [Placement("a", 2, (0,))]
    assert state(scheduler) is State.RECOVERING
    scheduler.handle(report(32, incarnation=2, batches_at_start=30), back + 2)
    [status] = scheduler.status()
    assert (status.state, status.lost_batches, status.batches) == (State.RUNNING, 10, 32)


@pytest.mark.promise("R10")
@pytest.mark.parametrize(
    ("cause", "terms", "times"),
    [
        (ExitCause.LOST, {"restarts": 2}, 2),
        (ExitCause.LOST, {"restarts": 0}, 0),
        (ExitCause.RAISED, {}, 0),
        (ExitCause.RAISED, {"retries": 3}, 3),
        (ExitCause.UNUSABLE, {"retries": 3, "restarts": 3}, 0),
        (ExitCause.HUNG, {"retries": 9, "restarts": 0}, MAX_HANGS),
        (ExitCause.BROKEN, {}, MAX_LAUNCH_TIMEOUTS - 1),
        (ExitCause.BROKEN, {"retries": 9, "restarts": 0}, MAX_LAUNCH_TIMEOUTS - 1),
    ],
)
def test_each_kind_of_fault_has_a_budget_of_its_own(
    scheduler: Scheduler, cause: ExitCause, terms: dict[str, Any], times: int
) -> None:
    scheduler.handle(Submit((job(**terms), job("b"))), 0.0)
    now = 0.0
    for incarnation in range(1, times + 1):
        scheduler.handle(lost(incarnation, cause), now := now + 100)
        assert state(scheduler) is State.RECOVERING
    answers = scheduler.handle(lost(times + 1, cause), now + 100)
    [end] = [answer for answer in answers if isinstance(answer, End)]
    assert end.verdict is Verdict.CRASHED
    assert str(end.reason).startswith("ValueError: no")
    assert ("retry limit reached" in str(end.reason)) == bool(times)
    assert state(scheduler, "b") is not State.ENDED  # no other job pays


@pytest.mark.promise("R10")
def test_preemptions_are_not_counted_and_need_no_pause(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(restarts=0),)), 0.0)
    for incarnation in range(1, 8):
        scheduler.handle(lost(incarnation, ExitCause.PREEMPTED), 5.0)
        assert scheduler.placements() == [Placement("a", incarnation + 1, (0,))]


def test_pauses_grow_to_a_maximum_and_start_over_after_a_calm_time(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(),)), 0.0)
    now, waits = 0.0, []
    for incarnation in range(1, 10):
        scheduler.handle(lost(incarnation), now)
        waits.append((scheduler.wakeup() or 0.0) - now)
        now += 100
    assert waits == pytest.approx([restart_delay("a", times) for times in range(1, 10)])
    assert waits == sorted(waits) or max(waits) > MAX_DELAY
    scheduler.handle(report(700, incarnation=10), now)  # 70 seconds at work
    scheduler.handle(lost(10), now)
    assert (scheduler.wakeup() or 0.0) - now == pytest.approx(restart_delay("a", 1))
    assert restart_delay("a", 3) != restart_delay("b", 3)  # jobs do not all resume at the same moment


@pytest.mark.promise("R5", "F12")
def test_a_finished_incarnation_is_refused_with_all_that_it_saves(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(),)), 0.0)
    scheduler.handle(report(10, checkpoint=save(10, "a")), 1.0)
    scheduler.handle(report(20, 2, checkpoint=save(20, "b")), 2.0)
    scheduler.handle(report(30, 3, checkpoint=save(30, "c")), 3.0)
    assert scheduler.checkpoints("a") == (save(30, "c"), save(20, "b"))
    scheduler.handle(lost(checkpoint=save(35, "d")), 4.0)  # a checkpoint of its last moment counts
    known = (save(35, "d"), save(30, "c"))
    [end] = scheduler.handle(report(90, 9, checkpoint=save(90, "e")), 5.0)
    assert isinstance(end, End)
    assert (end.version, str(end.reason)) == (0, "another incarnation of this job is running")
    assert scheduler.handle(lost(checkpoint=save(95, "f")), 5.5) == []
    assert scheduler.checkpoints("a") == known
    scheduler.handle(report(36, incarnation=2, batches_at_start=35), 6.0)
    assert scheduler.status()[0].batches == 36


@pytest.mark.parametrize(
    "bad", [save(-1), save(2**60), Checkpoint(1, "x" * 64), Checkpoint(1, "a" * 63), Checkpoint(1, "../../x")]
)
def test_an_invalid_checkpoint_is_not_accepted(scheduler: Scheduler, bad: Checkpoint) -> None:
    scheduler.handle(Submit((job(),)), 0.0)
    scheduler.handle(report(10, checkpoint=bad), 1.0)
    scheduler.handle(lost(checkpoint=bad), 2.0)
    assert scheduler.checkpoints("a") == ()


@pytest.mark.promise("R12", "F18", "F19")
def test_an_unusable_grant_rolls_back_and_the_next_job_gets_the_device(scheduler: Scheduler) -> None:
    scheduler = Scheduler(Settings(policy="edf", devices=2))
    scheduler.handle(Submit((job(min_devices=2, max_devices=2), job("b", 2000.0))), 0.0)
    assert [job.share for job in scheduler.status()] == [1.0, 0.0]
    scheduler.handle(LaunchTimedOut("a", 1, "no worker on device 1"), 60.0)
    assert [placement.job for placement in scheduler.placements()] == ["b"]
    assert [job.share for job in scheduler.status()] == [0.0, 1.0]
    [status, _] = scheduler.status()
    assert str(status.fault) == "its workers were not ready in time (no worker on device 1); it is retried"
    now = 60.0
    for _ in range(MAX_LAUNCH_TIMEOUTS - 2):
        scheduler.handle(Tick(), now := now + 100)
        scheduler.handle(LaunchTimedOut("a", 1, "no worker on device 1"), now)
    scheduler.handle(Tick(), now := now + 100)
    assert "a" in [placement.job for placement in scheduler.placements()]
    answers = scheduler.handle(LaunchTimedOut("a", 1, "no worker on device 1"), now)
    [end] = [answer for answer in answers if isinstance(answer, End)]
    assert str(end.reason) == "its workers were not ready after 5 attempts: no worker on device 1"
    scheduler.check()


@pytest.mark.promise("F21", "R12")
def test_no_job_is_launched_on_an_unavailable_device() -> None:
    """Its jobs go elsewhere after a short delay; a job without room waits with the reason, without a failure."""
    scheduler = Scheduler(Settings(policy="edf", devices=2, resident=2))
    scheduler.handle(Submit((job(), job("b", 2000.0), job("both", 3000.0, min_devices=2, max_devices=2))), 0.0)
    for name in "ab":
        scheduler.handle(report(10, name=name), 1.0)
    assert [placement.devices for placement in scheduler.placements()] == [(0,), (1,)]
    scheduler.handle(lost(), 2.0)
    scheduler.handle(DevicesUnavailable((0,), "device 0: its node is gone"), 2.0)
    scheduler.handle(Tick(), 10.0)
    assert scheduler.placements() == [Placement("a", 2, (1,))]
    scheduler.check()
    scheduler.handle(DevicesUnavailable(()), 500.0)
    assert {placement.job: placement.devices for placement in scheduler.placements()} == {"a": (1,), "b": (0,)}


def test_without_any_device_all_jobs_wait_with_a_reason() -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((job(),)), 0.0)
    scheduler.handle(DevicesUnavailable((0,), "device 0: its node is gone"), 1.0)
    assert scheduler.placements() == []
    [status] = scheduler.status()
    assert str(status.grant_reason) == "waiting for a device: no worker is ready on 1 of the pool's devices"
    scheduler.handle(DevicesUnavailable(()), 500.0)
    assert scheduler.placements() == [Placement("a", 1, (0,))]
    scheduler.check()


def test_a_script_trains_on_an_unavailable_device() -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((job(can=frozenset({Capability.TIME_SLICE, Capability.HOLD}), device=0),)), 0.0)
    scheduler.handle(DevicesUnavailable((0,)), 1.0)
    assert scheduler.status()[0].share == 1.0


def test_workers_that_become_ready_late_are_available_again(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(),)), 0.0)
    scheduler.handle(report(1), 50.0)
    assert scheduler.handle(LaunchTimedOut("a", 1, "late"), 60.0) == []
    assert scheduler.handle(LaunchTimedOut("a", 2, "of another incarnation"), 60.0) == []
    assert scheduler.handle(LaunchTimedOut("stranger", 1, "a rank is missing"), 60.0) == []


@pytest.mark.promise("F22")
def test_a_lost_pool_resumes_its_jobs_with_a_reason(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(), job("b"))), 0.0)
    scheduler.handle(report(10, checkpoint=save(8)), 1.0)
    scheduler.handle(WorkersLost(), 2.0)
    status = {job.name: job for job in scheduler.status()}
    assert str(status["a"].fault) == "the pool was lost; it resumes from batch 8 and repeats 2 batches"
    assert status["b"].fault is None  # it had not begun
    assert scheduler.placements()[0] == Placement("a", 2, (0,))


def test_a_lost_script_is_not_resumed(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job(can=frozenset({Capability.TIME_SLICE, Capability.HOLD})),)), 0.0)
    [end] = scheduler.handle(lost(), 1.0)
    assert isinstance(end, End)
    assert (end.verdict, str(end.reason)) == (Verdict.CRASHED, "ValueError: no")


@pytest.mark.parametrize("dies", ["before it left", "on the new size"])
def test_only_a_loss_on_the_new_size_is_a_failed_resize(dies: str) -> None:
    """A node that is preempted while its job is told to leave says nothing of the new size."""
    scheduler = Scheduler(Settings(policy="fifo", devices=2))
    elastic = frozenset(Capability)
    scheduler.handle(Submit((job(deadline=9000.0, max_devices=2, sizes=(1, 2), can=elastic),)), 0.0)
    scheduler.handle(Ask("a", SIZER, devices=1), 0.0)
    scheduler.handle(report(0), 1.0)
    scheduler.handle(report(40, 2, checkpoint=save(30)), 4.0)
    scheduler.handle(Ask("a", SIZER, devices=2), 5.0)
    if dies == "on the new size":
        scheduler.handle(lost(1, ExitCause.RELEASED, checkpoint=save(40)), 5.1)
        scheduler.handle(lost(2), 6.0)
    else:
        scheduler.handle(lost(), 6.0)
    scheduler.handle(Tick(), 6.0 + restart_delay("a", 1))
    [placement] = scheduler.placements()
    assert placement.devices == ((0,) if dies == "on the new size" else (0, 1))
    scheduler.check()
