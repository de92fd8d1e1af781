"""Trains two evenings of jobs for real and plans the second twice: without and with the runs of the first.

Run from the repository's root: ``python examples/again.py --seed 1 --json again.json``. It

1. measures the throughput of each model alone on this machine;
2. draws both evenings from the seed (:mod:`examples.digits.evenings`): eight trainings with time to spare, then eight
   of the same models with other learning rates, tighter deadlines and twice the work that fits;
3. trains the first evening under the default policy. Its runs are kept as a pool keeps them, in ``history.db``;
4. trains the second evening twice in the same warm processes: once as if nothing had been before it, once with the
   store of the first;
5. prints, job by job, what the store was worth, and beside it the means over ten seeds, 1 to 10, in virtual time: one
   evening says little.

``python -m benchmarks.policies.again`` plays hundreds of such evenings in virtual time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.policies.again import play as play_in_virtual_time  # noqa: E402
from examples.demo import SIMULATED, bundle_of, run, terms, throughputs_of, warm  # noqa: E402
from examples.digits.drawing import DrawnJob, ceiling  # noqa: E402
from examples.digits.evenings import FIRST, JOBS, SECOND, draw_evenings, model_of, recorded  # noqa: E402
from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.cluster.cluster import Cluster  # noqa: E402
from lightning_core.core.answers import JobStatus, Verdict  # noqa: E402
from lightning_core.history.history import History  # noqa: E402
from lightning_core.node.signals import SignalReceivedError, recorded_signals  # noqa: E402
from lightning_core.scheduler.summary import Summary  # noqa: E402
from lightning_core.simulation.recorded_curves import Curve  # noqa: E402
from lightning_core.simulation.replications import Mean  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402
from lightning_core.storage.runs.run_store import FILE, RunStore  # noqa: E402

POLICY = "triage"
SEED = 1


class Evening(NamedTuple):
    """An evening as it went."""

    jobs: tuple[JobStatus, ...]
    known: tuple[float | None, ...]
    """Seconds until the first verdict on each job; None if it had none before its end."""

    @property
    def met(self) -> int:
        """Number of targets met in time."""
        return sum(is_met(job) for job in self.jobs)

    @property
    def wasted(self) -> float:
        """Seconds of the device on jobs that missed."""
        return sum(job.busy for job in self.jobs if not is_met(job))


def is_met(job: JobStatus) -> bool:
    """Return whether a job met its target in time."""
    return job.verdict is Verdict.MET and job.finished_at is not None


def as_it_went(end: Summary) -> Evening:
    """Return an evening from its end and its journal."""
    with Journal.open(end.run_dir / "journal.db", read_only=True) as journal:
        history = History.read(journal)
    told = {job.name: job.beliefs[0].time if job.beliefs else None for job in history.jobs}
    return Evening(end.jobs, tuple(told[job.name] for job in end.jobs))


def measured(cluster: Cluster, curves: Mapping[str, Curve], folder: Path) -> dict[str, float]:
    """Return the batches per second of each training, of which one of each model is measured."""
    one = {model_of(name): name for name in sorted(curves)}
    found = throughputs_of(cluster, {name: curves[name] for name in one.values()}, folder)
    return {name: found[one[model_of(name)]] for name in curves}


def show(drawn: Sequence[DrawnJob], without: Evening, knowing: Evening, console: Console) -> None:
    """Print the second evening, one row for each job."""
    made = Table(box=None, pad_edge=False, title="The second evening", title_justify="left")
    made.add_column("job")
    for name in ("needs", "has", "without", "verdict after", "with runs", "verdict after"):
        made.add_column(name, justify="right")
    made.add_column("")
    for number, job in enumerate(drawn):
        before, after = without.jobs[number], knowing.jobs[number]
        gain = is_met(after) - is_met(before)
        made.add_row(
            job.name, "never" if job.work == float("inf") else f"{job.work:.1f}s", f"{job.deadline:.1f}s",
            _outcome(before), _seconds(without.known[number]), _outcome(after), _seconds(knowing.known[number]),
            {1: "gained", 0: "", -1: "lost"}[gain], style={1: "bold green", 0: "", -1: "red"}[gain],
        )  # fmt: skip
    made.add_section()
    made.add_row("met", "", f"of {ceiling(drawn)}", str(without.met), "", str(knowing.met), "", style="bold")
    made.add_row("device on misses", "", "", f"{without.wasted:.1f}s", "", f"{knowing.wasted:.1f}s", "")
    console.print()
    console.print(made)


def _outcome(job: JobStatus) -> str:
    return f"✓ {job.finished_at - job.submitted_at:.1f}s" if is_met(job) and job.finished_at is not None else "·"


def _seconds(time_of: float | None) -> str:
    return "-" if time_of is None else f"{time_of:.1f}s"


def meaning(figures: Mapping[str, float]) -> str:
    """Return the figures in words."""
    without, knowing = figures["met_without"], figures["met_with"]
    told = f"{figures['ceiling']:.0f} targets could be met if the work of each training were known in advance. "
    told += f"Without the first evening's runs {without:.0f} were met, with them {knowing:.0f}"
    if knowing > without:
        return f"{told}: the first evening was worth {knowing - without:.0f}."
    if knowing < without:
        return f"{told}: here they did not help."
    spent = figures["wasted_s_without"] - figures["wasted_s_with"]
    return f"{told}, as many, with {abs(spent):.0f} s {'less' if spent >= 0 else 'more'} of the device on misses."


def play(cluster: Cluster, folder: Path, seed: int, console: Console) -> dict[str, float]:
    """Train the evenings of one seed and return their figures."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    console.print(f"\nseed {seed}: measuring the throughput of each model alone ...")
    curves = recorded()
    throughputs = measured(cluster, curves, folder / "alone")
    first, second = draw_evenings(curves, throughputs, seed)
    evening = run(cluster, _bundle(first), folder / "first", "the first evening")
    with closing(RunStore(evening.run_dir / FILE)) as store:
        kept = len(store)
    console.print(f"   the first evening: {evening.met} of {ceiling(first)} met; {kept} runs are kept")
    ends = {}
    for name, earlier in (("without", None), ("with", evening.run_dir)):
        title = f"the second evening {name} the runs of the first"
        ends[name] = as_it_went(run(cluster, _bundle(second), folder / name, title, earlier))
        console.print(f"   {title}: {ends[name].met} of {ceiling(second)} met")
    show(second, ends["without"], ends["with"], console)
    console.print(in_virtual_time(throughputs))
    console.print(f"({time.monotonic() - began:.0f} s)")
    return {
        "seed": seed,
        "ceiling": ceiling(second),
        **{f"met_{name}": end.met for name, end in ends.items()},
        **{f"wasted_s_{name}": round(end.wasted, 2) for name, end in ends.items()},
    }


def in_virtual_time(throughputs: Mapping[str, float]) -> str:
    """Return a line with the means over ten seeds, simulated at the throughputs of this machine."""
    pairs = [play_in_virtual_time(seed, throughputs) for seed in SIMULATED]
    could, without, knowing = (
        Mean.of([float(one) for one in column])
        for column in zip(*((pair.ceiling, pair.without.met, pair.with_runs.met) for pair in pairs), strict=True)
    )
    return (f"mean of {len(pairs)} seeds, simulated: {without} met without the runs, {knowing} with them, of "
            f"{could.value:.1f}")  # fmt: skip


def _bundle(drawn: Sequence[DrawnJob]) -> Bundle:
    return bundle_of({job.name: terms(job) for job in drawn}, POLICY)


def main(words: Sequence[str] | None = None) -> dict[str, float]:
    """Run the demo and return the figures, summed over the seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[SEED], help=f"one or more seeds; figures are summed (default {SEED})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as JSON")
    parser.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "again", metavar="DIR",
                        help="run folder; replaced (default runs/again)")  # fmt: skip
    arguments = parser.parse_args(words)
    console = Console(highlight=False, markup=False)
    console.print(f"{JOBS} trainings share one device for {FIRST[0]:.0f} s; the evening after, {JOBS} like them for "
                  f"{SECOND[0]:.0f} s, with {SECOND[1]:g} times the work that fits.")  # fmt: skip
    console.print("In the table: needs, seconds alone on the device; has, seconds until the deadline; ✓ target met, "
                  "· missed; verdict after, seconds until the first verdict.")  # fmt: skip
    with recorded_signals(at_once=True), warm(JOBS) as cluster:
        rows = [play(cluster, arguments.run_dir / f"seed-{seed}", seed, console) for seed in arguments.seed]
    figures = {key: round(sum(row[key] for row in rows), 2) for key in rows[0] if key != "seed"}
    console.print(f"\n{meaning(figures)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": figures, "seeds": rows}, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    try:
        main()
    except SignalReceivedError as left:
        sys.exit(128 + left.number)
