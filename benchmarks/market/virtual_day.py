"""A live day of a market once more in virtual time: the same scheduler, with the delays and the throughput of that day.

The controller begins as ignorant as the live one, and learns by the same measurements: its first start takes as long as
the live one, because all plans know of a start, until there is another one, is how long that took. So what it pays
differs from what the live day paid by chance, and not by what was known. Plans that cost almost the same lie close to
one another: where a node comes some seconds later, another one may be chosen. How much that matters is seen where a day
is played several times, with the throughput and all delays after the first start drawn again from those that were
measured on it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_core.core.answers import Grant
from lightning_core.core.codec import decode_answers, decode_event
from lightning_core.core.control import part_objects
from lightning_core.core.events import Event, ExitCause, PartEvent, Report, Submit, WorkerExited
from lightning_core.core.saved_state import decode
from lightning_core.parts.market.cloud.provisioner import LEAVE_SECONDS
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesSeen, NodesWanted
from lightning_core.parts.market.market_controller import MARKET, MarketController
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.simulation.scenario import Delays, Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay

# Batches between two reports of the virtual job, about as many as of a live one.
CELL = 5


def event_object(event: Event) -> Any:
    """Return an event, one of a part as its object."""
    return event.decoded() if isinstance(event, PartEvent) else event


class Entry(NamedTuple):
    """An event of a journal with its answers."""

    now: float
    event: Any
    answers: list[Any]


class Decision(NamedTuple):
    """What the plan of the job was in an interval, what it went by, and what came of it."""

    planned: NodeCounts
    done: int
    """Batches done when it decided."""
    start_up: float
    """Fraction of an interval that it took a start to cost; NaN while its throughput was unknown."""
    held: NodeCounts = NodeCounts()
    cost: float = 0.0
    batches: int = 0


NOTHING = Decision(NodeCounts(), 0, math.nan)


class Start(NamedTuple):
    """Delays of a start from nothing in seconds, as in :class:`Conditions`."""

    start_up: float
    warm_up: float
    start: float


class Conditions(NamedTuple):
    """What a virtual day is like: delays in seconds, and batches per second by number of devices."""

    first: Start
    """Those of the first start."""

    start_up: float
    """From the request for another node until it is seen."""
    warm_up: float
    """From then until there is a worker on it."""
    start: float
    """From a grant of free devices until the job trains there."""
    release: float
    """From a grant of other devices until the job has left."""
    heard: float
    """From a preemption until the pool knows."""
    throughput: dict[int, float]


class Measured(NamedTuple):
    """What was measured on a live day, each as often as it came."""

    submitted: float
    """Scheduler time at which the market first decided for the job."""
    delays: dict[str, list[float]]
    """Delays by their names in :class:`Conditions`."""
    trained: dict[int, list[tuple[int, float]]]
    """Batches and seconds of each incarnation, by number of devices."""

    @property
    def first(self) -> Start:
        """The first start: what the live plans knew of starts before there was another one."""
        return Start(*(self.delays[name][0] for name in Start._fields))

    def medians(self) -> Conditions:
        """Return the conditions of a day at the medians of its delays."""
        delays = {name: statistics.median(several) for name, several in self.delays.items()}
        throughput = {size: _rate(several) for size, several in self.trained.items()}
        return Conditions(self.first, throughput=throughput, **delays)

    def drawn(self, rng: np.random.Generator) -> Conditions:
        """Return the conditions of a day on which other ones of those measured had come, each as likely (bootstrap)."""
        delays = {name: float(rng.choice(several, len(several)).mean()) for name, several in self.delays.items()}
        again = {size: [several[k] for k in rng.integers(0, len(several), len(several))]
                 for size, several in self.trained.items()}  # fmt: skip
        return Conditions(self.first, throughput={size: _rate(several) for size, several in again.items()}, **delays)


class Cloud(VirtualCloud):
    """A cloud whose first nodes have delays of their own.

    Args:
        market: Its market.
        notice: Seconds from a preemption notice to the end of a node; 0 for none.
        conditions: Its delays.
    """

    def __init__(self, market: Market, notice: float, conditions: Conditions) -> None:
        super().__init__(market, conditions.start_up, notice, LEAVE_SECONDS, conditions.warm_up, conditions.heard)
        self._first = conditions.first
        self.early = False  # live nodes know their end in advance

    def _delays(self, number: int) -> tuple[float, float]:
        return self._first[:2] if number == 1 else super()._delays(number)


class LiveDay:
    """A live day of one job, which can be played again.

    Args:
        journal: Its journal.
        market: Its market.
        notice: Seconds from a preemption notice to the end of a node; 0 for none.
    """

    def __init__(self, journal: Path, market: Market, notice: float) -> None:
        with Journal.open(journal, read_only=True) as other:
            self._settings, [expected] = other.settings(), _controller(replay(other).scheduler).jobs
            entries = [
                Entry(one.now, event_object(decode_event(one.event)), part_objects(decode_answers(one.answers)))
                for one in other.entries()
            ]
        [self._job] = next(event.jobs for _, event, _ in entries if isinstance(event, Submit))
        self._market, self._notice, self._work = market, notice, int(expected.work)
        self.measured = measure(entries, market)
        for size in self._job.sizes:  # on which it never trained: as the scheduler expects
            self.measured.trained.setdefault(size, [(int(expected.throughput[size]), market.seconds)])

    def play(self, conditions: Conditions, journal: Path | None = None) -> Outcome:
        """Play it in virtual time, and write a journal if one is named."""
        work, by_size = self._work, [conditions.throughput[size] for size in self._job.sizes]
        cells = [*range(CELL, work, CELL), work]
        losses, submitted = [1.0] * len(cells), self.measured.submitted
        given = SimulatedJob(self._job, cells, losses, by_size[-1], submitted, by_size, conditions.start)
        cloud = Cloud(self._market, self._notice, conditions)
        delays = Delays(release=conditions.release, start=conditions.first.start)
        return Simulation(self._settings, [given], delays, journal, nodes=cloud).run()

    def costs(self, days: int) -> list[float]:
        """Return what so many days cost in virtual time whose conditions are drawn from those that were measured."""
        drawn = (self.measured.drawn(np.random.default_rng(seed)) for seed in range(days))
        return [self.play(conditions).nodes.cost for conditions in drawn]


def measure(entries: Sequence[Entry], market: Market) -> Measured:
    """Measure the delays and the throughput of a live day of one job."""
    first = next(now for now, _, answers in entries if any(isinstance(answer, NodesWanted) for answer in answers))
    came, warm = _arrivals(entries, market)
    starts, releases = _moves(entries)
    delays = {"start_up": came, "warm_up": warm, "start": starts, "release": releases,
              "heard": list(_heard(entries, market))}  # fmt: skip
    # What never came does not matter.
    return Measured(first, {name: several or [0.0] for name, several in delays.items()}, _trained(entries))


def decisions(path: Path) -> list[Decision]:
    """Return what the market decided in each interval of a journal."""
    found = dict[int, Decision]()
    with Journal.open(path, read_only=True) as journal:
        scheduler = Scheduler(journal.settings())
        for entry in journal.entries():
            answers = part_objects(scheduler.handle(decode_event(entry.event), entry.now))
            for ended in [answer for answer in answers if isinstance(answer, IntervalEnded)]:
                nodes, before = NodeCounts(ended.spot, ended.on_demand), found.get(ended.number, NOTHING)
                found[ended.number] = before._replace(held=nodes, cost=ended.cost, batches=ended.batches)
            if answers and (interval := _controller(scheduler).state()["interval"]) is not None:
                found.setdefault(interval["number"], _decision(scheduler, interval))
    return [found.get(number, NOTHING) for number in range(max(found, default=-1) + 1)]


def differences(live: Sequence[Decision], virtual: Sequence[Decision], work: float) -> Iterator[str]:
    """Yield in words where the decisions of two days part, or what came of them, interval by interval.

    Args:
        live: Decisions of the live day.
        virtual: Those of the same day in virtual time.
        work: Batches of the job.
    """
    for number, (one, other) in enumerate(zip_longest(live, virtual, fillvalue=NOTHING)):
        if (one.planned, one.held) == (other.planned, other.held):
            continue
        words = "other plans" if one.planned != other.planned else "as planned in both, and other nodes came"
        told = [
            f"{name} {_nodes(day.planned)} planned, {_nodes(day.held)} held for {day.cost:.3g}, "
            f"{day.done / work:.1%} done, a start costs {day.start_up:.2f}"
            for name, day in (("live", one), ("simulated", other))
        ]
        yield f"{number}: {words}: {'; '.join(told)}"


def _nodes(nodes: NodeCounts) -> str:
    return f"{nodes.spot}+{nodes.on_demand}"


def _controller(scheduler: Scheduler) -> MarketController:
    market = scheduler.controllers[MARKET]
    assert isinstance(market, MarketController)
    return market


def _decision(scheduler: Scheduler, interval: Mapping[str, Any]) -> Decision:
    jobs = _controller(scheduler).jobs
    start_up = jobs[0].launch if jobs else math.nan
    return Decision(NodeCounts(*decode(interval["planned"])), sum(job.batches for job in scheduler.status()), start_up)


# ------------------------------------------------------------------------------------------------ what is measured


def _arrivals(entries: Sequence[Entry], market: Market) -> tuple[list[float], list[float]]:
    """Return the seconds from each request to its node, and from each node to the worker on it."""
    came, warm = list[float](), list[float]()
    pending, cold = defaultdict[str, list[float]](list), dict[str, float]()
    there, warmed = dict[str, tuple[str, ...]](spot=(), on_demand=()), 0
    for now, event, answers in entries:
        if isinstance(event, NodesSeen):
            for kind, before in there.items():
                there[kind] = getattr(event, kind)
                for node in [node for node in there[kind] if node not in before]:
                    cold[node] = now
                    if pending[kind]:
                        came.append(now - pending[kind].pop(0))
            cold = {node: at for node, at in cold.items() if node in (*event.spot, *event.on_demand)}
            for node in list(cold)[: max(event.warm - warmed, 0)]:
                warm.append(now - cold.pop(node))
            warmed = event.warm
        for wanted in [answer for answer in answers if isinstance(answer, NodesWanted)]:
            on_offer = int(market.available[min(int(now // market.seconds), len(market) - 1)])
            for kind, number in (("spot", min(wanted.spot, on_offer)), ("on_demand", wanted.on_demand)):
                missing = max(number - len(there[kind]), 0)
                pending[kind] = [*pending[kind], *[now] * missing][:missing]
    return came, warm


def _moves(entries: Sequence[Entry]) -> tuple[list[float], list[float]]:
    """Return the seconds from free devices to training on them, and from a grant of other devices to having left."""
    starts, releases = list[float](), list[float]()
    at, left_at, granted = tuple[int, ...](), 0.0, [(0.0, tuple[int, ...]())]
    for now, event, answers in entries:
        if isinstance(event, WorkerExited):
            if event.cause is ExitCause.RELEASED:
                releases.append(now - granted[-1][0])
            at, left_at = (), now if event.cause is ExitCause.RELEASED else math.nan
        elif isinstance(event, Report) and not at and event.batches > event.batches_at_start:
            began = now - event.busy
            # It may have been granted other devices between its first batch and its first report.
            granted_at, at = next((one for one in reversed(granted) if one[1] and one[0] <= began), granted[-1])
            starts.append(max(began - max(left_at, granted_at), 0.0))
        for grant in [answer for answer in answers if isinstance(answer, Grant) and answer.devices != granted[-1][1]]:
            granted.append((now, grant.devices))
    return [seconds for seconds in starts if not math.isnan(seconds)], releases


def _heard(entries: Sequence[Entry], market: Market) -> Iterator[float]:
    """Yield the seconds from the beginning of an interval with a preemption until the pool knows."""
    spot = 0
    for now, event, _ in entries:
        interval = min(int(now // market.seconds), len(market) - 1)
        begins, offered = interval * market.seconds, int(market.available[interval])
        if isinstance(event, NodesSeen):
            if spot > offered >= len(event.spot):
                yield now - begins
            spot = len(event.spot)


def _trained(entries: Sequence[Entry]) -> dict[int, list[tuple[int, float]]]:
    """Return batches and seconds of each incarnation that trained, by number of devices."""
    last, sizes = dict[int, Report](), dict[int, int]()
    devices = 0
    for _, event, answers in entries:
        if isinstance(event, Report):
            last[event.incarnation] = event
            sizes.setdefault(event.incarnation, devices)
        for answer in answers:
            if isinstance(answer, Grant) and answer.devices:
                devices = len(answer.devices)
    found = defaultdict[int, list[tuple[int, float]]](list)
    for number, report in last.items():
        if (batches := report.batches - report.batches_at_start) > 0 and report.busy:
            found[sizes[number]].append((batches, report.busy))
    return dict(found)


def _rate(several: Sequence[tuple[int, float]]) -> float:
    """Return batches per second."""
    return sum(batches for batches, _ in several) / sum(seconds for _, seconds in several)
