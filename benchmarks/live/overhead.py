"""Measure what a batch costs with the callback, without it, and with one whose hooks do nothing.

What a user pays is the time of a batch with the callback, less that with an empty callback: everything counts, such as
the thread that reports and the caches that the hooks empty. One Trainer after the other trains the same small model in
one thread, without a callback, with an empty one, with ours and a scheduler in this process, and with ours in a pool;
next round in the opposite order. Each gives one time per batch; the figures are medians over the rounds, what a user
pays the median of the differences within each round.

The hooks alone are compared with a blocking actor call and Ray Tune's report callback:
A real ``Trainer.fit`` reports to a scheduler in a Ray actor and acquires quanta from a device arbiter. Every hook is
timed from outside, and the cost of the clock is subtracted. The same run measures ``ray.get`` of one report
at a time, and with ``--full`` Ray Tune's callback on every batch (needs ``pip install -e '.[bench]'``).
"""

from __future__ import annotations

import io
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import ray
import torch

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.hooks import WARM, empty, timed
from benchmarks.live.pool import Pool
from benchmarks.live.workloads import Noise, Regression
from lightning_core.callbacks import CoreCallback
from lightning_core.cluster.ray_cluster import start_local_ray
from lightning_core.core.events import Report
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.node.arbiter_client import ArbiterClient
from lightning_core.node.device_arbiter import DeviceArbiter
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.ray_client import RayClient
from lightning_core.server.start_scheduler import start_scheduler

# Width of the model that is trained with and without a callback: a batch takes about .6 ms.
WIDTH = 192
EMPTY, OURS, IN_POOL = "empty", "ours", "pool"


class Stopwatch(pl.Callback):
    """Measures the time from a batch to the end of the training; the last callback, in each training alike."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == WARM:
            self.seconds = -time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self.seconds += time.perf_counter()


def seconds_per_batch(callback: pl.Callback | None, batches: int) -> float:
    """Train with a callback, if there is one, and return the seconds that a batch takes, all told."""
    watch = Stopwatch()
    fit([watch] if callback is None else [callback, watch], WARM + batches, Regression(WIDTH))
    return watch.seconds / batches


def in_trainer(rounds: int, batches: int, pool: Path) -> dict[str, np.ndarray]:
    """Return the seconds per batch without a callback and with each kind, one training of each in every round.

    Args:
        rounds: Rounds.
        batches: Batches of each training.
        pool: Folder of a running pool.

    Returns:
        For each kind an array of shape ``(rounds,)``.
    """

    def ours(where: str) -> pl.Callback:
        callback: pl.Callback = CoreCallback("m", "1d", "loss<=1e-9", pool=where, on_refused="rename")
        return callback

    kinds: dict[str, Callable[[], pl.Callback | None]] = {
        "none": lambda: None, EMPTY: empty, OURS: lambda: ours("local"), IN_POOL: lambda: ours(str(pool)),
    }  # fmt: skip
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in list(kinds)[:: 1 if turn % 2 == 0 else -1]:
            took[kind].append(seconds_per_batch(kinds[kind](), batches))
    return {kind: np.array(seconds) for kind, seconds in took.items()}


def clock_cost() -> float:
    """Return the seconds per batch that the timing itself adds."""
    empty = pl.Callback()
    spent = timed(empty)
    for _ in range(2000):
        empty.on_train_batch_start(None, None, None, 0)  # type: ignore[arg-type]
        empty.on_train_batch_end(None, None, None, None, 0)  # type: ignore[arg-type]
    return statistics.median(spent)


def fit(callbacks: list[pl.Callback], batches: int, model: pl.LightningModule) -> None:
    """Train this many batches."""
    trainer = pl.Trainer(
        max_steps=batches, max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(model, datamodule=Noise())


def ours(batches: int, folder: Path) -> np.ndarray:
    """Return the seconds per batch in the hooks of CoreCallback, shape ``(batches,)``."""
    arbiter = DeviceArbiter(folder / "arbiter")
    device_lock = ArbiterClient(arbiter.path)
    callback = CoreCallback("bench", "1d", BatchTarget(10**9))
    callback._options = replace(callback._options, client=RayClient("bench"), device_lock=device_lock)
    spent = timed(callback)
    fit([callback], batches, Regression())
    device_lock.close()
    arbiter.close()
    return np.array(spent[WARM:])


def blocking(calls: int) -> np.ndarray:
    """Return the seconds of each report by ``ray.get``, shape ``(calls,)``."""
    client = RayClient("bench")
    spent = []
    for number in range(calls):
        begin = time.perf_counter()
        client.report(Report("other", 1, number + 1, 99, number, 0.0))
        spent.append(time.perf_counter() - begin)
    return np.array(spent[calls // 10 :])


def tune(batches: int) -> float:
    """Return the median seconds per batch in the hooks of Ray Tune's report callback."""
    from ray import tune as ray_tune
    from ray.tune.integration.pytorch_lightning import TuneReportCheckpointCallback

    def trial(config: dict[str, Any]) -> None:
        class Logged(Regression):
            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                loss = super().training_step(batch, batch_idx)
                self.log("loss", loss)
                return loss

        torch.set_num_threads(1)
        callback = TuneReportCheckpointCallback({"loss": "loss"}, on="train_batch_end", save_checkpoints=False)
        spent = timed(callback)
        trainer = pl.Trainer(max_steps=batches, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, accelerator="cpu", callbacks=[callback])  # fmt: skip
        trainer.fit(Logged(), datamodule=Noise())
        ray_tune.report({"hook": statistics.median(spent[batches // 10 :])})

    with tempfile.TemporaryDirectory() as storage:
        run = ray_tune.RunConfig(storage_path=storage, verbose=0)
        result = ray_tune.Tuner(trial, run_config=run).fit()[0]
    return float((result.metrics or {})["hook"])


def measure(size: Size) -> Figures:
    """Measure all of them, print the table and return its figures."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    batches, calls, repeats = {"quick": (4000, 600, 3), "default": (8000, 1000, 5), "full": (8000, 1000, 5)}[size]
    turns, long = {"quick": (10, 1500), "default": (30, 2000), "full": (60, 2000)}[size]
    logging.getLogger("lightning_core").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="lc-") as temp:
        pool = Pool(Path(temp))
        try:
            with redirect_stdout(io.StringIO()):  # each training says how it ended
                took = in_trainer(turns, long, pool.home / "pool")
        finally:
            pool.command("down")
    with tempfile.TemporaryDirectory(prefix="lc-") as temp:
        folder = Path(temp)
        start_local_ray(folder)
        actor = start_scheduler("bench", Settings(policy="uniform"), folder)
        day = 86_400.0
        jobs = (Job("bench", day, BatchTarget(10**9)), Job("other", day, BatchTarget(10**9)))
        ray.get(actor.submit.remote(jobs))
        clock = clock_cost()
        rounds = []
        for _ in range(repeats):  # alternating, so that other load affects both
            hooks = ours(batches // repeats + WARM, folder) - clock
            calls_took = blocking(calls // repeats)
            rounds.append((hooks, calls_took))
        hooks = np.concatenate([r[0] for r in rounds])
        callback_us, p99_us = float(np.median(hooks) * 1e6), float(np.quantile(hooks, 0.99) * 1e6)
        ratio = statistics.median(float(np.median(c) / np.median(h)) for h, c in rounds)
        call_us = float(np.median(np.concatenate([r[1] for r in rounds])) * 1e6)
        rows = [["CoreCallback", callback_us, p99_us, 1.0], ["blocking ray.get", call_us, "", ratio]]
        tune_ratio = None
        if size == "full":
            tune_us = tune(600) * 1e6
            tune_ratio = tune_us / callback_us
            rows.append(["Tune's report callback", tune_us, "", tune_ratio])
        ray.kill(actor)
        ray.shutdown()
    whole = {kind: float(np.median(seconds) * 1e6) for kind, seconds in took.items()}
    paid = {kind: float(np.median(took[kind] - took[EMPTY]) * 1e6) for kind in took}
    table(["a batch in a Trainer", "median us", "above an empty callback"], [[k, whole[k], paid[k]] for k in took])
    table(["hooks alone", "median us", "p99 us", "ratio"], rows)
    return {
        "trainer_us_none": whole["none"],
        "trainer_us_empty": whole[EMPTY],
        "trainer_us_ours": whole[OURS],
        "trainer_us_pool": whole[IN_POOL],
        "paid_us": paid[OURS],
        "paid_pool_us": paid[IN_POOL],
        "callback_us": callback_us,
        "callback_p99_us": p99_us,
        "blocking_call_ratio": ratio,
        "tune_report_ratio": tune_ratio,
    }


if __name__ == "__main__":
    main("live.overhead", __doc__.splitlines()[0], measure)
