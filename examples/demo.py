"""Five models, five deadlines, one device: the same bundle under fifo, edf, LARA, LaiRA, guarded EDF and triage.

Run from the repository's root: ``python examples/demo.py --seed 1 --json demo.json``. What it does:

1. trains each digit model alone for a few seconds and records its curve and its speed;
2. draws a bundle from the seed by the papers' rule: targets at 30 to 80 % of the recorded curves, deadlines along a
   random order of priority, too tight for all, then one job made short and hard and one long and easy;
3. runs that bundle under every policy, in the same warm workers;
4. prints what each policy met, beside the most that anybody who knew all the work in advance could meet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from examples.digits import MODELS  # noqa: E402
from lightning_core import Scheduler, Settings  # noqa: E402
from lightning_core.codec import decode_event  # noqa: E402
from lightning_core.journal import Journal  # noqa: E402
from lightning_core.launch.bundle import Bundle  # noqa: E402
from lightning_core.launch.cluster import Cluster  # noqa: E402
from lightning_core.launch.signals import Interrupted, signals  # noqa: E402
from lightning_core.policies.moore_hodgson import largest_feasible_set  # noqa: E402
from lightning_core.summary import Summary  # noqa: E402
from lightning_core.types import Report, Verdict  # noqa: E402
from lightning_core.view.progress import view_for  # noqa: E402

POLICIES = {
    "fifo": "fifo",
    "edf": "edf",
    "uniform": "uniform",
    "lara": "lara",
    "lara_edf": "lara:order=edf",
    "laira": "laira",
    "guarded_edf": "guarded_edf",
    "triage": "triage",
}
# Each is a live run of half a minute.
SHOWN = ("fifo", "edf", "lara", "laira", "guarded_edf", "triage")
SOLO_SECONDS = 10.0
PERIOD = "0.5s"
# Runs of seconds want fine loss cells: ten of them must be seen before a curve is judged.
CELL = 4
WINDOW = Settings().window


@dataclass(frozen=True)
class Solo:
    """What a model did alone: its smoothed curve and how fast it went.

    Args:
        batches: done at each point of the curve, shape ``(n,)``.
        loss: mean of the last cells there, shape ``(n,)``.
        speed: batches per busy second.
    """

    batches: np.ndarray
    loss: np.ndarray
    speed: float

    def passage(self, threshold: float) -> float:
        """Seconds alone until the smoothed loss is down to the threshold; inf if it never was."""
        reached = np.flatnonzero(self.loss <= threshold)
        return float(self.batches[reached[0]] / self.speed) if len(reached) else np.inf


def config(model: str, seed: int) -> dict[str, object]:
    """A LightningCLI config of a digit model."""
    return {
        "seed_everything": seed,
        "model": {"class_path": f"examples.digits.{MODELS[model].__name__}"},
        "data": {"class_path": "examples.digits.Digits"},
        "trainer": {"logger": False},
        "cell": CELL,
        "on_miss": "stop",  # what is late does not count here, and would go on for ever
    }


def record(cluster: Cluster, model: str, seed: int, seconds: float, folder: Path) -> Solo:
    """Trains a model alone and reads its curve from the run's journal."""
    job = {**config(model, seed), "deadline": f"{seconds}s", "target": {"batches": 10**9}}
    bundle = Bundle.from_dict({"policy": "uniform", "jobs": {model: job}}, ROOT)
    [status] = unless_interrupted(bundle.run(run_dir=folder, cluster=cluster)).jobs
    cells = {}
    with Journal.open(folder / "journal.db") as journal:
        for entry in journal.entries():
            event = decode_event(entry.event)
            if isinstance(event, Report):
                cells.update({cell.number: cell for cell in event.cells})
    curve = [cells[number] for number in sorted(cells)]
    smooth = np.convolve([cell.value for cell in curve], np.ones(WINDOW) / WINDOW, mode="valid")
    return Solo(np.array([cell.batches for cell in curve[WINDOW - 1 :]]), smooth, status.batches / status.busy)


def unless_interrupted(end: Summary) -> Summary:
    """Ctrl-C ends the demo, not only the run that it hit."""
    if end.interrupted is not None:
        sys.exit(end.exit_code)
    return end


def draw(solos: dict[str, Solo], seed: int, seconds: float) -> tuple[Bundle, dict[str, float]]:
    """A bundle by the papers' rule, and the seconds of work that each job's target takes alone.

    Args:
        solos: what each model did alone.
        seed: of the draw.
        seconds: that each model was trained alone.
    """
    rng = np.random.default_rng(seed)
    order = [str(name) for name in rng.permutation(sorted(solos))]
    targets, work, deadlines = {}, {}, {}
    total = 0.0
    for name in order:
        solo = solos[name]
        at = int(rng.uniform(0.3, 0.8) * len(solo.loss))
        targets[name] = float(solo.loss[: at + 1].min())
        work[name] = solo.passage(targets[name])
        total += work[name]
        deadlines[name] = total * rng.uniform(0.7, 1.1)
    hard, easy = (str(name) for name in rng.choice(order, 2, replace=False))
    # Short and hard: a loss that it did not reach alone in longer than the deadline.
    targets[hard] = 0.5 * float(solos[hard].loss.min())
    work[hard] = np.inf
    deadlines[hard] = min(deadlines[hard], rng.uniform(0.5, 0.9) * seconds)
    # Long and easy: the start of its curve, and as much time as anybody has.
    targets[easy] = float(solos[easy].loss[: int(0.3 * len(solos[easy].loss)) + 1].min())
    work[easy] = solos[easy].passage(targets[easy])
    deadlines[easy] = max(deadlines.values())
    jobs = {
        name: {**config(name, seed), "deadline": f"{deadlines[name]:.3f}s", "target": {"loss": targets[name]}}
        for name in (str(name) for name in rng.permutation(order))  # who came first has nothing to do with urgency
    }
    return Bundle.from_dict({"policy": "lara", "period": PERIOD, "jobs": jobs}, ROOT), work


def ceiling(bundle: Bundle, work: dict[str, float]) -> int:
    """The most jobs that can meet their targets when all the work is known in advance."""
    names = [spec.job.name for spec in bundle.jobs]
    kept = largest_feasible_set(
        np.array([work[name] for name in names]), np.array([spec.job.deadline for spec in bundle.jobs]), 0.0
    )
    return int(kept.sum())


def why_not_more(bundle: Bundle, work: dict[str, float], end: Summary) -> None:
    """Prints, for the jobs that a policy did not meet, what it made of them: seconds in each state of its mind."""
    spent: dict[str, dict[str, float]] = {spec.job.name: {} for spec in bundle.jobs}
    with Journal.open(end.run_dir / "journal.db") as journal:
        scheduler, before = Scheduler(journal.settings()), 0.0
        for entry in journal.entries():
            for name in scheduler.names(active=True):
                directive = scheduler.directive(name)
                code = directive.reason.code if directive is not None else "submitted"
                spent[name][code] = spent[name].get(code, 0.0) + entry.now - before
            scheduler.handle(decode_event(entry.event), entry.now)
            before = entry.now
    print(f"Why {end.policy} met no more (seconds in which a job ...):")
    columns = ("needs alone", "explored", "waited for it", "given up", "chosen", "all tried")
    print(f"  {'job':<14}" + "".join(f"{column:>15}" for column in columns))
    for job in end.jobs:
        if job.verdict is Verdict.MET or not np.isfinite(work[job.name]):
            continue
        of = spent[job.name]
        seconds = (
            work[job.name],
            of.get("explore", 0.0),
            of.get("explored", 0.0),
            of.get("dropped", 0.0) + of.get("not_falling", 0.0),
            of.get("chosen", 0.0) + of.get("chosen_later", 0.0),
            of.get("nothing_fits", 0.0),
        )
        print(f"  {job.name:<14}" + "".join(f"{x:>15.1f}" for x in seconds), flush=True)


def show(bundle: Bundle, work: dict[str, float], ends: dict[str, Summary], most: int) -> None:
    """Prints a row a job, a column a policy."""
    print(f"\n{'job':<14}{'target':>9}{'work':>8}{'deadline':>10}  " + "".join(f"{name:>16}" for name in ends))
    for k, spec in enumerate(bundle.jobs):
        name = spec.job.name
        cells = []
        for end in ends.values():
            job = end.jobs[k]
            when = f" {job.finished_at:.1f}s" if job.verdict is Verdict.MET and job.finished_at is not None else ""
            cells.append(f"{job.verdict}{when}")
        print(f"{name:<14}{bundle_target(bundle, k):>9.4f}{work[name]:>7.1f}s{spec.job.deadline:>9.1f}s  "
              + "".join(f"{cell:>16}" for cell in cells))  # fmt: skip
    print(f"{'met':<41}  " + "".join(f"{end.met:>16}" for end in ends.values()) + f"   ceiling {most}", flush=True)


def bundle_target(bundle: Bundle, k: int) -> float:
    """The loss that job k must reach."""
    return float(getattr(bundle.jobs[k].job.target, "at_most", np.nan))


def main(words: Sequence[str] | None = None) -> dict[str, int]:
    """Runs it all; the figures, summed over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one or several; figures are their sums")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "demo", metavar="DIR", help="written anew")
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=list(MODELS), help="(default: all)")
    parser.add_argument(
        "--policy", nargs="+", choices=POLICIES, default=list(SHOWN), help=f"(default: {' '.join(SHOWN)})"
    )
    parser.add_argument("--seconds", type=float, default=SOLO_SECONDS, help="each model alone (default %(default)s)")
    arguments = parser.parse_args(words)
    rows = []
    print("bringing up warm workers (each imports torch and Lightning once) ...", flush=True)
    with signals(at_once=True), Cluster(workers=len(arguments.model)) as cluster:
        for seed in arguments.seed:
            folder = arguments.run_dir / f"seed-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            print(f"\nseed {seed}: each model alone for {arguments.seconds:.0f} s", flush=True)
            solos = {
                name: record(cluster, name, seed, arguments.seconds, folder / "solo" / name) for name in arguments.model
            }
            for name, solo in solos.items():
                print(f"  {name:<14} {solo.speed:5.0f} batches/s, loss {solo.loss[0]:.3f} to {solo.loss[-1]:.4f}")
            bundle, work = draw(solos, seed, arguments.seconds)
            ends = {}
            for name in arguments.policy:
                print(f"\n{POLICIES[name]}", flush=True)
                end = bundle.run(POLICIES[name], folder / name, cluster=cluster, watcher=view_for(sys.stdout))
                ends[name] = unless_interrupted(end)
            most = ceiling(bundle, work)
            show(bundle, work, ends, most)
            if "lara" in ends and ends["lara"].met < max(end.met for end in ends.values()):
                why_not_more(bundle, work, ends["lara"])
            rows.append({"seed": seed, "ceiling": most, **{f"met_{name}": end.met for name, end in ends.items()}})
    figures = {key: sum(row[key] for row in rows) for key in rows[0] if key != "seed"}
    print("\n" + ", ".join(f"{key} {value}" for key, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": figures, "seeds": rows}, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    try:
        main()
    except Interrupted as left:
        sys.exit(128 + left.number)
