"""Commands to ask before a run: will a bundle fit, and which policies are there?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lightning_core.cli.arguments import add_allow_import, add_pool
from lightning_core.cli.jobs import read_bundle
from lightning_core.pool import Pool
from lightning_core.scheduler.summary import EXIT_MET, EXIT_NOT_MET
from lightning_core.server.discovery import home
from lightning_core.storage.runs.run_store import FILE, RunStore, RunStoreError


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``plan`` and ``policies``."""
    plan = command("plan", _plan, "predict whether a bundle fits, and what would make it fit")
    plan.add_argument("bundle", type=Path, metavar="BUNDLE.yaml")
    plan.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="folder of runs from which to learn how long jobs take (default: runs)",
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
    pool = None if arguments.own or arguments.ray else Pool.find(arguments.pool)
    bundle = read_bundle(arguments.bundle, pool, arguments.allow_import)
    if pool is None:
        print("checking the bundle as `run` would, which imports torch ...", file=sys.stderr, flush=True)
        bundle.check(local=not arguments.ray)
    else:
        pool.check(bundle)
        print(f"{pool.describe()}; other jobs in it are not counted", file=sys.stderr)
    history = arguments.history or (Path("runs") if Path("runs").is_dir() else None)
    lines, fits = plan_bundle(bundle, history, _kept_runs(home() if pool is None else pool.folder))
    print("\n".join(lines))
    return EXIT_MET if fits else EXIT_NOT_MET


def _kept_runs(folder: Path) -> RunStore | None:
    """Return the runs that the pool of a folder remembers; None if there are none, or another user could write them."""
    try:
        return RunStore(folder / FILE) if (folder / FILE).exists() else None
    except RunStoreError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def _policies(arguments: argparse.Namespace) -> int:
    from lightning_core.policies import summaries
    from lightning_core.scheduler.settings import Settings

    default = Settings().policy
    lines = {name + (" (default)" if name == default else ""): summary for name, summary in summaries().items()}
    width = max(map(len, lines))
    for name, summary in lines.items():
        print(f"{name:{width}}  {summary}")
    return EXIT_MET
