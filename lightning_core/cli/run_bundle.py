"""``lightning-core run``: a bundle of jobs to its end, in the pool that is up or on a pool of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.bundle.preflight import check_disk
from lightning_core.bundle.problems import BundleError, require
from lightning_core.cli.arguments import add_allow_import, add_pool, new_file
from lightning_core.cli.job_commands import has_job, print_moments, read_bundle
from lightning_core.cli.run_in_pool import resume_in_pool, run_in_pool
from lightning_core.node.checks.disk_checks import FOR_RESUME, FOR_RUN
from lightning_core.node.signals import SignalReceivedError, recorded_signals
from lightning_core.pool import Pool
from lightning_core.run.pool_reference import PoolReference
from lightning_core.scheduler.summary import EXIT_MET, PoolLostError
from lightning_core.server.discovery import AUTO
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import DamagedJournalError, JournalError
from lightning_core.storage.journals.recovery import HINT, recover_folder
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.private_files import private_folder
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``run``."""
    run = command("run", _run, "run a bundle of jobs to its end, in the pool that is up or in one of its own")
    run.add_argument("bundle", type=Path, nargs="?", metavar="BUNDLE.yaml")
    run.add_argument(
        "--policy", metavar="NAME", help="policy instead of the bundle's, such as fifo, edf, lara:order=edf"
    )
    run.add_argument("--run-dir", type=Path, metavar="DIR", help="new folder for journal, spec and summary")
    run.add_argument("--json", type=new_file, metavar="FILE", help="also write the summary to this file")
    run.add_argument(
        "--resume", type=Path, metavar="DIR", help="resume an interrupted run (for a paused job: `resume`)"
    )
    run.add_argument("--accept-changes", action="store_true", help="with --resume: accept an edited bundle")
    recover = "with --resume: continue a damaged journal from its last good event; the damaged files are kept beside it"
    run.add_argument("--recover", action="store_true", help=recover)
    run.add_argument("--own", action="store_true", help="use a pool of its own even if one is up")
    run.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="use a pool of its own in this Ray cluster, whose nodes all share the folder of the run",
    )
    add_allow_import(run)
    add_pool(run)


def _run(arguments: argparse.Namespace) -> int:
    if (arguments.bundle is None) == (arguments.resume is None):
        raise ValueError("run needs either a BUNDLE.yaml or --resume DIR")
    if arguments.resume is not None:
        return _resume(arguments)
    if arguments.recover:
        raise ValueError("--recover needs --resume DIR: only an interrupted run has a journal to recover")
    if arguments.own and arguments.pool != AUTO:
        raise ValueError(f"--own and --pool {arguments.pool} contradict each other: give one of them")
    own = arguments.own or arguments.ray or (arguments.pool == AUTO and _names_supply(arguments.bundle))
    pool = None if own else Pool.find(arguments.pool)
    bundle = read_bundle(arguments.bundle, pool, arguments.allow_import)
    if arguments.policy:
        bundle = bundle.with_policy(arguments.policy)
    if pool is not None:
        return run_in_pool(pool, bundle, arguments)
    return _run_here(bundle.supplied(), arguments)


def _names_supply(path: Path) -> bool:
    """Return whether a bundle says where its nodes come from, and thus has a pool of its own."""
    require("yaml")
    from lightning_core.bundle.bundle_content import supply_keys
    from lightning_core.bundle.bundle_file import EMPTY
    from lightning_core.bundle.yaml_loader import load_yaml

    content, _ = load_yaml(path, EMPTY)
    return isinstance(content, Mapping) and any(content.get(key) is not None for key in supply_keys())


def _run_here(bundle: BundleSpec, arguments: argparse.Namespace) -> int:
    from lightning_core.run.run_folder import RUNS, new_run_dir, write_origin, write_spec

    check_disk(arguments.run_dir or RUNS, FOR_RUN, shared=bool(arguments.ray))
    if bundle.supply is not None:
        bundle.supply.check(local=not arguments.ray)
    _say_check(bundle)
    bundle.check(local=not arguments.ray)
    run_dir = new_run_dir(arguments.run_dir)
    write_origin(run_dir, arguments.bundle, arguments.policy, arguments.allow_import, arguments.ray)
    write_spec(bundle, run_dir)
    print_moments(bundle)
    return _run_in(bundle, run_dir, arguments)


def _say_check(bundle: BundleSpec) -> None:
    jobs = f"{len(bundle.jobs)} job{'s' * (len(bundle.jobs) > 1)}"
    check = "checking the scripts"
    if not all(spec.script for spec in bundle.jobs):
        check = "importing torch and Lightning to check the configs"
    print(f"{jobs} under {bundle.settings.policy}; {check} ...", flush=True)


def _run_in(bundle: BundleSpec, run_dir: Path, arguments: argparse.Namespace, before: BundleSpec | None = None) -> int:
    from lightning_core.cluster.cluster import Cluster
    from lightning_core.cluster.ray_cluster import join_ray
    from lightning_core.report.page import write
    from lightning_core.view.progress import print_summary, view_for
    from lightning_core.view.warm_up import WarmingView

    for warning in bundle.warnings(run_dir):
        print(f"warning: {warning}", file=sys.stderr)
    settings, supply = bundle.settings, bundle.supply
    view = view_for(sys.stdout, settings.policy, settings.devices, device_memory=settings.device_memory,
                    kinds=settings.kinds)  # fmt: skip
    resume_with = f"resume it with: lightning-core run --resume {run_dir}"
    workers = Cluster.workers_of(bundle)
    print(f"starting Ray with {workers} worker{'s' * (workers > 1)} ...", flush=True)
    try:
        with recorded_signals(at_once=True):
            if supply is not None:
                print(f"{len(bundle.jobs)} jobs {supply.announce()}", flush=True)
            if arguments.ray:
                join_ray(arguments.ray)
            with Cluster.of(bundle, WarmingView(sys.stdout) if supply is None else None) as cluster:
                summary = cluster.run(bundle, run_dir, view, before)
            if supply is not None:
                supply.show_run(run_dir)
            print_summary(summary, sys.stdout)
            if summary.lost:
                raise PoolLostError(
                    "Ray's control process has died; the journal and the checkpoints of the jobs are intact"
                )
    except (PoolLostError, SignalReceivedError):
        print(resume_with, flush=True)
        raise
    if arguments.json:
        write_whole(arguments.json, summary.to_json())
    if summary.interrupted is not None:  # an interrupted run does not wait for a report
        print(f"journal, spec and summary: {run_dir}\n{resume_with}")
        return summary.exit_code
    with Journal.open(run_dir / "journal.db") as journal:
        failed = write(journal, run_dir / "report.html", run_dir.name).failed
    for part, words in failed.items():
        print(f"warning: a part failed, and was asked no more: {clean(part)}: {clean(words)}", file=sys.stderr)
    print(f"journal, spec, summary and report.html: {run_dir}")
    return summary.exit_code


def _have_ended(run_dir: Path) -> bool:
    """Return whether a run has jobs, and all of them have ended.

    Raises:
        JournalError: If the journal cannot be continued.
    """
    if not (run_dir / "journal.db").is_file():  # it was interrupted before anything was submitted
        return False
    try:
        with Journal.open(run_dir / "journal.db") as journal:
            scheduler = replay(journal).scheduler
    except DamagedJournalError as error:
        raise JournalError(f"{error}; {HINT}") from None
    return bool(scheduler.names()) and not scheduler.names(active=True)


def _resume(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.run.differences import differences
    from lightning_core.run.run_folder import read_origin, read_said

    run_dir = arguments.resume.resolve()
    if not (run_dir / "bundle.yaml").is_file():
        if not run_dir.exists() and has_job(arguments.pool, name := str(arguments.resume)):
            raise ValueError(f"{name} is a job in the pool: `lightning-core resume {name}` resumes it if it is paused")
        raise ValueError(f"{arguments.resume}: there is no interrupted run here: no bundle.yaml")
    private_folder(run_dir)  # refuses one that another user can change
    if (note := PoolReference.read(run_dir)) is not None:
        return resume_in_pool(run_dir, note, arguments)
    before = BundleSpec.from_file(run_dir / "bundle.yaml")
    arguments.ray = arguments.ray or read_said(run_dir).get("ray")
    check_disk(run_dir, FOR_RESUME, shared=bool(arguments.ray))
    if arguments.recover:
        print(recover_folder(run_dir) or f"{run_dir}: the journal is not damaged", file=sys.stderr)
    if _have_ended(run_dir):
        print(f"{run_dir}: all its jobs have ended")
        return EXIT_MET
    bundle = read_origin(run_dir, before).supplied()
    if changes := differences(before, bundle):
        if not arguments.accept_changes:
            story = [f"bundle changed since the run started: {change}" for change in changes]
            raise BundleError([*story, "use --accept-changes to resume with the changed bundle, or change it back"])
        for change in changes:
            print(f"changed: {change}")
    else:
        bundle = replace(before, folder=bundle.folder).supplied()
    if bundle.supply is not None:
        bundle.supply.check(local=not arguments.ray)
    _say_check(bundle)
    bundle.check(local=not arguments.ray)
    return _run_in(bundle, run_dir, arguments, before)
