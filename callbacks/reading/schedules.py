"""The learning-rate schedulers of a Trainer, and where it is."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.utilities.model_helpers import is_overridden

from lightning_core.agent.reporting.lr_courses import UnknownCourseError
from lightning_core.agent.reporting.lr_watch import Layout, Schedules


def schedules_of(trainer: pl.Trainer, in_epoch: int) -> Schedules:
    """Return the learning-rate schedulers of a Trainer; batches count as Lightning counts them.

    Args:
        trainer: Trainer whose optimizers are set up.
        in_epoch: Calls of ``training_step`` in the current epoch.

    Raises:
        UnknownCourseError: If it is not known when they are stepped.
    """
    configs, module = trainer.lr_scheduler_configs, trainer.lightning_module
    if configs and not module.automatic_optimization:
        raise UnknownCourseError("manual optimization steps its schedulers when it wants")
    if configs and is_overridden("lr_scheduler_step", module):
        raise UnknownCourseError("the module has a lr_scheduler_step of its own")
    if any(config.reduce_on_plateau for config in configs):
        raise UnknownCourseError("ReduceLROnPlateau waits for a metric")
    length, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    is_whole = in_epoch >= length
    layout = Layout(
        length, accumulated, trainer.current_epoch + is_whole, 0 if is_whole else in_epoch // accumulated
    )  # fmt: skip
    return Schedules(trainer.optimizers, configs, layout)
