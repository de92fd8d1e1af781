"""The intervals in which a job lives."""

from __future__ import annotations

from typing import NamedTuple


class JobSpan(NamedTuple):
    """The intervals in which a job lives."""

    start: int
    """Interval in which it began."""
    deadline: int
    """Intervals from there to its deadline."""
    batches: int = 0
    """Batches that the ledger has counted."""
