"""The random state of a training process, as plain values that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import random
from typing import Any

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
