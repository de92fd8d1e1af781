"""TODO."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Ledger:
    """What a batch of jobs held, did and paid.

    Attributes:
        spot, on_demand: instances held, shape ``(B, D)``.
        part: of each interval that was left to train in, shape ``(B, D)``.
        progress: work done by the end of each interval, shape ``(B, D)``, at most all of it.
        paid: for each interval up to the deadline, shape ``(B, D)``.
        late: intervals behind the deadline until the rest was done, shape ``(B,)``.
        cost: all that was paid, also behind the deadline, shape ``(B,)``.
        utility: value of the end less the cost, shape ``(B,)`` (eq. 9).
    """

    spot: IntArray
    on_demand: IntArray
    part: FloatArray
    progress: FloatArray
    paid: FloatArray
    late: IntArray
    cost: FloatArray
    utility: FloatArray

    def of(self, rows: slice) -> Ledger:
        """That of some of the jobs."""
        return Ledger(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def on_time(self) -> BoolArray:
        """Whether each ended by its deadline, shape ``(B,)``."""
        on_time: BoolArray = self.late == 0
        return on_time
