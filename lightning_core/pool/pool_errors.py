"""Errors of :class:`~lightning_core.pool.pool.Pool`."""

from __future__ import annotations

from lightning_core.errors import LightningCoreError


class NoPoolError(LightningCoreError, ConnectionError):
    """No pool is up."""


class UnknownJobError(LightningCoreError, LookupError):
    """The pool has never had a job of this name."""


class AgedOutError(LightningCoreError, FileNotFoundError):
    """The job ended so long ago that its files are gone from the pool's folder."""


class JobEndedError(LightningCoreError, RuntimeError):
    """The job has ended, so nothing about it can be changed."""


class StillTrainingError(LightningCoreError, TimeoutError):
    """A job that was waited for has not ended in time."""


class NotOnThisMachineError(LightningCoreError, FileNotFoundError):
    """The pool's folder is on another machine, or closed to this account, so its journal and logs cannot be read."""
