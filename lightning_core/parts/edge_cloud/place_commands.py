"""``lightning-core place``: plan where the tasks of a day train, at the edge or in the cloud.

``plan`` and ``simulate`` launch nothing and move nothing. Commands that give a plan to a pool are in
:mod:`.plan_commands`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.cli.arguments import new_file
from lightning_core.parts.edge_cloud import plan_commands
from lightning_core.parts.edge_cloud.plan_arguments import add_limits, add_plan, solve, weights_of
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.storage.atomic_files import write_whole
from lightning_core.view.tables import print_table
from lightning_core.view.text import clean

if TYPE_CHECKING:  # solvers take longer to import than most commands to run
    from lightning_core.core.arrays import FloatArray
    from lightning_core.parts.edge_cloud.placement import Solution, TaskPlacement, Weights
    from lightning_core.parts.edge_cloud.placement.day_simulation import DayResult


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``place`` with its subcommands."""
    description = "plan where tasks train over a day, at the edge or in the cloud"
    commands = command("place", print, description).add_subparsers(required=True, metavar="WHAT")
    description = "print the best plan of a day: tasks by location and period, and their cost"
    made = commands.add_parser("plan", help=description, description=description)
    made.set_defaults(run=_plan)
    add_plan(made)
    made.add_argument("--baselines", action="store_true", help="compare with two simpler planners")
    made.add_argument("--picture", type=new_file, metavar="FILE", help="draw the plan: PNG, SVG or PDF")
    made.add_argument("--json", type=new_file, metavar="FILE", help="write the location of each task to this file")
    description = "simulate a planned day with surges: forecasts, moves, and the demand served"
    played = commands.add_parser("simulate", help=description, description=description)
    played.set_defaults(run=_simulate)
    add_plan(played)
    played.add_argument(
        "--steps", type=int, default=32, metavar="N", help="steps of each period (default 32: quarter hours)"
    )
    played.add_argument(
        "--surge",
        type=float,
        default=0.2,
        metavar="FRACTION",
        help="size of a surge, relative to the planned demand (default 0.2)",
    )
    played.add_argument(
        "--events", type=float, default=1.0, metavar="N", help="mean surges of a job in a period (default 1)"
    )
    played.add_argument("--noise", type=float, default=0.02, metavar="FRACTION",
                        help="standard deviation of the demand (default 0.02)")  # fmt: skip
    played.add_argument("--seed", type=int, default=0, metavar="N", help="seed of surges and noise (default 0)")
    played.add_argument(
        "--arrivals",
        type=Path,
        metavar="FILE.csv",
        help="demand to simulate instead: a column for each job, a row for each step, samples/s of a task",
    )
    add_limits(played)
    played.add_argument(
        "--picture", type=new_file, metavar="FILE", help="draw the load of each location: PNG, SVG or PDF"
    )
    played.add_argument("--json", type=new_file, metavar="FILE", help="also write the table to this file")
    plan_commands.add_commands(commands)


def _plan(arguments: argparse.Namespace) -> int:
    from lightning_core.parts.edge_cloud.demands_file import read_demands
    from lightning_core.parts.edge_cloud.placement import InfeasibleError

    demands = read_demands(arguments.demands)
    accuracy, solution, code = arguments.mean_accuracy, None, EXIT_MET
    try:
        solution = solve(arguments, demands)
        placement = solution.placement
    except InfeasibleError as error:
        print(f"not all tasks can be served: {error}; the plan that serves the most:")
        placement, code = error.largest, EXIT_NOT_MET
    _show(placement)
    if solution is not None:
        _compare(solution, weights_of(arguments), accuracy, baselines=arguments.baselines)
    if arguments.json:
        write_whole(arguments.json, json.dumps(_body(placement), indent=2, allow_nan=False) + "\n")
    if arguments.picture:
        from lightning_core.parts.edge_cloud.placement_plots import draw

        draw(placement, arguments.picture)
        print(arguments.picture)
    return code


def _simulate(arguments: argparse.Namespace) -> int:
    from lightning_core.parts.edge_cloud.demands_file import read_arrivals, read_demands
    from lightning_core.parts.edge_cloud.placement import RECONFIGURERS
    from lightning_core.parts.edge_cloud.placement.day_simulation import Surges, simulate_day
    from lightning_core.parts.edge_cloud.placement.predictor import PREDICTORS
    from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits
    from lightning_core.planning.time_series import Perfect

    if arguments.steps < 1:
        raise ValueError(f"--steps must be at least 1, got {arguments.steps}")
    demands = read_demands(arguments.demands)
    surges = Surges(arguments.surge, arguments.events, noise=arguments.noise, seed=arguments.seed)
    if arguments.arrivals is None:
        arrivals = surges.draw(demands, arguments.steps)
    else:
        arrivals = read_arrivals(arguments.arrivals, demands)
    limits = ReconfigurationLimits(arguments.max_extra_cost, move_price=arguments.move_price)
    found, reconfigurer = solve(arguments, demands), RECONFIGURERS[arguments.reconfigure]
    forecasters = {"as planned": None, **PREDICTORS, "perfect": Perfect()}
    results = {
        name: simulate_day(found.placement, arrivals, one, limits, reconfigurer=reconfigurer)
        for name, one in forecasters.items()
    }
    _show_results(results, arrivals)
    if arguments.json:
        body = {name: {key: value for key, value in one._asdict().items() if key != "loads"}
                for name, one in results.items()}  # fmt: skip
        write_whole(arguments.json, json.dumps(body, indent=2, allow_nan=False) + "\n")
    if arguments.picture:
        from lightning_core.parts.edge_cloud.placement_plots import draw_day

        draw_day(
            found.placement,
            {name: results[name] for name in ("perfect", "persistence", "as planned")},
            arguments.picture,
        )
        print(arguments.picture)
    return EXIT_MET


def _show_results(results: Mapping[str, DayResult], arrivals: Mapping[str, FloatArray]) -> None:
    """Print the result of the day under each forecaster, and the errors of its forecasts."""
    from lightning_core.parts.edge_cloud.placement.predictor import PREDICTORS, relative_errors

    wrong = relative_errors(list(arrivals.values()))
    rows = [
        [name, f"{one.served:.2%}", f"{one.cost:.4g}", str(one.moves), str(one.left),
         *([f"{error:.2f}" for error in wrong[name]] if name in PREDICTORS else ["-"] * 3)]
        for name, one in results.items()
    ]  # fmt: skip
    note = "errors of forecasts 1, 2 and 3 steps ahead are relative to those of persistence: the demand stays the same"
    header = ["forecast", "served", "cost", "moves", "no room", "1 ahead", "2 ahead", "3 ahead"]
    print_table(header, rows, note)


def _show(placement: TaskPlacement) -> None:
    """Print the GPUs that are used at each location in each period, and the number of tasks there."""
    from lightning_core.parts.edge_cloud.placement.plan import capacity_of

    demands = placement.demands
    rows = []
    for location in demands.locations:
        row = [clean(location)]
        for period in range(len(demands.periods)):
            held = placement.held(location, period)
            tasks = sum(
                (choice := choices[period]) is not None and choice.location == location
                for choices in placement.served.values()
            )
            parts = []
            for gpu in demands.gpus:
                room = capacity_of(demands, location, gpu)
                if held[gpu] or (room and location in demands.nodes):
                    parts.append(f"{held[gpu]:g}{f'/{room:g}' if location in demands.nodes else ''} {clean(gpu)}")
            row.append(f"{tasks} tasks: {', '.join(parts)}" if tasks else "-")
        rows.append(row)
    print_table(["location", *map(clean, demands.periods)], rows)


def _compare(solution: Solution, weights: Weights, accuracy: float | None, *, baselines: bool) -> None:
    """Print cost and accuracy of the plan and of simpler planners."""
    from lightning_core.parts.edge_cloud.placement.baselines import incremental, one_period

    placement = solution.placement
    named = {"plan": placement}
    if baselines:
        named["one period at a time"] = one_period(placement.demands, weights, solution.ranges, accuracy)
        named["one task at a time"] = incremental(placement.demands, weights, solution.ranges, accuracy)
    rows = [
        [name, f"{one.cost:.4g}", f"{one.accuracy:.4f}", f"{one.gpu_count:g}", str(one.moves), str(len(one.unserved)),
         f"{solution.ranges.objective(weights, one.cost, one.accuracy, one.moves):.4f}"]
        for name, one in named.items()
    ]  # fmt: skip
    note = f"no plan has an objective below {solution.bound:.4f}; costs are those of a window, summed over all periods"
    print_table(["", "cost", "accuracy", "GPUs", "moves", "unserved", "objective"], rows, note)


def _body(placement: TaskPlacement) -> dict[str, Any]:
    tasks = [
        {"job": task.job, "task": task.number,
         "served": {placement.demands.periods[period]: None if choice is None else choice._asdict()
                    for period, choice in enumerate(choices)}}
        for task, choices in placement.served.items()
    ]  # fmt: skip
    return {"cost": placement.cost, "accuracy": placement.accuracy, "moves": placement.moves, "tasks": tasks}
