"""The Python client of a pool, for notebooks and other tools."""

from lightning_core.pool.following import Change
from lightning_core.pool.job_handle import JobHandle, JobResult
from lightning_core.pool.pool import Pool
from lightning_core.pool.pool_errors import (
    AgedOutError,
    JobEndedError,
    NoPoolError,
    NotOnThisMachineError,
    StillTrainingError,
    UnknownJobError,
)

__all__ = [
    "AgedOutError",
    "Change",
    "JobEndedError",
    "JobHandle",
    "JobResult",
    "NoPoolError",
    "NotOnThisMachineError",
    "Pool",
    "StillTrainingError",
    "UnknownJobError",
]
