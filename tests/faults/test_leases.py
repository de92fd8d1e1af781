"""Leases: how long a launched job follows its last directive, and what it does once another incarnation runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest

from lightning_core.agent.reporting import mailbox
from lightning_core.agent.reporting.hang_watch import HangWatch
from lightning_core.agent.reporting.joining import SchedulerConnection
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.steering import steering
from lightning_core.agent.steering.fit_signals import JobFenced
from lightning_core.agent.steering.ranks import Action, SideAction
from lightning_core.agent.steering.steering import Steering
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Directive, End, Grant, Verdict
from lightning_core.core.events import Checkpoint, Report
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from tests.callbacks.test_callback import Script, grant
from tests.tiny import QUIET, Net, NoisyPoints
from tests.waiting import join, until

SUPERSEDED = End("job", 0, Verdict.CANCELLED, Reason("superseded"))


class Hung(Script):
    """A scheduler that accepts calls and does not answer, like a stopped one."""

    def __init__(self, directive: Directive) -> None:
        super().__init__(directive)
        self.answers = threading.Event()
        self.answers.set()

    def report(self, report: Report) -> Directive | None:
        self.answers.wait()
        answer = super().report(report)
        return SUPERSEDED if self.directive is SUPERSEDED else answer

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        self.answers.wait()
        return super().wait(job, version, timeout)


class Training:
    """A launched job that trains in its own thread and saves often."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.model = Net()
        self.model.pause = 0.005
        self.left: list[BaseException] = []
        self._callback = LaunchedCallback("job", BatchTarget(10**9), client=script, folder=folder, save_every=0.05)
        self._thread = threading.Thread(target=self._fit)
        self._thread.start()

    def _fit(self) -> None:
        try:
            pl.Trainer(**QUIET, max_epochs=-1, callbacks=[self._callback]).fit(self.model, datamodule=NoisyPoints())
        except BaseException as error:
            self.left.append(error)

    @property
    def batches(self) -> int:
        return len(self.model.seen)

    def stands_still(self, seconds: float = 1.0) -> bool:
        before = self.batches
        time.sleep(seconds)
        return self.batches == before

    def join(self) -> None:
        join(self._thread)


def when(folder: Path) -> int:
    return (folder / "last.ckpt").stat().st_mtime_ns


class Parted(Script):
    """A scheduler that runs another incarnation of the job: reports of this one are refused."""

    def report(self, report: Report) -> Directive | None:
        self.reports.append(report)
        return SUPERSEDED

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        return grant(2, 1.0)


@pytest.mark.promise("R5")
def test_the_last_directive_of_an_ended_incarnation_stays() -> None:
    script: Any = Parted()
    box = Mailbox(lambda: SchedulerConnection(script, 1), "job", period=0.01, listens=True)
    box.begin(0)
    until(lambda: box.inbox.directive is SUPERSEDED)
    heard = len(script.reports)
    others = 0
    while len(script.reports) < heard + 20:
        others += box.inbox.directive is not SUPERSEDED
    box.close()
    assert not others


@pytest.mark.promise("R3", "R5", "F23", "F33")
@pytest.mark.parametrize("away", [False, True], ids=["hung", "away"])
def test_a_launched_job_trains_for_its_lease_then_holds_until_a_directive_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """A hung call counts as silence. Meanwhile nothing is saved, because another incarnation may be running."""
    monkeypatch.setattr(steering, "LEASE", 2.5)
    monkeypatch.setattr(mailbox, "MAX_RETRY_DELAY", 0.5)
    script = Hung(grant(1, 1.0))
    training = Training(script, tmp_path)
    until(lambda: (tmp_path / "last.ckpt").exists() and training.batches > 20)
    if away:
        script.away = True
    else:
        script.answers.clear()
    silent = time.monotonic()
    before = training.batches
    until(lambda: training.batches > before + 3)  # within the lease
    until(training.stands_still)
    assert time.monotonic() - silent > 2.0
    saved = when(tmp_path)
    assert training.stands_still()
    assert when(tmp_path) == saved
    script.away = False
    script.answers.set()
    until(lambda: not training.stands_still(0.2))
    script.say(SUPERSEDED)
    training.join()
    [left] = training.left
    assert isinstance(left, JobFenced)


@pytest.mark.promise("R5")
def test_a_fenced_incarnation_leaves_and_saves_nothing_more(tmp_path: Path) -> None:
    script = Hung(grant(1, 1.0))
    training = Training(script, tmp_path)
    until(lambda: (tmp_path / "last.ckpt").exists())
    script.say(SUPERSEDED)
    training.join()
    [left] = training.left
    assert isinstance(left, JobFenced)
    reported = [report.checkpoint for report in script.reports if report.checkpoint is not None]
    assert reported
    assert reported[-1].batches <= training.batches


LEAVE = Grant("job", 2, 0.0, (), Reason("fixed_share"))
HELD = grant(2, 0.0)
MET = End("job", 2, Verdict.MET, Reason("target_met", (1.0,)))
OVER = End("job", 2, Verdict.CANCELLED, Reason("cancelled"))


@pytest.mark.promise("R5")
@pytest.mark.parametrize(
    ("directive", "fresh", "lapsed"),
    [
        (None, Action.GO, Action.HOLD),
        (grant(2, 0.5), Action.GO, Action.HOLD),
        (LEAVE, Action.LEAVE, Action.HOLD),
        (HELD, Action.HOLD, Action.HOLD),
        (MET, Action.STOP, Action.STOP),
        (OVER, Action.OVER, Action.OVER),
        (SUPERSEDED, Action.FENCED, Action.FENCED),
    ],
)
def test_a_launched_job_ignores_old_directives(directive: Directive | None, fresh: Action, lapsed: Action) -> None:
    for unheard, launched, word in ((59.0, True, fresh), (61.0, True, lapsed), (61.0, False, None)):
        pace: Any = SimpleNamespace(on_host=True)
        inbox = SimpleNamespace(directive=directive, unheard_for=lambda unheard=unheard: unheard)
        box: Any = SimpleNamespace(
            inbox=inbox, silent_for=float, arbiters=(), cores=1, refused="", hangs=HangWatch(None)
        )
        steers = Steering("job", box, HangWatch(None), pace, None, None, launched, (0,), True, lambda: False)
        if word is not None:
            assert steers._decide(SideAction.NOTHING) is word
        elif isinstance(directive, Grant) and directive.share:
            assert steers._decide(SideAction.NOTHING) is Action.GO  # a script goes on by itself


def test_a_checkpoint_is_reported_at_once() -> None:
    script: Any = Script(grant(1, 1.0))
    connection = SchedulerConnection(script, 1)
    box = Mailbox(lambda: connection, "job", period=3600.0)
    box.begin(0)
    until(lambda: script.reports)
    save = Checkpoint(40, "0" * 64)
    box.report_checkpoint(save)
    until(lambda: script.reports[-1].checkpoint == save)
    box.close()


def test_a_job_reports_as_rarely_as_it_is_asked_to_and_hears_as_soon() -> None:
    script: Any = Script(grant(1, 1.0))
    script.report_period = 3600.0
    box = Mailbox(lambda: SchedulerConnection(script, 1), "job", period=0.0)
    box.begin(0)
    until(lambda: script.waits)  # in a second thread, although it was not told to
    heard = len(script.reports)
    assert heard <= 2
    script.say(grant(2, 0.5))
    until(lambda: box.inbox.version == 2)
    until(lambda: script.reports[-1].version == 2)  # it says at once that it has heard
    box.hurry()
    until(lambda: len(script.reports) == heard + 2)
    box.close()
