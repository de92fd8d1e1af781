"""Compare the deadlines that policies meet on a cluster, on published traces of resizable jobs.

A restart costs nothing, 0.3 s, 8 s, or 25 to 250 s by model; where these come from is beside them, in
:mod:`benchmarks.clusters.cluster_trace`. What is counted: :mod:`benchmarks.clusters.cluster_play`. Policies of others:
:mod:`benchmarks.clusters.elasticflow` and :mod:`benchmarks.clusters.gavel`.

``ours`` is ``decor`` with these arguments: a job ends 2 % before its deadline, because its work is known; it keeps more
devices than it needs if fewer would save less than a tenth of its device-seconds, because restarts may be expensive.
Devices that no job needs stay idle; ``ours, idle spent`` uses them to end jobs early.

All sizes play each trace once. The others also play the largest with each submission shifted by up to 600 s, and jobs
that are drawn from it and arrive at random, on pools and at loads of other sizes; means are over seeds, with standard
errors.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.clusters.cluster_play import PERIOD, Contender, Played, play
from benchmarks.clusters.cluster_rounds import print_decisions
from benchmarks.clusters.cluster_trace import (
    HOUR,
    RESTARTS,
    Wanted,
    drawn,
    find,
    fraction_as_asked,
    in_reach,
    jittered,
    read,
    repeated,
    synthetic,
    with_restarts,
)
from benchmarks.clusters.elasticflow import ElasticFlowLike
from benchmarks.clusters.gavel import Gavel
from benchmarks.common import Figures, Size, add_files, keep, table, tables_apart

TRACES = Path(__file__).parents[2] / "../shared/data/traces"
OURS, SPENT, ELASTICFLOW, BACKWARDS = "ours", "ours, idle spent", "ElasticFlow-like", "ElasticFlow-like, backwards"
DECOR = {"alpha": 0.98, "period": PERIOD, "min_dwell": 0.0, "min_saving": 0.1}
QUICK = (OURS, ELASTICFLOW, BACKWARDS, "EDF", "EDF, fastest sizes", "FIFO")
COMPARED = QUICK[:-1]  # over seeds
# Rounds of a play; with --full one a minute on a trace as it is. Gavel's rounds are no longer than its own.
TICKS = 800
SEEDS, DRAWS = range(4), range(3)
# Jobs that are drawn: devices, load, and number of jobs; the load of the trace itself is 3.
DRAWN = ((64, 1.5, 100), (64, 3.0, 100), (256, 3.0, 200))
DECIDED = (50, 100, 195, 400)
RESTART_WORDS = {"0": "nothing", "03": "0.3 s", "8": "8 s", "model": "by model"}


class Group(NamedTuple):
    """Jobs on a pool: one list, or one for each seed.

    Attributes:
        prefix: Beginning of the names of its figures.
        title: Words of its table.
        rows: Policies that play it.
        devices: Devices of the pool.
        period: Seconds between two rounds.
        jobs: Jobs by seed.
    """

    prefix: str
    title: str
    rows: Sequence[str]
    devices: int
    period: float
    jobs: list[list[Wanted]]

    @property
    def bound(self) -> list[int]:
        """By seed, the jobs that would be on time alone on the pool, without restarts: no scheduler meets more."""
        return [in_reach(one, self.devices) for one in self.jobs]


def contenders() -> dict[str, Contender]:
    """Return all rows of the table."""
    return {
        OURS: Contender("decor", DECOR, "chosen"),
        SPENT: Contender("decor", {**DECOR, "idle": "spend"}, "chosen"),
        ELASTICFLOW: Contender(ElasticFlowLike, sizes="chosen"),
        BACKWARDS: Contender(ElasticFlowLike, {"backwards": True}, "chosen"),
        "Gavel, SLOs": Contender(Gavel),
        "Gavel, SLOs relaxed": Contender(Gavel, {"relaxed": True}),
        "triage": Contender("triage"),
        "EDF": Contender("edf"),
        "EDF, fastest sizes": Contender("edf", sizes="fastest"),
        "FIFO": Contender("fifo"),
    }


# ------------------------------------------------------------------------------------------------------------ groups


def measure(
    size: Size, traces: Path, nodes: int, gpus: int, count: int | None, only: Sequence[str] | None = None
) -> Figures:
    """Play the jobs of a size under all policies, with each restart cost, and time decisions."""
    devices, figures = nodes * gpus, Figures()
    for group in groups(size, traces, devices, count, only):
        figures |= print_group(group, play_all(group))
    return figures | print_decisions(DECOR, (195,) if size == "quick" else DECIDED, devices)


def groups(size: Size, traces: Path, devices: int, count: int | None, only: Sequence[str] | None) -> list[Group]:
    """Return what is played at a size."""
    rows = (
        only
        or {"quick": QUICK, "default": [n for n in contenders() if "Gavel" not in n], "full": [*contenders()]}[size]
    )
    found = list[Group]()
    for name, jobs in _traces(traces).items():
        many = jobs if count is None else repeated(jobs, count)
        title = f"{name}: {len(many)} jobs in {many[-1].submitted / HOUR:.0f} h on {devices} devices"
        period = PERIOD if size == "full" else seldom(many)
        found.append(Group(f"{name}_" if found else "", title, rows, devices, period, [many]))
    if size == "quick":
        return found
    jobs, some = found[0].jobs[0], only or COMPARED
    shifted = [jittered(jobs, seed) for seed in SEEDS]
    found.append(Group("jittered_", "submissions shifted by up to 600 s", some, devices, seldom(jobs), shifted))
    can = [job for job in jobs if job.can_run(devices)]
    for pool, load, number in DRAWN:
        draws = [drawn(can, number, pool, load, seed) for seed in DRAWS]
        title = f"{number} jobs drawn, {pool} devices, load {load:g}"
        found.append(Group(f"drawn_{pool}_{100 * load:.0f}_", title, some, pool, seldom(draws[0]), draws))
    return found


def seldom(jobs: Sequence[Wanted]) -> float:
    """Return the seconds between rounds with which a play has a given number of them."""
    return max(PERIOD, max(job.submitted + job.deadline for job in jobs) / TICKS)


def _traces(folder: Path) -> dict[str, list[Wanted]]:
    try:
        found = find(folder)
    except FileNotFoundError as error:
        print(f"{error}: a small synthetic trace is played instead")
        return {"synthetic": synthetic()}
    for trace, throughputs in found:
        print(f"Trace {trace}, throughputs {throughputs}")
    return {trace.stem: read(trace, throughputs) for trace, throughputs in found}


def play_all(group: Group) -> dict[tuple[str, str], list[Played]]:
    """Play every policy with every restart cost on the same jobs, on all cores; by row and cost, one for each seed.

    Raises:
        AssertionError: If one meets more than the bound: then the bound or the simulation is wrong.
    """
    rows, context, bound = contenders(), get_context("fork"), group.bound
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as workers:
        futures = {
            (name, cost): [
                workers.submit(play, with_restarts(jobs, seconds), group.devices, rows[name], group.period)
                for jobs in group.jobs
            ]
            for name in group.rows
            for cost, seconds in RESTARTS.items()
        }
        played = {key: [one.result() for one in several] for key, several in futures.items()}
    for (name, _), several in played.items():
        for one, most in zip(several, bound, strict=True):
            if one.met > most:
                raise AssertionError(f"{name} met {one.met} deadlines: above {most}, the upper bound")
    return played


# ----------------------------------------------------------------------------------------------------------- figures


def print_group(group: Group, played: Mapping[tuple[str, str], Sequence[Played]]) -> Figures:
    """Print deadlines met by policy and restart cost, and what the moves by model cost; return the figures."""
    prefix, jobs = group.prefix, group.jobs[0]
    bound, asked = statistics.fmean(group.bound), fraction_as_asked(jobs)
    print(
        f"\n{group.title}. Upper bound of the deadlines met (each job alone, no restarts): {bound:.4g} of {len(jobs)}"
    )
    met = {key: [float(one.met) for one in several] for key, several in played.items()}
    rows = [[name, *(_mean(met[name, cost]) for cost in RESTARTS)] for name in group.rows]
    table(["deadlines met; a restart costs", *RESTART_WORDS.values()], rows)
    figures: Figures = {f"{prefix}bound": bound, f"{prefix}jobs": float(len(jobs))}
    others = [name for name in group.rows if name not in (OURS, SPENT)]
    for cost in RESTARTS:
        means = {name: statistics.fmean(met[name, cost]) for name in group.rows}
        if OURS in means:
            figures[f"{prefix}ours_met_{cost}"] = means[OURS]
        if others:
            figures[f"{prefix}best_other_met_{cost}"] = max(means[name] for name in others)
        if len(group.jobs) > 1 and OURS in means:
            figures[f"{prefix}ours_se_{cost}"] = _standard_error(met[OURS, cost])
        if not prefix:
            figures |= {f"{key(name)}_met_{cost}": mean for name, mean in means.items()}
    if not prefix:
        by_model = {name: played[name, "model"][0] for name in group.rows}
        print_moves(by_model)
        figures |= {"bound_pct": 100.0 * bound / len(jobs), "as_asked_pct": 100.0 * asked}
        for name, one in by_model.items():
            figures |= {f"{key(name)}_met_pct": one.met_pct, f"{key(name)}_device_hours": one.device_hours,
                        f"{key(name)}_moves": float(one.moves), f"{key(name)}_hours_lost": one.hours_lost}  # fmt: skip
    return figures


def key(name: str) -> str:
    """Return the name of a row as it stands in the names of figures.

    Example::

        >>> key("EDF, fastest sizes"), key("ElasticFlow-like")
        ('edf_fastest_sizes', 'elasticflow_like')
    """
    return name.lower().replace(", ", "_").replace(" ", "_").replace("-", "_")


def _mean(met: Sequence[float]) -> str:
    return f"{met[0]:.0f}" if len(met) == 1 else f"{statistics.fmean(met):.1f} ± {_standard_error(met):.1f}"


def _standard_error(met: Sequence[float]) -> float:
    return statistics.stdev(met) / math.sqrt(len(met))


def print_moves(played: Mapping[str, Played]) -> None:
    """Print device-hours and moves of each policy."""
    print("\nRestarts by model: device-hours granted (with restarts), moves, hours and device-hours lost to them")
    rows = [
        [name, f"{one.met_pct:.1f}", f"{one.device_hours:.0f}", one.moves, f"{one.hours_lost:.1f}",
         f"{one.device_hours_lost:.1f}", f"{1e3 * one.deciding / max(one.rounds, 1):.1f}"]
        for name, one in played.items()
    ]  # fmt: skip
    table(["policy", "met %", "device h", "moves", "h lost", "device h lost", "ms per round"], rows)


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clusters.cluster", description=(__doc__ or "").splitlines()[0]
    )
    how = parser.add_mutually_exclusive_group()
    quick = "each trace once, some of the policies: about a minute on 2 cores"
    how.add_argument("--quick", dest="size", action="store_const", const="quick", help=quick)
    how.add_argument(
        "--full",
        dest="size",
        action="store_const",
        const="full",
        help="also Gavel's linear programs, with a round every minute: hours",
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", default=TRACES,
                        help="folder with CSVs that have a column ddl, and throughputs_* folders with all of their "
                             "models (default: ../shared/data/traces)")  # fmt: skip
    parser.add_argument("--nodes", type=int, default=16, metavar="N", help="nodes of the cluster (default: 16)")
    parser.add_argument("--gpus", type=int, default=4, metavar="N", help="GPUs of each node (default: 4)")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="number of jobs: the first N of each trace, or the trace repeated with each submission "
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
