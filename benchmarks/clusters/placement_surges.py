"""Surges of demand: reconfiguration, predictors, and a simulated day."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.clusters.cluster_trace import find
from benchmarks.clusters.placement_scenarios import (
    BUSIEST,
    CHEAPEST,
    PAYS,
    RATE,
    RATIOS,
    SETS,
    SURGE,
    scenario,
)
from benchmarks.common import table
from lightning_core.core.arrays import FloatArray
from lightning_core.placement import Demands, Placement, plan
from lightning_core.placement.day_simulation import Surges, capacity, simulate_day
from lightning_core.placement.demands import Choice
from lightning_core.placement.planner import group_tasks
from lightning_core.placement.predictor import PREDICTORS, relative_errors
from lightning_core.placement.reconfigurer import ReconfigurationLimits, Reconfigurer
from lightning_core.planning.time_series import Perfect

QUARTER = 900.0


class After(NamedTuple):
    """Choices, moves and seconds of one reaction to a surge."""

    choices: list[Choice]
    moves: int
    seconds: float


def surge(words: str, demands: Demands) -> None:
    """Print what a fifth more demand by day leads to: reconfigured, planned again, or unchanged."""
    before = plan(demands, CHEAPEST, accuracy=0.8).placement
    wanted = {name: SURGE * job.rate for name, job in demands.jobs.items()}
    began = time.process_time()
    now = Reconfigurer(before, BUSIEST, ReconfigurationLimits(cost=1.0))
    changes = now.serve(wanted)
    took = time.process_time() - began
    more = replace(demands, jobs={name: replace(job, rate=wanted[name]) for name, job in demands.jobs.items()})
    began = time.process_time()
    new = plan(more, CHEAPEST, accuracy=0.8).placement
    again = time.process_time() - began
    found = {
        "reconfigured": After(list(now.now.values()), sum(change.kind == "moved" for change in changes), took),
        "planned again": After(_in(new), _fewest_moves(before, new), again),
        "unchanged": After(_in(before), 0, 0.0),
    }
    rows = []
    for name, one in found.items():
        served = [min(capacity(demands, choice) / (SURGE * RATE), 1.0) for choice in one.choices]
        lacks = sum(part < 1 - 1e-9 for part in served)
        rows.append([name, 100 * statistics.mean(served), one.moves, sum(choice.cost for choice in one.choices), lacks,
                     statistics.mean(choice.accuracy for choice in one.choices), one.seconds])  # fmt: skip
    tasks = len(now.now)
    print(f"\nscenario A, {words}: {SURGE - 1:.0%} more demand by day, {tasks} tasks; fewest moves to a new plan")
    table(["", "demand served, %", "moves", "cost by day", "tasks short of demand", "accuracy", "s"], rows)


def _in(placement: Placement) -> list[Choice]:
    return [choice for choices in placement.served.values() if (choice := choices[BUSIEST]) is not None]


def _fewest_moves(before: Placement, after: Placement) -> int:
    """Return the fewest moves between two placements: identical tasks are interchangeable."""
    moves = 0
    for kind in group_tasks(before.demands):
        was, then = ([choice.location for task in kind.tasks if (choice := placement.served[task][BUSIEST]) is not None]
                     for placement in (before, after))  # fmt: skip
        moves += len(was) - sum(min(was.count(location), then.count(location)) for location in set(was))
    return moves


def print_forecast_errors(traces: Path) -> None:
    """Print the errors of the predictors: on fourteen days of quarter hours with surges, and on real arrivals."""
    days = 14
    demands = scenario(20, SETS[PAYS])
    pattern = np.repeat(RATIOS, 32)
    for noise in (0.02, 0.1):
        drawn = Surges(SURGE - 1, events=1.0, noise=noise, seed=1).draw(demands, 32 * days)
        series = {name: values * np.tile(pattern, days) for name, values in drawn.items()}
        print_errors(f"{len(series)} synthetic series, surges of {SURGE - 1:.0%}, noise {noise:.0%}: demand of a job",
             list(series.values()))  # fmt: skip
        print_errors("... relative to what was planned", list(drawn.values()))
    try:
        arrivals, wanted = real(find(traces)[0])
    except FileNotFoundError as error:
        print(f"\nreal arrivals: {error}")
        return
    print_errors(f"real trace: jobs that arrive per quarter hour, {len(arrivals)} quarter hours", [arrivals])
    print_errors("real trace: GPUs that are asked for", [wanted])


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


def print_errors(words: str, series: Sequence[FloatArray]) -> None:
    """Print the errors of all predictors as multiples of those of persistence."""
    print(f"\n{words}; mean absolute error as a multiple of persistence, 1, 2 and 3 steps ahead")
    table(["", "1", "2", "3"], [[name, *map(float, one)] for name, one in relative_errors(series).items()])


def simulated_day(demands: Demands) -> None:
    """Print a simulated day with surges, eight steps per period, with and without forecasts."""
    placement = plan(demands, CHEAPEST, accuracy=0.8).placement
    arrivals = Surges(SURGE - 1, events=1.0, seed=2).draw(demands, 8)
    rows = []
    for name, forecaster in {"as planned": None, **PREDICTORS, "perfect": Perfect()}.items():
        one = simulate_day(placement, arrivals, forecaster)
        rows.append([name, 100 * one.served, one.cost, one.moves, one.left])
    print("\nscenario A, edge pays: a day with an event for each job and period")
    table(["forecast", "served, %", "cost", "moves", "tasks left short"], rows)
