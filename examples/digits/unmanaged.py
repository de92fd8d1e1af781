"""Trains drawn jobs where nothing manages them: all at once, in processes of their own that share the device.

Each ends when its target is met, by the rule of the scheduler, or at its deadline: what a person would do at best who
watched all of them. They share one core, as the jobs of a pool of one CPU device do, or the GPU.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from examples.digits.drawing import WINDOW, DrawnJob
from examples.digits.trainings import AGAIN, TRAININGS
from lightning_core.core.answers import Verdict

# What the processes have imported before they begin, as the warm workers of a pool have.
IMPORTED = ["lightning.pytorch", "examples.digits", "lightning_core.agent.reporting.loss_meter"]
# Seconds that they may take to begin, and to end after the last deadline.
PATIENCE = 300.0


@dataclass(frozen=True)
class EndedTraining:
    """How one of them ended."""

    verdict: Verdict
    finished_at: float | None
    """Seconds after the beginning at which its target was met; None if it was missed."""


@dataclass(frozen=True)
class AllAtOnce:
    """How all of them ended, in the order of the jobs."""

    jobs: list[EndedTraining]

    @property
    def met(self) -> int:
        """Number of those that met their targets."""
        return sum(one.verdict is Verdict.MET for one in self.jobs)


def all_at_once(jobs: Sequence[DrawnJob], kind: str = "cpu") -> AllAtOnce:
    """Train all jobs at once, and return how they ended.

    Args:
        jobs: The jobs.
        kind: Kind of the device, ``"cpu"`` or ``"gpu"``.

    Raises:
        RuntimeError: If a process has died or hangs.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    ready, results = context.Barrier(len(jobs)), context.SimpleQueue()
    processes = [
        context.Process(target=_begin, args=(number, job, kind, ready, results), daemon=True)
        for number, job in enumerate(jobs)
    ]
    for process in processes:
        process.start()
    until = time.monotonic() + PATIENCE + max(job.deadline for job in jobs)
    for process, job in zip(processes, jobs, strict=True):
        process.join(max(until - time.monotonic(), 0.0))
        if process.exitcode != 0:
            for other in processes:
                other.kill()
            raise RuntimeError(f"{job.name} ended with {process.exitcode} where all train at once")
    met: dict[int, float | None] = dict(results.get() for _ in jobs)
    return AllAtOnce([
        EndedTraining(Verdict.MISSED if at is None else Verdict.MET, at) for _, at in sorted(met.items())
    ])  # fmt: skip


def _begin(number: int, job: DrawnJob, kind: str, ready: Any, results: Any) -> None:
    """Train one job in a process of its own, which says nothing of itself."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    _train(number, job, kind, ready, results)


def _train(number: int, job: DrawnJob, kind: str, ready: Any, results: Any) -> None:
    """Train one job until its target is met or its deadline has passed, from the moment at which all are ready."""
    import lightning.pytorch as pl
    import torch

    import examples.digits as digits
    from lightning_core.agent.reporting.loss_meter import LossMeter
    from lightning_core.core.events import Cell
    from lightning_core.core.targets import LossTarget
    from lightning_core.core.targets.judge import TargetJudge

    training = (TRAININGS | AGAIN)[job.name]
    judge, met = TargetJudge(LossTarget("loss", job.target), WINDOW), list[float]()
    torch.set_num_threads(1)
    if kind == "cpu":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    class Ends(pl.Callback):
        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            meter.add(outputs["loss"].item(), trainer.global_step)
            if met or time.monotonic() - began >= job.deadline:
                trainer.should_stop = True

    def see(cell: Cell) -> None:
        after = time.monotonic() - began
        if judge.see(cell.batches, cell.value, evaluated=False) and not met and after <= job.deadline:
            met.append(after)

    meter = LossMeter(see, training.cell)
    ready.wait(PATIENCE)
    began = time.monotonic()
    pl.seed_everything(training.seed, verbose=False)
    trainer = pl.Trainer(
        accelerator=kind, devices=1, max_epochs=-1, callbacks=[Ends()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(getattr(digits, training.model)(lr=training.lr), digits.Digits())
    results.put((number, met[0] if met else None))
