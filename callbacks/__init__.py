"""The callback that joins a Trainer to a scheduler. Import it as ``lightning_core.callbacks``."""

if __name__ != "lightning_core.callbacks":
    raise ImportError("import lightning_core.callbacks, not the folder 'callbacks': the package is not installed twice")

import logging

from lightning_core.name_conflict import describe_namesake

if (words := describe_namesake()) is not None:
    logging.getLogger(__name__).warning("%s", words)

try:
    from .checkpointing.checkpoint_io import SafeCheckpointIO
    from .core import CoreCallback
    from .elastic.loader import ElasticLoader
    from .steering import Fenced, JobOver, Released
except ModuleNotFoundError as error:
    # Whatever is missing of ours is a mistake of ours, and told as it is.
    missing = (error.name or "lightning_core").partition(".")[0]
    if missing == "lightning_core":
        raise
    raise ModuleNotFoundError(
        f"lightning_core.callbacks needs {missing}, which is not installed; "
        "run pip install 'lightning-core-learning[lightning]'",
        name=error.name,
    ) from None

__all__ = ["CoreCallback", "ElasticLoader", "Fenced", "JobOver", "Released", "SafeCheckpointIO"]
