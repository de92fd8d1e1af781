"""What a batch costs a user: hardly any function is called for one with which nothing is to be done.

Between two kernels every call is cold and costs several times what it costs in a loop. Times depend on the machine, so
calls are counted here; ``python -m benchmarks.live.overhead`` measures the times.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import pytest
from typing_extensions import override

import lightning_core
import lightning_core.callbacks
from lightning_core.callbacks import CoreCallback
from lightning_core.node.arbiter_client import ArbiterClient
from lightning_core.node.device_arbiter import DeviceArbiter
from tests.tiny import QUIET, Line, Points

OURS = tuple(str(Path(package.__file__ or "").parent) + "/" for package in (lightning_core, lightning_core.callbacks))
# Batches before the count, which may start threads and connections, and batches that are counted.
WARM, BATCHES = 50, 101


class Count(pl.Callback):
    """Counts the calls that our functions make in the training thread, and calls of them, in each batch."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if len(self.calls) <= BATCHES and trainer.global_step >= WARM:
            sys.setprofile(self._count if len(self.calls) < BATCHES else None)
            self.calls.append(0)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS):
            self.calls[-1] += 1


@pytest.fixture
def no_profile() -> Iterator[None]:
    before = sys.getprofile()
    yield
    sys.setprofile(before)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[ArbiterClient]:
    arbiter = DeviceArbiter(tmp_path / "arbiter")
    made = ArbiterClient(arbiter.path)
    yield made
    made.close()
    arbiter.close()


@pytest.mark.usefixtures("no_profile")
@pytest.mark.parametrize(("in_turns", "most"), [(False, 27), (True, 33)], ids=["alone", "in turns"])
def test_an_ordinary_batch_makes_few_calls(lock: ArbiterClient, in_turns: bool, most: int) -> None:
    ours, count = CoreCallback("a", "1d", "loss<=1e-9", pool="local"), Count()
    if in_turns:
        ours._options = replace(ours._options, device_lock=lock)
    trainer = pl.Trainer(max_steps=WARM + BATCHES + 1, callbacks=[ours, count], **QUIET)
    trainer.fit(Line(lr=1e-6), datamodule=Points())
    assert len(count.calls) == BATCHES + 1
    assert 10 < statistics.median(count.calls[:-1]) <= most, sorted(count.calls)
