"""Ends of logger runs: Lightning reports every exception as a failure, and W&B has one run per process."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lightning.pytorch as pl

log = logging.getLogger(__name__)


def call_it_a_success(trainer: pl.Trainer) -> None:
    """Tell the loggers of a training that left on request that it did not fail."""
    for logger in trainer.loggers:
        try:
            logger.finalize("success")
        except Exception as error:  # loggers raise arbitrary errors of their services
            log.warning("%s could not be closed: %s: %s", type(logger).__name__, type(error).__name__, error)


def finish_run(*, well: bool) -> None:
    """Finish the run of W&B that a job has left open: the next job of this process would log into it.

    Args:
        well: Whether the job ended or left without a fault.
    """
    wandb = sys.modules.get("wandb")
    if wandb is None or getattr(wandb, "run", None) is None:
        return
    try:
        wandb.finish(exit_code=0 if well else 1)
    except Exception as error:
        log.warning("the run of W&B could not be finished: %s: %s", type(error).__name__, error)
