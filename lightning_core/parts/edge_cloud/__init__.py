"""Edge and cloud: where the jobs of a pool train over a day, by an integer program, and moves when more arrives.

The program and the heuristics are in :mod:`.placement`. The controller ``plan`` holds a pool with locations to a plan:
``controllers: {plan: {}}`` in its bundle. The command ``place`` makes plans, simulates them and gives them to pools.
Source: the paper on edge and cloud (``docs/parts/edge-and-cloud.md``).
"""

from __future__ import annotations

from lightning_core.core.parts import LivePage, Part, later
from lightning_core.parts.edge_cloud.day_plan import DemandSeen, PlanGiven

part = Part(
    controllers={"plan": later("lightning_core.parts.edge_cloud.placement_controller", "PlacementController")},
    events={"plan_given": PlanGiven, "demand_seen": DemandSeen},
    commands=later("lightning_core.parts.edge_cloud.place_commands", "add_commands"),
    pages={
        "Plan": LivePage(
            later("lightning_core.parts.edge_cloud.plan_page", "draw"),
            lambda about: about["controllers"].get("plan") is not None,
        )
    },
)
"""What ``lightning_core`` registers as the part ``edge_cloud``."""
