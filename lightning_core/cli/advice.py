"""Commands to ask before a run: will a bundle fit, and which policies are there?"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.cli.arguments import add_allow_import, add_pool
from lightning_core.cli.job_commands import read_bundle
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.core.names import listed
from lightning_core.core.parts import all_parts, broken_parts
from lightning_core.node.signals import recorded_signals
from lightning_core.pool import Pool
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.server.discovery import home
from lightning_core.storage.runs.run_store import FILE, RunStore, RunStoreError
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.cluster.trial import TrialReport

# Seconds for which a job may be tried: a forecast needs some cells, and a longer trial is a run.
MIN_TRIAL, MAX_TRIAL = 1.0, 3600.0


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``plan`` and ``policies``."""
    plan = command("plan", _plan, "predict whether a bundle fits, and which change would make it fit")
    plan.add_argument("bundle", type=Path, metavar="BUNDLE.yaml")
    plan.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="folder of runs from which to learn how long jobs take (default: runs)",
    )
    plan.add_argument(
        "--try",
        dest="trial",
        metavar="TIME",
        help="train each job for at most this long, such as 20s, to forecast it; no results are kept",
    )
    plan.add_argument("--own", action="store_true", help="plan for a pool of its own even if one is up")
    plan.add_argument(
        "--ray", metavar="ADDRESS", help="plan for a Ray cluster: the devices of this machine do not matter"
    )
    add_allow_import(plan)
    add_pool(plan)
    command("policies", _policies, "list the policies, a line each")


def _plan(arguments: argparse.Namespace) -> int:
    from lightning_core.run.bundle_plan import plan_bundle

    if arguments.history is not None and not arguments.history.is_dir():
        raise ValueError(f"--history: {arguments.history} is not a folder")
    seconds = None if arguments.trial is None else _seconds_to_try(arguments.trial)
    pool = None if arguments.own or arguments.ray else Pool.find(arguments.pool)
    if seconds is not None and (arguments.ray or pool is not None):
        other = (
            "leave out --ray" if arguments.ray else "a pool is up and has its devices; add --own to try all the same"
        )
        raise ValueError(f"--try trains on this machine, in a pool of its own: {other}")
    bundle = read_bundle(arguments.bundle, pool, arguments.allow_import)
    if pool is None:
        imports = "" if all(spec.script for spec in bundle.jobs) else ", which imports torch"
        print(f"checking the bundle as `run` would{imports} ...", file=sys.stderr, flush=True)
        bundle.check(local=not arguments.ray)
    else:
        pool.check(bundle)
        print(f"{pool.describe()}; other jobs in it are not counted", file=sys.stderr)
    history = arguments.history or (Path("runs") if Path("runs").is_dir() else None)
    tried = None if seconds is None else _tried(bundle, seconds)
    kept = _kept_runs(home() if pool is None else pool.folder)
    lines, fits = plan_bundle(bundle, history, kept, tried, () if pool is None else pool.about().get("kinds", ()))
    print("\n".join(lines))
    return EXIT_MET if fits else EXIT_NOT_MET


def _seconds_to_try(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"--try: {error}") from None
    if not MIN_TRIAL <= seconds <= MAX_TRIAL:
        raise ValueError(f"--try must be {format_duration(MIN_TRIAL)} to {format_duration(MAX_TRIAL)}, got {text}")
    return seconds


def _tried(bundle: BundleSpec, seconds: float) -> dict[str, TrialReport]:
    """Train each job for some seconds, and return the results."""
    from lightning_core.cluster.trial import try_jobs

    def told(names: Sequence[str]) -> None:
        print(f"training {listed(names)} for {format_duration(seconds)} at most ...", file=sys.stderr, flush=True)

    if not all(spec.script for spec in bundle.jobs):
        print("starting Ray for the trials; no results are kept ...", file=sys.stderr, flush=True)
    with recorded_signals(at_once=True):
        return try_jobs(bundle, seconds, told)


def _kept_runs(folder: Path) -> RunStore | None:
    """Return the runs that the pool of a folder remembers; None if there are none, or another user could write them."""
    try:
        return RunStore(folder / FILE) if (folder / FILE).exists() else None
    except RunStoreError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def _policies(arguments: argparse.Namespace) -> int:
    from lightning_core.policies import POLICIES, summaries
    from lightning_core.scheduler.settings import Settings

    default = Settings().policy
    lines = {name + (" (default)" if name == default else ""): summary for name, summary in summaries().items()}
    for one in all_parts():
        for name, policy in one.part.policies.items():
            if name in POLICIES:
                words = f"warning: the policy {name} of {one.package} is never used: the library has one of this name"
                print(clean(words), file=sys.stderr)
            else:
                summary = next(iter(inspect.cleandoc(policy.__doc__ or "").splitlines()), "")
                lines[clean(name)] = clean(f"{summary} ({one.package})".lstrip())
    for part, words in broken_parts().items():
        print(clean(f"warning: the part {part} cannot be loaded: {words}"), file=sys.stderr)
    width = max(map(len, lines))
    for name, summary in lines.items():
        print(f"{name:{width}}  {summary}")
    return EXIT_MET
