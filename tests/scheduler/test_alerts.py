"""Alerts about NaN losses and stalled trainings, and the actions that were requested for them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.agent.reporting.loss_meter import LossMeter
from lightning_core.callbacks import CoreCallback
from lightning_core.core.answers import Alert, Answer, End, State, Verdict
from lightning_core.core.codec import (
    decode_answers,
    decode_event,
    encode_answers,
    encode_event,
    job_from_dict,
    job_to_dict,
    status_from_dict,
    status_to_dict,
)
from lightning_core.core.commands import Pause
from lightning_core.core.events import BadLosses, Cell, Checkpoint, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job, OnNan
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.history import History
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.notifications import Notifier
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.view.why import why
from tests.tiny import QUIET, Line, Points
from tests.waiting import until

SCRIPT = frozenset(Job("x", 1.0, BatchTarget(1)).can) - {"release"}


def job(on_nan: OnNan = OnNan.CONTINUE, **terms: Any) -> Job:
    return Job("a", 1000.0, LossTarget("loss", 0.01), on_nan=on_nan, **terms)


def save(batches: int) -> Checkpoint:
    return Checkpoint(batches, f"{batches:064x}")


class Told:
    """A scheduler with a journal, whose one job trains ten batches and one second a report."""

    def __init__(self, path: Path, first: Job, **settings: Any) -> None:
        self.scheduler = Scheduler(Settings(policy="edf", **settings))
        self.path, self.number, self.batches, self.now = path / "journal.db", 0, 0, 0.0
        self.incarnation = 1
        self.journal = Journal.create(self.path, self.scheduler.settings, durable=False)
        self.take(Submit((first,)))

    def take(self, event: Any, after: float = 0.0) -> list[Answer]:
        self.now += after
        answers = self.scheduler.handle(event, self.now)
        self.scheduler.check()
        self.journal.append(event, self.now, answers, self.scheduler.accepted)
        return answers

    def report(
        self, bad: BadLosses | None = None, checkpoint: Checkpoint | None = None, batches_at_start: int = 0, **more: Any
    ) -> list[Answer]:
        self.number += 1
        self.batches += 10
        cells = () if bad is not None and not bad.over else (Cell(self.number, self.batches, 10 / self.batches),)
        directive = self.scheduler.directive("a")
        assert directive is not None
        report = Report("a", self.incarnation, self.number, directive.version, self.batches, float(self.number), cells,
                        checkpoint=checkpoint, bad_losses=bad, batches_at_start=batches_at_start, **more)  # fmt: skip
        return self.take(report, 1.0)

    def why(self) -> str:
        self.journal.close()
        with Journal.open(self.path) as journal:
            replay(journal)  # strictly
            return "\n".join(why(History.read(journal), "a"))

    @property
    def status(self) -> Any:
        return self.scheduler.status()[-1]


def alerts(answers: list[Answer]) -> list[str]:
    return [str(answer.reason) for answer in answers if isinstance(answer, Alert)]


# ------------------------------------------------------------------------------------------------ losses


def test_the_first_bad_loss_raises_an_alert_which_a_good_one_clears(tmp_path: Path) -> None:
    told = Told(tmp_path, job(OnNan.STOP))
    assert alerts(told.report()) == []
    assert alerts(told.report(BadLosses(12))) == ["its losses have been NaN or infinite since batch 12"]
    assert str(told.status.alert) == "its losses have been NaN or infinite since batch 12"
    assert alerts(told.report(BadLosses(12, 1))) == []  # told already
    assert alerts(told.report(BadLosses(12, 2, over=True))) == []
    assert told.status.alert is None
    assert told.status.state is State.RUNNING  # one that goes away is no reason to stop
    assert alerts(told.report(BadLosses(44))) == []  # nor to be told again, unless it stays
    assert alerts(told.report(BadLosses(44, 1))) == []
    told.take(WorkerExited("a", 1))
    assert re.search(r"alert +its losses have been NaN or infinite since batch 12\n", told.why())


def test_persistent_bad_losses_raise_another_alert_and_nothing_else_by_default(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    told.report(BadLosses(3))
    told.report(BadLosses(3, 1, over=True))
    assert alerts(told.report(BadLosses(24, 3))) == ["its losses have been NaN or infinite since batch 24"]
    assert told.status.state is State.RUNNING


@pytest.mark.parametrize("can", [None, SCRIPT])
def test_on_nan_stop_ends_the_job_with_the_reason(can: Any, tmp_path: Path) -> None:
    told = Told(tmp_path, job(OnNan.STOP) if can is None else job(OnNan.STOP, can=can))
    told.report()
    for cells in range(3):
        assert not [answer for answer in told.report(BadLosses(11, cells)) if isinstance(answer, End)]
    [end] = [answer for answer in told.report(BadLosses(11, 3)) if isinstance(answer, End)]
    assert end.verdict is Verdict.CRASHED
    assert str(end.reason) == "stopped: its losses were NaN or infinite from batch 11 on: best 1, target 0.01"
    assert told.status.alert is None


def test_on_nan_restart_returns_to_an_earlier_checkpoint_a_limited_number_of_times(tmp_path: Path) -> None:
    told = Told(tmp_path, job(OnNan.RESTART))
    told.report(checkpoint=save(5))
    told.report(checkpoint=save(19))
    told.report(BadLosses(21))
    # Saved after the first bad loss, and after the step that it tells of: neither is gone back to, nor displaces one.
    told.report(BadLosses(21, 1), checkpoint=save(40))
    told.report(BadLosses(21, 2), checkpoint=save(50))
    assert told.scheduler.checkpoints("a")[1] == save(19)
    answers = told.report(BadLosses(21, 3))
    assert answers[-1] == End("a", 0, Verdict.CANCELLED, Reason("superseded"))  # its process leaves and saves nothing
    words = "its losses were NaN or infinite from batch 21 on; it resumes from batch 19 and repeats 41 batches"
    assert alerts(answers) == [words]
    assert (told.status.state, str(told.status.fault), told.status.incarnation) == (State.RECOVERING, words, 2)
    assert told.scheduler.checkpoints("a") == (save(19),)
    told.take(WorkerExited("a", 1, ExitCause.LOST, "it was fenced"), 1.0)  # no fault of its own
    told.take(Tick(), 10.0)
    told.incarnation, told.number, told.batches = 2, 0, 9
    told.report(batches_at_start=19)
    assert told.status.state is State.RUNNING
    for cells in range(4):
        answers = told.report(BadLosses(25, cells), batches_at_start=19)
    [end] = [answer for answer in answers if isinstance(answer, End)]
    assert str(end.reason).startswith("its losses were NaN or infinite from batch 25 on; retry limit reached: best")
    story = told.why()
    assert "its losses were NaN or infinite from batch 21 on; lost: 41 batches" in story
    assert "resumed from batch 19" in story
    assert "2 faults" not in story


def test_a_checkpoint_is_good_only_if_a_number_followed_on_it(tmp_path: Path) -> None:
    """The loss of batch 21 is that of the weights after batch 20."""
    told = Told(tmp_path, job(OnNan.RESTART))
    told.report(checkpoint=save(19))
    told.report(checkpoint=save(20))
    for cells in range(4):
        told.report(BadLosses(21, cells))
    assert told.scheduler.checkpoints("a") == (save(19),)


def test_restart_is_refused_for_scripts() -> None:
    with pytest.raises(ValueError, match="on_nan must be 'continue' or 'stop' for a script, got 'restart'"):
        job(OnNan.RESTART, can=SCRIPT)
    with pytest.raises(ValueError, match="in a script, got 'restart': only a job launched by a pool"):
        CoreCallback("a", "1h", "loss<=0.1", on_nan="restart")
    with pytest.raises(ValueError, match="on_nan must be 'continue' or 'stop' in a script, got 'halt'"):
        CoreCallback("a", "1h", "loss<=0.1", on_nan="halt")


def test_alerts_round_trip_and_hostile_numbers_change_nothing() -> None:
    report = Report("a", 1, 1, 1, 9, 1.0, bad_losses=BadLosses(3, 1, True), in_slow_phase=True)
    assert decode_event(encode_event(report)) == report
    with pytest.raises(ValueError, match="bad"):
        encode_event(Report("a", 1, 1, 1, 9, 1.0, bad_losses=BadLosses("x")))  # type: ignore[arg-type]
    alert: list[Answer] = [Alert("a", Reason("bad_losses", (3.0,)))]
    assert decode_answers(encode_answers(alert)) == alert
    assert job_from_dict(job_to_dict(job(OnNan.STOP))) == job(OnNan.STOP)
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((job(OnNan.STOP),)), 0.0)
    for number, hostile in enumerate((BadLosses(-1), BadLosses(2**80), BadLosses(1, -3)), 1):
        assert scheduler.handle(Report("a", 1, number, 1, 9, 1.0, bad_losses=hostile), 1.0) == []
    scheduler.handle(Report("a", 1, 9, 1, 9, 1.0, bad_losses=BadLosses(3)), 2.0)
    [status] = scheduler.status()
    assert status_from_dict(json.loads(json.dumps(status_to_dict(status)))) == status


def test_a_subscriber_can_tell_an_alert_from_a_verdict(tmp_path: Path) -> None:
    out = tmp_path / "told"
    script = f'echo "$LIGHTNING_CORE_EVENT,$LIGHTNING_CORE_VERDICT,$LIGHTNING_CORE_REASON" >> {out}'
    notifier = Notifier({"command": ["sh", "-c", script]})
    notifier.tell([Alert("a", Reason("bad_losses", (1204.0,))), End("a", 1, Verdict.MET, Reason("target_met", (1.0,)))])
    until(lambda: out.exists() and len(out.read_text().splitlines()) == 2)
    assert out.read_text().splitlines() == [
        "alert,,its losses have been NaN or infinite since batch 1,204",
        "verdict,met,target met with 1.0s to spare",
    ]


def test_the_meter_knows_the_newest_run_of_bad_losses() -> None:
    meter = LossMeter(lambda cell: None, every=2, growth=0.0)
    seen = []
    for batch, loss in enumerate([1.0, math.nan, math.nan, math.inf, math.nan, 2.0, math.nan, 1.0], 1):
        meter.add(loss, batch)
        seen.append(meter.bad)
    assert seen == [
        None, BadLosses(2), BadLosses(2), BadLosses(2, 1), BadLosses(2, 1), BadLosses(2, 1, True), BadLosses(7),
        BadLosses(7, 0, True),
    ]  # fmt: skip


class Broken(Line):
    """Its losses are NaN from a batch on, and it logs a metric that is a number all the same."""

    def __init__(self, bad_from: int, **more: Any) -> None:
        super().__init__(**more)
        self.bad_from = bad_from

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("accuracy", 0.5)
        return loss * math.nan if self.steps >= self.bad_from else loss


@pytest.mark.parametrize("target", ["loss<=1e-30", "accuracy>=0.9", "100000 batches"])
def test_a_script_with_bad_losses_is_alerted_and_stopped_for_any_target(
    target: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = CoreCallback("a", "10m", target, pool="local", on_nan="stop")
    trainer = pl.Trainer(**QUIET, max_epochs=200, callbacks=[callback])
    trainer.fit(Broken(24, pause=0.002), datamodule=Points())
    assert 50 <= trainer.global_step < 3000
    assert caplog.text.count("a: the losses have been NaN or infinite since batch 24") == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lightning_core: ")]
    assert line.startswith("lightning_core: a: crashed: stopped: its losses were NaN or infinite from batch 24 on")


# ------------------------------------------------------------------------------------------------ stalls


def test_a_stalled_training_raises_one_alert_which_progress_clears(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    for _ in range(20):
        told.report()
    hung = told.status.busy
    found = []
    for _ in range(70):  # a thread of it goes on reporting
        told.number += 1
        found += alerts(told.take(Report("a", 1, told.number, 99, told.batches, hung), 1.0))
        found += alerts(told.take(Tick()))
    assert found == ["no batch for 61.0s; one usually takes 0.1s"]
    assert told.status.alert is not None
    told.number = told.batches // 10 + 100
    told.report()
    told.take(Tick(), 1.0)
    assert told.status.alert is None
    assert "no batch for 61.0s" in told.why()


def test_a_silent_process_is_a_stall(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    for _ in range(20):
        told.report()
    found = [words for _ in range(70) for words in alerts(told.take(Tick(), 1.0))]
    assert len(found) == 1


def test_a_stall_is_reported_beside_losses_that_are_still_bad(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    for _ in range(20):
        told.report()
    told.report(BadLosses(told.batches))
    found = [words for _ in range(70) for words in alerts(told.take(Tick(), 1.0))]
    assert [words.split(" for ")[0] for words in found] == ["no batch"]
    told.report(BadLosses(told.batches, 1))  # a batch came, so that only the losses are wrong
    told.take(Tick(), 1.0)
    assert "NaN or infinite" in str(told.status.alert)


@pytest.mark.parametrize("why_not", ["slow phase", "paused", "slow", "scheduler away", "never"])
def test_known_causes_of_delay_are_no_stall(why_not: str, tmp_path: Path) -> None:
    told = Told(tmp_path, job(), **({"stall": None} if why_not == "never" else {}))
    for _ in range(20):
        told.take(Tick(), 50.0 if why_not == "slow" else 0.0)
        if why_not == "slow":
            told.number += 49
        told.report(in_slow_phase=why_not == "slow phase")
    if why_not == "paused":
        told.take(Pause("a"))
    if why_not == "scheduler away":
        assert alerts(told.take(Tick(), 600.0)) == []
        return
    assert [words for _ in range(100) for words in alerts(told.take(Tick(), 1.0))] == []


def test_a_lost_job_is_not_reported_as_stalled(tmp_path: Path) -> None:
    told = Told(tmp_path, job())
    for _ in range(20):
        told.report()
    told.take(WorkerExited("a", 1, ExitCause.LOST, "its process died"))
    assert [words for _ in range(100) for words in alerts(told.take(Tick(), 1.0))] == []
