"""Trials before a plan: each job of a bundle trains briefly, and its reports give a forecast.

Nothing of the user's is touched: a trial has a folder of its own, which is removed with it, and neither the user's
loggers nor checkpoints; it is not in the store of earlier runs. Commands of ``on_verdict`` are not run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.commands import Cancel
from lightning_core.core.durations import MAX_FORECAST, format_duration, format_forecast
from lightning_core.errors import LightningCoreError

# Seconds that a job may take to be built before its trial is given up, beside the seconds that it trains.
BUILT_WITHIN = 60.0
# A deadline that no trial passes, in seconds.
NEVER = 30 * 86400.0
NOT_TRIED = "not tried: a script writes where it likes; give its `work`"
# Maximum seconds between two rounds: the forecast is read at the end of a trial.
PERIOD = 0.5


class TrialError(LightningCoreError, RuntimeError):
    """The trials were interrupted."""


class TrialReport(NamedTuple):
    """Result of a job's trial."""

    batches: int
    """Batches that it trained."""
    busy: float
    """Seconds that it trained."""
    work: tuple[float, float, float] | None
    """Seconds alone on its devices until its target: good case, likely, and bad case; inf if never, None if unknown."""
    remark: str = ""
    """Further remark."""

    def __str__(self) -> str:
        """Return the result as text.

        Example::

            >>> str(TrialReport(400, 20.0, (90.0, 120.0, 240.0)))
            'tried for 20.0s: 20 batches/s; 90s to 4m'
        """
        if not self.batches:
            return self.remark
        rate = self.batches / self.busy
        told = f"tried for {format_duration(self.busy)}: {rate:{',.0f' if rate >= 100 else '.3g'}} batches/s"
        if self.remark:
            return f"{told}; {self.remark}"
        low, _, high = map(format_forecast, self.work or ())
        if low == high:
            return told
        return f"{told}; at least {low}" if high == "∞" else f"{told}; {low} to {high}"


def try_jobs(
    bundle: BundleSpec, seconds: float, told: Callable[[Sequence[str]], None] = lambda names: None
) -> dict[str, TrialReport]:
    """Train each job with a deadline briefly on a pool like the bundle's, and return the results.

    Scripts are not tried: they write where they like.

    Jobs that fit beside one another on the devices train at once, each alone on its own.

    Args:
        bundle: Bundle to try, checked.
        seconds: Seconds for which each trains at most, from its first batch on.
        told: Called with the names of the jobs that are about to be tried.

    Raises:
        TrialError: If a signal ended a trial.
    """
    settings = replace(
        bundle.settings, policy="fifo", policy_args={}, estimator=bundle.settings.estimator_used,
        controllers={}, divider={}, resident=None, period=min(bundle.settings.period, PERIOD),
    )  # fmt: skip
    with_deadlines = [spec for spec in bundle.jobs if not spec.job.is_best_effort]
    specs = [_for_trial(spec) for spec in with_deadlines if not spec.script]
    found = {spec.job.name: TrialReport(0, 0.0, None, NOT_TRIED) for spec in with_deadlines if spec.script}
    if not specs:
        return found
    with (
        tempfile.TemporaryDirectory(prefix="lc-") as folder,
        Cluster(settings.devices, bundle.kind, settings.devices, settings.cores, settings.locations) as cluster,
    ):
        for number, group in enumerate(_side_by_side(specs, settings.devices)):
            told([spec.job.name for spec in group])
            trials = _Trials(cluster, seconds)
            some = replace(bundle, jobs=group, settings=settings, on_verdict={})
            run_dir = Path(folder) / str(number)
            run_dir.mkdir(mode=0o700)
            if cluster.run(some, run_dir, trials).interrupted is not None:
                raise TrialError("the trials were interrupted")
            found |= trials.found
    return found


def _for_trial(spec: JobSpec) -> JobSpec:
    """Return a job that begins at once, keeps nothing, and logs to its own folder."""
    job = replace(spec.job, deadline=NEVER, begin=0.0, work=None, location="", like="")
    return replace(spec, job=job, config=_config(spec.config), clock={}, keep_best=False, save_every=NEVER)


def _config(config: Any) -> dict[str, Any]:
    """Return a config without the user's checkpoints, and with a logger that writes to the folder of the trial."""
    trainer = {key: value for key, value in (config.get("trainer") or {}).items() if key != "default_root_dir"}
    callbacks = trainer.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    trainer |= {
        "logger": bool(trainer.get("logger", True)),
        "callbacks": [one for one in callbacks if not _class_path(one).endswith("Checkpoint")],
        "enable_checkpointing": False,
    }
    return {**config, "trainer": trainer}


def _class_path(callback: Any) -> str:
    return str(callback.get("class_path", "") if isinstance(callback, dict) else callback)


def _side_by_side(specs: Sequence[JobSpec], devices: int) -> Iterator[tuple[JobSpec, ...]]:
    """Yield groups of jobs that fit the devices together."""
    group: list[JobSpec] = []
    free = devices
    for spec in specs:
        size = min(spec.job.max_devices, devices)
        if size > free:
            yield tuple(group)
            group, free = [], devices
        group.append(spec)
        free -= size
    if group:
        yield tuple(group)


class _Trials:
    """Watches jobs, ends each when it has trained long enough, and keeps its last forecast.

    Args:
        cluster: Cluster on which they train.
        seconds: Seconds for which each trains.
    """

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster, self._seconds = cluster, seconds
        self.found: dict[str, TrialReport] = {}

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """End the jobs that have trained long enough."""
        for job in jobs:
            if job.name in self.found:
                continue
            over = job.busy >= self._seconds or now - job.submitted_at >= self._seconds + BUILT_WITHIN
            if over or job.state is State.ENDED:
                self.found[job.name] = trial_of(job, now)
                if job.state is not State.ENDED:
                    self._cluster.tell(Cancel(job.name))

    def close(self) -> None:
        """Do nothing."""


def trial_of(job: JobStatus, now: float) -> TrialReport:
    """Return the result of a job's trial, from its last status."""
    if job.verdict is Verdict.MET:
        return TrialReport(job.batches, job.busy, (job.busy,) * 3, "met its target")
    if job.state is State.ENDED:
        return TrialReport(job.batches, job.busy, None, f"its trial ended: {job.reason}")
    if not job.batches:
        return TrialReport(0, 0.0, None, f"it had no batch within {format_duration(now - job.submitted_at)}")
    if job.finish is None and job.verdict is None:
        return TrialReport(job.batches, job.busy, None, "too short for a forecast")
    if job.finish is None:
        return TrialReport(job.batches, job.busy, (inf, inf, inf), "not forecast to reach its target")
    low, likely, high = (job.busy + max(end - now, 0.0) for end in job.finish)
    return TrialReport(job.batches, job.busy, (low, likely, high if high < MAX_FORECAST else inf))
