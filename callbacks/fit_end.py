"""What ends a fit that raises nothing: one of the Trainer's own limits, or a callback."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl

from lightning_core.agent.user_code.guarded import Guarded

from .reading.horizon import seconds_left
from .reading.lightning_kinds import EARLY_STOPPING, callbacks_of


def limit_of(trainer: pl.Trainer, job: str) -> str:
    """Return what has ended a training without an exception, such as ``at max_epochs=3``; empty if that is unknown.

    Args:
        trainer: Trainer that has ended.
        job: Name of the job.
    """
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


def _stopped(stopper: Any) -> tuple[int, str]:
    return int(stopper.stopped_epoch), str(getattr(stopper, "stopping_reason_message", None) or "")
