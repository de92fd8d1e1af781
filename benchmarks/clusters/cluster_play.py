"""Play a trace to the scheduler in virtual time, under one policy, and count device-hours and moves.

- A job's first start is free, as in the durations of the trace. When it resumes on other devices it loses its model's
  restart time, while those devices are idle.
- There is one process per device: a job that gives devices up leaves them, and pays when it resumes.
- A job that can run on no number of devices counts as missed.
- A job whose deadline has passed ends under every policy, so that no policy wastes devices on it.
- All nodes form one pool: the tables of throughputs depend on the number of devices only.
- Throughputs and restart costs are known to every policy. A job reports once per round, or less often.
- A policy is asked when a job arrives or ends, when it asked to be, and once per round. So rounds may be seldom: what a
  policy knows to come, it does in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

from benchmarks.clusters.cluster_trace import HOUR, Wanted
from lightning_core.core.answers import Answer, End, Grant, Verdict
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.protocols import Policy
from lightning_core.core.targets import BatchTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.simulation.virtual_pool import VirtualPool
from lightning_core.simulation.virtual_workers import VirtualWorker

# Maximum number of reports of a job with a round every minute, and with fewer rounds: few, so that a simulated day is
# cheap.
REPORTS, REPORTS_SELDOM = 200, 40
# Seconds between two rounds without events, and between two reports of a job.
PERIOD = 60.0


@dataclass(frozen=True)
class Contender:
    """A policy with its arguments, under the name of its row.

    Args:
        policy: Name in :data:`lightning_core.policies.POLICIES`, or a policy of the benchmark.
        arguments: Arguments of the policy.
        sizes: Number of devices of a job: the policy's choice, what its user asked for, or that on which it is fastest.
    """

    policy: str | Callable[..., Policy]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sizes: Literal["chosen", "asked", "fastest"] = "asked"


class Played(NamedTuple):
    """Outcome of a trace under one policy."""

    met: int
    jobs: int
    device_hours: float
    """Device-hours granted, with restarts."""
    moves: int
    """Number of times that a job resumed on other devices."""
    hours_lost: float
    """Hours in which a job had devices and was restarting."""
    device_hours_lost: float
    rounds: int
    deciding: float
    """Seconds of real time spent in the scheduler."""
    verdicts: dict[str, str]

    @property
    def met_pct(self) -> float:
        return 100.0 * self.met / self.jobs


class CountedPool(VirtualPool):
    """A virtual pool that counts moves and the time lost to them."""

    moves = 0
    lost = device_lost = 0.0

    def begin(self, worker: VirtualWorker) -> None:
        if worker.batches and not worker.over:
            took = worker.restart or 0.0
            self.moves += 1
            self.lost += took
            self.device_lost += took * len(worker.at)
        super().begin(worker)


class Counted(Simulation):
    """A simulation that counts device-seconds granted, and the time lost to moves."""

    def __init__(self, settings: Settings, jobs: Sequence[SimulatedJob], delays: Delays) -> None:
        super().__init__(settings, jobs, delays)
        self._held: dict[str, tuple[float, int]] = {}
        self.device_seconds = 0.0

    def _make_pool(self, workers: Mapping[str, VirtualWorker]) -> CountedPool:
        settings = self._settings
        self.pool = CountedPool(
            workers, settings.devices, settings.slots_per_device, self._delays, 0, self._queue, self._send
        )
        return self.pool

    def _hear(self, answers: list[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, Grant):
                self._count(answer.job, len(answer.devices) if answer.share else 0)
            elif isinstance(answer, End):
                self._count(answer.job, 0)
        super()._hear(answers)

    def _count(self, job: str, devices: int) -> None:
        since, before = self._held.get(job, (self._queue.now, 0))
        self.device_seconds += before * (self._queue.now - since)
        self._held[job] = self._queue.now, devices


def play(jobs: Sequence[Wanted], devices: int, contender: Contender, period: float = PERIOD) -> Played:
    """Play the whole trace under one policy."""
    runs = [job for job in jobs if job.can_run(devices)]
    reports = REPORTS if period <= PERIOD else REPORTS_SELDOM
    with registered(contender.policy) as name:
        # All targets are numbers of batches: no loss is forecast, so the cheapest estimator will do.
        settings = Settings(
            name, contender.arguments, estimator="log_time", period=period, devices=devices, resident=devices
        )
        simulation = Counted(
            settings,
            [_simulated(job, devices, contender.sizes, reports) for job in runs],
            Delays(report_every=period),
        )
        outcome = simulation.run()
    return Played(
        outcome.met,
        len(jobs),
        simulation.device_seconds / HOUR,
        simulation.pool.moves,
        simulation.pool.lost / HOUR,
        simulation.pool.device_lost / HOUR,
        outcome.rounds,
        outcome.deciding,
        {job.name: str(Verdict.MISSED) for job in jobs}
        | {job.name: str(job.verdict or Verdict.MISSED) for job in outcome.jobs},
    )


@contextmanager
def registered(policy: str | Callable[..., Policy]) -> Iterator[str]:
    """Register a policy of the benchmark with the scheduler while it is played, and yield its name."""
    if isinstance(policy, str):
        yield policy
        return
    name = f"benchmarks.{policy.__name__}"
    POLICIES[name] = policy
    try:
        yield name
    finally:
        del POLICIES[name]


def _simulated(
    wanted: Wanted, devices: int, sizes: Literal["chosen", "asked", "fastest"], reports: int
) -> SimulatedJob:
    elastic = sizes == "chosen"
    fixed = wanted.fastest(devices) if sizes == "fastest" else wanted.fixed(devices)
    throughputs = (
        {n: throughput for n, throughput in wanted.throughputs.items() if n <= devices}
        if elastic
        else {fixed: wanted.throughputs[fixed]}
    )
    job = Job(
        wanted.name,
        wanted.deadline,
        BatchTarget(wanted.batches),
        min_devices=min(throughputs),
        max_devices=max(throughputs),
        on_miss=OnMiss.STOP,
        can=frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE}),
        work=wanted.alone(fixed),
        sizes=tuple(throughputs) if elastic else (),
        throughputs=tuple(throughputs.values()) if elastic else (),
        resize_seconds=wanted.restart,
    )
    step = max(ceil(wanted.batches / reports), 1)
    position = [*range(step, wanted.batches, step), wanted.batches]
    return SimulatedJob(
        job,
        position,
        [1.0] * len(position),
        wanted.throughputs[fixed],
        wanted.submitted,
        throughputs=tuple(throughputs.values()) if elastic else (),
        restart=wanted.restart,
    )
