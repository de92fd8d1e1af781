"""The scene of a live page: what a pool is like at the moment at which the page is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lightning_core.core.answers import JobStatus
from lightning_core.history.history import History


class PoolScene(NamedTuple):
    """A pool as a :class:`~lightning_core.core.parts.LivePage` draws it."""

    history: History
    """History of the pool, which does not change while the page is drawn."""
    now: float
    """Scheduler time in seconds."""
    about: Mapping[str, Any]
    """Description of the pool (``Pool.about()``); empty while the pool does not answer."""
    jobs: Sequence[JobStatus]
    """Jobs in the order of submission."""
    width: int
    """Width for charts in pixels."""
