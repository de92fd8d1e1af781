"""The callback that joins a Trainer to a scheduler. Import it as ``lightning_core.callbacks``."""

if __name__ != "lightning_core.callbacks":
    raise ImportError("import lightning_core.callbacks, not the folder 'callbacks': the package is not installed twice")

from .core import CoreCallback
from .elastic import ElasticLoader
from .steering import Fenced, JobOver, Released

__all__ = ["CoreCallback", "ElasticLoader", "Fenced", "JobOver", "Released"]
