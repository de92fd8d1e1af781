"""Nodes of a market that are drained, killed, stopped and replaced; the training ends in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from tests.conftest import ROOT
from tests.faults.spot import BATCHES, COUNTS, DEADLINE, NOTICE, SAVE_EVERY
from tests.faults.spot_loss import DEADLINE as DIGITS_DEADLINE
from tests.faults.test_nodes import run_story


@pytest.mark.promise("R26")
@pytest.mark.nightly
@pytest.mark.cluster
def test_a_training_meets_its_deadline_under_preemptions(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = run_story("tests.faults.spot", tmp_path)
    rows = found["rows"]
    assert (found["verdict"], found["batches"]) == ("met", BATCHES)
    assert found["at"] <= DEADLINE
    # No more spot nodes than there were, and none where there were none.
    assert all(row["spot"] <= COUNTS[row["number"]] for row in rows)
    assert rows[2]["spot"] == 0
    assert max(row["spot"] for row in rows[3:]) == 2
    # One was drained, one killed, one hung: two losses, and what was lost is what had not been saved.
    assert found["preempted"] >= 1
    assert found["restarts"] == 2
    assert {"killed at", "stopped at"} <= set(found)
    fastest = max(row["batches"] for row in rows) / 20.0
    assert sum(row["lost"] for row in rows) == found["lost"] <= 2 * fastest * (SAVE_EVERY + 2.0)
    # The ledger's batches are those that were done, and each step was; until it hears of its end it trains on.
    assert sum(row["batches"] for row in rows) == BATCHES
    assert BATCHES <= found["steps"] <= BATCHES + 2 * fastest
    # No job resumes from a checkpoint that was not accepted.
    assert found["moments"]["begun"]
    assert all(found["moments"]["begun"])
    # The checkpoint of the notice was whole before the node went.
    assert found["moments"]["is_safe"]
    assert max(found["moments"]["is_safe"]) < NOTICE
    cost = sum(row["cost"] for row in rows)
    assert cost < len(rows) * 1.0  # less than one on-demand node all the time, which could not have ended it
    back, safe = max(found["moments"]["back"]), max(found["moments"]["is_safe"])
    words = (
        f"ended {DEADLINE - found['at']:.0f} s before its deadline for {cost:.1f}; saved {safe:.1f} s after a notice, "
    )
    words += f"trains again {back:.1f} s after a loss"
    record_property("figure", words)


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_loss_is_reached_by_its_deadline_on_spot_nodes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    found = run_story("tests.faults.spot_loss", tmp_path)
    assert found["verdict"] == "met"
    assert found["at"] < DIGITS_DEADLINE
    assert sum(row["batches"] for row in found["rows"]) == found["batches"]
    assert any(row["spot"] for row in found["rows"])
    assert not found["rows"][3]["spot"]
    # It begins without a forecast, and then is planned by it; at its end all nodes go back.
    assert found["codes"][0] == "nodes_held"
    assert {"nodes_held_by_forecast", "nodes_held_in_doubt"} & set(found["codes"])
    assert any("forecast" in line or "likely to be enough" in line for line in found["why"])
    assert found["wanted"][-1] == [0, 0]
    cost = sum(row["cost"] for row in found["rows"])
    record_property(
        "figure", f"reached its loss {DIGITS_DEADLINE - found['at']:.0f} s before its deadline for {cost:.1f}"
    )


# Three spot nodes, for a while one, three again.
QUOTES = """
import json, sys, time
from pathlib import Path

began = Path(sys.argv[1])
if not began.exists():
    began.write_text(str(time.time()))
gone = time.time() - float(began.read_text())
print(json.dumps({"price": 0.3, "available": 1 if 60 < gone < 90 else 3}))
"""


def ended_intervals(run: Path) -> int:
    """Return how many intervals have ended of a run that goes on."""
    try:
        with Journal.open(run / "journal.db", read_only=True) as journal:
            return sum('"interval"' in entry.answers for entry in journal.entries())
    except (OSError, JournalError):  # there is none yet, or it is being written
        return 0


@pytest.mark.nightly
@pytest.mark.cluster
def test_two_jobs_share_the_nodes_that_a_command_quotes(tmp_path: Path) -> None:
    """From the command line, on simulated machines, with Ctrl-C in between: both end in time, with one ledger."""
    script, path, run = tmp_path / "quotes.py", tmp_path / "bundle.yaml", tmp_path / "run"
    script.write_text(QUOTES)
    jobs: dict[str, Any] = {
        name: {
            "seed_everything": 1,
            "model": {
                "class_path": "benchmarks.live.numbered_training.Network",
                "init_args": {"folder": str(tmp_path), "pause": 0.03},
            },
            "data": {"class_path": "benchmarks.live.numbered_training.Data"},
            "trainer": {"logger": False},
            "deadline": f"{deadline}s",
            "target": {"batches": batches},
            "max_devices": 2,
            "save_every": "5s",
        }
        for name, batches, deadline in (("a", 700, 160), ("b", 900, 220))
    }
    quotes = f"{sys.executable} {script} {tmp_path / 'began'}"
    market = {"quotes": quotes, "interval": "15s", "policies": ["max-spot"]}
    path.write_text(yaml.safe_dump({"policy": "edf", "period": "0.5s", "market": market, "jobs": jobs}))
    command = [sys.executable, "-m", "lightning_core.cli.main", "run", str(path), "--run-dir", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran: dict[str, Any] = {"cwd": ROOT, "env": environment, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **ran) as left:
        until = time.monotonic() + 120
        while not ended_intervals(run):
            assert time.monotonic() < until
            time.sleep(1.0)
        time.sleep(5)
        left.send_signal(signal.SIGINT)
        words, _ = left.communicate(timeout=300)
    assert left.returncode == 130, words
    before = json.loads((run / "ledger.json").read_text())["intervals"]
    assert f"run --resume {run}" in words
    command = [sys.executable, "-m", "lightning_core.cli.main", "run", "--resume", str(run)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, **ran)
    assert done.returncode == 0, done.stdout
    ledger = json.loads((run / "ledger.json").read_text())
    assert ledger["intervals"][: len(before)] == before
    rows = ledger["intervals"]
    assert sum(row["batches"] for row in rows) == 1600
    assert all(row["spot"] <= row["available"] for row in rows)
    assert {row["available"] for row in rows} == {1, 3}
    assert max(row["used"] for row in rows) > 1.5  # both at once
    assert ledger["cost"] == pytest.approx(sum(row["spot"] * 0.3 + row["on_demand"] for row in rows))
    assert ledger["optimum"] <= ledger["cost"]
    # A node that goes is nothing that people are told of line by line.
    assert "Raylet is terminated" not in words + done.stdout
