"""Compares three policies, and no pool at all, on ten real trainings with ten deadlines on one device.

Run from the repository's root: ``python examples/demo.py --json demo.json``. For each seed it

1. measures the throughput of each training alone on this machine;
2. draws targets and deadlines (:mod:`examples.digits.drawing`), more than can be met, some of them never. Targets are
   taken from the recorded loss curves in the repository (:mod:`examples.digits.trainings`);
3. trains the jobs all at once in processes of their own, as people do who have no scheduler, and then under each
   policy, in the same warm processes;
4. prints the number of targets that were met, and the maximum if all the work were known in advance. Beside it stand
   the means over ten seeds, 1 to 10, in virtual time: one draw says little about a policy.

The draw follows the rules of ``benchmarks.curves.bundles`` and is independent of the policies: jobs come in a random
order, and deadlines depend neither on it nor on the work. Often the order hardly matters, and any policy will do. So
the draw that is trained is the first one, of seeds 1, 2, 3 and so on, in which first come first served and earliest
deadline first each meet at most half of what could be met, in virtual time at recorded throughputs. What other policies
make of it had no part in the choice, and the ten simulated draws are not chosen at all.

Each training has a warm process of its own: with fewer, one that is held must leave before another is looked at.
``python -m benchmarks.policies.demo`` simulates hundreds of such draws, under more policies.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from examples.digits.drawing import SECONDS, DrawnJob, ceiling, draw  # noqa: E402
from examples.digits.trainings import AGAIN, CURVES, TRAININGS  # noqa: E402
from examples.digits.virtual import PERIOD, play_seeds  # noqa: E402
from examples.run_picture import draw as draw_run  # noqa: E402
from examples.unmanaged import Unmanaged, UnmanagedJob, all_at_once  # noqa: E402
from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.cluster.cluster import Cluster  # noqa: E402
from lightning_core.core.answers import Verdict  # noqa: E402
from lightning_core.core.codec import decode_event  # noqa: E402
from lightning_core.core.events import Report  # noqa: E402
from lightning_core.node.signals import SignalReceivedError, recorded_signals  # noqa: E402
from lightning_core.scheduler.summary import Summary  # noqa: E402
from lightning_core.simulation.recorded_curves import Curve, load_curves  # noqa: E402
from lightning_core.simulation.replications import Mean  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402
from lightning_core.storage.private_files import private_folder  # noqa: E402
from lightning_core.storage.runs.run_store import FILE, RunStore  # noqa: E402
from lightning_core.view.progress import view_for  # noqa: E402

POLICIES = ("fifo", "edf", "triage")
OURS, BASELINE = "triage", "fifo"
# The row of those who have no pool, and the policy that plays it in virtual time, by equal shares.
UNMANAGED, EQUAL_SHARES = "all at once", "uniform"
# The first seed in which the order matters, as the two simplest orders show.
SEED = 3
# Seeds that are played in virtual time beside the ones that are trained.
SIMULATED = range(1, 11)
# Seconds for which each training runs alone, and the fraction of them that is left out as warm-up.
TRIAL = 1.5
WARM_UP = 1 / 3


def bundle_of(jobs: Mapping[str, Mapping[str, object]], policy: str, kind: str = "cpu") -> Bundle:
    """Return a bundle of trainings, each with its target and deadline, for a device of some kind."""
    trainings = TRAININGS | AGAIN
    written = {
        name: {**trainings[name].config(), "cell": trainings[name].cell, "on_miss": "stop", **terms}
        for name, terms in jobs.items()
    }
    bundle = Bundle.from_dict({"period": f"{PERIOD}s", "pool": {"kind": kind}, "jobs": written}, ROOT)
    return bundle.with_policy(policy)


def run(cluster: Cluster, bundle: Bundle, folder: Path, title: str, earlier: Path | None = None) -> Summary:
    """Run a bundle, with the live board on a terminal. Ctrl-C ends the whole demo.

    Args:
        cluster: Cluster to run on.
        bundle: Bundle to run.
        folder: New folder of the run.
        title: Title of the board.
        earlier: Folder of an earlier run, whose store of runs the new one begins with; None to begin without.
    """
    watcher = view_for(sys.stdout, title, 1) if sys.stdout.isatty() else None
    if earlier is None:
        end = bundle.run(run_dir=folder, cluster=cluster, watcher=watcher)
    else:
        bundle.check(local=False)
        copy_runs(earlier, folder)
        end = cluster.run(bundle, folder.resolve(), watcher)
    if end.interrupted is not None:
        sys.exit(end.exit_code)
    return end


def copy_runs(source: Path, folder: Path) -> None:
    """Copy the store of runs of one folder to another, as if both were of one pool."""
    private_folder(folder)
    with closing(RunStore(source / FILE)) as old, closing(RunStore(folder / FILE)) as new:
        new.add(old.runs())


def throughputs_of(cluster: Cluster, curves: Mapping[str, Curve], folder: Path, kind: str = "cpu") -> dict[str, float]:
    """Return the batches per second of each training, run one after the other alone on the device."""
    jobs = {
        name: {"deadline": "1h", "target": {"batches": max(round(TRIAL / (curve.seconds_per_batch or 0.02)), 10)}}
        for name, curve in curves.items()
    }
    end = run(cluster, bundle_of(jobs, "fifo", kind), folder, "throughput alone")
    reports: dict[str, list[Report]] = {name: [] for name in curves}
    with Journal.open(end.run_dir / "journal.db", read_only=True) as journal:
        for entry in journal.entries():
            event = decode_event(entry.event)
            if isinstance(event, Report):
                reports[event.job].append(event)
    return {name: throughput(told) for name, told in reports.items()}


def throughput(reports: Sequence[Report]) -> float:
    """Return the batches per busy second after the warm-up."""
    last = reports[-1]
    settled = next(one for one in reports if one.batches >= WARM_UP * last.batches)
    if settled.batches == last.batches:
        return last.batches / last.busy
    return (last.batches - settled.batches) / (last.busy - settled.busy)


def print_table(rows: Sequence[Sequence[str]], names: int = 1) -> None:
    """Print a table whose first ``names`` columns are aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:names], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[names:], widths[names:], strict=True)]
        print("   " + "  ".join(cells).rstrip(), flush=True)


def show(jobs: Sequence[DrawnJob], ends: Mapping[str, Summary | Unmanaged], played: Sequence[Sequence[int]]) -> None:
    """Print one row per job and one column per policy.

    Args:
        jobs: The jobs that were trained.
        ends: The result of each policy, and of no pool.
        played: For each simulated seed, the number of jobs that could be met, and the number met by each of them.
    """
    rows = [("", "job", "needs", "has", *ends)]
    for number, job in enumerate(jobs):
        cells = []
        for end in ends.values():
            one = end.jobs[number]
            met = one.verdict is Verdict.MET and one.finished_at is not None
            cells.append(f"✓ {one.finished_at:.1f}s" if met else "·" if one.verdict is Verdict.MISSED else one.verdict)
        needs = f"{job.work:.1f}s" if job.work < float("inf") else "never"
        rows.append((f"{number + 1}.", job.name, needs, f"{job.deadline:.1f}s", *map(str, cells)))
    could, *means = (Mean.of(column) for column in zip(*played, strict=True))
    rows.append(("", "met", "", f"of {ceiling(jobs)}", *(str(end.met) for end in ends.values())))
    rows.append(("", f"mean of {len(played)} seeds, simulated", "", f"of {could.value:.1f}", *map(str, means)))
    print()
    print_table(rows, names=2)


def meaning(figures: Mapping[str, int]) -> str:
    """Return the figures in words."""
    met = {key.removeprefix("met_"): value for key, value in figures.items() if key != "ceiling"}
    unmanaged = met.pop(UNMANAGED, None)
    best = max(met.values())
    ours = met.get(OURS)
    told = f"{figures['ceiling']} could be met if the work of each training were known in advance"
    if ours is None:
        return f"{told}; {' and '.join(name for name in met if met[name] == best)} met {best}."
    told += f".\n{OURS}, which does not know it, met {ours}"
    if met.get(BASELINE):
        told += f", {ours / met[BASELINE]:.1f} times as many as {BASELINE} ({met[BASELINE]})"
    lost = "" if unmanaged is None else f"\n{_lost(ours, unmanaged)}"
    if len(met) == 1:
        return f"{told}.{lost}"
    others = [name for name, number in met.items() if number == best and name != OURS]
    if best > ours:
        return f"{told}. Here {' and '.join(others)} met more: {best}.{lost}"
    as_many = f"{' and '.join(others)} met as many." if others else "No other policy met as many."
    return f"{told}. {as_many}{lost}"


def _lost(ours: int, unmanaged: int) -> str:
    """Return a sentence on what a reader without a pool would have lost."""
    told = f"Without a pool, all at once on the device, {unmanaged} met their targets in time"
    if unmanaged >= ours:
        return f"{told}: no fewer."
    return f"{told}: you would have lost {ours - unmanaged} of these {ours}."


@contextmanager
def warm(workers: int, kind: str = "cpu") -> Iterator[Cluster]:
    """Yield a cluster whose processes have imported torch and Lightning, so that no policy waits for that."""
    print(f"warming up {workers} processes that import torch and Lightning ...", end=" ", flush=True)
    began = time.monotonic()
    with Cluster(workers=workers, kind=kind) as cluster:
        print(f"{time.monotonic() - began:.0f} s", flush=True)
        yield cluster


def play(cluster: Cluster, curves: Mapping[str, Curve], arguments: argparse.Namespace, seed: int) -> dict[str, int]:
    """Run one seed under every policy and return its figures."""
    folder = arguments.run_dir / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    print(f"\nseed {seed}: measuring the throughput of each training alone ...", end=" ", flush=True)
    throughputs = throughputs_of(cluster, curves, folder / "alone", arguments.kind)
    jobs = draw(curves, throughputs, seed, arguments.seconds)
    work = sum(job.work for job in jobs if job.work < float("inf"))
    print(f"{min(throughputs.values()):.0f} to {max(throughputs.values()):.0f} batches/s; {work:.0f} s of work for "
          f"{arguments.seconds:.0f} s, besides targets that are never reached", flush=True)  # fmt: skip
    ends: dict[str, Summary | Unmanaged] = {
        UNMANAGED: all_at_once([unmanaged(job) for job in jobs], kind=arguments.kind)
    }
    print(f"   {UNMANAGED}: {ends[UNMANAGED].met} met", flush=True)
    for policy in arguments.policy:
        bundle = bundle_of({job.name: terms(job) for job in jobs}, policy, arguments.kind)
        ends[policy] = last = run(cluster, bundle, folder / policy.translate(str.maketrans(":,=", "---")), policy)
        print(f"   {policy}: {ends[policy].met} met", flush=True)
    settings = [bundle_of({job.name: terms(job) for job in jobs}, policy).settings
                for policy in (EQUAL_SHARES, *arguments.policy)]  # fmt: skip
    played = play_seeds(curves, throughputs, settings, SIMULATED, arguments.seconds)
    show(jobs, ends, played)
    if arguments.picture:
        with Journal.open(last.run_dir / "journal.db", read_only=True) as journal:
            draw_run(journal, arguments.picture)
        print(f"   the run under {arguments.policy[-1]}: {arguments.picture}")
    print(f"   ({time.monotonic() - began:.0f} s)", flush=True)
    return {"seed": seed, "ceiling": ceiling(jobs), **{f"met_{name}": end.met for name, end in ends.items()}}


def unmanaged(job: DrawnJob) -> UnmanagedJob:
    """Return a job for a training without a pool."""
    training = (TRAININGS | AGAIN)[job.name]
    return UnmanagedJob(job.name, training.config(), training.cell, job.target, job.deadline)


def terms(job: DrawnJob) -> dict[str, object]:
    """Return target and deadline of a job as in a bundle file."""
    return {"deadline": f"{job.deadline:.3f}s", "target": {"loss": job.target}}


def main(words: Sequence[str] | None = None) -> dict[str, int]:
    """Run the demo and return the figures, summed over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[SEED], help=f"one or more seeds; figures are summed (default {SEED})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the run of the last seed and policy to FILE")
    parser.add_argument(
        "--run-dir",
        type=Path,
        default=ROOT / "runs" / "demo",
        metavar="DIR",
        help="run folder; replaced (default runs/demo)",
    )
    parser.add_argument("--training", nargs="+", choices=TRAININGS, default=list(TRAININGS), metavar="NAME",
                        help=f"some of {', '.join(TRAININGS)} (default: all)")  # fmt: skip
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), metavar="NAME",
                        help=f"such as lara:order=edf (default: {' '.join(POLICIES)})")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=SECONDS, help="available time (default %(default)s)")
    parser.add_argument("--kind", choices=("cpu", "gpu"), default="cpu", help="kind of the device (default cpu)")
    arguments = parser.parse_args(words)
    curves = {curve.name: curve for curve in load_curves(CURVES) if curve.name in arguments.training}
    for policy in arguments.policy:
        try:
            bundle_of({name: {"deadline": "1s", "target": {"batches": 1}} for name in curves}, policy)
        except ValueError as error:
            parser.error(str(error))
    print(f"{len(curves)} trainings of handwritten digits share one device: all at once, as without a pool, and "
          f"under {len(arguments.policy)} policies.")  # fmt: skip
    if arguments.seed == [SEED]:
        print(
            f"Seed {SEED} is the first in which neither fifo nor edf meets more than half of what could be, simulated."
        )
    print("In the tables: needs, seconds alone on the device; has, seconds until the deadline; ✓ target met; · missed.")
    print(flush=True)
    with recorded_signals(at_once=True), warm(len(curves), arguments.kind) as cluster:
        rows = [play(cluster, curves, arguments, seed) for seed in arguments.seed]
    figures = {key: sum(row[key] for row in rows) for key in rows[0] if key != "seed"}
    if len(rows) > 1:
        print()
        print_table(
            [
                ("seed", "could be met", UNMANAGED, *arguments.policy),
                *([str(number) for number in row.values()] for row in rows),
                ("all", *map(str, figures.values())),
            ]
        )
    print(f"\n{meaning(figures)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"figures": figures, "seeds": rows}, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    try:
        main()
    except SignalReceivedError as left:
        sys.exit(128 + left.number)
