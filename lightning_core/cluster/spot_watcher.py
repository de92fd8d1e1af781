"""A run on nodes that come and go: interval by interval the market says how large the pool is, the scheduler who gets it.

At the beginning of each interval a job's spot policy decides, by what has really been trained, how many spot and on-demand
nodes there should be, and a provisioner is asked for them. The job is told to train on as many devices, and trains on
fewer until they are there. Nodes that go in the middle of an interval are mourned as any node is; whether on-demand ones
must come in their place at once the safety net says, without a forecast.

With several jobs each has a plan of its own, the pool is as large as all of them together want it, and the run's
policy says who trains where, and who goes without where not all have come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from ray.exceptions import RayError

from lightning_core.cloud.provisioner import Provisioner
from lightning_core.cloud.quotes import AHEAD
from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.commands import Asker, SetDevices
from lightning_core.core.events import Event
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget
from lightning_core.market import JobBatch, Market, SpotJob
from lightning_core.market.forecasters import PersistenceForecaster
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.market.online.online_plan import OnlinePlan
from lightning_core.market.optimum import optimum
from lightning_core.market.policies.on_demand import on_demand_cost
from lightning_core.run.follow import Watcher
from lightning_core.scheduler.market_jobs import throughput_table

log = logging.getLogger(__name__)

# Such a part of an interval what is given back may stay beside what comes in its place.
HANDOVER_FRACTION = 0.5
# Part of its speed that a plan does not count with.
THROUGHPUT_MARGIN = 0.05
# What is left at least of an interval in which nodes come.
MIN_FRACTION = 0.05


MarketFeed = Callable[[int], Market]
"""Gives the market as it is known in an interval."""


def market_feed(market: Market | MarketFeed) -> MarketFeed:
    """A recording is known from the first, and behind its end all stays as it was; who is asked is."""
    if not isinstance(market, Market):
        return market
    price = np.pad(market.price, (0, AHEAD), mode="edge")
    longer = replace(market, price=price, available=np.pad(market.available, (0, AHEAD), mode="edge"))
    return lambda interval: longer


class Run(Protocol):
    """What is asked of the run that is going on (:class:`~.cluster.Cluster`)."""

    def job(self, name: str) -> Job:
        """A job with its terms as they are now."""

    def tell(self, event: Event) -> None:
        """Hands an event to its scheduler."""

    def rates(self, name: str) -> Mapping[int, float]:
        """Batches a second that a job is believed to do on each number of devices it can use; none while unknown."""

    def save_every(self, name: str) -> float:
        """Seconds of training of a job that may have to be done again if its devices go without notice."""

    def warm(self) -> int:
        """Devices of its pool that there is a worker on, and will be."""


class IntervalRecord(NamedTuple):
    """What became of an interval.

    Args:
        number: of the interval.
        price: of a spot node.
        available: spot nodes that could be had.
        spot: spot nodes held, and paid for: the most there were at once, of those that were wanted.
        on_demand: on-demand nodes held, and paid for.
        over: nodes that were there beside those, in the mean: on their way out while others come in their place.
        used: devices that trained, in the mean.
        cost: of the interval.
        batches: done in it.
        moves: how often jobs came back elsewhere, or on another number of devices.
        losses: how often one came back because its worker was lost or had failed.
        again: batches that have to be done again.
    """

    number: int
    price: float
    available: int
    spot: int
    on_demand: int
    over: float
    used: float
    cost: float
    batches: int
    moves: int
    losses: int
    again: int


class JobSpan(NamedTuple):
    """The intervals of a job."""

    start: int
    """In which it began."""
    deadline: int
    """How many there are from there."""
    batches: int = 0
    """That stand in the ledger."""


@dataclass(frozen=True, slots=True)
class SpotRunState:
    """What must be known of a run to go on with it.

    Args:
        rows: of the intervals that are over.
        spans: of the jobs that have begun, by name.
    """

    rows: tuple[IntervalRecord, ...] = ()
    spans: Mapping[str, JobSpan] = field(default_factory=dict)


class _NodeRequest(NamedTuple):
    """For nodes, by a job that had none."""

    at: float
    batches: int
    """Done by then."""
    on_node: bool
    """There was a node for it already."""


@dataclass
class _PlannedJob:
    """A job and its plan."""

    plan: OnlinePlan
    asked: _NodeRequest | None = None
    """Since when it waits for its first batch on nodes that it had none of."""
    told: int | None = None
    """Devices that the scheduler was told it should have."""
    held: NodeCounts = field(default_factory=NodeCounts)
    job: SpotJob | None = None
    """As the market sees it; None while its speed is not known."""


@dataclass
class _CurrentInterval:
    """The interval that goes on."""

    number: int
    began: float
    price: float
    available: int
    wanted: NodeCounts
    """By the plans."""
    wish: NodeCounts
    """Those, and what stays while they do not come."""
    there: NodeCounts
    looked: float
    paid: NodeCounts = field(default_factory=NodeCounts)
    waits_for: int = 0
    """Devices that there must be before what is no longer wanted is given back; 0 once it was."""
    device_seconds: float = 0.0
    over_seconds: float = 0.0
    before: dict[str, JobStatus] = field(default_factory=dict)


class SpotWatcher:
    """Looks after the nodes of a run; shown the jobs again and again, as any watcher.

    The pool should have twice as many devices as the jobs can use: so those that come are warm before others go.

    Args:
        run: that is going on.
        provisioner: of nodes.
        there: nodes that are up and stay.
        market: what can be had, interval by interval; its first interval is the run's first. What a recording says of an interval is
            looked at when that has come, and not before; :class:`~.quotes.Quotes` are asked then.
        policy_of: the spot policy of a job, asked once.
        kept: part of an interval that is left if the number of nodes changes in it, at the most: what it takes from asking
            for a node, where a job has none, to its first batch there is measured, and costs that much of an interval.
        first: batches a second on one device, until they have been measured; None: the job begins on as few on-demand
            nodes as it can.
        setup: seconds that it took to bring up the first node and a worker on it, before the run began.
        beside: another watcher, shown the same.
        keep: is given the books whenever an interval is over.
        before: the books of a run to go on with, whose time goes on.
    """

    def __init__(
        self,
        run: Run,
        provisioner: Provisioner,
        there: Callable[[], NodeCounts],
        market: Market | MarketFeed,
        policy_of: Callable[[JobStatus], SpotPolicy],
        kept: float = 0.9,
        first: float | None = None,
        setup: float = 0.0,
        beside: Watcher | None = None,
        keep: Callable[[SpotRunState], None] = lambda state: None,
        before: SpotRunState = SpotRunState(),
    ) -> None:
        if not 0 < kept <= 1:
            raise ValueError(f"kept must be above 0 and at most 1, got {kept}")
        self._run, self._provisioner, self._there = run, provisioner, there
        self._market_feed = market_feed(market)
        self._market = self._market_feed(0)
        self._kept, self._first, self._beside = kept, first, beside
        # Seconds from asking for a node to a batch: at first, and wherever a job had none since.
        self._setup, self._begun, self._lags = setup, 0.0, list[float]()
        self._policy_of, self._keep, self._spans = policy_of, keep, dict(before.spans)
        self._jobs: dict[str, _PlannedJob] = {}
        self._shown: dict[str, JobStatus] = {}
        self._now: _CurrentInterval | None = None
        self._over = False
        self.rows: list[IntervalRecord] = list(before.rows)
        """Of the intervals that are over."""

    @property
    def seconds(self) -> float:
        """Of an interval."""
        return self._market.seconds

    @property
    def cost(self) -> float:
        """Of the intervals that are over."""
        return sum(row.cost for row in self.rows)

    @property
    def state(self) -> SpotRunState:
        """What must be known to go on with it."""
        return SpotRunState(tuple(self.rows), dict(self._spans))

    @property
    def jobs(self) -> list[SpotJob]:
        """As the market sees them, by the speed that was measured last."""
        return [planned.job for planned in self._jobs.values() if planned.job is not None]

    def reference_costs(self) -> tuple[float, float] | None:
        """What the jobs would have cost on on-demand nodes alone, and at the least if one had known the market; by
        the speed that was measured. None while it is not known.
        """
        several = [(self._spans[name].start, planned.job) for name, planned in self._jobs.items()]
        jobs = [(start, job) for start, job in several if job is not None]
        if len(jobs) < len(several) or not jobs:
            return None
        alone = sum(on_demand_cost(job, self._market.on_demand) for _, job in jobs)
        batch = JobBatch([job for _, job in jobs], self._market, [start for start, _ in jobs])
        return alone, -float(optimum(batch).sum())

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""
        self._shown = {job.name: job for job in jobs}
        if self._shown and not self._over:
            try:
                self._look(now, self._shown)
            except (OSError, RuntimeError, RayError) as error:  # it trains on what there is
                log.warning("the nodes could not be looked after: %s", error)
        if self._beside is not None:
            self._beside.update(now, jobs)

    def close(self) -> None:
        """The run is over, or left for a while."""
        with ExitStack() as over:
            if self._beside is not None:
                over.callback(self._beside.close)
            over.callback(self._provisioner.want, NodeCounts())
            self._end_interval(self._shown)
            self._over = True

    def _look(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        there, number = self._there(), int(now // self._market.seconds)
        self._count(now, jobs, there)
        self._time(now, jobs)
        if self._now is None or number > self._now.number:
            had = NodeCounts() if self._now is None else _elementwise_min(self._now.there, self._now.wish)
            self._end_interval(jobs, number)
            self._begin_interval(number, now, jobs, there, gone=had != _elementwise_min(had, there))
        else:
            self._settle(now, there)
            self._look_for_losses(now, jobs, there)
        if all(job.state is State.ENDED for job in jobs.values()):
            self._end_interval(jobs)
            self._over = True
            self._provisioner.want(NodeCounts())

    # ------------------------------------------------------------------------------------------------ an interval

    def _begin_interval(
        self, number: int, now: float, jobs: Mapping[str, JobStatus], there: NodeCounts, *, gone: bool
    ) -> None:
        """Has the plans decide; ``gone``: nodes have just vanished, and what that costs is to come."""
        self._market = self._market_feed(number)
        price, available = float(self._market.price[number]), int(self._market.available[number])
        taken, wanted, left = 0, NodeCounts(), there
        open_ = list[tuple[JobStatus, Job, _PlannedJob, NodeCounts]]()
        for status in sorted(jobs.values(), key=lambda status: (status.deadline, status.name)):
            terms = self._run.job(status.name)
            if (planned := self._planned(status, terms, number, now)) is None or status.state is State.ENDED:
                continue
            # What it was given for and did not come, it did not have.
            had = _elementwise_min(planned.held, left)
            left = NodeCounts(left.spot - had.spot, left.on_demand - had.on_demand)
            open_.append((status, terms, planned, had))
        free = left.all
        for status, terms, planned, had in open_:
            lost = gone and had != planned.held
            was = planned.held if lost else had
            planned.held = held = self._decide(status, terms, planned, was, number, taken, gone=lost)
            if not held.all:
                planned.asked = None
            elif not had.all and planned.asked is None:
                planned.asked = _NodeRequest(now, _batches_done(status), on_node=free > 0)
                free = max(free - held.all, 0)
            taken += held.spot
            wanted = NodeCounts(wanted.spot + held.spot, wanted.on_demand + held.on_demand)
            self._tell_size(terms, planned)
        # What is given back goes once what comes instead is there: until then it trains.
        both = NodeCounts(max(wanted.spot, there.spot), max(wanted.on_demand, there.on_demand))
        comes = wanted.spot > there.spot or wanted.on_demand > there.on_demand
        self._provisioner.want(both if comes else wanted)
        waits_for = both.all if comes and both != wanted else 0
        self._now = _CurrentInterval(
            number,
            now,
            price,
            available,
            wanted,
            wanted,
            there,
            now,
            _elementwise_min(wanted, there),
            waits_for,
            before=dict(jobs),
        )

    def _settle(self, now: float, there: NodeCounts) -> None:
        """Gives back what is no longer wanted, as what comes instead can be trained on."""
        interval = self._now
        assert interval is not None  # it has begun
        if not interval.waits_for:
            return
        wanted, before = interval.wanted, interval.wish
        if self._run.warm() >= interval.waits_for:
            interval.waits_for, interval.wish = 0, wanted
            self._provisioner.want(wanted)
        elif now - interval.began > HANDOVER_FRACTION * self._market.seconds:
            # For each that has not come one of the others stays, and is paid for.
            spot, on_demand = wanted.spot - there.spot, wanted.on_demand - there.on_demand
            stay = NodeCounts(min(max(-spot, 0), max(on_demand, 0)), min(max(-on_demand, 0), max(spot, 0)))
            interval.wish = NodeCounts(wanted.spot + stay.spot, wanted.on_demand + stay.on_demand)
            interval.waits_for = interval.wish.all
            if interval.wish != before:
                self._provisioner.want(interval.wish)

    def _planned(self, status: JobStatus, terms: Job, number: int, now: float) -> _PlannedJob | None:
        """The plan of a job; None while it may not train."""
        begins = status.submitted_at + terms.begin
        name, held = status.name, terms.on_miss is OnMiss.HOLD and now > status.deadline
        if name not in self._jobs and (now < begins or (status.state is State.ENDED and name not in self._spans)):
            return None
        span = self._spans.get(name, JobSpan(number, 1))
        # A person may have given it another deadline.
        deadline = max(int(status.deadline // self._market.seconds) - span.start, 1)
        span = self._spans[name] = span._replace(deadline=deadline)
        if name not in self._jobs:
            plan = OnlinePlan(self._policy_of(status), PersistenceForecaster())
            self._jobs[name] = _PlannedJob(plan, job=self._spot_job(name, terms, span))
        return None if held else self._jobs[name]

    def _tell_size(self, terms: Job, planned: _PlannedJob) -> None:
        """It has as many devices as its plan holds nodes, and those are where the policy puts it."""
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
        taken: int,
        *,
        gone: bool,
    ) -> NodeCounts:
        span = self._spans[status.name]
        planned.job = job = self._spot_job(status.name, terms, span)
        if job is None:  # nothing is known of its speed: it must train somewhere to be known
            return NodeCounts(0, min_size(terms))
        interval, done = number - span.start, float(_batches_done(status))
        return planned.plan.decide(_with_margin(job), self._market, span.start, interval, done, was, taken, gone=gone)

    def _spot_job(self, name: str, terms: Job, span: JobSpan) -> SpotJob | None:
        """What the market sees of a job; None while its speed is not known."""
        rates = dict(self._run.rates(name))
        if not rates and self._first is not None:
            rates = {size: size * self._first for size in terms.sizes or (terms.max_devices,)}
        if not rates or not isinstance(terms.target, BatchTarget):
            return None
        min_nodes, table = throughput_table(SpeedUp(tuple(rates), tuple(rates.values())), self._market.seconds)
        work, max_nodes = float(terms.target.batches), len(table) - 1
        seconds, lag = self._market.seconds, self._lag()
        growth_fraction = min(max(1.0 - lag / seconds, MIN_FRACTION), self._kept)
        preemption_cost = (lag + self._run.save_every(name)) / seconds
        return SpotJob(
            work,
            span.deadline,
            min_nodes,
            max_nodes,
            table,
            growth_fraction,
            self._kept,
            value=0.0,
            preemption_cost=preemption_cost,
        )

    def _lag(self) -> float:
        """Seconds from asking for nodes to a batch."""
        return max(self._lags, default=self._setup + self._begun)

    def _look_for_losses(self, now: float, jobs: Mapping[str, JobStatus], there: NodeCounts) -> None:
        """Where nodes have gone in the middle of an interval, on-demand ones come if there is no time to wait."""
        interval = self._now
        assert interval is not None  # it has begun
        had = _elementwise_min(interval.there, interval.wish)
        interval.there = there
        if there.spot >= had.spot and there.on_demand >= had.on_demand:
            return
        log.warning("nodes were lost: %d spot and %d on-demand are left of %d and %d", *there, *had)
        gone = min((now - interval.number * self._market.seconds) / self._market.seconds, 1.0)
        rest, more = there, 0
        open_ = [name for name, status in jobs.items() if status.state is not State.ENDED and name in self._jobs]
        for name in sorted(open_, key=lambda name: (jobs[name].deadline, name)):
            planned, span, terms = self._jobs[name], self._spans[name], self._run.job(name)
            # What is left is for the most urgent.
            left = _elementwise_min(planned.held, rest)
            rest = NodeCounts(rest.spot - left.spot, rest.on_demand - left.on_demand)
            job = self._spot_job(name, terms, span)
            if job is None or left == planned.held:
                continue
            number, done = interval.number - span.start, float(_batches_done(jobs[name]))
            must = planned.plan.must_have(_with_margin(job), self._market, span.start, number, done, left, gone)
            if must.on_demand > planned.held.on_demand:
                more += must.on_demand - planned.held.on_demand
                planned.held = must
                self._tell_size(terms, planned)
        if more:
            log.warning("%d more on-demand nodes come at once: else it would be too late", more)
            interval.wanted = interval.wish = NodeCounts(there.spot, interval.wish.on_demand + more)
            interval.waits_for = 0
            self._provisioner.want(interval.wish)

    def _time(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        """How long those that had no node have waited for their first batch."""
        for name, planned in self._jobs.items():
            if (asked := planned.asked) is None or name not in jobs:
                continue
            if jobs[name].batches < asked.batches:  # now it is known how many have to be done again
                planned.asked = asked._replace(batches=jobs[name].batches)
            elif jobs[name].batches > asked.batches:
                lag = now - asked.at
                if asked.on_node:  # what it takes to bring one up is not in it
                    self._begun = max(self._begun, lag)
                else:
                    self._lags.append(lag)
                planned.asked = None

    def _count(self, now: float, jobs: Mapping[str, JobStatus], there: NodeCounts) -> None:
        """What is there, by the second: nodes to be paid for, nodes beside them, devices that train."""
        if (interval := self._now) is None:
            return
        paid = _elementwise_min(there, interval.wish)
        interval.paid = NodeCounts(max(interval.paid.spot, paid.spot), max(interval.paid.on_demand, paid.on_demand))
        used = sum(len(job.devices) for job in jobs.values() if job.share > 0 and job.state is State.RUNNING)
        interval.device_seconds += used * (now - interval.looked)
        interval.over_seconds += max(there.all - interval.paid.all, 0) * (now - interval.looked)
        interval.looked = now

    def _end_interval(self, jobs: Mapping[str, JobStatus], number: int = 0) -> None:
        """Writes the interval down, and those after it up to a number: nobody has looked while they passed."""
        if (interval := self._now) is None:
            return
        self._now = None
        pairs = [(interval.before[name], job) for name, job in jobs.items() if name in interval.before]
        seconds, on_demand = max(interval.looked - interval.began, 1e-9), self._market.on_demand
        self.rows.append(IntervalRecord(
            interval.number, interval.price, interval.available, interval.paid.spot, interval.paid.on_demand,
            interval.over_seconds / seconds, interval.device_seconds / seconds,
            interval.paid.spot * interval.price + interval.paid.on_demand * on_demand,
            sum(jobs[name].batches - span.batches for name, span in self._spans.items() if name in jobs),
            sum(after.incarnation - before.incarnation for before, after in pairs),
            sum(after.restarts - before.restarts for before, after in pairs),
            sum(after.lost - before.lost for before, after in pairs),
        ))  # fmt: skip
        for name, span in self._spans.items():
            self._spans[name] = span._replace(batches=jobs[name].batches if name in jobs else span.batches)
        for passed in range(interval.number + 1, number):
            price, available = float(self._market.price[passed]), int(self._market.available[passed])
            cost = interval.paid.spot * price + interval.paid.on_demand * on_demand
            self.rows.append(IntervalRecord(passed, price, available, *interval.paid, 0.0, 0.0, cost, 0, 0, 0, 0))
        try:
            self._keep(self.state)
        except OSError as error:  # the next one is written with it
            log.warning("the ledger could not be written: %s", error)


def min_size(job: Job) -> int:
    """The fewest devices that it can train on."""
    return min(job.sizes or (job.max_devices,))


def _batches_done(status: JobStatus) -> int:
    """Batches of a job that need not be done again."""
    return min(status.batches, status.saved or 0) if status.state is State.RECOVERING else status.batches


def _with_margin(job: SpotJob) -> SpotJob:
    """What its plan counts with: the net would else be right to the second."""
    return replace(job, throughput=tuple((1 - THROUGHPUT_MARGIN) * throughput for throughput in job.throughput))


def _elementwise_min(one: NodeCounts, other: NodeCounts) -> NodeCounts:
    return NodeCounts(min(one.spot, other.spot), min(one.on_demand, other.on_demand))


class MarketReplay:
    """Has made-up machines come and go as a recording says; shown the jobs as any watcher, and shows them to a run.

    Args:
        nodes: the machines.
        market: the recording, or who is asked; its first interval is the run's first.
        run: on them.
    """

    def __init__(self, nodes: SimulatedProvisioner, market: Market | MarketFeed, run: SpotWatcher) -> None:
        self._nodes, self._market_feed, self._run = nodes, market_feed(market), run
        self._market = self._market_feed(0)
        self._slot = -1
        self.taken: list[float] = []
        """When nodes were taken away, or notice of it was given, in scheduler time."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""
        interval = int(now // self._market.seconds)
        if interval != self._slot:
            self._slot, self._market = interval, self._market_feed(interval)
            before = self._nodes.taken
            self._nodes.offer(int(self._market.available[interval]))
            if self._nodes.taken > before:
                self.taken.append(now)
        self._run.update(now, jobs)

    def close(self) -> None:
        """The run is over."""
        self._run.close()
