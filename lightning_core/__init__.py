"""Many trainings with deadlines on few devices: every loss curve forecast, the devices shared, targets met in time.

What is imported here needs NumPy only. The callback is in :mod:`lightning_core.callbacks`, bundles are in
:mod:`lightning_core.bundle.bundle_file`.
"""

from lightning_core.core.answers import Verdict
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

__version__ = "0.1.0"
__all__ = ["BatchTarget", "Job", "LossTarget", "Scheduler", "Settings", "Verdict", "__version__"]
