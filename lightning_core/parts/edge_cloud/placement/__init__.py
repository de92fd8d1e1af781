"""Placement of tasks over the day: at the edge or in the cloud."""

from collections.abc import Mapping
from types import MappingProxyType

from lightning_core.parts.edge_cloud.day_plan import CLOUD, SampleNeeds
from lightning_core.parts.edge_cloud.placement.demands import (
    Choice,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    PlacedJob,
    TaskNeeds,
)
from lightning_core.parts.edge_cloud.placement.plan import ObjectiveRanges, Task, TaskPlacement, Weights
from lightning_core.parts.edge_cloud.placement.planner import InfeasibleError, Solution, plan
from lightning_core.parts.edge_cloud.placement.reconfigurer import Reconfigurer
from lightning_core.parts.edge_cloud.placement.replanner import Replanner

RECONFIGURERS: Mapping[str, type[Reconfigurer]] = MappingProxyType({"replan": Replanner, "heuristic": Reconfigurer})
"""By name: the default, which replans and weighs moves; the published heuristic, one task at a time."""

__all__ = [
    "CLOUD",
    "RECONFIGURERS",
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
    "SampleNeeds",
    "Solution",
    "Task",
    "TaskNeeds",
    "TaskPlacement",
    "Weights",
    "plan",
]  # fmt: skip
