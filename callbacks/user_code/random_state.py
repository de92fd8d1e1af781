"""The random state of a training process, as plain values that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import random
from typing import Any, Self

import numpy as np
import torch


def collect() -> dict[str, Any]:
    """Return the state of the generators of Python, NumPy, torch and all GPUs."""
    cuda: Any = torch.cuda
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda.is_initialized() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Restore a state that :func:`collect` has returned.

    Example::

        >>> before = collect()
        >>> drawn = random.random(), np.random.rand(), torch.rand(1)
        >>> restore(before)
        >>> drawn == (random.random(), np.random.rand(), torch.rand(1))
        True
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([device.cpu() for device in state["cuda"]])


class PutBack:
    """Context that puts the random state of the CPU back if numbers are drawn in it.

    Example::

        >>> with PutBack() as guard:
        ...     drawn = random.random()
        >>> guard.was_drawn, random.random() == drawn
        (True, True)
    """

    was_drawn = False
    """Whether the block drew random numbers of Python, NumPy or torch."""

    def __enter__(self) -> Self:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        return self

    def __exit__(self, *_: object) -> None:
        before: Any = self._numpy
        now: Any = np.random.get_state()
        same = np.array_equal(before[1], now[1]) and before[2:] == now[2:]
        if not (same and random.getstate() == self._python and torch.equal(torch.get_rng_state(), self._torch)):
            self.was_drawn = True
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            torch.set_rng_state(self._torch)
