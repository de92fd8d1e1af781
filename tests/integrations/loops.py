"""The loops that the library has adapters for, each as the conformance suite trains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import lightning_core
from lightning_core.callbacks import CoreCallback
from lightning_core.integrations.fabric import CoreFabricCallback
from lightning_core.testing.loop_conformance import NAME, Exercise
from tests.tiny import QUIET

HOUR = "1h"


class Taught(torch.nn.Module):
    """A model whose loss is that of the exercise, and whose weights nevertheless have gradients."""

    def __init__(self, exercise: Exercise, done: int = 0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.exercise, self.done = exercise, done

    def batch(self) -> torch.Tensor:
        self.done += 1
        self.exercise.in_batch(self.done)
        return (self.weight * 0).sum() + self.exercise.losses[self.done - 1]


def _epochs(exercise: Exercise, done: int) -> range:
    return range(done // exercise.per_epoch, len(exercise.losses) // exercise.per_epoch)


class PlainBatches:
    """A plain loop over ``run.batches(loader)``, with checkpoints."""

    metric = "val_acc"
    cannot: Mapping[str, str] = {}

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        done = 0 if state is None else state["batches"]
        model = Taught(exercise, done)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        epochs = _epochs(exercise, done)
        with lightning_core.track(NAME, HOUR, target, max_epochs=epochs.stop, **terms) as run:
            if state is not None:
                run.load_state_dict(state)
            for epoch in epochs:
                for _ in run.batches(range(exercise.per_epoch)):
                    loss = model.batch()
                    optimizer.zero_grad()
                    torch.autograd.backward(loss)
                    optimizer.step()
                    run.log(loss=loss)
                if run.over:
                    break
                if exercise.evaluations:
                    run.evaluate(val_acc=exercise.evaluations[epoch])
                if run.over:
                    break
            return run.state_dict()


class PlainSteps:
    """A plain loop without a loader, which calls ``run.step``."""

    metric = "val_acc"
    cannot: Mapping[str, str] = {"stop_by_epochs": "it does not say where an epoch ends; say batches"}

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        done = 0 if state is None else state["batches"]
        with lightning_core.track(NAME, HOUR, target, max_batches=len(exercise.losses), **terms) as run:
            if state is not None:
                run.load_state_dict(state)
            while done < len(exercise.losses) and not run.over:
                done += 1
                exercise.in_batch(done)
                run.step(loss=exercise.losses[done - 1])
                if done % exercise.per_epoch == 0 and exercise.evaluations:
                    run.evaluate(val_acc=exercise.evaluations[done // exercise.per_epoch - 1])
            return run.state_dict()


class FabricTracked:
    """A loop on Fabric that is tracked as a plain one."""

    metric = "val_acc"
    cannot: Mapping[str, str] = {}

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        done = 0 if state is None else state["batches"]
        fabric = Fabric(accelerator="cpu")
        taught = Taught(exercise, done)
        model, optimizer = fabric.setup(taught, torch.optim.SGD(taught.parameters(), lr=0.1))
        model.mark_forward_method("batch")
        epochs = _epochs(exercise, done)
        with lightning_core.track(NAME, HOUR, target, max_epochs=epochs.stop, fabric=fabric, **terms) as run:
            if state is not None:
                run.load_state_dict(state)
            for epoch in epochs:
                for _ in run.batches(range(exercise.per_epoch)):
                    loss = model.batch()
                    fabric.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    run.log(loss=loss)
                if not run.over and exercise.evaluations:
                    run.evaluate(val_acc=exercise.evaluations[epoch])
                if run.over:
                    break
            return run.state_dict()


class FabricHooks:
    """A loop on Fabric that calls the hooks of a callback."""

    metric = "val_acc"
    cannot: Mapping[str, str] = {
        "stop_by_epochs": "hooks do not say how many batches an epoch has; say batches",
        "exception": "no hook is called when a loop raises: it is reported when the process ends",
        "interrupt": "no hook is called when a loop raises: it is reported when the process ends",
    }

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        done = 0 if state is None else state["batches"]
        ours = CoreFabricCallback(NAME, HOUR, target, max_batches=len(exercise.losses), **terms)
        fabric = Fabric(accelerator="cpu", callbacks=[ours])
        if state is not None:
            ours.run.load_state_dict(state)
        taught = Taught(exercise, done)
        model, optimizer = fabric.setup(taught, torch.optim.SGD(taught.parameters(), lr=0.1))
        model.mark_forward_method("batch")
        fabric.call("on_train_start")
        for epoch in _epochs(exercise, done):
            fabric.call("on_train_epoch_start")
            for number in range(exercise.per_epoch):
                loss = model.batch()
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                fabric.call("on_train_batch_end", {"loss": loss}, None, number)
                if ours.over:
                    break
            if not ours.over and exercise.evaluations:
                fabric.call("on_validation_epoch_end", {"val_acc": exercise.evaluations[epoch]})
            if ours.over:
                break
        fabric.call("on_train_end")
        return ours.run.state_dict()


class _TaughtModule(pl.LightningModule):
    def __init__(self, exercise: Exercise) -> None:
        super().__init__()
        self.taught = Taught(exercise)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.taught.batch()

    def on_train_epoch_end(self) -> None:
        if values := self.taught.exercise.evaluations:
            self.log("val_acc", torch.tensor(values[self.current_epoch]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LightningTrainer:
    """Lightning's Trainer."""

    metric = "val_acc"
    cannot: Mapping[str, str] = {}

    def train(self, exercise: Exercise, target: str, state: Any = None, **terms: Any) -> Any:
        epochs = len(exercise.losses) // exercise.per_epoch
        ours = CoreCallback(NAME, HOUR, target, **terms)
        trainer = pl.Trainer(max_epochs=epochs, callbacks=[ours], **QUIET)
        module = _TaughtModule(exercise)
        path = None
        if state is not None:
            path, module.taught.done = state
        loader = DataLoader(TensorDataset(torch.zeros(exercise.per_epoch)), batch_size=1)
        trainer.fit(module, loader, ckpt_path=path)
        folder = terms.get("keep_best", ".")
        del folder
        return _checkpoint_of(trainer), module.taught.done


def _checkpoint_of(trainer: pl.Trainer) -> str:
    import tempfile

    path = f"{tempfile.mkdtemp()}/end.ckpt"
    trainer.save_checkpoint(path)
    return path


CANNOT_OF_TRANSFORMERS: Mapping[str, str] = {
    "exception": FabricHooks.cannot["exception"],
    "interrupt": FabricHooks.cannot["interrupt"],
}


def loops() -> Iterator[Any]:
    """Yield each loop, but for that of transformers, which takes seconds to import."""
    yield from (PlainBatches(), PlainSteps(), FabricTracked(), FabricHooks(), LightningTrainer())
