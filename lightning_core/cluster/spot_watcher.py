"""A run on nodes that come and go: slot by slot the market says how large the pool is, the scheduler who gets it.

At the beginning of each slot a job's spot policy decides, by what has really been trained, how many spot and on-demand
nodes there should be, and a provisioner is asked for them. The job is told to train on as many devices, and trains on
fewer until they are there. Nodes that go in the middle of a slot are mourned as any node is; whether on-demand ones
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

from lightning_core.cloud.provisioners import LocalNodes, Provisioner
from lightning_core.cloud.quotes import AHEAD
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.events import Amend, Event
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget
from lightning_core.market import JobBatch, Market, SpotJob
from lightning_core.market.forecasters import Unchanged
from lightning_core.market.live_plan import LivePlan, Nodes
from lightning_core.market.optimum import optimum
from lightning_core.market.views import SpotPolicy
from lightning_core.run.follow import Watcher
from lightning_core.scheduler.market_jobs import on_demand_alone, speed_table

log = logging.getLogger(__name__)

# Such a part of a slot what is given back may stay beside what comes in its place.
PATIENCE = 0.5
# Part of its speed that a plan does not count with.
MARGIN = 0.05
# What is left at least of a slot in which nodes come.
LEAST_PART = 0.05


MarketAt = Callable[[int], Market]
"""Gives the market as it is known in a slot."""


def market_at(market: Market | MarketAt) -> MarketAt:
    """A recording is known from the first, and behind its end all stays as it was; who is asked is."""
    if not isinstance(market, Market):
        return market
    price = np.pad(market.price, (0, AHEAD), mode="edge")
    longer = replace(market, price=price, available=np.pad(market.available, (0, AHEAD), mode="edge"))
    return lambda slot: longer


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


class SlotRow(NamedTuple):
    """What became of a slot.

    Args:
        number: of the slot.
        price: of a spot node.
        available: spot nodes that could be had.
        spot: spot nodes held, and paid for: the most there were at once, of those that were wanted.
        on_demand: on-demand nodes held, and paid for.
        over: nodes that were there beside those, in the mean: on their way out while others come in their place.
        used: devices that trained, in the mean.
        cost: of the slot.
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


class Life(NamedTuple):
    """The slots of a job."""

    start: int
    """In which it began."""
    deadline: int
    """How many there are from there."""
    batches: int = 0
    """That stand in the ledger."""


@dataclass(frozen=True, slots=True)
class Books:
    """What must be known of a run to go on with it.

    Args:
        rows: of the slots that are over.
        lives: of the jobs that have begun, by name.
    """

    rows: tuple[SlotRow, ...] = ()
    lives: Mapping[str, Life] = field(default_factory=dict)


class Asked(NamedTuple):
    """For nodes, by a job that had none."""

    at: float
    batches: int
    """Done by then."""
    on_node: bool
    """There was a node for it already."""


@dataclass
class _Planned:
    """A job and its plan."""

    plan: LivePlan
    asked: Asked | None = None
    """Since when it waits for its first batch on nodes that it had none of."""
    told: int | None = None
    """Devices that the scheduler was told it should have."""
    held: Nodes = field(default_factory=Nodes)
    job: SpotJob | None = None
    """As the market sees it; None while its speed is not known."""


@dataclass
class _Now:
    """The slot that goes on."""

    number: int
    began: float
    price: float
    available: int
    wanted: Nodes
    """By the plans."""
    wish: Nodes
    """Those, and what stays while they do not come."""
    there: Nodes
    looked: float
    paid: Nodes = field(default_factory=Nodes)
    waits_for: int = 0
    """Devices that there must be before what is no longer wanted is given back; 0 once it was."""
    device_seconds: float = 0.0
    over_seconds: float = 0.0
    before: dict[str, JobStatus] = field(default_factory=dict)


class SpotRun:
    """Looks after the nodes of a run; shown the jobs again and again, as any watcher.

    The pool should have twice as many devices as the jobs can use: so those that come are warm before others go.

    Args:
        run: that is going on.
        provisioner: of nodes.
        there: nodes that are up and stay.
        market: what can be had, slot by slot; its first slot is the run's first. What a recording says of a slot is
            looked at when that has come, and not before; :class:`~.quotes.Quotes` are asked then.
        policy_of: the spot policy of a job, asked once.
        kept: part of a slot that is left if the number of nodes changes in it, at the most: what it takes from asking
            for a node, where a job has none, to its first batch there is measured, and costs that much of a slot.
        first: batches a second on one device, until they have been measured; None: the job begins on as few on-demand
            nodes as it can.
        setup: seconds that it took to bring up the first node and a worker on it, before the run began.
        beside: another watcher, shown the same.
        keep: is given the books whenever a slot is over.
        before: the books of a run to go on with, whose time goes on.
    """

    def __init__(
        self,
        run: Run,
        provisioner: Provisioner,
        there: Callable[[], Nodes],
        market: Market | MarketAt,
        policy_of: Callable[[JobStatus], SpotPolicy],
        kept: float = 0.9,
        first: float | None = None,
        setup: float = 0.0,
        beside: Watcher | None = None,
        keep: Callable[[Books], None] = lambda books: None,
        before: Books = Books(),
    ) -> None:
        if not 0 < kept <= 1:
            raise ValueError(f"kept must be above 0 and at most 1, got {kept}")
        self._run, self._provisioner, self._there = run, provisioner, there
        self._market_at = market_at(market)
        self._market = self._market_at(0)
        self._kept, self._first, self._beside = kept, first, beside
        # Seconds from asking for a node to a batch: at first, and wherever a job had none since.
        self._setup, self._begun, self._lags = setup, 0.0, list[float]()
        self._policy_of, self._keep, self._lives = policy_of, keep, dict(before.lives)
        self._jobs: dict[str, _Planned] = {}
        self._shown: dict[str, JobStatus] = {}
        self._now: _Now | None = None
        self._over = False
        self.rows: list[SlotRow] = list(before.rows)
        """Of the slots that are over."""

    @property
    def seconds(self) -> float:
        """Of a slot."""
        return self._market.seconds

    @property
    def cost(self) -> float:
        """Of the slots that are over."""
        return sum(row.cost for row in self.rows)

    @property
    def books(self) -> Books:
        """What must be known to go on with it."""
        return Books(tuple(self.rows), dict(self._lives))

    @property
    def jobs(self) -> list[SpotJob]:
        """As the market sees them, by the speed that was measured last."""
        return [planned.job for planned in self._jobs.values() if planned.job is not None]

    def beside_others(self) -> tuple[float, float] | None:
        """What the jobs would have cost on on-demand nodes alone, and at the least if one had known the market; by
        the speed that was measured. None while it is not known.
        """
        several = [(self._lives[name].start, planned.job) for name, planned in self._jobs.items()]
        jobs = [(start, job) for start, job in several if job is not None]
        if len(jobs) < len(several) or not jobs:
            return None
        alone = sum(on_demand_alone(job, self._market.on_demand) for _, job in jobs)
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
            over.callback(self._provisioner.want, Nodes())
            self._end_slot(self._shown)
            self._over = True

    def _look(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        there, number = self._there(), int(now // self._market.seconds)
        self._count(now, jobs, there)
        self._time(now, jobs)
        if self._now is None or number > self._now.number:
            had = Nodes() if self._now is None else _least(self._now.there, self._now.wish)
            self._end_slot(jobs, number)
            self._begin_slot(number, now, jobs, there, gone=had != _least(had, there))
        else:
            self._settle(now, there)
            self._look_for_losses(now, jobs, there)
        if all(job.state is State.ENDED for job in jobs.values()):
            self._end_slot(jobs)
            self._over = True
            self._provisioner.want(Nodes())

    # ------------------------------------------------------------------------------------------------ a slot

    def _begin_slot(self, number: int, now: float, jobs: Mapping[str, JobStatus], there: Nodes, *, gone: bool) -> None:
        """Has the plans decide; ``gone``: nodes have just vanished, and what that costs is to come."""
        self._market = self._market_at(number)
        price, available = float(self._market.price[number]), int(self._market.available[number])
        taken, wanted, left = 0, Nodes(), there
        open_ = list[tuple[JobStatus, Job, _Planned, Nodes]]()
        for status in sorted(jobs.values(), key=lambda status: (status.deadline, status.name)):
            terms = self._run.job(status.name)
            if (planned := self._planned(status, terms, number, now)) is None or status.state is State.ENDED:
                continue
            # What it was given for and did not come, it did not have.
            had = _least(planned.held, left)
            left = Nodes(left.spot - had.spot, left.on_demand - had.on_demand)
            open_.append((status, terms, planned, had))
        free = left.all
        for status, terms, planned, had in open_:
            lost = gone and had != planned.held
            was = planned.held if lost else had
            planned.held = held = self._decide(status, terms, planned, was, number, taken, gone=lost)
            if not held.all:
                planned.asked = None
            elif not had.all and planned.asked is None:
                planned.asked = Asked(now, _done(status), on_node=free > 0)
                free = max(free - held.all, 0)
            taken += held.spot
            wanted = Nodes(wanted.spot + held.spot, wanted.on_demand + held.on_demand)
            self._tell_size(terms, planned)
        # What is given back goes once what comes instead is there: until then it trains.
        both = Nodes(max(wanted.spot, there.spot), max(wanted.on_demand, there.on_demand))
        comes = wanted.spot > there.spot or wanted.on_demand > there.on_demand
        self._provisioner.want(both if comes else wanted)
        waits_for = both.all if comes and both != wanted else 0
        self._now = _Now(
            number,
            now,
            price,
            available,
            wanted,
            wanted,
            there,
            now,
            _least(wanted, there),
            waits_for,
            before=dict(jobs),
        )

    def _settle(self, now: float, there: Nodes) -> None:
        """Gives back what is no longer wanted, as what comes instead can be trained on."""
        slot = self._now
        assert slot is not None  # it has begun
        if not slot.waits_for:
            return
        wanted, before = slot.wanted, slot.wish
        if self._run.warm() >= slot.waits_for:
            slot.waits_for, slot.wish = 0, wanted
            self._provisioner.want(wanted)
        elif now - slot.began > PATIENCE * self._market.seconds:
            # For each that has not come one of the others stays, and is paid for.
            spot, on_demand = wanted.spot - there.spot, wanted.on_demand - there.on_demand
            stay = Nodes(min(max(-spot, 0), max(on_demand, 0)), min(max(-on_demand, 0), max(spot, 0)))
            slot.wish = Nodes(wanted.spot + stay.spot, wanted.on_demand + stay.on_demand)
            slot.waits_for = slot.wish.all
            if slot.wish != before:
                self._provisioner.want(slot.wish)

    def _planned(self, status: JobStatus, terms: Job, number: int, now: float) -> _Planned | None:
        """The plan of a job; None while it may not train."""
        begins = status.submitted_at + terms.begin
        name, held = status.name, terms.on_miss is OnMiss.HOLD and now > status.deadline
        if name not in self._jobs and (now < begins or (status.state is State.ENDED and name not in self._lives)):
            return None
        life = self._lives.get(name, Life(number, 1))
        # A person may have given it another deadline.
        deadline = max(int(status.deadline // self._market.seconds) - life.start, 1)
        life = self._lives[name] = life._replace(deadline=deadline)
        if name not in self._jobs:
            plan = LivePlan(self._policy_of(status), Unchanged())
            self._jobs[name] = _Planned(plan, job=self._spot_job(name, terms, life))
        return None if held else self._jobs[name]

    def _tell_size(self, terms: Job, planned: _Planned) -> None:
        """It has as many devices as its plan holds nodes, and those are where the policy puts it."""
        if planned.held.all != planned.told:
            planned.told = planned.held.all
            self._run.tell(Amend(terms, devices=planned.told))

    def _decide(
        self, status: JobStatus, terms: Job, planned: _Planned, was: Nodes, number: int, taken: int, *, gone: bool
    ) -> Nodes:
        life = self._lives[status.name]
        planned.job = job = self._spot_job(status.name, terms, life)
        if job is None:  # nothing is known of its speed: it must train somewhere to be known
            return Nodes(0, least_size(terms))
        slot, done = number - life.start, float(_done(status))
        return planned.plan.decide(_prudent(job), self._market, life.start, slot, done, was, taken, gone=gone)

    def _spot_job(self, name: str, terms: Job, life: Life) -> SpotJob | None:
        """What the market sees of a job; None while its speed is not known."""
        rates = dict(self._run.rates(name))
        if not rates and self._first is not None:
            rates = {size: size * self._first for size in terms.sizes or (terms.max_devices,)}
        if not rates or not isinstance(terms.target, BatchTarget):
            return None
        least, table = speed_table(SpeedUp(tuple(rates), tuple(rates.values())), self._market.seconds)
        work, most = float(terms.target.batches), len(table) - 1
        seconds, lag = self._market.seconds, self._lag()
        up = min(max(1.0 - lag / seconds, LEAST_PART), self._kept)
        loss = (lag + self._run.save_every(name)) / seconds
        return SpotJob(work, life.deadline, least, most, table, up, self._kept, value=0.0, loss=loss)

    def _lag(self) -> float:
        """Seconds from asking for nodes to a batch."""
        return max(self._lags, default=self._setup + self._begun)

    def _look_for_losses(self, now: float, jobs: Mapping[str, JobStatus], there: Nodes) -> None:
        """Where nodes have gone in the middle of a slot, on-demand ones come if there is no time to wait."""
        slot = self._now
        assert slot is not None  # it has begun
        had = _least(slot.there, slot.wish)
        slot.there = there
        if there.spot >= had.spot and there.on_demand >= had.on_demand:
            return
        log.warning("nodes were lost: %d spot and %d on-demand are left of %d and %d", *there, *had)
        gone = min((now - slot.number * self._market.seconds) / self._market.seconds, 1.0)
        rest, more = there, 0
        open_ = [name for name, status in jobs.items() if status.state is not State.ENDED and name in self._jobs]
        for name in sorted(open_, key=lambda name: (jobs[name].deadline, name)):
            planned, life, terms = self._jobs[name], self._lives[name], self._run.job(name)
            # What is left is for the most urgent.
            left = _least(planned.held, rest)
            rest = Nodes(rest.spot - left.spot, rest.on_demand - left.on_demand)
            job = self._spot_job(name, terms, life)
            if job is None or left == planned.held:
                continue
            number, done = slot.number - life.start, float(_done(jobs[name]))
            must = planned.plan.must_have(_prudent(job), self._market, life.start, number, done, left, gone)
            if must.on_demand > planned.held.on_demand:
                more += must.on_demand - planned.held.on_demand
                planned.held = must
                self._tell_size(terms, planned)
        if more:
            log.warning("%d more on-demand nodes come at once: else it would be too late", more)
            slot.wanted = slot.wish = Nodes(there.spot, slot.wish.on_demand + more)
            slot.waits_for = 0
            self._provisioner.want(slot.wish)

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

    def _count(self, now: float, jobs: Mapping[str, JobStatus], there: Nodes) -> None:
        """What is there, by the second: nodes to be paid for, nodes beside them, devices that train."""
        if (slot := self._now) is None:
            return
        paid = _least(there, slot.wish)
        slot.paid = Nodes(max(slot.paid.spot, paid.spot), max(slot.paid.on_demand, paid.on_demand))
        used = sum(len(job.devices) for job in jobs.values() if job.share > 0 and job.state is State.RUNNING)
        slot.device_seconds += used * (now - slot.looked)
        slot.over_seconds += max(there.all - slot.paid.all, 0) * (now - slot.looked)
        slot.looked = now

    def _end_slot(self, jobs: Mapping[str, JobStatus], number: int = 0) -> None:
        """Writes the slot down, and those after it up to a number: nobody has looked while they passed."""
        if (slot := self._now) is None:
            return
        self._now = None
        pairs = [(slot.before[name], job) for name, job in jobs.items() if name in slot.before]
        seconds, on_demand = max(slot.looked - slot.began, 1e-9), self._market.on_demand
        self.rows.append(SlotRow(
            slot.number, slot.price, slot.available, slot.paid.spot, slot.paid.on_demand,
            slot.over_seconds / seconds, slot.device_seconds / seconds,
            slot.paid.spot * slot.price + slot.paid.on_demand * on_demand,
            sum(jobs[name].batches - life.batches for name, life in self._lives.items() if name in jobs),
            sum(after.incarnation - before.incarnation for before, after in pairs),
            sum(after.restarts - before.restarts for before, after in pairs),
            sum(after.lost - before.lost for before, after in pairs),
        ))  # fmt: skip
        for name, life in self._lives.items():
            self._lives[name] = life._replace(batches=jobs[name].batches if name in jobs else life.batches)
        for passed in range(slot.number + 1, number):
            price, available = float(self._market.price[passed]), int(self._market.available[passed])
            cost = slot.paid.spot * price + slot.paid.on_demand * on_demand
            self.rows.append(SlotRow(passed, price, available, *slot.paid, 0.0, 0.0, cost, 0, 0, 0, 0))
        try:
            self._keep(self.books)
        except OSError as error:  # the next one is written with it
            log.warning("the ledger could not be written: %s", error)


def least_size(job: Job) -> int:
    """The fewest devices that it can train on."""
    return min(job.sizes or (job.max_devices,))


def _done(status: JobStatus) -> int:
    """Batches of a job that need not be done again."""
    return min(status.batches, status.saved or 0) if status.state is State.RECOVERING else status.batches


def _prudent(job: SpotJob) -> SpotJob:
    """What its plan counts with: the net would else be right to the second."""
    return replace(job, speed=tuple((1 - MARGIN) * speed for speed in job.speed))


def _least(one: Nodes, other: Nodes) -> Nodes:
    return Nodes(min(one.spot, other.spot), min(one.on_demand, other.on_demand))


class MadeUp:
    """Has made-up machines come and go as a recording says; shown the jobs as any watcher, and shows them to a run.

    Args:
        nodes: the machines.
        market: the recording, or who is asked; its first slot is the run's first.
        run: on them.
    """

    def __init__(self, nodes: LocalNodes, market: Market | MarketAt, run: SpotRun) -> None:
        self._nodes, self._market_at, self._run = nodes, market_at(market), run
        self._market = self._market_at(0)
        self._slot = -1
        self.taken: list[float] = []
        """When nodes were taken away, or notice of it was given, in scheduler time."""

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""
        slot = int(now // self._market.seconds)
        if slot != self._slot:
            self._slot, self._market = slot, self._market_at(slot)
            before = self._nodes.taken
            self._nodes.offer(int(self._market.available[slot]))
            if self._nodes.taken > before:
                self.taken.append(now)
        self._run.update(now, jobs)

    def close(self) -> None:
        """The run is over."""
        self._run.close()
