"""Commands and deadlines, and how jobs leave and resume: events in, answers out."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lightning_core.core.answers import End, Grant, Placement, State, Verdict, VerdictChanged
from lightning_core.core.codec import status_from_dict, status_to_dict
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline, SetDevices, SetLocation, SetTerms
from lightning_core.core.events import Cell, Close, ExitCause, Report, Submit, Tick, WorkerExited, WorkersLost
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.builders import RESIZER, job
from tests.scheduler.test_scheduler import directives, notices

SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(Settings(policy="edf"))
    yield made
    made.check()
    for status in made.status():  # every status can be encoded
        assert str(status.reason) + str(status.grant_reason)
        assert status_from_dict(json.loads(json.dumps(status_to_dict(status)))) == status


def report(name: str, number: int, batches: int = 0, busy: float = 0.0, incarnation: int = 1, **more: object) -> Report:
    return Report(name, incarnation, number, 99, batches, busy, **more)  # type: ignore[arg-type]


def cells(losses: list[float], every: int = 10, first: int = 1) -> tuple[Cell, ...]:
    return tuple(Cell(n, every * n, loss) for n, loss in enumerate(losses, first))


def shares(scheduler: Scheduler) -> dict[str, float]:
    return {status.name: status.share for status in scheduler.status()}


# ---------------------------------------------------------------------------------------------- a deadline has passed


def test_a_late_job_continues_on_devices_that_no_other_job_needs(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 5.0, 100),)), 0.0)
    assert notices(scheduler.handle(Tick(), 5.0)) == [
        ("a", "missed", "deadline passed: continues on devices that no other job needs")
    ]
    assert shares(scheduler) == {"a": 1.0}
    scheduler.handle(Submit((job("b", 50.0, 100),)), 6.0)
    assert shares(scheduler) == {"a": 0.0, "b": 1.0}
    scheduler.handle(Cancel("b"), 7.0)
    assert shares(scheduler)["a"] == 1.0
    assert scheduler.status()[0].verdict is Verdict.MISSED
    assert notices(scheduler.handle(Tick(), 8.0)) == []


def test_a_late_job_that_meets_its_target_has_missed_its_deadline(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 5.0, 100),)), 0.0)
    scheduler.handle(Tick(), 5.0)
    [end] = scheduler.handle(report("a", 1, 100, 9.0), 11.0)
    assert isinstance(end, End)
    assert (end.verdict, str(end.reason)) == (Verdict.MISSED, "target met 6.0s after the deadline")


def test_of_late_jobs_the_one_with_the_least_work_goes_first(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("long", 4.0, 90), job("short", 5.0, 30), job("unknown", 3.0, 100))), 0.0)
    for name in ("long", "short"):
        scheduler.handle(report(name, 1, 10, 1.0), 1.0)
    scheduler.handle(Tick(), 6.0)
    assert shares(scheduler) == {"long": 0.0, "short": 1.0, "unknown": 0.0}


def test_a_job_on_hold_waits_for_a_new_deadline(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 5.0, 100, on_miss=OnMiss.HOLD),)), 0.0)
    answers = scheduler.handle(Tick(), 5.0)
    words = "deadline passed: held until it gets a new deadline"
    assert notices(answers) == [("a", "missed", words)]
    assert [(a.share, str(a.reason)) for a in answers if isinstance(a, Grant)] == [(0.0, words)]
    assert scheduler.wakeup() is None  # nothing will happen by itself
    scheduler.handle(SetDeadline("a", 30.0), 20.0)
    status = scheduler.status()[0]
    assert (status.share, status.deadline, status.verdict) == (1.0, 50.0, None)


def test_a_job_may_be_stopped_at_its_deadline(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 5.0, 100, on_miss=OnMiss.STOP),)), 0.0)
    [end] = scheduler.handle(Tick(), 5.0)
    assert isinstance(end, End)
    assert (end.verdict, str(end.reason)) == (Verdict.MISSED, "deadline passed")


# ------------------------------------------------------------------------------------------------------------- terms


def test_a_new_deadline_counts_from_now_and_resumes_a_late_job(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 5.0, 100), job("b", 100.0, 100))), 0.0)
    scheduler.handle(report("a", 1, 50, 5.0), 5.0)
    scheduler.handle(Tick(), 10.0)
    assert shares(scheduler) == {"a": 0.0, "b": 1.0}
    answers = scheduler.handle(SetDeadline("a", 45.0), 10.0)
    assert scheduler.status()[0].deadline == 55.0
    assert shares(scheduler) == {"a": 1.0, "b": 0.0}
    assert notices(answers) == [("a", "feasible", "on time with 40s to spare")]


def test_other_terms_count_from_submission(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 50.0, 100),)), 10.0)
    scheduler.handle(SetDeadline("a", 70.0, from_submission=True), 20.0)
    scheduler.handle(SetTerms("a", weight=3.0), 20.0)
    status = scheduler.status()[0]
    assert (status.deadline, status.weight) == (80.0, 3.0)
    assert scheduler.job("a").weight == 3.0


def test_a_job_may_be_told_to_hold_no_devices(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100), job("b", 200.0, 100))), 0.0)
    scheduler.handle(SetDevices("a", 0, RESIZER), 1.0)
    assert shares(scheduler) == {"a": 0.0, "b": 1.0}
    status = scheduler.status()[0]
    assert str(status.grant_reason) == "holds no devices at the request of the resizer"
    scheduler.handle(SetTerms("a", weight=2.0), 2.0)  # other terms leave that as it is
    assert shares(scheduler) == {"a": 0.0, "b": 1.0}
    scheduler.handle(SetDevices("a", 1), 3.0)
    assert shares(scheduler) == {"a": 1.0, "b": 0.0}


def test_an_easier_target_is_met_at_once(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100), job("b", 200.0, 100))), 0.0)
    scheduler.handle(report("a", 1, 60, 6.0), 7.0)
    answers = scheduler.handle(SetTerms("a", target=BatchTarget(50)), 8.0)
    told, end, *_ = answers
    assert isinstance(told, Grant)
    assert told.target == BatchTarget(50)
    assert isinstance(end, End)
    assert end.verdict is Verdict.MET
    assert shares(scheduler) == {"a": 0.0, "b": 1.0}


def test_capabilities_of_a_process_cannot_be_changed_by_a_person(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100, can=SCRIPT, device=0),)), 0.0)
    scheduler.handle(SetTerms("a", weight=2.0), 1.0)
    assert (scheduler.job("a").can, scheduler.job("a").device) == (SCRIPT, 0)


def test_a_late_job_can_be_told_to_stop(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 5.0, 100),)), 0.0)
    scheduler.handle(Tick(), 6.0)
    [end] = scheduler.handle(SetTerms("a", on_miss=OnMiss.STOP), 7.0)
    assert isinstance(end, End)
    assert end.verdict is Verdict.MISSED


def test_a_deadline_that_is_moved_into_the_past_is_missed_at_once(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 50.0, 100),)), 0.0)
    assert [n[1] for n in notices(scheduler.handle(SetDeadline("a", 8.0, from_submission=True), 10.0))] == ["missed"]


def test_commands_about_unknown_jobs_are_ignored(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100),)), 0.0)
    scheduler.handle(Cancel("a"), 1.0)
    for name in ("a", "b"):
        for event in (
            Cancel(name),
            Pause(name),
            Resume(name),
            SetDeadline(name, 9.0),
            SetDevices(name, 1),
            SetLocation(name, ""),
            SetTerms(name, weight=2.0),
        ):
            assert scheduler.handle(event, 2.0) == []


# ------------------------------------------------------------------------------------------------------------- begin


def test_a_job_does_not_start_before_it_may(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 60.0, 100, begin=20.0),)), 0.0)
    status = scheduler.status()[0]
    assert (status.share, status.verdict, str(status.grant_reason)) == (0.0, None, "starts in 20.0s")
    assert scheduler.wakeup() == 20.0
    [grant] = scheduler.handle(Tick(), 20.0)
    assert isinstance(grant, Grant)
    assert grant.share == 1.0


def test_a_job_with_an_earlier_deadline_waits_for_its_begin(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("soon", 30.0, 100, begin=5.0), job("later", 60.0, 100))), 0.0)
    assert shares(scheduler) == {"soon": 0.0, "later": 1.0}
    assert scheduler.wakeup() == 1.0
    scheduler.handle(Tick(), 5.0)
    assert shares(scheduler) == {"soon": 1.0, "later": 0.0}


# ------------------------------------------------------------------------------------------------------------- pause


def test_pause_holds_a_job_until_resume(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 50.0, 100), job("b", 60.0, 100))), 0.0)
    scheduler.handle(report("a", 1, 10, 1.0), 1.0)
    scheduler.handle(Tick(), 2.0)
    scheduler.handle(Pause("a"), 3.0)
    status = scheduler.status()[0]
    assert (status.state, status.paused, status.share, status.devices) == (State.HELD, True, 0.0, (0,))
    assert (status.verdict, str(status.reason)) == (
        Verdict.FEASIBLE,
        "would need about 9.0s alone from now and has 47.0s",
    )
    assert shares(scheduler)["b"] == 1.0
    scheduler.handle(Resume("a"), 4.0)
    assert shares(scheduler) == {"a": 1.0, "b": 0.0}
    assert not scheduler.status()[0].paused


def test_pausing_the_only_job_lets_the_device_stand_idle_until_its_deadline(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 50.0, 100),)), 0.0)
    scheduler.handle(Pause("a"), 1.0)
    assert scheduler.wakeup() == 50.0
    assert notices(scheduler.handle(Tick(), 50.0)) == [
        ("a", "missed", "deadline passed: continues on devices that no other job needs")
    ]
    assert shares(scheduler) == {"a": 0.0}
    scheduler.handle(Resume("a"), 60.0)
    assert shares(scheduler) == {"a": 1.0}


def test_pause_with_release_frees_the_memory_of_a_launched_job(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100), job("script", 200.0, 100, can=SCRIPT, device=0))), 0.0)
    scheduler.handle(report("a", 1, 10, 1.0), 1.0)
    for name in ("a", "script"):
        scheduler.handle(Pause(name, release=True), 2.0)
    a, script = scheduler.status()
    assert (a.devices, a.state) == ((), State.HELD)  # it is being saved
    assert (script.devices, script.state) == ((0,), State.QUEUED)  # it cannot leave
    assert scheduler.placements() == []
    scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), 3.0)
    assert scheduler.status()[0].state is State.RELEASED
    scheduler.handle(Resume("a"), 4.0)
    assert scheduler.placements() == [Placement("a", 2, (0,))]


def test_a_pause_can_become_one_that_keeps_the_memory(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100),)), 0.0)
    scheduler.handle(Pause("a", release=True), 1.0)
    scheduler.handle(Pause("a"), 2.0)
    scheduler.handle(Resume("a"), 3.0)
    assert scheduler.status()[0].devices == (0,)


# --------------------------------------------------------------------------------------------- leaving, coming back


def test_a_released_job_resumes_as_another_incarnation(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100),)), 0.0)
    scheduler.handle(report("a", 1, 40, 4.0, rejected=2), 4.0)
    assert (
        directives(scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), 5.0)) == []
    )  # the same grant, another incarnation
    assert scheduler.placements() == [Placement("a", 2, (0,))]
    [old] = scheduler.handle(report("a", 2, 90, 9.0), 6.0)
    assert isinstance(old, End)
    assert str(old.reason) == "another incarnation of this job is running"
    assert scheduler.handle(WorkerExited("a", 1, ExitCause.RAISED), 6.0) == []
    scheduler.handle(report("a", 1, 45, 0.5, incarnation=2, batches_at_start=40, rejected=1), 7.0)
    status = scheduler.status()[0]
    assert (status.batches, status.busy, status.incarnation, status.rejected) == (45, 4.5, 2, 3)
    assert status.throughput == pytest.approx(10.0)


def test_batches_that_were_not_saved_are_repeated(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((Job("a", 100.0, LossTarget("loss", 0.01)),)), 0.0)
    scheduler.handle(report("a", 1, 40, 4.0, cells=cells([4.0, 3.0, 2.0, 1.0])), 4.0)
    scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), 5.0)
    scheduler.handle(report("a", 1, 21, 0.1, incarnation=2, batches_at_start=20), 6.0)
    assert scheduler.status()[0].batches == 21
    # Numbered anew; the cells at 30 and 40 batches are known, the one at 50 is not.
    again = (Cell(1, 30, 9.0), Cell(2, 40, 9.0), Cell(3, 50, 0.5))
    scheduler.handle(report("a", 2, 50, 3.0, incarnation=2, batches_at_start=20, cells=again), 7.0)
    status = scheduler.status()[0]
    assert (status.batches, status.cells, status.busy) == (50, 5, 7.0)
    assert status.loss == pytest.approx((4 + 3 + 2 + 1 + 0.5) / 5)
    assert status.throughput == pytest.approx(10.0, rel=0.02)


def test_a_script_that_leaves_ends_its_job(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100, can=SCRIPT, device=0),)), 0.0)
    [end] = scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), 1.0)
    assert isinstance(end, End)
    assert str(end.reason) == "its training ended"


def test_a_pool_that_closes_and_reopens(scheduler: Scheduler) -> None:
    scheduler.handle(
        Submit((job("a", 100.0, 100), job("b", 200.0, 100), job("script", 90.0, 100, can=SCRIPT, device=0))), 0.0
    )
    scheduler.handle(report("a", 1, 30, 3.0), 3.0)
    answers = scheduler.handle(Close(), 4.0)
    said = "the pool is shutting down; the job is saved and resumes with the pool"
    left = [(a.job, a.share, a.devices) for a in answers if isinstance(a, Grant) and str(a.reason) == said]
    assert left == [("a", 0.0, ()), ("b", 0.0, ())]
    assert shares(scheduler)["script"] == 1.0
    assert scheduler.placements() == []
    scheduler.check()
    scheduler.handle(WorkerExited("a", 1, ExitCause.RELEASED), 5.0)
    answers = scheduler.handle(WorkersLost(), 60.0)
    assert [a for a in answers if isinstance(a, End)] == []
    assert scheduler.placements() == [Placement("a", 3, (0,)), Placement("b", 2, (0,))]
    assert shares(scheduler) == {"a": 0.0, "b": 0.0, "script": 1.0}
    assert scheduler.status()[0].batches == 30
    scheduler.check()


def waiting_script(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("script", 90.0, 100, can=SCRIPT, device=0),)), 0.0)
    scheduler.handle(report("script", 1, 30, 3.0), 3.0)
    scheduler.handle(Close(), 4.0)
    for now in (10.0, 20.0):  # taken down once more before its script is back
        scheduler.handle(WorkersLost(), now)
    [status] = scheduler.status()
    assert (status.state, status.incarnation, status.batches) == (State.RECOVERING, 2, 30)
    assert str(status.grant_reason) == "the pool was down, and its script has not joined again"


def test_a_script_that_is_back_after_the_pool_was_down_goes_on_as_the_same_job(scheduler: Scheduler) -> None:
    waiting_script(scheduler)
    scheduler.handle(report("script", 1, 45, 1.0, incarnation=2), 21.0)
    [status] = scheduler.status()
    assert (status.state, status.batches, status.busy) == (State.RUNNING, 45, 4.0)
    scheduler.check()


def test_one_that_does_not_come_back_ends_with_that_as_its_reason(scheduler: Scheduler) -> None:
    waiting_script(scheduler)
    [end] = scheduler.handle(WorkerExited("script", 2, ExitCause.LOST, "its process has exited"), 40.0)
    assert isinstance(end, End)
    assert (end.verdict, str(end.reason)) == (
        Verdict.MISSED, "the pool was down, and its script has not joined again"
    )  # fmt: skip
    scheduler.check()


def test_jobs_submitted_to_a_closing_pool_wait(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100),)), 0.0)
    scheduler.handle(Close(), 1.0)
    scheduler.handle(Submit((job("b", 100.0, 100),)), 2.0)
    assert shares(scheduler) == {"a": 0.0, "b": 0.0}
    scheduler.handle(WorkersLost(), 3.0)
    assert shares(scheduler) == {"a": 1.0, "b": 0.0}


def test_a_name_whose_job_has_ended_may_be_used_again(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 100.0, 100), job("b", 100.0, 100))), 0.0)
    [end, *_] = scheduler.handle(Cancel("a"), 1.0)
    assert isinstance(end, End)
    scheduler.handle(Submit((job("a", 10.0, 7),)), 2.0)
    again = scheduler.directive("a")
    assert isinstance(again, Grant)
    assert again.version > end.version
    assert scheduler.incarnation("a") == 2
    [stale] = scheduler.handle(report("a", 9, 100), 3.0)
    assert isinstance(stale, End)
    assert str(stale.reason) == "another incarnation of this job is running"
    [answer] = directives(scheduler.handle(report("a", 1, 7, 1.0, incarnation=2), 4.0))[:1]
    assert isinstance(answer, End)
    assert answer.verdict is Verdict.MET
    assert [(s.name, s.verdict) for s in scheduler.status()] == [
        ("a", Verdict.CANCELLED),
        ("b", None),
        ("a", Verdict.MET),
    ]
    assert scheduler.names() == ["b", "a"]


# ------------------------------------------------------------------------------------- evaluations, sizes, estimates


def test_one_evaluation_meets_the_target() -> None:
    target = LossTarget("val_acc", at_least=0.9)
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((Job("a", 100.0, target),)), 0.0)
    met = (*cells([0.5, 0.91], 100), Cell(3, 300, 0.89))
    [end] = directives(scheduler.handle(report("a", 1, 300, 3.0, cells=met, evaluated=True), 3.0))
    assert isinstance(end, End)
    assert end.verdict is Verdict.MET  # by the second of them, whatever came after it in the same report
    assert str(scheduler.status()[0].target) == "val_acc >= 0.9"
    status = scheduler.status()[0]
    assert (status.value, status.best, status.loss) == (0.91, 0.91, None)


@pytest.mark.parametrize(("evaluated", "many", "judged"), [(True, 3, False), (True, 4, True), (False, 4, False)])
def test_four_evaluations_are_enough_for_a_verdict(evaluated: bool, many: int, judged: bool) -> None:
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((Job("a", 1e5, LossTarget("val_loss", 0.01)),)), 0.0)
    losses = [(10 * n) ** -0.5 for n in range(1, many + 1)]
    scheduler.handle(report("a", 1, 60, 1.0, cells=cells(losses), evaluated=evaluated), 1.0)
    answers = scheduler.handle(Tick(), 2.0)
    assert [n[:2] for n in notices(answers)] == ([("a", "feasible")] if judged else [])


def test_cells_that_arrive_all_at_once_are_all_counted() -> None:
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((Job("a", 1e5, LossTarget("loss", 0.01)),)), 0.0)
    scheduler.handle(report("a", 1, 30_000, 1.0, cells=cells([1.0] * 3000)), 1.0)
    scheduler.handle(report("a", 2, 30_010, 1.0, cells=cells([1.0], first=3001)), 2.0)
    assert scheduler.status()[0].cells == 3001


def test_a_job_that_cannot_fit_the_pool_is_reported_at_once() -> None:
    scheduler = Scheduler(Settings(devices=2))
    wide = job("wide", 100.0, 100, min_devices=3, max_devices=4)
    answers = directives(
        scheduler.handle(Submit((wide, job("lost", 100.0, 100, can=SCRIPT, device=2), job("a", 100.0, 100))), 0.0)
    )
    assert [(a.job, a.verdict, str(a.reason)) for a in answers if isinstance(a, End)] == [
        ("wide", Verdict.CANCELLED, "needs 3 devices, but the pool has 2"),
        ("lost", Verdict.CANCELLED, "requires device 2, but the pool has only 2 devices"),
    ]
    assert shares(scheduler) == {"wide": 0.0, "lost": 0.0, "a": 1.0}


def test_a_job_takes_as_many_devices_as_it_may_and_the_pool_has() -> None:
    scheduler = Scheduler(Settings(policy="fifo", devices=4))
    scheduler.handle(Submit((job("a", 100.0, 100, min_devices=2, max_devices=8), job("b", 100.0, 100))), 0.0)
    assert scheduler.status()[0].devices == (0, 1, 2, 3)
    assert shares(scheduler) == {"a": 1.0, "b": 0.0}
    assert Placement("a", 1, (0, 1, 2, 3)) in scheduler.placements()


def test_a_persons_estimate_counts_until_the_throughput_is_known() -> None:
    scheduler = Scheduler(Settings(policy="lrf", policy_args={"explore": 0}))
    scheduler.handle(Submit((job("long", 100.0, 10, work=30.0), job("short", 100.0, 90, work=5.0))), 0.0)
    assert shares(scheduler) == {"long": 0.0, "short": 1.0}
    assert [s.verdict for s in scheduler.status()] == [None, None]  # an estimate is not a measurement
    scheduler.handle(report("short", 1, 5, 10.0), 10.0)  # two seconds a batch: 170 s more
    scheduler.handle(Tick(), 11.0)
    assert shares(scheduler) == {"long": 1.0, "short": 0.0}


# ------------------------------------------------------------------------------------------------------------ notices


def test_verdict_changes_are_reported_exactly_when_the_verdict_changes(scheduler: Scheduler) -> None:
    scheduler.handle(Submit((job("a", 20.0, 100),)), 0.0)
    told: list[str] = []
    for second, batches in enumerate([0, 20, 20, 22, 22, 40, 90], 1):
        answers = scheduler.handle(report("a", second, batches, float(second)), float(second))
        answers = [*answers, *scheduler.handle(Tick(), float(second))]
        told += [f"{second} {verdict}" for _, verdict, _ in notices(answers)]
        assert not [a for a in answers if isinstance(a, VerdictChanged)] or scheduler.status()[0].verdict is not None
    # 20 batches in 2 s: fine. In 4 s 22: 78 at 5.5 a second is fine too, in 5 s not; at 40 in 6 s it is again.
    assert told == ["2 feasible", "5 infeasible", "6 feasible"]


def test_heavier_jobs_are_kept_first() -> None:
    scheduler = Scheduler(Settings(policy="lara", policy_args={"explore": 0, "order": "edf"}))
    scheduler.handle(Submit((job("light", 12.0, 100), job("heavy", 13.0, 100, weight=3.0))), 0.0)
    for name in ("light", "heavy"):
        scheduler.handle(report(name, 1, 10, 1.0), 0.0)
    scheduler.handle(Tick(), 1.0)
    assert shares(scheduler) == {"light": 0.0, "heavy": 1.0}
    scheduler.handle(SetTerms("light", weight=9.0), 2.0)
    assert shares(scheduler) == {"light": 1.0, "heavy": 0.0}
