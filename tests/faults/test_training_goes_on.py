"""Training with a scheduler that does not answer, compared batch by batch with one that does."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from tests.faults.test_scheduler_faults import pid_of
from tests.tiny import QUIET, Line, Points

SILENT, ALTERNATIONS = 30.0, 5
SLOWER = 0.02
# A batch of some milliseconds that computes: what sleeps would not feel a thread beside it.
SIZE = 128


class Busy(Line):
    """Computes a while in each batch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        made = torch.eye(SIZE)
        for _ in range(8):
            made = made @ made
        return super().training_step(batch, batch_idx) + 0.0 * made[0, 0]


class Windows(pl.Callback):
    """Runs through windows of so many seconds one after the other, and notes how long the batches of each took.

    Args:
        windows: what to do as each begins.
        seconds: of each.
    """

    def __init__(self, windows: list[Callable[[], None]], seconds: float) -> None:
        self.batches: list[list[float]] = [[] for _ in windows]
        self._begin = windows
        self._seconds = seconds
        self._number = -1
        self._ends = self._last = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        now = time.perf_counter()
        if now >= self._ends:
            self._number += 1
            if self._number == len(self._begin):
                trainer.should_stop = True
                self._ends = float("inf")
                return
            self._begin[self._number]()
            self._last = time.perf_counter()
            self._ends = self._last + self._seconds
        elif self._number < len(self.batches):
            self.batches[self._number].append(now - self._last)
            self._last = now


def beside(tmp_path: Path, seconds: float, alternations: int) -> tuple[float, float, int]:
    """Trains while the scheduler is stopped in every third window.

    Returns:
        By how much its median batch is then longer, by how much those of the other two windows differ, and how many
        batches were measured.
    """
    import ray

    from lightning_core.server.clients.ray_client import RayClient
    from lightning_core.server.start_scheduler import start_scheduler

    name = f"silent-{secrets.token_hex(4)}"
    scheduler = start_scheduler(name, Settings("edf"), tmp_path)
    ray.get(scheduler.submit.remote((Job("job", 1e6, BatchTarget(10**9)),)))
    pid = pid_of(scheduler)
    windows = Windows(
        [lambda: None, lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT)] * alternations,
        seconds,
    )
    ours = LaunchedCallback("job", BatchTarget(10**9), client=RayClient(name))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on a device of the pool, which is one core
    try:
        trainer = pl.Trainer(max_epochs=-1, **{**QUIET, "callbacks": [ours, windows]})
        trainer.fit(Busy(), datamodule=Points())
    finally:
        os.kill(pid, signal.SIGCONT)
        torch.set_num_threads(threads)
    ray.get(scheduler.close.remote(), timeout=30.0)
    ray.kill(scheduler)
    before, silent, after = (list(chain(*windows.batches[k::3])) for k in range(3))
    untouched = median(before + after)
    differ = abs(median(before) - median(after)) / untouched
    return median(silent) / untouched - 1, differ, len(before + silent + after)


@pytest.mark.nightly
@pytest.mark.promise("R3", "F3")
def test_a_silent_scheduler_slows_no_batch(
    local_ray: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    slower, noise, batches = beside(tmp_path, SILENT, ALTERNATIONS)
    record_property(
        "figure",
        f"median batch {100 * slower:+.1f} % while the scheduler stood still for {SILENT:.0f} s; two untouched runs"
        f" differ by {100 * noise:.1f} % ({ALTERNATIONS} alternations, {batches} batches)",
    )
    assert slower <= SLOWER + noise
