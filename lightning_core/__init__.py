"""Deadline-aware scheduling of many training jobs on few devices.

Each name below is imported when it is first used: ``import lightning_core`` imports neither NumPy, Ray, torch nor
Lightning. Of the names, ``CoreCallback`` alone does. Its companions are in :mod:`lightning_core.callbacks`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_core.bundle.python_form import Training
    from lightning_core.callbacks import CoreCallback
    from lightning_core.cluster.bundle import Bundle
    from lightning_core.core.answers import Verdict
    from lightning_core.core.jobs import Job
    from lightning_core.core.parts import Part, register
    from lightning_core.core.targets import BatchTarget, EpochTarget, LossTarget
    from lightning_core.errors import LightningCoreError
    from lightning_core.integrations.plain import track
    from lightning_core.pool import JobHandle, Pool
    from lightning_core.scheduler.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "BatchTarget", "Bundle", "CoreCallback", "EpochTarget", "Job", "JobHandle", "LightningCoreError", "LossTarget",
    "Part", "Pool", "Settings", "Training", "Verdict", "__version__", "register", "track",
]  # fmt: skip

# Where each public name is defined; the imports above say the same to type checkers.
_MODULES = {
    "BatchTarget": "lightning_core.core.targets",
    "Bundle": "lightning_core.cluster.bundle",
    "CoreCallback": "lightning_core.callbacks",
    "EpochTarget": "lightning_core.core.targets",
    "Job": "lightning_core.core.jobs",
    "JobHandle": "lightning_core.pool",
    "LightningCoreError": "lightning_core.errors",
    "LossTarget": "lightning_core.core.targets",
    "Part": "lightning_core.core.parts",
    "Pool": "lightning_core.pool",
    "Settings": "lightning_core.scheduler.settings",
    "Training": "lightning_core.bundle.python_form",
    "Verdict": "lightning_core.core.answers",
    "register": "lightning_core.core.parts",
    "track": "lightning_core.integrations.plain",
}


def load_ipython_extension(shell: object) -> None:
    """Add ``%pool`` and ``%%job`` to IPython: ``%load_ext lightning_core``."""
    from lightning_core.pool import magics

    magics.load(shell)


def unload_ipython_extension(shell: object) -> None:
    """Take them from IPython: ``%unload_ext lightning_core``."""
    from lightning_core.pool import magics

    magics.unload(shell)


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
