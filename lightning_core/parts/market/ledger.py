"""The ledger of a backtest: nodes, work and cost of each job of a batch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Ledger:
    """Nodes, progress and costs of a batch of jobs.

    Attributes:
        spot, on_demand: Nodes held, shape ``(B, D)``.
        part: Fraction of each interval left for training, shape ``(B, D)``.
        progress: Work done by the end of each interval, shape ``(B, D)``, at most all of it.
        paid: Cost of each interval up to the deadline, shape ``(B, D)``.
        late: Intervals from when it was due, by its soft deadline, until the work was done, shape ``(B,)``.
        cost: Total cost, also after the deadline, shape ``(B,)``.
        utility: Value of completion less the cost, shape ``(B,)`` (eq. 9).
    """

    spot: IntArray
    on_demand: IntArray
    part: FloatArray
    progress: FloatArray
    paid: FloatArray
    late: IntArray
    cost: FloatArray
    utility: FloatArray

    def of(self, rows: slice) -> Self:
        """Return the ledger of some of the jobs."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def on_time(self) -> BoolArray:
        """Return whether each job completed when it was due, shape ``(B,)``."""
        on_time: BoolArray = self.late == 0
        return on_time
