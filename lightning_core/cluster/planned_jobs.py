"""The jobs of a run on a spot market, each with a plan of its own: what nodes they should hold in each interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.control import Ask, Asker
from lightning_core.core.events import Event
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.reasons import Reason
from lightning_core.core.speedup import SpeedUp
from lightning_core.market import JobBatch, Market, SpotJob
from lightning_core.market.forecasters import PersistenceForecaster
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.online.interval_ledger import JobSpan
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.market.online.online_plan import OnlinePlan
from lightning_core.market.online.start_up_times import StartUpTimes
from lightning_core.market.optimum import optimum
from lightning_core.market.policies.on_demand import on_demand_cost
from lightning_core.scheduler.market_jobs import throughput_table

# Fraction of a job's throughput that its plan does not count on: the safety net would else be exact to the second.
THROUGHPUT_MARGIN = 0.05
# Smallest fraction of an interval that is taken to be left for training when nodes start in it.
MIN_FRACTION = 0.05


class Run(Protocol):
    """Methods of the run in progress that the plans use (:class:`~.cluster.Cluster`)."""

    def job(self, name: str) -> Job:
        """Return a job with its current terms."""

    def tell(self, event: Event) -> None:
        """Hand an event to the run's scheduler."""

    def throughputs(self, name: str) -> Mapping[int, float]:
        """Return a job's expected batches per second by number of devices; empty while unknown."""

    def save_every(self, name: str) -> float:
        """Return the seconds of training that a job may lose if its devices are preempted without notice."""

    def warm_devices(self) -> int:
        """Return the number of the pool's devices that a worker runs on and will stay on."""


@dataclass
class _PlannedJob:
    """A job and its plan."""

    plan: OnlinePlan
    told: int | None = None
    """Device count that the scheduler was told last."""
    held: NodeCounts = field(default_factory=NodeCounts)
    job: SpotJob | None = None
    """The job as the market sees it; None while its throughput is unknown."""


class _OpenJob(NamedTuple):
    """A job that has not ended, at the beginning of an interval."""

    status: JobStatus
    terms: Job
    planned: _PlannedJob
    had: NodeCounts
    """Its nodes of the last interval that are still present."""


class PlannedJobs:
    """The jobs of a run and their plans; the scheduler is told how many devices each job should have.

    Args:
        run: Run in progress.
        seconds: Seconds of an interval.
        policy_of: Returns the spot policy of a job; called once for each.
        kept_fraction: Largest fraction of an interval that is left for training when the number of nodes changes in it.
        initial_throughput: Batches per second on one device until they have been measured; None: each job begins on as
            few on-demand nodes as it can train on.
        setup: Seconds that bringing up the first node and a worker on it took, before the run began.
        spans: Spans of the jobs of a run that is resumed.

    Attributes:
        spans: Span of each job that has begun, by name.
    """

    def __init__(
        self,
        run: Run,
        seconds: float,
        policy_of: Callable[[JobStatus], SpotPolicy],
        kept_fraction: float,
        initial_throughput: float | None,
        setup: float,
        spans: Mapping[str, JobSpan],
    ) -> None:
        self._run, self._seconds, self._policy_of = run, seconds, policy_of
        self._kept_fraction, self._initial_throughput = kept_fraction, initial_throughput
        self._start_up = StartUpTimes(setup)
        self._jobs: dict[str, _PlannedJob] = {}
        self.spans = dict(spans)

    @property
    def jobs(self) -> list[SpotJob]:
        """The jobs as the market sees them, at the throughput measured last."""
        return [planned.job for planned in self._jobs.values() if planned.job is not None]

    def reference_costs(self, market: Market) -> tuple[float, float] | None:
        """Return what the jobs would have cost on on-demand nodes alone, and at the offline optimum.

        Both follow from the measured throughput; None while that of a job is unknown.
        """
        pairs = [(self.spans[name].start, planned.job) for name, planned in self._jobs.items()]
        jobs = [(start, job) for start, job in pairs if job is not None]
        if len(jobs) < len(pairs) or not jobs:
            return None
        on_demand = sum(on_demand_cost(job, market.on_demand) for _, job in jobs)
        batch = JobBatch([job for _, job in jobs], market, [start for start, _ in jobs])
        return on_demand, -float(optimum(batch).sum())

    def observe(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        """Take in the jobs as they are now, by name: start-up times are measured."""
        self._start_up.observe(now, jobs)

    def count_batches(self, jobs: Mapping[str, JobStatus]) -> int:
        """Return the batches that all jobs have trained since they were last counted."""
        known = {name: span for name, span in self.spans.items() if name in jobs}
        trained = sum(jobs[name].batches - span.batches for name, span in known.items())
        self.spans |= {name: span._replace(batches=jobs[name].batches) for name, span in known.items()}
        return trained

    def decide(
        self,
        market: Market,
        number: int,
        now: float,
        jobs: Mapping[str, JobStatus],
        present: NodeCounts,
        *,
        preempted: bool,
    ) -> NodeCounts:
        """Have each plan decide at the beginning of an interval, and return the nodes that all want together.

        Args:
            market: The market; nothing after this interval is looked at.
            number: Number of the interval.
            now: Scheduler time.
            jobs: Statuses of the jobs, by name.
            present: Nodes that are up and not draining.
            preempted: Whether nodes have just vanished, so that the work they lost is not yet known.
        """
        open_jobs, free = self._open_jobs(number, now, jobs, present)
        wanted = NodeCounts()
        for job in open_jobs:
            status, planned, had = job.status, job.planned, job.had
            lost = preempted and had != planned.held
            was = planned.held if lost else had
            planned.held = held = self._decide(job, market, number, was, wanted.spot, preempted=lost)
            if not held.all:
                self._start_up.cancel(status.name)
            elif not had.all and not self._start_up.is_measuring(status.name):
                self._start_up.request(status.name, now, _batches_done(status), node_present=free > 0)
                free = max(free - held.all, 0)
            wanted = NodeCounts(wanted.spot + held.spot, wanted.on_demand + held.on_demand)
            self._tell_size(job.terms, planned)
        return wanted

    def replace_preempted(
        self, market: Market, number: int, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts
    ) -> int:
        """Return the on-demand nodes to add within an interval, because a job that lost nodes cannot wait for the next.

        Args:
            market: The market; nothing after this interval is looked at.
            number: Number of the interval.
            now: Scheduler time.
            jobs: Statuses of the jobs, by name.
            present: Nodes that are left.
        """
        elapsed = min((now - number * self._seconds) / self._seconds, 1.0)
        rest, more = present, 0
        for status in _by_deadline(jobs):
            name = status.name
            if status.state is State.ENDED or name not in self._jobs:
                continue
            planned, span, terms = self._jobs[name], self.spans[name], self._run.job(name)
            left = planned.held.minimum(rest)  # the nodes that are left belong to the most urgent job
            rest = NodeCounts(rest.spot - left.spot, rest.on_demand - left.on_demand)
            job = self._spot_job(name, terms, span)
            if job is None or left == planned.held:
                continue
            interval, done = number - span.start, float(_batches_done(status))
            must = planned.plan.must_have(_with_margin(job), market, span.start, interval, done, left, elapsed)
            if must.on_demand > planned.held.on_demand:
                more += must.on_demand - planned.held.on_demand
                planned.held = must
                self._tell_size(terms, planned)
        return more

    def _open_jobs(
        self, number: int, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts
    ) -> tuple[list[_OpenJob], int]:
        """Return the jobs that have not ended, the most urgent first, and the number of nodes that none of them had.

        A job did not have the nodes that it held by plan but that never came.
        """
        left, found = present, list[_OpenJob]()
        for status in _by_deadline(jobs):
            terms = self._run.job(status.name)
            if (planned := self._planned(status, terms, number, now)) is None or status.state is State.ENDED:
                continue
            had = planned.held.minimum(left)
            left = NodeCounts(left.spot - had.spot, left.on_demand - had.on_demand)
            found.append(_OpenJob(status, terms, planned, had))
        return found, left.all

    def _planned(self, status: JobStatus, terms: Job, number: int, now: float) -> _PlannedJob | None:
        """Return a job with its plan; None while it may not train."""
        begins = status.submitted_at + terms.begin
        name, on_hold = status.name, terms.on_miss is OnMiss.HOLD and now > status.deadline
        if name not in self._jobs and (now < begins or (status.state is State.ENDED and name not in self.spans)):
            return None
        span = self.spans.get(name, JobSpan(number, 1))
        # The deadline may have been changed since.
        deadline = max(int(status.deadline // self._seconds) - span.start, 1)
        span = self.spans[name] = span._replace(deadline=deadline)
        if name not in self._jobs:
            plan = OnlinePlan(self._policy_of(status), PersistenceForecaster())
            self._jobs[name] = _PlannedJob(plan, job=self._spot_job(name, terms, span))
        return None if on_hold else self._jobs[name]

    def _tell_size(self, terms: Job, planned: _PlannedJob) -> None:
        """Tell the scheduler that a job should have as many devices as its plan holds nodes."""
        if planned.held.all != planned.told:
            planned.told = planned.held.all
            nodes = float(planned.held.spot), float(planned.held.on_demand)
            reason = Reason("nodes_held", nodes)
            self._run.tell(Ask(terms.name, Asker.MARKET, devices=planned.told, reason=reason))

    def _decide(
        self, job: _OpenJob, market: Market, number: int, was: NodeCounts, reserved: int, *, preempted: bool
    ) -> NodeCounts:
        status, terms, planned, _ = job
        span = self.spans[status.name]
        planned.job = spot_job = self._spot_job(status.name, terms, span)
        if spot_job is None:  # its throughput is unknown: it must train somewhere for that to be measured
            return NodeCounts(0, min_size(terms))
        interval, done = number - span.start, float(_batches_done(status))
        return planned.plan.decide(
            _with_margin(spot_job), market, span.start, interval, done, was, reserved, preempted=preempted
        )

    def _spot_job(self, name: str, terms: Job, span: JobSpan) -> SpotJob | None:
        """Return a job as the market sees it; None while its throughput is unknown."""
        throughputs = dict(self._run.throughputs(name))
        if not throughputs and self._initial_throughput is not None:
            throughputs = {size: size * self._initial_throughput for size in terms.sizes or (terms.max_devices,)}
        if not throughputs or terms.target.work is None:
            return None
        speedup = SpeedUp(tuple(throughputs), tuple(throughputs.values()))
        min_nodes, table = throughput_table(speedup, self._seconds)
        lag = self._start_up.longest
        growth_fraction = min(max(1.0 - lag / self._seconds, MIN_FRACTION), self._kept_fraction)
        return SpotJob(
            float(terms.target.work), span.deadline, min_nodes, len(table) - 1, table, growth_fraction,
            self._kept_fraction, value=0.0, preemption_cost=(lag + self._run.save_every(name)) / self._seconds,
        )  # fmt: skip


def min_size(job: Job) -> int:
    """Return the fewest devices that a job can train on."""
    return min(job.sizes or (job.max_devices,))


def _by_deadline(jobs: Mapping[str, JobStatus]) -> list[JobStatus]:
    """Return the jobs, the most urgent first."""
    return sorted(jobs.values(), key=lambda status: (status.deadline, status.name))


def _batches_done(status: JobStatus) -> int:
    """Return the batches of a job that need not be trained again."""
    return min(status.batches, status.checkpoint_batches or 0) if status.state is State.RECOVERING else status.batches


def _with_margin(job: SpotJob) -> SpotJob:
    """Return a job as its plan sees it, a little slower than measured."""
    return replace(job, throughput=tuple((1 - THROUGHPUT_MARGIN) * throughput for throughput in job.throughput))
