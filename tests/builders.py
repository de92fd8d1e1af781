"""Builders that many tests share."""

from __future__ import annotations

from typing import Any

from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget


def job(
    name: str = "a", deadline: float = 1000.0, batches: int = 1000, *, devices: int | None = None, **terms: Any
) -> Job:
    """Return a job that is to train a number of batches.

    Args:
        name: Name of the job.
        deadline: Deadline in seconds after its submission.
        batches: Batches of its target.
        devices: Number of devices that it trains on, no more and no fewer; None for what its other terms say.
        terms: Other terms of the job.
    """
    if devices is not None:
        terms |= {"min_devices": devices, "max_devices": devices}
    return Job(name, deadline, BatchTarget(batches), **terms)
