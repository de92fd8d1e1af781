"""One training of the matrix as a user would write it, and all that must be equal with the callback and without it."""

from __future__ import annotations

import csv
import hashlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torchmetrics
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Grant
from lightning_core.core.targets import parse_target
from tests.callbacks.test_callback import ConnectedScript, Script, grant
from tests.matrix.factors import Row

TARGETS = {
    "loss": "loss<=1e-9", "validation metric": "val_loss<=1e-9", "epoch metric": "mean<=1e-9",
    "late metric": "late<=1e-9", "batches": "1000000 batches",
}  # fmt: skip
Batch = Any
# Beginnings of the names of the callback's threads.
OURS = ("mailbox", "memory of", "checkpoints", "watch of", "squeue")


class Counts(Counter[str]):
    """How often each piece of the user's code was called."""


def data(counts: Counts, row: Row, batches: int = 8) -> Any:
    """Return a training loader."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4 * batches, 4, generator=draw)
    points = TensorDataset(x, x.sum(1, keepdim=True))
    options: dict[str, Any] = {"batch_size": 4}
    if row["workers"] != "none":
        options |= {"num_workers": 1, "persistent_workers": row["workers"] == "persistent"}
        options |= {"multiprocessing_context": "spawn" if row["workers"] == "spawned" else "fork"}
    if row["data"] == "endless":
        return DataLoader(Stream(x, batches), batch_size=None)
    loader = DataLoader(points, shuffle=True, **options)
    return CombinedLoader([loader, DataLoader(points, batch_size=4)]) if row["data"] == "combined" else loader


class Stream(IterableDataset[Any]):
    """Batches whose number is not known in advance."""

    def __init__(self, x: torch.Tensor, batches: int) -> None:
        self.x, self.batches = x, batches

    def __iter__(self) -> Iterator[Any]:
        return iter([[x, x.sum(1, keepdim=True)] for x in self.x.reshape(self.batches, -1, 4)])


class Model(pl.LightningModule):
    """A module that uses much of what Lightning offers.

    Args:
        row: What the training is like.
        counts: Where it counts the calls of its methods.
    """

    def __init__(self, row: Row, counts: Counts) -> None:
        super().__init__()
        self.row, self.counts = row, counts
        self.batch_size = 4
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.late = torchmetrics.MeanMetric()
        self.automatic_optimization = row["step"] not in ("manual", "two optimizers")
        self.done = 0
        self.drawn: list[float] = []

    def loss(self, batch: Batch) -> torch.Tensor:
        x, y = batch[0] if isinstance(batch[0], list) else batch
        dtype = self.head[1].weight.dtype
        out = self.head(self.backbone(x.to(dtype)))
        return torch.nn.functional.mse_loss(out, y.to(out.dtype))

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        self.counts["training_step"] += 1
        self.done += 1
        disturb(self, "training", self.done == 11)
        loss = self.loss(batch)
        self.late.update(loss.detach())
        self.log("late", self.late, on_step=False, on_epoch=True)
        self.log("mean", loss.detach(), on_step=False, on_epoch=True, sync_dist=True)
        self.log("now", loss.detach(), on_step=True, on_epoch=False, prog_bar=True)
        if self.row["step"] == "none" and batch_idx % 3 == 1:
            return None
        if not self.automatic_optimization:
            optimizers: Any = self.optimizers()
            for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()
            for scheduler in self.schedulers_by_hand():
                scheduler.step()
            return loss.detach() if batch_idx % 2 else None
        return loss

    def schedulers_by_hand(self) -> list[Any]:
        found: Any = self.lr_schedulers()
        return found if isinstance(found, list) else [found] if found is not None else []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.counts["validation_step"] += 1
        disturb(self, "validation", not self.trainer.sanity_checking and batch_idx == 1)
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        self.counts["on_train_epoch_end"] += 1
        self.late.update(100.0)  # after the hooks of the callbacks
        self.drawn.append(random.random() + float(np.random.rand()) + float(torch.rand(())))
        self.all_gather(torch.tensor(float(self.global_rank)))

    def on_validation_epoch_end(self) -> None:
        self.all_gather(torch.tensor(float(self.global_rank)))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        disturb(self, "saving", not _is_saved_for_us())
        checkpoint["drawn"] = random.random() + float(np.random.rand()) + float(torch.rand(()))

    def rate(self, step: int) -> float:
        """A schedule that remembers how often it was asked."""
        self.counts["rate"] += 1
        return 1.0 / (1.0 + 0.1 * self.counts["rate"])

    def configure_optimizers(self) -> Any:
        match self.row["step"]:
            case "two optimizers":
                return [torch.optim.SGD(part.parameters(), 0.05) for part in (self.backbone, self.head)]
            case "lbfgs":
                return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)
        if self.row["beside"] in ("swa", "finetuning"):  # they change schedulers, or parameter groups
            return optimizer
        return [optimizer], [{"scheduler": LambdaLR(optimizer, self.rate), "interval": "step"}]


def _is_saved_for_us() -> bool:
    """Return whether the callback saves, which a launched job does by the clock."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("lightning_core.callbacks."):
        frame = frame.f_back
    return frame is not None


class OtherModel(Model):
    """A module of another class with the same weights."""


def disturb(model: Model, where: str, now: bool) -> None:
    """Send this process SIGTERM, once, if that is what disturbs the training."""
    if now and model.row["disturbed"] == f"signal in {where}" and not model.counts["signals"]:
        model.counts["signals"] += 1
        if model.global_rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)


class Finetuning(lightning_callbacks.BaseFinetuning):
    """Trains the head alone for an epoch."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)


class Probe(pl.Callback):
    """Another callback, which communicates and reads metrics where callbacks of users do."""

    def __init__(self) -> None:
        self.read: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        pl_module.all_gather(torch.tensor(1.0))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.all_gather(torch.tensor(2.0))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.read.append(sorted(trainer.callback_metrics))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.all_gather(torch.tensor(3.0))


def beside(row: Row, folder: Path) -> list[pl.Callback]:
    """Return the callbacks that a user has besides."""
    saving = lightning_callbacks.ModelCheckpoint(folder / "kept", save_last=True, every_n_epochs=1)
    found: list[pl.Callback] = [Probe(), saving]
    match row["beside"]:
        case "swa":
            found += [lightning_callbacks.StochasticWeightAveraging(0.02, swa_epoch_start=1, annealing_epochs=1)]
        case "averaging":
            found += [lightning_callbacks.EMAWeightAveraging(decay=0.7)]
        case "pruning":
            found += [lightning_callbacks.ModelPruning("l1_unstructured", amount=0.2, verbose=0)]
        case "finetuning":
            found += [Finetuning()]
        case "lr finder":
            found += [lightning_callbacks.LearningRateFinder(num_training_steps=4, attr_name="lr")]
        case "batch-size finder":
            found += [lightning_callbacks.BatchSizeFinder(max_trials=1, steps_per_trial=1)]
        case "accumulation":
            found += [lightning_callbacks.GradientAccumulationScheduler({0: 1, 1: 3})]
        case "early stopping":
            found += [lightning_callbacks.EarlyStopping("val_loss", patience=0, min_delta=1.0)]
    return found


def trainer_options(row: Row, folder: Path) -> dict[str, Any]:
    """Return the arguments of the Trainer, but for its callbacks."""
    options: dict[str, Any] = {
        "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 2,
        "default_root_dir": folder, "max_epochs": 3, "num_sanity_val_steps": 1,
        "precision": "32-true" if row["precision"] == "compiled" else row["precision"],
        "accumulate_grad_batches": 3 if row["step"] == "accumulated" else 1,
        "deterministic": row["precision"] == "64-true",
        "profiler": None if row["profiler"] == "none" else row["profiler"],
        "logger": [CSVLogger(folder, name) for name in {"none": "", "csv": "a", "two": "ab"}[row["loggers"]]],
        "reload_dataloaders_every_n_epochs": int(row["data"] == "reloaded"),
    }  # fmt: skip
    match row["limit"]:
        case "steps":
            options |= {"max_epochs": -1, "max_steps": 13}
        case "least":
            options |= {"min_epochs": 2}
        case "batches":
            options |= {"limit_train_batches": 5}
        case "time":
            options |= {"max_time": "00:00:10:00"}
    match row["validation"]:
        case "none":
            options |= {"limit_val_batches": 0}
        case "second epoch":
            options |= {"check_val_every_n_epoch": 2}
        case "steps":
            options |= {"val_check_interval": 3}
        case "fraction":
            options |= {"val_check_interval": 0.5}
        case "across epochs":
            options |= {"val_check_interval": 5, "check_val_every_n_epoch": None}
        case "time":
            options |= {"val_check_interval": "00:00:10:00"}
    match row["ranks"]:
        case "ddp":
            options |= {"strategy": "ddp_find_unused_parameters_true", "devices": 2}
        case "forked":
            options |= {"strategy": "ddp_fork_find_unused_parameters_true", "devices": 2}
        case "spawned":
            options |= {"strategy": "ddp_spawn_find_unused_parameters_true", "devices": 2}
    return options


def core(row: Row, folder: Path, pool: str) -> list[pl.Callback]:
    """Return the callback as it is where the training is."""
    target = TARGETS[row["target"]]
    best = folder / "best" if row["keep_best"] == "yes" else False
    if row["where"] == "launched":
        client = held_once(row)
        devices = (0,) if row["ranks"] == "one" else (0, 1)
        first = client.directive
        assert isinstance(first, Grant)
        client.directive = first._replace(devices=devices)
        return [
            LaunchedCallback(
                "job", parse_target(target), client=client, devices=devices, folder=folder / "job", keep_best=best,
                save_every=0.05,
            )
        ]  # fmt: skip
    if row["disturbed"] == "hold":
        return [ConnectedScript("job", target, client=held_once(row), keep_best=best)]
    where = pool if row["where"] == "pool" else "local"
    name = f"job-{os.getpid()}"
    return [CoreCallback(name, "1h", target, pool=where, keep_best=best, on_refused="alone")]


def held_once(row: Row) -> Any:
    """Return a client that, where the training is to be disturbed so, holds it for a moment in the middle."""
    client = Script(grant(1, 1.0))
    if row["disturbed"] == "hold":
        threading.Thread(target=_hold, args=(client,), daemon=True).start()
    return client


def _hold(client: Script) -> None:
    while not client.reports or client.reports[-1].batches < 3:
        time.sleep(0.002)
    before = client.directive
    assert isinstance(before, Grant)
    client.say(before._replace(version=2, share=0.0))
    time.sleep(0.4)
    client.say(before._replace(version=3, share=1.0))


def train(row: Row, folder: str, with_core: bool, pool: str = "local") -> dict[str, Any]:
    """Train, and return what must be equal with the callback and without it."""
    place = Path(folder)
    counts = Counts()
    for stage in ("first", "second") if row["resumed"] != "no" else ("only",):
        kind = OtherModel if (stage, row["resumed"]) == ("second", "other class") else Model
        seen = with_core and (stage, row["resumed"]) != ("second", "without")
        pl.seed_everything(3, verbose=False)
        model = kind(row, counts)
        if row["precision"] == "compiled":
            model.backbone.compile()
        options = trainer_options(row, place / stage)
        others = beside(row, place / stage)
        if stage == "first":
            options |= {"max_epochs": 1, "max_steps": -1, "min_epochs": None}
        callbacks = [*others, *(core(row, place / stage, pool) if seen else [])]
        trainer = pl.Trainer(**options, callbacks=callbacks)
        start = place / "first/kept/last.ckpt" if stage == "second" else None
        model.lr = 0.05  # type: ignore[assignment]
        fit_data = Data(row, counts)
        trainer.fit(model, datamodule=fit_data, ckpt_path=start)
    return {
        "weights": digest(model.state_dict()),
        "optimizers": [digest(optimizer.state_dict()) for optimizer in trainer.optimizers],
        "random": [random.random(), float(np.random.rand()), float(torch.rand(()))],
        "drawn": model.drawn,
        "counts": dict(counts),
        "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        "read": others[0].read,  # type: ignore[attr-defined]
        "steps": [trainer.global_step, trainer.current_epoch, trainer.should_stop],
        "logs": logs(place),
        "threads": sorted(thread.name for thread in threading.enumerate() if not thread.daemon),
        "ours": ours_left(),
        "children": len(multiprocessing.active_children()),
    }


class Data(pl.LightningDataModule):
    """The loaders of a training.

    Args:
        row: What the training is like.
        counts: Where the calls of its methods are counted.
    """

    def __init__(self, row: Row, counts: Counts) -> None:
        super().__init__()
        self.row, self.counts = row, counts

    def train_dataloader(self) -> Any:
        self.counts["train_dataloader"] += 1
        return data(self.counts, self.row)

    def val_dataloader(self) -> Any:
        self.counts["val_dataloader"] += 1
        plain = {**self.row, "data": "sized", "workers": "none"}
        loader = data(self.counts, plain, 2)
        return DataLoader(loader.dataset, batch_size=4)


def ours_left(patience: float = 5.0) -> list[str]:
    """Return the threads of the callback that have not ended with the fit.

    One that waits for news of a launched job ends with its call to the scheduler.
    """
    until = time.monotonic() + patience
    while True:
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith(OURS)]
        if not left or time.monotonic() > until:
            return sorted(left)
        time.sleep(0.01)


def digest(state: Any) -> str:
    """Return a digest of all tensors and numbers of a state."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            for key, one in value.items():
                found.update(str(key).encode())
                add(one)
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        else:
            found.update(str(value).encode())

    add(state)
    return found.hexdigest()[:16]


def logs(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return what loggers have written, but for the metrics of the callback."""
    found = {}
    for file in sorted(folder.rglob("metrics.csv")):
        with file.open() as text:
            rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(text)]
        theirs = [{name: row[name] for name in row if not name.startswith("lightning_core/")} for row in rows]
        found[str(file.relative_to(folder))] = [row for row in theirs if set(row) - {"step", "epoch"}]
    return found


def main() -> None:
    """Train one row, for a look at it by hand: ``python -m tests.matrix.training FOLDER [cb] [NAME=VALUE...]``."""
    from tests.matrix.factors import ORDINARY

    row = {**ORDINARY, **dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)}
    for name, value in train(row, sys.argv[1], "cb" in sys.argv).items():
        print(f"{name:10} {value}")


if __name__ == "__main__":
    main()
