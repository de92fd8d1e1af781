"""Assignment of a worker: an incarnation of a job, and everything needed to train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightning_core.bundle.scripts import SCRIPT
from lightning_core.core.jobs import OnHold
from lightning_core.core.targets import Target
from lightning_core.storage.job_specs import HANG, SAVE_EVERY
from lightning_core.worker.process_group import ALONE, Rank


class Incarnation(NamedTuple):
    """An incarnation of a job."""

    job: str
    number: int
    scheduler: str
    """Name of the scheduler whose job it is."""


@dataclass(frozen=True)
class Assignment:
    """Everything that a worker needs to train a job.

    Args:
        job: Name of the job.
        incarnation: Number of the job's incarnation.
        target: Target of the job.
        config: LightningCLI config, or that of a script.
        cell: Minimum number of batches in a loss cell.
        scheduler: Name of the scheduler's actor.
        folder: Folder of the job, for its checkpoints and logs.
        paths: Folders in which class paths and scripts are looked up.
        kind: Kind of the devices.
        devices: Devices of the job, in the order of its ranks.
        rank: Rank of this worker.
        save_every: Minimum seconds between periodic checkpoints.
        keep_best: Whether the best model is kept in the job's folder.
        hang: Seconds that any step may take before it hangs; None for any time.
        on_hold: Treatment of the job's GPU memory while it is held.
    """

    job: str
    incarnation: int
    target: Target
    config: Mapping[str, Any]
    cell: int
    scheduler: str
    folder: str
    paths: tuple[str, ...]
    kind: str
    devices: tuple[int, ...] = (0,)
    rank: Rank = ALONE
    save_every: float = SAVE_EVERY
    keep_best: bool = False
    hang: float | None = HANG
    on_hold: OnHold = OnHold.KEEP

    @property
    def script(self) -> str:
        """The script that trains the job; empty if it has a config."""
        return str(self.config.get(SCRIPT, ""))
