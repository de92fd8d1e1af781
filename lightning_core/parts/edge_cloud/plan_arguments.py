"""Arguments of commands that plan a day, and the plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.parts.edge_cloud.day_plan import MOVE_PRICE

if TYPE_CHECKING:  # solvers take longer to import than most commands to run
    from lightning_core.parts.edge_cloud.placement import Demands, Solution, Weights

# Optimality gap, the default of the planner too.
GAP = 1e-3


def add_plan(made: argparse.ArgumentParser) -> None:
    """Add the arguments of a plan."""
    made.add_argument(
        "demands", type=Path, metavar="DEMANDS.yaml", help="file with periods, nodes, GPUs, levels and jobs"
    )
    made.add_argument("--cost", type=float, default=0.5, metavar="W", help="weight of the cost (default 0.5)")
    made.add_argument(
        "--accuracy", type=float, default=0.5, metavar="W", help="weight of the mean accuracy (default 0.5)"
    )
    made.add_argument("--moves", type=float, default=0.01, metavar="W", help="weight of moved tasks (default 0.01)")
    made.add_argument("--mean-accuracy", type=float, metavar="A", help="minimum mean accuracy")
    made.add_argument(
        "--gap", type=float, default=GAP, metavar="FRACTION", help=f"optimality gap of the solver (default {GAP:g})"
    )
    made.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="time limit of the solver; with one, the plan depends on the machine's speed",
    )


def add_limits(made: argparse.ArgumentParser) -> None:
    """Add limit and price of a move within a period, and how the period is changed."""
    made.add_argument(
        "--max-extra-cost",
        type=float,
        default=0.5,
        metavar="FRACTION",
        help="maximum extra cost of a task that moves, relative to its planned cost (default 0.5)",
    )
    made.add_argument(
        "--move-price",
        type=float,
        default=MOVE_PRICE,
        metavar="FRACTION",
        help=f"price of a move within a period, relative to the task's planned cost (default {MOVE_PRICE:g})",
    )
    made.add_argument(
        "--reconfigure",
        choices=("replan", "heuristic"),
        default="replan",
        help="reaction to more arrivals: replan with moves weighed (default), or by the published heuristic, one task "
        "at a time",
    )


def weights_of(arguments: argparse.Namespace) -> Weights:
    """Return the weights of the objective."""
    from lightning_core.parts.edge_cloud.placement import Weights

    return Weights(arguments.cost, arguments.accuracy, arguments.moves)


def solve(arguments: argparse.Namespace, demands: Demands) -> Solution:
    """Return the best plan.

    Raises:
        InfeasibleError: If not all tasks can be served.
        ValueError: If the mean accuracy cannot be reached.
    """
    from lightning_core.parts.edge_cloud.placement import plan

    accuracy, gap, seconds = arguments.mean_accuracy, arguments.gap, arguments.seconds
    return plan(demands, weights_of(arguments), accuracy=accuracy, gap=gap, seconds=seconds)
