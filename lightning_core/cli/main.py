# PYTHON_ARGCOMPLETE_OK
"""``lightning-core``: runs bundles, brings pools up, and lets people look at them and steer them.

Exit codes: 0 all jobs met (or what was asked is done), 3 some not, 1 a job crashed, 2 bad input or no pool, 70 the pool
was lost, 129, 130 or 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.cli import init, market, place, pool_commands, pool_run, simulate
from lightning_core.cli.arguments import Parser, complete, new_file
from lightning_core.core.durations import format_duration
from lightning_core.name_conflict import describe_namesake
from lightning_core.node.signals import Interrupted, raising, signals
from lightning_core.run.pool_reference import InPool, journal_of
from lightning_core.scheduler.summary import EXIT_BAD_INPUT, EXIT_MET, EXIT_NOT_MET, EXIT_POOL_LOST, PoolLost
from lightning_core.server.discovery import connect
from lightning_core.storage.excerpt import compare
from lightning_core.storage.journal import Journal, JournalError, replay
from lightning_core.variables import unknown
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.cli.market_run import OnMarket

Command = Callable[[argparse.Namespace], int]
# What a command may find missing, and the extra that brings it.
EXTRAS = {"launch": "torch lightning lightning_utilities typing_extensions jsonargparse ray", "view": "matplotlib rich"}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the answer is the exit code."""
    parser = _parser()
    complete(parser)
    arguments = parser.parse_args(argv)
    for words in (*unknown(os.environ), *filter(None, [describe_namesake()])):
        print(f"warning: {clean(words)}", file=sys.stderr)
    if arguments.debug:
        return int(arguments.run(arguments))
    try:
        with raising():
            code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has enough; nothing more can be flushed there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_MET
    except ModuleNotFoundError as error:
        return _fail(_missing(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else _words(error))
    except (ValueError, sqlite3.DatabaseError, JournalError, pool_commands.Failed) as error:
        return _fail(_words(error))
    except PoolLost as error:
        _fail(str(error))
        return EXIT_POOL_LOST
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)


def _missing(error: ModuleNotFoundError) -> str:
    """What to install, if it is one of ours that is missing."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules.split()), None)
    if extra is None or "pip install" in str(error):
        return str(error)
    return f"this needs {module}, which is not installed; run pip install 'lightning-core-learning[{extra}]'"


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _version() -> str:
    try:
        return version("lightning-core-learning")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(words: str) -> int:
    for problem in words.splitlines():
        print(f"error: {clean(problem)}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lightning-core", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=f"lightning-core {_version()}")
    parser.set_defaults(debug=False)
    commands = parser.add_subparsers(metavar="COMMAND")

    def command(name: str, run: Command, words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=words)
        made.set_defaults(run=run)
        return made

    run = command("run", _run, "run a bundle of jobs to its end, on the pool that is up or on one of its own")
    run.add_argument("bundle", type=Path, nargs="?", metavar="BUNDLE.yaml")
    run.add_argument("--policy", metavar="NAME", help="instead of the bundle's, such as fifo, edf, lara:order=edf")
    run.add_argument("--run-dir", type=Path, metavar="DIR", help="new folder for journal, spec and summary")
    run.add_argument("--json", type=new_file, metavar="FILE", help="write the summary here too")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with a run that was left (a job: `resume`)")
    run.add_argument("--accept-changes", action="store_true", help="with --resume: take an edited bundle as it is now")
    run.add_argument("--own", action="store_true", help="on a pool of its own, also if one is up")
    words = "on nodes that come and go: a recording of spot prices; made-up machines here, or with --ray real ones"
    run.add_argument("--market", type=Path, metavar="TRACE", help=words)
    words = 'instead of --market: prints what there is now, as {"price": 0.4, "available": 3}'
    run.add_argument("--quotes", metavar="COMMAND", help=words)
    run.add_argument("--slot", metavar="TIME", help="on a market: such as 30m (default: as recorded, or that)")
    run.add_argument("--price", type=float, metavar="P", help="with --market: of a spot node, where none is recorded")
    run.add_argument("--spot-policy", metavar="NAME", help="on a market: for all jobs (default: chosen for each)")
    words = "on a market, with --ray: is told how many nodes there should be (default: Ray's autoscaler is)"
    run.add_argument("--provision", metavar="COMMAND", help=words)
    run.add_argument("--picture", type=new_file, metavar="FILE", help="on a market: of the slots, PNG, SVG or PDF")
    run.add_argument(
        "--ray", metavar="ADDRESS", help="on a pool of its own in a Ray cluster whose nodes all see the run's folder"
    )
    pool_commands.add_allow_import(run)
    pool_commands.add_pool(run)

    plan = command("plan", _plan, "will a bundle fit, and what would make it fit?")
    plan.add_argument("bundle", type=Path, metavar="BUNDLE.yaml")
    plan.add_argument(
        "--history", type=Path, metavar="DIR", help="of runs to learn from how long jobs take (default: runs)"
    )
    plan.add_argument("--own", action="store_true", help="for a pool of its own, also if one is up")
    plan.add_argument("--ray", metavar="ADDRESS", help="for a Ray cluster: this machine's devices do not matter")
    pool_commands.add_allow_import(plan)
    pool_commands.add_pool(plan)
    command("policies", _policies, "the policies, a line each")
    init.add_command(command)
    simulate.add_command(command)
    market.add_command(command)
    place.add_command(command)

    pool_commands.add_commands(command)

    made = command("replay", _replay, "handle the journal of a run again and compare every answer")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run or a pool, or its journal.db")
    made = command("report", _report, "write report.html: the whole run on one page")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    made.add_argument("--out", type=new_file, metavar="FILE", help="default: report.html in the run's folder")
    made.add_argument("--tensorboard", type=Path, metavar="DIR", help="write TensorBoard scalars too")
    made = command("picture", _picture, "draw who had what share, and how the losses fell")
    made.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    made.add_argument("--out", type=new_file, default=Path("run.png"), metavar="FILE", help="PNG, SVG or PDF")
    return parser


# ---------------------------------------------------------------------------------------------------- bundles


def _run(arguments: argparse.Namespace) -> int:
    if (arguments.bundle is None) == (arguments.resume is None):
        raise ValueError("run needs either a BUNDLE.yaml or --resume DIR")
    on_market = _market_of(arguments)
    if arguments.resume is not None and on_market is not None:
        raise ValueError("--resume goes on on the market that the run was begun on: leave --market and --quotes out")
    if arguments.resume is not None:
        return _resume(arguments)
    client = None if arguments.own or arguments.ray or on_market else connect(arguments.pool)
    bundle = pool_commands.read_bundle(arguments.bundle, client, arguments.allow_import)
    if arguments.policy:
        bundle = bundle.with_policy(arguments.policy)
    if on_market is not None:
        bundle = _placed(on_market, bundle)
    if client is not None:
        return pool_run.run_in_pool(client, bundle, arguments)
    return _run_here(bundle, arguments, on_market)


def _placed(on_market: OnMarket, bundle: BundleSpec) -> BundleSpec:
    from lightning_core.cloud.simulated_cloud import make_token

    if not on_market.ray:
        make_token()  # Ray looks for it once, when it is imported
    return on_market.place(bundle)


def _market_of(arguments: argparse.Namespace) -> OnMarket | None:
    """How it is run on a market, if it is."""
    if arguments.market is None and arguments.quotes is None:
        for flag in ("slot", "price", "spot_policy", "provision", "picture"):
            if getattr(arguments, flag) is None:
                continue
            if arguments.resume is not None:
                words = "cannot be said again: --resume goes on as the run was begun, by its market.json"
            else:
                words = "is of a run on a market: it needs --market TRACE or --quotes COMMAND"
            raise ValueError(f"--{flag.replace('_', '-')} {words}")
        return None
    from lightning_core.cli.market_run import OnMarket

    return OnMarket(arguments.market, arguments.quotes, arguments.slot, arguments.price, arguments.spot_policy,
                    arguments.ray, arguments.provision, arguments.picture)  # fmt: skip


def _run_here(bundle: BundleSpec, arguments: argparse.Namespace, on_market: OnMarket | None) -> int:
    _say_check(bundle)
    bundle.check(local=not arguments.ray)

    from lightning_core.run.run_folder import keep_origin, keep_spec, new_run_dir

    run_dir = new_run_dir(arguments.run_dir)
    keep_origin(run_dir, arguments.bundle, arguments.policy, arguments.allow_import)
    keep_spec(bundle, run_dir)
    pool_commands.tell_moments(bundle)
    if on_market is not None:
        on_market.keep(run_dir)
    return _run_in(bundle, run_dir, arguments, on_market=on_market)


def _say_check(bundle: BundleSpec) -> None:
    jobs = f"{len(bundle.jobs)} job{'s' * (len(bundle.jobs) > 1)}"
    print(f"{jobs} under {bundle.settings.policy}; importing torch and Lightning to check the configs ...", flush=True)


def _run_in(
    bundle: BundleSpec,
    run_dir: Path,
    arguments: argparse.Namespace,
    before: BundleSpec | None = None,
    on_market: OnMarket | None = None,
) -> int:
    from lightning_core.cloud.ray_cluster import join_ray
    from lightning_core.cluster.cluster import Cluster
    from lightning_core.report.page import write
    from lightning_core.view.progress import print_summary, view_for
    from lightning_core.view.warm_up import WarmingView

    for warning in bundle.warnings(run_dir):
        print(f"warning: {warning}", file=sys.stderr)
    settings = bundle.settings
    view = view_for(sys.stdout, settings.policy, settings.devices)
    goes_on = f"it goes on with: lightning-core run --resume {run_dir}"
    workers = settings.devices if on_market is not None else Cluster.workers_of(bundle)
    print(f"starting Ray with {workers} worker{'s' * (workers > 1)} ...", flush=True)
    try:
        with signals(at_once=True):
            if on_market is not None:
                summary = on_market.run(bundle, run_dir, view, before)
            else:
                if arguments.ray:
                    join_ray(arguments.ray)
                with Cluster.of(bundle, WarmingView(sys.stdout)) as cluster:
                    summary = cluster.run(bundle, run_dir, view, before)
            print_summary(summary, sys.stdout)
            if summary.lost:
                raise PoolLost("Ray's control process has died; what the jobs have saved, and the journal, are whole")
    except (PoolLost, Interrupted):
        print(goes_on, flush=True)
        raise
    if arguments.json:
        summary.write(arguments.json)
    if summary.interrupted is not None:  # whoever wants to leave does not wait for a report
        print(f"journal, spec and summary: {run_dir}\n{goes_on}")
        return summary.exit_code
    with Journal.open(run_dir / "journal.db") as journal:
        write(journal, run_dir / "report.html", run_dir.name)
    print(f"journal, spec, summary and report.html: {run_dir}")
    return summary.exit_code


def _resume(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.bundle.differences import differences
    from lightning_core.bundle.problems import BundleError
    from lightning_core.cli.market_run import OnMarket
    from lightning_core.run.run_folder import read_origin

    run_dir = arguments.resume.resolve()
    if not (run_dir / "bundle.yaml").is_file():
        if not run_dir.exists() and pool_commands.has_job(connect(arguments.pool), name := str(arguments.resume)):
            raise ValueError(
                f"{name} is a job in the pool: `lightning-core resume {name}` lets it go on if it is paused"
            )
        raise ValueError(f"{arguments.resume}: no run was left here: no bundle.yaml")
    if (note := InPool.of(run_dir)) is not None:
        return pool_run.resume_in_pool(run_dir, note, arguments)
    before = BundleSpec.from_file(run_dir / "bundle.yaml")
    if (run_dir / "journal.db").is_file():  # else it was left before anything was submitted
        with Journal.open(run_dir / "journal.db") as journal:
            scheduler = replay(journal).scheduler
            if scheduler.names() and not scheduler.names(active=True):
                print(f"{run_dir}: all its jobs have ended")
                return EXIT_MET
    bundle = read_origin(run_dir, before)
    if (on_market := OnMarket.of(run_dir)) is not None:
        on_market = replace(on_market, ray=arguments.ray or on_market.ray)
        bundle = _placed(on_market, bundle)
    if changes := differences(before, bundle):
        if not arguments.accept_changes:
            story = [f"bundle changed since the run started: {change}" for change in changes]
            raise BundleError([*story, "use --accept-changes to go on with it as it is now, or change it back"])
        for change in changes:
            print(f"changed: {change}")
    else:
        bundle = before  # where class paths are looked up stays as it was
    _say_check(bundle)
    bundle.check(local=not (on_market.ray if on_market is not None else arguments.ray))
    return _run_in(bundle, run_dir, arguments, before, on_market)


def _plan(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.bundle_plan import plan_bundle

    if arguments.history is not None and not arguments.history.is_dir():
        raise ValueError(f"--history: {arguments.history} is not a folder")
    client = None if arguments.own or arguments.ray else connect(arguments.pool)
    bundle = pool_commands.read_bundle(arguments.bundle, client, arguments.allow_import)
    if client is None:
        print("checking the bundle as `run` would, which imports torch ...", file=sys.stderr, flush=True)
        bundle.check(local=not arguments.ray)
    else:
        pool_commands.check_for(client, bundle)
        print(f"{pool_commands.name_of(client)}; what else runs there is not counted", file=sys.stderr)
    history = arguments.history or (Path("runs") if Path("runs").is_dir() else None)
    lines, fits = plan_bundle(bundle, history)
    print("\n".join(lines))
    return EXIT_MET if fits else EXIT_NOT_MET


def _policies(arguments: argparse.Namespace) -> int:
    from lightning_core.policies import summaries
    from lightning_core.scheduler.settings import Settings

    default = Settings().policy
    lines = {name + (" (default)" if name == default else ""): words for name, words in summaries().items()}
    width = max(map(len, lines))
    for name, words in lines.items():
        print(f"{name:{width}}  {words}")
    return EXIT_MET


# ---------------------------------------------------------------------------------------------------- journals


def _replay(arguments: argparse.Namespace) -> int:
    with Journal.open(journal_of(arguments.run_dir), read_only=True) as journal:
        if (part := journal.part_of) is not None:
            again, same = compare(journal, part), True
            print(f"a part of the journal of the pool at {part.folder}, which was handled again; its jobs are "
                  f"{', '.join(part.jobs)}", file=sys.stderr)  # fmt: skip
        else:
            again = replay(journal)
            same = again.digest == journal.digest
    body: dict[str, Any] = {"events": again.events, "digest": again.digest, "identical": same}
    print(json.dumps(body))
    print(f"{again.events} events over {format_duration(again.now)} replayed", file=sys.stderr)
    return EXIT_MET if same else EXIT_BAD_INPUT


def _report(arguments: argparse.Namespace) -> int:
    from lightning_core.report.page import write

    path = journal_of(arguments.run_dir)
    out = arguments.out or path.with_name("report.html")
    with Journal.open(path, read_only=True) as journal:
        write(journal, out, path.parent.resolve().name)
    print(out)
    if arguments.tensorboard:
        from lightning_core.view import tensorboard

        tensorboard.write(path, arguments.tensorboard)
        print(f"tensorboard --logdir {arguments.tensorboard}")
    return EXIT_MET


def _picture(arguments: argparse.Namespace) -> int:
    from lightning_core.report.picture import draw

    with Journal.open(journal_of(arguments.run_dir), read_only=True) as journal:
        draw(journal, arguments.out)
    print(arguments.out)
    return EXIT_MET


if __name__ == "__main__":
    sys.exit(main())
