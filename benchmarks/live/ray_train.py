"""What Ray Train's elastic training takes to go on with a second device: the same training, asked in the only way there
is, by making the device free.

``python -m benchmarks.live.ray_train FOLDER`` prints the seconds from there to the first batch on two workers.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

# How long the resize may take, seconds.
PATIENCE = 240.0


def train(config: dict[str, str]) -> None:
    """A worker: from the last checkpoint that was reported, without end."""
    import lightning.pytorch as pl
    import ray.train
    import ray.train.lightning
    import torch

    from benchmarks.live.numbered_training import Data, Network

    torch.set_num_threads(1)
    folder = Path(config["folder"])

    class Reports(pl.Callback):
        """Saves and reports every so many steps: what was not reported a resize would cost."""

        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step % 200 == 199:
                place = folder / f"save-{trainer.global_step}"
                trainer.save_checkpoint(place / "last.ckpt", weights_only=False)
                checkpoint = ray.train.Checkpoint.from_directory(place) if trainer.is_global_zero else None
                ray.train.report({"step": trainer.global_step}, checkpoint=checkpoint)

    theirs: Any = ray.train.lightning
    trainer = theirs.prepare_trainer(
        pl.Trainer(
            accelerator="cpu", devices="auto", max_epochs=-1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[Reports()],
            strategy=theirs.RayDDPStrategy(process_group_backend="gloo"), plugins=[theirs.RayLightningEnvironment()],
            use_distributed_sampler=False,
        )
    )  # fmt: skip
    found = ray.train.get_checkpoint()
    path = None if found is None else str(Path(found.path) / "last.ckpt")
    trainer.fit(Network(str(folder), pause=0.005), datamodule=Data(), ckpt_path=path)


def _incarnations(folder: Path) -> list[tuple[float, int]]:
    path = folder / "incarnations"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(when, ranks) for when, ranks, _, _ in map(json.loads, lines)]


def measure(folder: Path) -> float:
    """Seconds from the device's being free to the first batch that both workers have done."""
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    from lightning_core.cloud.ray_cluster import start_local_ray

    start_local_ray(folder / "ray", devices=2)

    @ray.remote(num_cpus=0, resources={"device": 1})
    class Holder:
        def there(self) -> bool:
            return True

    made: Any = Holder
    holder = made.remote()
    ray.get(holder.there.remote())
    config: Any = ray.train.ScalingConfig  # its annotations are of an older one
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder)},
        scaling_config=config(
            num_workers=(1, 2), elastic_resize_monitor_interval_s=1.0, resources_per_worker={"CPU": 0, "device": 1}
        ),
        run_config=ray.train.RunConfig(storage_path=str(folder / "storage"), name="elastic"),
    )
    threading.Thread(target=trainer.fit, daemon=True).start()
    _wait(lambda: len(_incarnations(folder)) >= 1)
    time.sleep(8.0)  # it trains, and has reported
    began = time.monotonic()
    ray.kill(holder)
    _wait(lambda: sum(ranks == 2 for _, ranks in _incarnations(folder)) >= 2)
    return max(when for when, ranks in _incarnations(folder)[:] if ranks == 2) - began


def _wait(holds: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {PATIENCE:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(measure(Path(sys.argv[1]))), flush=True)
    sys.stdout.flush()
    import os

    os._exit(0)  # its training has no end; what it started ends with its Ray
