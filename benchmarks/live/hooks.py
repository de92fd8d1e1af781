"""The callback's hooks, timed, and an empty callback to compare them with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl

from lightning_core.callbacks import CoreCallback

HOOKS = ("on_train_batch_start", "on_train_batch_end")
# Batches at the start that are left out: they start threads and connections.
WARM = 200


def empty() -> pl.Callback:
    """Return a callback with the hooks of CoreCallback that does nothing."""

    def hook(self: pl.Callback, *_: Any, **__: Any) -> None:
        pass

    names = [name for name in vars(CoreCallback) if name.startswith("on_") or name == "setup"]
    kind: Any = type("Empty", (pl.Callback,), dict.fromkeys(names, hook))
    callback: pl.Callback = kind()
    return callback


def timed(callback: pl.Callback) -> list[float]:
    """Time the callback's batch hooks; the list that is returned fills with seconds per batch, both hooks together."""
    spent: list[float] = []
    started = [0.0]

    def wrap(name: str, hook: Callable[..., None]) -> Callable[..., None]:
        def around(*args: Any, **kwargs: Any) -> None:
            begin = time.perf_counter()
            hook(*args, **kwargs)
            seconds = time.perf_counter() - begin
            if name == HOOKS[0]:
                started[0] = seconds
            else:
                spent.append(started[0] + seconds)

        return around

    for name in HOOKS:
        setattr(callback, name, wrap(name, getattr(callback, name)))
    return spent
