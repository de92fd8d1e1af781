"""Earlier runs of the same task, which a pool gives to a new job."""

from __future__ import annotations

from lightning_core.core.earlier_runs.binned_curve import BinnedCurve
from lightning_core.core.earlier_runs.earlier_run import MAX_EARLIER_RUNS, MAX_POINTS, EarlierRun, check_run

__all__ = ["MAX_EARLIER_RUNS", "MAX_POINTS", "BinnedCurve", "EarlierRun", "check_run"]
