"""Exceptions by which a launched job leaves ``Trainer.fit`` on purpose. None of them is a failure of the training."""

from __future__ import annotations

from lightning_core.core.answers import End
from lightning_core.errors import LightningCoreError


class JobEnded(LightningCoreError):
    """Leaves ``Trainer.fit`` because the scheduler has ended the job with its target unmet.

    Args:
        job: Name of the job.
        end: Directive that ended it; None on all ranks but the first.
    """

    def __init__(self, job: str, end: End | None = None) -> None:
        super().__init__(f"{job}: ended" if end is None else f"{end.job}: {end.verdict}: {end.reason}")
        self.end = end


class JobFenced(JobEnded):
    """Leaves ``Trainer.fit`` because another incarnation of the job has started; nothing more may be saved."""


class JobReleased(LightningCoreError):
    """Leaves ``Trainer.fit`` because the job was saved and gives its devices back, to be resumed later."""
