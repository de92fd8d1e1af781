"""The market as a supply of nodes: its section, the settings of a pool on it, its nodes, and what they have cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lightning_core.core.jobs import Job
from lightning_core.parts.market.ledger_table import ledger_to_dict, print_ledger, write_ledger
from lightning_core.parts.market.market_ledger import MarketLedger, read_ledger
from lightning_core.parts.market.market_section import MarketSection, market_to_dict, read_market, rented, save_every
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.scheduler.settings import Settings


class MarketSupply:
    """Nodes of a spot market, as a section of a file describes it.

    Args:
        content: What the section says.
    """

    def __init__(self, content: MarketSection) -> None:
        self.content = content
        self.terms = MarketTerms(**content.terms)
        self.save_every = save_every(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MarketSupply) and other.content == self.content

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def read(cls, section: Any, folder: Path) -> Self:
        return cls(read_market(section, folder))

    @classmethod
    def left(cls, folder: Path, scheduler: Any | None = None) -> None:
        from lightning_core.parts.market.feedback_folder import leave_feedback

        leave_feedback(folder, scheduler)

    @classmethod
    def again(cls, folder: Path, settings: Settings) -> Settings:
        from lightning_core.parts.market.feedback_folder import with_feedback

        return with_feedback(folder, settings)

    def section(self) -> dict[str, Any]:
        return market_to_dict(self.content)

    def check(self, *, local: bool) -> None:
        from lightning_core.parts.market.cloud import check_provision

        check_provision(self.content.commands.get("provision"), simulated=local)

    def settings(self, settings: Settings, jobs: Sequence[Job] | None = None) -> Settings:
        return rented(settings, self.content, jobs)

    def announce(self) -> str:
        from lightning_core.parts.market.cloud.quotes import QuoteCommand

        terms, command = self.terms, self.content.commands.get("quotes")
        if command is None:
            return f"on a market of {len(terms.market())} intervals of {terms.seconds:g} s"
        quote = QuoteCommand(command).ask()
        now = f"{quote.available} spot nodes at {quote.price:g}, on demand {quote.on_demand:g}"
        return f"on a market with intervals of {terms.seconds:g} s; now {now}"

    def nodes(self, settings: Settings, pool: str, kind: str, *, local: bool) -> Any:
        from lightning_core.parts.market.cloud.cloud_spec import CloudSpec
        from lightning_core.parts.market.cloud.rented_nodes import RentedNodes

        return RentedNodes(CloudSpec.of(settings, self.content.commands, pool, kind, simulated=local))

    def virtual(self, settings: Settings, delays: Mapping[str, float]) -> Any:
        from lightning_core.parts.market.virtual_cloud import VirtualCloud

        terms = terms_of(settings)
        if terms is None or terms.quoted:
            raise ValueError("market.quotes: what a command quotes cannot be simulated; give a recording: market.trace")
        return VirtualCloud(terms.market(), settings=settings, **delays)

    def show_run(self, run_dir: Path) -> None:
        print_ledger(ledger := read_ledger(run_dir / "journal.db"))
        write_ledger(ledger, run_dir)

    def show_record(self, record: MarketLedger) -> None:
        print_ledger(record)

    def record_to_dict(self, record: MarketLedger) -> dict[str, Any]:
        return ledger_to_dict(record)
