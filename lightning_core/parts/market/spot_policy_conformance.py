"""Conformance suite for spot policies, whatever their market.

Run it on a policy of your own::

    check_spot_policy(MyPolicy)

Each check of :data:`CHECKS` can be run by itself as well, on any job and market.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster, Noisy
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import ForecastProvider, Observation, SpotForecast, SpotPolicy
from lightning_core.parts.market.online.online_plan import OnlinePlan
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.spot_job import EXACT, Overhead, SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies.max_spot import MaxSpot
from lightning_core.parts.market.spot_policies.on_demand import OnDemand
from lightning_core.testing.checks import require

Make = Callable[[], SpotPolicy]
World = tuple[SpotJob, Market]
"""A job that can be ended in time, and a market at least as long as its deadline."""

OVERHEADS: tuple[Overhead, ...] = ("total", "launches")


def check_spot_policy(make: Make, worlds: Iterable[World] | None = None) -> None:
    """Run all checks on a policy.

    Args:
        make: Creates the policy, which may have state.
        worlds: Jobs and their markets; None for 20 random ones.

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> from lightning_core.parts.market.spot_policies import UniformProgress
        >>> check_spot_policy(UniformProgress)
    """
    for seed, world in enumerate(random_worlds() if worlds is None else worlds):
        for check in CHECKS:
            check(make, world, seed)


def check_requests(make: Make, world: World, seed: int = 0) -> None:
    """Check the requests of a policy: whole numbers of nodes, and unchanged arguments."""
    job, market = world
    for forecasts in (_NOW, _noise(seed)):
        backtest([_Checked(make())], JobBatch([job] * 2, market, [0, 0]), forecasts)


def check_backtest(make: Make, world: World, seed: int = 0) -> None:
    """Check that the job ends in time whatever is forecast and preempted, within the offers."""
    job, market = world
    intervals = slice(0, job.deadline)
    for overhead in OVERHEADS:
        ledger = _play(make(), world, _noise(seed), overhead)
        held = (ledger.spot + ledger.on_demand)[0, intervals]
        require(bool(ledger.on_time.all()), f"a job that can be ended in time must be, got {ledger.late[0]} too late")
        enough = (held == 0) | ((held >= job.min_nodes) & (held <= job.max_nodes))
        require(bool(enough.all()), f"a job must hold 0 or {job.min_nodes} to {job.max_nodes} nodes, got {held}")
        offered = np.all(ledger.spot[0, intervals] <= market.available[intervals])
        require(bool(offered), "a job must not hold more spot nodes than are on offer")
        best = float(optimum(JobBatch([replace(job, overhead="total")], market, [0]))[0])  # launches earn no more
        require(float(ledger.utility[0]) <= best + EXACT, f"no policy can earn more than the optimum, {best:g}")
    billed = replace(job, hand_over_time=0.2 * min(job.launch, 1.0), minimum_charge=0.1)
    ledger = _play(make(), (billed, market), _noise(seed))
    require(bool(ledger.on_time.all()), "a job that trains on while nodes are launched must be in time as well")


def check_independence(make: Make, world: World, seed: int = 0) -> None:
    """Check that a policy decides the same whatever plays beside it, and that interval 0 resets it."""
    job, market = world
    policy, noise = make(), _noise(seed)
    alone = _play(policy, world, noise)
    again = _play(policy, world, noise)
    require(_same(alone, again), "interval 0 must reset the policy: a second run must equal the first")
    batch = JobBatch([job] * 3, market, [0] * 3)
    beside = backtest([OnDemand(), make(), MaxSpot()], batch, noise, preemption_cost=job.preemption_cost)[1]
    require(_same(alone, beside.of(slice(2, 3))), "a job must get the same nodes whatever plays beside it")


def check_causality(make: Make, world: World, seed: int = 0) -> None:
    """Check that nothing depends on later intervals, unless they were forecast."""
    job, market = world
    draw, now = np.random.default_rng(seed), job.deadline // 2
    price, available = market.price.copy(), market.available.copy()
    price[now + 1 :] = draw.uniform(0.05, 1.3, len(price) - now - 1)
    available[now + 1 :] = draw.integers(0, 16, len(available) - now - 1)
    one, other = (_play(make(), (job, each), _NOW) for each in (market, Market(price, available)))
    past = slice(0, now + 1)
    same = all(
        np.array_equal(a[0, past], b[0, past]) for a, b in ((one.spot, other.spot), (one.on_demand, other.on_demand))
    )
    require(same, "a policy must not look at prices and counts after the interval")


def check_beginning_late(make: Make, world: World, seed: int = 0) -> None:
    """Check that a policy can begin in any interval, as it does in a run that is resumed."""
    job, market = world
    interval = np.random.default_rng(seed).integers(job.deadline)
    left = 0.5 * (job.deadline - job.launch - int(interval)) * job.throughput[-1]
    done = max(job.work - left, 0.0)
    held = OnlinePlan(make(), _NOW).decide(job, market, 0, int(interval), done, NodeCounts())
    within = held.all == 0 or job.min_nodes <= held.all <= job.max_nodes
    require(within, f"a job must hold 0 or {job.min_nodes} to {job.max_nodes} nodes, got {held.all}")


CHECKS: tuple[Callable[[Make, World, int], None], ...] = (
    check_requests, check_backtest, check_independence, check_causality, check_beginning_late,
)  # fmt: skip
"""Checks that must pass for every spot policy; each takes a factory, a job with its market, and a seed."""


def random_worlds(number: int = 20, seed: int = 0) -> Iterator[World]:
    """Yield random jobs that can be ended in time, with random markets.

    Args:
        number: Number of them.
        seed: Seed of the draws.
    """
    draw = np.random.default_rng(seed)
    for _ in range(number):
        deadline, max_nodes = int(draw.integers(1, 11)), int(draw.integers(1, 17))
        throughput = (0.0, *np.cumsum(draw.uniform(0.05, 1.0, max_nodes)).tolist())
        growth = float(draw.uniform(0.3, 1.0))
        job = SpotJob(
            float(draw.uniform(0.05, 1.0)) * (growth + deadline - 1) * throughput[-1], deadline,
            int(draw.integers(1, max_nodes + 1)), max_nodes, throughput, growth, float(draw.uniform(growth, 1.0)),
            preemption_cost=float(draw.choice([0.0, 0.4, 1.5])),
        )  # fmt: skip
        yield job, Market(draw.uniform(0.05, 1.3, 10), draw.integers(0, 17, 10))


_NOW = MarketForecaster(LastValue())


def _noise(seed: int) -> MarketForecaster:
    """Return forecasts that are far off."""
    return MarketForecaster(Noisy(2.0, seed=seed), Noisy(2.0, 8.0, "heavy", seed))


def _play(policy: SpotPolicy, world: World, forecasts: ForecastProvider, overhead: Overhead = "launches") -> Ledger:
    job, market = world
    batch = JobBatch([replace(job, overhead=overhead)], market, [0])
    [ledger] = backtest([policy], batch, forecasts, preemption_cost=job.preemption_cost)
    return ledger


def _same(one: Ledger, other: Ledger) -> bool:
    return np.array_equal(one.spot, other.spot) and np.array_equal(one.on_demand, other.on_demand)


class _Checked:
    """A policy whose requests are looked at before the safety net makes them feasible."""

    def __init__(self, policy: SpotPolicy) -> None:
        self._policy = policy
        self.horizon = policy.horizon
        require(isinstance(self.horizon, int) and self.horizon >= 0, f"horizon must be at least 0, got {self.horizon}")

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        before = _columns(observation)
        wanted = self._policy.decide(observation)
        same = all(map(np.array_equal, _columns(observation), before))
        require(same, "decide() must not change the observation")
        require(len(wanted) == 2, "decide() must return the spot and the on-demand nodes")
        shape = (len(observation.batch),)
        for kind, number in zip(("spot", "on-demand"), wanted, strict=True):
            require(np.shape(number) == shape, f"{kind} nodes must have shape {shape}, got {np.shape(number)}")
            require(np.issubdtype(number.dtype, np.integer), f"{kind} nodes must be whole, got {number.dtype}")
            require(bool(np.all(number >= 0)), f"{kind} nodes must be at least 0, got {number}")
        return wanted


def _columns(observation: Observation) -> list[np.ndarray]:
    columns = [getattr(observation, f.name) for f in fields(observation)] + list(vars(observation.batch).values())
    flat = [part for one in columns for part in (one if isinstance(one, SpotForecast) else (one,))]
    return [np.copy(one) for one in flat if isinstance(one, np.ndarray)]
