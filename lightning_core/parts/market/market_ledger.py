"""The ledger of a pool on a market, read from its journal: nodes, cost and training of each interval."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_core.core.codec import decode_answers
from lightning_core.core.control import part_objects
from lightning_core.parts.market.cloud_events import IntervalEnded
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay


@dataclass(frozen=True, slots=True)
class MarketLedger:
    """Costs of the intervals of a market.

    Attributes:
        rows: The intervals. The last one extends to the newest event if it is in progress, and its training is not
            known yet.
        references: Cost of the jobs on on-demand nodes alone, and at the offline optimum, at the measured throughput;
            None while the throughput of a job is unknown.
    """

    rows: list[IntervalEnded]
    references: tuple[float, float] | None

    @property
    def cost(self) -> float:
        """Cost of the intervals."""
        return sum(row.cost for row in self.rows)

    @property
    def figures(self) -> dict[str, str]:
        """The cost and its references, as text, by their names; ``-`` for what is not known."""
        known = ("-", "-") if self.references is None else (f"{one:.4g}" for one in self.references)
        return {"paid": f"{self.cost:.4g}"} | dict(zip(("on-demand only", "offline optimum"), known, strict=True))

    @property
    def words(self) -> str:
        """The cost and its references, as text."""
        if self.references is None:
            return f"paid: {self.cost:.4g}"
        on_demand, optimum = self.references
        compared = f"on-demand only {on_demand:.4g}, offline optimum {optimum:.4g}"
        return f"paid: {self.cost:.4g}; at the measured throughput: {compared}"


def read_ledger(path: Path) -> MarketLedger:
    """Return the ledger of a journal.

    Raises:
        ValueError: If its pool is on no market.
        JournalError: If the journal is damaged.
    """
    with Journal.open(path, read_only=True) as journal:
        market = replay(journal).scheduler.controllers.get(MARKET)
        if not isinstance(market, MarketController):
            raise ValueError(f"{path}: its pool is on no market")
        answers = (answer for entry in journal.entries() for answer in decode_answers(entry.answers))
        rows = [answer for answer in part_objects(answers) if isinstance(answer, IntervalEnded)]
        rows += [row for row in [market.open_row()] if row is not None]
        return MarketLedger(rows, market.reference_costs())
