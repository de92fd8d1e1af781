"""Train bundles in the kind of the papers' tables for real, on one device, under each of their policies and ours.

Five models (LARA's first table) and ten (its second, and LaiRA's two) are those of which there are recordings: images,
text, speech and reinforcement learning. Targets and deadlines are drawn by the papers' rules from these recordings at
the throughputs of this machine (:func:`benchmarks.curves.bundles.draw_at`). Beside each live run the same bundle is
simulated at the same throughputs. A start is a change of a job's share from nothing to something, counted in the
journals of both.

The data comes from packages, which are downloaded to ``--data``; that of reinforcement learning needs gymnasium.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Figures, add_files, keep, table, tables_apart
from benchmarks.curves.bundles import Bundle as Drawn
from benchmarks.curves.bundles import Recording, draw_at, recordings
from benchmarks.recording import RUNS
from benchmarks.trained.recorded_training import keep_data, module_of
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.history.history import History
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import SHIPPED, load_curves
from lightning_core.simulation.scenario import Delays
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal

# Rows of the papers, and ours, with the policy of each as in a bundle file.
POLICIES = {
    "FIFO": "fifo", "UA": "uniform", "STF": "edf", "RR": "rr", "SH": "successive_halving", "LRF": "lrf", "ETF": "etf",
    "STA": "laira:look_ahead=false", "LARA": "lara", "LaiRA": "laira", "triage": "triage",
}  # fmt: skip
FIVE = (
    "fashion_mnist__cnn_momentum_lr0.01",
    "digits__gru_adam_lr0.002",
    "movie_reviews__bag_adam_lr0.001",
    "prompt_languages__gru_adam_lr0.001",
    "cartpole_q__mlp_adam_lr0.0005",
)
TEN = (
    *FIVE,
    "digits__mlp_momentum_lr0.02",
    "fashion_mnist__mlp_adam_lr0.001",
    "shakespeare_characters__gru_adam_lr0.002",
    "japanese_vowels__gru_adam_lr0.001",
    "cartpole_imitation__mlp_adam_lr0.001",
)
# Tables by name: the models, and the rule by which deadlines are drawn.
TABLES = {"five": (FIVE, "sequence"), "ten": (TEN, "sequence"), "ten_terms": (TEN, "terms")}
# Tables, seeds, and the seconds of work of each model in a bundle.
SIZES: Mapping[str, tuple[Sequence[str], int, float]] = {
    "quick": (("five",), 1, 3.0),
    "default": (("five", "ten"), 1, 6.0),
    "full": (tuple(TABLES), 3, 20.0),
}
PERIOD = 0.5
TRIAL, WARM_UP = 2.0, 1 / 3
SEED = 1
DELAYS = Delays(report=0.02, start=1.0)


class Came(NamedTuple):
    """What came of a bundle."""

    met: int
    starts: int


def job(run: str, data: Path, terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training as in a bundle file."""
    one = RUNS[run]
    return {
        "seed_everything": SEED,
        "model": {"class_path": module_of(run), "init_args": {"run": run}},
        "data": {
            "class_path": "benchmarks.trained.recorded_training.RecordedData",
            "init_args": {"task": one.task, "folder": str(data)},
        },
        "trainer": {"logger": False},
        "cell": one.mean_of,
        "on_miss": "stop",
        **terms,
    }


def run(cluster: Cluster, jobs: Mapping[str, Mapping[str, Any]], policy: str, folder: Path) -> tuple[int, History]:
    """Train jobs, and return how many met their targets, and the history of the run."""
    named = {key.replace(".", "_"): value for key, value in jobs.items()}
    bundle = Bundle.from_dict({"period": f"{PERIOD}s", "jobs": named}).with_policy(policy)
    end = bundle.run(run_dir=folder, cluster=cluster)
    return end.met, history_of(folder / "journal.db")


def history_of(path: Path) -> History:
    """Return the history in a journal."""
    with Journal.open(path, read_only=True) as journal:
        return History.read(journal)


def starts(history: History) -> int:
    """Return how often the share of a job went from nothing to something."""
    count = 0
    for one in history.jobs:
        shares = [0.0, *(grant.share for grant in one.grants)]
        count += sum(before == 0.0 < after for before, after in pairwise(shares))
    return count


def throughputs(cluster: Cluster, runs: Sequence[str], pool: Mapping[str, Recording], data: Path, folder: Path
                ) -> dict[str, float]:  # fmt: skip
    """Return the batches per second of each training alone on this machine."""
    jobs = {}
    for name in runs:
        batches = max(round(TRIAL / (pool[name].curve.seconds_per_batch or 0.01)), 20)
        jobs[name] = job(name, data, {"deadline": "1h", "target": {"batches": batches}})
    _, history = run(cluster, jobs, "fifo", folder)
    found = {}
    for name, one in zip(runs, history.jobs, strict=True):
        last = one.progress[-1]
        settled = next(step for step in one.progress if step.batches >= WARM_UP * last.batches)
        if settled.batches == last.batches:
            found[name] = last.batches / last.busy
        else:
            found[name] = (last.batches - settled.batches) / (last.busy - settled.busy)
    return found


def simulated(bundle: Drawn, policy: str, folder: Path) -> Came:
    """Play a bundle to the scheduler in virtual time."""
    settings = Bundle.from_dict({"jobs": {"a": job(FIVE[0], folder, {"deadline": "1s", "target": {"batches": 1}})}})
    chosen = settings.with_policy(policy).settings
    journal = folder / "journal.db"
    folder.mkdir(parents=True)
    outcome = Simulation(
        Settings(policy=chosen.policy, policy_args=chosen.policy_args, period=PERIOD), bundle.jobs, DELAYS, journal
    ).run()
    return Came(outcome.met, starts(history_of(journal)))


def play(cluster: Cluster, name: str, seed: int, per_model: float, data: Path, folder: Path) -> dict[str, Any]:
    """Train the bundle of a table and a seed under each policy, simulate it, and return what came of it."""
    runs, kind = TABLES[name]
    pool = {one.curve.name: one for one in recordings(load_curves(SHIPPED)) if one.curve.name in runs}
    rates = throughputs(cluster, runs, pool, data, folder / "alone")
    chosen = [pool[one] for one in runs]
    bundle = draw_at(chosen, [rates[one] for one in runs], kind=kind, seed=seed, seconds=per_model * len(runs))
    print(f"\n{name}, seed {seed}: {bundle.ceiling} of {len(runs)} could be met", flush=True)
    table(
        ["job", "batches/s", "needs s", "has s", "target"],
        [
            [given.job.name, rates[given.job.name], work, given.job.deadline, given.job.target.goal]
            for given, work in zip(bundle.jobs, bundle.work.tolist(), strict=True)
        ],
    )
    rows: dict[str, tuple[Came, Came]] = {}
    for row, policy in POLICIES.items():
        jobs = {
            given.job.name: job(given.job.name, data, {
                "deadline": f"{given.job.deadline:.3f}s", "target": {"loss": given.job.target.goal},
            })
            for given in bundle.jobs
        }  # fmt: skip
        met, history = run(cluster, jobs, policy, folder / row)
        rows[row] = Came(met, starts(history)), simulated(bundle, policy, folder / f"{row}-simulated")
        print(f"   {row}: {met} met, {rows[row][1].met} simulated", flush=True)
    return {"ceiling": bundle.ceiling, "rows": rows}


def measure(size: str, data: Path) -> Figures:
    """Train and simulate all bundles of a size, print what came of them and return the figures."""
    names, seeds, per_model = SIZES[size]
    models = dict.fromkeys(one for name in names for one in TABLES[name][0])
    with tempfile.TemporaryDirectory() as temp:
        tensors = (data / "tensors").resolve()
        for task in dict.fromkeys(RUNS[one].task for one in models):
            keep_data(task, data, tensors)
        figures: Figures = {"seeds": float(seeds)}
        with Cluster(max(len(TABLES[name][0]) for name in names)) as cluster:
            for name in names:
                played = [
                    play(cluster, name, seed, per_model, tensors, Path(temp) / name / str(seed))
                    for seed in range(1, seeds + 1)
                ]
                figures |= _summed(name, played)
    return figures


def _summed(name: str, played: Sequence[Mapping[str, Any]]) -> Figures:
    ceiling = sum(one["ceiling"] for one in played)
    found: Figures = {f"{name}_ceiling": float(ceiling)}
    print(f"\n{name}, {len(played)} seeds; could be met: {ceiling}")
    rows = []
    for row in POLICIES:
        live, virtual = ([one["rows"][row][at] for one in played] for at in (0, 1))
        sums = [sum(one.met for one in live), sum(one.starts for one in live),
                sum(one.met for one in virtual), sum(one.starts for one in virtual)]  # fmt: skip
        rows.append([row, *sums])
        for what, number in zip(("met", "starts", "simulated_met", "simulated_starts"), sums, strict=True):
            found[f"{name}_{what}_{row}"] = float(number)
    table(["policy", "met", "starts", "met, simulated", "starts, simulated"], rows)
    return found


def main() -> None:
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trained.paper_tables", description=(__doc__ or "").splitlines()[0]
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", dest="size", action="store_const", const="quick",
                     help="the five models, one seed: about five minutes on 2 cores")  # fmt: skip
    how.add_argument("--full", dest="size", action="store_const", const="full",
                     help="all tables, three seeds: a night")  # fmt: skip
    parser.add_argument("--data", type=Path, default=Path("runs/datasets"), metavar="DIR",
                        help="folder of the data sets (default: %(default)s)")  # fmt: skip
    add_files(parser)
    parser.set_defaults(size="default")
    arguments = parser.parse_args()
    with tables_apart(arguments):
        figures = measure(arguments.size, arguments.data)
    keep("trained.paper_tables", arguments, figures)


if __name__ == "__main__":
    main()
