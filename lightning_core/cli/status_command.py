"""``lightning-core status``: the pool and its jobs, once, live, or as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lightning_core.cli.arguments import add_pool
from lightning_core.core.answers import JobStatus
from lightning_core.core.names import check_person
from lightning_core.core.parts import group_of, lines_of
from lightning_core.pool import Pool
from lightning_core.scheduler.settings import DEFAULT_ESTIMATOR, Settings
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.access.people import Right
from lightning_core.view.group_lines import group_lines, is_listed, jobs_by_group
from lightning_core.view.job_entry import job_entry
from lightning_core.view.silence import silence_line
from lightning_core.view.text import clean

# Jobs that ended longer ago are not shown.
RECENT_SECONDS = 3600.0
# Jobs shown of those that have not ended, and of those that have.
MAX_SHOWN = 10


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``status``."""
    status = command("status", _status, "show the pool and its jobs")
    status.add_argument("--watch", action="store_true", help="keep the view open until all jobs have ended, or Ctrl-C")
    more = (
        "include jobs that ended long ago, earlier ones of a name, those of groups that are paused or have ended, "
        "and more than ten"
    )
    status.add_argument("--all", action="store_true", help=more)
    whose = status.add_mutually_exclusive_group()
    whose.add_argument("--mine", action="store_true", help="show only your own jobs")
    whose.add_argument("--owner", metavar="NAME", help="show only the jobs of one owner")
    status.add_argument("--json", action="store_true", help="print JSON")
    add_pool(status)
    status.set_defaults(group=None)


def add_group(status: argparse.ArgumentParser, part: str) -> None:
    """Add the option ``--PART NAME`` of a part that groups jobs to ``status``."""
    option = f"--{part.replace('_', '-')}"
    words = f"show only the jobs of one {part}"
    status.add_argument(option, dest="group", metavar="NAME", type=partial(_group, part), help=words)


def _group(part: str, name: str) -> tuple[str, str]:
    return part, name


def _status(arguments: argparse.Namespace) -> int:
    with Pool.connect(arguments.pool) as pool:
        return _shown(pool, arguments)


def _shown(pool: Pool, arguments: argparse.Namespace) -> int:
    settings, folder, person = pool.settings, pool.folder, pool.person
    # A user who may not see the jobs of others gets none of them, which does not mean that there are none.
    owner = person.name if arguments.mine or not person.may(Right.SEE) else None
    if arguments.owner is not None:
        owner = check_person(arguments.owner)

    every = arguments.all or arguments.group is not None

    def is_shown(name: str) -> bool:
        return owner in (None, name)

    def look() -> tuple[float, list[JobStatus]]:
        now, jobs = pool.look()
        jobs = [job for job in jobs if is_shown(job.owner) and arguments.group in (None, group_of(job.parts))]
        recent = jobs if arguments.all else recent_of(jobs if arguments.json else newest_of(jobs), now)
        return now, recent if arguments.json else live_first(recent)

    if arguments.json:
        now, jobs = look()
        plain, about = [job_entry(job, folder) for job in jobs], pool.about()
        shares = [one for one in about["shares"] if is_shown(one.get("owner", ""))]
        waiting = [one for one in about["waiting"] if is_shown(one["owner"])]
        body = {"now": now, "settings": settings.to_dict(), "controllers": about["controllers"],
                "failed": about["failed"], "unavailable": about["unavailable"],
                "kinds": about["kinds"],
                "manager_silent": about["manager_silent"], "shares": shares, "waiting": waiting,
                "jobs": plain}  # fmt: skip
        print(json.dumps(body, indent=2))
    elif arguments.watch:
        from lightning_core.node.signals import recorded_signals
        from lightning_core.run.follow import follow
        from lightning_core.view.progress import view_for

        watcher = view_for(sys.stdout, settings.policy, settings.devices, owner, lambda: _lost(pool.about()),
                           settings.device_memory, arguments.group, every, _kinds(pool.about()))  # fmt: skip
        try:
            with recorded_signals() as received:
                now, jobs = follow(look, lambda: received, watcher, waits=True)
        finally:
            watcher.close()
        _show(now, jobs, settings, pool.about(), owner, arguments.group, every)
        return 128 + received[0] if received and received[0] != signal.SIGINT else EXIT_MET
    else:
        about = pool.about()
        _show(*look(), settings, about, owner, arguments.group, every)
        for text in _lines_about(about, settings, is_shown):
            print(text)
    return EXIT_MET


def _lines_about(about: Mapping[str, Any], settings: Settings, is_shown: Callable[[str], bool]) -> Iterator[str]:
    """Yield the lines about a pool below its jobs."""
    if about["manager_silent"]:
        yield silence_line(about["manager_silent"])
    yield from unavailable_lines(about["unavailable"])
    yield from (waiting_line(one) for one in about["waiting"] if is_shown(one["owner"]))
    for name in settings.divider:
        for one in about["shares"]:
            if is_shown(one.get("owner", "")):
                yield from lines_of(name, one)
    for name, said in about["controllers"].items():
        yield from lines_of(name, said)
    yield from (failed_line(part, words) for part, words in about["failed"].items())


def failed_line(part: str, words: str) -> str:
    """Return the line about a part that has failed: what it raised, and what stands in its place.

    Example::

        >>> failed_line("policy heaviest", "ValueError: no weights")
        'policy heaviest has failed (ValueError: no weights); triage plans in its place'
    """
    kind = part.partition(" ")[0]
    instead = {
        "policy": f"{Settings().policy} plans in its place",
        "estimator": f"{DEFAULT_ESTIMATOR} forecasts in its place",
        "controller": "it gets no more events; its last requests stay in force",
        "target": "it counts as not met",
    }
    return clean(f"{part} has failed ({words}); {instead.get(kind, 'it is asked no more')}")


def waiting_line(waiting: Mapping[str, Any]) -> str:
    """Return that a script waits for a name, in one line.

    Example::

        >>> waiting_line({"job": "resnet", "owner": "ann"})
        'resnet: another script holds until this name is free (see on_refused)'
    """
    return f"{clean(waiting['job'])}: another script holds until this name is free (see on_refused)"


def _lost(about: Mapping[str, Any]) -> set[int]:
    return {one["device"] for one in about["unavailable"]}


def _kinds(about: Mapping[str, Any]) -> Sequence[str]:
    """Return the kind of each device; none if all are alike."""
    kinds: Sequence[str] = about["kinds"]
    return kinds if len({*kinds}) > 1 else ()


def unavailable_lines(unavailable: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the unavailable devices as text, a line for each reason.

    Example::

        >>> gone = {"why": "its node is lost"}
        >>> unavailable_lines([{"device": 1} | gone, {"device": 3} | gone, {"device": 4, "why": ""}])
        ['devices 1, 3: unavailable: its node is lost', 'device 4: unavailable']
    """
    devices: dict[str, list[str]] = {}
    for one in unavailable:
        devices.setdefault(one["why"], []).append(str(one["device"]))
    return [
        f"device{'s' * (len(same) > 1)} {', '.join(same)}: unavailable{f': {clean(why)}' if why else ''}"
        for why, same in devices.items()
    ]


def recent_of(jobs: Sequence[JobStatus], now: float) -> list[JobStatus]:
    """Return the jobs that have not ended, or not long ago, with all jobs of groups that have such a job."""

    def is_recent(job: JobStatus) -> bool:
        return job.finished_at is None or now - job.finished_at < RECENT_SECONDS

    kept = {id(job) for group in jobs_by_group(jobs).values() if any(map(is_recent, group)) for job in group}
    return [job for job in jobs if id(job) in kept or is_recent(job)]


def newest_of(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Return the newest job of each name: a script that joins again after its pool was down is one job to its user."""
    newest = {job.name: job for job in jobs}
    return [job for job in jobs if newest[job.name] is job]


def live_first(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Return the jobs that have not ended in the order of submission, then those that have ended, the newest first."""
    ended = [job for job in jobs if job.finished_at is not None]
    ended.sort(key=lambda job: -(job.finished_at or 0.0))
    return [*(job for job in jobs if job.finished_at is None), *ended]


def _first(jobs: Sequence[JobStatus]) -> tuple[list[JobStatus], str]:
    """Return ten jobs that have not ended, those that train first, and ten that have; and a note about the others."""
    live = sorted((job for job in jobs if job.finished_at is None), key=lambda job: not job.trains)
    ended = [job for job in jobs if job.finished_at is not None]
    shown = {id(job) for job in (*live[:MAX_SHOWN], *ended[:MAX_SHOWN])}
    groups = {"that have not ended": live, "that have ended": ended}
    more = [f"{len(group) - MAX_SHOWN} more {state}" for state, group in groups.items() if len(group) > MAX_SHOWN]
    note = f"and {' and '.join(more)}; `lightning-core status --all` shows them" if more else ""
    return [job for job in jobs if id(job) in shown], note


def _show(
    now: float, jobs: list[JobStatus], settings: Settings, about: Mapping[str, Any], owner: str | None,
    group: tuple[str, str] | None, every: bool,
) -> None:  # fmt: skip
    if not jobs and group is not None:
        print(f"no jobs of {clean(' '.join(group))}")
        return
    if not jobs and owner is not None:
        print(f"no jobs of {clean(owner)}")
        return
    if not jobs:
        print("no jobs; submit some with `lightning-core submit`")
        return
    shown, note = (jobs, "") if every else _first(list(filter(is_listed, jobs)))
    try:
        from rich.console import Console

        from lightning_core.view.board import Board
    except ModuleNotFoundError:
        from lightning_core.view.progress import PlainView

        PlainView(sys.stdout).update(now, shown)
        for text in group_lines(jobs):
            print(text)
    else:
        board = Board(now, jobs, settings.policy, settings.devices, only=shown, owner=owner,
                      group=group, unavailable=_lost(about), device_memory=settings.device_memory,
                      kinds=_kinds(about))  # fmt: skip
        Console(width=None if sys.stdout.isatty() else 160).print(board)
    if note:
        print(note)
