"""Versions of a scheduler's saved state, and what brings the state of an older one to the newest.

A journal whose old events are thinned can only go on from a saved state. So each version needs a migration from the one
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lightning_core.core.saved_state import StateError, encode
from lightning_core.scheduler.tables.past_jobs import PastJobs
from lightning_core.scheduler.tables.table import JobTable

# It rises when a column, or an attribute that is saved, comes, goes or changes.
VERSION = 2


def migrated(state: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """Return a saved state as the newest version has it.

    Args:
        state: State of a scheduler.
        version: Version that saved it.

    Raises:
        StateError: If no migration begins at this version, or the state is not one of it.
    """
    while version != VERSION:
        if version not in MIGRATIONS:
            raise StateError(f"the state of a scheduler must have version 1 to {VERSION}, got {version}")
        try:
            state = MIGRATIONS[version](state)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not the state of a scheduler of version {version}: {error!r}") from error
        version += 1
    return state


def _to_2(state: Mapping[str, Any]) -> dict[str, Any]:
    """Number the jobs in the order of submission; none has left the table yet."""
    table, empty = state["table"], JobTable(1)
    jobs = len(table["names"])
    [capacity] = table["columns"]["active"]["shape"]
    ordinal = np.zeros(capacity, np.int64)
    ordinal[:jobs] = np.arange(jobs)
    columns = table["columns"] | {"ordinal": encode(ordinal)}
    table = table | {"columns": columns, "submissions": jobs, "past_resizes": encode(empty.past_resizes)}
    return {**state, "table": table, "past": PastJobs(1).state()}


MIGRATIONS: dict[int, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {1: _to_2}
