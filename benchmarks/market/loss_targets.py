"""Compare what a job with a loss to reach by a deadline is planned with on a spot market: its forecast, less, or more.

A job takes twelve hours of one node to a loss on a recorded curve, which is not known in advance, and has a deadline
18, 24 or 36 hours after its start. Its training would end by itself where the recording does. Each launch takes 0.2
hours, a spot node that goes takes three minutes of work with it, and nodes are billed by the second. Costs are relative
to those of an on-demand node from start to end.

Jobs start at random times of the A100 market that is shipped, where a node has eight cards, and of the recordings of
AWS that ``market.late`` plays. Without these there is the A100 market alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.curves.bundles import recordings
from benchmarks.market.late.cells import mean
from benchmarks.market.late.node_play import SPOT_PRICE
from benchmarks.market.late.recordings import SETS, Recording, load
from benchmarks.market.loss_jobs import LossJob, draw
from benchmarks.market.loss_play import (
    Knowledge,
    Played,
    by_bound,
    by_forecast,
    by_guess,
    by_history,
    by_median,
    by_truth,
    intervals_of,
    play,
)
from benchmarks.market.spot_traces import TRACES
from lightning_core.core.arrays import FloatArray
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.traces import shipped_trace
from lightning_core.simulation.recorded_curves import SHIPPED, load_curves

DEADLINES: Mapping[Size, Sequence[int]] = {"quick": (24,), "default": (18, 24), "full": (18, 24, 36)}
JOBS: Mapping[Size, int] = {"quick": 12, "default": 24, "full": 240}
# Cards of a node on the A100 market.
CARDS = 8
# Ticks of a recording of AWS in an interval: half an hour.
TICKS = 3


class Row(NamedTuple):
    """A way to plan."""

    policy: str
    """Spot policy."""
    knowledge: Knowledge
    figure: str
    """Name of its figures."""


OURS, ON_DEMAND = "the forecast, 95 % (ours)", "on-demand only"
ROWS = {
    OURS: Row("semi-markov", by_forecast, "ours"),
    "the same, earlier runs known": Row("semi-markov", by_history, "history"),
    "the median of the forecast": Row("semi-markov", by_median, "median"),
    "a guess: half of the training": Row("semi-markov", by_guess, "guess"),
    "the end of the training": Row("semi-markov", by_bound, "bound"),
    "the work, known exactly": Row("semi-markov", by_truth, "exact"),
    ON_DEMAND: Row("on-demand", by_truth, "on_demand"),
}


def measure(size: Size, traces: Path, seed: int) -> Figures:
    """Print a table for each kind of market and each deadline, and return the figures."""
    pool, figures = recordings(load_curves(SHIPPED)), dict[str, float | None]()
    total = 0
    for place, several in markets(traces).items():
        for deadline in DEADLINES[size]:
            intervals = max(intervals_of(deadline, one) for one in several)
            jobs = draw(pool, several, JOBS[size], intervals, seed)
            print(f"\n{place}: {len(jobs)} jobs, {deadline} h to the deadline", flush=True)
            figures |= standings(play_all(jobs, deadline), f"{place}_{deadline}")
            total += len(jobs)
    for row in ROWS.values():
        each = [number or 0.0 for name, number in figures.items() if name.startswith(f"{row.figure}_late_")]
        figures |= {f"{row.figure}_late": sum(each)} if each else {}
    return {**figures, "jobs": float(total)}


def play_all(jobs: Sequence[LossJob], deadline: int) -> dict[str, list[Played]]:
    """Play all jobs in each way."""
    tasks = [(job, deadline, row.policy, row.knowledge) for row in ROWS.values() for job in jobs]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as workers:
        played = list(workers.map(_play, tasks, chunksize=4))
    return {name: played[at * len(jobs) : (at + 1) * len(jobs)] for at, name in enumerate(ROWS)}


def _play(task: tuple[LossJob, int, str, Knowledge]) -> Played:
    return play(*task)


def markets(traces: Path) -> dict[str, list[Market]]:
    """Return the shipped market, and the recordings of AWS if they are there."""
    shipped, loaded = shipped_trace(), [load(traces, name) for name in SETS]
    aws = [market(recording) for found, is_recorded in loaded if is_recorded for recording in found]
    return {"a100": [replace(shipped, available=shipped.available // CARDS)], **({"aws": aws} if aws else {})}


def market(recording: Recording) -> Market:
    """Return a recording in intervals; a node that went within one was not there."""
    intervals = len(recording.available) // TICKS
    available = recording.available[: intervals * TICKS].reshape(intervals, TICKS).min(1).astype(np.int64)
    return Market(np.full(intervals, SPOT_PRICE), available, 1.0, TICKS * recording.tick, recording.name)


def standings(played: Mapping[str, Sequence[Played]], where: str) -> Figures:
    """Print what each way to plan has cost, and return the figures."""
    base = np.array([one.cost for one in played[ON_DEMAND]])
    costs = {name: np.array([one.cost for one in several]) / base for name, several in played.items()}
    late = {name: sum(one.late > 0 for one in several) for name, several in played.items()}
    table(
        ["planned with", "cost over on-demand", "less ours", "late jobs"],
        [[name, _shown(cost), _shown(cost - costs[OURS], "+") if name != OURS else "", late[name]]
         for name, cost in costs.items()],
    )  # fmt: skip
    figures: Figures = {}
    for name, row in ROWS.items():
        if name == ON_DEMAND:
            continue
        figures |= {f"{row.figure}_{where}": float(costs[name].mean()), f"{row.figure}_late_{where}": float(late[name])}
        if name != OURS:
            less, error = mean(costs[name] - costs[OURS])
            figures |= {f"{row.figure}_less_ours_{where}": less, f"{row.figure}_less_ours_se_{where}": error}
    return figures


def _shown(values: FloatArray, sign: str = "") -> str:
    value, error = mean(values)
    return f"{value:{sign}.3f} ± {error:.3f}"


if __name__ == "__main__":
    main(
        "market.loss_targets",
        str(__doc__).partition("\n")[0],
        measure,
        numbers={"seed": (0, "seed of the jobs")},
        traces=TRACES,
    )
