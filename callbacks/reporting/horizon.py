"""Where a Trainer will end by itself, and what has ended it."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl

from lightning_core.core.events import ExitCause, Horizon


def horizon(trainer: pl.Trainer, done: int, in_epoch: int, per_epoch: int | None) -> Horizon:
    """Return where the limits of a Trainer end a training, in batches as they are reported: optimiser steps.

    The field ``seconds`` is filled in when the horizon is reported, because time passes until then.

    Args:
        trainer: Trainer whose loaders are set up.
        done: Batches since the job began.
        in_epoch: Calls of ``training_step`` in the current epoch.
        per_epoch: Batches of the previous epoch, for loaders without a length; None if there was none.
    """
    found: list[tuple[int, str]] = []
    automatic = trainer.lightning_module.automatic_optimization
    if trainer.max_steps is not None and trainer.max_steps >= 0:
        if automatic:
            found.append((trainer.max_steps, f"max_steps={trainer.max_steps}"))
        elif trainer.global_step and done:  # such a module may do several steps a batch
            batches = math.ceil(trainer.max_steps * done / trainer.global_step)
            found.append((batches, f"max_steps={trainer.max_steps}"))
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        accumulated = trainer.accumulate_grad_batches if automatic else 1
        length = trainer.num_training_batches
        if length != math.inf:
            per_epoch = math.ceil(length / accumulated)
        if per_epoch is not None:
            later = max(trainer.max_epochs - trainer.current_epoch - 1, 0) * per_epoch
            batches = done + max(per_epoch - in_epoch // accumulated, 0) + later
            found.append((batches, f"max_epochs={trainer.max_epochs}"))
    return Horizon(*min(found, default=(None, "")))


def seconds_left(trainer: pl.Trainer) -> float:
    """Return the seconds until a Timer (``max_time``) ends the training; infinity if there is none."""
    left = [callback.time_remaining() for callback in _callbacks_with(trainer, "time_remaining")]
    return min((seconds for seconds in left if seconds is not None), default=math.inf)


def ended_by(trainer: pl.Trainer, error: BaseException | None = None) -> tuple[ExitCause, str]:
    """Return how a training that did not fail has ended, and a description of what ended it.

    Args:
        trainer: Trainer that has ended.
        error: Exception by which it left ``fit``; None if there was none.
    """
    if isinstance(error, KeyboardInterrupt):
        return ExitCause.INTERRUPTED, "Ctrl-C"
    if is_sigterm(error):
        return ExitCause.INTERRUPTED, "SIGTERM"
    return ExitCause.DONE, "" if error is not None else _limit(trainer)


def is_sigterm(error: BaseException | None) -> bool:
    """Return whether Lightning raised the exception because of SIGTERM, in either of its packages."""
    return type(error).__name__ == "SIGTERMException"


def _limit(trainer: pl.Trainer) -> str:
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if trainer.num_training_batches == 0 or trainer.limit_train_batches == 0:
        return "at once: there are no training batches"
    if steps is not None and 0 <= steps <= trainer.global_step:
        return f"at max_steps={steps}"
    if epochs is not None and 0 <= epochs <= trainer.current_epoch:
        return f"at max_epochs={epochs}"
    if seconds_left(trainer) <= 0:
        return "at max_time"
    for stopper in _callbacks_with(trainer, "stopped_epoch"):
        message = getattr(stopper, "stopping_reason_message", None) or ""
        if message or stopper.stopped_epoch:
            reason = " ".join(message.partition(" Signaling")[0].rstrip(".").split())
            return f"by {type(stopper).__name__}" + (f" ({reason})" if reason else "")
    return "by a callback or the module, which stopped the Trainer" if trainer.should_stop else ""


def _callbacks_with(trainer: pl.Trainer, attribute: str) -> list[Any]:
    """Return the callbacks that have an attribute: Lightning's two packages have separate classes."""
    return [callback for callback in trainer.callbacks if hasattr(callback, attribute)]  # type: ignore[attr-defined]
