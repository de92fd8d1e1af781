"""A training that goes on after its target is met, as its Trainer insists: its share stays counted until it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import pytest

from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import End, Grant, JobStatus, State, Verdict
from lightning_core.core.commands import SetDeadline
from lightning_core.core.events import Cell, ExitCause, Horizon, Report, Submit, Tick, WorkerExited, WorkersLost
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.callbacks.test_callback import fit
from tests.socket_servers import Pool, found_pool
from tests.tiny import Line

GOES_ON = Horizon(400, "max_epochs=40", at_least=200)


def scheduler_of(*jobs: Job) -> Scheduler:
    scheduler = Scheduler(Settings("edf", devices=1))
    scheduler.handle(Submit(jobs), 0.0)
    return scheduler


def met_at_50(horizon: Horizon = GOES_ON, **terms: object) -> Scheduler:
    """Jobs a, whose target is met after 50 batches and 5 s, and b, which has all the time."""
    can = frozenset({Capability.TIME_SLICE, Capability.HOLD})
    first = Job("a", 20.0, LossTarget("val", 0.5), can=can, **terms)  # type: ignore[arg-type]
    scheduler = scheduler_of(first, Job("b", 1000.0, BatchTarget(10_000), can=can))
    report(scheduler, 50, 5.0, horizon, (Cell(1, 50, 0.4),))
    return scheduler


def report(
    scheduler: Scheduler, batches: int, now: float, horizon: Horizon = GOES_ON, cells: tuple[Cell, ...] = ()
) -> None:
    number = round(10 * now)
    version = getattr(scheduler.directive("a"), "version", 0)
    scheduler.handle(Report("a", 1, number, version, batches, now, cells, evaluated=True, horizon=horizon), now)
    scheduler.check()


def status(scheduler: Scheduler, name: str = "a") -> JobStatus:
    return next(job for job in scheduler.status() if job.name == name)


def test_it_ends_once_the_trainer_no_longer_insists() -> None:
    scheduler = met_at_50()
    assert (status(scheduler).verdict, status(scheduler).state) == (Verdict.MET, State.HELD)
    assert str(status(scheduler).reason).startswith("target met: continues until its min_epochs or min_steps")
    directive = scheduler.directive("b")
    assert isinstance(directive, Grant)
    assert directive.share == 1.0
    report(scheduler, 60, 40.0, cells=(Cell(2, 60, 0.9),))  # after its deadline, and no longer as good
    assert status(scheduler).verdict is Verdict.MET
    report(scheduler, 200, 60.0)
    end = scheduler.directive("a")
    assert isinstance(end, End)
    assert (end.verdict, str(end.reason)) == (Verdict.MET, "target met with 15.0s to spare")


def test_without_other_jobs_it_keeps_its_device() -> None:
    scheduler = scheduler_of(Job("a", 20.0, LossTarget("val", 0.5)))
    report(scheduler, 50, 5.0, cells=(Cell(1, 50, 0.4),))
    scheduler.handle(Tick(), 6.0)
    assert (status(scheduler).share, status(scheduler).state) == (1.0, State.RUNNING)


@pytest.mark.parametrize("on_miss", list(OnMiss))
def test_its_deadline_means_nothing_more(on_miss: OnMiss) -> None:
    scheduler = met_at_50(on_miss=on_miss)
    scheduler.handle(WorkerExited("b", 1, ExitCause.INTERRUPTED), 30.0)
    scheduler.handle(Tick(), 31.0)
    scheduler.check()
    assert (status(scheduler).verdict, status(scheduler).share) == (Verdict.MET, 1.0)


@pytest.mark.parametrize("cause", [ExitCause.DONE, ExitCause.INTERRUPTED, ExitCause.LOST, ExitCause.RAISED])
def test_however_it_ends_its_target_was_met(cause: ExitCause) -> None:
    scheduler = met_at_50()
    scheduler.handle(WorkerExited("a", 1, cause, "a reason"), 50.0)
    scheduler.check()
    assert (status(scheduler).verdict, status(scheduler).state) == (Verdict.MET, State.ENDED)
    assert str(status(scheduler).reason) == "target met with 15.0s to spare"


def test_a_pool_that_was_down_has_not_taken_that_back() -> None:
    scheduler = met_at_50()
    scheduler.handle(WorkersLost(), 50.0)
    assert status(scheduler).verdict is Verdict.MET
    scheduler.handle(WorkerExited("a", 2, ExitCause.LOST, "its process has exited"), 55.0)
    assert str(status(scheduler).reason) == "target met with 15.0s to spare"


def test_other_terms_do_not_take_that_back() -> None:
    scheduler = met_at_50()
    scheduler.handle(SetDeadline("a", 500.0), 10.0)
    scheduler.check()
    assert status(scheduler).verdict is Verdict.MET


def test_it_is_remembered_by_a_saved_state() -> None:
    scheduler = met_at_50()
    again = Scheduler(Settings("edf", devices=1))
    again.restore(json.loads(json.dumps(scheduler.state())))
    report(again, 200, 60.0)
    assert str(status(again).reason) == "target met with 15.0s to spare"


def test_a_target_that_is_met_late_enough_ends_at_once() -> None:
    scheduler = met_at_50(Horizon(400, "max_epochs=40", at_least=50))
    assert status(scheduler).state is State.ENDED


# ------------------------------------------------------------------------------------------------ real trainings


@pytest.fixture
def pool() -> Iterator[Pool]:
    with found_pool(policy="edf") as made:
        yield made


@pytest.mark.parametrize(
    ("options", "steps"), [({"min_epochs": 6, "max_epochs": 20}, 96), ({"min_steps": 70, "max_epochs": 20}, 70)]
)
def test_a_pool_knows_that_a_script_trains_on(pool: Pool, options: dict[str, Any], steps: int) -> None:
    seen: list[tuple[int, State, str]] = []

    class Looks(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
            [job] = pool.do(pool.actor.status())[1]
            seen.append((trainer.global_step, job.state, str(job.verdict)))

    core = CoreCallback("a", "1h", BatchTarget(20), pool=str(pool.path.parent))
    trainer = fit(core, Line(pause=0.02), callbacks=[core, Looks()], **options)
    assert trainer.global_step < 20 * 16
    after = [(state, verdict) for step, state, verdict in seen if 35 < step < 60]
    assert set(after) == {(State.RUNNING, "met")}
    [job] = pool.do(pool.actor.status())[1]
    assert (job.state, job.verdict) == (State.ENDED, Verdict.MET)
    assert steps <= trainer.global_step <= steps + 32


def test_a_script_that_is_not_to_stop_stays_in_its_pool_until_its_end(pool: Pool) -> None:
    core = CoreCallback("a", "1h", BatchTarget(20), pool=str(pool.path.parent), stop_when_met=False)
    states: list[State] = []

    class Looks(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
            states.append(pool.do(pool.actor.status())[1][0].state)

    trainer = fit(core, Line(pause=0.01), max_epochs=4, callbacks=[core, Looks()])
    assert trainer.global_step == 64
    assert states[-1] is State.RUNNING
    assert core.verdict is Verdict.MET
