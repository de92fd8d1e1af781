"""What stands between a bundle file and training processes: the loader, the Keeper, workers, turnstiles.

:class:`SafeCheckpointIO` is for any Trainer: what is imported here by its name alone brings neither Ray nor a pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.callbacks.checkpoint_io import SafeCheckpointIO

__all__ = ["SafeCheckpointIO"]


def __getattr__(name: str) -> Any:
    # Only when it is asked for: a Keeper imports this package, and must not import torch.
    if name in __all__:
        from lightning_core.callbacks import checkpoint_io

        return getattr(checkpoint_io, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
