"""A worker: a warm process on a device, with torch and Lightning imported, that trains one job after another."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.types import Target, WorkerLeft

# How long a scheduler that does not answer is told of a worker's end, seconds.
PATIENCE = 60.0


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to train a job.

    Args:
        job: its name.
        target: when it is met.
        config: of LightningCLI.
        cell: least batches in a loss cell.
        scheduler: name of the scheduler's actor.
        folder: where the job saves.
        paths: where class paths are looked up.
        kind: of the device.
    """

    job: str
    target: Target
    config: Mapping[str, Any]
    cell: int
    scheduler: str
    folder: str
    paths: tuple[str, ...]
    kind: str


class Worker:
    """A Ray actor with two threads: one trains, one answers.

    Args:
        turnstile: path of the socket of the device's turnstile.
        kind: of the device.
    """

    def __init__(self, turnstile: str, kind: str) -> None:
        # Imported once and kept: most of what a cold start costs.
        import torch

        import lightning_core.callbacks
        import lightning_core.launch.configuration  # noqa: F401

        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        torch.set_num_threads(1)  # processes that take turns must not leave threads spinning in another's turn
        if kind == "gpu" and torch.cuda.device_count() != 1:
            raise RuntimeError(f"a worker must see one GPU, sees {torch.cuda.device_count()}")
        self._turnstile = Path(turnstile)
        self._lock = threading.Lock()
        self._training = False
        self._assignment: Assignment | None = None
        self._cli: Any = None
        self._turns: Any = None

    def prepare(self, assignment: Assignment) -> str | None:
        """Builds Trainer, model and data; answers the traceback if that fails."""
        from lightning_core.callbacks import CoreCallback
        from lightning_core.drivers.ray_actor import RayClient
        from lightning_core.launch.configuration import build
        from lightning_core.launch.turnstile import TurnstileClient

        if self._assignment is not None:
            return f"RuntimeError: the worker still trains {self._assignment.job}"
        for path in assignment.paths:
            if path not in sys.path:
                sys.path.append(path)
        core = max(os.sched_getaffinity(0)) if assignment.kind == "cpu" else None
        self._turns = TurnstileClient(self._turnstile, core=core)
        callback = CoreCallback(
            assignment.job,
            target=assignment.target,
            client=RayClient(assignment.scheduler),
            turns=self._turns,
            launched=True,
            every=assignment.cell,
        )
        try:
            folder = Path(assignment.folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._cli = build(assignment.config, assignment.kind, folder, callback)
        except (Exception, SystemExit) as error:  # a person's class may raise anything; the argument parser exits
            self._clear()
            return story(origin(error))
        self._assignment = assignment
        return None

    def fit(self) -> None:
        """Trains what was prepared and tells the scheduler how it ended."""
        with self._lock:
            assignment, cli = self._assignment, self._cli
            if assignment is None or self._training:
                return
            self._training = True
        try:
            self._train(assignment, cli)
        finally:
            self._clear()
            self._training = False

    def job(self) -> tuple[str, str] | None:
        """The job it has and that job's scheduler; None while idle."""
        assignment = self._assignment
        return None if assignment is None else (assignment.job, assignment.scheduler)

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def _train(self, assignment: Assignment, cli: Any) -> None:
        from lightning_core.callbacks import JobOver

        left = WorkerLeft(assignment.job, 1)
        try:
            cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=assignment.config.get("ckpt_path"))
        except JobOver:
            pass
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            left = WorkerLeft(assignment.job, 1, crashed=True, detail=story(error))
        if not left.crashed:
            left = self._save(assignment, cli.trainer, left)
        self._tell(assignment, left)

    def _save(self, assignment: Assignment, trainer: Any, left: WorkerLeft) -> WorkerLeft:
        try:
            trainer.save_checkpoint(Path(assignment.folder) / "last.ckpt", weights_only=False)
        except Exception as error:  # the training is done; that its state could not be kept is told, not hidden
            return WorkerLeft(assignment.job, 1, crashed=True, detail=story(error))
        return left

    def _tell(self, assignment: Assignment, left: WorkerLeft) -> None:
        from lightning_core.drivers.ray_actor import RayClient

        client = RayClient(assignment.scheduler)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:  # calls to an actor that is being restarted fail at once
            try:
                client.left(left)
                return
            except ConnectionError as error:
                logging.getLogger(__name__).warning("%s: %s", assignment.job, error)
                time.sleep(0.5)

    def _clear(self) -> None:
        if self._turns is not None:
            self._turns.close()
        self._assignment = self._cli = self._turns = None


def origin(error: BaseException) -> BaseException:
    """What was raised first, not who passed it on."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def story(error: BaseException) -> str:
    """The traceback of an error; the last line is the error in one line."""
    message = " ".join(str(error).split()) or "no message"
    return f"{''.join(traceback.format_exception(error))}{type(error).__name__}: {message}"
