"""Lets a spot policy of this project, which decides for whole intervals of a market, play tick by tick.

Its intervals are the hours from the job's start on. It decides at the beginning of each, and anew once its spot node is
preempted. Hours that have passed had a spot node if there was one in each of their ticks. The safety net of the market
constrains what it requests, and :func:`~benchmarks.market.late.late_baselines.must_run` guards the deadline within an
hour.
"""

from __future__ import annotations

import numpy as np

from benchmarks.market.late.late_baselines import must_run
from benchmarks.market.late.node_play import EXACT, Kind, State
from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.forecasters import LastValue, LiveMarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import Observation, SpotPolicy
from lightning_core.parts.market.safety_net import SafetyNet
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES

HOUR = 3600.0


class HourSlots:
    """Plays a spot policy of this project, hour by hour.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: SpotPolicy) -> None:
        self.policy = policy
        self._hour, self._chosen = -1, Kind.NONE

    def decide(self, state: State) -> Kind:
        if state.elapsed == 0:
            self._hour, self._chosen = -1, Kind.NONE
        hour = int((state.elapsed + EXACT) // HOUR)
        preempted = self._chosen is Kind.SPOT and state.held is not Kind.SPOT
        if hour > self._hour or preempted:
            self._hour, self._chosen = hour, self._request(state, hour)
        if state.held is not Kind.SPOT and must_run(state):
            self._chosen = Kind.ON_DEMAND
        return self._chosen

    def _request(self, state: State, hour: int) -> Kind:
        if (hour + 1) * HOUR > state.job.deadline + EXACT:  # the part of an hour before the deadline
            return Kind.ON_DEMAND
        observation = observe(state, hour, self.policy.horizon)
        spot, on_demand = SafetyNet(observation).constrain(*self.policy.decide(observation), guarded=True)
        return Kind.SPOT if spot[0] else Kind.ON_DEMAND if on_demand[0] else Kind.NONE


def hour_slots(name: str) -> HourSlots:
    """Return a spot policy of this project by its name, with its defaults."""
    return HourSlots(SPOT_POLICIES[name]())


def observe(state: State, hour: int, horizon: int) -> Observation:
    """Return what a policy observes in an hour of a job; its forecast is that availability stays as it is."""
    job = state.job
    hours = int((job.deadline + EXACT) // HOUR)
    left = max(1 - job.start_up / HOUR, EXACT)  # of an hour with a launch
    work = SpotJob(job.work / HOUR, hours, max_nodes=1, growth_fraction=left, shrink_fraction=1.0)
    before, past = hours_seen(state, hour)
    counts = np.concatenate([past, np.full(hours - hour, int(state.spot))])
    batch = JobBatch([work], Market(np.full(len(counts), job.spot_price), counts, seconds=HOUR), [before])
    done = np.array([state.done / HOUR])
    spot, on_demand = (np.array([int(state.held is kind)]) for kind in (Kind.SPOT, Kind.ON_DEMAND))
    forecast = LiveMarketForecaster(LastValue()).look(batch, hour, horizon)
    return Observation(batch, hour, done, spot, on_demand, forecast, done, done)


def hours_seen(state: State, hour: int) -> tuple[int, IntArray]:
    """Return how many whole hours were seen before the job's start, and the count of each hour before this one."""
    tick = state.job.tick
    begin = len(state.seen) - 1 - round(state.elapsed / tick)  # ticks before the job's start
    before = int((begin * tick + EXACT) // HOUR)
    hours = ((np.arange(len(state.seen)) - begin) * tick + EXACT) // HOUR + before
    inside = (hours >= 0) & (hours < before + hour)
    counts = np.ones(before + hour, np.int64)
    np.minimum.at(counts, hours[inside].astype(np.int64), state.seen[inside].astype(np.int64))
    return before, counts
