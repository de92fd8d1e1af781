"""``lightning-core up`` and ``down``: a pool that outlives the shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from lightning_core.cli.arguments import add_folder, whole_number
from lightning_core.core.control import RIGHTS, Asker
from lightning_core.core.durations import format_duration
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.core.parts import Companion, Part, all_parts, names_of
from lightning_core.run.pool_reference import journal_path
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.discovery import folder_here
from lightning_core.storage.journals.journal import Journal


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``up`` and ``down``."""
    up = command("up", _up, "start a pool that outlives this shell")
    config = "file with the sections pool, policy, estimator, period, on_verdict, group, and where nodes come from"
    up.add_argument("--config", type=Path, metavar="FILE", help=config)
    devices = (
        "devices to share, instead of the file's (default: the GPUs of this machine, else its cores; in a cluster, "
        "and where nodes come and go, 1)"
    )
    up.add_argument("--devices", type=whole_number(1, MAX_DEVICES), metavar="N", help=devices)
    there = "make the pool in this Ray cluster, whose nodes all see its folder (auto: the one on this machine)"
    up.add_argument("--ray", metavar="ADDRESS", help=there)
    add_folder(up)
    recover = "continue a damaged journal from its last good event; the damaged files are kept beside it"
    up.add_argument("--recover", action="store_true", help=recover)
    down = command("down", _down, "shut down the pool; its jobs are saved, and resume with the next `up`")
    add_folder(down)
    down.add_argument(
        "--now", action="store_true", help="do not wait for jobs that can save only at the end of an epoch"
    )


def add_companions(up: argparse.ArgumentParser, part: Part) -> None:
    """Add the options of ``up`` that start the companions of a part."""
    for name, one in part.companions.items():
        up.add_argument(f"--{name}", dest=_dest(name), nargs="?", const=one.default, metavar=one.metavar, help=one.help)


def _dest(name: str) -> str:
    return f"companion {name}"


def _companions() -> dict[str, Companion]:
    return {name: one for part in all_parts() for name, one in part.part.companions.items()}


def _up(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.preflight import check_gpus
    from lightning_core.bundle.problems import BundleError, Position, Problems, require
    from lightning_core.cluster.head import up
    from lightning_core.cluster.joined_head import pool_name
    from lightning_core.server.proxy import POOL

    require("torch", "lightning", "ray", "jsonargparse")
    beside = [
        (one, one.read(value))
        for name, one in _companions().items()
        if (value := getattr(arguments, _dest(name), None)) is not None
    ]
    from lightning_core.cli.machine_checks import ThisMachine, refusals
    from lightning_core.cli.pool_file import read_pool_file
    from lightning_core.node.checks.limit_checks import PoolSize

    settings, kind, devices, resident, on_verdict, group, supply, is_all = read_pool_file(
        arguments.config, arguments.devices, arguments.ray
    )
    folder = arguments.folder or folder_here()
    found = Problems(Position("up"))
    if kind == "gpu" and not arguments.ray:
        check_gpus(devices, found)
    machine = ThisMachine(folder, PoolSize(devices, resident), kind, is_joined=bool(arguments.ray))
    if problems := [*found.messages, *refusals(machine)]:
        raise BundleError(problems)
    if supply is None and not arguments.ray:
        _say_busy_cores(kind, devices * settings.cores)
    plural, nodes = "s" * (devices > 1), None
    if supply is not None:
        name = POOL if not arguments.ray else pool_name(folder.expanduser().resolve())
        nodes = supply.nodes(settings, name, kind, local=not arguments.ray)
        real = "of the Ray cluster" if arguments.ray else "simulated on this machine"
        what = f"a pool of at most {devices} node{plural}, {real}"
    else:
        have = f", all {'GPUs' if kind == 'gpu' else 'free cores'} of this machine," if is_all else ""
        what = f"{devices} {kind} device{plural}{have} with {resident} workers"
    print(f"bringing up {what} ...", flush=True)
    head = up(folder, settings, kind, on_verdict, nodes, arguments.ray, group, recover_journal=arguments.recover)
    there = settings
    if (path := journal_path(folder)).exists():  # of a pool that resumes, it has the settings from before
        with Journal.open(path, read_only=True) as journal:
            there = journal.settings()
    print(f"a pool is up under {there.policy}; it outlives this shell")
    if differs := differences(settings, there):
        print(f"note: its jobs resume under the settings that the pool had: {'; '.join(differs)}. Once all of them "
              "have ended, `down` and `up` begin a pool with other ones", file=sys.stderr)  # fmt: skip
    token = f"its token: {head['token']}" if head["token"] else "with the cluster's token"
    print(f"  its Ray: {head['address']}, {token}")
    print("  scripts join it with CoreCallback or track; next: `lightning-core submit`, `status`, `down`")
    if group is not None:
        where = group.path.parent
        print(f"  members of its group reach it with --pool {where}, or LIGHTNING_CORE_POOL={where}")
    print("  its workers are importing torch and Lightning; a job that is submitted now waits some seconds for them")
    for one, value in beside:
        try:
            print(one.start(folder, value))
        except Exception as error:  # code from outside may raise anything, and the pool is up
            print(f"{error}; the pool is up all the same", file=sys.stderr)
    return EXIT_MET


def _say_busy_cores(kind: str, wanted: int) -> None:
    from lightning_core.node.core_claims import free_cores
    from lightning_core.node.device_cores import CORES

    if kind == "cpu" and wanted > (free := free_cores(CORES)) < len(CORES):
        print(f"note: {len(CORES) - free} of the {len(CORES)} cores here belong to your other pools: jobs of two pools "
              "on one core slow each other down", file=sys.stderr)  # fmt: skip


def differences(asked: Settings, there: Settings) -> list[str]:
    """Return the settings of a resumed pool that differ from the requested ones, as text.

    Args:
        asked: Settings that are asked for.
        there: Settings of the pool.

    Example::

        >>> differences(Settings(policy="lara"), Settings(policy="edf", keep_all=True))
        ['policy edf instead of lara', 'keep all instead of the default']
    """
    has, wants = _in_words(there), _in_words(asked)
    return [f"{name} {words} instead of {wants[name]}" for name, words in has.items() if words != wants[name]]


def _in_words(settings: Settings) -> dict[str, str]:
    """Return the settings of `up` by their keys."""
    from lightning_core.bundle.pool_section import FOREVER, KEEP_ALL

    args = ",".join(f"{key}={value}" for key, value in settings.policy_args.items())
    others = {name: dict(args) for name, args in settings.controllers.items() if name not in RIGHTS}
    rules = settings.controllers.get(Asker.CALENDAR, {}).get("closed", ["none"])
    return {
        "devices": str(settings.devices),
        "policy": f"{settings.policy}:{args}" if args else settings.policy,
        "keep": KEEP_ALL if settings.keep_all else "the default",
        "keep_ended": FOREVER if settings.keep_ended is None else format_duration(settings.keep_ended),
        "calendar": ", ".join(rules),
        **{
            name: json.dumps(settings.divider.get(name)) if name in settings.divider else "none"
            for name in names_of("dividers")
        },
        "controllers": json.dumps(others) if others else "none",
    }


def _down(arguments: argparse.Namespace) -> int:
    from lightning_core.cluster.head import down

    folder = arguments.folder or folder_here()
    for name, one in _companions().items():
        try:
            one.end(folder)
        except Exception as error:  # code from outside may raise anything
            print(f"{name} did not end: {error}", file=sys.stderr)
    down(folder, now=arguments.now)
    print("the pool is down; checkpoints are kept, and `up` resumes the jobs that have not ended")
    return EXIT_MET
