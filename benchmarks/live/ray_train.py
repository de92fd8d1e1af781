"""Measure how long Ray Train's elastic training takes to use a second device.

The training is that of :mod:`benchmarks.live.resize`, resized in the only way that it notices: a node with
a device joins (of a device that another actor gives back it does not know). Prints the seconds from then to the first
batch on two workers. Needs ``pip install 'ray[train]'``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

# Maximum seconds of the resize.
RESIZE_TIMEOUT = 240.0
MAX_WORKERS = 2


def train(config: dict[str, str]) -> None:
    """Train in a worker from the last checkpoint that was reported, without end."""
    import lightning.pytorch as pl
    import ray.train
    import ray.train.lightning
    import torch

    from benchmarks.live.numbered_training import Data, Network
    from lightning_core.callbacks.elastic.steps import MICRO_BATCHES

    torch.set_num_threads(1)
    folder = Path(config["folder"])

    class Reports(pl.Callback):
        """Saves and reports every 200 steps: a resize loses what was not reported."""

        def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, number: int) -> None:
            ends_step = (number + 1) % trainer.accumulate_grad_batches == 0
            if ends_step and trainer.global_step % 200 == 199:
                path = folder / f"save-{trainer.global_step}"
                trainer.save_checkpoint(path / "last.ckpt", weights_only=False)
                checkpoint = ray.train.Checkpoint.from_directory(path) if trainer.is_global_zero else None
                ray.train.report({"step": trainer.global_step}, checkpoint=checkpoint)

    theirs: Any = ray.train.lightning
    context: Any = ray.train.get_context()
    os.environ[MICRO_BATCHES] = str(MAX_WORKERS)  # the global batch stays
    trainer = theirs.prepare_trainer(
        pl.Trainer(
            accelerator="cpu", devices="auto", max_epochs=-1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[Reports()],
            strategy=theirs.RayDDPStrategy(process_group_backend="gloo"), plugins=[theirs.RayLightningEnvironment()],
            use_distributed_sampler=False,
            accumulate_grad_batches=MAX_WORKERS // context.get_world_size(),
        )
    )  # fmt: skip
    found = ray.train.get_checkpoint()
    path = None if found is None else str(Path(found.path) / "last.ckpt")
    trainer.fit(Network(str(folder), pause=0.005), datamodule=Data(), ckpt_path=path)


def _incarnations(folder: Path) -> list[tuple[float, int]]:
    path = folder / "incarnations"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(when, ranks) for when, ranks, _, _ in map(json.loads, lines)]


def measure(folder: Path, nodes: Any) -> float:
    """Return the seconds from when a node with a second device has joined to the first batch of both workers.

    Args:
        folder: Folder of checkpoints.
        nodes: Cluster that this process has joined, without devices.
    """
    import ray.train
    from ray.train.torch import TorchTrainer

    device = {"num_cpus": 1, "resources": {"device": 1}, "object_store_memory": 80 * 2**20}
    nodes.add_node(**device)
    config: Any = ray.train.ScalingConfig  # its annotations lag behind its arguments
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder)},
        scaling_config=config(
            num_workers=(1, MAX_WORKERS),
            elastic_resize_monitor_interval_s=1.0,
            resources_per_worker={"CPU": 0, "device": 1},
        ),
        run_config=ray.train.RunConfig(storage_path=str(folder / "storage"), name="elastic"),
    )
    threading.Thread(target=trainer.fit, daemon=True).start()
    _wait(lambda: len(_incarnations(folder)) >= 1)
    time.sleep(8.0)  # long enough to train and report
    nodes.add_node(**device)
    began = time.monotonic()
    _wait(lambda: sum(ranks == 2 for _, ranks in _incarnations(folder)) >= 2)
    return max(when for when, ranks in _incarnations(folder) if ranks == 2) - began


def _wait(holds: Any) -> None:
    until = time.monotonic() + RESIZE_TIMEOUT
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"Ray Train must resize within {RESIZE_TIMEOUT:.0f} s, and did not")
        time.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live.ray_train", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of checkpoints and of Ray's files")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    from lightning_core.cluster.local_machines import local_machines

    with local_machines() as machines:
        print(json.dumps(measure(arguments.folder, machines)), flush=True)
        os._exit(0)  # its training has no end; what it started ends with this process
