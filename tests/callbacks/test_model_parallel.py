"""A training whose parameters are sharded over its ranks, which saves them without a plugin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from lightning_core.callbacks import CoreCallback
from lightning_core.core.targets import LossTarget
from tests.matrix.forks import Forks
from tests.matrix.training import digest, ours_left
from tests.tiny import QUIET, Line, ValidatedPoints

pytestmark = pytest.mark.promise("R30", "R31")


class Sharded(Line):
    def configure_model(self) -> None:
        fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]


def train(folder: str, with_core: bool) -> Any:
    """Train, save as a user does, and resume; return what must be equal, and the verdict."""
    best = Path(folder) / f"best of {os.environ['RANK']}"
    verdict = None
    for epochs, start in ((2, None), (3, f"{folder}/users.ckpt")):
        pl.seed_everything(5, verbose=False)
        ours = [CoreCallback("job", "1h", "val_loss<=1e-9", pool="local", keep_best=best)] if with_core else []
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        trainer = pl.Trainer(**QUIET, max_epochs=epochs, devices=2, strategy=strategy, callbacks=ours)
        model = Sharded()
        trainer.fit(model, datamodule=ValidatedPoints(), ckpt_path=start)
        trainer.save_checkpoint(f"{folder}/users.ckpt")
        verdict = str(ours[0].verdict) if ours else None
    weights = {name: value.full_tensor() for name, value in model.state_dict().items()}
    return (
        [digest(weights), trainer.global_step, ours_left()],
        verdict,
        best.exists() and list(map(str, best.iterdir())),
    )


def test_it_trains_as_without_us_and_keeps_no_file_that_cannot_be_verified(forks: Forks, tmp_path: Path) -> None:
    runs = []
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
        run = "tests.callbacks.test_model_parallel:train"
        runs.append(forks.run(run, str(tmp_path / name), name == "with", ranks=2))
    without, seen = runs
    assert [one.code for one in [*without, *seen]] == [0] * 4, seen[0].output
    assert [one.value[0] for one in seen] == [one.value[0] for one in without]
    # The first rank gathers what the others send, in other places of torch.
    kinds = [[each.kind for each in one.collectives] for one in seen]
    assert kinds[0] == kinds[1]
    assert seen[0].value[1] == "missed"
    assert not any(one.value[2] for one in seen)
    told = "no best model is kept: it is one file, and ModelParallelStrategy saves shards; pass it save_distributed_"
    assert "".join(one.output for one in seen).count(told) == 2  # once a fit


def read_spread() -> dict[str, Any]:
    """Read losses that are distributed tensors on the first rank alone; a collective would wait for the other one."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    from lightning_core.agent.reporting.loss_meter import LossMeter
    from lightning_core.agent.reporting.target_reader import TargetReader

    dist.init_process_group("gloo")
    flat = init_device_mesh("cpu", (2,))
    grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("alone", "both"))
    own = torch.tensor(3.0 + dist.get_rank(), requires_grad=True)
    kinds = {
        "whole": (torch.tensor(7.0), flat, [Replicate()]),
        "whole, of a shape": (torch.tensor([7.0]), flat, [Replicate()]),
        "whole on a grid": (torch.tensor(7.0), grid, [Partial(), Replicate()]),
        "alone": (own, grid["alone"], [Partial()]),
        "sum": (own, flat, [Partial()]),
        "part of a sum": (own, flat, [Partial()]),
        "shard": (own.reshape(1), flat, [Shard(0)]),
    }
    found: dict[str, Any] = {}
    for kind, (local, mesh, placements) in kinds.items():
        loss = DTensor.from_local(local, mesh, placements, run_check=False).detach()
        if kind == "sum":
            loss = loss.clone()  # as Lightning does on all ranks if it optimizes; torch sums it up there
        if dist.get_rank() == 0:
            cells: list[Any] = []
            reader = TargetReader(LossTarget("loss", 0.1), LossMeter(cells.append, every=1), None, private=True)  # type: ignore[arg-type]
            complaint = reader.read_batch({"loss": loss}, 1, 1)
            found[kind] = complaint or cells[0].value
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_the_first_rank_reads_a_distributed_loss_alone_if_it_has_the_whole(forks: Forks) -> None:
    first, other = forks.run("tests.callbacks.test_model_parallel:read_spread", ranks=2)
    assert (first.code, other.code) == (0, 0), first.output
    told = "the loss must be a number, got a tensor spread over ranks ({}): return value.full_tensor() instead"
    assert first.value == {
        "whole": 7.0, "whole, of a shape": 7.0, "whole on a grid": 7.0, "alone": 3.0, "sum": 7.0,
        "part of a sum": told.format("P(sum)"), "shard": told.format("S(0)"),
    }  # fmt: skip
    assert [each.kind for each in first.collectives] == [each.kind for each in other.collectives]
