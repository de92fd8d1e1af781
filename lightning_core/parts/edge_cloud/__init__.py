"""Edge and cloud: where the jobs of a pool train over a day, by an integer program, and moves when more arrives.

The program and the heuristics are in :mod:`.placement`. The controller ``plan`` holds a pool with locations to a plan:
``controllers: {plan: {}}`` in its bundle. The command ``place`` makes plans, simulates them and gives them to pools.
Source: the paper on edge and cloud (``docs/parts/edge-and-cloud.md``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from lightning_core.core.parts import Part, later
from lightning_core.parts.edge_cloud.day_plan import DemandSeen, PlanGiven


def _add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    from lightning_core.parts.edge_cloud.place_commands import add_commands

    add_commands(command)


part = Part(
    controllers={"plan": later("lightning_core.parts.edge_cloud.placement_controller", "PlacementController")},
    events={"plan_given": PlanGiven, "demand_seen": DemandSeen},
    commands=_add_commands,
)
"""What ``lightning_core`` registers as the part ``edge_cloud``."""
