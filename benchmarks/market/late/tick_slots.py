"""Lets a spot policy of this project play tick by tick: an interval of its market is a tick.

The safety net of the market constrains what it requests, as it does in a backtest and live.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.market.late.node_play import EXACT, Kind, State
from lightning_core.core.arrays import BoolArray
from lightning_core.parts.market.forecasters import LastValue, LiveMarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import Observation, SpotPolicy
from lightning_core.parts.market.safety_net import SafetyNet
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES, SemiMarkov


class TickSlots:
    """Plays a spot policy of this project.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: SpotPolicy) -> None:
        self.policy = policy

    def decide(self, state: State) -> Kind:
        observation = observe(state, self.policy.horizon)
        # The market knows whole ticks: not the part of one before the deadline, nor a job that needs it.
        last = state.time_left < state.left + state.job.start_up + state.job.tick - EXACT
        if observation.interval >= observation.batch.intervals or (last and state.held is not Kind.SPOT):
            return Kind.ON_DEMAND
        spot, on_demand = SafetyNet(observation).constrain(*self.policy.decide(observation), guarded=True)
        return Kind.SPOT if spot[0] else Kind.ON_DEMAND if on_demand[0] else Kind.NONE


def tick_slots(name: str) -> TickSlots:
    """Return a spot policy of this project by its name, with its defaults."""
    return TickSlots(SPOT_POLICIES[name]())


def with_recordings(recordings: Sequence[BoolArray]) -> TickSlots:
    """Return the policy that learns, with recordings of other zones."""
    return TickSlots(SemiMarkov(others=[recording.astype(np.int64) for recording in recordings]))


def observe(state: State, horizon: int) -> Observation:
    """Return what a policy observes in a tick of a job; its forecast is that availability stays as it is."""
    job = state.job
    interval, ticks = round(state.elapsed / job.tick), math.floor(job.deadline / job.tick + EXACT)
    work = SpotJob(
        job.work / job.tick, ticks, max_nodes=1, growth_fraction=1.0, shrink_fraction=1.0, value=0.0,
        launch_time=job.start_up / job.tick,
    )  # fmt: skip
    begin = len(state.seen) - 1 - interval  # ticks before the job's start
    counts = np.concatenate([state.seen, np.full(max(ticks - interval, 1), state.spot)]).astype(np.int64)
    market = Market(np.full(len(counts), job.spot_price), counts, seconds=job.tick)
    batch = JobBatch([work], market, [begin])
    done, start_up = np.array([state.done / job.tick]), np.array([state.start_up / job.tick])
    spot, on_demand = (np.array([int(state.held is kind)]) for kind in (Kind.SPOT, Kind.ON_DEMAND))
    forecast = LiveMarketForecaster(LastValue()).look(batch, min(interval, ticks - 1), horizon)
    return Observation(batch, interval, done, spot, on_demand, forecast, done, done, start_up)
