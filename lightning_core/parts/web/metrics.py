"""Metrics of a pool for Prometheus: its jobs, its devices and owners, and its scheduler's process.

Rules

1. Names follow Prometheus' conventions: base units, ``_total`` for counters.
2. The number of series is bounded. Jobs that have not ended have series of their own, those in trouble first, and only
   the first :data:`MAX_JOBS`; the number of those left out is a metric. The same holds for owners, those with the most
   devices first.
3. The label of a job is ``job_name``: Prometheus itself uses ``job`` for its scrape targets.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.durations import is_in_reach
from lightning_core.core.parts import figures_of, group_of
from lightning_core.server.clients.socket_client import SocketClient

# Jobs and owners that have series of their own.
MAX_JOBS, MAX_OWNERS = 200, 50
PREFIX = "lightning_core_"
# Seconds.
HOUR = 3600.0
# Maximum characters of a target.
MAX_WORDS = 120
# Verdict of a job about which too little is known.
TOO_EARLY = "too early"
NUMBERS = ", ".join(f"{verdict.number} {verdict}" for verdict in Verdict)

# Metrics of each job: name, help text, and value; None for no sample.
OF_A_JOB: dict[str, tuple[str, Callable[[JobStatus, float], float | None]]] = {
    "job_verdict": (
        f"Verdict of a job that is in no group: {NUMBERS}. Below zero, an unended job is past its deadline.",
        lambda job, now: None if job.verdict is None or group_of(job.parts) else job.verdict.number,
    ),
    "job_spare_seconds": (
        "Seconds from the likely end of a job to its deadline; negative if it would be late.",
        lambda job, now: _spare(job),
    ),
    "job_deadline_seconds": (
        "Seconds until the deadline of a job; negative once it has passed.",
        lambda job, now: job.deadline - now if math.isfinite(job.deadline) else None,
    ),
    "job_share_ratio": ("Share that a job has of its devices, 0 to 1.", lambda job, now: job.share),
    "job_pace_ratio": (
        "Expected throughput of a job beside those that train at the same time, as a part of that alone.",
        lambda job, now: job.pace,
    ),
    "job_devices": ("Devices on which a job is.", lambda job, now: len(job.devices)),
    "job_throughput_batches_per_second": (
        "Batches that a job does in a second of training, not counting the time that others have its devices.",
        lambda job, now: job.throughput,
    ),
    "job_batches": ("Batches that a job has done; fewer after a fault.", lambda job, now: job.batches),
    "job_busy_seconds": ("Seconds that a job has trained, validated and saved.", lambda job, now: job.busy),
    "job_device_seconds": (
        "Seconds of its devices that count as a job's own; time beside others is divided by the work of each.",
        lambda job, now: job.device_seconds,
    ),
    "job_loss": ("Current loss of a job.", lambda job, now: job.loss),
    "job_restarts": ("Restarts of a job after a fault.", lambda job, now: job.restarts),
    "job_lost_batches": ("Batches that a job repeated because of faults.", lambda job, now: job.lost_batches),
    "job_memory_bytes": ("Peak of a device's memory that a job's process had.", lambda job, now: job.memory),
    "job_alert": ("Whether the training of a job that is in no group has a problem now, such as NaN losses.",
                  lambda job, now: None if group_of(job.parts) else float(job.alert is not None)),
}  # fmt: skip


class Seen(NamedTuple):
    """Data read from a pool."""

    now: float
    """Scheduler time, in seconds."""
    jobs: Sequence[JobStatus]
    about: Mapping[str, Any]
    counters: Mapping[str, Any]


class PoolCollector(Collector):
    """The metrics of a pool, as prometheus_client collects them.

    Args:
        seen: Data of the pool; None if it did not answer.
        max_jobs: Number of jobs that have series of their own.
    """

    def __init__(self, seen: Seen | None, max_jobs: int = MAX_JOBS) -> None:
        self._seen = seen
        self._max_jobs = max_jobs

    def collect(self) -> Iterator[Metric]:
        yield _gauge("up", "Whether the pool's scheduler answers.", float(self._seen is not None))
        if self._seen is not None:
            yield from _of_the_pool(self._seen)
            yield from _of_parts(self._seen.about)
            yield from _of_jobs(self._seen, self._max_jobs)
            yield from _of_owners(self._seen)
            yield from _of_the_process(self._seen.counters)


def metrics(request: Request) -> Response:
    """Answer a request for ``/metrics``; the client of the pool is ``request.app.state.client``."""
    client: SocketClient = request.app.state.client
    try:
        now, jobs = client.status()
        seen = Seen(now, jobs, client.about(), client.counters())
    except ConnectionError:  # for Prometheus that is an answer too
        seen = None
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(PoolCollector(seen)), headers={"Content-Type": kind})


def _of_the_pool(seen: Seen) -> Iterator[Metric]:
    settings, names = seen.about["settings"], seen.about["devices"]
    labels = {key: str(settings[key]) for key in ("policy", "estimator")}
    yield InfoMetricFamily(f"{PREFIX}pool", "Settings of the pool.", labels)
    yield _gauge("devices", "Devices of the pool.", settings["devices"])
    use = defaultdict[int, float](float)
    for job in seen.jobs:
        for device in job.devices:
            use[device] += job.share
    named = {name: use[number] for number, name in enumerate(names)}
    yield _gauges("device_share_ratio", "Sum of the shares of the jobs on a device, 0 to 1.", "device", named)
    states = dict.fromkeys(State, 0) | Counter(job.state for job in seen.jobs)
    yield _gauges("jobs", "Jobs that the pool remembers, by state.", "state", states)
    verdicts = dict.fromkeys((*Verdict, TOO_EARLY), 0) | Counter(job.verdict or TOO_EARLY for job in seen.jobs)
    yield _gauges("jobs_judged", "Jobs that the pool remembers, by verdict.", "verdict", verdicts)


def _of_parts(about: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what parts give of their controllers, and of what divides the pool."""
    shares = dict.fromkeys(about["settings"]["divider"], about["shares"])
    for name, said in (about["controllers"] | shares).items():
        for one in figures_of(name, said):
            if isinstance(one.value, Mapping):
                yield _gauges(one.name, one.about, one.label, one.value)
            else:
                yield (_counter if one.counts else _gauge)(one.name, one.about, one.value)


def _of_jobs(seen: Seen, max_jobs: int) -> Iterator[Metric]:
    active = sorted((job for job in seen.jobs if job.state is not State.ENDED), key=_by_trouble)
    told = active[:max_jobs]
    yield _gauge("jobs_left_out", "Jobs that have no series of their own: those in least trouble.",
                 len(active) - len(told))  # fmt: skip
    info = InfoMetricFamily(f"{PREFIX}job", "State of a job.", labels=["job_name"])
    for job in told:
        verdict = str(job.verdict or TOO_EARLY)
        words = str(job.target)[:MAX_WORDS]
        info.add_metric([job.name], {"owner": job.owner, "state": job.state, "verdict": verdict, "target": words})
    yield info
    for name, (words, value) in OF_A_JOB.items():
        family = GaugeMetricFamily(PREFIX + name, words, labels=["job_name"])
        for job in told:
            if (number := value(job, seen.now)) is not None:
                family.add_metric([job.name], number)
        yield family


def _of_owners(seen: Seen) -> Iterator[Metric]:
    count, held = Counter[str](), defaultdict[str, float](float)
    for job in seen.jobs:
        if job.state is not State.ENDED:
            count[job.owner] += 1
            held[job.owner] += job.held_share * len(job.devices)
    told = dict(count.most_common(MAX_OWNERS))
    yield _gauges("owner_jobs", "Jobs of an owner that have not ended.", "owner", told)
    yield _gauges("owner_devices", "Devices of an owner's jobs, each by the share that counts as theirs.", "owner",
                  {owner: held[owner] for owner in told})  # fmt: skip
    yield _gauge("owners_left_out", "Owners that have no series of their own.", len(count) - len(told))


def _of_the_process(counters: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge("scheduler_age_seconds", "Age of the scheduler's process; counters begin with it.", counters["age"])
    yield _counters("events", "Events that the scheduler has handled, by kind; reports of jobs are one.", "kind",
                    counters["events"])  # fmt: skip
    decisions = counters["decisions"]
    buckets = [*decisions["at_or_below"].items(), ("+Inf", decisions["count"])]
    yield HistogramMetricFamily(
        f"{PREFIX}decision_seconds", "Time in which an event was handled.", buckets, decisions["seconds"]
    )
    yield SummaryMetricFamily(
        f"{PREFIX}round_seconds", "Time of a round, in which all jobs are planned, with the event that asked for it.",
        counters["rounds"], counters["round_seconds"],
    )  # fmt: skip
    yield SummaryMetricFamily(
        f"{PREFIX}commit_seconds", "Time of a commit of the journal.", counters["commits"], counters["commit_seconds"]
    )
    yield _gauge("journal_bytes", "Size of the journal on disk.", counters["journal_bytes"])
    yield _counters("jobs_ended", "Jobs that have ended, by verdict.", "verdict",
                    dict.fromkeys((Verdict.MET, Verdict.MISSED, Verdict.CRASHED, Verdict.CANCELLED), 0)
                    | counters["ends"])  # fmt: skip
    yield _counters("faults", "Faults after which a job restarted, by cause.", "cause", counters["faults"])
    yield _gauge("connections", "Connections of scripts and commands to the pool.", counters["connections"])
    yield _counter("requests_refused", "Requests and connections that were refused.", counters["refused"])


def _by_trouble(job: JobStatus) -> tuple[bool, int, float, str]:
    """Return the key by which jobs are sorted, those in trouble first."""
    is_well = job.alert is None and job.state is not State.RECOVERING
    verdict = Verdict.FEASIBLE if job.verdict is None else job.verdict
    spare = _spare(job)
    return is_well, verdict.number, math.inf if spare is None else spare, job.name


def _spare(job: JobStatus) -> float | None:
    limit = job.deadline - job.submitted_at
    if job.finish is None or math.isinf(limit) or not is_in_reach(job.finish[1] - job.submitted_at, limit):
        return None
    return job.deadline - job.finish[1]


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, words, value)


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, words, value)


def _gauges(name: str, words: str, label: str, values: Mapping[Any, float]) -> Metric:
    return _labelled(GaugeMetricFamily(PREFIX + name, words, labels=[label]), values.items())


def _counters(name: str, words: str, label: str, values: Mapping[Any, float]) -> Metric:
    return _labelled(CounterMetricFamily(PREFIX + name, words, labels=[label]), values.items())


def _labelled(family: Any, values: Iterable[tuple[Any, float]]) -> Metric:
    for label, value in values:
        family.add_metric([label], value)
    made: Metric = family
    return made
