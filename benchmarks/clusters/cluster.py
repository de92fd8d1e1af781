"""Compare the deadlines that policies meet on a cluster, on a published trace of resizable jobs.

The trace, throughputs and restart costs: :mod:`benchmarks.clusters.cluster_trace`. What is counted:
:mod:`benchmarks.clusters.cluster_play`. Policies of others: :mod:`benchmarks.clusters.elasticflow` and
:mod:`benchmarks.clusters.gavel`.

``ours`` is ``decor`` with these arguments: a job ends 2 % before its deadline, because its work is known; it keeps more
devices than it needs if fewer would save less than a tenth of its device-seconds, because restarts are expensive.
Devices that no job needs stay idle; ``ours, idle spent`` uses them to end jobs early.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.clusters.cluster_play import PERIOD, Contender, Played, play
from benchmarks.clusters.cluster_trace import (
    HOUR,
    Wanted,
    find,
    fraction_as_asked,
    fraction_in_reach,
    read,
    repeated,
    synthetic,
)
from benchmarks.clusters.elasticflow import ElasticFlowLike
from benchmarks.clusters.gavel import Gavel
from benchmarks.common import Figures, Size, add_files, keep, table, tables_apart
from lightning_core.core.events import Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

TRACES = Path(__file__).parents[2] / "../shared/data/traces"
OURS, SPENT, ELASTICFLOW = "ours", "ours, idle spent", "ElasticFlow-like"
DECOR = {"alpha": 0.98, "period": PERIOD, "min_dwell": 0.0, "min_saving": 0.1}
QUICK = (OURS, ELASTICFLOW, "EDF", "FIFO")
# Rounds of a quick run; the other sizes have one a minute.
QUICK_TICKS = 800
DECIDED = (50, 100, 195, 400)


def contenders() -> dict[str, Contender]:
    """Return all rows of the table."""
    return {
        OURS: Contender("decor", DECOR, elastic=True),
        SPENT: Contender("decor", {**DECOR, "idle": "spend"}, elastic=True),
        ELASTICFLOW: Contender(ElasticFlowLike, elastic=True),
        "Gavel, SLOs": Contender(Gavel),
        "Gavel, SLOs relaxed": Contender(Gavel, {"relaxed": True}),
        "triage": Contender("triage"),
        "EDF": Contender("edf"),
        "FIFO": Contender("fifo"),
    }


# --------------------------------------------------------------------------------------------------------- the trace


def measure(
    size: Size, traces: Path, nodes: int, gpus: int, count: int | None, only: Sequence[str] | None = None
) -> Figures:
    """Play the trace under all policies of a size, and time decisions."""
    devices = nodes * gpus
    jobs = _jobs(traces, count)
    bound, asked = 100.0 * fraction_in_reach(jobs, devices), 100.0 * fraction_as_asked(jobs)
    print(f"{len(jobs)} jobs in {jobs[-1].submitted / HOUR:.0f} h on {devices} devices. Upper bound of the deadlines "
          f"met (each job alone, no restarts): {bound:.1f} %; with the devices asked for: {asked:.1f} %")  # fmt: skip
    rows = contenders()
    names = only or {"quick": QUICK, "default": [n for n in rows if "Gavel" not in n], "full": list(rows)}[size]
    last = max(job.submitted + job.deadline for job in jobs)
    period = max(PERIOD, last / QUICK_TICKS) if size == "quick" else PERIOD
    played = play_all(jobs, devices, {name: rows[name] for name in names}, period, bound)
    print_played(played, bound)
    figures: Figures = {"bound_pct": bound, "as_asked_pct": asked, "jobs": float(len(jobs))}
    keys = {OURS: "ours", SPENT: "ours_idle_spent", ELASTICFLOW: "elasticflow_like"}
    for name, one in played.items():
        key = keys.get(name, name.lower().replace(", ", "_").replace(" ", "_"))
        figures |= {
            f"{key}_met_pct": one.met_pct,
            f"{key}_device_hours": one.device_hours,
            f"{key}_moves": float(one.moves),
            f"{key}_hours_lost": one.hours_lost,
        }
    if OURS in played:
        others = [one for name, one in played.items() if name not in (OURS, SPENT)]
        figures["ours_above"] = float(sum(played[OURS].met > one.met for one in others))
        figures["ours_above_of"] = float(len(others))
    return figures | print_decisions((195,) if size == "quick" else DECIDED, devices)


def _jobs(traces: Path, count: int | None) -> list[Wanted]:
    try:
        trace, throughputs = find(traces)
    except FileNotFoundError as error:
        print(f"{error}: a small synthetic trace is played instead")
        jobs = synthetic()
    else:
        print(f"Trace {trace}, throughputs {throughputs}")
        jobs = read(trace, throughputs)
    return jobs if count is None else repeated(jobs, count)


def play_all(
    jobs: Sequence[Wanted], devices: int, rows: Mapping[str, Contender], period: float, bound: float
) -> dict[str, Played]:
    """Play every policy on the same trace, on all cores.

    Raises:
        AssertionError: If one meets more than the bound: then the bound or the simulation is wrong.
    """
    context = get_context("fork")
    with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), len(rows)), context) as workers:
        futures = {name: workers.submit(play, jobs, devices, row, period) for name, row in rows.items()}
        played = {name: one.result() for name, one in futures.items()}
    for name, one in played.items():
        if one.met_pct > bound + 1e-9:
            raise AssertionError(
                f"{name} met {one.met_pct:.1f} % of the deadlines: above {bound:.1f} %, the upper bound"
            )
    return played


def print_played(played: Mapping[str, Played], bound: float) -> None:
    """Print deadlines met, device-hours and moves of each policy."""
    print("\nDeadlines met, device-hours granted (with restarts), moves, and hours and device-hours lost to moves")
    rows = [
        [name, f"{one.met_pct:.1f}", one.met, f"{one.device_hours:.0f}", one.moves, f"{one.hours_lost:.1f}",
         f"{one.device_hours_lost:.1f}", f"{1e3 * one.deciding / max(one.rounds, 1):.1f}"]
        for name, one in played.items()
    ]  # fmt: skip
    header = ["policy", "met %", "met", "device h", "moves", "h lost", "device h lost", "ms per round"]
    table(header, [["bound", f"{bound:.1f}", *[""] * 6], *rows])


# --------------------------------------------------------------------------------------------------------- decisions


def round_ms(count: int, devices: int, *, crowded: bool = False, comes: bool = False, repeats: int = 5) -> float:
    """Return the median milliseconds of a whole round of ``ours`` with jobs that have all started.

    Args:
        count: Number of jobs.
        devices: Devices of the pool.
        crowded: Whether the jobs need far more than the pool; otherwise it is nearly full.
        comes: Whether a job arrives in each round, for which others may have to leave.
        repeats: Number of rounds.
    """
    draw = np.random.default_rng(count)
    scheduler = Scheduler(Settings("decor", DECOR, estimator="log_time", devices=devices, resident=devices))
    hours = count / devices * (2.0 if crowded else 8.0)

    def job(name: str) -> Job:
        one, grows = draw.uniform(0.5, 2.0), draw.uniform(1.5, 1.95)
        return Job(
            name,
            draw.uniform(0.5, 1.5) * hours * HOUR,
            BatchTarget(int(one * 4 * HOUR * draw.uniform(0.2, 1.8))),
            max_devices=64,
            can=frozenset({Capability.HOLD, Capability.RELEASE, Capability.RESIZE}),
            sizes=tuple(2**k for k in range(7)),
            throughputs=tuple(one * grows**k for k in range(7)),
            resize_seconds=60.0,
        )

    scheduler.handle(Submit(tuple(job(f"job{number}") for number in range(count))), 0.0)
    for number in range(count):
        scheduler.handle(Report(f"job{number}", 1, 1, 99, 1 + number % 7, 1.0), 1.0)
    times = []
    for step in range(1, repeats + 2):
        event = Submit((job(f"new{step}"),)) if comes else Tick()
        start = time.perf_counter()
        scheduler.handle(event, 1.0 + PERIOD * step)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:])


def print_decisions(counts: Sequence[int], devices: int) -> Figures:
    """Print and return the time of a round by number of jobs."""
    kinds = {
        "nearly all fit": {"crowded": False},
        "many do not fit": {"crowded": True},
        "... and one more arrives": {"crowded": True, "comes": True},
    }
    ms = {kind: [round_ms(count, devices, **how) for count in counts] for kind, how in kinds.items()}
    print(f"\nA whole round of {OURS!r} on {devices} devices, all jobs active: median ms")
    table(["jobs", *kinds], [[count, *(ms[kind][at] for kind in kinds)] for at, count in enumerate(counts)])
    if len(counts) > 1:
        slopes = [np.polyfit(np.log(counts), np.log(one), 1)[0] for one in ms.values()]
        print(f"The time grows as {', '.join(f'n^{slope:.1f}' for slope in slopes)}.")
    names = zip(("decision_ms", "decision_crowded_ms", "decision_one_comes_ms"), ms.values(), strict=True)
    return {f"{name}_{count}": one[at] for name, one in names for at, count in enumerate(counts)}


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clusters.cluster", description=(__doc__ or "").splitlines()[0]
    )
    how = parser.add_mutually_exclusive_group()
    quick = "only the heuristics, with fewer rounds: about a minute on 2 cores"
    how.add_argument("--quick", dest="size", action="store_const", const="quick", help=quick)
    how.add_argument(
        "--full", dest="size", action="store_const", const="full", help="also Gavel's linear programs: takes minutes"
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", default=TRACES,
                        help="folder with a CSV that has a column ddl (the largest is used), and throughputs_* folders "
                             "with all of its models (default: ../shared/data/traces)")  # fmt: skip
    parser.add_argument("--nodes", type=int, default=16, metavar="N", help="nodes of the cluster (default: 16)")
    parser.add_argument("--gpus", type=int, default=4, metavar="N", help="GPUs of each node (default: 4)")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="number of jobs: the first N of the trace, or the trace repeated with each submission "
                             "shifted by up to an hour (default: the trace once)")  # fmt: skip
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="run only these rows of the table")
    add_files(parser)
    parser.set_defaults(size="default")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.rows or () if name not in contenders()]:
        parser.error(f"rows must be of {', '.join(contenders())}, got {', '.join(unknown)}")
    if min(arguments.nodes, arguments.gpus, arguments.jobs or 1) < 1:
        parser.error("nodes, gpus and jobs must be at least 1")
    size, traces, jobs = arguments.size, arguments.traces, arguments.jobs
    with tables_apart(arguments):
        figures = measure(size, traces, arguments.nodes, arguments.gpus, jobs, arguments.rows)
    keep("clusters.cluster", arguments, figures)


if __name__ == "__main__":
    main()
