"""What a training says of its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lightning_core.agent.reporting import memory_meter as meters
from lightning_core.agent.reporting.memory_meter import MAX_COST, MAX_PERIOD, MIN_PERIOD, MemoryMeter, memory_meter
from lightning_core.agent.reporting.outbox import Outbox
from lightning_core.core.events import Report
from lightning_core.core.reported import MemoryUse
from tests.callbacks.test_callback import Script, fit, grant, steered
from tests.tiny import Line
from tests.waiting import until

MB = 10**6


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Bytes:
    """Memory that the test sets, whose reading takes as long as it says."""

    def __init__(self, clock: Clock, value: int, takes: float = 0.0) -> None:
        self.clock, self.value, self.takes, self.readings = clock, value, takes, 0

    def __call__(self) -> int:
        self.readings += 1
        self.clock.now += self.takes
        return self.value


def test_it_is_reported_when_its_peak_has_grown_by_more_than_a_percent() -> None:
    clock = Clock()
    memory = Bytes(clock, 1000)
    meter = MemoryMeter(memory, clock)
    told = []
    for value in (1000, 1009, 500, 1011, 1000):
        memory.value = value
        clock.now += MAX_PERIOD
        told.append(meter.look())
    assert told == [MemoryUse(1000, 1000)] * 3 + [MemoryUse(1011, 1011)] * 2


def test_it_is_measured_less_often_while_it_does_not_grow_and_at_no_more_than_its_cost() -> None:
    clock = Clock()
    memory = Bytes(clock, 1000)
    meter = MemoryMeter(memory, clock)

    def gap() -> float:
        """Seconds until the next reading."""
        readings, since = memory.readings, clock.now
        while memory.readings == readings:
            clock.now += 0.25
            meter.look()
        return clock.now - since

    meter.look()
    assert [gap() for _ in range(6)] == [MIN_PERIOD, 4.0, 8.0, 16.0, MAX_PERIOD, MAX_PERIOD]
    memory.value = 2000
    assert [gap() for _ in range(2)] == [MAX_PERIOD, MIN_PERIOD]
    memory.takes = 0.25
    gap()
    assert gap() - memory.takes == pytest.approx(0.25 / MAX_COST)


def test_what_leaves_the_device_on_hold_is_not_held() -> None:
    clock = Clock()
    memory = Bytes(clock, 1000)
    meter = MemoryMeter(memory, clock)
    freed: list[int | Exception] = [600, RuntimeError("dictionary changed size during iteration"), 605, 900, 2000]

    def frees() -> int:
        value = freed.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    meter.frees = frees
    told = []
    while freed:
        clock.now += MAX_PERIOD
        told.append(meter.look())
    assert told == [MemoryUse(1000, 400)] * 3 + [MemoryUse(1000, 100), MemoryUse(1000, 0)]


def test_nothing_is_reported_where_nothing_can_be_read() -> None:
    readings = 0

    def read() -> int:
        nonlocal readings
        readings += 1
        raise PermissionError("/proc/1/smaps_rollup")

    meter = MemoryMeter(read)
    assert [meter.look(), meter.look()] == [None, None]
    assert readings == 1
    assert memory_meter(torch.device("meta")).look() is None
    assert MemoryMeter(lambda: 0).look() is None


@pytest.mark.parametrize(
    ("peaks", "reserved", "told"),
    [
        ((300, 700), 0, 700),
        ((900, 900), 400, 400),  # the peak is that of an earlier fit
        ((900, 1200), 400, 1200),
    ],
)
def test_on_a_gpu_torch_counts_since_the_fit_began(
    peaks: Sequence[int], reserved: int, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, found = torch.device("cuda", 1), list(peaks)

    def counter(value: Callable[[], int]) -> Callable[[torch.device], int]:
        def read(of: torch.device) -> int:
            assert of == device
            return value()

        return read

    monkeypatch.setattr(torch.cuda, "max_memory_reserved", counter(lambda: found.pop(0)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", counter(lambda: reserved))
    assert memory_meter(device).look() == MemoryUse(told, told)


def reported(outbox: Outbox) -> Report:
    report: Report | None = outbox.make_report("a", 1, 0)
    assert report is not None
    return report


def test_it_is_reported_until_a_report_with_it_has_arrived() -> None:
    outbox = Outbox()
    outbox.progress = (3, 0.0, 0)
    assert not outbox.has_trained
    first = reported(outbox)
    assert first.memory is None
    assert not outbox.has_trained
    outbox.progress = (4, 0.1, 0)
    assert outbox.has_trained
    outbox.memory = MemoryUse(10, 10)
    assert [reported(outbox).memory for _ in range(2)] == [MemoryUse(10, 10)] * 2
    last = reported(outbox)
    outbox.memory = MemoryUse(20, 20)  # while it was on its way
    outbox.note_arrival(last)
    last = reported(outbox)
    assert last.memory == MemoryUse(20, 20)
    outbox.note_arrival(last)
    assert reported(outbox).memory is None
    outbox.start_over()
    assert reported(outbox).memory == MemoryUse(20, 20)


class Growing(Line):
    """Has 200 MB more from a batch on, and trains until its growth has been reported."""

    def __init__(self, script: Script) -> None:
        super().__init__(pause=0.01)
        self.script, self.more = script, bytearray()
        self.first: MemoryUse | None = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        told = uses(self.script)
        if told and not self.more:
            self.first = told[0]
            self.more = bytearray(b"x") * (200 * MB)
        if self.first is not None and told[-1].peak - self.first.peak > 150 * MB:
            self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


def uses(script: Script) -> list[MemoryUse]:
    return [report.memory for report in script.reports if report.memory is not None]


@pytest.mark.parametrize("launched", [True, False])
def test_a_training_reports_what_it_has_and_200_mb_more(launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MIN_PERIOD", 0.05)
    monkeypatch.setattr(meters, "MAX_PERIOD", 0.05)
    monkeypatch.setattr(meters, "MAX_COST", 1.0)
    script = Script(grant(1, 1.0))
    fit(steered(script, launched=launched), Growing(script), max_epochs=200)
    until(lambda: len(uses(script)) >= 2)
    first, *_, last = uses(script)
    assert script.reports[0].memory is None  # it has trained nothing yet
    assert last.peak - first.peak == pytest.approx(200 * MB, rel=0.25)
    assert last.held == last.peak
