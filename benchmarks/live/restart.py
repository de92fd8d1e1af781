"""Run one rank of a training as a person would start it: load, train, and save and exit when a file says so."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

# Micro-batches of a step: if they are the same, the loader's position is valid for any number of ranks.
MICRO_BATCHES = "LIGHTNING_CORE_MICRO_BATCHES"


def run(folder: Path, rank: int, ranks: int, port: int) -> None:
    """Train until the file ``stop`` exists."""
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
        """Stops all ranks at the same step: the first looks for the file and tells the others."""

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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.restart", description=(__doc__ or "").strip())
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the checkpoint and of the file stop")
    parser.add_argument("rank", type=int, metavar="RANK", help="number of this process")
    parser.add_argument("ranks", type=int, metavar="RANKS", help="number of processes")
    parser.add_argument("port", type=int, metavar="PORT", help="port of the process group")
    run(**vars(parser.parse_args()))
