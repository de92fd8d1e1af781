"""Jobs that are over leave the table: no round, no forecast and no array grows with what a pool has trained before.

A job leaves once its worker has left, or a while after its end. The newest of those that have left are remembered, for
status, resubmissions under their name and late messages; of the others remains what a name must never repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_core.core.answers import JobStatus
from lightning_core.core.arrays import BoolArray, IntArray
from lightning_core.core.validation import checked
from lightning_core.scheduler.status import job_status
from lightning_core.scheduler.tables.saved_table import BY_ROW, LISTS, restore_table, table_to_dict
from lightning_core.scheduler.tables.table import COLUMNS, JobTable

# Rows that leave together, at least, and at least as many as stay: each row is then copied once or twice in its life.
MIN_LEAVING = 32
# Seconds after the end of a job for which its worker may be heard of.
SETTLE = 600.0
# Seconds after its end for which a job is remembered, however many there are.
REMEMBERED_FOR = 86400.0


class PastJobs:
    """The jobs that have left the table.

    Args:
        window: Number of cells whose mean is the current loss.
        remember: Jobs that are remembered, beside those that have ended of late.

    Attributes:
        table: Those that are remembered, in the order of submission.
        version: Largest version of a directive of the others.
        incarnation: Largest incarnation of the others.
    """

    def __init__(self, window: int, remember: int) -> None:
        self.table = JobTable(window)
        self._remember = remember
        self.version = 0
        self.incarnation = 0
        self._status: list[tuple[int, JobStatus]] | None = None  # kept until the table changes, which is seldom

    def take_from(self, table: JobTable, now: float) -> BoolArray | None:
        """Let the rows of jobs that are over leave a table, if there are enough of them.

        Returns:
            Whether each row has stayed, shape ``(n,)``; None if all have.
        """
        n, active = len(table), int(np.count_nonzero(table.active[: len(table)]))
        if not _are_enough(n - active, active):
            return None
        leaves: BoolArray = ~table.active[:n] & ((table.last_report[:n] == 0) | (table.ended_at[:n] <= now - SETTLE))
        if not _are_enough(int(np.count_nonzero(leaves)), active):
            return None
        costs = table.resize[:n][leaves]
        table.past_resizes.extend(costs[~np.isnan(costs)].tolist())
        _append(self.table, table, np.flatnonzero(leaves))
        if not np.all(np.diff(self.table.ordinal[: len(self.table)]) > 0):
            _choose(self.table, np.argsort(self.table.ordinal[: len(self.table)], kind="stable"))
        _choose(table, np.flatnonzero(~leaves))
        self._status = None
        return ~leaves

    def forget(self, now: float, waited_for: Collection[str], present: JobTable) -> None:
        """Forget the oldest jobs beyond those that are remembered; jobs that were submitted together go together.

        Args:
            now: Scheduler time in seconds.
            waited_for: Names of jobs that must stay.
            present: Jobs that have not left.
        """
        table = self.table
        rows = np.arange(len(table))
        old = (rows < len(table) - self._remember) & (table.ended_at[: len(table)] <= now - REMEMBERED_FOR)
        old[[row for name in waited_for if (row := table.row_of.get(name)) is not None]] = False
        if not old.any():
            return
        submitted = table.submitted[: len(table)]
        old &= ~np.isin(submitted, np.concatenate([submitted[~old], present.submitted[: len(present)]]))
        if not old.any():
            return
        gone = np.flatnonzero(old)
        self.version = max(self.version, *(table.directives[row].version for row in gone.tolist()))
        self.incarnation = max(self.incarnation, int(table.incarnation[gone].max()))
        _choose(table, np.flatnonzero(~old))
        self._status = None

    def status(self, kinds: Sequence[str]) -> list[tuple[int, JobStatus]]:
        """Return the status of each job that is remembered, with its place in the order of submission.

        Args:
            kinds: Names of the kinds of devices: those that come later change nothing for these jobs.
        """
        table = self.table
        if self._status is None:
            self._status = [(int(table.ordinal[row]), job_status(table, row, 0.0, kinds)) for row in range(len(table))]
        return self._status

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"table": table_to_dict(self.table), "version": self.version, "incarnation": self.incarnation}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        restore_table(self.table, state["table"])
        self.version, self.incarnation = checked(state["version"], int), checked(state["incarnation"], int)


def _are_enough(leaving: int, active: int) -> bool:
    return leaving >= max(active, MIN_LEAVING)


def _append(table: JobTable, other: JobTable, rows: IntArray) -> None:
    """Append rows of another table."""
    n = len(table)
    for name in COLUMNS:
        setattr(table, name, np.concatenate([getattr(table, name)[:n], getattr(other, name)[rows]]))
    chosen = rows.tolist()
    for name in _LISTS:
        getattr(table, name).extend(getattr(other, name)[row] for row in chosen)
    for name in BY_ROW:
        values = getattr(other, name)
        getattr(table, name).update({n + k: values[row] for k, row in enumerate(chosen) if row in values})
    _name_rows(table)


def _choose(table: JobTable, rows: IntArray) -> None:
    """Reduce a table to some of its rows, in their order."""
    for name, kind in COLUMNS.items():
        unused: npt.NDArray[Any] = np.zeros(max(16 - len(rows), 0), kind)
        setattr(table, name, np.concatenate([getattr(table, name)[rows], unused]))
    chosen = rows.tolist()
    for name in _LISTS:
        values = getattr(table, name)
        setattr(table, name, [values[row] for row in chosen])
    for name in BY_ROW:
        values = getattr(table, name)
        setattr(table, name, {k: values[row] for k, row in enumerate(chosen) if row in values})
    _name_rows(table)


def _name_rows(table: JobTable) -> None:
    """Let each name mean its newest row; names stand in the order of these rows."""
    newest = {name: row for row, name in enumerate(table.names)}
    table.row_of = dict(sorted(newest.items(), key=lambda item: item[1]))


_LISTS = ("names", "jobs", "directives", "speedups", "curves", *LISTS)
