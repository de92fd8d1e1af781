"""The last line of every training: whether its target was met, or why not, and what would have sufficed."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
from lightning.pytorch.callbacks import EarlyStopping, RichProgressBar, TQDMProgressBar

from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import End, Verdict, VerdictChanged
from lightning_core.core.codec import decode_event, encode_event
from lightning_core.core.commands import Cancel
from lightning_core.core.events import Cell, ExitCause, Horizon, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.matrix.forks import Forks
from tests.tiny import QUIET, Line, Points, ValidatedPoints

# ------------------------------------------------------------------------------------------------ the scheduler


def version(scheduler: Scheduler, job: str) -> int:
    directive = scheduler.directive(job)
    assert directive is not None
    return directive.version


def curve(scheduler: Scheduler, cells: int, horizon: Horizon | None = None) -> None:
    """Report a loss of 10 / batches, with ten batches a cell and a second."""
    for k in range(1, cells + 1):
        cell = Cell(k, 10 * k, 1.0 / k)
        scheduler.handle(
            Report("a", 1, k, version(scheduler, "a"), 10 * k, float(k), (cell,), horizon=horizon), float(k)
        )


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_end_of_which_half_says_never_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One quantile says that the target is reached at once, and the next one says never."""
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 100.0, LossTarget("loss", 0.01)),)), 0.0)
    curve(scheduler, 20)
    monkeypatch.setattr("lightning_core.scheduler.status.work_left", lambda *_: np.repeat([0.0, np.inf], 10))
    [end] = [answer for answer in scheduler.handle(Cancel("a"), 25.0) if isinstance(answer, End)]
    assert end.reason.code == "cancelled_unsure"


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"fixed"}))
def test_a_target_beyond_the_end_of_its_training_is_infeasible_with_a_reason(policy: str) -> None:
    scheduler = Scheduler(Settings(policy=policy))
    jobs = Job("a", 1000.0, LossTarget("loss", 0.01)), Job("b", 1000.0, BatchTarget(100))
    scheduler.handle(Submit(jobs), 0.0)
    curve(scheduler, 20, Horizon(225, "max_epochs=3"))
    scheduler.handle(Report("b", 1, 1, 9, 10, 1.0), 20.5)
    scheduler.handle(Tick(), 21.0)
    scheduler.handle(Tick(), 22.0)
    a, b = scheduler.status()
    assert a.verdict is Verdict.INFEASIBLE
    assert str(a.reason).startswith(
        "its training ends at max_epochs=3 after 225 batches, but by forecast the target needs at least 7"
    )
    if policy in ("triage", "guarded_edf", "index_edf", "lara", "laira", "decor", "lrf", "etf"):
        assert (a.share, b.share) == (0.0, 1.0)  # no time is spent on an infeasible job
    scheduler.check()


def test_an_end_that_may_come_first_names_no_number_that_is_not_sure() -> None:
    """Of a curve whose end half of the forecast puts before the end of its training."""
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 1000.0, LossTarget("loss", 0.01)),)), 0.0)
    curve(scheduler, 40, Horizon(900, "max_epochs=12"))
    scheduler.handle(Tick(), 45.0)
    [a] = scheduler.status()
    assert a.verdict is Verdict.AT_RISK
    words = "its training ends at max_epochs=12 after 900 batches, perhaps before its target is met"
    assert str(a.reason) == words


def test_a_batch_target_beyond_the_trainer_s_limit_is_infeasible_at_once() -> None:
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((Job("a", 60.0, BatchTarget(1000)),)), 0.0)
    answers = scheduler.handle(Report("a", 1, 1, 1, 0, 0.0, horizon=Horizon(500, "max_steps=500")), 0.1)
    [notice] = [answer for answer in answers if isinstance(answer, VerdictChanged)]
    assert notice.verdict is Verdict.INFEASIBLE
    assert str(notice.reason) == "its training ends at max_steps=500 after 500 batches, but the target is 1,000"
    scheduler.handle(Report("a", 1, 2, 1, 10, 1.0, horizon=Horizon(5000, "max_steps=5000")), 1.0)
    scheduler.handle(Tick(), 2.0)
    assert scheduler.status()[0].verdict is Verdict.AT_RISK or scheduler.status()[0].verdict is Verdict.INFEASIBLE
    assert "max_steps" not in str(scheduler.status()[0].reason)


def test_a_time_limit_of_the_trainer_is_a_second_deadline() -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 600.0, BatchTarget(1000)),)), 0.0)
    scheduler.handle(Report("a", 1, 1, 1, 10, 1.0, horizon=Horizon(seconds=50.0)), 1.0)
    scheduler.handle(Tick(), 2.0)
    [status] = scheduler.status()
    words = "needs at least 94s alone on its devices, but its time limit (max_time or Slurm's) is up in 49.0s"
    assert (status.verdict, str(status.reason)) == (Verdict.INFEASIBLE, words)
    assert status.deadline == 600.0


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (WorkerExited("a", 1, ExitCause.DONE, "at max_epochs=3"), "its training ended at max_epochs=3"),
        (WorkerExited("a", 1, ExitCause.INTERRUPTED, "SIGTERM"), "interrupted by SIGTERM"),
        (WorkerExited("a", 1), "its training ended"),
    ],
)
def test_the_end_names_its_cause_the_best_value_and_the_missing_time(event: WorkerExited, words: str) -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 1000.0, LossTarget("loss", 0.01)),)), 0.0)
    curve(scheduler, 40)
    [end] = scheduler.handle(event, 41.0)
    assert isinstance(end, End)
    said, _, rest = str(end.reason).partition(": best ")
    assert said == words
    best, _, more = rest.partition(", target 0.01; by forecast, about ")
    assert 0.02 < float(best) < 0.03
    assert more.endswith("s more would have been enough")
    assert 30 < end.reason.numbers[2] < 200  # by 10 / batches it is 60 s


def test_an_end_without_a_falling_curve_makes_no_estimate() -> None:
    def end_of(target: Any, *reports: Report) -> str:
        scheduler = Scheduler(Settings(policy="edf"))
        scheduler.handle(Submit((Job("a", 1000.0, target),)), 0.0)
        for now, report in enumerate(reports, 1):
            scheduler.handle(report, float(now))
        [end] = scheduler.handle(WorkerExited("a", 1, ExitCause.DONE, "at max_steps=9"), 50.0)
        assert isinstance(end, End)
        return str(end.reason)

    flat = [Report("a", 1, k, 9, 10 * k, float(k), (Cell(k, 10 * k, 1.0),)) for k in range(1, 40)]
    ended = "its training ended at max_steps=9: "
    assert end_of(LossTarget("loss", 0.5), *flat) == f"{ended}best 1, target 0.5"
    assert end_of(LossTarget("loss", 0.5), *flat[:3]) == f"{ended}best 1, target 0.5"
    assert end_of(LossTarget("loss", 0.5), Report("a", 1, 1, 9, 9, 1.0)) == f"{ended}its target metric was never seen"
    words = f"{ended}9 of 100 batches; about 10s more would have been enough"
    assert end_of(BatchTarget(100), Report("a", 1, 1, 9, 9, 1.0)) == words
    assert end_of(BatchTarget(100)) == "its training ended at max_steps=9"


def test_the_horizon_round_trips_and_is_validated() -> None:
    report = Report("a", 1, 1, 1, 9, 1.0, horizon=Horizon(300, "max_epochs=3", 12.5))
    assert decode_event(encode_event(report)) == report
    shapes: list[Any] = [("x", "", None), (1.5, "", None), (1, 2, None), (1, "", "soon")]
    for wrong in shapes:
        with pytest.raises(ValueError, match="horizon"):
            encode_event(Report("a", 1, 1, 1, 9, 1.0, horizon=Horizon(*wrong)))
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((Job("a", 60.0, BatchTarget(100)),)), 0.0)
    for number, hostile in enumerate((Horizon(-1), Horizon(2**70), Horizon(seconds=-1.0)), 1):
        scheduler.handle(Report("a", 1, number, 1, 9, 1.0, horizon=hostile), 1.0)
        assert scheduler.status()[0].batches == 0


# ------------------------------------------------------------------------------------------------ the callback


def line_of(capsys: pytest.CaptureFixture[str]) -> str:
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lightning_core: ")]
    assert len(said) == 1
    return said[0]


def fit(target: Any = None, data: Any = None, model: Any = None, **options: Any) -> None:
    callbacks = [CoreCallback("a", "10m", target or LossTarget("loss", 1e-300), pool="local", every=2)]
    callbacks += options.pop("callbacks", [])
    pl.Trainer(**QUIET | options, callbacks=callbacks).fit(model or Line(), datamodule=data or Points())


FOR_EVER: dict[str, Any] = {"max_epochs": -1}
QUARTER: dict[str, Any] = {"max_epochs": 4, "limit_train_batches": 4}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_epochs": 2}, "its training ended at max_epochs=2"),
        ({"max_steps": 24}, "its training ended at max_steps=24"),
        (QUARTER, "its training ended at max_epochs=4"),
        (FOR_EVER | {"max_time": {"seconds": 2}}, "its training ended at max_time"),
    ],
)
def test_the_last_line_of_a_script_names_its_end(
    options: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(model=Line(lr=0.001), **options)
    assert line_of(capsys).startswith(f"lightning_core: a: missed: {words}: best ")


def test_a_stop_by_another_callback_names_the_callback(capsys: pytest.CaptureFixture[str]) -> None:
    stopper = EarlyStopping("val_loss", patience=1, min_delta=10.0)
    fit(data=ValidatedPoints(), max_epochs=50, callbacks=[stopper])
    line = line_of(capsys)
    assert "its training ended by EarlyStopping" in line
    assert "did not improve" in line or not hasattr(stopper, "stopping_reason_message")  # Lightning 2.6 says why


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_a_met_target_is_printed_also_beside_a_progress_bar(
    bar: type[pl.Callback], capsys: pytest.CaptureFixture[str]
) -> None:
    fit(BatchTarget(10), max_epochs=50, enable_progress_bar=True, callbacks=[bar()])
    assert line_of(capsys).startswith("lightning_core: a: met: target met with ")


def test_a_target_beyond_max_steps_is_reported_before_the_training_ends(caplog: pytest.LogCaptureFixture) -> None:
    fit(BatchTarget(1000), model=Line(pause=0.05), max_steps=20, max_epochs=-1)
    assert "a: infeasible: its training ends at max_steps=20 after 20 batches, but the target is 1,000" in caplog.text


HALF: dict[str, Any] = {"max_epochs": 3, "limit_train_batches": 0.5}


@pytest.mark.parametrize(
    ("options", "batches", "by"),
    [
        ({"max_epochs": 3}, 48, "max_epochs=3"),
        (HALF, 24, "max_epochs=3"),
        ({"max_epochs": 3, "accumulate_grad_batches": 5}, 12, "max_epochs=3"),
        ({"max_epochs": 3, "max_steps": 40}, 40, "max_steps=40"),
        ({"max_epochs": -1, "max_steps": 5}, 5, "max_steps=5"),
    ],
)
def test_the_horizon_is_the_end_of_the_training(options: dict[str, Any], batches: int, by: str) -> None:
    class Look(pl.Callback):
        """Records the reported horizon at each batch."""

        seen: set[Any]

        def on_train_batch_end(self, *_: Any) -> None:
            self.seen.add(core._fit.mailbox.outbox.horizon)

    look, core = Look(), CoreCallback("a", "10m", LossTarget("loss", 1e-300), pool="local")
    look.seen = set()
    trainer = pl.Trainer(**QUIET | options, callbacks=[core, look])
    trainer.fit(Line(), datamodule=Points())
    assert trainer.global_step == batches
    assert look.seen == {Horizon(batches, by)}


def interrupted(number: int) -> None:
    """Train until this process sends itself a signal, in a fork."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    callback = CoreCallback("a", "10m", LossTarget("loss", 1e-300), pool="local")

    class Sends(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 40:
                os.kill(os.getpid(), number)

    trainer = pl.Trainer(**QUIET | {"enable_progress_bar": True}, max_epochs=-1, callbacks=[callback, Sends()])
    trainer.fit(Line(pause=0.01), datamodule=Points())


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), pytest.param(signal.SIGTERM, "SIGTERM", marks=pytest.mark.nightly)]
)
def test_the_last_line_of_an_interrupted_script_says_so(number: signal.Signals, name: str, forks: Forks) -> None:
    [ended] = forks.run("tests.scheduler.test_endings:interrupted", int(number))
    assert ended.code is not None
    said = ended.output
    told = [line for line in said.replace("\r", "\n").splitlines() if line.startswith("lightning_core: ")]
    assert len(told) == 1, said
    assert told[0].startswith(f"lightning_core: a: missed: interrupted by {name}")
