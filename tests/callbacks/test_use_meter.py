"""What a training uses of its device is measured by the thread that reports."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.agent.reporting import use_meter as meters
from lightning_core.agent.reporting.use_meter import LOOK_PERIOD, CpuUse, GpuUse, UseMeter, use_meter
from lightning_core.agent.user_code.torch_here import device_name
from lightning_core.callbacks import CoreCallback
from lightning_core.worker.worker import Worker
from tests.tiny import QUIET, Line, Points


class Machine:
    """A process, its children, and the time."""

    def __init__(self) -> None:
        self.now = self.own = self.theirs = 0.0
        self.cores = 2
        self.looks = 0
        self.waits: dict[int, float] = {}

    def children(self) -> float:
        self.looks += 1
        return self.theirs

    def use(self) -> CpuUse:
        return CpuUse(lambda: self.cores, lambda: self.now, lambda: self.own, self.children, lambda: dict(self.waits))


def test_cpu_seconds_count_from_the_first_look_by_the_cores_of_the_device() -> None:
    machine = Machine()
    machine.own = 30.0  # imports
    meter = UseMeter(machine.use())
    assert meter.look(0.0, alone=True) == 0.0
    machine.own += 1.0
    assert meter.look(1.0, alone=True) == 0.5
    machine.cores = 4
    machine.own += 1.0
    assert meter.look(2.0, alone=False) == 0.75


def test_children_are_looked_for_now_and_then_and_one_that_ends_is_not_counted_twice() -> None:
    machine = Machine()
    use = machine.use()
    assert use(0.0, True) == 0.0
    machine.theirs = 4.0
    assert (use(1.0, True), machine.looks) == (0.0, 1)
    machine.now = LOOK_PERIOD
    assert (use(1.0, True), machine.looks) == (2.0, 2)
    machine.own, machine.theirs = 4.0, 0.0  # it is waited for, and gone from the list a second later
    assert use(1.0, True) == 4.0
    machine.now = 2 * LOOK_PERIOD
    assert use(1.0, True) == 4.0
    machine.own = 9.0
    assert use(1.0, True) == 4.5


def test_waiting_for_a_core_counts_as_using_it_and_a_thread_that_ends_takes_nothing_back() -> None:
    machine = Machine()
    machine.waits = {1: 5.0, 2: 1.0}  # before the first look
    use = machine.use()
    assert use(0.0, True) == 0.0
    for now, waits, used in (
        (LOOK_PERIOD, {1: 6.0, 2: 1.0}, 0.5),
        (2 * LOOK_PERIOD, {1: 6.0}, 0.5),
        (3 * LOOK_PERIOD, {1: 7.0, 3: 3.0}, 2.5),
    ):
        machine.now, machine.waits = now, waits
        assert use(now, True) == used


def test_the_kernel_tells_how_long_a_thread_has_waited() -> None:
    assert meters._seconds_of_waiting()[threading.get_native_id()] >= 0.0


def test_the_cpu_time_of_a_child_counts() -> None:
    before = meters._seconds_of_children()
    line = "import time\nwhile time.process_time() < 0.3: pass\nprint('', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert meters._seconds_of_children() >= before + 0.25
        own = meters._own_seconds()
        child.communicate(b"\n")
    assert meters._own_seconds() >= own + 0.25


def test_a_gpu_counts_while_no_other_training_takes_turns_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [0]
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=str,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=busy[0]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    use = GpuUse("GPU-1")
    assert use(0.0, True) == 0.0
    busy[0] = 50
    assert use(2.0, True) == 1.0
    assert use(4.0, False) is None
    assert use(4.0, True) == 1.0
    busy[0] = 100
    assert use(5.0, True) == 2.0


def test_two_instances_of_one_card_are_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7d1f"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = []
    for chosen in ("MIG-1", "MIG-2", "0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        names.append(device_name(torch.device("cuda", 0)))
        assert Worker.device(Worker.__new__(Worker)) == names[-1]
    assert names == ["MIG-1", "MIG-2", "GPU-7d1f"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert device_name(torch.device("cuda")) == "GPU-7d1f"


def test_what_cannot_be_measured_is_not_tried_again() -> None:
    calls = []

    def fails(busy: float, alone: bool) -> float:
        calls.append(busy)
        raise OSError("no")

    meter = UseMeter(fails)
    assert (meter.look(0.0, alone=True), meter.look(1.0, alone=True)) == (None, None)
    assert calls == [0.0]
    assert use_meter(torch.device("meta"), lambda: 1).look(1.0, alone=True) is None


def test_a_training_reports_it_and_one_that_sleeps_uses_little() -> None:
    class Sleeper(Line):
        def training_step(self, batch: object, batch_idx: int) -> torch.Tensor:
            time.sleep(0.02)
            return super().training_step(batch, batch_idx)  # type: ignore[arg-type]

    ours = CoreCallback("sleeper", "1d", "loss<=1e-9", pool="local")
    told = list[float | None]()

    class Look(pl.Callback):
        def on_train_end(self, *_: object) -> None:
            assert ours._fit is not None
            mailbox = ours._fit.mailbox
            assert mailbox is not None
            progress = mailbox.outbox.progress
            assert progress is not None
            mailbox._look()
            told.extend((mailbox.outbox.used, progress[1]))

    pl.Trainer(max_steps=60, callbacks=[ours, Look()], **QUIET).fit(Sleeper(), datamodule=Points())
    used, busy = told
    assert used is not None
    assert busy is not None
    assert 0 < used < busy
