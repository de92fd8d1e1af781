"""``lightning-core up`` and ``down``: a pool that outlives the shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.bundle.values import parse_bytes
from lightning_core.cli.arguments import add_folder, whole_number
from lightning_core.cli.on_market.flags import add_market, market_of
from lightning_core.cli.users.group_options import add_group, group_of
from lightning_core.cli.users.page_process import PageError, end_page, start_page
from lightning_core.cli.users.serve import PORT
from lightning_core.core.control import Asker
from lightning_core.core.durations import format_duration
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.core.specs import parse_spec
from lightning_core.run.pool_reference import journal_path
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import EXIT_MET
from lightning_core.server.discovery import folder_here
from lightning_core.storage.journals.journal import Journal

if TYPE_CHECKING:
    from lightning_core.bundle.problems import Problems
    from lightning_core.cli.on_market.market_options import MarketOptions

# What the page needs beside what the pool does.
SERVE = ("starlette", "uvicorn", "prometheus_client")


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``up`` and ``down``."""
    up = command("up", _up, "start a pool that outlives this shell")
    devices = "devices to share (default 1); with --ray also by location, such as edge=2,cloud=4; on a market: nodes"
    up.add_argument("--devices", default="1", metavar="N", help=devices)
    there = "make the pool in this Ray cluster, whose nodes all see its folder (auto: the one on this machine)"
    up.add_argument("--ray", metavar="ADDRESS", help=there)
    up.add_argument("--kind", choices=("cpu", "gpu"), default="cpu", help="kind of device (default cpu: one core each)")
    cores = "cores of each device of a CPU pool (default 1)"
    up.add_argument("--cores", type=whole_number(1, 1024), default=1, metavar="N", help=cores)
    resident = "maximum number of launched jobs in memory (default: two for each device)"
    up.add_argument("--resident", type=int, metavar="N", help=resident)
    up.add_argument(
        "--policy",
        default=Settings().policy,
        metavar="NAME",
        help=f"policy that shares the devices (default {Settings().policy})",
    )
    add_folder(up)
    keep = "keep all events in the journal, for audits (default: old ones are thinned to what `why` and reports need)"
    up.add_argument("--keep", choices=("all",), help=keep)
    memory = "memory of each device that jobs may have, such as 16GiB: no more jobs stay there than fit"
    up.add_argument("--device-memory", metavar="AMOUNT", help=memory)
    kept = "time for which logs, specs and resume checkpoints of ended jobs are kept, or forever (default 30d)"
    up.add_argument("--keep-ended", default="30d", metavar="TIME", help=kept)
    owners = "file of what each owner of jobs may have: weight, devices, max_devices, device_hours and per, by name"
    up.add_argument("--owners", type=Path, metavar="FILE", help=owners)
    calendar = "hours at which nothing trains, such as 'not between 22:00 and 06:00 on mon-fri'; may be repeated"
    up.add_argument("--calendar", action="append", default=[], metavar="RULE", help=calendar)
    budget = "on a market: money that may be spent, in the unit of the prices"
    up.add_argument("--budget", metavar="MONEY", type=float, help=budget)
    add_market(up, "pool")
    add_group(up)
    serve = f"also serve the pool as a page in a browser (port {PORT} by default), until `down`"
    up.add_argument("--serve", type=whole_number(0, 65535), nargs="?", const=PORT, metavar="PORT", help=serve)
    recover = "continue a damaged journal from its last good event; the damaged files are kept beside it"
    up.add_argument("--recover", action="store_true", help=recover)
    up.add_argument("--on-verdict", metavar="COMMAND", help="command to run when a verdict changes")
    up.add_argument("--webhook", metavar="URL", help="address to post to when a verdict changes")
    up.add_argument("--webhook-secret", metavar="FILE", help="file of the secret that signs what is posted")
    down = command("down", _down, "shut down the pool; its jobs are saved, and resume with the next `up`")
    add_folder(down)
    down.add_argument(
        "--now", action="store_true", help="do not wait for jobs that can save only at the end of an epoch"
    )


def _up(arguments: argparse.Namespace) -> int:
    from lightning_core.bundle.on_verdict import read_on_verdict
    from lightning_core.bundle.pool_section import (
        KEEP_ALL,
        PoolSection,
        read_budget,
        read_calendar,
        read_keep_ended,
        read_owners,
        with_pool,
    )
    from lightning_core.bundle.preflight import check_gpus
    from lightning_core.bundle.problems import BundleError, Position, Problems, require
    from lightning_core.bundle.yaml_loader import load_yaml
    from lightning_core.cluster.head import up
    from lightning_core.cluster.joined_head import pool_name
    from lightning_core.server.proxy import POOL

    require("torch", "lightning", "ray", "jsonargparse")
    require(*(SERVE if arguments.serve is not None else ()), extra="serve")
    market = market_of(arguments, "pool")
    devices, locations = _devices_of(arguments, market)
    policy = parse_spec(arguments.policy, "policy")
    if arguments.kind == "gpu" and arguments.cores != 1:
        raise ValueError("--cores is for CPU pools only; remove it")
    if arguments.budget is not None and market is None:
        raise ValueError("--budget is for a pool on a market: --market TRACE or --quotes COMMAND")
    resident = 2 * devices if arguments.resident is None else arguments.resident
    found = Problems(Position("up"))
    keep_ended = found.at("--keep-ended").read(read_keep_ended, arguments.keep_ended)
    given = arguments.device_memory
    memory = None if given is None else found.at("--device-memory").read(parse_bytes, given)
    keep_all = arguments.keep == KEEP_ALL
    calendar = found.at("--calendar").read(read_calendar, arguments.calendar) or ()
    budget = None if arguments.budget is None else found.at("--budget").read(read_budget, arguments.budget)
    owners = None
    if arguments.owners is not None:
        content, within = load_yaml(arguments.owners, "file is empty; expected owners, and what each may have")
        owners = read_owners(content, within, devices)
        found.messages.extend(within.messages)
    shared = PoolSection(arguments.kind, devices, arguments.cores, resident, keep_all=keep_all, keep_ended=keep_ended,
                         calendar=calendar, budget=budget, locations=locations, device_memory=memory,
                         owners=owners)  # fmt: skip
    settings = with_pool(Settings(policy=policy.name, policy_args=policy.arguments), shared)
    if market is not None:
        settings = _on_market(market, settings, arguments, devices, found)
    elif arguments.kind == "gpu" and not arguments.ray:
        check_gpus(devices, found.at("--kind"))
    group = found.at("--group").read(group_of, arguments)
    told = {"command": arguments.on_verdict, "webhook": arguments.webhook, "secret_file": arguments.webhook_secret}
    given = {key: value for key, value in told.items() if value} or None
    on_verdict = read_on_verdict(given, Path.cwd(), found.at("--on-verdict"))
    if found.messages:
        raise BundleError(found.messages)
    folder = arguments.folder or folder_here()
    if market is None and not arguments.ray:
        _say_busy_cores(arguments.kind, devices * arguments.cores)
    what = f"{devices} {arguments.kind} device{'s' * (devices > 1)} with {resident} workers"
    print(f"bringing up {what if market is None else _nodes_in_words(devices, market)} ...", flush=True)
    cloud = None
    if market is not None:
        name = POOL if not arguments.ray else pool_name(folder.expanduser().resolve())
        cloud = market.cloud(settings, arguments.kind, name)
    head = up(
        folder, settings, arguments.kind, on_verdict, cloud, arguments.ray, group, recover_journal=arguments.recover
    )
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
    print("  scripts join it with CoreCallback; `lightning-core submit`, `status` and `down` are the next commands")
    if group is not None:
        where = group.path.parent
        print(f"  members of {arguments.group} reach it with --pool {where}, or LIGHTNING_CORE_POOL={where}")
    print("  its workers are importing torch and Lightning; a job that is submitted now waits some seconds for them")
    _serve_page(folder, arguments.serve)
    return EXIT_MET


def _serve_page(folder: Path, port: int | None) -> None:
    """Start the page beside the pool, if a port is given; the pool is up, whether the page is or not."""
    if port is None:
        return
    try:
        print(start_page(folder, port))
    except PageError as error:
        print(f"{error}; the pool is up, and `lightning-core serve` tries again", file=sys.stderr)


def _on_market(
    market: MarketOptions, settings: Settings, arguments: argparse.Namespace, devices: int, found: Problems
) -> Settings:
    """Return the settings of a pool on a market; problems are added to those found."""
    if arguments.kind == "gpu" and market.ray is None:
        found.at("--kind").add("simulated nodes have no GPUs: name a Ray cluster that has with --ray")
    terms = found.at("--market").read(lambda options: options.terms(), market)
    if found.messages:
        return settings
    both = 2 * devices  # new nodes are warm before old ones go
    return market.rented(replace(settings, market=terms, devices=both, resident=both))


def _say_busy_cores(kind: str, wanted: int) -> None:
    from lightning_core.node.core_claims import free_cores
    from lightning_core.node.device_cores import CORES

    if kind == "cpu" and wanted > (free := free_cores(CORES)) < len(CORES):
        print(f"note: {len(CORES) - free} of the {len(CORES)} cores here belong to your other pools: jobs of two pools "
              "on one core slow each other down", file=sys.stderr)  # fmt: skip


def _nodes_in_words(many: int, market: MarketOptions) -> str:
    real = "of the Ray cluster" if market.ray else "simulated on this machine"
    return f"a pool on a market, of at most {many} node{'s' * (many > 1)}, {real}"


def _devices_of(arguments: argparse.Namespace, market: MarketOptions | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of devices, and the location of each, if they have some.

    Raises:
        ValueError: If it is neither a number nor numbers by location, or locations are of no use.
    """
    from lightning_core.bundle.pool_section import read_devices
    from lightning_core.bundle.problems import BundleError, Position, Problems

    found = Problems(Position("up"))
    devices, locations = read_devices(arguments.devices, found.at("--devices"))
    if devices is None:
        raise BundleError(found.messages)
    if locations and not arguments.ray:
        raise ValueError("--devices: locations are labels of the nodes of a Ray cluster: it needs --ray ADDRESS")
    if locations and market is not None:
        raise ValueError("--devices: nodes of a market have no locations: give a number")
    most = MAX_DEVICES if market is None else MAX_DEVICES // 2  # new nodes are warm before old ones go
    if not 1 <= devices <= most:
        raise ValueError(f"--devices must be 1 to {most}, got {devices}")
    return devices, locations


def differences(asked: Settings, there: Settings) -> list[str]:
    """Return in which settings a pool that was resumed is not as it is asked for now, in words.

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
    """Return what `up` sets, beside the devices, by the name of its option."""
    from lightning_core.bundle.pool_section import FOREVER, KEEP_ALL

    args = ",".join(f"{key}={value}" for key, value in settings.policy_args.items())
    rules = settings.controllers.get(Asker.CALENDAR, {}).get("closed", ["none"])
    return {
        "policy": f"{settings.policy}:{args}" if args else settings.policy,
        "keep": KEEP_ALL if settings.keep_all else "the default",
        "keep-ended": FOREVER if settings.keep_ended is None else format_duration(settings.keep_ended),
        "calendar": ", ".join(rules),
        "owners": json.dumps(settings.owners) if settings.owners else "none",
        "market": str((settings.market or {}).get("trace", "none")),
        "budget": str(settings.controllers.get(Asker.BUDGET, {}).get("money", "none")),
    }


def _down(arguments: argparse.Namespace) -> int:
    from lightning_core.cluster.head import down

    folder = arguments.folder or folder_here()
    end_page(folder)
    down(folder, now=arguments.now)
    print("the pool is down; checkpoints are kept, and `up` resumes the jobs that have not ended")
    return EXIT_MET
