"""Many trainings with deadlines on few devices: every loss curve forecast, the devices shared, targets met in time.

What is imported here needs NumPy only. The callback is in :mod:`lightning_core.callbacks`, bundles are in
:mod:`lightning_core.launch.bundle`.
"""

from lightning_core.scheduler import Scheduler, Settings
from lightning_core.types import BatchTarget, Job, LossTarget, Verdict

__version__ = "0.1.0"
__all__ = ["BatchTarget", "Job", "LossTarget", "Scheduler", "Settings", "Verdict", "__version__"]
