"""The callback within another one, twice in a Trainer, copied, and in one Trainer after another."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.callbacks import CoreCallback
from tests.examples import day_and_night
from tests.tiny import QUIET, Line, ValidatedPoints

HOOKS = [name for name in vars(pl.Callback) if name.startswith("on_") or name in ("setup", "teardown")]


def core(name: str = "a", **more: Any) -> CoreCallback:
    return CoreCallback(name, "1h", "val_loss<=1e-9", pool="local", **more)


class Composite(pl.Callback):
    """Passes hooks on to others.

    Args:
        others: The others.
        hooks: Those hooks that it knows.
    """

    def __init__(self, others: list[pl.Callback], hooks: list[str]) -> None:
        self.others = others
        for name in hooks:
            setattr(self, name, self._each(name))

    def _each(self, name: str) -> Callable[..., None]:
        def each(*given: Any, **named: Any) -> None:
            for other in self.others:
                getattr(other, name)(*given, **named)

        return each


def trained(callbacks: list[pl.Callback], epochs: int = 3) -> torch.Tensor:
    torch.manual_seed(1)
    model = Line()
    trainer = pl.Trainer(**QUIET, max_epochs=epochs, callbacks=callbacks)
    trainer.fit(model, datamodule=ValidatedPoints())
    assert trainer.global_step == 16 * epochs
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("mailbox", "watch of"))]
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@cache
def alone() -> torch.Tensor:
    """Return the weights of a training without the callback."""
    return trained([])


def verdict(one: CoreCallback) -> str | None:
    return None if one.forecast is None else str(one.forecast.verdict)


def test_within_a_composite_callback() -> None:
    inner = core()
    assert torch.equal(trained([Composite([inner], HOOKS)]), alone())
    assert verdict(inner) == "missed"


# Hooks that begin, count, validate and end; each of the others is left out at night.
BY_DAY = (
    "setup", "on_fit_start", "on_train_start", "on_train_batch_start", "on_train_batch_end", "on_validation_end",
    "on_train_end", "teardown",
)  # fmt: skip


@pytest.mark.parametrize("missing", day_and_night([name for name in HOOKS if name in vars(CoreCallback)], BY_DAY))
def test_within_a_composite_callback_that_leaves_a_hook_out(missing: str) -> None:
    inner = core()
    weights = trained([Composite([inner], [name for name in HOOKS if name != missing])])
    assert torch.equal(weights, alone())
    assert verdict(inner) == (None if missing == "setup" else "missed")


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_first_of_two_speaks_for_a_trainer(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also if both are for one job, as of a script whose environment names it too."""
    first, second = core("a"), core(name)
    assert torch.equal(trained([first, second]), alone())
    assert (verdict(first), verdict(second)) == ("missed", None)
    assert caplog.text.count(f"{name}: ignored, because the Trainer has another CoreCallback") == 1
    trained([second])
    assert verdict(second) == "missed"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_another_one(how: Callable[[CoreCallback], CoreCallback]) -> None:
    original = core()
    before = how(original)
    assert torch.equal(trained([before]), alone())
    assert (verdict(before), verdict(original)) == ("missed", None)
    after = how(before)
    trained([after], epochs=1)
    assert "max_epochs=1" in after.forecast.reason
    assert "max_epochs=3" in before.forecast.reason


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_that_is_made_during_a_training_is_another_one(how: Callable[[CoreCallback], CoreCallback]) -> None:
    class Copies(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *given: Any) -> None:
            made = how(original)
            made.on_train_batch_end(trainer, module, *given)
            made.on_validation_end(trainer, module)
            made.teardown(trainer, module, "fit")
            copies.append(made)

    original, copies = core(), list[CoreCallback]()
    assert torch.equal(trained([original, Copies()]), alone())
    assert verdict(original) == "missed"
    assert {one.directive for one in copies} == {None}


def test_one_callback_in_one_trainer_after_another() -> None:
    one = core()
    for epochs in (1, 2, 3):
        trained([one], epochs)
        assert f"max_epochs={epochs}" in one.forecast.reason


def test_one_callback_in_two_trainers_at_once_speaks_for_the_first() -> None:
    """The second one begins within the first one's fit, and trains without it."""

    class Second(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            inner = pl.Trainer(**QUIET, max_epochs=1, callbacks=[one])
            inner.fit(Line(), datamodule=ValidatedPoints())
            steps.append(inner.global_step)

    one, steps = core(), list[int]()
    torch.manual_seed(1)
    trainer = pl.Trainer(**QUIET, max_epochs=3, callbacks=[one, Second()])
    trainer.fit(Line(), datamodule=ValidatedPoints())
    assert (trainer.global_step, steps) == (48, [16, 16, 16])
    assert "max_epochs=3" in one.forecast.reason
