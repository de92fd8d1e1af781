"""Averaged weights: what is kept as best, saved at a release and resumed is right to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging

from lightning_core.callbacks import CoreCallback
from tests.cluster.test_release import EPOCHS, Run, assert_same, equal
from tests.examples import day_and_night
from tests.tiny import QUIET, Net, NoisyPoints


class EveryEpoch(WeightAveraging):
    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return epoch_idx is not None and epoch_idx > 0


AVERAGES: dict[str, Callable[[], Any]] = {
    "every step": WeightAveraging,
    "every epoch": EveryEpoch,
    "exponential": lambda: EMAWeightAveraging(decay=0.9, update_every_n_steps=3, update_starting_at_step=4),
    "stochastic, cosine": lambda: StochasticWeightAveraging(0.02, swa_epoch_start=2, annealing_epochs=3),
    "stochastic, linear": lambda: StochasticWeightAveraging(0.02, 1, 2, "linear"),
    "stochastic, late": lambda: StochasticWeightAveraging(0.02, swa_epoch_start=0.8),
}


MADE: list[Any] = []


class Averaged(Net):
    """Averages its weights: the callback comes after all others."""

    def __init__(self, average: str, norm: bool) -> None:
        super().__init__()
        self.kind = average
        if not norm:  # with one, the stochastic average has an epoch more
            self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def configure_callbacks(self) -> Any:
        MADE.append(AVERAGES[self.kind]())  # not in the module, of which an average is a copy
        return [MADE[-1]]

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def state_of(average: Any) -> dict[str, Any]:
    """Return what an averaging callback remembers."""
    model = average._average_model
    return {"average": model.state_dict(), "own": average.state_dict()}


@pytest.mark.promise("R7", "R8")
@pytest.mark.parametrize(
    "releases",
    [
        (3, 14, 35, 41),
        pytest.param((10, 31, 49), marks=pytest.mark.nightly),
        pytest.param((45,), marks=pytest.mark.nightly),  # within an epoch of the average, as at 41
    ],
)
@pytest.mark.parametrize(
    ("average", "norm"),
    day_and_night(
        [*((name, False) for name in AVERAGES), *((name, True) for name in AVERAGES if "," in name)],
        [("every step", False), ("exponential", False), ("stochastic, cosine", True), ("stochastic, linear", False)],
    ),
)
def test_a_training_that_was_released_ends_the_same(
    average: str, releases: tuple[int, ...], norm: bool, tmp_path: Path
) -> None:
    def make() -> tuple[Net, Any]:
        return Averaged(average, norm), NoisyPoints()

    options = EPOCHS | {"max_epochs": 5}
    whole = Run(tmp_path / "whole", (), make, **options)
    expected = state_of(MADE[-1])
    run = Run(tmp_path / "run", releases, make, **options)
    if "stochastic" in average:
        begin = 10 * MADE[-1].swa_start
        assert all(left % 10 == 0 for left in run.left_at if left > begin)  # it goes on only where an epoch starts
        for one in (whole, run):  # in the epoch for batch norm, a resumed one has no schedule, and no step uses one
            del one.result["schedules"]
            one.result["optimizers"] = [optimizer["state"] for optimizer in one.result["optimizers"]]
    else:
        assert run.left_at == list(releases)
    assert_same(run, whole)
    assert equal(state_of(MADE[-1])["average"], expected["average"])


class Keeps(ModelCheckpoint):
    """Keeps what Lightning takes for the best."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "best", monitor="val_loss", save_on_train_epoch_end=False)


class Sees(pl.Callback):
    """Notes the weights that are evaluated, and those that are trained with their average, by the steps done."""

    def __init__(self) -> None:
        self.evaluated: dict[int, dict[str, Any]] = {}
        self.trained: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def on_validation_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.evaluated[trainer.global_step] = _state(trainer.lightning_module)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        average: Any = MADE[-1]
        if average._average_model is not None:
            self.trained[trainer.global_step] = _state(trainer.lightning_module), _state(average._average_model)

    on_validation_start = on_train_batch_start  # type: ignore[assignment]


@pytest.mark.parametrize(("first", "norm"), [(False, True), (True, False)], ids=["last", "first"])
@pytest.mark.parametrize("average", day_and_night(AVERAGES, ("every epoch", "exponential", "stochastic, late")))
def test_the_best_model_is_the_one_that_was_evaluated(average: str, first: bool, norm: bool, tmp_path: Path) -> None:
    """It is the average where that is evaluated, with all that resuming needs, as Lightning saves it."""
    torch.manual_seed(1)
    model = Averaged(average, norm)
    core = CoreCallback("a", "1h", "val_loss<=1e-9", pool="local", keep_best=tmp_path / "ours")
    seen = Sees()
    options = QUIET | {"max_epochs": 5, "enable_checkpointing": True, "callbacks": [Keeps(tmp_path), seen]}
    trainer: Any = pl.Trainer(**options)
    trainer.callbacks.insert(0 if first else len(trainer.callbacks), core)
    trainer.fit(model, datamodule=NoisyPoints())
    ours = torch.load(core.best_model_path, weights_only=True)
    theirs = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert ours["global_step"] == theirs["global_step"]
    for key in ("state_dict", "current_model_state", "averaging_state"):
        assert (key in ours) == (key in theirs) == (key == "state_dict" or "stochastic" not in average)
        assert equal(ours.get(key), theirs.get(key)), key
    assert equal(ours["state_dict"], seen.evaluated[ours["global_step"]])


@pytest.mark.parametrize("average", ["every step", "exponential"])
def test_the_best_model_by_its_batches_is_the_average_of_that_batch(average: str, tmp_path: Path) -> None:
    """The loss is that of the weights which are trained; the average goes with them into the file."""
    torch.manual_seed(1)
    seen = Sees()
    core = CoreCallback("a", "1h", "loss<=1e-9", pool="local", keep_best=tmp_path)
    model = Averaged(average, norm=False)
    pl.Trainer(**QUIET | {"max_epochs": 5}, callbacks=[core, seen]).fit(model, datamodule=NoisyPoints())
    kept = torch.load(core.best_model_path, weights_only=True)
    assert 0 < kept["global_step"] <= 50
    assert equal((kept["current_model_state"], kept["state_dict"]), seen.trained[kept["global_step"]])


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """Return a copy of its state; an average calls it that of its module, and counts too."""
    state = module.state_dict().items()
    return {name.removeprefix("module."): value.clone() for name, value in state if name != "n_averaged"}
