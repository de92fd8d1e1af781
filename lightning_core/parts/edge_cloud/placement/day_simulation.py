"""Simulation of a day: the plan, the forecasts step by step, and the demand served.

A step is a quarter of an hour or so, and each period has the same number. Before a step the demand of that step and the
next ones of its period, as many as the horizon has, is forecast from the steps before. The plan is changed where the
highest of these forecasts exceeds it. Samples beyond the capacity of a task's GPUs are not served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.edge_cloud.placement.demands import Demands
from lightning_core.parts.edge_cloud.placement.plan import TaskPlacement
from lightning_core.parts.edge_cloud.placement.predictor import HORIZON
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits, Reconfigurer
from lightning_core.parts.edge_cloud.placement.replanner import Replanner
from lightning_core.planning.time_series import Forecaster


class DayResult(NamedTuple):
    """Result of a day.

    Attributes:
        served: Fraction of the arrived samples that were served.
        cost: Cost of a window, summed over periods, each the mean over its steps.
        moves: Moves of tasks within periods.
        left: Number of times that a task needed more than there was room for.
        loads: GPUs used at each location by step, shape ``(steps,)``.
    """

    served: float
    cost: float
    moves: int
    left: int
    loads: Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Surges:
    """A demand as planned, with noise and occasional surges.

    Args:
        size: Size of a surge, relative to the planned demand.
        events: Mean number of surges of each job in each period.
        lasts: Steps of a surge at its height.
        ramp: Steps in which it grows, and in which it ends.
        noise: Standard deviation, relative to the planned demand.
        seed: Seed of the draws.
    """

    size: float = 0.2
    events: float = 1.0
    lasts: int = 4
    ramp: int = 3
    noise: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        for rule in ("size", "events", "lasts", "ramp", "noise"):
            if not 0 <= getattr(self, rule) < np.inf:
                raise ValueError(f"{rule} must be at least 0 and finite, got {getattr(self, rule)}")

    def draw(self, demands: Demands, steps: int) -> dict[str, FloatArray]:
        """Return the arrivals for a task of each job in each step, relative to plan, shape ``(periods * steps,)``."""
        draw = np.random.default_rng(self.seed)
        total = steps * len(demands.periods)
        slope = np.arange(1, self.ramp + 1) / (self.ramp + 1)
        shape = self.size * np.concatenate([slope, np.ones(self.lasts), slope[::-1]])
        found = {}
        for name in demands.jobs:
            begins = draw.random(total) < self.events / steps
            more = np.convolve(begins.astype(float), shape)[:total] if len(shape) else np.zeros(total)
            factors = 1.0 + np.minimum(more, self.size) + self.noise * draw.standard_normal(total)
            found[name] = np.maximum(factors, 0.05)
        return found


def simulate_day(
    placement: TaskPlacement,
    arrivals: Mapping[str, FloatArray],
    forecaster: Forecaster | None,
    limits: ReconfigurationLimits | None = None,
    *,
    horizon: int = HORIZON,
    reconfigurer: type[Reconfigurer] = Replanner,
) -> DayResult:
    """Simulate a day.

    Args:
        placement: The plan.
        arrivals: Arrivals for a task in each step, by job, relative to plan; the same number of steps per period.
        forecaster: Forecaster of the arrivals; None to keep the plan unchanged.
        limits: Limits of a change.
        horizon: Steps ahead that are forecast, at least 1.
        reconfigurer: Changes the plan.

    Raises:
        ValueError: If the arrivals are of other jobs, their number is not the same for each period, or no step is
            forecast.
    """
    demands = placement.demands
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    if strangers := set(demands.jobs) ^ set(arrivals):
        raise ValueError(f"arrivals must be one series for each of {', '.join(demands.jobs)}; see {min(strangers)!r}")
    lengths = {len(values) for values in arrivals.values()}
    total = max(lengths)
    if len(lengths) > 1 or not total or total % len(demands.periods):
        raise ValueError(
            f"arrivals must be as many steps for each of {len(demands.periods)} periods, got {sorted(lengths)} in all"
        )
    steps = total // len(demands.periods)
    foreseen = {} if forecaster is None else {
        name: np.concatenate([np.ones((1, horizon)), forecaster.table(np.asarray(values, float), horizon)[:-1]])
        for name, values in arrivals.items()
    }  # fmt: skip
    loads = {location: np.zeros(total) for location in demands.locations}
    came = served = cost = 0.0
    moves = left = 0
    for period in range(len(demands.periods)):
        now, end = reconfigurer(placement, period, limits), (period + 1) * steps
        for step in range(period * steps, end):
            if foreseen:
                # At least the planned demand, whose GPUs are reserved.
                most = {name: float(table[step, : end - step].max()) for name, table in foreseen.items()}
                wanted = {name: now.planned_rate(name) * max(factor, 1.0) for name, factor in most.items()}
                changes = now.serve(wanted)
                moves += sum(change.kind == "moved" for change in changes)
                left += sum(change.kind in ("left", "partly") for change in changes)
            for task, choice in now.now.items():
                wants = now.planned_rate(task.job) * float(arrivals[task.job][step])
                came += wants
                needs = demands.jobs[task.job].during(period)
                served += min(wants, demands.served_rate(needs, choice))
                cost += choice.cost / steps
                loads[choice.location][step] += choice.gpu_count
        for task, at in placement.unserved:
            if at == period:
                some = arrivals[task.job][period * steps : (period + 1) * steps]
                came += now.planned_rate(task.job) * float(some.sum())
    return DayResult(served / came if came else 1.0, cost, moves, left, loads)
