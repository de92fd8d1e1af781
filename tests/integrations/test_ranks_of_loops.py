"""A plain loop on several ranks: one job of its pool, which ends after the same batch on all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import lightning_core
from lightning_core.agent.steering import roll_call
from lightning_core.core.answers import State, Verdict
from lightning_core.integrations.plain import Run
from tests.matrix.forks import Forks
from tests.socket_servers import Pool, found_pool


def steps(run: Run, rank: int) -> int:
    """Train until the run is over; return the number of batches."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 1)
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


def train() -> int:
    """Train on each rank; then, in a run of its own, on one alone."""
    logging.basicConfig(format="%(message)s")
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    with lightning_core.track(max_epochs=100) as run:
        done = steps(run, rank)
    distributed.barrier()

    roll_call.PATIENCE = 1.0
    if rank == 0:  # as many do who log from one rank alone
        with lightning_core.track("alone", "1h", "5 batches") as run:
            print(f"alone: {sum(1 for _ in run.batches(range(20)))} batches", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()
    return done


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool with two devices, in a folder by which scripts find it."""
    with found_pool(devices=2) as made:
        yield made


def test_ranks_are_one_job_and_a_rank_alone_is_none(pool: Pool, forks: Forks) -> None:
    terms = {"JOB": "pair", "DEADLINE": "1h", "TARGET": "val_acc>=0.6", "POOL": str(pool.path.parent)}
    environment = {f"LIGHTNING_CORE_{name}": value for name, value in terms.items()}
    ended = forks.run("tests.integrations.test_ranks_of_loops:train", ranks=2, limit=120, environment=environment)
    said = "\n".join(one.output for one in ended)
    assert [one.code for one in ended] == [0, 0], said[-3000:]
    assert ended[0].value == ended[1].value, said
    assert 75 <= ended[0].value < 500, said
    [job] = pool.do(pool.actor.status())[1]
    assert (job.name, job.state, job.verdict) == ("pair", State.ENDED, Verdict.MET)
    assert "alone: 20 batches" in said
    assert "alone: nothing is reported and no share is kept, because it has not begun in the same way on rank 1" in said


def test_ranks_without_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ValueError, match="there must be a process group before the first batch, because WORLD_SIZE=2"),
        lightning_core.track("a", "1h", "5 batches", pool="local") as run,
    ):
        next(iter(run.batches(range(3))))
