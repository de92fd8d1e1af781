"""The random state of a training process, as plain values that ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lightning_core.agent.user_code.torch_here import torch_here


def collect() -> dict[str, Any]:
    """Return the state of the generators of Python, NumPy, torch and all GPUs."""
    import torch

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
        >>> import torch
        >>> drawn = random.random(), np.random.rand(), torch.rand(1)
        >>> restore(before)
        >>> drawn == (random.random(), np.random.rand(), torch.rand(1))
        True
    """
    import torch

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([device.cpu() for device in state["cuda"]])


class RandomStateKept:
    """Context after which the random state of Python, NumPy and torch, on all devices, is as it was before.

    Example::

        >>> import torch
        >>> with RandomStateKept():
        ...     drawn = random.random(), torch.rand(1).item()
        >>> drawn == (random.random(), torch.rand(1).item())
        True
    """

    def __enter__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = [(restore, save()) for save, restore in _generators_of_torch()]

    def __exit__(self, *_: object) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for restore, state in self._torch:
            restore(state)


def _generators_of_torch() -> Iterator[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Yield what saves and what restores the state of each generator of torch that this process has used."""
    if (torch := torch_here()) is None:
        return
    yield torch.get_rng_state, torch.set_rng_state
    for kind in ("cuda", "xpu"):
        module: Any = getattr(torch, kind, None)
        if module is not None and module.is_initialized():
            yield module.get_rng_state_all, module.set_rng_state_all
    if torch.backends.mps.is_available():
        yield torch.mps.get_rng_state, torch.mps.set_rng_state
