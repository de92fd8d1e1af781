"""The ledger of a market, read from a journal: as a table, a picture, and a file for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_core.cluster.head import _unfinished
from lightning_core.parts.market.ledger_table import FILE, write_ledger
from lightning_core.parts.market.market_ledger import read_ledger
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from tests.cli.test_cli import Said
from tests.parts.market.test_simulated_market import drawn, elastic, simulated


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def test_the_ledger_of_a_journal_is_that_of_its_pool(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, outcome, _ = simulated(drawn(1), elastic("a", 8.0, 10.0), path=journal)
    ledger = read_ledger(journal)
    assert ledger.rows == outcome.nodes.rows
    assert ledger.cost == pytest.approx(outcome.nodes.cost)
    # What was on offer after the job had ended is in no journal: the optimum is that of what was quoted.
    assert ledger.references is not None
    assert outcome.nodes.references is not None
    assert ledger.references[0] == outcome.nodes.references[0]
    assert ledger.references[1] == pytest.approx(outcome.nodes.references[1], rel=0.05)
    words = f"paid: {ledger.cost:.4g}; at the measured throughput: on-demand only {ledger.references[0]:.4g}, offline "
    assert words in ledger.words
    write_ledger(ledger, journal.parent)
    written = json.loads((journal.parent / FILE).read_text())
    assert written["intervals"] == [row._asdict() for row in ledger.rows]
    assert (written["cost"], written["on_demand_cost"]) == (ledger.cost, ledger.references[0])
    said = Said(capsys, "market", "ledger", str(journal))
    assert said.code == 0
    assert words in said.out
    assert said.out.count("\n") == len(ledger.rows) + 2


def test_a_ledger_has_the_interval_in_progress(journal: Path) -> None:
    """Of a run that was cut off after three quarters of an hour."""
    simulated(drawn(1), elastic("a", 8.0, 10.0), path=journal, until=2700.0)
    ledger = read_ledger(journal)
    assert [row.number for row in ledger.rows] == [0, 1]
    last = ledger.rows[-1]
    assert 0.4 < last.cost / (last.spot * last.price + last.on_demand) < 0.6
    assert last.batches == 0


def test_a_pool_without_a_market_has_no_ledger(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Journal.create(journal, Settings()).close()
    said = Said(capsys, "market", "ledger", str(journal))
    assert said.code == 2
    assert said.err == f"error: {journal}: its pool is on no market\n"


def test_intervals_are_drawn(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(drawn(1), elastic("a", 8.0, 10.0), path=journal)
    picture = journal.parent / "intervals.svg"
    assert Said(capsys, "market", "ledger", str(journal), "--picture", str(picture)).code == 0
    words = picture.read_text()
    assert "spot nodes on offer" in words
    assert f"paid {read_ledger(journal).cost:.3g}; on-demand only" in words


def test_a_pool_that_has_spent_something_goes_on_counting(journal: Path) -> None:
    simulated(drawn(1), elastic("a", 8.0, 10.0), path=journal)
    assert _unfinished(journal.parent)
    assert journal.exists()
