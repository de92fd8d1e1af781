"""A host on a market whose clock, nodes and workers are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_core.core.answers import Answer, Grant
from lightning_core.core.control import Ask, WallClock, part_objects
from lightning_core.core.events import Cell, Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.parts.market.cloud_events import CloudEvent, IntervalEnded, NodesSeen, Quoted
from lightning_core.parts.market.market_controller import MARKET as MARKET_NAME
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.scheduler.scheduler import Scheduler, Settings
from lightning_core.server.clocks import WallClockWatch
from lightning_core.server.host import Host
from tests.parts.market.messages import event_of

MARKET: dict[str, Any] = {
    "interval": 10.0, "policy": "max-spot", "initial_throughput": 1.0, "save_every": 0.0, "kept_fraction": 1.0,
    "leave": 0.0,
}  # fmt: skip


# A Monday, 2026-11-23, 12:00 UTC.
NOON = 1_795_435_200.0


@dataclass
class _Worker:
    incarnation: int
    devices: tuple[int, ...]
    began: int
    number: int = 0
    batches: int = 0
    busy: float = 0.0


class MarketPool:
    """Brings as many nodes as are wanted and can be had; a job trains a batch a second on each device with a node.

    Args:
        controllers: Arguments of each controller; None for the market alone.
        path: Path of its journal; None for none.
    """

    def __init__(self, controllers: Mapping[str, Mapping[str, Any]] | None = None, path: Path | None = None) -> None:
        self.settings = Settings("fifo", devices=16, controllers=dict(controllers or {"market": MARKET}))
        self.clock, self.spot, self.on_demand = 0.0, 100, 100
        self.rows: list[IntervalEnded] = []
        self.asks: list[Ask] = []
        self._path, self._workers = path, dict[str, _Worker]()
        self.open()

    def open(self) -> None:
        """Start a host, from the journal if there is one."""
        wall_time = WallClockWatch(lambda: WallClock(NOON + self.clock))
        self.host = Host(self.settings, self._path, lambda: self.clock, wall_time=wall_time)

    @property
    def scheduler(self) -> Scheduler:
        return self.host.scheduler

    @property
    def market(self) -> MarketController:
        market = self.scheduler.controllers[MARKET_NAME]
        assert isinstance(market, MarketController)
        return market

    @property
    def wanted(self) -> tuple[int, int]:
        """Nodes that are wanted."""
        level = self.scheduler.published("market")
        assert level is not None
        return level.body["spot"], level.body["on_demand"]

    def tell(self, event: Event | CloudEvent) -> list[Any]:
        return self._take(self.host.handle(event_of(event)))

    def quote(self, price: float, available: int, on_demand: float = 1.0) -> list[Any]:
        return self.tell(Quoted(price, available, on_demand))

    def submit(self, *jobs: Job) -> list[Any]:
        return self.tell(Submit(jobs))

    def live(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass."""
        for _ in range(round(seconds / step)):
            self.clock += step
            self._take(self.host.catch_up())
            spot, on_demand = self.wanted
            self.see(min(spot, self.spot), min(on_demand, self.on_demand))
            self._train(step)

    def see(self, spot: int, on_demand: int) -> None:
        """Tell which nodes there are."""
        names = tuple(f"s{k}" for k in range(spot)), tuple(f"d{k}" for k in range(on_demand))
        self.tell(NodesSeen(*names, warm=spot + on_demand))

    def _take(self, given: Sequence[Answer]) -> list[Any]:
        answers = part_objects(given)
        self.scheduler.check()
        self.rows += [answer for answer in answers if isinstance(answer, IntervalEnded)]
        self.asks += [answer for answer in answers if isinstance(answer, Ask)]
        return answers

    def _train(self, seconds: float) -> None:
        nodes = self.market.nodes
        placed = {one.job: one for one in self.scheduler.placements()}
        for name, worker in list(self._workers.items()):
            now_at = (placed[name].incarnation, placed[name].devices) if name in placed else None
            if now_at != (worker.incarnation, worker.devices):
                self.tell(WorkerExited(name, worker.incarnation, ExitCause.RELEASED))
                del self._workers[name]
        left = len(nodes.spot) + len(nodes.on_demand)
        for name, placement in {one.job: one for one in self.scheduler.placements()}.items():
            directive, devices = self.scheduler.directive(name), len(placement.devices)
            if not isinstance(directive, Grant) or not directive.share or devices > left:
                continue
            left -= devices
            incarnation, done = self.scheduler.incarnation(name), self.scheduler.last(name).batches
            worker = self._workers.setdefault(name, _Worker(incarnation, placement.devices, done, batches=done))
            worker.number, worker.busy = worker.number + 1, worker.busy + seconds
            worker.batches += int(seconds * devices)
            # The loss of a job that has one to reach is one over the root of its batches.
            cell = Cell(worker.number, worker.batches, worker.batches**-0.5)
            cells = (cell,) if self.scheduler.job(name).target.work is None and worker.batches else ()
            report = Report(name, incarnation, worker.number, directive.version, worker.batches, worker.busy, cells,
                            batches_at_start=worker.began)  # fmt: skip
            self.tell(report)
