"""The search of :mod:`benchmarks.searches.live_pool_search` as a user of Ray Tune would write it: TPE and ASHA."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

DEVICES = 2


def train(config: dict[str, Any]) -> None:
    """Train a trial, and report its loss after each epoch."""
    import lightning.pytorch as pl
    import torch
    from ray import tune

    from benchmarks.searches.waiting_digits import TRAINER, Digits, WaitingPerceptron

    class Reports(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            tune.report({"val_loss": float(trainer.callback_metrics["val_loss"])})

    torch.set_num_threads(1)
    pl.Trainer(**TRAINER, callbacks=[Reports()]).fit(WaitingPerceptron(**config), datamodule=Digits())


def search(folder: Path, seconds: float, seed: int) -> dict[str, float]:
    """Search; return the best loss, the number of trials, and the epochs that they trained."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    from examples.search import EPOCHS

    ray.init(address="local", num_cpus=DEVICES, include_dashboard=False, log_to_driver=False)
    end = time.monotonic() + seconds
    space = {
        "width": tune.lograndint(8, 257),
        "dropout": tune.uniform(0.0, 0.6),
        "lr": tune.loguniform(1e-4, 1.0),
        "adam": tune.choice([False, True]),
    }
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="val_loss", mode="min", num_samples=-1, search_alg=OptunaSearch(seed=seed),
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
            time_budget_s=end - time.monotonic(), max_concurrent_trials=DEVICES,
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )  # fmt: skip
    results: Any = tuner.fit()  # Ray leaves its iterator untyped
    frames = [frame for frame in (result.metrics_dataframe for result in results) if frame is not None and len(frame)]
    ray.shutdown()
    return {
        "value": min(float(frame["val_loss"].min()) for frame in frames),
        "trials": len(frames),
        "epochs": sum(len(frame) for frame in frames),
    }


if __name__ == "__main__":
    print(json.dumps(search(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
