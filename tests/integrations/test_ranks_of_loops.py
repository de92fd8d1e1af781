"""A plain loop on several ranks: one job of its pool, which ends after the same batch on all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core.answers import State, Verdict
from tests.conftest import ROOT
from tests.socket_servers import Pool, found_pool

SCRIPT = """
import logging
import time
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
import lightning_core
from lightning_core.agent.steering import roll_call

logging.basicConfig(format="%(message)s")
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(4, 1)


def train(run):
    done = 0
    while not run.over:
        for _ in run.batches(range(25)):
            loss = ((model(x) - 2 * x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            time.sleep(0.002)
            done += 1
            if done > 500:
                return done
        if rank == 0:
            run.evaluate(val_acc=done / 100)  # on one rank, as many do
    return done


with lightning_core.track(max_epochs=100) as run:
    done = train(run)
print(f"rank {rank} ends after {done}", flush=True)
distributed.barrier()

roll_call.PATIENCE = 1.0
if rank == 0:  # as many do who log from one rank alone
    with lightning_core.track("alone", "1h", "5 batches") as run:
        print(f"alone: {sum(1 for _ in run.batches(range(20)))} batches", flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool with two devices, in a folder by which scripts find it."""
    with found_pool(devices=2) as made:
        yield made


def test_ranks_are_one_job_and_a_rank_alone_is_none(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    terms = {"JOB": "pair", "DEADLINE": "1h", "TARGET": "val_acc>=0.6", "POOL": str(pool.path.parent)}
    environment = {**os.environ, **{f"LIGHTNING_CORE_{name}": value for name, value in terms.items()}}
    environment |= {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    said = made.stdout + made.stderr
    assert made.returncode == 0, said[-3000:]
    ends = dict(re.findall(r"rank (\d) ends after (\d+)", said))
    assert ends["0"] == ends["1"], said
    assert 75 <= int(ends["0"]) < 500, said
    [job] = pool.do(pool.actor.status())[1]
    assert (job.name, job.state, job.verdict) == ("pair", State.ENDED, Verdict.MET)
    assert "alone: 20 batches" in said
    assert "alone: nothing is reported and no share is kept, because it has not begun in the same way on rank 1" in said


def test_ranks_without_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning_core

    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ValueError, match="there must be a process group before the first batch, because WORLD_SIZE=2"),
        lightning_core.track("a", "1h", "5 batches", pool="local") as run,
    ):
        next(iter(run.batches(range(3))))
