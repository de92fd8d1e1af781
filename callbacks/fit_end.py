"""Causes of the end of a fit: an exception, a signal, or one of the Trainer's own limits."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import lightning.pytorch as pl

from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.core.events import ExitCause, WorkerExited

from .reading.horizon import seconds_left
from .reading.lightning_kinds import EARLY_STOPPING, callbacks_of


def exit_of(trainer: pl.Trainer, job: str, error: BaseException | None) -> WorkerExited:
    """Return how a script has ended.

    Args:
        trainer: Trainer that has ended.
        job: Name of the job.
        error: Exception by which it left ``fit``; None if there was none.
    """
    if error is None or _is_sigterm(error) or isinstance(error, KeyboardInterrupt | JobEnded | JobReleased):
        return WorkerExited(job, 0, *ended_by(trainer, job, error))
    message = " ".join(str(error).split()) or "no message"
    detail = f"{''.join(traceback.format_exception(error))}{type(error).__name__}: {message}"
    return WorkerExited(job, 0, ExitCause.RAISED, detail=detail)


def ended_by(trainer: pl.Trainer, job: str, error: BaseException | None = None) -> tuple[ExitCause, str]:
    """Return how a training that did not fail has ended, and a description of what ended it.

    Args:
        trainer: Trainer that has ended.
        job: Name of the job.
        error: Exception by which it left ``fit``; None if there was none.
    """
    if isinstance(error, KeyboardInterrupt):
        return ExitCause.INTERRUPTED, "Ctrl-C"
    if _is_sigterm(error):
        return ExitCause.INTERRUPTED, "SIGTERM"
    return ExitCause.DONE, "" if error is not None else _limit(trainer, job)


def _is_sigterm(error: BaseException | None) -> bool:
    """Return whether Lightning raised the exception because of SIGTERM, in either of its packages."""
    return type(error).__name__ == "SIGTERMException"


def _stopped(stopper: Any) -> tuple[int, str]:
    return int(stopper.stopped_epoch), str(getattr(stopper, "stopping_reason_message", None) or "")


def _limit(trainer: pl.Trainer, job: str) -> str:
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if trainer.num_training_batches == 0 or trainer.limit_train_batches == 0:
        return "at once: there are no training batches"
    if steps is not None and 0 <= steps <= trainer.global_step:
        return f"at max_steps={steps}"
    if epochs is not None and 0 <= epochs <= trainer.current_epoch:
        return f"at max_epochs={epochs}"
    guarded = Guarded(job)
    if seconds_left(trainer, guarded) <= 0:
        return "at max_time"
    for stopper in callbacks_of(trainer, *EARLY_STOPPING):
        epoch, message = guarded("the reason of EarlyStopping", partial(_stopped, stopper), (0, ""))
        if epoch or message:
            reason = " ".join(message.partition(" Signaling")[0].rstrip(".").split())
            return f"by {type(stopper).__name__}" + (f" ({reason})" if reason else "")
    return "by a callback or the module, which stopped the Trainer" if trainer.should_stop else ""
