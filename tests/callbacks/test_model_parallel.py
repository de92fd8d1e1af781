"""A training whose parameters are sharded over its ranks, which saves them without a plugin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from lightning_core.callbacks import CoreCallback
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
    told = "no best model is kept: ModelParallelStrategy writes checkpoints without a plugin"
    assert "".join(one.output for one in seen).count(told) == 2  # once a fit
