"""Whatever modules, loaders, loggers, callbacks and optimizers of users do, the training is the same as without us."""

from __future__ import annotations

import datetime
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_core.callbacks import CoreCallback
from tests.examples import day_and_night
from tests.matrix.collectives import difference
from tests.matrix.forks import Forks
from tests.matrix.training import ours_left
from tests.socket_servers import found_pool
from tests.tiny import QUIET

pytestmark = pytest.mark.promise("F36")
BATCHES = 24  # those of a training
# What Lightning itself asks with each batch, and what isinstance asks.
ASKED_ANYWAY = ("automatic_optimization", "__class__")


# ------------------------------------------------------------------------------ objects that refuse what is ours


def asked_by_us(through: bool) -> bool:
    """Return whether code of ours calls the caller of this, or, with ``through``, what called it at any distance."""
    frame = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "lightning_core":
            return True
        if not through:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def draw() -> float:
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


def refuse(what: str) -> NoReturn:
    draw()
    raise NotImplementedError(f"{what} is not for others")


class Suspicious:
    """Raises whatever code of ours reads of it, and draws random numbers before."""

    def __getattribute__(self, name: str) -> Any:
        if name not in ASKED_ANYWAY and asked_by_us(through=False):
            refuse(name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if asked_by_us(through=False):
            refuse(name)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return refuse("repr") if asked_by_us(through=True) else "suspicious"

    def __eq__(self, other: object) -> bool:
        return refuse("==") if asked_by_us(through=True) else self is other

    def __hash__(self) -> int:
        return refuse("hash") if asked_by_us(through=True) else id(self)


class Module(pl.LightningModule):
    """Trains alike whatever is mixed into it."""

    def __init__(self, kind: dict[str, type]) -> None:
        super().__init__()
        self.layer, self.kind, self.drawn = torch.nn.Linear(1, 1), kind, 0.0

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, prog_bar=True)
        self.drawn += draw()
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(x), y))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["drawn"] = draw()

    def configure_optimizers(self) -> Any:
        optimizer = self.kind.get("optimizer", torch.optim.SGD)(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": self.kind.get("scheduler", Scheduler)(optimizer), "interval": "step"}]


class Scheduler(LambdaLR):
    """A schedule that remembers how often it was asked."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.asked = 0
        super().__init__(optimizer, self.rate)

    def rate(self, step: int) -> float:
        self.asked += 1
        return 1.0 / (1.0 + 0.1 * self.asked)


class Loader:
    """A loader that is not one of torch."""

    def __init__(self) -> None:
        self.source = source()

    def __iter__(self) -> Iterator[Any]:
        return refuse("iter") if asked_by_us(through=False) else iter(self.source)

    def __len__(self) -> int:
        return refuse("len") if asked_by_us(through=False) else len(self.source)


class Data(pl.LightningDataModule):
    """Gives loaders that a user has written.

    Args:
        kind: Classes of this training.
    """

    def __init__(self, kind: dict[str, type]) -> None:
        super().__init__()
        self.kind = kind

    def train_dataloader(self) -> Any:
        return self.kind["loader"]()

    def val_dataloader(self) -> Any:
        return self.kind["loader"]()


class Logger(CSVLogger):
    """A logger of a user."""


class Watcher(pl.Callback):
    """A callback of a user."""


def source() -> DataLoader[Any]:
    x = torch.linspace(-1.0, 1.0, 32).unsqueeze(1)
    return DataLoader(TensorDataset(x, 2.0 * x), batch_size=4, shuffle=True)


ORDINARY: dict[str, type] = {
    "module": Module, "data": Data, "loader": Loader, "logger": Logger, "watcher": Watcher, "scheduler": Scheduler,
    "optimizer": torch.optim.SGD,
}  # fmt: skip


def suspicious(kind: type) -> type:
    return type(kind.__name__, (Suspicious, kind), {})


def trained(kind: dict[str, type], ours: Sequence[pl.Callback], folder: Path, *others: pl.Callback) -> Any:
    """Train; return the weights, what was drawn, how often rates were asked for, and what is drawn next.

    Args:
        kind: Classes that are not the ordinary ones.
        ours: Our callback, or none.
        folder: Empty folder.
        others: More callbacks.
    """
    kind = ORDINARY | kind
    pl.seed_everything(5, verbose=False)
    module = kind["module"](kind)
    options: dict[str, Any] = QUIET | {"max_epochs": 3, "enable_checkpointing": True, "default_root_dir": folder}
    options["logger"] = kind["logger"](folder)
    if "WORLD_SIZE" in os.environ:
        options |= {"strategy": "ddp", "devices": int(os.environ["WORLD_SIZE"])}
    trainer = pl.Trainer(**options, callbacks=[kind["watcher"](), *others, *ours])
    trainer.fit(module, datamodule=kind["data"](kind))
    assert trainer.global_step == BATCHES or others
    assert not ours_left()
    [config] = trainer.lr_scheduler_configs
    asked: Any = getattr(config.scheduler, "asked", None)
    weights = [weight.detach().flatten() for weight in module.parameters()]
    return torch.cat(weights).tolist(), module.drawn, asked, draw()


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    with found_pool(devices=2) as made:
        yield str(made.path.parent)


def core(where: str, folder: Path) -> CoreCallback:
    target = "val_loss<=1e-9"
    return CoreCallback("a", "1h", target, pool=where, keep_best=folder / "best")


@pytest.mark.parametrize(
    ("name", "where"),
    day_and_night(
        [(name, where) for name in (*ORDINARY, "all") for where in ("alone", "pool")],
        [("all", "alone"), *((name, "pool") for name in ORDINARY)],
    ),
)
def test_what_refuses_us_trains_as_without_us(
    name: str, where: str, pool: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = {each: suspicious(one) for each, one in ORDINARY.items() if name in (each, "all")}
    without = trained(kind, [], tmp_path / "without")
    ours = core(pool if where == "pool" else "local", tmp_path)
    assert trained(kind, [ours], tmp_path / "with") == without
    assert ours.forecast is not None, caplog.text
    assert not [record for record in caplog.records if "without a part of lightning_core" in record.getMessage()]
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == len(set(lines)), "logged once"


def train(name: str, refuses: int, folder: str, with_core: bool, pool: str) -> Any:
    """Train on this rank; return what :func:`trained` does, and what is wrong with the log."""
    is_refusing = int(os.environ["RANK"]) == refuses
    kind = {each: suspicious(one) for each, one in ORDINARY.items() if is_refusing and name in (each, "all")}
    place = Path(folder)
    return list(trained(kind, [core(pool, place)] if with_core else [], place / os.environ["RANK"]))


@pytest.mark.parametrize("refuses", [0, 1])
def test_on_ranks_of_which_one_refuses_us(refuses: int, forks: Forks, pool: str, tmp_path: Path) -> None:
    run = "tests.callbacks.test_others_code:train"
    without = forks.run(run, "all", refuses, str(tmp_path / "without"), False, pool, ranks=2)
    seen = forks.run(run, "all", refuses, str(tmp_path / "with"), True, pool, ranks=2)
    assert [(one.code, one.value) for one in seen] == [(0, one.value) for one in without], seen[refuses].output[-3000:]
    assert not difference([one.collectives for one in seen])
    assert "lightning_core: a: missed" in seen[0].output


# ------------------------------------------------------------------------------ attributes with other meanings


class Eta(pl.Callback):
    time_remaining = 3.0


class EtaDelta(pl.Callback):
    def time_remaining(self) -> datetime.timedelta:
        return datetime.timedelta(hours=1)


class Stopper(pl.Callback):
    """Stops a training for a reason that is no text."""

    stopped_epoch = 0
    stopping_reason_message: Any = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.stopping_reason_message = ("enough", 1)
        trainer.should_stop = True


class Dated(pl.callbacks.EarlyStopping):
    """Says when it has stopped a training, and why, in ways of its own."""

    def __init__(self) -> None:
        super().__init__("val_loss", patience=0, min_delta=10.0)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.stopped_epoch: Any = datetime.date(2026, 1, 1)
        self.stopping_reason_message: Any = 7


class Steps(pl.callbacks.Timer):
    """A timer whose remaining time is a text."""

    def time_remaining(self, stage: Any = None) -> Any:
        return "a while"


class Kinds(pl.Callback):
    """Has the names of Lightning's averaging, pruning and accumulation."""

    _average_model = _max_epochs = _swa_epoch_start = scheduling = pruning = "none"
    best_model_path = kth_value = verdict = forecast = "none"


@pytest.mark.parametrize("other", [Eta, EtaDelta, Stopper, Dated, Steps, Kinds])
def test_names_with_other_meanings_change_nothing(other: Callable[[], pl.Callback], tmp_path: Path) -> None:
    without = trained({}, [], tmp_path / "without", other())
    assert trained({}, [core("local", tmp_path)], tmp_path / "with", other()) == without


class Sized(Loader):
    """Its batches vary in size."""

    @property
    def batch_size(self) -> NoReturn:
        refuse("batch_size")


class Named(Module):
    """Has hyper-parameters and sizes that are of other kinds."""

    batch_size = lr = learning_rate = "small"

    @property
    def example_input_array(self) -> NoReturn:
        refuse("example_input_array")

    @example_input_array.setter
    def example_input_array(self, value: object) -> None:
        pass


class Secretive(Module):
    """Refuses what we save."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if asked_by_us(through=True):
            refuse("on_save_checkpoint")


@pytest.mark.parametrize("kind", [{"loader": Sized}, {"module": Named}, {"module": Secretive}])
def test_properties_that_raise_change_nothing(kind: dict[str, type], tmp_path: Path) -> None:
    without = trained(kind, [], tmp_path / "without")
    assert trained(kind, [core("local", tmp_path)], tmp_path / "with") == without
