"""A bundle on nodes that come and go, from the command line: made-up machines here, or those of a Ray cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.launch.bundle import Bundle
from lightning_core.launch.follow import Watcher
from lightning_core.launch.problems import BundleError
from lightning_core.launch.sharing import read_market
from lightning_core.types import BatchTarget

if TYPE_CHECKING:  # Ray takes seconds to import, and its token must be there before
    from lightning_core.launch.provision import LocalNodes, Provisioner
    from lightning_core.launch.spot import SpotRun
    from lightning_core.market.live import Nodes
    from lightning_core.summary import Summary

# How long the first node may take to come, seconds.
FIRST = 600.0
LEDGER = "ledger.json"


def on_a_market(bundle: Bundle, trace: Path, slot: str | None, price: float | None, policy: str | None) -> Bundle:
    """The same jobs on a pool that has a market, with as many devices as they can use, twice.

    Args:
        bundle: the jobs.
        trace: the recording.
        slot: seconds of a slot as a duration; None: as recorded.
        price: of a spot node, where none is recorded.
        policy: for all jobs; None: one is chosen for each.

    Raises:
        BundleError: if a job has no known work, or the market cannot be read.
    """
    problems = [
        f"jobs.{spec.job.name}.target: must be in batches, for a market asks how much is left, got {spec.job.target}"
        for spec in bundle.jobs
        if not isinstance(spec.job.target, BatchTarget)
    ]
    given: dict[str, Any] = {"trace": str(trace.resolve())}
    given |= {} if slot is None else {"slot": slot}
    given |= {} if price is None else {"price": price}
    given |= {} if policy is None else {"policies": [policy]}
    try:
        terms = read_market(given, Path())
    except ValueError as error:
        problems.append(f"--market: {error}")
    if problems:
        raise BundleError(problems)
    most = sum(spec.job.max_devices for spec in bundle.jobs)
    return replace(
        bundle, settings=replace(bundle.settings, market=terms, devices=2 * most, resident=None, locations=())
    )


def run_on_market(bundle: Bundle, run_dir: Path, view: Watcher | None, ray: str | None, command: str | None) -> Summary:
    """Runs it; the ledger is printed, and written to ``ledger.json`` in the run's folder.

    Args:
        bundle: of :func:`on_a_market`.
        run_dir: an empty folder.
        view: is shown the jobs.
        ray: address of a cluster; None for made-up machines.
        command: brings up nodes there; None for Ray's autoscaler.
    """
    terms = bundle.settings.market_terms()
    assert terms is not None  # it is on a market
    market = terms.market()
    with _nodes(bundle, ray, command) as (provisioner, there, made_up):
        from lightning_core.launch.cluster import Cluster
        from lightning_core.launch.spot import MadeUp, SpotRun
        from lightning_core.market.live import Nodes
        from lightning_core.market.policies import SPOT_POLICIES

        devices = bundle.settings.devices
        provisioner.want(Nodes(0, min(spec.job.min_devices for spec in bundle.jobs)))
        _wait(there)
        print(f"{len(bundle.jobs)} jobs on a market of {len(market)} slots of {market.seconds:g} s", flush=True)
        with Cluster(devices, bundle.kind, devices, bundle.settings.cores, least=1) as cluster:
            spot = SpotRun(
                cluster, provisioner, there, market,
                # Each job's is its own: policies have a state. The scheduler of a pool with a market chooses for all.
                lambda status: SPOT_POLICIES[str(status.spot.text)](),  # type: ignore[union-attr]
                terms.kept, beside=view,
            )  # fmt: skip
            watcher: Watcher = spot if made_up is None else MadeUp(made_up, market, spot)
            summary = cluster.run(bundle, run_dir, watcher)
    _tell(spot, run_dir)
    return summary


@contextmanager
def _nodes(
    bundle: Bundle, ray: str | None, command: str | None
) -> Iterator[tuple[Provisioner, Callable[[], Nodes], LocalNodes | None]]:
    resource = "GPU" if bundle.kind == "gpu" else "device"
    if ray is None:
        from lightning_core.launch.machines import local_machines

        with local_machines() as machines:
            from lightning_core.launch.provision import LocalNodes

            device = {"num_gpus": 1} if bundle.kind == "gpu" else {"resources": {"device": 1}}
            local = LocalNodes(machines, **device)
            try:
                yield local, local.there, local
            finally:
                local.close()
        return
    from lightning_core.launch.cluster import join_ray
    from lightning_core.launch.provision import Autoscaled, Command, nodes_there

    join_ray(ray)
    provisioner: Provisioner = Autoscaled(resource) if command is None else Command(command)
    try:
        yield provisioner, partial(nodes_there, resource), None
    finally:
        provisioner.close()


def _wait(there: Callable[[], Nodes]) -> None:
    until = time.monotonic() + FIRST
    while not there().all:
        if time.monotonic() > until:
            raise BundleError([f"no node has come within {FIRST:.0f} s"])
        time.sleep(0.2)


def _tell(spot: SpotRun, run_dir: Path) -> None:
    """The ledger."""
    from lightning_core.view.tables import print_table

    header = ["slot", "price", "available", "spot", "on-demand", "used", "cost", "batches", "moves", "losses", "again"]
    rows = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in spot.rows]
    others = spot.beside_others()
    words = f"paid: {spot.cost:.4g}"
    if others is not None:
        words += f"; by the measured speed: on on-demand nodes alone {others[0]:.4g}, at the least {others[1]:.4g}"
    print_table(header, rows, words)
    body = {"slots": [row._asdict() for row in spot.rows], "cost": spot.cost,
            "on_demand_alone": others and others[0], "optimum": others and others[1]}  # fmt: skip
    (run_dir / LEDGER).write_text(json.dumps(body, indent=2, allow_nan=False) + "\n")
