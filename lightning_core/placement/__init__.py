"""Where tasks train over the day: at the edge or in the cloud."""

from lightning_core.placement.model import CLOUD, Choice, Cloud, Demands, EdgePrices, Gpu, Level, Node, PlacedJob
from lightning_core.placement.plan import Placed, Ranges, Task, Weights
from lightning_core.placement.planner import Infeasible, Solved, plan

__all__ = [
    "CLOUD", "Choice", "Cloud", "Demands", "EdgePrices", "Gpu", "Infeasible", "Level", "Node", "Placed", "PlacedJob",
    "Ranges", "Solved", "Task", "Weights", "plan",
]  # fmt: skip
