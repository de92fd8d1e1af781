"""``lightning-core simulate``: simulate a bundle on recorded loss curves, under one or several policies.

Each policy gets a folder like that of a live run: journal, summary, report. Nothing is trained, and neither Ray nor
torch nor Lightning is imported.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lightning_core.bundle.preflight import check_folder
from lightning_core.cli.arguments import new_file
from lightning_core.core.durations import parse_duration
from lightning_core.core.limits import MAX_DEVICES, check_seconds
from lightning_core.core.names import did_you_mean
from lightning_core.core.supplies import VirtualNodes
from lightning_core.report.page import write as write_report
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.server.clocks import wall_clock
from lightning_core.server.discovery import home
from lightning_core.simulation.bundle_curves import PlayedBundle, read_bundle
from lightning_core.simulation.comparison import compare, introduce
from lightning_core.simulation.recorded_curves import SHIPPED
from lightning_core.simulation.replications import Experiment, print_seeds, sums, to_dict
from lightning_core.simulation.scenario import Delays, Outcome
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.runs.run_store import FILE, RunStore, RunStoreError
from lightning_core.view.progress import print_summary
from lightning_core.view.text import clean

# Not in the folder of live runs, from which `plan` learns durations.
FOLDER = Path("simulations")
MAX_SEEDS = 10_000
DELAYS = tuple(field.name for field in fields(Delays))
# Where nodes come and go: seconds until one is there, from a preemption notice to its end, and to leave one that is
# given back.
NODES = {"start_up": 60.0, "notice": 0.0, "leave": 10.0}


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``simulate``."""
    made = command("simulate", _simulate, "simulate a bundle on recorded loss curves, under one or several policies")
    made.add_argument(
        "bundle",
        type=Path,
        metavar="BUNDLE.yaml",
        help="bundle file as for run; a job may name its recording with curve: FILE",
    )
    made.add_argument("--curves", type=Path, metavar="DIR", help="folder of recordings (columns step,loss) "
                      "for jobs that name none (default: their earlier runs, else 36 trainings "
                      "that come with the package)")  # fmt: skip
    made.add_argument("--policy", action="append", metavar="NAME", help="policy instead of the bundle's; several to "
                      "compare, such as edf,lara:order=edf")  # fmt: skip
    made.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random draws (default 0)")
    made.add_argument("--seeds", type=int, metavar="N", help="number of seeds, from --seed on; prints means "
                      "with standard errors, and writes no files but --json")  # fmt: skip
    made.add_argument("--shuffle", action="store_true", help="submit jobs in a random order instead of the file's")
    made.add_argument("--devices", type=int, metavar="N", help="number of devices instead of the bundle's")
    delays = f"delays to simulate: {', '.join(DELAYS)}; of a node: {', '.join(NODES)}"
    made.add_argument("--delays", default="", metavar="NAME=SECONDS,...", help=delays)
    made.add_argument("--lose", default="", metavar="JOB=TIME,...", help="times at which workers die, such as vit=20m")
    made.add_argument("--save-every", type=int, default=0, metavar="N", help="batches between two checkpoints "
                      "(default: a job is saved only when it leaves)")  # fmt: skip
    made.add_argument("--run-dir", type=Path, metavar="DIR", help="new folder for journals, summaries and reports")
    made.add_argument(
        "--json", type=new_file, metavar="FILE", help="also write the results of each policy to this file"
    )


def _check(arguments: argparse.Namespace) -> None:
    """Check what the options say.

    Raises:
        ValueError: If one is out of its range, or goes with another one only.
    """
    if arguments.devices is not None and not 1 <= arguments.devices <= MAX_DEVICES:
        raise ValueError(f"--devices must be 1 to {MAX_DEVICES}, got {arguments.devices}")
    if arguments.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {arguments.seed}")
    if arguments.seeds is not None and not 1 <= arguments.seeds <= MAX_SEEDS:
        raise ValueError(f"--seeds must be 1 to {MAX_SEEDS}, got {arguments.seeds}")
    if arguments.seeds is not None and arguments.run_dir is not None:
        raise ValueError("--run-dir is for one seed; look at one of them with --seed N --run-dir DIR")
    if arguments.save_every < 0:
        raise ValueError(f"--save-every must be at least 0, got {arguments.save_every}")


def _simulate(arguments: argparse.Namespace) -> int:
    _check(arguments)
    (delays, nodes), losses = parse_delays(arguments.delays), parse_losses(arguments.lose)
    curves = arguments.curves or SHIPPED
    # A named folder of recordings takes precedence.
    kept = earlier_runs() if arguments.curves is None else None
    bundle = read_bundle(
        arguments.bundle, curves, arguments.seed, arguments.devices, shuffle=arguments.shuffle, kept=kept
    )
    rents = bundle.supply is not None
    if rents and (flags := [flag for flag in ("devices", "seeds") if getattr(arguments, flag) is not None]):
        raise ValueError(
            f"--{flags[0]} does not go with a bundle that says where nodes come from, and how many there are"
        )
    bundle = place(bundle) if rents else bundle
    names = [played.given.job.name for played in bundle.jobs]
    if strangers := [name for name in losses if name not in names]:
        raise ValueError(f"--lose: no job {strangers[0]!r}{did_you_mean(strangers[0], names)}")
    policies = parse_policies(arguments.policy or [])
    settings = bundle.under(policies)
    if arguments.seeds is not None:
        experiment = Experiment(
            arguments.bundle, curves, policies, arguments.devices, delays, losses, arguments.save_every,
            wall_clock(), arguments.shuffle, kept,
        )  # fmt: skip
        return _replicate(arguments, experiment, bundle)
    supply = bundle.supply
    of_supply = {} if supply is None else {name: supply.virtual(one, nodes) for name, one in settings.items()}
    folder = _new_folder(arguments.run_dir)
    print("\n".join(introduce(bundle)))
    outcomes = {}
    for name, one in settings.items():
        own = folder if len(settings) == 1 else folder / name.translate(str.maketrans(":,=/", "----"))
        outcomes[name] = play(bundle, one, delays, own, losses, arguments.save_every, of_supply.get(name))
    print_failures({name: outcome.failed for name, outcome in outcomes.items()})
    if len(outcomes) == 1:
        [outcome] = outcomes.values()
        print_summary(outcome.summary, sys.stdout)
        print(f"switches: {outcome.switches}")
        if supply is not None:
            supply.show_record(outcome.nodes)
        print(f"journal, summary and report.html: {folder}")
    else:
        print("\n".join(compare(bundle, outcomes)))
        print(f"journal, summary and report.html of each policy: {folder}")
    if arguments.json:
        _write(arguments.json, bundle, outcomes, arguments.seed, delays)
    return EXIT_MET if any(outcome.met == len(bundle.jobs) for outcome in outcomes.values()) else EXIT_NOT_MET


def earlier_runs() -> Path | None:
    """Return the path of the runs that this user's pool remembers; None if there are none that can be read."""
    path = home() / FILE
    try:
        if not path.exists():
            return None
        RunStore(path).close()
    except RunStoreError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None
    return path


def parse_policies(given: Sequence[str]) -> list[str]:
    """Parse the names of policies, each with its arguments, from options that hold one or several.

    Raises:
        ValueError: If a policy is named twice.

    Example::

        >>> parse_policies(["fifo,lara:order=edf,explore=5,edf", "rr"])
        ['fifo', 'lara:order=edf,explore=5', 'edf', 'rr']
    """
    policies: list[str] = []
    for text in given:
        own: list[str] = []
        for part in text.split(","):
            if own and "=" in part and ":" not in part:  # another argument of the policy before it
                own[-1] += f",{part}"
            else:
                own.append(part)
        policies += own
    if twice := [policy for policy in policies if policies.count(policy) > 1]:
        raise ValueError(f"--policy: {twice[0]!r} is named twice")
    return policies


def place(bundle: PlayedBundle) -> PlayedBundle:
    """Return the same jobs on the nodes of the bundle's supply, as ``run`` would place them.

    Raises:
        BundleError: If a job cannot be there.
    """
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.bundle.job_spec import JobSpec

    specs = tuple(JobSpec(played.given.job, {}) for played in bundle.jobs)
    placed = BundleSpec(specs, bundle.settings, supply=bundle.supply).supplied()
    jobs = []
    for played, spec in zip(bundle.jobs, placed.jobs, strict=True):
        job = replace(played.given.job, save_every=spec.save_interval)
        jobs.append(replace(played, given=replace(played.given, job=job)))
    return replace(bundle, jobs=tuple(jobs), settings=placed.settings)


def parse_delays(text: str) -> tuple[Delays, dict[str, float]]:
    """Parse delays such as ``switch=0.2,report=100ms,start_up=2m``, in seconds or as durations.

    Returns:
        The delays of a pool, and those of a node (:data:`NODES`).

    Raises:
        ValueError: If a name is unknown or a value is out of range.

    Example::

        >>> delays, nodes = parse_delays("switch=0.2,start_up=2m")
        >>> delays.switch, nodes["start_up"]
        (0.2, 120.0)
    """
    names, given = (*DELAYS, *NODES), dict[str, float]()
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in names:
            raise ValueError(f"--delays: unknown delay {name!r}{did_you_mean(name, names)}")
        try:
            given[name] = float(value) if value[-1:].isdigit() else parse_duration(value)
        except ValueError:
            raise ValueError(f"--delays: {name} must be seconds, such as {name}=0.2, got {value!r}") from None
    nodes = {name: given.pop(name, seconds) for name, seconds in NODES.items()}
    for name, seconds in nodes.items():
        check_seconds(f"--delays: {name}", seconds)
    return Delays(**given), nodes


def parse_losses(text: str) -> dict[str, list[float]]:
    """Parse times at which workers die, such as ``vit=20m,vit=90s``, into seconds by job.

    Raises:
        ValueError: If a time cannot be read.

    Example::

        >>> parse_losses("vit=20m,cnn=90s,vit=1h")
        {'vit': [1200.0, 3600.0], 'cnn': [90.0]}
    """
    losses: dict[str, list[float]] = {}
    for part in filter(None, text.split(",")):
        name, _, time = part.rpartition("=")
        try:
            losses.setdefault(name, []).append(parse_duration(time))
        except ValueError as error:
            raise ValueError(f"--lose: {part!r}: {error}") from None
    return losses


def play(
    bundle: PlayedBundle,
    settings: Settings,
    delays: Delays,
    folder: Path,
    losses: Mapping[str, Sequence[float]] | None = None,
    save_every: int = 0,
    nodes: VirtualNodes | None = None,
) -> Outcome:
    """Play a bundle under one policy, with journal, summary and report in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job.given for job in bundle.jobs]
    simulation = Simulation(
        settings, jobs, delays, folder / "journal.db", losses=losses, save_every=save_every, wall_clock=wall_clock(),
        nodes=nodes,
    )  # fmt: skip
    outcome = simulation.run()
    write_whole(folder / "summary.json", outcome.summary.to_json())
    with Journal.open(folder / "journal.db") as journal:
        write_report(journal, folder / "report.html", folder.name)
    return outcome


def print_failures(failed: Mapping[str, Mapping[str, str]]) -> None:
    """Warn of parts that failed: what they were asked for was done by the library's own, and the figures are theirs.

    Args:
        failed: Error of each part that failed, by policy and by the part's kind and name.
    """
    for policy, errors in failed.items():
        for part, words in errors.items():
            warning = f"warning: under {policy}: a part failed, and is asked no more: {part}: {words}"
            print(clean(warning), file=sys.stderr)


def _replicate(arguments: argparse.Namespace, experiment: Experiment, first: PlayedBundle) -> int:
    """Play many seeds and print a row for each policy."""
    if not experiment.shuffle and not any(played.drawn for played in first.jobs):
        raise ValueError("--seeds: every job names its recording, so that each seed is the same; add --shuffle to draw "
                         "the order in which the jobs come")  # fmt: skip
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    done = experiment.replicate(seeds, _progress(len(seeds)))
    print_failures({name: errors for one in done for name, errors in one.failed.items() if errors})
    print_seeds(done, len(first.jobs))
    if arguments.json:
        _write_json(arguments.json, {"delays": asdict(experiment.delays), **to_dict(done)})
    all_met = any(row.met.value == len(first.jobs) for row in sums(done).values())
    return EXIT_MET if all_met else EXIT_NOT_MET


def _progress(seeds: int) -> Callable[[int], None]:
    """Return a function that shows on a terminal how many seeds are done."""

    def told(done: int) -> None:
        if sys.stderr.isatty():
            text = f"seed {done} of {seeds}" if done < seeds else ""
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return told


def _new_folder(wanted: Path | None) -> Path:
    folder = wanted or FOLDER / datetime.now().strftime("%Y%m%d-%H%M%S")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is not an empty folder; name another one for this simulation")
    check_folder(folder)
    return folder.resolve()


def _write(path: Path, bundle: PlayedBundle, outcomes: Mapping[str, Outcome], seed: int, delays: Delays) -> None:
    body: dict[str, Any] = {
        "seed": seed,
        "delays": asdict(delays),
        "jobs": {
            played.given.job.name: {
                "recording": played.recording,
                "drawn": played.drawn,
                "made_up": played.made_up,
                "throughput": played.given.throughput,
                "paces": dict(played.given.paces),
                "needs_s": played.needs if played.needs < float("inf") else None,
            }
            for played in bundle.jobs
        },
        "policies": {
            name: outcome.summary.to_dict()
            | {"switches": outcome.switches}
            | ({} if bundle.supply is None else bundle.supply.record_to_dict(outcome.nodes))
            for name, outcome in outcomes.items()
        },
    }
    _write_json(path, body)


def _write_json(path: Path, body: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(body, indent=2, allow_nan=False) + "\n")
