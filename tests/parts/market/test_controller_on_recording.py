"""The controller that ships plays a recorded market: it holds the nodes of the backtest, and pays the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.arrays import LEVELS, FloatArray
from lightning_core.core.control import Ask
from lightning_core.core.events import Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud_events import (
    IntervalEnded,
    NodesSeen,
    NodesWanted,
    Quoted,
    QuotedAhead,
    QuotedBefore,
)
from lightning_core.parts.market.forecasters import knows_future, make_market_forecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.job_model import THROUGHPUT_MARGIN
from lightning_core.parts.market.market_controller import MarketController
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from tests.examples import examples

MAX_NODES, DEADLINE, START = 12, 10, 1
# Batches of a node in an interval of one second, and the fraction of it that a change leaves: with these numbers all
# work is exact in floating point, however it is added up, so that no choice between equals depends on rounding.
RATE, KEPT = 8, 0.875


def measured(throughput: float) -> float:
    """Return the throughput that a plan sees as this one, by its margin, to the bit."""
    guess = throughput / (1 - THROUGHPUT_MARGIN)
    near = (guess, math.nextafter(guess, 0.0), math.nextafter(guess, math.inf))
    return next(one for one in near if (1 - THROUGHPUT_MARGIN) * one == throughput)


@dataclass
class Recorded:
    """A recorded market with one job, and the controller that wants its nodes: a pool without any delay.

    A quote is known when its interval begins. The controller decides by the nodes of the interval before, as a backtest
    does, then the nodes change, and at once the job has done the work of the interval.
    """

    market: Market
    spot_job: SpotJob
    controller: MarketController
    lost_on_preemption: float = 0.0
    """Intervals at full throughput that a preemption costs, as of a backtest."""
    wanted: NodeCounts = field(default_factory=NodeCounts)
    held: NodeCounts = field(default_factory=NodeCounts)
    devices: int = 0
    batches: float = 0.0
    rows: list[IntervalEnded] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    nodes: NodesSeen = field(default_factory=NodesSeen)
    spent: float = 0.0
    locations: tuple[str, ...] = ()
    closing: bool = False

    def __post_init__(self) -> None:
        sizes = tuple(range(1, self.spot_job.max_nodes + 1))
        save_every = self.spot_job.preemption_cost * self.market.seconds
        self._job = Job("a", DEADLINE * self.market.seconds, BatchTarget(int(self.spot_job.work)), sizes=sizes,
                        max_devices=sizes[-1], can=frozenset(Capability), save_every=save_every)  # fmt: skip

    # What a controller may look at.

    def names(self) -> list[str]:
        return ["a"] if self.is_active("a") else []

    def is_active(self, name: str) -> bool:
        return self.batches < self.spot_job.work

    def job(self, name: str) -> Job:
        return self._job

    def throughputs(self, name: str) -> Mapping[int, float]:
        return {n: measured(self.spot_job.throughput[n] / self.market.seconds) for n in self._job.sizes}

    def resize_seconds(self, name: str) -> float | None:
        return None

    def forecast_work(self, name: str) -> FloatArray:
        return np.full(len(LEVELS), np.nan)  # its target is in batches

    def status(self, name: str) -> JobStatus:
        base: Any = dict.fromkeys(JobStatus.__dataclass_fields__)
        at = START * self.market.seconds
        counts = dict.fromkeys(("restarts", "lost_batches", "incarnation", "checkpoint_batches"), 0)
        return JobStatus(**base | counts | {
            "name": name, "state": State.RUNNING if self.is_active(name) else State.ENDED, "paused": False,
            "reason": Reason("its_turn"), "target": self._job.target, "batches": int(self.batches), "share": 1.0,
            "submitted_at": at, "deadline": at + self._job.deadline, "devices": tuple(range(self.held.all)),
        })  # fmt: skip

    # What happens.

    def play(self) -> None:
        self.tell(self.quote(0), 0.0)
        for interval in range(START, START + DEADLINE):
            now = interval * self.market.seconds
            self.tell(self.quote(interval), math.nextafter(now, 0.0))
            self.tell(Submit((self._job,)) if interval == START else Tick(), now)
            before = self.held
            self.hold(interval, now)
            self.train(interval, before, now)
            if self.is_active("a"):  # nodes that were to be replaced are given up by now
                self.tell(Tick(), now + 0.6 * self.market.seconds)
                self.hold(interval, now + 0.6 * self.market.seconds)
        if self.is_active("a"):  # late: the interval that has ended is entered as the next one begins
            self.tell(Tick(), (START + DEADLINE) * self.market.seconds)

    def hold(self, interval: int, now: float) -> None:
        """Let the nodes be those that are wanted, as far as they are on offer, and again as they are wanted then."""
        while (held := self.wanted.minimum(NodeCounts(int(self.market.available[interval]), 10**6))) != self.held:
            self.held = held
            spot, on_demand = (
                tuple(f"{kind}-{k}" for k in range(number)) for kind, number in zip("so", held, strict=True)
            )
            self.nodes = NodesSeen(spot, on_demand, held.all)
            self.tell(self.nodes, now)

    def train(self, interval: int, before: NodeCounts, now: float) -> None:
        """Do the work of an interval on as many devices as the job is asked to train on."""
        job, full = self.spot_job, self.spot_job.throughput[-1]
        if self.is_active("a"):
            n = self.devices
            launched = self.held.spot > before.spot or self.held.on_demand > before.on_demand
            left = job.growth_fraction if launched or n < before.all else 1.0
            preempted = before.spot > self.market.available[interval]
            lost = max(self.lost_on_preemption * full - (1 - left) * job.throughput[n], 0.0) if preempted else 0.0
            to_do = job.work - self.batches + lost
            self.batches = min(max(self.batches + left * job.throughput[n] - lost, 0.0), job.work)
            if not self.is_active("a"):
                now += self.market.seconds * (1.0 - left + to_do / job.throughput[n])
            self.tell(Report("a", 1, interval, 1, int(self.batches), 1.0), now)
            self.hold(interval, now)
        self.progress.append(self.batches)

    def quote(self, interval: int) -> Quoted:
        price, available = float(self.market.price[interval]), int(self.market.available[interval])
        return Quoted(price, available, self.market.on_demand, interval)

    def tell(self, event: Any, now: float) -> None:
        for answer in self.controller.handle(event, now, self):
            match answer:
                case NodesWanted():
                    self.wanted = NodeCounts(answer.spot, answer.on_demand)
                case Ask():
                    self.devices = answer.devices or 0
                case IntervalEnded():
                    self.rows.append(answer)


@pytest.mark.promise("R28")
@given(
    st.sampled_from([*sorted(SPOT_POLICIES), "ahap:omega=5,commitment=2"]),
    st.sampled_from(["last", "seasonal:period=3", "autoregressive:order=1,window=4,refit=2", "perfect",
                     "noisy:by=0.5,seed=3", "noisy:by=2,price=1,count=8,tails=heavy"]),
    st.lists(st.integers(0, 16), min_size=24, max_size=24), st.lists(st.floats(0.1, 1.2), min_size=24, max_size=24),
    st.sampled_from([0, 1, 12]),
    st.integers(1, 100), st.sampled_from([0.0, 0.5, 0.75]), st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(24), deadline=None)
def test_the_controller_holds_and_pays_on_a_recording_what_a_backtest_does(
    policy: str,
    forecaster: str,
    counts: list[int],
    prices: list[float],
    past: int,
    work: int,
    preemption_cost: float,
    loses: bool,
) -> None:
    # The pool begins with the job, and the first quote holds before it.
    counts[past], prices[past] = counts[past + 1], prices[past + 1]
    whole = Market(np.array(prices), np.array(counts), seconds=1.0)
    market = Market(whole.price[past:], whole.available[past:], seconds=1.0)
    job = SpotJob(float(RATE * work), DEADLINE, 1, MAX_NODES, tuple(float(RATE * n) for n in range(MAX_NODES + 1)),
                  KEPT, KEPT, value=0.0, preemption_cost=preemption_cost, hand_over_time=1.0 - KEPT,
                  minimum_charge=0.0)  # fmt: skip
    lost = preemption_cost if loses else 0.0
    forecasts = make_market_forecaster(forecaster, market.seconds)
    if knows_future(forecaster):  # that of the pool, whose noise is drawn from its first interval on
        forecasts.recording, forecasts.first = market, past
    [ledger] = backtest(
        [SPOT_POLICIES.make(policy)], JobBatch([job], whole, [past + START]), forecasts, preemption_cost=lost
    )
    controller = MarketController(1.0, policy, KEPT, forecaster=forecaster, terms={"forecaster": forecaster})
    driver = Recorded(market, job, controller, lost)
    if past:
        driver.tell(QuotedBefore(tuple(prices[:past]), tuple(counts[:past])), 0.0)
    driver.tell(QuotedAhead(tuple(prices[past:]), tuple(counts[past:])), 0.0)
    driver.play()
    assert driver.progress == ledger.progress[0].tolist()
    rows = {row.number - START: row for row in driver.rows}
    held = [(rows[k].spot, rows[k].on_demand) if k in rows else (0, 0) for k in range(DEADLINE)]
    assert held == list(zip(ledger.spot[0].tolist(), ledger.on_demand[0].tolist(), strict=True))
    assert [rows[k].cost if k in rows else 0.0 for k in range(DEADLINE)] == pytest.approx(ledger.paid[0].tolist())
