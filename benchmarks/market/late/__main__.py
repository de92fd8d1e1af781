"""Compare policies on the public benchmark of "Can't Be Late": the cost of a job on one node by its deadline.

A job needs 48 hours of one node by a deadline of 52, 70 or 92 hours. Each launch of a node takes 0.02, 0.2 or 0.4 hours
that are paid for, and a spot node costs 0.9731 / 3.06 of an on-demand one. Costs are relative to those of the same job
on one on-demand node from start to end, its start-up included; a tick of about ten minutes is paid for whole. Jobs
start at random times of recordings of AWS, which do not come with this project; without them the markets are seeded.

Wu et al., "Can't Be Late: Optimizing Spot Instance Savings under Deadlines", NSDI 2024.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.common import Figures, Size, main, table
from benchmarks.market.late.cells import OPTIMUM, Cell, play_cell
from benchmarks.market.late.contestants import CODE, HOURLY, LEARNERS, OURS, POLICIES, TEXT, with_zones
from benchmarks.market.late.recordings import SETS, load
from benchmarks.market.spot_traces import TRACES

DEADLINES = (52, 70, 92)
START_UPS = (0.02, 0.2, 0.4)
# Starts in each recording of a set, and how many times as many in a full run.
STARTS, FULL = {"first": 12, "second": 8}, 4
# Set and start-up of the figures.
SHOWN = "first", 0.2
FIGURES = {"ours": OURS, "up": TEXT, "up_code": CODE, "optimum": OPTIMUM}


def measure(size: Size, traces: Path, seed: int) -> Figures:
    """Print a table for each set and start-up, and return the figures."""
    chosen = [SHOWN] if size == "quick" else [(name, start_up) for name in SETS for start_up in START_UPS]
    cells: dict[tuple[str, float], dict[int, Cell]] = {}
    recorded_jobs = 0
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        asked = [(size, traces, seed, *one, deadline) for one in chosen for deadline in DEADLINES]
        played = pool.map(_play, *zip(*asked, strict=True))
        for name, start_up in chosen:
            cells[name, start_up] = {deadline: next(played) for deadline in DEADLINES}
            recordings, recorded = load(traces, name)
            starts = _starts(size, name)
            what = "recordings" if recorded else "SEEDED markets, for the recordings are not there"
            print(f"\n{name} set: {len(recordings)} {what}, {starts} starts each; a launch takes {start_up} h")
            standings(cells[name, start_up])
            recorded_jobs += len(recordings) * starts * len(DEADLINES) * recorded
    shown = cells[SHOWN]
    figures: Figures = {
        f"{short}_{deadline}": cell.mean(policy)[0]
        for short, policy in FIGURES.items()
        for deadline, cell in shown.items()
    }
    each = [cell for row in cells.values() for cell in row.values()]
    return {
        **figures,
        **{f"ours_minus_up_{deadline}_se": _in_standard_errors(shown[deadline]) for deadline in (52, 70)},
        "points": float(len(each)),
        "points_above_up": float(sum(any(cell.difference(OURS, up)[0] > 0 for up in (TEXT, CODE)) for cell in each)),
        "late_jobs": float(sum(cell.late[name] for cell in each for name in _ours(cell))),
        "recorded_jobs": float(recorded_jobs),
    }


def _in_standard_errors(cell: Cell) -> float | None:
    """Return ours less Uniform Progress in standard errors of the difference; of its two forms the less favourable."""
    differences = [cell.difference(OURS, up) for up in (TEXT, CODE)]
    return max((more / error for more, error in differences if error), default=None)


def _starts(size: Size, name: str) -> int:
    return STARTS[name] * (FULL if size == "full" else 1)


def _play(size: Size, traces: Path, seed: int, name: str, start_up: float, deadline: int) -> Cell:
    """Play a cell in a process of its own; what takes long only where it is asked for, or in a full run."""
    beside = size == "full" or (size == "default" and start_up == SHOWN[1])
    policies = {**POLICIES, **HOURLY} if beside and start_up == SHOWN[1] else POLICIES
    recordings, _ = load(traces, name)
    return play_cell(recordings, deadline, start_up, _starts(size, name), seed, policies, LEARNERS if beside else {})


def standings(cells: Mapping[int, Cell]) -> None:
    """Print the costs of all policies, and those of ours less those of both forms of Uniform Progress."""
    each = list(cells.values())
    rows = [
        [name, *(_with_error(*cell.mean(name)) for cell in each), sum(cell.late[name] for cell in each)]
        for name in each[0].costs
    ]
    for name in _ours(each[0]):
        for other in (TEXT, CODE):
            differences = (cell.difference(name, other) for cell in each)
            rows.append([f"{name} less {other}", *(_with_error(*one, sign="+") for one in differences), ""])
    table(["cost over on-demand", *(f"{deadline} h" for deadline in cells), "late jobs"], rows)


def _ours(cell: Cell) -> list[str]:
    """Return our policy, and beside it the one that has learned from other zones if there is one."""
    return [name for name in (OURS, with_zones(OURS)) if name in cell.costs]


def _with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.3f} ± {error:.3f}"


if __name__ == "__main__":
    main(
        "market.late",
        str(__doc__).partition("\n")[0],
        measure,
        numbers={"seed": (0, "seed of the starts of the jobs")},
        traces=TRACES,
    )
