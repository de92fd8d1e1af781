"""The point at which a Trainer will end by itself."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import lightning.pytorch as pl

from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.core.events import Horizon
from lightning_core.core.limits import MAX_COUNT

from .lightning_kinds import STOCHASTIC_AVERAGING, TIMER, callbacks_of


def horizon(trainer: pl.Trainer, done: int, in_epoch: int, per_epoch: int | None) -> Horizon:
    """Return where the limits of a Trainer end a training, in batches as they are reported: optimizer steps.

    The field ``seconds`` is filled in when the horizon is reported, because time passes until then.

    Args:
        trainer: Trainer whose loaders are set up.
        done: Batches since the job began.
        in_epoch: Calls of ``training_step`` in the current epoch.
        per_epoch: Batches of the previous epoch, for loaders without a length; None if there was none.
    """
    found: list[tuple[int, str]] = []
    automatic = trainer.lightning_module.automatic_optimization
    per_epoch = epoch_batches(trainer) or per_epoch
    if trainer.max_steps is not None and trainer.max_steps >= 0:
        if automatic:
            found.append((trainer.max_steps, f"max_steps={trainer.max_steps}"))
        elif trainer.global_step and done:  # such a module may do several steps a batch
            batches = math.ceil(trainer.max_steps * done / trainer.global_step)
            found.append((batches, f"max_steps={trainer.max_steps}"))
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        accumulated = trainer.accumulate_grad_batches if automatic else 1
        if per_epoch is not None:
            last = trainer.max_epochs - _has_averaging_epoch(trainer)
            later = max(last - trainer.current_epoch - 1, 0) * per_epoch
            averaging = int(trainer.current_epoch < last < trainer.max_epochs)
            batches = done + max(per_epoch - in_epoch // accumulated, 0) + later + averaging
            found.append((batches, f"max_epochs={last}"))
    end: tuple[int | None, str] = min(found, default=(None, ""))
    return Horizon(*end, at_least=_at_least(trainer, done, in_epoch, per_epoch))


def _at_least(trainer: pl.Trainer, done: int, in_epoch: int, per_epoch: int | None) -> int:
    """Return the batches that a Trainer does even if it is told to stop before."""
    loop: Any = trainer.fit_loop
    automatic = trainer.lightning_module.automatic_optimization
    least = (loop.min_steps or 0) if automatic else 0
    if loop.min_epochs and loop.epoch_progress.current.processed < loop.min_epochs:
        if per_epoch is None:
            return MAX_COUNT  # it is told anew with each epoch
        accumulated = trainer.accumulate_grad_batches if automatic else 1
        later = max(loop.min_epochs - trainer.current_epoch - 1, 0) * per_epoch
        least = max(least, done + max(per_epoch - in_epoch // accumulated, 0) + later)
    return least if least > done else 0


def epoch_batches(trainer: pl.Trainer) -> int | None:
    """Return the batches of an epoch, in optimizer steps; None if the loaders have no length, or no batch.

    Args:
        trainer: Trainer whose loaders are set up.
    """
    accumulated = trainer.accumulate_grad_batches if trainer.lightning_module.automatic_optimization else 1
    length = trainer.num_training_batches
    return None if length == math.inf else math.ceil(length / accumulated) or None


def _has_averaging_epoch(trainer: pl.Trainer) -> bool:
    """Return whether StochasticWeightAveraging has added an epoch, one step long, for batch norm."""
    averaging = callbacks_of(trainer, *STOCHASTIC_AVERAGING)
    return any(getattr(one, "_max_epochs", None) == (trainer.max_epochs or 0) - 1 for one in averaging)


def seconds_left(trainer: pl.Trainer, guarded: Guarded) -> float:
    """Return the seconds until a Timer (``max_time``) ends the training; infinity if there is none."""
    timers = callbacks_of(trainer, *TIMER)
    left = [guarded("the time that a Timer leaves", timer.time_remaining, None) for timer in timers]
    return min((float(seconds) for seconds in left if isinstance(seconds, Real)), default=math.inf)
