"""Surges of demand: what each planner makes of them, predictors, and a simulated day."""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.clusters.cluster_trace import find
from benchmarks.clusters.placement_scenarios import (
    BOUND,
    BUSIEST,
    CHEAPEST,
    FAR,
    PAYS,
    RATE,
    RATIOS,
    SETS,
    SHARE,
    SIZES,
    SURGE,
    scenario,
)
from benchmarks.common import Figures, table
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.edge_cloud.day_plan import MOVE_PRICE
from lightning_core.parts.edge_cloud.placement import (
    RECONFIGURERS,
    Cloud,
    Demands,
    Gpu,
    Level,
    Node,
    ObjectiveRanges,
    PlacedJob,
    TaskPlacement,
    plan,
)
from lightning_core.parts.edge_cloud.placement.baselines import incremental, only
from lightning_core.parts.edge_cloud.placement.day_simulation import Surges, simulate_day
from lightning_core.parts.edge_cloud.placement.demands import Choice
from lightning_core.parts.edge_cloud.placement.planner import group_tasks
from lightning_core.parts.edge_cloud.placement.predictor import HORIZON, PREDICTORS, relative_errors
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits, Reconfigurer
from lightning_core.parts.edge_cloud.placement.replanner import MAX_OPTIONS, Replanner
from lightning_core.planning.time_series import Perfect

QUARTER = 900.0
PLANNERS = {
    "left": "left as it is",
    "heuristic": "the paper's heuristic",
    "day_anew": "day planned anew",
    "anew": "period planned anew",
    "replan": "period anew, moves weighed",
}
PRICES = (0.0, 0.001, 0.01, 0.1, 1.0)


class After(NamedTuple):
    """Choices, moves and seconds of one reaction to a surge."""

    choices: list[Choice]
    moves: int
    seconds: float


def surge(words: str, demands: Demands) -> Figures:
    """Print what a fifth more demand by day leads to under each planner; return the figures."""
    before = plan(demands, CHEAPEST, accuracy=0.8).placement
    stands = _in(before, BUSIEST)
    wanted = {name: SURGE * job.during(BUSIEST).rate for name, job in demands.jobs.items()}
    more = replace(demands, jobs={name: replace(job, rate=wanted[name]) for name, job in demands.jobs.items()})
    found = {
        "left": After(stands, 0, 0.0),
        "heuristic": _reconfigured(before, wanted, "heuristic"),
        "day_anew": _anew(before, more, 0.8, BUSIEST),
        "anew": _anew(before, only(more, BUSIEST), statistics.mean(choice.accuracy for choice in stands), 0),
        "replan": _reconfigured(before, wanted, "replan"),
    }
    rows, figures = [], Figures()
    for name, one in found.items():
        served = [_served(demands, choice) for choice in one.choices]
        lacks = sum(part < 1 - 1e-9 for part in served)
        cost = sum(choice.cost for choice in one.choices)
        accuracy = statistics.mean(choice.accuracy for choice in one.choices)
        rows.append([PLANNERS[name], 100 * statistics.mean(served), lacks, cost, accuracy, one.moves, one.seconds])
        figures |= {f"surge_served_{name}": 100 * statistics.mean(served), f"surge_cost_{name}": cost,
                    f"surge_accuracy_{name}": accuracy, f"surge_moves_{name}": one.moves,
                    f"surge_s_{name}": one.seconds}  # fmt: skip
    print(f"\nscenario A, {words}: {SURGE - 1:.0%} more demand by day, {len(stands)} tasks; fewest moves to a new plan")
    table(["", "demand served, %", "tasks short of it", "cost by day", "accuracy", "moves", "s of one core"], rows)
    moves = [_reconfigured(before, wanted, "replan", price).moves for price in PRICES]
    print(f"moves at a price of {', '.join(f'{price:g}' for price in PRICES)}: {', '.join(map(str, moves))}")
    return figures


def _served(demands: Demands, choice: Choice) -> float:
    """Return the part of a surge that a choice serves of a task; all need as much processing."""
    needs = next(iter(demands.jobs.values())).during(BUSIEST)
    return min(demands.served_rate(needs, choice) / (SURGE * RATE), 1.0)


def surged(placement: TaskPlacement, how: str) -> tuple[list[Choice], float]:
    """Return the choices of all periods with a fifth more demand by day, and the part of the demand by day served.

    Args:
        placement: A placement of the whole day.
        how: Name of what changes it by day.
    """
    demands = placement.demands
    wanted = {name: SURGE * job.during(BUSIEST).rate for name, job in demands.jobs.items()}
    now = _reconfigured(placement, wanted, how).choices
    by_day = sum(job.tasks[BUSIEST] for job in demands.jobs.values())
    served = sum(_served(demands, choice) for choice in now) / by_day
    others = [
        choice
        for choices in placement.served.values()
        for period, choice in enumerate(choices)
        if choice is not None and period != BUSIEST
    ]
    return [*others, *now], served


def _reconfigured(before: TaskPlacement, wanted: Mapping[str, float], how: str, price: float = MOVE_PRICE) -> After:
    now = RECONFIGURERS[how](before, BUSIEST, ReconfigurationLimits(cost=1.0, move_price=price))
    began = time.process_time()
    changes = now.serve(wanted)
    took = time.process_time() - began
    return After(list(now.now.values()), sum(change.kind == "moved" for change in changes), took)


def _anew(before: TaskPlacement, demands: Demands, accuracy: float, period: int) -> After:
    """Return a new plan whose period is to stand; what stands is not weighed."""
    began = time.process_time()
    new = plan(demands, CHEAPEST, accuracy=accuracy).placement
    took = time.process_time() - began
    return After(_in(new, period), _fewest_moves(before, new, period), took)


def _in(placement: TaskPlacement, period: int) -> list[Choice]:
    return [choice for choices in placement.served.values() if (choice := choices[period]) is not None]


def _fewest_moves(before: TaskPlacement, after: TaskPlacement, period: int) -> int:
    """Return the fewest moves to a period of a new placement: identical tasks are interchangeable."""
    moves = 0
    for kind in group_tasks(before.demands):
        was, then = ([choice.location for task in kind.tasks if (choice := placement.served[task][at]) is not None]
                     for placement, at in ((before, BUSIEST), (after, period)))  # fmt: skip
        moves += len(was) - sum(min(was.count(location), then.count(location)) for location in set(was))
    return moves


def thousand() -> Figures:
    """Print what replanning a thousand tasks that all differ takes: by the core of the program, and by all of it."""
    draw = np.random.default_rng(0)
    gpus = {"small": Gpu(2.0), "large": Gpu(4.0)}
    levels = {"fp32": Level(0.9, {"small": 100.0, "large": 200.0})}
    jobs = {
        f"job{k}": PlacedJob((1,), float(draw.uniform(5.0, 40.0)), float(draw.uniform(*SIZES[::5])),
                             delay=BOUND if draw.random() < SHARE else math.inf, moves=bool(draw.random() < 0.8))
        for k in range(1000)
    }  # fmt: skip
    # Half of what all need at the edge is of either type, and a twentieth more.
    needed = 1.05 * sum(job.during(0).rate for job in jobs.values()) / 2 / 9
    nodes = {f"edge{k}": Node({"small": float(round(needed)), "large": float(round(needed / 2))}) for k in range(9)}
    demands = Demands(("day",), gpus, levels, nodes, jobs, Cloud(FAR), SETS[PAYS])
    before = incremental(demands, CHEAPEST, ObjectiveRanges((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)))
    wanted = {name: SURGE * job.during(0).rate for name, job in jobs.items()}
    rows, figures = [], Figures()
    for name, how in (("heuristic", Reconfigurer), ("core", Replanner), ("all", _Whole)):
        now = how(before, 0, ReconfigurationLimits(cost=1.0))
        began = time.process_time()
        changes = now.serve(wanted)
        took = time.process_time() - began
        short, moves = (sum(change.kind in kinds for change in changes) for kinds in (("left", "partly"), ("moved",)))
        cost = sum(choice.cost for choice in now.now.values())
        rows.append([name, took, short, cost, moves])
        figures |= {f"thousand_s_{name}": took, f"thousand_short_{name}": short, f"thousand_cost_{name}": cost}
    print(f"\n{len(before.served) - len(before.unserved)} tasks that all differ, {SURGE - 1:.0%} more demand")
    table(["options", "s of one core", "tasks short of demand", "cost", "moves"], rows)
    return figures


class _Whole(Replanner):
    core = MAX_OPTIONS


def forecast_errors(traces: Path) -> Figures:
    """Print the errors of the predictors: on fourteen days of quarter hours with surges, and on real arrivals.

    Returns:
        Those relative to what was planned, with noise of 2 %, and those on the trace if there is one.
    """
    days = 14
    demands = scenario(20, SETS[PAYS])
    pattern, figures = np.repeat(RATIOS, 32), Figures()
    for noise in (0.02, 0.1):
        drawn = Surges(SURGE - 1, events=1.0, noise=noise, seed=1).draw(demands, 32 * days)
        series = {name: values * np.tile(pattern, days) for name, values in drawn.items()}
        print_errors(f"{len(series)} synthetic series, surges of {SURGE - 1:.0%}, noise {noise:.0%}: demand of a job",
             list(series.values()))  # fmt: skip
        errors = print_errors("... relative to what was planned", list(drawn.values()))
        figures = figures or {f"surges_{name}": error for name, error in errors.items()}
    try:
        arrivals, wanted = real(find(traces)[0][0])
    except FileNotFoundError as error:
        print(f"\nreal arrivals: {error}")
        return figures
    errors = print_errors(f"real trace: jobs that arrive per quarter hour, {len(arrivals)} quarter hours", [arrivals])
    figures |= {f"arrivals_{name}": error for name, error in errors.items()}
    errors = print_errors("real trace: GPUs that are asked for", [wanted])
    return figures | {f"gpus_{name}": error for name, error in errors.items()}


def real(trace: Path) -> tuple[FloatArray, FloatArray]:
    """Return jobs that arrive, and GPUs asked for, by quarter hour of a trace."""
    with trace.open() as file:
        rows = [(float(row["submit_time"]), float(row["duration"]), int(float(row["num_gpu"])))
                for row in csv.DictReader(file)]  # fmt: skip
    first, last = min(row[0] for row in rows), max(row[0] for row in rows)
    edges = np.arange(first, last + QUARTER, QUARTER)
    arrivals = np.histogram([row[0] for row in rows], edges)[0].astype(float)
    wanted = np.array([sum(gpus for at, lasts, gpus in rows if at <= edge < at + lasts) for edge in edges[1:]], float)
    return arrivals, wanted


def print_errors(words: str, series: Sequence[FloatArray]) -> dict[str, float]:
    """Print and return the errors of all predictors as multiples of those of the last value (persistence)."""
    found = relative_errors(series)
    print(f"\n{words}; mean absolute error as a multiple of persistence, 1 to {HORIZON} steps ahead")
    table(["", *map(str, range(1, HORIZON + 1))], [[name, *map(float, one)] for name, one in found.items()])
    return {f"{name}_{k}": float(error) for name, one in found.items() if name != "persistence"
            for k, error in enumerate(one, 1)}  # fmt: skip


def simulated_day(demands: Demands) -> Figures:
    """Print a simulated day with surges, eight steps per period: by forecast, planner and steps ahead."""
    placement = plan(demands, CHEAPEST, accuracy=0.8).placement
    arrivals = Surges(SURGE - 1, events=1.0, seed=2).draw(demands, 8)
    unchanged = simulate_day(placement, arrivals, None)
    rows: list[list[object]] = [["as planned", "-", "-", 100 * unchanged.served, unchanged.cost, 0, 0]]
    figures = Figures(day_served=100 * unchanged.served, day_cost=unchanged.cost)
    for name, forecaster in {**PREDICTORS, "perfect": Perfect()}.items():
        for how, reconfigurer in RECONFIGURERS.items():
            for horizon in (1,) if name == "persistence" else range(1, HORIZON + 1):
                one = simulate_day(placement, arrivals, forecaster, horizon=horizon, reconfigurer=reconfigurer)
                rows.append([name, how, horizon, 100 * one.served, one.cost, one.moves, one.left])
                key = f"{how}_{name}_{horizon}"
                figures |= {f"day_served_{key}": 100 * one.served, f"day_cost_{key}": one.cost}
    print("\nscenario A, edge pays: a day with an event for each job and period")
    table(["forecast", "planner", "steps ahead", "served, %", "cost", "moves", "tasks left short"], rows)
    return figures
