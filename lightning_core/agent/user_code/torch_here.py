"""Devices of a training process, and torch as far as its script has it.

A plain loop may train without torch, and importing it takes seconds. So a process that has not imported it has no
tensors, no GPU that torch knows, and no process group.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from lightning_core.variables import MIG, visible_gpus

if TYPE_CHECKING:
    import torch


class TrainingDevice(Protocol):
    """What is read of a ``torch.device``."""

    @property
    def type(self) -> str:
        """Kind of the device, such as ``"cpu"`` or ``"cuda"``."""

    @property
    def index(self) -> int | None:
        """Number of the device in this process; None for the current one."""


@dataclass(frozen=True)
class HostDevice:
    """The CPUs of this machine, where torch is not imported."""

    type: str = "cpu"
    index: int | None = None


HOST = HostDevice()


def torch_here() -> Any:
    """Return torch if this process has imported it, else None."""
    return sys.modules.get("torch")


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor, of a subclass too."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_metric(value: object) -> bool:
    """Return whether a value is a metric of torchmetrics, if the training has imported that."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


def gpu_of(device: TrainingDevice) -> str:
    """Return the UUID of a GPU, as NVML and the pool have it: its number may mean another GPU in another process.

    That of an instance of a card under MIG is the one by which it was chosen: what torch knows may be that of the card,
    which its other instances have too.
    """
    import torch

    known: Any = device
    chosen = visible_gpus() or []
    if (at := device.index or 0) < len(chosen) and chosen[at].startswith(MIG):
        return chosen[at]
    return f"GPU-{torch.cuda.get_device_properties(known).uuid}"


def device_name(device: TrainingDevice) -> str:
    """Return the name that the pool uses: ``"cpu"``, or the UUID of a GPU."""
    return gpu_of(device) if device.type == "cuda" else "cpu"
