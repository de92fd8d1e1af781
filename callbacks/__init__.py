"""Callbacks and plugins for the Trainer of Lightning. Import the package as ``lightning_core.callbacks``."""

if __name__ != "lightning_core.callbacks":
    raise ImportError("import lightning_core.callbacks instead of the folder 'callbacks'")

import logging

from lightning_core.name_conflict import describe_namesake

if (conflict := describe_namesake()) is not None:
    logging.getLogger(__name__).warning("%s", conflict)

try:
    from .checkpointing.checkpoint_io import SafeCheckpointIO
    from .core_callback import CoreCallback
    from .elastic.loader import ElasticLoader
except ModuleNotFoundError as error:
    # A missing module of this package is a defect, and is raised as it is.
    missing = (error.name or "lightning_core").partition(".")[0]
    if missing == "lightning_core":
        raise
    raise ModuleNotFoundError(
        f"lightning_core.callbacks needs {missing}, which is not installed: "
        "run pip install -c constraints.txt '.[lightning]' in the clone",
        name=error.name,
    ) from None

__all__ = ["CoreCallback", "ElasticLoader", "SafeCheckpointIO"]
