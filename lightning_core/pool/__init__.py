"""The Python client of a pool, for notebooks and other tools."""

from lightning_core.pool.following import Change
from lightning_core.pool.pool import Pool
from lightning_core.pool.pool_errors import (
    AgedOutError,
    JobEndedError,
    NoPoolError,
    NotOnThisMachineError,
    UnknownJobError,
)

__all__ = ["AgedOutError", "Change", "JobEndedError", "NoPoolError", "NotOnThisMachineError", "Pool", "UnknownJobError"]
