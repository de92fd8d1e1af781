"""A rank of a training as a person starts it: it loads, trains, and saves and ends when it is told by a file.

``python -m benchmarks.live.restart FOLDER RANK RANKS PORT``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# The loader's position holds for any number of ranks if a step is of the same micro-batches.
MICRO_BATCHES = "LIGHTNING_CORE_MICRO_BATCHES"


def run(folder: Path, rank: int, ranks: int, port: int) -> None:
    """Trains until the file ``stop`` is there."""
    os.environ.update({
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "TORCHELASTIC_RUN_ID": "restart", MICRO_BATCHES: "2",
    })  # fmt: skip
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    from benchmarks.live.numbered_training import Data, Network

    torch.set_num_threads(1)

    class Stops(pl.Callback):
        """All ranks look at the same moment: the first says what it saw."""

        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            told = torch.tensor(float((folder / "stop").exists()))
            if trainer.world_size > 1:
                torch.distributed.broadcast(told, 0)
            if told:
                trainer.save_checkpoint(folder / "last.ckpt", weights_only=False)
                raise SystemExit

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, num_nodes=ranks, max_epochs=-1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Stops()],
        accumulate_grad_batches=2 // ranks,
        strategy=DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto",
    )  # fmt: skip
    checkpoint = folder / "last.ckpt"
    trainer.fit(Network(str(folder)), datamodule=Data(), ckpt_path=checkpoint if checkpoint.exists() else None)


if __name__ == "__main__":
    run(Path(sys.argv[1]), *map(int, sys.argv[2:]))
