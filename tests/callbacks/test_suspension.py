"""A held process leaves its GPU through the driver, and is back before anything of it needs the GPU.

The GPU is a stand-in at the driver's calls; the trainings are on CPUs, where nothing of them is on a GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_core.agent import participant
from lightning_core.agent.reporting.hang_watch import HangWatch, Phase
from lightning_core.agent.reporting.inbox import Inbox
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.agent.reporting.memory_meter import MemoryMeter
from lightning_core.agent.steering.offload import MAX_WAIT_FOR_ROOM, SILENT_WAIT, Offload
from lightning_core.agent.steering.suspension import Suspension
from lightning_core.callbacks import fit
from lightning_core.callbacks.checkpointing import job_checkpointer
from lightning_core.callbacks.held_state import check_offload
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Directive, Grant
from lightning_core.core.events import ExitCause
from lightning_core.core.jobs import Job, OnHold
from lightning_core.core.reasons import Reason
from lightning_core.core.reported import MemoryUse
from lightning_core.core.targets import BatchTarget
from lightning_core.node.cuda_driver import ProcessLostError
from lightning_core.node.suspender import Suspender
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.node.stand_in_gpu import UUID, StandInGpu, installed
from tests.tiny import QUIET, Net, NoisyPoints
from tests.waiting import until

GIB, ME, CPU = 2**30, os.getpid(), torch.device("cpu")


@pytest.fixture
def gpu() -> Iterator[StandInGpu]:
    made = StandInGpu(16 * GIB)
    made.on_gpu[ME] = 4 * GIB
    with installed(made):
        yield made


@pytest.fixture
def suspender(gpu: StandInGpu, tmp_path: Path) -> Iterator[Suspender]:
    made = Suspender(tmp_path / "s", silence=1e6)
    yield made
    made.close()


class Held:
    """A suspension with a clock that is held, and what it has told."""

    def __init__(self, where: Callable[[], Path | None]) -> None:
        self.now = 0.0
        self.hangs = HangWatch(1.0, lambda: self.now)
        self.tensor = torch.ones(1000)
        self.offload = Offload("job", lambda: [[self.tensor]], CPU, lambda: self.now)
        self.ended: list[tuple[str, ExitCause]] = []
        self.suspension = Suspension(
            "job", self.offload, UUID, where, self.hangs, lambda *why: self.ended.append(why), lambda: self.now
        )


@pytest.fixture
def held(suspender: Suspender) -> Held:
    return Held(lambda: suspender.path)


def test_a_process_is_out_and_back(gpu: StandInGpu, held: Held) -> None:
    held.suspension.check()
    assert (held.suspension.is_out, gpu.names()) == (False, ["lock", "unlock"])
    held.suspension.move_out()
    held.suspension.move_out()
    assert held.suspension.is_out
    assert not held.offload.is_out
    assert gpu.states[ME] == "checkpointed"
    assert held.suspension.move_back()
    assert not held.suspension.is_out
    assert gpu.names()[2:] == ["lock", "checkpoint", "restore", "unlock"]
    assert held.ended == []


def test_what_is_reported_is_all_that_a_suspended_process_leaves(held: Held) -> None:
    meter = MemoryMeter(lambda: 5 * GIB)
    meter.frees = held.suspension.frees
    assert meter.look() == MemoryUse(5 * GIB, 0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [("lock", "CUDA_ERROR_NOT_READY", "not completed yet"), ("lock", "CUDA_ERROR_NOT_PERMITTED", "not permitted"),
     ("checkpoint", "CUDA_ERROR_NOT_SUPPORTED", "not supported by the installed")],
)  # fmt: skip
def test_what_the_driver_cannot_is_said_once_and_the_state_is_offloaded(
    gpu: StandInGpu, held: Held, caplog: pytest.LogCaptureFixture, call: str, error: str, words: str
) -> None:
    gpu.errors[call] = [error]
    for _ in range(2):
        held.suspension.move_out()
        assert held.offload.is_out
        assert not held.hangs.suspended
        assert held.suspension.frees() == 4000
        assert held.suspension.move_back()
        assert not held.offload.is_out
    [line] = caplog.messages
    assert line.startswith("job: on_hold=suspend cannot be done, on_hold=offload is: ")
    assert words in line


def test_without_an_arbiter_the_state_is_offloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for where, words in ((None, "no pool's device arbiter is known"), (tmp_path / "none", "does not answer")):
        held = Held(lambda where=where: where)  # type: ignore[misc]
        held.suspension.check()
        held.suspension.move_out()
        assert held.offload.is_out
        assert words in caplog.messages[-1]
    assert len(caplog.messages) == 2


def test_it_waits_a_minute_for_room_and_says_so(gpu: StandInGpu, held: Held, caplog: pytest.LogCaptureFixture) -> None:
    held.suspension.move_out()
    gpu.on_gpu[1] = 13 * GIB
    assert not held.suspension.move_back()
    held.now = SILENT_WAIT
    assert not held.suspension.move_back()
    assert caplog.messages == []
    held.now = MAX_WAIT_FOR_ROOM
    assert not held.suspension.move_back()
    assert caplog.messages == ["job: waits until its device has room for its state"]
    del gpu.on_gpu[1]
    assert held.suspension.move_back()
    held.suspension.move_out()
    gpu.on_gpu[1] = 13 * GIB
    assert not held.suspension.move_back()  # counted anew
    held.now += MAX_WAIT_FOR_ROOM + 1
    with pytest.raises(ProcessLostError, match=r"it needs 4\.2 GiB of its GPU, of which 3\.0 GiB are free"):
        held.suspension.move_back()
    assert [cause for _, cause in held.ended] == [ExitCause.OUT_OF_MEMORY]
    assert gpu.names()[-1] == "checkpoint"  # it was not even tried


def test_a_restore_that_fails_is_a_fault(gpu: StandInGpu, held: Held) -> None:
    held.suspension.move_out()
    gpu.errors["restore"] = ["CUDA_ERROR_INVALID_VALUE"]
    with pytest.raises(ProcessLostError):
        held.suspension.move_back()
    [(story, cause)] = held.ended
    assert cause is ExitCause.LOST
    assert "cannot be brought back onto its GPU: CUDA_ERROR_INVALID_VALUE" in story


def test_a_process_whose_suspender_is_gone_brings_itself_back(
    gpu: StandInGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    suspender = Suspender(tmp_path / "t")
    held = Held(lambda: suspender.path)
    held.suspension.move_out()
    suspender.close()
    held.suspension.move_out()  # still held: it stays out
    assert gpu.states[ME] == "checkpointed"
    gpu.on_gpu[1] = 13 * GIB
    assert not held.suspension.move_back()
    del gpu.on_gpu[1]
    assert held.suspension.move_back()
    assert gpu.names()[-2:] == ["restore", "unlock"]
    held.suspension.move_out()
    assert held.offload.is_out
    assert [line.partition(" (")[0].partition(":")[0] for line in caplog.messages] == ["job"] * 2
    assert "lost the suspender of its GPU" in caplog.messages[0]


def test_a_process_that_was_brought_back_for_its_silence_offloads_from_then_on(gpu: StandInGpu, tmp_path: Path) -> None:
    suspender = Suspender(tmp_path / "t", silence=0.05)
    held = Held(lambda: suspender.path)
    held.suspension.move_out()
    until(lambda: gpu.states[ME] == "running")
    held.suspension.move_out()
    assert not held.hangs.suspended
    held.suspension.move_out()
    assert held.offload.is_out
    suspender.close()


def test_nothing_hangs_while_the_process_is_suspended_however_long(gpu: StandInGpu, held: Held) -> None:
    for _ in range(3):
        held.hangs.turn(Phase.TRAINING)
        held.now += 1.0
    held.hangs.turn(Phase.TRAINING)
    held.suspension.move_out()
    for _ in range(1000):
        held.now += 5.0
        assert held.hangs.look(1.0) is None
        assert not held.hangs.is_over
    assert held.suspension.move_back()
    for _ in range(5):
        held.now += 5.0
        hang = held.hangs.look(1.0)
    assert hang is not None  # what comes after is watched again


def test_the_memory_of_a_suspended_process_is_not_looked_at() -> None:
    looks = list[bool]()
    hangs = HangWatch(None)

    def read() -> int:
        looks.append(hangs.suspended)
        return GIB

    def connect() -> Any:
        raise ConnectionError("no server")

    meter = MemoryMeter(read)
    mailbox = Mailbox(connect, "job", period=0.01, hangs=hangs, memory=meter)
    mailbox.outbox.progress, mailbox.outbox._began = (5, 1.0, 0), (0, 0.0)
    hangs.suspended = True
    meter._due_at = 0.0
    mailbox._look()
    assert (looks, mailbox.outbox.memory) == ([], None)
    hangs.suspended = False
    mailbox._look()
    assert looks
    assert not any(looks)
    mailbox.close(timeout=0.1)


# ------------------------------------------------------------------------------------------------ whole trainings


class Hold(pl.Callback):
    """Holds a job after some batches, and notes what its process is when the next directive is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, held: tuple[int, ...], then: Any) -> None:
        self.held, self.states = set(held), list[str]()
        self.batches = list[int]()

        def wait(inbox: Inbox, known: Directive | None, timeout: float) -> None:
            self.states.append(gpu.states.get(ME, "running"))
            if isinstance(then, BaseException):
                raise then
            inbox.take(then or grant((known.version if known else 0) + 1, 1.0))

        self.wait = wait
        self.patch = monkeypatch

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, index: int) -> None:
        if trainer.global_step in self.held:
            self.held.discard(trainer.global_step)
            core: Any = next(one for one in trainer.callbacks if hasattr(one, "directive"))  # type: ignore[attr-defined]
            self.batches.append(trainer.global_step)
            self.patch.setattr(Inbox, "wait", self.wait)
            core._fit.mailbox.inbox.directive = grant(100 + trainer.global_step, 0.0)


def train(
    monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, folder: Path, suspender: Suspender, *, held: tuple[int, ...] = (),
    then: Any = None, lose: Any = None,
) -> tuple[Net, list[str]]:  # fmt: skip
    """Train a launched job that is held on its way; return its module, and the state of its process while it waits."""
    pl.seed_everything(3, verbose=False)
    monkeypatch.setattr(fit, "offload_of", lambda trainer, module, job: Offload("job", lambda: [module], CPU))
    monkeypatch.setattr(participant, "gpu_of", lambda device: UUID)
    core = LaunchedCallback(
        "job", BatchTarget(10**9), client=Script(grant(1, 1.0)), folder=folder, on_hold="suspend", devices=(0,),
        suspender=suspender.path, give_up=lose,
    )  # fmt: skip
    hold = Hold(monkeypatch, gpu, held, then)
    options: dict[str, Any] = {"max_epochs": 2, **QUIET}
    trainer = pl.Trainer(**options)
    trainer.callbacks += [core, hold]  # type: ignore[attr-defined]
    module = Net()
    trainer.fit(module, datamodule=NoisyPoints())
    return module, hold.states


def script_core(monkeypatch: pytest.MonkeyPatch, suspender: Suspender) -> ConnectedScript:
    """Return the callback of a script that is suspended while it is held."""
    monkeypatch.setattr(fit, "offload_of", lambda trainer, module, job: Offload("job", lambda: [module], CPU))
    monkeypatch.setattr(participant, "gpu_of", lambda device: UUID)
    monkeypatch.setattr(participant.Participant, "_suspender_of_script", lambda self: suspender.path)
    return ConnectedScript("job", BatchTarget(10**9), client=Script(grant(1, 1.0)), on_hold="suspend")


def test_a_training_that_was_suspended_is_the_same_and_was_saved_before_the_first_time(
    monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, suspender: Suspender, tmp_path: Path
) -> None:
    whole, _ = train(monkeypatch, gpu, tmp_path / "a", suspender)
    assert set(gpu.names()) == {"lock", "unlock"}  # only tried, before anything starts
    saves = list[str]()
    write = job_checkpointer.write

    def saved(*arguments: Any, **options: Any) -> Any:
        saves.append(gpu.names()[-1])
        return write(*arguments, **options)

    monkeypatch.setattr(job_checkpointer, "write", saved)
    moved, states = train(monkeypatch, gpu, tmp_path / "b", suspender, held=(5, 6, 14))
    assert states
    assert set(states) == {"checkpointed"}
    assert saves == ["unlock"]  # once, before the first time
    assert gpu.names().count("restore") == gpu.names().count("checkpoint") >= 2
    assert (tmp_path / "b" / "last.ckpt").exists()
    assert gpu.states[ME] == "running"
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), moved.parameters(), strict=True))


def test_it_is_back_when_the_hold_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, suspender: Suspender
) -> None:
    """Before any other callback hears of it: one that saves would wait for ever."""
    seen = list[str]()

    class Saves(pl.Callback):
        def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
            seen.append(gpu.states[ME])

    core = script_core(monkeypatch, suspender)
    options: dict[str, Any] = {"max_epochs": 2, **QUIET}
    trainer = pl.Trainer(callbacks=[Saves(), core, Hold(monkeypatch, gpu, (5,), KeyboardInterrupt())], **options)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer.fit(Net(), datamodule=NoisyPoints())
    assert seen == ["running"]
    assert gpu.names()[-2:] == ["restore", "unlock"]


def test_it_is_back_before_it_leaves(
    monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, suspender: Suspender, tmp_path: Path
) -> None:
    from lightning_core.agent.steering.fit_signals import JobReleased

    with pytest.raises(JobReleased):
        train(monkeypatch, gpu, tmp_path, suspender, held=(5,), then=Grant("job", 900, 0.0, (), Reason("makes_room")))
    assert gpu.states[ME] == "running"
    assert (tmp_path / "last.ckpt").exists()


def test_a_launched_job_that_cannot_be_restored_is_given_up_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, suspender: Suspender, tmp_path: Path
) -> None:
    gpu.errors["restore"] = ["CUDA_ERROR_INVALID_VALUE"]
    given_up = list[tuple[str, ExitCause]]()

    class EndedError(BaseException):
        """In place of the end of the process."""

    def lose(story: str, cause: ExitCause) -> None:
        given_up.append((story, cause))
        raise EndedError

    with pytest.raises(EndedError):
        train(monkeypatch, gpu, tmp_path, suspender, held=(5,), lose=lose)
    assert given_up[0][1] is ExitCause.LOST
    assert (tmp_path / "last.ckpt").exists()


def test_a_script_that_cannot_be_restored_says_why_and_ends(
    monkeypatch: pytest.MonkeyPatch, gpu: StandInGpu, suspender: Suspender, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.errors["restore"] = ["CUDA_ERROR_INVALID_VALUE"]

    class EndedError(BaseException):
        """In place of the end of the process."""

    def end(code: int) -> None:
        raise EndedError(code)

    monkeypatch.setattr(os, "_exit", end)
    core = script_core(monkeypatch, suspender)
    options: dict[str, Any] = {"max_epochs": 2, **QUIET}
    trainer = pl.Trainer(callbacks=[core, Hold(monkeypatch, gpu, (5,), None)], **options)
    with caplog.at_level(logging.ERROR), pytest.raises(EndedError):
        trainer.fit(Net(), datamodule=NoisyPoints())
    said = [line for line in caplog.messages if "cannot be brought back onto its GPU: CUDA_ERROR_INVALID_VALUE" in line]
    assert said
    assert "start it again from a checkpoint of its own" in said[0]


def test_a_script_finds_the_suspender_beside_the_arbiter_of_the_device_that_it_is_told() -> None:
    class Told:
        arbiters = ("", "/run/one")
        inbox = Inbox()

    asking: Any = type("Asking", (), {"mailbox": Told})()
    where = participant.Participant._suspender_of_script
    assert where(asking) is None
    for devices, path in (((), None), ((0,), None), ((1,), Path("/run/suspend")), ((2,), None)):
        Told.inbox.directive = Grant("job", 1, 1.0, devices, Reason("alone"))
        assert where(asking) == path


def test_several_ranks_are_refused_before_anything_starts() -> None:
    class Strategy:
        root_device = torch.device("cuda", 0)

    trainer: Any = type("Trainer", (), {"strategy": Strategy(), "world_size": 2})()
    check: Any = check_offload
    with pytest.raises(MisconfigurationException, match="on_hold=suspend needs a training of one process"):
        check(trainer, Job("job", 60.0, BatchTarget(1), on_hold=OnHold.SUSPEND))
