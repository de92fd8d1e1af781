"""Two ranks of one job that diverge, and what each reports. Run as ``python -m tests.faults.parted FOLDER RANK``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed

from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Grant
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.worker import process_group as gang
from lightning_core.worker.assignment import Assignment
from lightning_core.worker.process_group import Rank, joined_ranks
from lightning_core.worker.training import fit
from tests.callbacks.test_callback import Script
from tests.tiny import Batch, Line

# Instead of two minutes.
TIMEOUT = 5.0


class Parted(Line):
    """Rank 1 diverges from rank 0 in its tenth batch.

    Args:
        how: it ``"hangs"``, waits ``"elsewhere"`` (in another collective), ``"raises"``, or does not: ``"whole"``.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.steps == 10 and self.global_rank == 1:
            match self.how:
                case "hangs":
                    time.sleep(TIMEOUT + 3.0)
                case "elsewhere":
                    torch.distributed.barrier()
                case "raises":
                    raise ValueError("rank 1 has had enough")
        return loss


def main(folder: Path, number: int) -> None:
    gang.COLLECTIVE_TIMEOUT = TIMEOUT
    torch.set_num_threads(1)
    found = {}
    for way, port in json.loads((folder / "ways").read_text()).items():
        met(folder, way, number)
        home = folder / way
        config = {
            "model": {"class_path": "tests.faults.parted.Parted", "init_args": {"how": way}},
            "data": {"class_path": "tests.tiny.Points"},
            "trainer": {"logger": False, "max_steps": 30},
        }
        rank = Rank(number, 2, port=port)
        target = BatchTarget(10**6)
        assignment = Assignment("job", 1, target, config, 10, "no-arbiter", str(home), (), "cpu", (0, 1), rank)
        script = Script(Grant("job", 1, 1.0, (0, 1), Reason("fixed_share")))
        began = time.monotonic()
        with joined_ranks(rank):
            core = LaunchedCallback("job", target, client=script, devices=(0, 1), folder=home)
            left = fit(assignment, core)
        found[way] = {
            "cause": left.cause,
            "words": left.detail.rpartition("\n")[2],
            "seconds": time.monotonic() - began,
            "stuck": gang.is_stuck(),
        }
    (folder / f"{number}.json").write_text(json.dumps(found))


def met(folder: Path, what: str, number: int) -> None:
    """Wait for the other rank: ranks that are launched together begin together."""
    (folder / f"{what}-{number}").touch()
    while not (folder / f"{what}-{1 - number}").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
