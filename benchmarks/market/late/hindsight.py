"""The optimum in hindsight: the least cost of a job whose availability is all known, by dynamic programming over ticks.

The state of a tick is the work left and the kind of node that is held and has started. A launch is one step over all
ticks of its start-up, for no optimal plan gives up a node that has not worked yet. Work is counted in the greatest unit
of which all times are multiples, so that this is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.market.late.node_play import EXACT, Job, Kind
from lightning_core.core.arrays import BoolArray, FloatArray


def optimum(job: Job, available: BoolArray, starts: Sequence[int]) -> FloatArray:
    """Return the least cost of completing a job in time, from each of some ticks of a recording on.

    Args:
        job: The job.
        available: Whether a spot node is available in each tick of the recording.
        starts: Ticks at which the job starts, shape ``(n,)``.

    Returns:
        Costs in seconds of an on-demand node, shape ``(n,)``.

    Raises:
        ValueError: If a time is not whole seconds.
    """
    work, deadline, start_up, tick = _in_units(job)
    launch = max(math.ceil(start_up / tick), 1)  # ticks of a launch
    spot: BoolArray = np.array([available[start : start + job.ticks] for start in starts], np.bool_)
    never = np.full((len(starts), work + 1), math.inf)
    never[:, 0] = 0.0
    # By tick and kind held, the least cost from there on, of shape (starts, 1 + work) by the work left.
    cost = {job.ticks: dict.fromkeys(Kind, never)}

    def then(kind: Kind, at: int, ticks: int, lost: int) -> FloatArray:
        """Return the least cost after some ticks on a node of which a part is lost to its start-up."""
        done = min((at + ticks) * tick, deadline) - at * tick - lost
        rest = np.zeros_like(never)
        if done <= work:
            rest[:, max(done, 0) :] = cost[at + ticks][kind][:, : work + 1 - max(done, 0)]
        return rest

    for at in range(job.ticks - 1, -1, -1):
        idle = cost[at + 1][Kind.NONE]
        if at + launch <= job.ticks:
            stays = spot[:, at : at + launch].all(axis=1, keepdims=True)
            idle = np.minimum(idle, launch + then(Kind.ON_DEMAND, at, launch, start_up))
            on_spot = launch * job.spot_price + then(Kind.SPOT, at, launch, start_up)
            idle = np.where(stays, np.minimum(idle, on_spot), idle)
        on_spot = np.minimum(idle, job.spot_price + then(Kind.SPOT, at, 1, 0))
        on_spot = np.where(spot[:, at, None], on_spot, idle)
        on_demand = np.minimum(idle, 1.0 + then(Kind.ON_DEMAND, at, 1, 0))
        cost[at] = {Kind.NONE: idle, Kind.SPOT: on_spot, Kind.ON_DEMAND: on_demand}
        cost.pop(at + launch + 1, None)
    least: FloatArray = cost[0][Kind.NONE][:, work] * job.tick
    return least


def _in_units(job: Job) -> tuple[int, int, int, int]:
    """Return work, deadline, start-up and tick in the greatest unit of which all are multiples."""
    seconds = job.work, job.deadline, job.start_up, job.tick
    whole = [round(time) for time in seconds]
    if any(abs(time - number) > EXACT for time, number in zip(seconds, whole, strict=True)):
        raise ValueError(f"all times must be whole seconds, got {job}")
    unit = math.gcd(*whole)
    work, deadline, start_up, tick = (number // unit for number in whole)
    return work, deadline, start_up, tick
