"""A cloud, a clock and jobs in one, which a market controller is driven with: no scheduler, and no time that passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.control import Ask
from lightning_core.core.events import Event, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.cloud_events import CloudEvent, IntervalEnded, NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.spot_market import Market

# What plans and forecasters keep of the last market: it follows from the next one.
CACHES = ("_batch", "_forecast", "_groups", "_tables")


def market(counts: list[int], price: float = 0.4, seconds: float = 10.0) -> Market:
    return Market(np.full(len(counts), price), np.array(counts), seconds=seconds)


def elastic(name: str, batches: int, deadline: float, **more: Any) -> Job:
    can = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE, Capability.RESIZE})
    return Job(name, deadline, BatchTarget(batches), can=can, max_devices=4, sizes=(1, 2, 4), **more)


def controller(policy: str = "max-spot", **more: Any) -> MarketController:
    """A market with intervals of ten seconds, in which nothing is lost when the number of nodes changes."""
    arguments: dict[str, Any] = {"interval": 10.0, "policy": policy, "kept_fraction": 1.0, "save_every": 0.0,
                                 "leave": 0.0}  # fmt: skip
    return MarketController(**arguments | more)


@dataclass
class World:
    """A pool (:class:`~lightning_core.core.pool_view.PoolView`) that obeys its market.

    Its jobs train at once, one batch a second on each node.
    """

    jobs: dict[str, Job]
    trace: Market | None = None
    """What is quoted, an interval ahead of time; None: only what a test tells."""
    now: float = 0.0
    present: NodeCounts = field(default_factory=NodeCounts)
    spot: int = 100
    """Spot nodes that come if they are wanted."""
    on_demand: int = 100
    cold: int = 0
    """Nodes that are there and have no worker yet."""
    batches: dict[str, float] = field(default_factory=dict)
    submitted: dict[str, float] = field(default_factory=dict)
    told: list[Ask] = field(default_factory=list)
    wanted: list[NodesWanted] = field(default_factory=list)
    rows: list[IntervalEnded] = field(default_factory=list)
    warm_up: float = 0.0
    """Seconds that nodes take to train where there were none."""
    trains_at: float = 0.0
    recovering: dict[str, int] = field(default_factory=dict)
    """Jobs whose worker is lost, and the batches that each had saved."""
    paused: set[str] = field(default_factory=set)
    locations: tuple[str, ...] = ()
    spent: float = 0.0
    closing: bool = False
    needs: dict[str, int] = field(default_factory=dict)
    """Batches after which each job with a loss to reach has reached it."""
    forecasts: dict[str, FloatArray] = field(default_factory=dict)
    """What is forecast of them."""
    resizes: dict[str, float] = field(default_factory=dict)
    """Seconds that each job is known to lose when it is moved or resized."""
    knows_speed: bool = True
    """Whether the throughput of a job is known once it has trained."""

    def __post_init__(self) -> None:
        self._seen: NodesSeen | None = None
        self._quoted = 0  # intervals that are quoted

    # ------------------------------------------------------------------------------------------------ a pool

    @property
    def nodes(self) -> NodesSeen:
        spot, on_demand = self.present
        names = tuple(f"s{k}" for k in range(spot)), tuple(f"d{k}" for k in range(on_demand))
        return NodesSeen(*names, warm=max(self.present.all - self.cold, 0))

    def names(self) -> list[str]:
        return [name for name in self.jobs if self.is_active(name)]

    def is_active(self, name: str) -> bool:
        return name in self.jobs and self.batches.get(name, 0.0) < self._need(name)

    def job(self, name: str) -> Job:
        return self.jobs[name]

    def throughputs(self, name: str) -> Mapping[int, float]:
        return {size: float(size) for size in (1, 2, 4)} if self.batches.get(name) and self.knows_speed else {}

    def resize_seconds(self, name: str) -> float | None:
        return self.resizes.get(name)

    def forecast_work(self, name: str) -> FloatArray:
        return self.forecasts.get(name, np.full(len(LEVELS), np.nan))

    def _need(self, name: str) -> int:
        return self.jobs[name].target.work or self.needs[name]

    def status(self, name: str) -> JobStatus | None:
        if name not in self.jobs:
            return None
        job, begun, trains = self.jobs[name], self.submitted.get(name, 0.0), name not in self.paused
        running = State.RECOVERING if name in self.recovering else State.RUNNING
        base: Any = dict.fromkeys(JobStatus.__dataclass_fields__)
        return JobStatus(**base | {
            "name": name, "state": running if self.is_active(name) else State.ENDED, "target": job.target,
            "checkpoint_batches": self.recovering.get(name), "reason": Reason("its_turn"),
            "batches": int(self.batches.get(name, 0.0)), "deadline": begun + job.deadline, "submitted_at": begun,
            "share": float(trains), "incarnation": 1, "restarts": 0, "lost_batches": 0, "paused": not trains,
            "devices": tuple(range(self.present.all)) if trains else (),
        })  # fmt: skip

    # ------------------------------------------------------------------------------------------------ what happens

    def tell(self, run: MarketController, event: Event | CloudEvent) -> list[Any]:
        """Tell an event, and obey."""
        run.nodes = self.nodes  # it hears of all nodes at once
        answers = run.handle(event, self.now, self)
        for answer in answers:
            match answer:
                case Ask():
                    self.told.append(answer)
                case IntervalEnded():
                    self.rows.append(answer)
                    self.spent += answer.cost
                case NodesWanted():
                    assert answer.version == len(self.wanted) + 1
                    self.wanted.append(answer)
                    self.obey()
        wakeup = run.wakeup()
        assert wakeup is None or wakeup > self.now
        return list(answers)

    def obey(self) -> None:
        """Bring up the nodes that are wanted, as far as there are any."""
        if not self.present.all:
            self.trains_at = self.now + self.warm_up
        self.present = self.asked_for.minimum(NodeCounts(self.spot, self.on_demand))

    @property
    def asked_for(self) -> NodeCounts:
        """Nodes that are wanted."""
        return NodeCounts(*self.wanted[-1][1:3]) if self.wanted else NodeCounts()

    @property
    def held(self) -> list[NodeCounts]:
        """Nodes that each interval has held."""
        return [NodeCounts(row.spot, row.on_demand) for row in self.rows]

    def submit(self, run: MarketController, job: Job) -> list[Any]:
        """Submit another job."""
        self.jobs[job.name], self.submitted[job.name] = job, self.now
        return self.tell(run, Submit((job,)))

    def live(self, run: MarketController, seconds: float, step: float = 0.5) -> None:
        """Let time pass."""
        for _ in range(int(seconds / step)):
            if self.nodes != self._seen:
                self._seen = self.nodes
                self.tell(run, self._seen)
            self.quote(run)
            wakeup = run.wakeup()
            if wakeup is not None and wakeup <= self.now:
                self.tell(run, Tick())
            if self.present.minimum(self.asked_for) != self.asked_for:
                self.obey()
            self._train(step)
            self.now += step

    def quote(self, run: MarketController) -> None:
        """Quote what the recording has for this interval and the next one."""
        trace = self.trace
        while trace is not None and self._quoted < min(int(self.now // trace.seconds) + 2, len(trace)):
            row, self._quoted = self._quoted, self._quoted + 1
            self.tell(run, Quoted(float(trace.price[row]), int(trace.available[row]), trace.on_demand, row))

    def _train(self, seconds: float) -> None:
        busy = [name for name in self.jobs if name not in self.paused and not self.closing]
        share = self.present.all / max(len(busy), 1) if self.now >= self.trains_at else 0.0
        for name in busy:
            done = self.batches.get(name, 0.0) + share * seconds
            self.batches[name] = min(done, float(self._need(name)))
