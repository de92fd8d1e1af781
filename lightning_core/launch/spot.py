"""A run on nodes that come and go: slot by slot the market says how large the pool is, the scheduler who gets it.

At the beginning of each slot a job's spot policy decides, by what has really been trained, how many spot and on-demand
nodes there should be, and a provisioner is asked for them. The job may train on as many devices as it can use: it has
what is there. Nodes that go in the middle of a slot are mourned as any node is; whether on-demand ones must come in
their place at once the safety net says, without a forecast.

With several jobs each has a plan of its own, the pool is as large as all of them together want it, and the run's
policy says who trains where.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lightning_core.launch.follow import Watcher
from lightning_core.launch.provision import LocalNodes, Provisioner
from lightning_core.market import Batch, Foreseen, LastValue, Market, SpotJob
from lightning_core.market.live import LivePlan, Nodes
from lightning_core.market.optimum import optimum
from lightning_core.market.playing import SpotPolicy
from lightning_core.market_jobs import on_demand_alone, speed_table
from lightning_core.speedup import SpeedUp
from lightning_core.types import Amend, BatchTarget, Event, Job, JobStatus, State

log = logging.getLogger(__name__)

# Such a part of a slot what is given back may stay beside what comes in its place.
PATIENCE = 0.5


MarketAt = Callable[[int], Market]
"""Gives the market as it is known in a slot."""


def market_at(market: Market | MarketAt) -> MarketAt:
    """A recording is known from the first; who is asked is."""
    return market if callable(market) else lambda slot: market


class Run(Protocol):
    """What is asked of the run that is going on (:class:`~.cluster.Cluster`)."""

    def job(self, name: str) -> Job:
        """A job with its terms as they are now."""

    def tell(self, event: Event) -> None:
        """Hands an event to its scheduler."""

    def rates(self, name: str) -> Mapping[int, float]:
        """Batches a second that a job is believed to do on each number of devices it can use; none while unknown."""

    def usable(self) -> int:
        """Devices of its pool that there are workers on."""


class SlotRow(NamedTuple):
    """What became of a slot.

    Args:
        number: of the slot.
        price: of a spot node.
        available: spot nodes that could be had.
        spot: spot nodes held, and paid for.
        on_demand: on-demand nodes held, and paid for.
        used: devices that trained, in the mean.
        cost: of the slot.
        batches: done in it.
        moves: how often jobs came back elsewhere, or on another number of devices.
        losses: how often one lost its worker.
        again: batches that have to be done again.
    """

    number: int
    price: float
    available: int
    spot: int
    on_demand: int
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


@dataclass(frozen=True, slots=True)
class Books:
    """What must be known of a run to go on with it.

    Args:
        rows: of the slots that are over.
        lives: of the jobs that have begun, by name.
    """

    rows: tuple[SlotRow, ...] = ()
    lives: Mapping[str, Life] = field(default_factory=dict)


@dataclass
class _Planned:
    """A job and its plan."""

    plan: LivePlan
    life: Life
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
    paid: Nodes
    looked: float
    there: Nodes = field(default_factory=Nodes)
    waits_for: int = 0
    """Devices that there must be before what is no longer wanted is given back; 0 once it was."""
    device_seconds: float = 0.0
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
        kept: part of a slot that is left if the number of nodes changes in it.
        first: batches a second on one device, until they have been measured; None: the job begins on as few on-demand
            nodes as it can.
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
        several = [(planned.life.start, planned.job) for planned in self._jobs.values()]
        jobs = [(start, job) for start, job in several if job is not None]
        if len(jobs) < len(several) or not jobs:
            return None
        alone = sum(on_demand_alone(job, self._market.on_demand) for _, job in jobs)
        batch = Batch([job for _, job in jobs], self._market, [start for start, _ in jobs])
        return alone, -float(optimum(batch).sum())

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """The jobs as of scheduler time ``now``."""
        self._shown = by_name = {job.name: job for job in jobs}
        if by_name and not self._over:
            self._count(now, by_name)
            number = int(now // self._market.seconds)
            if self._now is None or number > self._now.number:
                self._end_slot(by_name)
                self._begin_slot(number, now, by_name)
            else:
                self._settle(now)
                self._look_for_losses(now, by_name)
            if all(job.state is State.ENDED for job in by_name.values()):
                self._end_slot(by_name)
                self._over = True
                self._provisioner.want(Nodes())
        if self._beside is not None:
            self._beside.update(now, jobs)

    def close(self) -> None:
        """The run is over, or left for a while."""
        self._end_slot(self._shown)
        self._over = True
        self._provisioner.want(Nodes())
        if self._beside is not None:
            self._beside.close()

    # ------------------------------------------------------------------------------------------------ a slot

    def _begin_slot(self, number: int, now: float, jobs: Mapping[str, JobStatus]) -> None:
        self._market = self._market_at(number)
        at = min(number, len(self._market) - 1)
        price, available = float(self._market.price[at]), int(self._market.available[at])
        taken, wanted = 0, Nodes()
        open_ = [status for status in jobs.values() if status.state is not State.ENDED]
        for name, life in self._lives.items():
            if name in jobs and name not in self._jobs and jobs[name].state is State.ENDED:  # before it went on
                job = self._spot_job(name, self._run.job(name), life)
                self._jobs[name] = _Planned(self._plan(jobs[name]), life, job=job)
        for status in sorted(open_, key=lambda status: (status.deadline, status.name)):
            terms = self._run.job(status.name)
            planned = self._jobs.get(status.name) or self._take_up(status, terms, number)
            held = self._decide(status, terms, planned, number, taken)
            taken += held.spot
            wanted = Nodes(wanted.spot + held.spot, wanted.on_demand + held.on_demand)
            planned.held = held
        there = self._there()
        # What is given back goes once what comes instead is there: until then it trains.
        both = Nodes(max(wanted.spot, there.spot), max(wanted.on_demand, there.on_demand))
        comes = wanted.spot > there.spot or wanted.on_demand > there.on_demand
        self._provisioner.want(both if comes else wanted)
        waits_for = both.all if comes and both != wanted else 0
        self._now = _Now(number, now, price, available, wanted, now, there, waits_for, before=dict(jobs))

    def _settle(self, now: float) -> None:
        """Gives back what is no longer wanted, once what comes instead can be trained on, or that takes too long."""
        slot = self._now
        assert slot is not None  # it has begun
        late = now - slot.number * self._market.seconds > PATIENCE * self._market.seconds
        if not slot.waits_for or not (late or self._run.usable() >= slot.waits_for):
            return
        slot.waits_for = 0
        there, wanted = self._there(), slot.paid
        # What has not come is not paid for, and on-demand nodes stay in its place.
        came = min(there.spot, wanted.spot)
        slot.paid = Nodes(came, max(wanted.on_demand, min(there.on_demand, wanted.all - came)))
        self._provisioner.want(Nodes(wanted.spot, slot.paid.on_demand))

    def _take_up(self, status: JobStatus, terms: Job, number: int) -> _Planned:
        """A job that is new: it has what is there, up to what it can use."""
        life = Life(number, max(int(status.deadline // self._market.seconds) - number, 1))
        life = self._lives.setdefault(status.name, life)
        planned = self._jobs[status.name] = _Planned(self._plan(status), life)
        if terms.sizes:
            self._run.tell(Amend(terms, devices=terms.max_devices))
        return planned

    def _plan(self, status: JobStatus) -> LivePlan:
        return LivePlan(self._policy_of(status), Foreseen(LastValue()))

    def _decide(self, status: JobStatus, terms: Job, planned: _Planned, number: int, taken: int) -> Nodes:
        planned.job = job = self._spot_job(status.name, terms, planned.life)
        if job is None:  # nothing is known of its speed: it must train somewhere to be known
            return Nodes(0, terms.min_devices)
        start = planned.life.start
        return planned.plan.decide(job, self._market, start, number - start, float(status.batches), planned.held, taken)

    def _spot_job(self, name: str, terms: Job, life: Life) -> SpotJob | None:
        """What the market sees of a job; None while its speed is not known."""
        rates = dict(self._run.rates(name))
        if not rates and self._first is not None:
            rates = {size: size * self._first for size in terms.sizes or (terms.max_devices,)}
        if not rates or not isinstance(terms.target, BatchTarget):
            return None
        least, table = speed_table(SpeedUp(tuple(rates), tuple(rates.values())), self._market.seconds)
        deadline = min(life.deadline, len(self._market) - life.start)
        work, most = float(terms.target.batches), len(table) - 1
        return SpotJob(work, deadline, least, most, table, self._kept, self._kept, 0.0)

    def _look_for_losses(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        """Where nodes have gone in the middle of a slot, on-demand ones come if there is no time to wait."""
        slot, there = self._now, self._there()
        assert slot is not None  # it has begun
        lost = there.spot < min(slot.there.spot, slot.paid.spot) or there.on_demand < min(
            slot.there.on_demand, slot.paid.on_demand
        )
        slot.there = there
        if not lost:
            return
        log.warning("nodes were lost: %d spot and %d on-demand are left of %d and %d", *there, *slot.paid)
        gone = min((now - slot.number * self._market.seconds) / self._market.seconds, 1.0)
        spot, on_demand, more = there.spot, there.on_demand, 0
        open_ = [name for name, status in jobs.items() if status.state is not State.ENDED and name in self._jobs]
        for name in sorted(open_, key=lambda name: (jobs[name].deadline, name)):
            planned = self._jobs[name]
            # What is left is for the most urgent.
            left = Nodes(min(planned.held.spot, spot), min(planned.held.on_demand, on_demand))
            spot, on_demand = spot - left.spot, on_demand - left.on_demand
            job = self._spot_job(name, self._run.job(name), planned.life)
            if job is None or left == planned.held:
                continue
            start, done = planned.life.start, float(jobs[name].batches)
            must = planned.plan.must_have(job, self._market, start, slot.number - start, done, left, gone)
            if must.on_demand > planned.held.on_demand:
                more += must.on_demand - planned.held.on_demand
                planned.held = must
        if more:
            log.warning("%d more on-demand nodes come at once: else it would be too late", more)
            slot.paid = slot.paid._replace(on_demand=slot.paid.on_demand + more)
            self._provisioner.want(Nodes(there.spot, slot.paid.on_demand))

    def _count(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        """Devices that train, by the second."""
        if self._now is not None:
            used = sum(len(job.devices) for job in jobs.values() if job.share > 0 and job.state is State.RUNNING)
            self._now.device_seconds += used * (now - self._now.looked)
            self._now.looked = now

    def _end_slot(self, jobs: Mapping[str, JobStatus]) -> None:
        if (slot := self._now) is None:
            return
        self._now = None
        pairs = [(slot.before[name], job) for name, job in jobs.items() if name in slot.before]
        self.rows.append(SlotRow(
            slot.number, slot.price, slot.available, slot.paid.spot, slot.paid.on_demand,
            slot.device_seconds / max(slot.looked - slot.began, 1e-9),
            slot.paid.spot * slot.price + slot.paid.on_demand * self._market.on_demand,
            sum(after.batches - before.batches for before, after in pairs),
            sum(after.incarnation - before.incarnation for before, after in pairs),
            sum(after.restarts - before.restarts for before, after in pairs),
            sum(after.lost - before.lost for before, after in pairs),
        ))  # fmt: skip
        self._keep(self.books)


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
        slot = min(int(now // self._market.seconds), len(self._market) - 1)
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
