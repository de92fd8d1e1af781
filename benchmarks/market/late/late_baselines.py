"""What is published for one node under a deadline: rules of "Can't Be Late", as its text has them and as its code does.

All of them keep the deadline by a safety net: a job that is idle, or could leave its on-demand node, gets an on-demand
node once less than two start-ups are left beside its work (:func:`must_run`).
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.market.late.node_play import EXACT, Kind, State
from lightning_core.core.arrays import BoolArray


def must_run(state: State) -> bool:
    """Return whether a job without a spot node must be on demand now, and so until its end.

    The paper's condition is R(t) < C(t) + 2d. Where a decision holds for a tick, a tick more of idling must leave time
    for a start-up as well.
    """
    job = state.job
    return state.time_left < state.left + max(2 * job.start_up, job.start_up + job.tick) - EXACT


class OnDemand:
    """An on-demand node from the start to the end."""

    def decide(self, state: State) -> Kind:
        return Kind.ON_DEMAND


class Greedy:
    """Spot nodes whenever there are any, else none until the safety net."""

    def decide(self, state: State) -> Kind:
        if state.held is not Kind.SPOT and must_run(state):
            return Kind.ON_DEMAND
        return Kind.SPOT if state.spot else Kind.NONE


class UniformProgress:
    """Uniform Progress as the text has it.

    A spot node is kept until it is preempted. An idle job takes a spot node, or an on-demand node if it is behind an
    even pace. On an on-demand node it stays until it is as far as it should be two start-ups later, and then takes a
    spot node or idles.
    """

    def decide(self, state: State) -> Kind:
        if state.held is Kind.SPOT:
            return Kind.SPOT
        if must_run(state):
            return Kind.ON_DEMAND
        if state.held is Kind.ON_DEMAND and state.done < state.even(2 * state.job.start_up) - EXACT:
            return Kind.ON_DEMAND
        if state.spot:
            return Kind.SPOT
        return Kind.ON_DEMAND if state.done < state.even() - EXACT else Kind.NONE


class UniformProgressCode:
    """Uniform Progress as its code does: it leaves an on-demand node only for a spot node.

    Time is counted in whole ticks. A spot node that works is kept even in the last ticks.
    """

    def decide(self, state: State) -> Kind:
        job = state.job
        ticks_left = math.floor(state.time_left / job.tick + EXACT)

        def needed(start_ups: int) -> int:
            return math.ceil((state.left + start_ups * job.start_up) / job.tick - EXACT)

        if needed(1) >= ticks_left:
            return Kind.SPOT if state.held is Kind.SPOT and state.start_up < EXACT else Kind.ON_DEMAND
        if state.held is not Kind.SPOT and needed(2) >= ticks_left:
            return Kind.ON_DEMAND
        if state.held is Kind.ON_DEMAND and (not state.spot or state.done <= state.even(2 * job.start_up) + EXACT):
            return Kind.ON_DEMAND
        if state.spot:
            return Kind.SPOT
        return Kind.ON_DEMAND if state.done < state.even() - EXACT else Kind.NONE


class LifetimeOracle:
    """Uniform Progress with the paper's oracle of the next spot lifetime.

    With ``k`` the ratio of the prices and ``d`` the start-up, an idle job takes a spot node only if it lives longer
    than ``k d / (k - 1)``, and a job on an on-demand node takes it at once if it lives longer than twice that.

    Args:
        waits: Whether a job waits on demand for such a spot node, as in the code, or idles once it is far enough.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self._coming: BoolArray = np.zeros(0, np.bool_)

    def reveal(self, coming: BoolArray) -> None:
        self._coming = coming

    def lifetime(self, state: State) -> float:
        """Return the seconds from now until there is no spot node; those to the deadline if there always is one."""
        rest = self._coming[round(state.elapsed / state.job.tick) :]
        return (len(rest) if rest.all() else int(rest.argmin())) * state.job.tick

    def decide(self, state: State) -> Kind:
        if state.held is Kind.SPOT:
            return Kind.SPOT
        if must_run(state):
            return Kind.ON_DEMAND
        on_demand, k, d = state.held is Kind.ON_DEMAND, 1 / state.job.spot_price, state.job.start_up
        if state.spot and self.lifetime(state) > (2 if on_demand else 1) * k * d / (k - 1) + EXACT:
            return Kind.SPOT
        stays = on_demand and (self.waits or state.done < state.even(2 * d) - EXACT)
        return Kind.ON_DEMAND if stays or state.done < state.even() - EXACT else Kind.NONE
