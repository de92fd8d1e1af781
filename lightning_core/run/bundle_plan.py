"""Estimates whether a bundle fits, from the work given for its jobs and from earlier runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.core.answers import Verdict
from lightning_core.core.durations import MAX_FORECAST, format_duration, format_forecast
from lightning_core.core.names import listed
from lightning_core.planning.feasibility import JobRequest, check_feasibility
from lightning_core.regular_files import read_text
from lightning_core.run.work_on_kinds import WorkOnKinds
from lightning_core.storage.private_files import this_user
from lightning_core.storage.runs.run_store import RunStore

# A summary has some kilobytes for each job, and the last lines of its errors.
MAX_SUMMARY_BYTES = 64 * 2**20
# A forecast of this many times the deadline and more is no number to plan with.
FAR = 10.0
ALIKE = "no earlier run says how fast the kinds of devices are: all are counted as alike"


class Tried(Protocol):
    """Result of a short training of a job."""

    @property
    def work(self) -> tuple[float, float, float] | None:
        """Seconds that the job needs: in a good case, likely, and in a bad case; None if that is not known."""


def plan_bundle(
    bundle: BundleSpec,
    history: Path | None = None,
    kept: RunStore | None = None,
    tried: Mapping[str, Tried] | None = None,
    kinds: Sequence[str] = (),
) -> tuple[list[str], bool]:
    """Estimate whether all jobs can meet their deadlines.

    Args:
        bundle: Bundle to be run.
        history: Folder below which earlier runs are; None for none.
        kept: Runs that a pool remembers; None for none.
        tried: Results of short trainings, by job, which take precedence over all other knowledge; None for none.
        kinds: Kind of each device, as a pool has found them; empty for those that the bundle names.

    Returns:
        Lines for the user, and whether all jobs of known work fit.
    """
    runs = list(earlier_runs(history)) if history is not None else []
    tried = tried or {}
    requests, bad_case, lines, hopeless = [], [], [], []
    counts = Counter(bundle.settings.locations or kinds)
    by_kind = WorkOnKinds(counts, bundle.kind, kept) if len(counts) > 1 else None
    devices = bundle.settings.devices if by_kind is None else dict(counts)
    for spec in bundle.jobs:
        job = spec.job
        trial = tried.get(job.name)
        work, origin = expected_work(spec, runs, kept)
        if trial is not None and trial.work is not None and trial.work[1] > FAR * job.deadline:
            hopeless.append(job.name)
            lines.append(f"{job.name}: not forecast to reach its target within {FAR:g} times its deadline ({trial})")
            continue
        if trial is not None and trial.work is not None:
            work, origin = trial.work[1], str(trial)
        elif trial is not None:
            lines.append(f"{job.name}: {trial}")
        # The scheduler gives a job as many devices as the pool has, up to its maximum.
        size = min(job.max_devices, bundle.settings.devices)
        if job.is_best_effort:
            lines.append(f"{job.name}: has no deadline: trains on devices that the others leave")
            continue
        if by_kind is not None and not by_kind.allowed(job):
            hopeless.append(job.name)
            lines.append(f"{job.name}: requires a device of kind {listed(job.kinds)}, where the pool has none")
            continue
        requests.append(JobRequest(job.name, work, job.deadline, size, job.weight, job.begin))
        if by_kind is not None:
            requests[-1], origin = by_kind.request(spec, requests[-1], origin)
            work = requests[-1].work
        late = work if trial is None or trial.work is None else min(trial.work[2], MAX_FORECAST)
        bad_case.append(requests[-1]._replace(work=late))
        if work is not None:
            needs = format_duration(work) if trial is None else format_forecast(work)
            needs = needs if by_kind is None else by_kind.words(spec, requests[-1])
            lines.append(f"{job.name}: needs {needs} of {format_duration(job.deadline)} ({origin})")
    answer = check_feasibility(requests, devices)
    first, *rest = answer.lines()
    if bad_case != requests:
        fits = check_feasibility(bad_case, devices).fits
        number = len(requests) - len(answer.unknown)
        rest.append(f"if each tried job takes as long as in its bad case: {len(fits)} of {number} fit")
    if hopeless:
        first += f"; {len(hopeless)} not forecast to reach {'its target' if len(hopeless) == 1 else 'their targets'}"
    if by_kind is not None and not by_kind.known:
        lines.append(ALIKE)
    return [first, *lines, *rest], not answer.late and not hopeless


def expected_work(spec: JobSpec, runs: list[dict[str, Any]], kept: RunStore | None = None) -> tuple[float | None, str]:
    """Return the seconds that a job needs alone on its devices, and their origin.

    They come from the job's ``work``, from the newest run of its name that met its target, or from a run of its task
    that a pool remembers; None if there is none.

    Args:
        spec: Spec of the job.
        runs: Content of ``summary.json`` of earlier runs, the newest first.
        kept: Runs that a pool remembers; None for none.
    """
    if spec.job.work is not None:
        return spec.job.work, "its work as given"
    for run in runs:
        jobs = run.get("jobs")
        job = jobs.get(spec.job.name) if isinstance(jobs, dict) else None
        if not isinstance(job, dict) or job.get("verdict") != Verdict.MET or job.get("target") != str(spec.job.target):
            continue
        busy = job.get("busy")
        if isinstance(busy, int | float) and 0 < busy < math.inf:
            return float(busy), "as in an earlier run"
    for past in [] if kept is None else kept.similar(spec.identified, this_user()):
        if past.met_at is not None and past.target == str(spec.job.target) and past.trained > 0:
            return past.trained, f"{past.name} took {format_duration(past.trained)} last time"
    return None, ""


def earlier_runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of every readable ``summary.json`` below a folder, the newest first."""
    for path in sorted(folder.rglob("summary.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            content = json.loads(read_text(path, MAX_SUMMARY_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            yield content
