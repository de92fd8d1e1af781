"""CoreCallback in real Trainers, with a client that the test steers."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.agent import options
from lightning_core.agent.reporting import joining
from lightning_core.agent.steering.fit_signals import JobEnded
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Directive, End, Grant, JobForecast, JoinReply, Verdict
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.server.clients.local_client import LocalClient
from tests.tiny import QUIET, Line, Points, ValidatedPoints
from tests.waiting import join, until


def grant(version: int, share: float) -> Grant:
    return Grant("job", version, share, (0,), Reason("fixed_share"))


class Script:
    """A client whose directive the test sets."""

    def __init__(self, directive: Directive | None = None) -> None:
        self.directive = directive
        self.report_period = 0.0
        self.reports: list[Report] = []
        self.waits = 0
        self.away = False
        self._news = threading.Condition()

    def say(self, directive: Directive) -> None:
        with self._news:
            self.directive = directive
            self._news.notify_all()

    def report(self, report: Report) -> Directive | None:
        if self.away:
            raise ConnectionError("no server")
        self.reports.append(report)
        return self._newer(report.version)

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        with self._news:
            self.waits += 1
            if self._newer(version) is None:
                self._news.wait(timeout)
        return self._newer(version)

    def job_forecast(self, job: str) -> JobForecast | None:
        return None

    def left(self, event: WorkerExited) -> None:
        """Ignore the event."""

    def close(self) -> None:
        """Nothing to put away."""

    def _newer(self, version: int) -> Directive | None:
        return self.directive if self.directive is not None and self.directive.version > version else None


class AlwaysFree:
    """A device lock that is always free and records its calls."""

    def __init__(self) -> None:
        self.held = False
        self.log: list[str] = []

    def acquire(self, share: float, timeout: float, beside: int = 0) -> bool:
        self.held = True
        self.log.append(f"acquire {share}" + (f" beside {beside}" if beside else ""))
        return True

    def expired(self) -> bool:
        return False

    def release(self, *, again: bool, share: float = 0.0, beside: int = 0) -> None:
        self.held = False
        self.log.append(("release again" if again else "release") + (f" beside {beside}" if beside else ""))

    def close(self) -> None:
        """Nothing to put away."""


def fit(callback: CoreCallback, model: Line | None = None, data: Points | None = None, **more: Any) -> pl.Trainer:
    start = more.pop("ckpt_path", None)
    options: dict[str, Any] = {"max_epochs": 10, **QUIET, "callbacks": [callback], **more}
    trainer = pl.Trainer(**options)
    trainer.fit(model or Line(), datamodule=data or Points(), ckpt_path=start)
    return trainer


class ConnectedScript(CoreCallback):  # type: ignore[misc]
    """The callback of a script that is given a client rather than a pool to join."""

    def __init__(self, job: str, target: Target | str, *, client: Any, device_lock: Any = None, **options: Any) -> None:
        super().__init__(job, "10m", target, **options)
        self._options: Any = replace(self._options, client=client, device_lock=device_lock)


def steered(
    script: Script, target: Target | None = None, device_lock: Any = None, launched: bool = True
) -> CoreCallback:
    kind: Any = LaunchedCallback if launched else ConnectedScript
    made = kind("job", target or BatchTarget(10**9), client=script, device_lock=device_lock)
    assert isinstance(made, CoreCallback)
    return made


def test_alone_with_its_own_scheduler_it_stops_when_the_target_is_met() -> None:
    callback = CoreCallback("line", deadline="10m", target=LossTarget("loss", 0.05), pool="local")
    trainer = fit(callback, Line(pause=0.001), max_epochs=-1)
    assert 50 <= trainer.global_step < 5000
    assert callback.directive is None


def test_every_batch_is_counted_and_every_cell_arrives_once_in_order() -> None:
    script = Script(grant(1, 1.0))
    trainer = fit(steered(script))
    last = script.reports[-1]
    assert last.batches == trainer.global_step == 160
    assert 0 < last.busy < 60
    numbers = [cell.number for report in script.reports for cell in report.cells]
    assert sorted(set(numbers)) == list(range(1, 17))
    assert [r.number for r in script.reports] == list(range(1, len(script.reports) + 1))


def test_the_reported_loss_is_not_divided_by_the_accumulation() -> None:
    """With accumulation a batch is an optimizer step, and the loss is not divided: the same curve."""
    runs = {}
    for k in (1, 4):
        pl.seed_everything(1)
        script = Script(grant(1, 1.0))
        fit(steered(script), Line(lr=0.0), accumulate_grad_batches=k)
        cells = {cell.number: cell for report in script.reports for cell in report.cells}
        runs[k] = (script.reports[-1].batches, cells[1].value)
    assert (runs[1][0], runs[4][0]) == (160, 40)
    assert runs[4][1] == pytest.approx(runs[1][1], rel=0.5)


@pytest.mark.promise("R15", "F10")
def test_bad_losses_are_ignored_and_counted() -> None:
    script = Script(grant(1, 1.0))
    fit(steered(script), Line(bad_after=20))
    assert script.reports[-1].rejected == 3
    assert all(cell.value > 0 for report in script.reports for cell in report.cells)


def test_without_a_share_it_holds_and_releases_the_device() -> None:
    script, device_lock = Script(grant(1, 1.0)), AlwaysFree()
    callback = steered(script, device_lock=device_lock)
    trained: list[pl.Trainer] = []
    model = Line(pause=0.002)
    thread = threading.Thread(target=lambda: trained.append(fit(callback, model, max_epochs=-1)))
    thread.start()
    until(lambda: len(script.reports) > 2 and script.reports[-1].batches > 0)
    script.say(grant(2, 0.0))
    until(lambda: device_lock.log[-1] == "release" and script.reports[-1].batches == model.steps)
    at, calls = model.steps, len(script.reports)
    time.sleep(0.5)
    assert len(script.reports) - calls <= 1  # one long call, no chatter
    assert model.steps == at
    assert not device_lock.held
    assert device_lock.log[-1] == "release"
    script.say(grant(3, 0.25))
    until(lambda: script.reports[-1].batches > at + 5)
    assert "acquire 0.25" in device_lock.log
    script.say(End("job", 4, Verdict.MET, Reason("target_met", (1.0,))))
    join(thread)
    assert len(trained) == 1


def test_beside_another_job_it_trains_without_a_share() -> None:
    """It asks within its group, leaves it when its number changes, and releases the device for no other news."""
    script, lock, model = Script(grant(1, 0.0)._replace(beside=7)), AlwaysFree(), Line(pause=0.002)
    thread = threading.Thread(target=lambda: fit(steered(script, device_lock=lock), model, max_epochs=-1))
    thread.start()
    said: list[list[str]] = []
    for version, (share, beside) in enumerate([(0.0, 7), (0.0, 8), (0.5, 8), (0.5, 0), (0.0, 0), (0.0, 9)], start=1):
        heard = len(lock.log)
        if version > 1:
            script.say(grant(version, share)._replace(beside=beside))
        until(lambda latest=version: script.reports and script.reports[-1].version == latest)  # type: ignore[misc]
        at = model.steps
        if share or beside:
            until(lambda before=at: model.steps > before + 5)  # type: ignore[misc]
        else:
            time.sleep(0.2)
            assert model.steps <= at + 1
        said.append(lock.log[heard:])
    script.say(End("job", 7, Verdict.MET, Reason("target_met", (1.0,))))
    join(thread)
    assert said[0][-1] == "acquire 0.0 beside 7"
    assert said[1] == ["release beside 8", "acquire 0.0 beside 8"]
    assert said[2] == []
    assert said[3] == ["release", "acquire 0.5"]
    assert said[4][-1] == "release"
    assert said[5][-1] == "acquire 0.0 beside 9"


def test_a_launched_job_leaves_when_it_is_ended_also_while_held() -> None:
    script = Script(grant(1, 0.0))
    threading.Timer(1.0, script.say, [End("job", 2, Verdict.MISSED, Reason("deadline_passed"))]).start()
    with pytest.raises(JobEnded, match="deadline passed"):
        fit(steered(script, device_lock=AlwaysFree()), Line(pause=0.01), max_epochs=-1)


def test_a_script_trains_on_when_its_job_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(End("job", 2, Verdict.MISSED, Reason("deadline_passed")))
    trainer = fit(steered(script, launched=False), Line(pause=0.002))
    assert trainer.global_step == 160
    assert "deadline passed" in caplog.text


@pytest.mark.promise("R3", "F23")
def test_training_goes_on_without_a_scheduler_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(grant(1, 1.0))
    script.away = True

    def come_back() -> None:
        until(lambda: "does not answer" in caplog.text)
        script.away = False

    threading.Thread(target=come_back).start()
    fit(steered(script), Line(pause=0.01))
    assert "the scheduler does not answer, training continues" in caplog.text
    assert caplog.text.count("does not answer") == 1
    numbers = {cell.number for report in script.reports for cell in report.cells}
    assert numbers == set(range(1, 17))


def test_validation_counts_as_busy() -> None:
    script = Script(grant(1, 1.0))
    fit(steered(script), Line(pause=0.02), ValidatedPoints(), max_epochs=2, limit_train_batches=1)
    last = script.reports[-1]
    assert last.batches == 2
    assert last.busy >= 0.02 * (2 + 2 * 2)  # two training batches, two validation batches an epoch


def test_a_logged_metric_is_a_target() -> None:
    callback = CoreCallback("line", deadline="10m", target=LossTarget("train_loss", 0.05), pool="local")
    trainer = fit(callback, Line(pause=0.001, log="train_loss"), max_epochs=-1)
    assert trainer.global_step < 5000


@pytest.mark.promise("F11")
def test_a_metric_that_is_never_logged_is_an_error_that_names_the_logged_ones() -> None:
    callback = steered(Script(grant(1, 1.0)), LossTarget("trian_loss", 0.1))
    with pytest.raises(MisconfigurationException, match="'trian_loss' was never logged; logged so far: train_loss"):
        fit(callback, Line(log="train_loss"))


def test_a_script_is_only_warned_of_a_missing_metric(caplog: pytest.LogCaptureFixture) -> None:
    callback = CoreCallback("line", deadline="10m", target=LossTarget("accuracy", 0.1), pool="local")
    trainer = fit(callback, max_epochs=3)
    assert trainer.global_step == 48
    assert caplog.text.count("never logged; logged so far: nothing") == 1


def test_consecutive_evaluations_need_an_evaluated_metric(caplog: pytest.LogCaptureFixture) -> None:
    target = LossTarget("train_loss", 1e-9, for_evaluations=2)
    words = "target metric 'train_loss' is logged with every batch, so for_evaluations: 2 has no effect: remove it"
    with pytest.raises(MisconfigurationException, match=words):
        fit(steered(Script(grant(1, 1.0)), target), Line(log="train_loss"))
    fit(CoreCallback("line", "10m", target, pool="local"), Line(log="train_loss"), max_epochs=3)
    assert caplog.text.count(words) == 1


def test_a_script_stops_after_as_many_evaluations_as_were_asked() -> None:
    class Noisy(Line):
        """Validates to the values of a list."""

        def __init__(self, values: list[float]) -> None:
            super().__init__()
            self.values = values

        def on_validation_epoch_end(self) -> None:
            self.log("val_acc", self.values[self.trainer.current_epoch])

    epochs: dict[str, object] = {}
    for line in ("val_acc>=0.9", "val_acc>=0.9 for 2 evaluations"):
        values = [0.5, 0.93, 0.6, 0.91, 0.9, *[0.1] * 300]
        client = LocalClient()
        callback = ConnectedScript("line", line, client=client)
        client.join(callback._options.job, "cpu")
        trainer = fit(callback, Noisy(values), ValidatedPoints(), max_epochs=300)
        [status] = client._host.scheduler.status()
        epochs[line] = (status.verdict, status.value, status.best, status.cells)
        assert trainer.current_epoch < 300
    assert epochs == {
        "val_acc>=0.9": (Verdict.MET, pytest.approx(0.93), pytest.approx(0.93), 2),
        "val_acc>=0.9 for 2 evaluations": (Verdict.MET, pytest.approx(0.9), pytest.approx(0.93), 5),
    }


def test_an_error_in_training_comes_through_and_the_last_report_is_sent() -> None:
    script = Script(grant(1, 1.0))
    with pytest.raises(ValueError, match="made to fail"):
        fit(steered(script), Line(raise_at=50))
    assert script.reports[-1].batches == 49


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"deadline": "60s"}, "needs a target"),
        ({"target": BatchTarget(1), "deadline": -60}, "deadline: duration must be positive, got -60"),
        ({"target": BatchTarget(1), "deadline": "soon"}, "deadline: must be a duration such as .*, got 'soon'"),
        ({"target": BatchTarget(1), "deadline": datetime(2020, 1, 1)}, "deadline: a time must be in the future, got"),
        ({"target": BatchTarget(1), "deadline": "24:00"}, "deadline: a time of day is 00:00 to 23:59"),
        ({"target": BatchTarget(1), "deadline": "60s", "every": 0}, "every must be at least 1 batch, got 0"),
        ({"target": BatchTarget(1), "deadline": "60s", "weight": 0.0}, "weight must be positive and finite, got 0"),
        ({"target": BatchTarget(1), "deadline": "60s", "on_miss": "die"}, "on_miss must be one of .*, got 'die'"),
        ({"target": BatchTarget(1), "deadline": "60s", "on_refused": "cry"}, "on_refused must be one of .*, got 'cry'"),
        ({"target": BatchTarget(1), "deadline": "60s", "pool": ""}, "pool must be"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, MisconfigurationException), match=error):
        CoreCallback("job", **arguments)


def test_there_are_few_enough_arguments_to_know_them_all() -> None:
    assert len(inspect.signature(CoreCallback).parameters) <= 14


def test_wrong_arguments_of_a_launched_job_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="save_every must be positive, got 0"):
        LaunchedCallback("job", BatchTarget(1), client=Script(), save_every=0.0)


@pytest.mark.gpu
def test_on_a_gpu_losses_arrive_and_busy_seconds_are_the_device_s() -> None:
    script = Script(grant(1, 1.0))
    trainer = fit(steered(script), accelerator="gpu", devices=1)
    last = script.reports[-1]
    assert last.batches == trainer.global_step == 160
    assert 0 < last.busy < 60
    cells = {cell.number: cell.value for report in script.reports for cell in report.cells}
    assert len(cells) >= 14
    assert cells[1] > cells[max(cells)] > 0


@pytest.mark.gpu
def test_on_a_gpu_no_hook_synchronises_the_device() -> None:
    """Reading a value from the device, which waits for it, is an error within the hooks of a batch."""
    import torch

    callback = LaunchedCallback("job", LossTarget("loss", 1e-9), client=Script(grant(1, 1.0)))

    def strict(name: str) -> None:
        hook = getattr(callback, name)

        def around(*arguments: Any) -> None:
            torch.cuda.set_sync_debug_mode("error")
            try:
                hook(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        setattr(callback, name, around)

    strict("on_train_batch_start")
    strict("on_train_batch_end")
    trainer = fit(callback, accelerator="gpu", devices=1)
    assert trainer.global_step == 160


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[datetime]]:
    """Set the clock that callbacks read."""
    shown = [datetime(2026, 11, 22, 12)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return shown[0]

    monkeypatch.setattr(options, "datetime", Clock)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield shown
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("deadline", "hours", "seconds", "told"),
    [
        ("18:00", 0, 21_600.0, ["line: deadline 18:00 CET, in 6h"]),
        ("18:00", 7, 23 * 3600.0, ["line: deadline 18:00 CET tomorrow, in 23h (18:00 today is past)"]),
        (datetime(2026, 11, 23, 12), 0, 86_400.0, ["tomorrow, in 1d"]),
        ("2026-11-22T18:00", 7, 1.0, ["line: deadline: a time must be in the future"]),  # trains on
        (timedelta(hours=2), 7, 7200.0, []),
        (7200, 0, 7200.0, []),
        ("2 hours", 0, 7200.0, []),
    ],
)
def test_points_in_time_are_resolved_at_the_start_of_fit(
    deadline: Any,
    hours: int,
    seconds: float,
    told: list[str],
    noon: list[datetime],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    callback = CoreCallback("line", deadline=deadline, target=BatchTarget(2), pool="local")
    joined: list[Job] = []

    class Client(LocalClient):
        def join(self, job: Job, device: str) -> JoinReply:
            joined.append(job)
            return super().join(job, device)

    monkeypatch.setattr(joining, "LocalClient", Client)
    noon[0] += timedelta(hours=hours)
    with caplog.at_level("INFO"):
        pl.Trainer(**QUIET, max_epochs=1, callbacks=[callback]).fit(Line(), Points())
    assert [job.deadline for job in joined] == [seconds]
    for words in told:
        assert words in caplog.text
