"""``lightning-core run`` in a pool that is up: its folder, its board, and coming back to an interrupted run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.cli.job_commands import launch
from lightning_core.core.answers import JobStatus, State
from lightning_core.errors import LightningCoreError
from lightning_core.pool import NotOnThisMachineError, Pool
from lightning_core.pool.local_files import is_there
from lightning_core.run.pool_reference import JOURNAL, PoolReference, copy_results
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import EXIT_MET, PoolLostError, Summary
from lightning_core.server.discovery import AUTO, home, is_address
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.journals.downtime import seconds_down
from lightning_core.storage.journals.excerpt import find, with_workers
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay
from lightning_core.storage.private_files import owner_only
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec

# Seconds that ended jobs may take to save, and seconds between two looks.
SAVE_GRACE, SAVE_POLL = 30.0, 0.5


class PoolGoneError(LightningCoreError, RuntimeError):
    """The pool that the jobs of a run are in is down, or does not have them any more."""


def run_in_pool(pool: Pool, bundle: BundleSpec, arguments: argparse.Namespace) -> int:
    """Submit a bundle to a pool that is up and follow it; the jobs continue if the command is interrupted."""
    if pool.is_far:
        raise NotOnThisMachineError("a run reads files of its pool; `lightning-core submit` submits from afar")
    is_there(pool.folder / JOURNAL)  # refuses where it is closed to this account
    pool.check(bundle)
    from lightning_core.run.run_folder import new_run_dir, write_origin, write_spec

    run_dir = new_run_dir(arguments.run_dir)
    write_origin(run_dir, arguments.bundle, arguments.policy, arguments.allow_import)
    bundle = bundle.submit(datetime.now())
    write_spec(bundle, run_dir)
    folder = str(pool.folder)
    note = PoolReference(_where(arguments.pool, folder), folder, tuple(spec.job.name for spec in bundle.jobs))
    note.write(run_dir)
    return _submit(pool, bundle, run_dir, note, arguments)


def resume_in_pool(run_dir: Path, note: PoolReference, arguments: argparse.Namespace) -> int:
    """Come back to a run in a pool: follow its jobs to their end, or record how they ended.

    Raises:
        PoolGoneError: If its pool is down and its jobs have not ended, or its pool is gone.
        BundleError: If its bundle has been edited.
    """
    if note.ended:
        print(f"{run_dir}: all its jobs have ended")
        return EXIT_MET
    bundle = _unchanged(run_dir, note)
    try:
        pool = Pool.find(note.pool)
    except ConnectionError as error:
        if is_address(note.pool):
            raise PoolGoneError(f"{run_dir}: its jobs are in the pool at {note.pool}: {error}") from None
        pool = None
    if pool is None:
        return _after(run_dir, note, arguments, up=False)
    if note.submitted_at is None and (known := _submitted(pool, bundle)) is not None:
        note = replace(note, submitted_at=known)
        note.write(run_dir)
    if note.submitted_at is None:
        pool.check(bundle)
        return _submit(pool, bundle, run_dir, note, arguments)
    if not note.own_jobs(pool.jobs()):
        return _after(run_dir, note, arguments, up=True)
    return _follow(pool, run_dir, note, arguments)


def _where(pool: str, folder: str) -> str:
    """Return where the pool is, so that it is found again from any folder."""
    pool = os.environ.get("LIGHTNING_CORE_POOL", AUTO) if pool == AUTO else pool
    return pool if is_address(pool) else folder


def _unchanged(run_dir: Path, note: PoolReference) -> BundleSpec:
    """Return the bundle as it was or will be submitted.

    Raises:
        BundleError: If it has changed.
    """
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.bundle.pool_section import ExistingPool
    from lightning_core.bundle.problems import BundleError
    from lightning_core.run.differences import differences
    from lightning_core.run.run_folder import read_origin

    before = BundleSpec.from_file(run_dir / "bundle.yaml")
    there = ExistingPool(before.settings.devices, before.kind, f"the pool at {note.folder}")
    now = read_origin(run_dir, before, there)
    if changes := differences(before, now):
        raise BundleError([
            *(f"bundle changed since the run started: {change}" for change in changes),
            "a run in a pool continues as it was submitted: change the bundle back, and steer its jobs with "
            "`lightning-core deadline`, `cancel` and `submit`",
        ])  # fmt: skip
    return now


def _submitted(pool: Pool, bundle: BundleSpec) -> float | None:
    """Return when the jobs were submitted, if the command was interrupted before it noted that."""
    newest = {job.name: job for job in pool.jobs() if job.state is not State.ENDED}
    if not all((told := newest.get(spec.job.name)) and told.target == spec.job.target for spec in bundle.jobs):
        return None
    times = {newest[spec.job.name].submitted_at for spec in bundle.jobs}
    return times.pop() if len(times) == 1 else None


def _submit(pool: Pool, bundle: BundleSpec, run_dir: Path, note: PoolReference, arguments: argparse.Namespace) -> int:
    launch(pool, bundle)
    newest = {job.name: job for job in pool.jobs()}  # a name may have been used before
    note = replace(note, submitted_at=newest[note.jobs[0]].submitted_at)
    note.write(run_dir)
    return _follow(pool, run_dir, note, arguments)


def _follow(pool: Pool, run_dir: Path, note: PoolReference, arguments: argparse.Namespace) -> int:
    from lightning_core.node.signals import recorded_signals
    from lightning_core.run.follow import follow, remembering
    from lightning_core.view.progress import print_summary, view_for

    settings = pool.settings
    again = f"lightning-core run --resume {run_dir}"
    jobs_in = f"{len(note.jobs)} job{'s' * (len(note.jobs) > 1)} in {pool.describe()}"
    print(f"{jobs_in}; use --own for a pool of its own", flush=True)
    watcher = view_for(sys.stdout, settings.policy, settings.devices, device_memory=settings.device_memory,
                       kinds=settings.kinds)  # fmt: skip

    @remembering
    def look() -> tuple[float, list[JobStatus]]:
        now, jobs = pool.look()
        return now, note.own_jobs(jobs)

    try:
        with recorded_signals() as received:
            now, jobs = follow(look, lambda: received, watcher)
            newest = pool.jobs()
    except ConnectionError as error:
        up = "`lightning-core down` or a fault ended it" if not is_address(note.pool) else "it cannot be reached"
        raise PoolLostError(f"{error}: {up}; {_up(note)}; then {again}") from None
    finally:
        watcher.close()
    number = received[0] if received else None
    if number is not None and all(job.state is State.ENDED for job in jobs):
        number = None
    summary = _write(run_dir, note, settings, now, jobs, newest, number)
    print_summary(summary, sys.stdout)
    if arguments.json:
        write_whole(arguments.json, summary.to_json())
    if number is not None:
        names = ", ".join(job.name for job in jobs if job.state is not State.ENDED)
        print(f"still running in the pool: {names}; `lightning-core status` shows them, `cancel` ends them\n"
              f"follow them again with: {again}")  # fmt: skip
    return summary.exit_code


def _after(run_dir: Path, note: PoolReference, arguments: argparse.Namespace, *, up: bool) -> int:
    """Record how the jobs ended in a pool that is down, or up again without them."""
    from lightning_core.view.progress import print_summary

    with suppress(JournalError):
        if (path := find(note.journal_part)) is not None:
            with Journal.open(path, read_only=True) as journal:
                again = replay(journal)
            jobs = note.own_jobs(status := again.scheduler.status())
            if all(job.state is State.ENDED for job in jobs):
                summary = _write(run_dir, note, again.scheduler.settings, again.now, jobs, status, None)
                print_summary(summary, sys.stdout)
                if arguments.json:
                    write_whole(arguments.json, summary.to_json())
                return summary.exit_code
    if up:
        raise PoolGoneError(
            f"{run_dir}: its jobs are not in the pool at {note.pool} any more: "
            "journals of its earlier times age out too, as keep_ended in the bundle says"
        )
    raise PoolGoneError(f"{run_dir}: its jobs are in the pool at {note.folder}, which is down: {_up(note)}; then "
                 f"lightning-core run --resume {run_dir}")  # fmt: skip


def _up(note: PoolReference) -> str:
    folder = "" if Path(note.folder) == home().expanduser().resolve() else f" --folder {note.folder}"
    return f"`lightning-core up{folder}` brings it up and resumes its jobs"


def _wait_for_workers(note: PoolReference) -> None:
    """Wait until workers have saved: a job ends when its target is met, and its worker saves after that."""
    until = time.monotonic() + SAVE_GRACE
    with suppress(JournalError):  # the pool is on another machine: nothing will be copied
        while with_workers(note.journal_part) and time.monotonic() < until:
            time.sleep(SAVE_POLL)


def _write(
    run_dir: Path,
    note: PoolReference,
    settings: Settings,
    now: float,
    jobs: list[JobStatus],
    all_jobs: Sequence[JobStatus],
    number: int | None,
) -> Summary:
    """Write the folder of a run, for jobs that have ended and for those in progress."""
    from lightning_core.report.page import write

    newest = {job.name: job for job in all_jobs}
    if number is None:
        _wait_for_workers(note)
    problems = copy_results(run_dir, note, jobs, [newest[name] for name in note.jobs if name in newest])
    down = 0.0
    if not (missing := not (run_dir / JOURNAL).exists()):
        with Journal.open(run_dir / JOURNAL, read_only=True) as journal:
            down = seconds_down(journal.entries())
            if number is None:
                with owner_only():
                    write(journal, run_dir / "report.html", run_dir.name)
    summary = Summary.of(settings, now, jobs, run_dir, number, down=down)
    with owner_only():
        write_whole(run_dir / "summary.json", summary.to_json())
    if number is None and not missing:
        replace(note, ended=True).write(run_dir)
    for problem in problems:
        print(f"warning: {clean(problem)}", file=sys.stderr)
    what = "spec and summary" if missing else "journal, spec and summary"
    what = what if number is not None or missing else "journal, spec, summary and report.html"
    print(f"{what}: {run_dir}")
    return summary
