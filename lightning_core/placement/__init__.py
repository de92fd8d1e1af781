"""Placement of tasks over the day: at the edge or in the cloud."""

from lightning_core.core.control.day_plan import CLOUD
from lightning_core.placement.demands import Choice, Cloud, Demands, EdgePrices, Gpu, Level, Node, PlacedJob
from lightning_core.placement.plan import ObjectiveRanges, Placement, Task, Weights
from lightning_core.placement.planner import InfeasibleError, Solution, plan

__all__ = [
    "CLOUD",
    "Choice",
    "Cloud",
    "Demands",
    "EdgePrices",
    "Gpu",
    "InfeasibleError",
    "Level",
    "Node",
    "ObjectiveRanges",
    "PlacedJob",
    "Placement",
    "Solution",
    "Task",
    "Weights",
    "plan",
]  # fmt: skip
