"""The commands about a pool: bring it up, look at it, steer it, take it down. They speak through its door."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightning_core.cli.arguments import whole_number
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.codec import status_to_dict
from lightning_core.core.durations import WallTime, format_duration, parse_when, seconds_until
from lightning_core.core.events import Amend, Cancel, Event, Pause, Resume
from lightning_core.core.names import did_you_mean, listed
from lightning_core.run.pool_reference import journal_of
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import EXIT_MET, best_model
from lightning_core.server.client import SocketClient
from lightning_core.server.discovery import AUTO, connect, describe, home, kind_of
from lightning_core.storage import job_specs
from lightning_core.storage.journal import Journal, replay
from lightning_core.view.log_lines import LogLines
from lightning_core.view.text import clean

if TYPE_CHECKING:
    from lightning_core.bundle.bundle_file import BundleSpec

    pass


class Failed(RuntimeError):
    """What was asked cannot be done; the message says why."""


# How long people wait for a scheduler that is being restarted, seconds.
PATIENCE = 20.0
# How often `logs -f` looks for more, and how often a progress bar that is being drawn is shown there, seconds.
LOOK, BAR_EVERY = 0.5, 10.0
NO_POOL = "no pool is up; `lightning-core up` brings one up"


def add_pool(parser: argparse.ArgumentParser) -> None:
    """The option that says which pool is meant."""
    parser.add_argument("--pool", default=AUTO, metavar="WHERE", help="folder of a pool, or host:port of its Ray")


def add_allow_import(parser: argparse.ArgumentParser) -> None:
    """The option that limits what class paths may name."""
    words = "module that class paths may name, and no others; again for more"
    parser.add_argument("--allow-import", action="append", default=[], metavar="MODULE", help=words)


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands, each with its arguments."""
    up = command("up", _up, "bring up a pool that outlives this shell")
    up.add_argument("--devices", type=int, default=1, metavar="N", help="to share (default 1)")
    up.add_argument("--kind", choices=("cpu", "gpu"), default="cpu", help="of the devices (default cpu: a core each)")
    up.add_argument(
        "--cores",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="of each device of a pool of CPUs (default 1)",
    )
    up.add_argument("--resident", type=int, metavar="N", help="launched jobs in memory at most (default two a device)")
    up.add_argument("--policy", default=Settings().policy, metavar="NAME", help=f"default {Settings().policy}")
    up.add_argument("--folder", type=Path, metavar="DIR", help=f"of the pool (default {home()})")
    up.add_argument("--market", metavar="FILE", help="recording of a spot market with prices: a spot policy is chosen "
                    "for each job (see `market`)")  # fmt: skip
    up.add_argument("--on-verdict", metavar="COMMAND", help="to run when a verdict changes")
    up.add_argument("--webhook", metavar="URL", help="to post to when a verdict changes")
    down = command("down", _down, "end the pool that `up` brought up; jobs save and come back with the next `up`")
    down.add_argument("--folder", type=Path, metavar="DIR", help=f"of the pool (default {home()})")
    down.add_argument("--now", action="store_true", help="do not wait for jobs that can leave at an epoch's end only")

    submit = command("submit", _submit, "hand jobs to the pool and return")
    submit.add_argument("bundle", type=Path, metavar="JOB.yaml", help="a bundle, or a file of one job")
    add_allow_import(submit)
    status = command("status", _status, "the pool and its jobs")
    status.add_argument("--watch", action="store_true", help="until all jobs have ended, or Ctrl-C")
    status.add_argument("--all", action="store_true", help="jobs that ended long ago too, and more than ten")
    status.add_argument("--json", action="store_true", help="for programs")
    why = command("why", _why, "everything that a job was given, with the reasons")
    why.add_argument("run_dir", type=Path, nargs="?", metavar="RUN_DIR", help="of a run or simulation, else the pool's")
    logs = command("logs", _logs, "what a launched job has printed")
    logs.add_argument(
        "-n", "--lines", type=whole_number(0), default=40, metavar="N", help="the last N lines (default 40)"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended, or Ctrl-C")
    words = "give a job another deadline: a duration from now, or a time such as 18:00 or 2026-11-23T18:00"
    deadline = command("deadline", _deadline, words)
    pause = command("pause", _pause, "let a job stand still, its memory kept")
    resume = command("resume", _resume, "let a paused job of the pool go on (a run: `run --resume`)")
    cancel = command("cancel", _cancel, "end a job; its state is saved")
    for one in (why, logs, deadline, pause, resume, cancel):
        one.add_argument("job", metavar="JOB")
    deadline.add_argument("when", nargs="+", metavar="WHEN", help="such as 45m, 2 hours, 02:30:00 or 18:00")
    pause.add_argument("--release", action="store_true", help="save it and free its memory")
    for one in (submit, status, why, logs, deadline, pause, resume, cancel):
        add_pool(one)


def read_bundle(path: Path, client: SocketClient | None, allow_import: list[str]) -> BundleSpec:
    """Read a bundle for the pool that is up, or for one of its own if there is no client.

    Raises:
        BundleError: with every problem found, also of what the pool has not.
    """
    from lightning_core.bundle.bundle_file import BundleSpec
    from lightning_core.bundle.pool_section import There

    there = None
    if client is not None:
        about = patiently(client.about)
        there = There(about["settings"]["devices"], kind_of(about), f"the pool at {about['folder']}")
    bundle = BundleSpec.from_file(path, there)
    if client is not None:
        bundle.check_targets(Settings(**about["settings"]))
    return bundle.importing_only(allow_import) if allow_import else bundle


def name_of(client: SocketClient) -> str:
    """Say which pool it is: its folder, devices and policy."""
    return describe(patiently(client.about))


def _client(arguments: argparse.Namespace) -> SocketClient:
    client = connect(arguments.pool)
    if client is None:
        raise Failed(NO_POOL)
    return client


# ---------------------------------------------------------------------------------------------------- up and down


def _up(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.on_verdict import read_on_verdict
    from lightning_core.bundle.pool_section import Pool, of_pool, parse_policy, read_market
    from lightning_core.bundle.preflight import check_gpus
    from lightning_core.bundle.problems import BundleError, Findings, Source, require
    from lightning_core.cluster.head import HeadError, up
    from lightning_core.node.core_claims import free_cores
    from lightning_core.node.device_arbiter import CORES

    require("torch", "lightning", "ray", "jsonargparse")
    devices = arguments.devices
    if not 1 <= devices <= 64:
        raise ValueError(f"--devices must be 1 to 64, got {devices}")
    policy = parse_policy(arguments.policy)
    if arguments.kind == "gpu" and arguments.cores != 1:
        raise ValueError("--cores is of a pool of CPUs; remove it")
    resident = 2 * devices if arguments.resident is None else arguments.resident
    shared = Pool(arguments.kind, devices, arguments.cores, resident)
    found = Findings(Source("up"))
    market = None
    if arguments.market:
        market = found.at("--market").read(lambda trace: read_market(trace, Path()), arguments.market)
    settings = of_pool(Settings(policy=policy.pop("name"), policy_args=policy, market=market), shared)
    if arguments.kind == "gpu":
        check_gpus(devices, found.at("--kind"))
    told = {"command": arguments.on_verdict, "webhook": arguments.webhook}
    on_verdict = read_on_verdict({key: value for key, value in told.items() if value} or None, found.at("--on-verdict"))
    if found.problems:
        raise BundleError(found.problems)
    folder = arguments.folder or home()
    if arguments.kind == "cpu" and devices * arguments.cores > (free := free_cores(CORES)) < len(CORES):
        print(f"note: {len(CORES) - free} of the {len(CORES)} cores here are other pools' of yours: jobs on cores that "
              "two pools share take turns there by chance", file=sys.stderr)  # fmt: skip
    print(f"bringing up {devices} {arguments.kind} device{'s' * (devices > 1)} with {resident} workers ...",
          flush=True)  # fmt: skip
    try:
        head = up(folder, settings, arguments.kind, on_verdict)
    except HeadError as error:
        raise Failed(str(error)) from None
    print(f"a pool is up under {settings.policy}; it outlives this shell")
    print(f"  its Ray: {head['address']}, its token: {head['token']}")
    print("  a script joins it with CoreCallback; `lightning-core submit`, `status`, `down` are for you")
    print(
        "  its workers import torch and Lightning now; a job that is submitted meanwhile waits for them, some seconds"
    )
    return EXIT_MET


def _down(arguments: argparse.Namespace) -> int:
    from lightning_core.cluster.head import HeadError, down

    folder = arguments.folder or home()
    try:
        down(folder, now=arguments.now)
    except HeadError as error:
        raise Failed(str(error)) from None
    print("the pool is down; what its jobs saved is kept, `up` goes on with those that have not ended")
    return EXIT_MET


# ---------------------------------------------------------------------------------------------------- jobs in


def _submit(arguments: argparse.Namespace) -> int:
    client = _client(arguments)
    bundle = read_bundle(arguments.bundle, client, arguments.allow_import)
    check_for(client, bundle)
    launch(client, bundle.submitted(datetime.now()))
    print(f"submitted: {listed(spec.job.name for spec in bundle.jobs)}; `lightning-core status` shows them")
    return EXIT_MET


def check_for(client: SocketClient, bundle: BundleSpec) -> None:
    """Find all that a pool would refuse, before anything is submitted.

    Raises:
        BundleError: with every problem found.
        ValueError: with the first job whose name is taken, or that is too large.
    """
    from lightning_core.cluster import config_checker

    bundle.check(local=False, check=partial(config_checker.ask, client.path.with_name(config_checker.NAME)))
    _, jobs = patiently(client.status)
    taken = {job.name for job in jobs if job.state is not State.ENDED}
    job_specs.check([cast(job_specs.Spec, spec.for_worker(bundle.folder)) for spec in bundle.jobs], taken)


def launch(client: SocketClient, bundle: BundleSpec) -> None:
    """Submit a bundle that has been checked, with its points in time settled."""
    settings = Settings(**client.about()["settings"])
    if bundle.settings.policy not in (Settings().policy, settings.policy):
        print(f"warning: the pool shares by {settings.policy}; the bundle's {bundle.settings.policy} is for runs of "
              "its own (--own)", file=sys.stderr)  # fmt: skip
    tell_moments(bundle)
    client.launch([spec.for_worker(bundle.folder) for spec in bundle.jobs])


def tell_moments(bundle: BundleSpec) -> None:
    """Say when the points in time are that a bundle names: in which time zone, and on which day."""
    for line in bundle.moments(datetime.now()):
        print(line, flush=True)


def patiently(ask: Callable[[], Any]) -> Any:
    """The pool's scheduler may be restarting: it is back within seconds."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


# ---------------------------------------------------------------------------------------------------- looking


# Jobs that ended longer ago are not shown, seconds.
RECENT = 3600.0
# Of those that live, and of those that have ended, so many are shown.
MOST_SHOWN = 10


def _status(arguments: argparse.Namespace) -> int:
    client = _client(arguments)
    about = patiently(client.about)
    settings, folder = Settings(**about["settings"]), Path(about["folder"])

    def look() -> tuple[float, list[JobStatus]]:
        now, jobs = patiently(client.status)
        recent = [j for j in jobs if arguments.all or j.finished_at is None or now - j.finished_at < RECENT]
        return now, recent if arguments.json else live_first(recent)

    if arguments.json:
        now, jobs = look()
        told = [_plain(job, folder) for job in jobs]
        print(json.dumps({"now": now, "settings": settings.to_dict(), "jobs": told}, indent=2))
    elif arguments.watch:
        from lightning_core.node.signals import signals
        from lightning_core.run.follow import follow
        from lightning_core.view.progress import view_for

        watcher = view_for(sys.stdout, settings.policy, settings.devices)
        try:
            with signals() as received:
                now, jobs = follow(look, lambda: received, watcher)
        finally:
            watcher.close()
        _show(now, jobs, settings, arguments.all)
        return 128 + received[0] if received and received[0] != signal.SIGINT else EXIT_MET
    else:
        _show(*look(), settings, arguments.all)
    return EXIT_MET


def live_first(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Return those that have not ended in the order of their submission, then those that have, the newest first."""
    ended = [job for job in jobs if job.finished_at is not None]
    ended.sort(key=lambda job: -(job.finished_at or 0.0))
    return [*(job for job in jobs if job.finished_at is None), *ended]


def _first(jobs: Sequence[JobStatus]) -> tuple[list[JobStatus], str]:
    """Ten of those that live, who trains before who waits, and ten that have ended; and what to say of the others."""
    live = sorted((job for job in jobs if job.finished_at is None), key=lambda job: job.share == 0)
    ended = [job for job in jobs if job.finished_at is not None]
    shown = {id(job) for job in (*live[:MOST_SHOWN], *ended[:MOST_SHOWN])}
    more = [f"{len(group) - MOST_SHOWN} more that {words}" for words, group in (("go on", live), ("have ended", ended))
            if len(group) > MOST_SHOWN]  # fmt: skip
    note = f"and {' and '.join(more)}; `lightning-core status --all` shows them" if more else ""
    return [job for job in jobs if id(job) in shown], note


def _show(now: float, jobs: list[JobStatus], settings: Settings, everything: bool) -> None:
    if not jobs:
        print("no jobs; `lightning-core submit` hands some to the pool")
        return
    shown, note = (jobs, "") if everything else _first(jobs)
    try:
        from rich.console import Console

        from lightning_core.view.board import Board
    except ModuleNotFoundError:
        from lightning_core.view.progress import PlainView

        PlainView(sys.stdout).update(now, shown)
    else:
        board = Board(now, jobs, settings.policy, settings.devices, only=shown)
        Console(width=None if sys.stdout.isatty() else 160).print(board)
    if note:
        print(note)


def _plain(job: JobStatus, folder: Path) -> dict[str, Any]:
    """As JSON that any program reads: no infinity, reasons in words; of a pool on this machine, the best model."""
    finish = None if job.finish is None else [time if math.isfinite(time) else None for time in job.finish]
    fault = None if job.fault is None else str(job.fault)
    alert = None if job.alert is None else str(job.alert)
    words = {"reason": str(job.reason), "why": str(job.why), "fault": fault, "alert": alert}
    return status_to_dict(job) | words | {"finish": finish, "metric": job.target.metric} | best_model(folder, job.name)


def _why(arguments: argparse.Namespace) -> int:
    from lightning_core.history.history import History
    from lightning_core.view.why import why

    folder = arguments.run_dir
    if folder is None:
        client = _client(arguments)
        _find(client, arguments.job)
        folder = Path(client.about()["folder"])
    with Journal.open(journal_of(folder), read_only=True) as journal:
        history = History.read(journal)
        told = history.settings.market is not None and history.part_of is None
        jobs = replay(journal).scheduler.status() if told else []
    if arguments.job not in (names := [told.job.name for told in history.jobs]):
        raise Failed(f"no job {arguments.job!r}{did_you_mean(arguments.job, names)}")
    print("\n".join(why(history, arguments.job)))
    for status in jobs:
        if status.name == arguments.job and status.incarnation == history.of(arguments.job).life:
            print(f"spot policy: {clean(str(status.spot))}")
    return EXIT_MET


def _logs(arguments: argparse.Namespace) -> int:
    client = _client(arguments)
    _find(client, arguments.job)
    path = Path(client.about()["folder"]) / "jobs" / arguments.job / "log.txt"
    if not path.exists():
        raise Failed(f"{arguments.job} has printed nothing here: a script prints in its own shell")
    log = LogLines()
    with path.open("rb") as file:
        lines = [*log.feed(file.read()), *([] if arguments.follow else log.rest())]
        _print(lines[-arguments.lines :] if arguments.lines > 0 else [])
        quiet = 0.0
        while arguments.follow:
            lines = log.feed(file.read())
            if not lines:
                if _find(client, arguments.job).state is State.ENDED:
                    _print([*log.feed(file.read()), *log.rest()])  # what it printed in the meantime
                    break
                time.sleep(LOOK)
            quiet = 0.0 if lines else quiet + LOOK
            if quiet > BAR_EVERY:  # a bar draws over itself for hours
                quiet, lines = 0.0, log.rest()
            _print(lines)
    return EXIT_MET


def _print(lines: Sequence[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)


def has_job(client: SocketClient | None, name: str) -> bool:
    """Whether a pool is up and has, or had, a job of this name."""
    return client is not None and any(job.name == name for job in client.status()[1])


def _find(client: SocketClient, name: str) -> JobStatus:
    _, jobs = client.status()
    for job in reversed(jobs):
        if job.name == name:
            return job
    raise Failed(f"no job {name!r}{did_you_mean(name, [job.name for job in jobs])}")


# ---------------------------------------------------------------------------------------------------- steering


def _steer(arguments: argparse.Namespace, event: Event, done: str) -> int:
    client = _client(arguments)
    if _find(client, arguments.job).state is State.ENDED:
        raise Failed(f"{arguments.job} has ended")
    client.event(event)
    print(f"{arguments.job}: {done}")
    return EXIT_MET


def _pause(arguments: argparse.Namespace) -> int:
    words = "paused, saved and its memory freed" if arguments.release else "paused, its memory kept"
    return _steer(arguments, Pause(arguments.job, arguments.release), words)


def _resume(arguments: argparse.Namespace) -> int:
    folder = arguments.job
    if (Path(folder) / "bundle.yaml").is_file() and not has_job(connect(arguments.pool), folder):
        raise Failed(f"{folder} is a run: `lightning-core run --resume {folder}` goes on with it")
    return _steer(arguments, Resume(arguments.job), "goes on")


def _cancel(arguments: argparse.Namespace) -> int:
    return _steer(arguments, Cancel(arguments.job), "cancelled")


def _deadline(arguments: argparse.Namespace) -> int:
    try:
        when = parse_when(" ".join(arguments.when))
        seconds = seconds_until(when, now := datetime.now())
    except ValueError as error:
        raise ValueError(f"deadline: {error}") from None
    words = str(when.resolve(now)) if isinstance(when, WallTime) else f"in {format_duration(seconds)}"
    client = _client(arguments)
    _find(client, arguments.job)
    job = client.job(arguments.job)
    _steer(arguments, Amend(job, deadline=seconds), f"its deadline is {words}")
    after = _find(client, arguments.job)
    print(f"  {after.verdict or 'no verdict yet'}: {after.reason}")
    return EXIT_MET
