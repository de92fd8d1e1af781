"""Trains jobs that nothing manages, in processes of their own, as people do who have no scheduler.

All at once, so that the operating system shares the devices among them, or one after another, in their order, on each
device. A job ends when its target is met, by the rule of the scheduler, or at its deadline: what a person would do at
best who watched all of them. The devices are one core each, as those of a pool of CPU devices are, or the GPU.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import numpy as np

from lightning_core.core.answers import Verdict
from lightning_core.scheduler.settings import Settings

# What the processes have imported before they begin, as the warm workers of a pool have.
IMPORTED = ["lightning.pytorch", "lightning_core.agent.reporting.loss_meter"]
# Seconds that they may take to begin, and to end after the last deadline.
PATIENCE = 300.0
WINDOW = Settings().window


@dataclass(frozen=True)
class UnmanagedJob:
    """A training with its target and deadline.

    Args:
        name: Name of the job.
        config: Seed, model and data, as in the LightningCLI config of a job of a bundle.
        cell: Minimum batches per loss cell.
        target: Loss to reach.
        deadline: Seconds from the start of all.
    """

    name: str
    config: Mapping[str, Any]
    cell: int
    target: float
    deadline: float


@dataclass(frozen=True)
class EndedTraining:
    """The end of one of them."""

    finished_at: float | None
    """Seconds after the start of all at which its target was met; None if it was missed."""
    best: float
    """Lowest mean loss over a window by then, or by its deadline; infinite if it never had one."""
    busy: float
    """Seconds for which its process held a core."""
    building: float = 0.0
    """Seconds from when its turn came until it trained."""
    batches: int = 0
    """Batches that it trained."""

    @property
    def verdict(self) -> Verdict:
        return Verdict.MISSED if self.finished_at is None else Verdict.MET


@dataclass(frozen=True)
class Unmanaged:
    """The ends of all, in the order of the jobs."""

    jobs: list[EndedTraining]

    @property
    def met(self) -> int:
        """Number of those that met their targets."""
        return sum(one.verdict is Verdict.MET for one in self.jobs)


def all_at_once(jobs: Sequence[UnmanagedJob], devices: int = 1, kind: str = "cpu") -> Unmanaged:
    """Train all jobs at once; for arguments and errors see :func:`one_after_another`."""
    return _train_in(len(jobs), jobs, devices, kind)


def one_after_another(jobs: Sequence[UnmanagedJob], devices: int = 1, kind: str = "cpu") -> Unmanaged:
    """Train jobs in their order, one at a time on each device. One whose deadline has passed is not begun.

    Args:
        jobs: The jobs.
        devices: Number of devices.
        kind: Kind of the devices, ``"cpu"`` or ``"gpu"``.

    Raises:
        RuntimeError: If a process has died or hangs.
    """
    return _train_in(min(devices, len(jobs)), jobs, devices, kind)


def _train_in(count: int, jobs: Sequence[UnmanagedJob], devices: int, kind: str) -> Unmanaged:
    """Train jobs in a number of processes, each of which takes the next one when it has ended one."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    ready, waiting, results = context.Barrier(count), context.SimpleQueue(), context.SimpleQueue()
    for number in (*range(len(jobs)), *[None] * count):
        waiting.put(number)
    arguments = jobs, devices, kind, ready, waiting, results
    processes = [context.Process(target=_train_waiting, args=arguments, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    until = time.monotonic() + PATIENCE + max(job.deadline for job in jobs)
    for process in processes:
        process.join(max(until - time.monotonic(), 0.0))
        if process.exitcode != 0:
            for other in processes:
                other.kill()
            raise RuntimeError(f"a process of trainings that nothing manages ended with {process.exitcode}")
    return Unmanaged([end for _, end in sorted((results.get() for _ in jobs), key=lambda one: one[0])])


def _train_waiting(
    jobs: Sequence[UnmanagedJob], devices: int, kind: str, ready: Any, waiting: Any, results: Any
) -> None:
    """Train one waiting job after another in a process of its own, which says nothing of itself."""
    import torch

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if kind == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-devices:])
    for job in jobs:
        for key in ("model", "data"):
            _class(job.config[key])
    ready.wait(PATIENCE)
    began = time.monotonic()
    while (number := waiting.get()) is not None:
        results.put((number, train(jobs[number], lambda: time.monotonic() - began, accelerator=kind)))


def train(
    job: UnmanagedJob, clock: Callable[[], float], callbacks: Sequence[Any] = (), **trainer: Any
) -> EndedTraining:
    """Train a job until its target is met or its deadline has passed.

    Args:
        job: The job.
        clock: Returns the seconds since the start of all.
        callbacks: Callbacks of the Trainer in addition.
        trainer: Other arguments of the Trainer.
    """
    import lightning.pytorch as pl

    from lightning_core.agent.reporting.loss_meter import LossMeter
    from lightning_core.core.events import Cell
    from lightning_core.core.targets import LossTarget
    from lightning_core.core.targets.judge import TargetJudge

    judge, met, seen = TargetJudge(LossTarget("loss", job.target), WINDOW), list[float](), []
    busy, came, begins = time.process_time(), clock(), list[float]()

    class Ends(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            begins.append(clock())

        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            meter.add(outputs["loss"].item(), trainer.global_step)
            if met or clock() >= job.deadline:
                trainer.should_stop = True

    def see(cell: Cell) -> None:
        after = clock()
        if met or after > job.deadline:
            return
        seen.append(cell.value)
        if judge.see(cell.batches, cell.value, evaluated=False):
            met.append(after)

    if came >= job.deadline:
        return EndedTraining(None, float("inf"), 0.0)
    meter = LossMeter(see, job.cell)
    pl.seed_everything(job.config["seed_everything"], verbose=False)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    options: dict[str, Any] = {"devices": 1, "max_epochs": -1, "callbacks": [Ends(), *callbacks]} | quiet | trainer
    trained = pl.Trainer(**options)
    trained.fit(_made(job.config["model"]), _made(job.config["data"]))
    means = np.convolve(seen, np.ones(WINDOW) / WINDOW, "valid") if len(seen) >= WINDOW else [np.inf]
    took, batches = time.process_time() - busy, trained.global_step
    return EndedTraining(met[0] if met else None, float(np.min(means)), took, begins[0] - came, batches)


def _class(given: Mapping[str, Any]) -> Any:
    module, _, name = given["class_path"].rpartition(".")
    return getattr(import_module(module), name)


def _made(given: Mapping[str, Any]) -> Any:
    return _class(given)(**given.get("init_args", {}))
