"""Rents and returns the nodes of a run on a spot market, interval by interval.

At the beginning of an interval each job's spot policy decides, from what has really been trained, how many spot and
on-demand nodes the job should hold, and a provisioner is asked for all of them together. The job is told to train on
that many devices, and trains on fewer until they are there. A node that is preempted within an interval is handled as
any lost node; whether an on-demand node must replace it at once is up to the safety net, without a forecast.

Each of several jobs has a plan of its own. The pool is as large as all plans together ask for; the run's policy says
which job trains where, and which one goes without if not all nodes have come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from ray.exceptions import RayError

from lightning_core.cloud.provisioner import Provisioner
from lightning_core.cloud.quotes import MarketFeed, market_feed
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.commands import Asker, SetDevices
from lightning_core.core.events import Event
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.speedup import SpeedUp
from lightning_core.market import JobBatch, Market, SpotJob
from lightning_core.market.forecasters import PersistenceForecaster
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.online.current_interval import CurrentInterval
from lightning_core.market.online.interval_ledger import IntervalRecord, JobSpan, SpotRunState
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.market.online.online_plan import OnlinePlan
from lightning_core.market.online.start_up_times import StartUpTimes
from lightning_core.market.optimum import optimum
from lightning_core.market.policies.on_demand import on_demand_cost
from lightning_core.run.follow import Watcher
from lightning_core.scheduler.market_jobs import throughput_table

log = logging.getLogger(__name__)

# Fraction of a job's throughput that its plan does not count on: the safety net would else be exact to the second.
THROUGHPUT_MARGIN = 0.05
# Smallest fraction of an interval that is taken to be left for training when nodes start in it.
MIN_FRACTION = 0.05
EMPTY_STATE = SpotRunState()


class Run(Protocol):
    """What the watcher needs of the run in progress (:class:`~.cluster.Cluster`)."""

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


class SpotWatcher:
    """Keeps the nodes of a run as its jobs' spot policies want them.

    The pool should have twice as many devices as the jobs can use, so that new nodes are warm before old ones go.

    Args:
        run: Run in progress.
        provisioner: Source of nodes.
        present: Returns the nodes that are up and not draining.
        market: Market of the run, whose first interval is the run's first. Of a recording only the past and the present
            interval are looked at; :class:`~lightning_core.cloud.quotes.Quotes` are asked as the run goes on.
        policy_of: Returns the spot policy of a job; called once for each.
        kept_fraction: Largest fraction of an interval that is left for training when the number of nodes changes in it.
            Where a job had no node, the measured time from the request to its first batch is subtracted instead.
        initial_throughput: Batches per second on one device until they have been measured; None: each job begins on as
            few on-demand nodes as it can train on.
        setup: Seconds that bringing up the first node and a worker on it took, before the run began.
        view: Another watcher to show the jobs to.
        save: Called with the state whenever an interval has ended.
        resume_from: State of the run to resume; its scheduler time continues.

    Raises:
        ValueError: If ``kept_fraction`` is out of range.
    """

    def __init__(
        self,
        run: Run,
        provisioner: Provisioner,
        present: Callable[[], NodeCounts],
        market: Market | MarketFeed,
        policy_of: Callable[[JobStatus], SpotPolicy],
        kept_fraction: float = 0.9,
        initial_throughput: float | None = None,
        setup: float = 0.0,
        view: Watcher | None = None,
        save: Callable[[SpotRunState], None] = lambda state: None,
        resume_from: SpotRunState = EMPTY_STATE,
    ) -> None:
        if not 0 < kept_fraction <= 1:
            raise ValueError(f"kept_fraction must be above 0 and at most 1, got {kept_fraction}")
        self._run, self._provisioner, self._present = run, provisioner, present
        self._market_feed = market_feed(market)
        self._market = self._market_feed(0)
        self._kept_fraction, self._initial_throughput, self._view = kept_fraction, initial_throughput, view
        self._start_up = StartUpTimes(setup)
        self._policy_of, self._save, self._spans = policy_of, save, dict(resume_from.spans)
        self._jobs: dict[str, _PlannedJob] = {}
        self._shown: dict[str, JobStatus] = {}
        self._interval: CurrentInterval | None = None
        self._closed = False
        self.rows: list[IntervalRecord] = list(resume_from.rows)
        """Records of the intervals that have ended."""

    @property
    def seconds(self) -> float:
        """Seconds of an interval."""
        return self._market.seconds

    @property
    def cost(self) -> float:
        """Cost of the intervals that have ended."""
        return sum(row.cost for row in self.rows)

    @property
    def state(self) -> SpotRunState:
        """What resuming the run needs."""
        return SpotRunState(tuple(self.rows), dict(self._spans))

    @property
    def jobs(self) -> list[SpotJob]:
        """The jobs as the market sees them, at the throughput measured last."""
        return [planned.job for planned in self._jobs.values() if planned.job is not None]

    def reference_costs(self) -> tuple[float, float] | None:
        """Return what the jobs would have cost on on-demand nodes alone, and at the offline optimum.

        Both follow from the measured throughput; None while that of a job is unknown.
        """
        pairs = [(self._spans[name].start, planned.job) for name, planned in self._jobs.items()]
        jobs = [(start, job) for start, job in pairs if job is not None]
        if len(jobs) < len(pairs) or not jobs:
            return None
        on_demand = sum(on_demand_cost(job, self._market.on_demand) for _, job in jobs)
        batch = JobBatch([job for _, job in jobs], self._market, [start for start, _ in jobs])
        return on_demand, -float(optimum(batch).sum())

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """Take in the jobs as of scheduler time ``now``."""
        self._shown = {job.name: job for job in jobs}
        if self._shown and not self._closed:
            try:
                self._look(now, self._shown)
            except (OSError, RuntimeError, RayError) as error:  # the jobs train on the nodes that there are
                log.warning("the nodes were left as they are: %s", error)
        if self._view is not None:
            self._view.update(now, jobs)

    def close(self) -> None:
        """Return all nodes: the run is over, or interrupted."""
        with ExitStack() as stack:
            if self._view is not None:
                stack.callback(self._view.close)
            stack.callback(self._provisioner.scale_to, NodeCounts())
            self._end_interval(self._shown)
            self._closed = True

    def _look(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        present, number = self._present(), int(now // self._market.seconds)
        interval = self._interval
        if interval is not None:
            interval.count(now, jobs.values(), present)
        self._start_up.observe(now, jobs)
        if interval is None or number > interval.number:
            had = NodeCounts() if interval is None else interval.present.minimum(interval.requested)
            self._end_interval(jobs, number)
            self._begin_interval(number, now, jobs, present, preempted=had != had.minimum(present))
        else:
            request = interval.settle(now, present, self._run.warm_devices(), self._market.seconds)
            if request is not None:
                self._provisioner.scale_to(request)
            self._replace_preempted(interval, now, jobs, present)
        if all(job.state is State.ENDED for job in jobs.values()):
            self._end_interval(jobs)
            self._closed = True
            self._provisioner.scale_to(NodeCounts())

    # ------------------------------------------------------------------------------------------------ an interval

    def _begin_interval(
        self, number: int, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts, *, preempted: bool
    ) -> None:
        """Have the plans decide; ``preempted``: nodes have just vanished, and the work they lost is not yet known."""
        self._market = self._market_feed(number)
        open_jobs, free = self._open_jobs(number, now, jobs, present)
        reserved, wanted = 0, NodeCounts()
        for status, terms, planned, had in open_jobs:
            lost = preempted and had != planned.held
            was = planned.held if lost else had
            planned.held = held = self._decide(status, terms, planned, was, number, reserved, preempted=lost)
            if not held.all:
                self._start_up.cancel(status.name)
            elif not had.all and not self._start_up.is_measuring(status.name):
                self._start_up.request(status.name, now, _batches_done(status), node_present=free > 0)
                free = max(free - held.all, 0)
            reserved += held.spot
            wanted = NodeCounts(wanted.spot + held.spot, wanted.on_demand + held.on_demand)
            self._tell_size(terms, planned)
        price, available = float(self._market.price[number]), int(self._market.available[number])
        interval = CurrentInterval(number, now, price, available, wanted, present, dict(jobs))
        self._provisioner.scale_to(interval.begin())
        self._interval = interval

    def _open_jobs(
        self, number: int, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts
    ) -> tuple[list[_OpenJob], int]:
        """Return the jobs that have not ended, the most urgent first, and the number of nodes that none of them had.

        A job did not have the nodes that it held by plan but that never came.
        """
        left, found = present, list[_OpenJob]()
        for status in sorted(jobs.values(), key=lambda status: (status.deadline, status.name)):
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
        if name not in self._jobs and (now < begins or (status.state is State.ENDED and name not in self._spans)):
            return None
        span = self._spans.get(name, JobSpan(number, 1))
        # The deadline may have been changed since.
        deadline = max(int(status.deadline // self._market.seconds) - span.start, 1)
        span = self._spans[name] = span._replace(deadline=deadline)
        if name not in self._jobs:
            plan = OnlinePlan(self._policy_of(status), PersistenceForecaster())
            self._jobs[name] = _PlannedJob(plan, job=self._spot_job(name, terms, span))
        return None if on_hold else self._jobs[name]

    def _tell_size(self, terms: Job, planned: _PlannedJob) -> None:
        """Tell the scheduler that a job should have as many devices as its plan holds nodes."""
        if planned.held.all != planned.told:
            planned.told = planned.held.all
            self._run.tell(SetDevices(terms.name, planned.told, Asker.MARKET))

    def _decide(
        self,
        status: JobStatus,
        terms: Job,
        planned: _PlannedJob,
        was: NodeCounts,
        number: int,
        reserved: int,
        *,
        preempted: bool,
    ) -> NodeCounts:
        span = self._spans[status.name]
        planned.job = job = self._spot_job(status.name, terms, span)
        if job is None:  # its throughput is unknown: it must train somewhere for that to be measured
            return NodeCounts(0, min_size(terms))
        interval, done = number - span.start, float(_batches_done(status))
        return planned.plan.decide(
            _with_margin(job), self._market, span.start, interval, done, was, reserved, preempted=preempted
        )

    def _spot_job(self, name: str, terms: Job, span: JobSpan) -> SpotJob | None:
        """Return a job as the market sees it; None while its throughput is unknown."""
        throughputs = dict(self._run.throughputs(name))
        if not throughputs and self._initial_throughput is not None:
            throughputs = {size: size * self._initial_throughput for size in terms.sizes or (terms.max_devices,)}
        if not throughputs or terms.target.work is None:
            return None
        speedup = SpeedUp(tuple(throughputs), tuple(throughputs.values()))
        min_nodes, table = throughput_table(speedup, self._market.seconds)
        seconds, lag = self._market.seconds, self._start_up.longest
        growth_fraction = min(max(1.0 - lag / seconds, MIN_FRACTION), self._kept_fraction)
        return SpotJob(
            float(terms.target.work), span.deadline, min_nodes, len(table) - 1, table, growth_fraction,
            self._kept_fraction, value=0.0, preemption_cost=(lag + self._run.save_every(name)) / seconds,
        )  # fmt: skip

    def _replace_preempted(
        self, interval: CurrentInterval, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts
    ) -> None:
        """Ask for on-demand nodes at once if nodes were preempted and a job cannot wait for the next interval."""
        had = interval.present.minimum(interval.requested)
        interval.present = present
        if present.spot >= had.spot and present.on_demand >= had.on_demand:
            return
        log.warning("nodes were lost: %d spot and %d on-demand are left of %d and %d", *present, *had)
        elapsed = min((now - interval.number * self._market.seconds) / self._market.seconds, 1.0)
        rest, more = present, 0
        open_ = [name for name, status in jobs.items() if status.state is not State.ENDED and name in self._jobs]
        for name in sorted(open_, key=lambda name: (jobs[name].deadline, name)):
            planned, span, terms = self._jobs[name], self._spans[name], self._run.job(name)
            left = planned.held.minimum(rest)  # the nodes that are left belong to the most urgent job
            rest = NodeCounts(rest.spot - left.spot, rest.on_demand - left.on_demand)
            job = self._spot_job(name, terms, span)
            if job is None or left == planned.held:
                continue
            number, done = interval.number - span.start, float(_batches_done(jobs[name]))
            must = planned.plan.must_have(_with_margin(job), self._market, span.start, number, done, left, elapsed)
            if must.on_demand > planned.held.on_demand:
                more += must.on_demand - planned.held.on_demand
                planned.held = must
                self._tell_size(terms, planned)
        if more:
            log.warning("asking for %d more on-demand nodes at once: a job would otherwise be late", more)
            self._provisioner.scale_to(interval.replace_preempted(present.spot, more))

    def _end_interval(self, jobs: Mapping[str, JobStatus], number: int = 0) -> None:
        """Record the interval, and the later ones before ``number``, which passed unobserved."""
        if (interval := self._interval) is None:
            return
        self._interval = None
        on_demand = self._market.on_demand
        batches = sum(jobs[name].batches - span.batches for name, span in self._spans.items() if name in jobs)
        self.rows.append(interval.record(jobs, batches, on_demand))
        for name, span in self._spans.items():
            self._spans[name] = span._replace(batches=jobs[name].batches if name in jobs else span.batches)
        for passed in range(interval.number + 1, number):
            price, available = float(self._market.price[passed]), int(self._market.available[passed])
            self.rows.append(interval.unobserved(passed, price, available, on_demand))
        try:
            self._save(self.state)
        except OSError as error:  # the next one contains it
            log.warning("the ledger could not be written: %s", error)


def min_size(job: Job) -> int:
    """Return the fewest devices that a job can train on."""
    return min(job.sizes or (job.max_devices,))


def _batches_done(status: JobStatus) -> int:
    """Return the batches of a job that need not be trained again."""
    return min(status.batches, status.saved or 0) if status.state is State.RECOVERING else status.batches


def _with_margin(job: SpotJob) -> SpotJob:
    """Return a job as its plan sees it, a little slower than measured."""
    return replace(job, throughput=tuple((1 - THROUGHPUT_MARGIN) * throughput for throughput in job.throughput))
