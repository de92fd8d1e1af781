"""Train millions of batches: does what the callback takes of memory, descriptors, threads and time stay the same?

A real ``Trainer.fit`` reports to a scheduler of its own, from the first batch to the last. A hundred times on the way
it is looked at. What it has after a tenth of the batches is compared with what it has at the end.
"""

from __future__ import annotations

import itertools
import logging
import os
import resource
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch

from benchmarks.common import Figures, Size, main, table
from lightning_core.callbacks import CoreCallback

BATCHES: dict[Size, int] = {"quick": 100_000, "default": 1_000_000, "full": 10_000_000}
LOOKS = 100
HOOKS = ("on_train_batch_start", "on_train_batch_end")


class Look(NamedTuple):
    """A look at the process."""

    memory: float
    """MiB of its own."""
    descriptors: int
    threads: int
    hooks: float
    """Mean seconds per batch in the hooks of the callback since the last look."""


class Line(pl.LightningModule):
    """As little work as a training can be."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = (self.layer(batch[0]) - batch[1]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Same:
    """A loader without a length that gives the same batch."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return itertools.repeat((torch.ones(4, 1), torch.ones(4, 1)))


def looks(batches: int) -> list[Look]:
    """Train this many batches; return what there was at each look."""
    callback = CoreCallback("endurance", "30d", "loss<=1e-30", pool="local", stop_when_met=False)
    found: list[Look] = []
    spent, done, every = 0.0, 0, batches // LOOKS

    def wrap(hook: Callable[..., None], last: bool) -> Callable[..., None]:
        def around(*args: Any) -> None:
            nonlocal spent, done
            began = time.perf_counter()
            hook(*args)
            spent += time.perf_counter() - began
            if last:
                done += 1
                if done % every == 0:
                    found.append(_look(spent / every))
                    spent = 0.0

        return around

    for name in HOOKS:
        setattr(callback, name, wrap(getattr(callback, name), name == HOOKS[1]))
    trainer = pl.Trainer(
        max_steps=batches, max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Line(), Same())
    return found


def _look(hooks: float) -> Look:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * resource.getpagesize() / 2**20
    return Look(memory, len(os.listdir("/proc/self/fd")), threading.active_count(), hooks)


def measure(size: Size) -> Figures:
    """Train, print the table and return its figures."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    found = looks(BATCHES[size])
    tenth = LOOKS // 10
    first, last = found[tenth], found[-1]
    parts = found[tenth : 2 * tenth], found[-tenth:]
    costs = [1e6 * statistics.median(look.hooks for look in part) for part in parts]
    rows = [[f"{BATCHES[size] // 10:,}", *first[:3], costs[0]], [f"{BATCHES[size]:,}", *last[:3], costs[1]]]
    table(["batches", "MiB", "descriptors", "threads", "us per batch"], rows)
    return {
        "batches": float(BATCHES[size]),
        "growth_mib": last.memory - first.memory,
        "more_descriptors": float(last.descriptors - first.descriptors),
        "more_threads": float(last.threads - first.threads),
        "late_cost_ratio": costs[1] / costs[0],
    }


if __name__ == "__main__":
    main("live.endurance", __doc__.splitlines()[0], measure)
