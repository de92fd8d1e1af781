"""What hangs in a training, and what only takes long. The test holds the clock."""

from __future__ import annotations

import io
import pdb
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_core.agent.reporting.hang_watch import COMPANY_FACTOR, MAX_GAP, UNKNOWN_FACTOR, HangWatch, Phase
from lightning_core.agent.reporting.inbox import Inbox
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.reported import Hang
from lightning_core.core.targets import BatchTarget
from tests.callbacks.test_callback import AlwaysFree, Script, fit, grant
from tests.tiny import Batch, Line, ValidatedPoints
from tests.waiting import join, until

LIMIT = 300.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watch with a clock of its own, and a training thread that is this one."""

    def __init__(self, limit: float | None = LIMIT) -> None:
        self.clock = Clock()
        self.watch = HangWatch(limit, self.clock)

    def step(self, seconds: float, phase: Phase = Phase.TRAINING) -> None:
        self.watch.begin(phase)
        self.clock.now += seconds
        self.watch.done()

    def pass_time(self, seconds: float, share: float = 1.0, *, beside: bool = False) -> Hang | None:
        """Let time pass, look every second, and return what is said in the end."""
        hang: Hang | None = self.watch.look(share, beside=beside)
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            hang = self.watch.look(share, beside=beside)
        return hang


@pytest.mark.promise("F27")
def test_a_step_that_takes_far_longer_than_any_before_hangs() -> None:
    watched = Watched()
    for seconds in (60.0, 3.0, 2.0):
        watched.step(seconds)
    watched.watch.begin(Phase.TRAINING)
    assert watched.pass_time(LIMIT) is None
    hang = watched.pass_time(1.0)
    assert hang == Hang(LIMIT + 1.0, 60.0)
    assert watched.pass_time(50.0) == hang  # as it was noticed, so that later reports are equal
    assert not watched.watch.is_over
    watched.pass_time(LIMIT)
    assert watched.watch.is_over
    assert watched.watch.story().endswith("\nno step for 10m51s; the longest took 60.0s")
    assert "test_a_step_that_takes_far_longer" in watched.watch.story()
    watched.watch.done()
    assert watched.pass_time(1.0) is None
    assert not watched.watch.is_over


@pytest.mark.parametrize(
    ("steps", "limit"),
    [
        ((), UNKNOWN_FACTOR * LIMIT),  # the first one compiles
        ((200.0,), 400.0),  # and so may the second one
        ((200.0, 30.0), 600.0),
        ((1.0, 1.0), LIMIT),
    ],
)
def test_how_long_a_step_may_take(steps: tuple[float, ...], limit: float) -> None:
    watched = Watched()
    for seconds in steps:
        watched.step(seconds)
    watched.watch.begin(Phase.TRAINING)
    assert watched.pass_time(limit) is None
    assert watched.pass_time(1.0) is not None


def test_validation_has_a_measure_of_its_own() -> None:
    watched = Watched()
    for _ in range(3):
        watched.step(0.1)
        watched.step(100.0, Phase.VALIDATION)
    watched.watch.begin(Phase.VALIDATION)
    assert watched.pass_time(2000.0) is None
    assert watched.pass_time(1.0) == Hang(2001.0, 100.0)


def test_with_a_small_share_everything_may_take_longer() -> None:
    watched = Watched()
    watched.step(1.0)
    watched.watch.begin(Phase.TRAINING)
    assert watched.pass_time(4 * LIMIT, share=0.25) is None
    assert watched.pass_time(1.0, share=0.25) is not None


def test_beside_others_everything_may_take_longer() -> None:
    watched = Watched()
    for _ in range(2):
        watched.step(100.0)
    watched.watch.begin(Phase.TRAINING)
    assert watched.pass_time(COMPANY_FACTOR * 2000.0, beside=True) is None
    assert watched.pass_time(1.0, beside=True) is not None


def test_a_step_that_began_beside_others_may_last_as_long_when_they_have_left() -> None:
    watched = Watched()
    watched.step(1.0)
    watched.watch.begin(Phase.TRAINING)
    assert watched.pass_time(2 * LIMIT, beside=True) is None
    assert watched.pass_time((COMPANY_FACTOR - 2) * LIMIT) is None
    assert watched.pass_time(1.0) is not None
    watched.watch.begin(Phase.TRAINING)
    assert watched.pass_time(LIMIT) is None
    assert watched.pass_time(1.0) is not None


def test_a_job_at_share_0_beside_another_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mailbox, "_run", lambda self: None)  # this thread looks
    watched = Watched()
    mailbox = Mailbox(Script, "job", hangs=watched.watch)  # type: ignore[arg-type]
    mailbox.inbox.take(grant(1, 0.0)._replace(beside=7))
    watched.step(1.0)
    watched.watch.begin(Phase.TRAINING)
    for seconds, hangs in ((COMPANY_FACTOR * LIMIT, False), (1.0, True)):
        for _ in range(round(seconds)):
            watched.clock.now += 1.0
            mailbox._look()
        assert (mailbox.outbox.hang is not None) is hangs


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    watched = Watched()
    watched.step(1.0)
    watched.watch.begin(Phase.TRAINING)
    watched.pass_time(1.0)
    for _ in range(3):
        watched.clock.now += 1e6
        assert watched.watch.look(1.0) is None
    assert watched.pass_time(LIMIT - 3 * MAX_GAP - 1.0) is None
    assert watched.pass_time(1.0) is not None


@pytest.mark.parametrize("why_not", ["excused", "over", "off", "not begun"])
def test_what_never_hangs(why_not: str) -> None:
    watched = Watched(None if why_not == "off" else LIMIT)
    if why_not != "not begun":
        watched.step(1.0)
        watched.watch.begin(Phase.TRAINING)
    if why_not == "excused":
        watched.watch.excuse()
    if why_not == "over":
        watched.watch.done()
    assert watched.pass_time(10 * UNKNOWN_FACTOR * LIMIT) is None
    assert not watched.watch.is_over


# ------------------------------------------------------------------------------------------------ real trainings


class Probe:
    """Stands still for hours of its clock when a training comes to one place; keeps what is said.

    Args:
        place: Name of the place.
        visit: Which of its visits is the long one.
        clock: Clock of the watch.
    """

    def __init__(self, place: str, visit: int, clock: Clock) -> None:
        self.place, self.visit, self.clock = place, visit, clock
        self.callback: Any = None
        self.visits = 0
        self.said: list[Hang | None] = []
        self.stories: list[str] = []

    def at(self, place: str) -> None:
        if place != self.place:
            return
        self.visits += 1
        if self.visits == self.visit:
            watch = self.callback._fit.hangs
            for _ in range(round(1.1 * UNKNOWN_FACTOR * LIMIT / MAX_GAP)):
                self.clock.now += MAX_GAP
                self.said.append(watch.look(1.0))
            self.stories.append(watch.story())


class Probed(Line):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        self.probe.at("training")
        if self.probe.place == "checkpoint in a step":
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir) / "of_user.ckpt")
        if self.probe.place == "debugger":
            debugger = pdb.Pdb(stdin=io.StringIO("self.probe.at('debugger')\ncontinue\n"), stdout=io.StringIO())
            debugger.set_trace()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.probe.at("validation")
        super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.probe.at("end of a validation")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.probe.at("checkpoint")
        self.probe.at("checkpoint in a step")


class ProbedData(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    def __init__(self, probe: Probe, place: str, points: Any) -> None:
        self.probe, self.place, self.points = probe, place, points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        if index % 8 == 0:
            self.probe.at(self.place)
        return self.points[index]


class Placed(DataLoader[Any]):
    """A loader that says where it is, so that a job is saved between two batches, while the next one is waited for."""

    def __iter__(self) -> Any:
        probe = self.dataset.probe  # type: ignore[attr-defined]
        probe.at("iterator")
        return super().__iter__()

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to go on with."""


class ProbedPoints(ValidatedPoints):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def train_dataloader(self) -> DataLoader[Any]:
        return Placed(ProbedData(self.probe, "batch", self.points), batch_size=8)

    def val_dataloader(self) -> DataLoader[Any]:
        self.probe.at("validation's loader")
        return DataLoader(ProbedData(self.probe, "validation's batch", self.points), batch_size=8)


class Others(pl.Callback):
    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def on_train_batch_end(self, *_: Any) -> None:
        self.probe.at("callback")

    def on_train_epoch_end(self, *_: Any) -> None:
        self.probe.at("end of an epoch")


class ProbedLock(AlwaysFree):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def acquire(self, share: float, timeout: float, beside: int = 0) -> bool:
        self.probe.at("device")
        return super().acquire(share, timeout, beside)

    def expired(self) -> bool:
        return True


@pytest.mark.promise("F27")
@pytest.mark.parametrize(
    ("place", "visit", "limit"),
    [
        ("training", 1, UNKNOWN_FACTOR * LIMIT),
        ("training", 3, LIMIT),
        ("validation", 3, LIMIT),
        ("batch", 3, LIMIT),
        pytest.param("validation's batch", 1, UNKNOWN_FACTOR * LIMIT, marks=pytest.mark.nightly),
        ("validation's batch", 3, LIMIT),
        ("iterator", 2, None),  # while the loader of the second epoch is set up
        pytest.param("iterator", 3, LIMIT, marks=pytest.mark.nightly),
        ("callback", 3, None),
        ("end of an epoch", 3, None),
        pytest.param("end of a validation", 3, None, marks=pytest.mark.nightly),
        pytest.param("validation's loader", 3, None, marks=pytest.mark.nightly),
        ("checkpoint", 1, None),  # its own, before the wait for the second batch
        pytest.param("checkpoint in a step", 3, None, marks=pytest.mark.nightly),
        ("device", 1, None),
        pytest.param("held", 3, None, marks=pytest.mark.nightly),
        ("debugger", 3, None),
    ],
)
def test_where_a_training_may_stay_as_long_as_it_likes(
    place: str, visit: int, limit: float | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    probe = Probe(place, visit, clock)
    monkeypatch.setattr(HangWatch.__init__, "__defaults__", (clock,))
    monkeypatch.setattr(Mailbox, "_look", lambda self: None)  # the probe looks
    script = Script(grant(1, 1.0))
    if place == "held":

        def wait(inbox: Inbox, known: Any, timeout: float) -> None:
            probe.at("held")
            inbox.take(grant(probe.visits + 1, 1.0 if probe.visits > 2 else 0.0))

        script.say(grant(1, 0.0))
        monkeypatch.setattr(Inbox, "wait", wait)
    probe.callback = LaunchedCallback(
        "job", BatchTarget(10**9), client=script, hang=LIMIT, device_lock=ProbedLock(probe),
        folder=tmp_path, save_every=1e-9 if place == "checkpoint" else 300.0,
    )  # fmt: skip
    more: dict[str, Any] = {"callbacks": [probe.callback, Others(probe)], "reload_dataloaders_every_n_epochs": 1,
                            "default_root_dir": tmp_path}  # fmt: skip
    fit(probe.callback, Probed(probe), ProbedPoints(probe), max_epochs=4, num_sanity_val_steps=0, **more)
    assert probe.visits >= visit
    first = next((MAX_GAP * at for at, hang in enumerate(probe.said, start=1) if hang is not None), None)
    assert first == (None if limit is None else limit + MAX_GAP)
    assert "in at\n" in probe.stories[0]


@pytest.mark.promise("F27")
def test_a_training_that_hangs_is_reported_with_where_and_then_given_up(caplog: pytest.LogCaptureFixture) -> None:
    script, goes_on = Script(grant(1, 1.0)), threading.Event()
    given_up: list[str] = []

    class Hangs(Line):
        def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
            if self.steps == 40:
                goes_on.wait(300)
            return super().training_step(batch, batch_idx)

    callback = LaunchedCallback("job", BatchTarget(10**9), client=script, hang=2.0, give_up=given_up.append)
    thread = threading.Thread(target=lambda: fit(callback, Hangs(), max_epochs=20))
    thread.start()
    try:
        until(lambda: given_up)
    finally:
        goes_on.set()
        join(thread)
    hung = [report for report in script.reports if report.hang is not None]
    assert hung[0].batches == 40
    assert len({report.hang for report in hung}) == 1
    assert "goes_on.wait(300)" in given_up[0]
    assert given_up[0].rsplit("\n", 1)[1].startswith("no step for ")
    assert "job: the training hangs:" in caplog.text
    assert script.reports[-1].hang is None


def test_a_script_is_never_given_up_and_may_switch_the_watch_off() -> None:
    callback = CoreCallback("a", "1h", "loss<=0.1", hang="off")
    assert callback._options.hang is None
    assert callback._options.give_up is None
    assert CoreCallback("a", "1h", "loss<=0.1")._options.hang == LIMIT
    with pytest.raises(ValueError, match="duration must be"):
        CoreCallback("a", "1h", "loss<=0.1", hang="soon")
