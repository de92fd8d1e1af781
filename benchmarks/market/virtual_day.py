"""A live day of a market once more in virtual time: the same scheduler, with the delays and the throughput of that day.

The controller begins as ignorant as the live one, and learns by the same measurements. So what it pays differs from
what the live day paid by what chance and the machine did to that day, and not by what was known of it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.cloud.provisioner import LEAVE_SECONDS
from lightning_core.control import MarketController
from lightning_core.core.answers import Answer, Grant
from lightning_core.core.codec import decode_answers, decode_event
from lightning_core.core.control import Asker, IntervalEnded, NodesSeen, NodesWanted
from lightning_core.core.events import Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.saved_state import decode
from lightning_core.market import Market
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.simulation.scenario import Delays, Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.simulation.virtual_cloud import VirtualCloud
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay

# Batches between two reports of the virtual job, about as many as of a live one.
CELL = 5


class Entry(NamedTuple):
    """An event of a journal with its answers."""

    now: float
    event: Event
    answers: list[Answer]


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


class Measured(NamedTuple):
    """Medians of a live day, in seconds, and batches per second by number of devices."""

    submitted: float
    """When the market first decided for the job."""
    start_up: float
    """From the request for a node until it is seen."""
    warm_up: float
    """From then until there is a worker on it."""
    start: float
    """From a grant of free devices until the job trains there."""
    release: float
    """From a grant of other devices until the job has left."""
    heard: float
    """From a preemption until the pool knows."""
    throughput: dict[int, float]


def play(journal: Path, beside: Path, market: Market, notice: float) -> Outcome:
    """Play a live day in virtual time.

    Args:
        journal: Journal of the live day.
        beside: Journal to write.
        market: The market.
        notice: Seconds from a preemption notice to the end of a node; 0 for none.
    """
    with Journal.open(journal, read_only=True) as other:
        settings, scheduler = other.settings(), replay(other).scheduler
        entries = [Entry(one.now, decode_event(one.event), decode_answers(one.answers)) for one in other.entries()]
    [job] = next(event.jobs for _, event, _ in entries if isinstance(event, Submit))
    found = measure(entries, market)
    # On a size on which it never trained, as the scheduler expects.
    [expected] = _controller(scheduler).jobs
    by_size = [found.throughput.get(size, expected.throughput[size] / market.seconds) for size in job.sizes]
    work = int(expected.work)
    cells = [*range(CELL, work, CELL), work]
    given = SimulatedJob(job, cells, [1.0] * len(cells), by_size[-1], found.submitted, by_size)
    cloud = VirtualCloud(market, found.start_up, notice, LEAVE_SECONDS, found.warm_up, found.heard)
    return Simulation(settings, [given], Delays(release=found.release, start=found.start), beside, cloud=cloud).run()


def measure(entries: Sequence[Entry], market: Market) -> Measured:
    """Measure the delays and the throughput of a live day of one job."""
    first = next(now for now, _, answers in entries if any(isinstance(answer, NodesWanted) for answer in answers))
    came, warm = _arrivals(entries, market)
    starts, releases = _moves(entries)
    return Measured(
        first, _median(came), _median(warm), _median(starts), _median(releases), _median(_heard(entries, market)),
        _throughput(entries),
    )  # fmt: skip


def decisions(path: Path) -> list[Decision]:
    """Return what the market decided in each interval of a journal."""
    found = dict[int, Decision]()
    with Journal.open(path, read_only=True) as journal:
        scheduler = Scheduler(journal.settings())
        for entry in journal.entries():
            answers = scheduler.handle(decode_event(entry.event), entry.now)
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
    market = scheduler.controllers[Asker.MARKET]
    assert isinstance(market, MarketController)
    return market


def _decision(scheduler: Scheduler, interval: Mapping[str, Any]) -> Decision:
    jobs = _controller(scheduler).jobs
    start_up = 1 - jobs[0].growth_fraction if jobs else math.nan
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
    at, granted, granted_at, left_at = tuple[int, ...](), tuple[int, ...](), 0.0, 0.0
    for now, event, answers in entries:
        if isinstance(event, WorkerExited):
            if event.cause is ExitCause.RELEASED:
                releases.append(now - granted_at)
            at, left_at = (), now if event.cause is ExitCause.RELEASED else math.nan
        elif isinstance(event, Report) and not at and event.batches > event.batches_at_start:
            starts.append(now - event.busy - max(left_at, granted_at))
            at = granted
        for grant in [answer for answer in answers if isinstance(answer, Grant) and answer.devices != granted]:
            granted, granted_at = grant.devices, now
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


def _throughput(entries: Sequence[Entry]) -> dict[int, float]:
    """Return the batches per second of training, by number of devices."""
    last, sizes = dict[int, Report](), dict[int, int]()
    devices = 0
    for _, event, answers in entries:
        if isinstance(event, Report):
            last[event.incarnation] = event
            sizes.setdefault(event.incarnation, devices)
        for answer in answers:
            if isinstance(answer, Grant) and answer.devices:
                devices = len(answer.devices)
    batches, seconds = defaultdict[int, int](int), defaultdict[int, float](float)
    for number, report in last.items():
        batches[sizes[number]] += report.batches - report.batches_at_start
        seconds[sizes[number]] += report.busy
    return {size: batches[size] / seconds[size] for size in batches if seconds[size]}


def _median(several: Sequence[float] | Iterator[float]) -> float:
    found = list(several)
    return statistics.median(found) if found else 0.0
