"""A training with a loss to reach by a deadline, on nodes of a market that come and go.

Run as ``python -m tests.faults.spot_loss FOLDER``, in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.market.live_day import run_live
from examples.digits import Cnn
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.codec import decode_answers
from lightning_core.core.control import Ask, part_objects
from lightning_core.history.history import History
from lightning_core.parts.market.cloud_events import NodesWanted
from lightning_core.parts.market.market_ledger import read_ledger
from lightning_core.parts.market.spot_market import Market
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.why import why
from tests.conftest import ROOT

INTERVAL, NOTICE, DEADLINE = 20.0, 10.0, 240.0
# A spot node, but not in the fourth interval.
COUNTS = [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]
PAUSE, LOSS = 0.2, 0.12


class SlowCnn(Cnn):
    """A training of about a minute: some 250 batches to its loss."""

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        time.sleep(PAUSE)
        return super().training_step(batch, batch_idx)


def main(folder: Path) -> None:
    job: dict[str, Any] = {
        "seed_everything": 1,
        "model": {"class_path": "tests.faults.spot_loss.SlowCnn"},
        "data": {"class_path": "examples.digits.Digits"},
        "trainer": {"logger": False},
        "deadline": f"{DEADLINE:.0f}s",
        "target": {"loss": LOSS},
        "save_every": "5s",
    }
    content = {"pool": {"devices": 2}, "policy": "fifo", "period": "0.5s", "jobs": {"a": job}}
    market = Market(np.full(len(COUNTS), 0.4), np.array(COUNTS), seconds=INTERVAL)
    [ended] = run_live(folder, market, Bundle.from_dict(content, ROOT), NOTICE, "semi-markov").jobs
    path = folder / "run" / "journal.db"
    with Journal.open(path, read_only=True) as journal:
        answers = [answer for entry in journal.entries() for answer in decode_answers(entry.answers)]
        words = why(History.read(journal), "a")
    found = {
        "verdict": str(ended.verdict), "at": ended.finished_at, "batches": ended.batches,
        "codes": [answer.reason.code for answer in answers if isinstance(answer, Ask)],
        "wanted": [answer[1:3] for answer in part_objects(answers) if isinstance(answer, NodesWanted)],
        "rows": [row._asdict() for row in read_ledger(path).rows], "why": words,
    }  # fmt: skip
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
