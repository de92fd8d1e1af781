"""``lightning-core location``: where the tasks of a day train, at the edge or in the cloud. Nothing is launched."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.cli.arguments import new_file
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.view.tables import print_table
from lightning_core.view.text import clean

if TYPE_CHECKING:  # solvers take longer to import than most commands to run
    from lightning_core.core.arrays import FloatArray
    from lightning_core.placement import Placement, Solution, Weights
    from lightning_core.placement.day_simulation import DayResult

# As the planner's own.
GAP = 1e-3


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The command with its own commands."""
    words = "edge and cloud: where tasks train over the day"
    commands = command("place", print, words).add_subparsers(required=True, metavar="WHAT")
    words = "the best plan of a day: tasks by place and period, and what it costs"
    made = commands.add_parser("plan", help=words, description=words)
    made.set_defaults(run=_plan)
    _add_plan(made)
    made.add_argument(
        "--baselines", action="store_true", help="one task after the other, and one period planned, beside it"
    )
    made.add_argument("--picture", type=new_file, metavar="FILE", help="PNG, SVG or PDF")
    made.add_argument("--json", type=new_file, metavar="FILE", help="write where each task is here")
    words = "a planned day with surges: what is foreseen, what moves, and what could be served"
    played = commands.add_parser("simulate", help=words, description=words)
    played.set_defaults(run=_simulate)
    _add_plan(played)
    played.add_argument("--steps", type=int, default=32, metavar="N", help="of each period (default 32: quarter hours)")
    played.add_argument(
        "--surge", type=float, default=0.2, metavar="PART", help="that comes in more in an event (default 0.2)"
    )
    played.add_argument("--events", type=float, default=1.0, metavar="N", help="for each job and period (default 1)")
    played.add_argument("--noise", type=float, default=0.02, metavar="PART", help="of what comes in (default 0.02)")
    played.add_argument("--seed", type=int, default=0, metavar="N", help="of events and noise (default 0)")
    played.add_argument(
        "--arrivals", type=Path, metavar="FILE.csv", help="instead: a column a job, a row a step, samples/s of a task"
    )
    played.add_argument(
        "--most", type=float, default=0.5, metavar="PART", help="that a move may cost more than planned (default 0.5)"
    )
    played.add_argument("--picture", type=new_file, metavar="FILE", help="loads by place and step: PNG, SVG or PDF")
    played.add_argument("--json", type=new_file, metavar="FILE", help="write the figures here")


def _add_plan(made: argparse.ArgumentParser) -> None:
    """Of what a plan is made."""
    made.add_argument("demands", type=Path, metavar="DEMANDS.yaml", help="nodes, GPUs, levels and jobs")
    made.add_argument("--cost", type=float, default=0.5, metavar="W", help="weight of money (default 0.5)")
    made.add_argument(
        "--accuracy", type=float, default=0.5, metavar="W", help="weight of the mean accuracy (default 0.5)"
    )
    made.add_argument("--moves", type=float, default=0.01, metavar="W", help="weight of tasks that move (default 0.01)")
    made.add_argument("--mean-accuracy", type=float, metavar="A", help="that must be reached at least")
    made.add_argument(
        "--gap", type=float, default=GAP, metavar="PART", help=f"that may be left to the best (default {GAP:g})"
    )
    made.add_argument(
        "--seconds", type=float, metavar="S", help="at most; with a limit the plan depends on the machine"
    )


def _plan(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.demands_file import read_demands
    from lightning_core.placement import InfeasibleError, Weights, plan

    demands = read_demands(arguments.demands)
    weights = Weights(arguments.cost, arguments.accuracy, arguments.moves)
    accuracy, solution, code = arguments.mean_accuracy, None, EXIT_MET
    try:
        solution = plan(demands, weights, accuracy=accuracy, gap=arguments.gap, seconds=arguments.seconds)
        placement = solution.placement
    except InfeasibleError as error:
        print(f"not all can be served: {error}; this is the most:")
        placement, code = error.largest, EXIT_NOT_MET
    _show(placement)
    if solution is not None:
        _compare(solution, weights, accuracy, baselines=arguments.baselines)
    if arguments.json:
        arguments.json.write_text(json.dumps(_body(placement), indent=2, allow_nan=False) + "\n")
    if arguments.picture:
        from lightning_core.report.placement_plots import draw

        draw(placement, arguments.picture)
        print(arguments.picture)
    return code


def _simulate(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.demands_file import read_arrivals, read_demands
    from lightning_core.placement import Weights, plan
    from lightning_core.placement.day_simulation import Surges, simulate_day
    from lightning_core.placement.predictor import PREDICTORS
    from lightning_core.placement.reconfigurer import ReconfigurationLimits
    from lightning_core.planning.time_series import Perfect

    if arguments.steps < 1:
        raise ValueError(f"--steps must be at least 1, got {arguments.steps}")
    demands = read_demands(arguments.demands)
    surges = Surges(arguments.surge, arguments.events, noise=arguments.noise, seed=arguments.seed)
    if arguments.arrivals is None:
        arrivals = surges.draw(demands, arguments.steps)
    else:
        arrivals = read_arrivals(arguments.arrivals, demands)
    limits, weights = (
        ReconfigurationLimits(arguments.most),
        Weights(arguments.cost, arguments.accuracy, arguments.moves),
    )
    found = plan(demands, weights, accuracy=arguments.mean_accuracy, gap=arguments.gap, seconds=arguments.seconds)
    foreseers = {"as planned": None, **PREDICTORS, "perfect": Perfect()}
    results = {name: simulate_day(found.placement, arrivals, foreseer, limits) for name, foreseer in foreseers.items()}
    _tell(results, arrivals)
    if arguments.json:
        body = {name: {key: value for key, value in one._asdict().items() if key != "loads"}
                for name, one in results.items()}  # fmt: skip
        arguments.json.write_text(json.dumps(body, indent=2, allow_nan=False) + "\n")
    if arguments.picture:
        from lightning_core.report.placement_plots import draw_day

        draw_day(
            found.placement,
            {name: results[name] for name in ("perfect", "persistence", "as planned")},
            arguments.picture,
        )
        print(arguments.picture)
    return EXIT_MET


def _tell(results: Mapping[str, DayResult], arrivals: Mapping[str, FloatArray]) -> None:
    """What became of the day, by who foresaw it, and how wrong that was."""
    from lightning_core.placement.predictor import PREDICTORS, relative_errors

    wrong = relative_errors(list(arrivals.values()))
    rows = [
        [name, f"{one.served:.2%}", f"{one.cost:.4g}", str(one.moves), str(one.left),
         *([f"{error:.2f}" for error in wrong[name]] if name in PREDICTORS else ["-"] * 3)]
        for name, one in results.items()
    ]  # fmt: skip
    words = "errors of what is foreseen 1, 2 and 3 steps ahead are in those of persistence: all goes on as it is"
    header = ["foreseen by", "served", "cost", "moves", "left", "1 ahead", "2 ahead", "3 ahead"]
    print_table(header, rows, words)


def _show(placement: Placement) -> None:
    """GPUs by place and period, of those that there are, and the tasks that hold them."""
    from lightning_core.placement.plan import capacity_of

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
    """What the plan costs and reaches, beside what others would."""
    from lightning_core.placement.baselines import incremental, one_period

    placement = solution.placement
    named = {"plan": placement}
    if baselines:
        named["one period planned"] = one_period(placement.demands, weights, solution.ranges, accuracy)
        named["one after the other"] = incremental(placement.demands, weights, solution.ranges, accuracy)
    rows = [
        [name, f"{one.cost:.4g}", f"{one.accuracy:.4f}", f"{one.gpu_count:g}", str(one.moves), str(len(one.unserved)),
         f"{solution.ranges.objective(weights, one.cost, one.accuracy, one.moves):.4f}"]
        for name, one in named.items()
    ]  # fmt: skip
    words = f"no plan has an objective below {solution.bound:.4f}; costs are of a window, all periods together"
    print_table(["", "cost", "accuracy", "GPUs", "moves", "unserved", "objective"], rows, words)


def _body(placement: Placement) -> dict[str, Any]:
    tasks = [
        {"job": task.job, "task": task.number,
         "served": {placement.demands.periods[period]: None if choice is None else choice._asdict()
                    for period, choice in enumerate(choices)}}
        for task, choices in placement.served.items()
    ]  # fmt: skip
    return {"cost": placement.cost, "accuracy": placement.accuracy, "moves": placement.moves, "tasks": tasks}
