"""Commands about the jobs of a pool: submit them, explain their grants, steer them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.cli.arguments import add_allow_import, add_pool, whole_number
from lightning_core.core.control import Asker
from lightning_core.core.durations import WallTime, format_duration, parse_when, seconds_until
from lightning_core.core.names import listed
from lightning_core.core.specs import parse_spec
from lightning_core.pool import NoPoolError, Pool
from lightning_core.pool.local_files import find_job, loses_files
from lightning_core.run.ageing import aged_out, have_aged_out
from lightning_core.run.pool_reference import JOURNAL, journal_path
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``submit``, ``why``, ``logs``, ``deadline``, ``devices``, ``pause``, ``resume``, ``cancel`` and ``tell``."""
    submit = command("submit", _submit, "submit jobs to the pool and return")
    submit.add_argument("bundle", type=Path, metavar="JOB.yaml", help="bundle file, or a file of one job")
    add_allow_import(submit)
    why = command("why", _why, "show every grant, verdict, fault and command of a job, with its reason")
    why.add_argument("run_dir", type=Path, nargs="?", metavar="RUN_DIR", help="run or simulation (default: the pool)")
    logs = command("logs", _logs, "show the log of a launched job")
    logs.add_argument("-n", "--lines", type=whole_number(0), default=40, metavar="N", help="last N lines (default 40)")
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log until the job has ended, or Ctrl-C")
    description = "give a job another deadline: a duration from now, or a time such as 18:00 or 2026-11-23T18:00"
    deadline = command("deadline", _deadline, description)
    devices = command("devices", _devices, "change the number of devices of a job")
    pause = command("pause", _pause, "pause a job; it keeps its memory")
    resume = command("resume", _resume, "resume a paused job of the pool (for a run: `run --resume`)")
    cancel = command("cancel", _cancel, "cancel a job; a launched one is saved first")
    why.add_argument("job", metavar="JOB", help="name, or NAME@1 for the first job of a name that was used again")
    for one in (logs, deadline, devices, pause, resume, cancel):
        one.add_argument("job", metavar="JOB")
    deadline.add_argument("when", nargs="+", metavar="WHEN", help="such as 45m, 2 hours, 02:30:00, 18:00 or none")
    number = "number of devices, or the next smaller one that it can train on; auto: as planned, as if never set"
    devices.add_argument("number", type=_number_or_auto, metavar="N", help=number)
    pause.add_argument("--release", action="store_true", help="save it and free its memory too")
    tell = command("tell", _tell, "send the pool an event of a part, which its controllers hear")
    example = "such as maintenance.began, or with what it says: maintenance.began:hours=2,who=ann"
    tell.add_argument("event", metavar="PART.EVENT", help=example)
    for one in (submit, why, logs, deadline, devices, pause, resume, cancel, tell):
        add_pool(one)


def _submit(arguments: argparse.Namespace) -> int:
    with Pool.connect(arguments.pool) as pool:
        bundle = pool.read(arguments.bundle, arguments.allow_import)
        pool.check(bundle)
        names = launch(pool, bundle.submit(datetime.now()))
    print(f"submitted: {listed(names)}; `lightning-core status` shows them")
    return EXIT_MET


def _tell(arguments: argparse.Namespace) -> int:
    name, body = parse_spec(arguments.event, "event")
    with Pool.connect(arguments.pool) as pool:
        pool.tell(name, **body)
    print(f"told: {name}")
    return EXIT_MET


def read_bundle(path: Path, pool: Pool | None, allow_import: list[str]) -> BundleSpec:
    """Read a bundle for a pool, or for one of its own.

    Raises:
        BundleError: With every problem found, and everything that the pool does not have.
    """
    from lightning_core.bundle.bundle_file import BundleSpec

    if pool is not None:
        return pool.read(path, allow_import)
    bundle = BundleSpec.from_file(path)
    return bundle.importing_only(allow_import) if allow_import else bundle


def launch(pool: Pool, bundle: BundleSpec) -> list[str]:
    """Submit a bundle that has been checked and whose points in time are settled; return the names of its jobs."""
    settings = pool.settings
    if bundle.settings.policy not in (Settings().policy, settings.policy):
        print(f"warning: the pool shares by {settings.policy}; the bundle's {bundle.settings.policy} needs a pool of "
              "its own (--own)", file=sys.stderr)  # fmt: skip
    if bundle.settings.keep_all and not settings.keep_all:
        print("warning: the pool thins its journal; `keep: all` needs a pool of its own (--own), or one that was "
              "started with `keep: all`", file=sys.stderr)  # fmt: skip
    if bundle.settings.keep_ended not in (Settings().keep_ended, settings.keep_ended):
        print("warning: the pool keeps ended jobs for another time; the bundle's `keep_ended` needs a pool of its own "
              "(--own), or one that was started with it", file=sys.stderr)  # fmt: skip
    hours = bundle.settings.controllers.get(Asker.CALENDAR)
    if hours not in (None, settings.controllers.get(Asker.CALENDAR)):
        print("warning: the pool trains at other hours; the bundle's `calendar` needs a pool of its own (--own), or "
              "one that was started with it", file=sys.stderr)  # fmt: skip
    print_moments(bundle)
    return [job.name for job in pool.submit(bundle, checked=True)]


def print_moments(bundle: BundleSpec) -> None:
    """Print when the points in time that a bundle names are, with time zone and day."""
    for line in bundle.moments(datetime.now()):
        print(line, flush=True)


def _why(arguments: argparse.Namespace) -> int:
    from lightning_core.history.history import History
    from lightning_core.view.why import table_of, why, why_now

    folder = arguments.run_dir
    if folder is None and journal_path(Path(arguments.job)).exists():
        raise ValueError(f"name one of its jobs too: lightning-core why {arguments.job} JOB")
    if folder is None:
        with Pool.connect(arguments.pool) as pool:
            if pool.is_far:
                now = [] if "@" in arguments.job else why_now(pool.status(arguments.job))
                print("\n".join([*now, *table_of(pool.reasons(arguments.job))]))
                return EXIT_MET
            folder = pool.folder
            if not os.access(folder / JOURNAL, os.R_OK):
                print("\n".join(why_now(pool.status(arguments.job))))
                print("this is the current state; the history is in the pool's journal, which this account "
                      "cannot read here; the pool's https:// address shows it", file=sys.stderr)  # fmt: skip
                return EXIT_MET
    with Journal.open(journal_path(folder), read_only=True) as journal:
        history = History.read(journal, arguments.job)
        jobs = replay(journal).scheduler.status() if history.part_of is None else []
    job = find_job(history, arguments.job)
    print("\n".join(why(history, arguments.job)))
    for status in jobs:
        if status.name == job.name and status.submitted_at == job.submitted:
            for by, note in status.notes.items():
                print(f"{Asker(by).words}: {clean(str(note))}")
            if status.like is not None:
                print(f"forecast {clean(str(status.like))}")
    if job is history.of(job.name) and loses_files(history, job.name) and have_aged_out(folder, job.name):
        print(f"its logs, spec and resume checkpoints have {aged_out(history.settings.keep_ended)}")
    return EXIT_MET


def _logs(arguments: argparse.Namespace) -> int:
    with Pool.connect(arguments.pool) as pool:
        for line in pool.logs(arguments.job, last=arguments.lines, follow=arguments.follow):
            print(line, flush=arguments.follow)
    return EXIT_MET


# ---------------------------------------------------------------------------------------------------- steering


def _deadline(arguments: argparse.Namespace) -> int:
    when = " ".join(arguments.when)
    if when == "none":
        return _steer(arguments, lambda pool: pool.set_deadline(arguments.job, None), "has no deadline any more")
    try:
        parsed = parse_when(when)
        seconds = seconds_until(parsed, now := datetime.now())
    except ValueError as error:
        raise ValueError(f"deadline: {error}") from None
    when = str(parsed.resolve(now)) if isinstance(parsed, WallTime) else f"in {format_duration(seconds)}"
    return _steer(arguments, lambda pool: pool.set_deadline(arguments.job, seconds), f"its deadline is {when}")


def _number_or_auto(text: str) -> int | None:
    return None if text == "auto" else whole_number(1)(text)


def _devices(arguments: argparse.Namespace) -> int:
    number = arguments.number
    if number is None:
        result = "trains on as many devices, and where, as is planned for it"
        return _steer(arguments, lambda pool: pool.set_devices(arguments.job, None), result)
    result = f"trains on {number} device{'s' * (number > 1)}, or the next smaller number that it can train on"
    return _steer(arguments, lambda pool: pool.set_devices(arguments.job, number), result)


def _pause(arguments: argparse.Namespace) -> int:
    result = "paused; it is saved and its memory is freed" if arguments.release else "paused; it keeps its memory"
    return _steer(arguments, lambda pool: pool.pause(arguments.job, release=arguments.release), result, after=False)


def _resume(arguments: argparse.Namespace) -> int:
    folder = arguments.job
    if (Path(folder) / "bundle.yaml").is_file() and not has_job(arguments.pool, folder):
        raise ValueError(f"{folder} is a run: `lightning-core run --resume {folder}` resumes it")
    with Pool.connect(arguments.pool) as pool:
        pool.resume(arguments.job)
        status = pool.status(arguments.job)
    if status.paused:  # by a controller
        again = "`resume` it again to let it train all the same"
        print(f"{arguments.job}: its pause is revoked, and it is {status.grant_reason}; {again}")
    else:
        print(f"{arguments.job}: resumed")
    return EXIT_MET


def _cancel(arguments: argparse.Namespace) -> int:
    return _steer(arguments, lambda pool: pool.cancel(arguments.job), "cancelled", after=False)


def _steer(arguments: argparse.Namespace, act: Callable[[Pool], None], done: str, *, after: bool = True) -> int:
    """Change a job and print a confirmation; on request, print its verdict too."""
    with Pool.connect(arguments.pool) as pool:
        act(pool)
        print(f"{arguments.job}: {done}")
        if after:
            status = pool.status(arguments.job)
            print(f"  {status.verdict or 'no verdict yet'}: {status.reason}")
    return EXIT_MET


def has_job(where: str, name: str) -> bool:
    """Return whether a pool is up and has, or had, a job of this name."""
    try:
        with Pool.connect(where) as pool:
            return any(job.name == name for job in pool.jobs())
    except NoPoolError:
        return False
