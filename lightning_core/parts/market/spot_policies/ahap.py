"""AHAP: adaptive hybrid allocation with prediction (Kong et al., algorithm 1), a committed horizon control.

Theorem 1, the paper's bound on its utility, does not hold here; ``docs/decisions.md`` says why.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.core.saved_state import Stateful
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.programs.window_planner import End, WindowPlanner
from lightning_core.parts.market.spot_job import EXACT

Ahead = Literal["window_end", "now"]
Mode = Literal["default", "paper"]


class Ahap(Stateful):
    """Plans a window of forecasts exactly in each interval, and follows the mean of the last plans.

    A job that is as far as it should be at the window's end holds cheap spot nodes only.

    Args:
        omega: Intervals of the window after the present one.
        commitment: Plans to average, the printed ``v``, from 1 to ``omega + 1``.
        sigma: Spot price, relative to the on-demand price, up to which spot nodes are cheap; used only for jobs that
            are ahead.
        end: Worth of a window at its end (:data:`~lightning_core.parts.market.programs.window_planner.End`).
        ahead: Point at which progress is compared with an even pace: at the ``"window_end"``, or ``"now"``.
        mode: ``"default"``, or ``"paper"``: plans are summed, ends are literal, and no job is ahead in its last
            intervals.
        planner: Planner whose tables several policies share; it must have the same ``end``.

    Raises:
        ValueError: If one is out of its range.
    """

    STATE = ("_plans",)
    sees_value = True

    def __init__(
        self,
        omega: int = 2,
        commitment: int = 1,
        sigma: float = 0.6,
        end: End = "target",
        ahead: Ahead = "window_end",
        mode: Mode = "default",
        planner: WindowPlanner | None = None,
    ) -> None:
        if mode not in get_args(Mode) or end not in get_args(End) or ahead not in get_args(Ahead):
            known = f"{get_args(Mode)}, {get_args(End)} and {get_args(Ahead)}"
            raise ValueError(f"mode, end and ahead must be of {known}, got {mode!r}, {end!r} and {ahead!r}")
        if not (isinstance(omega, int) and isinstance(commitment, int)):
            raise ValueError(f"omega and commitment must be whole, got {omega} and {commitment}")
        if omega < 1:
            raise ValueError(f"omega must be at least 1 interval, got {omega}")
        if not 1 <= commitment <= omega + 1:
            raise ValueError(f"commitment must be 1 to omega + 1 = {omega + 1}, got {commitment}")
        if not sigma > 0:
            raise ValueError(f"sigma must be above 0, got {sigma}")
        self.paper = mode == "paper"
        end = "literal" if self.paper else end
        if planner is not None and planner.end != end:
            raise ValueError(f"planner must have the policy's end {end!r}, got {planner.end}")
        self.omega, self.commitment, self.sigma = omega, commitment, sigma
        self.horizon = omega
        self._ahead = ahead
        self.planner = planner or WindowPlanner(end)
        self._plans: list[IntArray] = []  # the newest first, of shape (2, jobs, commitment): spot, on-demand

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        if observation.interval == 0:
            self._plans = []
        self._plans = [np.stack(self._plan(observation)), *self._plans][: self.commitment]
        spot, on_demand = np.sum([plan[:, :, age] for age, plan in enumerate(self._plans)], axis=0)
        if self.paper:
            return spot, on_demand
        count = len(self._plans)
        return (2 * spot + count) // (2 * count), (2 * on_demand + count) // (2 * count)

    def _plan(self, observation: Observation) -> tuple[IntArray, IntArray]:
        batch, forecast = observation.batch, observation.forecast
        spot, on_demand = self.planner.plan(observation, self.omega, self.commitment)
        goal = observation.due(-1) if self._ahead == "now" else observation.due(self.omega)
        ahead = observation.progress >= goal - EXACT
        if self.paper:
            ahead &= observation.interval + 1 + self.omega <= batch.due
        if ahead.any():
            prices, counts = (column[:, : self.commitment] for column in forecast)
            cheap = (prices <= self.sigma * batch.on_demand[:, None]) & (counts >= batch.min_nodes[:, None])
            spot = np.where(ahead[:, None], np.where(cheap, np.minimum(counts, batch.max_nodes[:, None]), 0), spot)
            on_demand = np.where(ahead[:, None], 0, on_demand)
        return spot, on_demand
