"""A pool on a market that is taken down and brought up again continues with what it had learned and billed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core.codec import decode_answers
from lightning_core.core.control import part_objects
from lightning_core.parts.market.cloud.machine_notes import MachineNotes
from lightning_core.parts.market.cloud_events import IntervalEnded
from lightning_core.pool.pool import Pool
from lightning_core.storage.journals.journal import Journal
from tests.conftest import ROOT
from tests.faults.rented import Rented, submitted
from tests.waiting import until

RENTED = [sys.executable, "-m", "tests.faults.rented"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t") as made:  # Ray's sockets want short paths
        yield Path(made)
        subprocess.run([*RENTED, made, "down"], cwd=ROOT, check=False, capture_output=True, timeout=150)


def command(folder: Path, word: str) -> None:
    """Run ``up`` or ``down`` in a process of its own: Ray reads the token of a head only once."""
    subprocess.run([*RENTED, str(folder), word], cwd=ROOT, check=True, timeout=150)


def ended(folder: Path) -> list[IntervalEnded]:
    """Return the intervals that the pool has billed."""
    with Journal.open(folder / "pool" / "journal.db", read_only=True) as journal:
        answers = [answer for entry in journal.entries() for answer in decode_answers(entry.answers)]
    return [answer for answer in part_objects(answers) if isinstance(answer, IntervalEnded)]


@pytest.mark.promise("R24")
@pytest.mark.nightly
@pytest.mark.cluster
def test_a_pool_that_was_down_goes_on_with_what_it_had_learned_and_billed(folder: Path) -> None:
    command(folder, "up")
    with submitted(Rented(folder, None), "a") as kill_command:
        kill_command()
    with Pool.connect(str(folder / "pool")) as pool:
        until(lambda: pool.status("a").batches > 40 and pool.about()["controllers"]["market"]["spent"] > 0, 120.0)
    command(folder, "down")
    assert MachineNotes(folder / "pool" / "nodes").find() == []
    rows = ended(folder)
    spent = sum(row.cost for row in rows)
    assert spent > 0

    command(folder, "up")
    with Pool.connect(str(folder / "pool")) as pool:
        before = pool.status("a")
        assert pool.about()["controllers"]["market"]["spent"] >= spent - 1e-9
        # It is known how fast it trains and by which policy, and it goes on from its checkpoint.
        assert before.batches > 0
        assert before.throughput is not None
        assert "market" in before.notes
        until(lambda: pool.status("a").batches > before.batches + 20, 120.0)
        assert pool.status("a").incarnation > 1
        until(lambda: pool.about()["controllers"]["market"]["spent"] > spent, 60.0)
        known = pool.about()["controllers"]["market"]["spent"]
    command(folder, "down")
    both = ended(folder)
    assert both[: len(rows)] == rows
    numbers = [row.number for row in both]
    assert numbers == sorted(set(numbers))
    assert sum(row.cost for row in both) >= known - 1e-9
    assert MachineNotes(folder / "pool" / "nodes").find() == []
