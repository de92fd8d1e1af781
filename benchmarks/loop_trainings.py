"""The same training in four loops: a plain one, Fabric's, that of ``transformers``, and Lightning's."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

import lightning_core
from lightning_core.callbacks import CoreCallback
from lightning_core.integrations.fabric import CoreFabricCallback
from lightning_core.integrations.transformers import CoreTrainerCallback

RATE = 0.05
QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
                         "enable_model_summary": False, "accelerator": "cpu"}  # fmt: skip
# Batches after which a training begins to be timed.
WARM = 200
# Called after each batch with the batches that are done; a true answer ends a training.
Watch = Callable[[int], object]


class Work:
    """What is trained.

    Args:
        net: Makes the model.
        inputs: Inputs of all samples.
        wanted: What the model is to return.
        loss: Loss of a batch.
        batch: Samples in a batch.
    """

    def __init__(
        self, net: Callable[[], nn.Module], inputs: torch.Tensor, wanted: torch.Tensor, loss: Any, batch: int = 32
    ) -> None:
        self._net, self.loss, self._batch = net, loss, batch
        self._data = TensorDataset(inputs, wanted)

    def net(self) -> nn.Module:
        """Return the model, with the same weights each time."""
        torch.manual_seed(0)
        return self._net()

    def loader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Return the batches of an epoch, the same each time."""
        return DataLoader(self._data, batch_size=self._batch, drop_last=True)


class SmallTransformer(nn.Module):
    """Reads the eight rows of a digit as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.encode(self.embed(images.view(-1, 8, 8))).mean(1))
        return result


def works() -> dict[str, Work]:
    """Return the trainings whose weights are compared: digits, by a perceptron and by a small transformer."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs, wanted = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    perceptron = lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))  # noqa: E731
    return {
        "digits": Work(perceptron, inputs, wanted, nn.functional.cross_entropy),
        "transformer": Work(SmallTransformer, inputs, wanted, nn.functional.cross_entropy),
    }


def regression(width: int) -> Work:
    """Return a training whose batches take about .6 ms at a width of 192."""
    draw = torch.Generator().manual_seed(0)
    net = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    return Work(
        net, torch.randn(16_000, 32, generator=draw), torch.randn(16_000, 1, generator=draw), nn.functional.mse_loss
    )


class Terms(dict[str, Any]):
    """Arguments of an adapter."""


def plain(work: Work, steps: int, terms: Terms | None, watch: Watch) -> nn.Module:
    """Train in a plain loop, bare for None."""
    net = work.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)

    def train(batch: Any) -> torch.Tensor:
        inputs, wanted = batch
        loss: torch.Tensor = work.loss(net(inputs), wanted)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    done, over = 0, False
    if terms is None:
        while not over:
            for batch in work.loader():
                train(batch)
                done += 1
                over = bool(watch(done)) or done == steps
                if over:
                    break
        return net
    with lightning_core.track(**terms) as run:
        while not (over or run.over):
            for batch in run.batches(work.loader()):
                run.log(loss=train(batch))
                done += 1
                over = bool(watch(done)) or done == steps
                if over:
                    break
    return net


def fabric(work: Work, steps: int, terms: Terms | None, watch: Watch) -> nn.Module:
    """Train on Fabric, whose loop calls a hook after each batch; without a callback for None."""
    ours = None if terms is None else CoreFabricCallback(**terms)
    made = Fabric(accelerator="cpu", callbacks=[] if ours is None else [ours])
    net = work.net()
    model, optimizer = made.setup(net, torch.optim.SGD(net.parameters(), lr=RATE))
    made.call("on_train_start")
    done, over = 0, False
    while not over:
        for inputs, wanted in work.loader():
            loss = work.loss(model(inputs), wanted)
            optimizer.zero_grad()
            made.backward(loss)
            optimizer.step()
            made.call("on_train_batch_end", {"loss": loss})
            done += 1
            over = bool(watch(done)) or done == steps or (ours is not None and ours.over)
            if over:
                break
    made.call("on_train_end")
    return net


class _Answering(nn.Module):
    """A model that returns its loss, as the Trainer of transformers wants it."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net, self._loss = work.net(), work.loss
        self.accepts_loss_kwargs = False

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(inputs)
        return {"loss": self._loss(logits, labels), "logits": logits}


class _InOrder(Trainer):  # type: ignore[misc]
    """A Trainer whose batches come in the order of the others."""

    def __init__(self, work: Work, *args: Any, **options: Any) -> None:
        super().__init__(*args, train_dataset=[0] * len(work.loader()), **options)
        self._work = work

    def get_train_dataloader(self) -> Any:
        return _Named(self._work.loader())


class _Named:
    """Batches by the names of the arguments of :class:`_Answering`."""

    batch_size = None

    def __init__(self, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
        self._loader, self.dataset = loader, loader.dataset

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"inputs": inputs, "labels": wanted} for inputs, wanted in self._loader)


class _Watching(TrainerCallback):  # type: ignore[misc]
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._watch(state.global_step):
            control.should_training_stop = True


class _Empty(TrainerCallback):  # type: ignore[misc]
    """A callback that does nothing."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def transformers(work: Work, steps: int, terms: Terms | None, watch: Watch, *, log_every: int = 1) -> nn.Module:
    """Train with the Trainer of transformers; with a callback that does nothing for None."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps if steps > 0 else 10**9, logging_steps=log_every, max_grad_norm=0.0, report_to=[],
            disable_tqdm=True, use_cpu=True, log_level="error", save_strategy="no", lr_scheduler_type="constant",
            per_device_train_batch_size=32,
        )  # fmt: skip
        model = _Answering(work)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        ours = _Empty() if terms is None else CoreTrainerCallback(**terms)
        trainer = _InOrder(work, model, arguments, callbacks=[ours, _Watching(watch)], optimizers=(optimizer, None))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return model.net


class _Module(pl.LightningModule):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net, self._work = work.net(), work

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, wanted = batch
        loss: torch.Tensor = self._work.loss(self.net(inputs), wanted)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class _WatchingTrainer(pl.Callback):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._watch(trainer.global_step):
            trainer.should_stop = True


def lightning(work: Work, steps: int, terms: Terms | None, watch: Watch) -> nn.Module:
    """Train with Lightning's Trainer; with a callback whose hooks do nothing for None."""
    from benchmarks.live.hooks import empty

    ours = empty() if terms is None else CoreCallback(**terms)
    trainer = pl.Trainer(max_steps=steps, max_epochs=-1, callbacks=[ours, _WatchingTrainer(watch)], **QUIET)
    module = _Module(work)
    trainer.fit(module, work.loader())
    return module.net


LOOPS: dict[str, Callable[..., nn.Module]] = {
    "plain": plain, "fabric": fabric, "hf": transformers, "lightning": lightning,
}  # fmt: skip
"""Loops by the names of their figures."""


def digest(net: nn.Module) -> str:
    """Return a digest of the weights of a model."""
    found = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


class Stopwatch:
    """Measures the seconds of a batch, after the first ones."""

    def __init__(self, batches: int) -> None:
        self._last, self._began = WARM + batches, 0.0
        self.seconds = 0.0

    def __call__(self, done: int) -> bool:
        if done == WARM:
            self._began = time.perf_counter()
        elif done == self._last:
            self.seconds = (time.perf_counter() - self._began) / (self._last - WARM)
            return True
        return False
