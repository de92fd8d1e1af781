"""Runs a bundle on a spot market, on simulated nodes or on those of a Ray cluster, and writes its ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.problems import BundleError
from lightning_core.cli.on_market.market_options import MarketOptions
from lightning_core.cloud import PROVISIONERS, parse_provision
from lightning_core.cloud.provisioner import Provisioner, count_nodes
from lightning_core.cloud.quotes import Quotes
from lightning_core.core.answers import JobStatus
from lightning_core.market import Market
from lightning_core.market.online.interval_ledger import IntervalRecord, JobSpan, SpotRunState
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.market.policies import SPOT_POLICIES
from lightning_core.node.signals import SignalReceivedError, recorded_signals
from lightning_core.run.follow import Watcher
from lightning_core.control.market_terms import MarketTerms
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import read_own

if TYPE_CHECKING:  # Ray takes seconds to import, and its token must be set before
    from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner
    from lightning_core.cluster.spot_watcher import SpotWatcher
    from lightning_core.scheduler.summary import Summary

# Seconds that the first node may take to come, and seconds between two looks for it.
FIRST_NODE_TIMEOUT, POLL_SECONDS = 600.0, 0.2
# A row for each interval; a year of half hours has 17,520.
LEDGER, MAX_LEDGER_BYTES = "ledger.json", 64 * 2**20


def run_on_market(
    options: MarketOptions, bundle: BundleSpec, run_dir: Path, view: Watcher | None, was: BundleSpec | None = None
) -> Summary:
    """Run a bundle on a market, or resume it; print the ledger and write it to ``ledger.json`` in the run's folder.

    Args:
        options: The market.
        bundle: Bundle, as :meth:`MarketOptions.apply` returns it.
        run_dir: Empty folder, or that of the run to resume.
        view: Watcher that is shown the jobs.
        was: Bundle of the run to resume, as it was.
    """
    with ExitStack() as stack:
        before = read_ledger(run_dir)
        market, kept_fraction = _market(options, bundle, before, stack)
        provisioner, present, simulated = stack.enter_context(_nodes(bundle, options.ray, options.provision))
        from lightning_core.cloud.market_replay import MarketReplay
        from lightning_core.cluster.cluster import Cluster
        from lightning_core.cluster.planned_jobs import min_size
        from lightning_core.cluster.spot_watcher import SpotWatcher

        devices = bundle.settings.devices
        asked = time.monotonic()
        provisioner.scale_to(NodeCounts(0, min(min_size(spec.job) for spec in bundle.jobs)))
        _wait_for_node(present)
        with Cluster(devices, bundle.kind, devices, bundle.settings.cores, min_devices=1) as cluster:
            spot = SpotWatcher(
                # A policy may have state, so each job gets one of its own.
                cluster, provisioner, present, market,
                lambda status: SPOT_POLICIES[_policy_of(options, status)](), kept_fraction,
                setup=time.monotonic() - asked, view=view, save=lambda state: write_ledger(state, run_dir),
                resume_from=before,
            )  # fmt: skip
            watcher: Watcher = spot if simulated is None else MarketReplay(simulated, market, spot)
            summary = cluster.run(bundle, run_dir, watcher, was)
    _print_ledger(spot, run_dir)
    if options.picture is not None:
        draw(spot, bundle, options.picture)
    return summary


def _market(
    options: MarketOptions, bundle: BundleSpec, before: SpotRunState, stack: ExitStack
) -> tuple[Market | Quotes, float]:
    """Return the market, and the fraction of an interval that a change of nodes leaves."""
    terms = bundle.settings.market_terms()
    if terms is not None:
        market = terms.market()
        print(f"{len(bundle.jobs)} jobs on a market of {len(market)} intervals of {market.seconds:g} s", flush=True)
        return market, terms.kept_fraction
    seconds = options.seconds(None)
    assert options.quotes is not None  # else it has terms
    quotes = Quotes(options.quotes, seconds, {row.number: (row.price, row.available) for row in before.rows})
    stack.callback(quotes.close)
    price, available, on_demand = quotes.last
    now = f"{available} spot nodes at {price:g}, on demand {on_demand:g}"
    print(f"{len(bundle.jobs)} jobs on a market with intervals of {seconds:g} s; now {now}", flush=True)
    return quotes, MarketTerms().kept_fraction


def _policy_of(options: MarketOptions, status: JobStatus) -> str:
    # The scheduler of a pool with a recorded market has chosen one for each job.
    return (
        str(status.spot_policy.text)
        if options.policy is None and status.spot_policy is not None
        else str(options.policy)
    )


def draw(spot: SpotWatcher, bundle: BundleSpec, path: Path) -> None:
    """Draw the intervals of a run that has ended.

    Args:
        spot: Watcher of the run.
        bundle: Its jobs, with targets in batches.
        path: File to write; its suffix is the format.
    """
    from lightning_core.report.market_plots import IntervalSeries, draw_intervals

    jobs = [spec.job for spec in bundle.jobs]
    work = sum(job.target.work or 0 for job in jobs)
    done, progress = 0, list[float]()
    for row in spot.rows:
        done += row.batches
        progress.append(done / work)
    names = ("available", "spot", "on_demand", "failures")
    columns = {name: [getattr(row, name) for row in spot.rows] for name in names}
    columns["numbers"] = [row.number for row in spot.rows]
    deadline = max(job.deadline for job in jobs) / spot.seconds
    references = spot.reference_costs()
    title = f"paid {spot.cost:.3g}"
    if references is not None:
        title += f"; on-demand only {references[0]:.3g}, offline optimum {references[1]:.3g}"
    max_nodes = sum(job.max_devices for job in jobs)
    draw_intervals(IntervalSeries(progress=progress, max_nodes=max_nodes, deadline=deadline, **columns), path, title)


@contextmanager
def _nodes(
    bundle: BundleSpec, ray: str | None, provision: str | None
) -> Iterator[tuple[Provisioner, Callable[[], NodeCounts], SimulatedProvisioner | None]]:
    """Yield a provisioner, a count of its nodes, and itself if it simulates them."""
    resource = "GPU" if bundle.kind == "gpu" else "device"
    if ray is None:
        from lightning_core.cloud.simulated_cloud import local_machines

        with local_machines() as machines:
            from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner

            device = {"num_gpus": 1} if bundle.kind == "gpu" else {"resources": {"device": 1}}
            simulated = SimulatedProvisioner(machines, **device)
            try:
                yield simulated, simulated.present, simulated
            finally:
                simulated.close()
        return
    from lightning_core.cloud.ray_cluster import join_ray

    join_ray(ray)
    name, arguments = parse_provision(provision)
    provisioner = PROVISIONERS[name](resource, arguments)
    try:
        yield provisioner, partial(count_nodes, resource), None
    finally:
        provisioner.close()


def _wait_for_node(present: Callable[[], NodeCounts]) -> None:
    until = time.monotonic() + FIRST_NODE_TIMEOUT
    with recorded_signals() as received:
        while not present().all:
            if received:
                raise SignalReceivedError(received[0])
            if time.monotonic() > until:
                raise BundleError([f"no node came within {FIRST_NODE_TIMEOUT:.0f} s; check what brings them up"])
            time.sleep(POLL_SECONDS)


def _print_ledger(spot: SpotWatcher, run_dir: Path) -> None:
    from lightning_core.view.tables import print_table

    header = ["interval", "price", "available", "spot", "on-demand", "surplus", "used", "cost", "batches",
              "incarnations", "failures", "lost"]  # fmt: skip
    rows = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in spot.rows]
    references = spot.reference_costs()
    text = f"paid: {spot.cost:.4g}"
    if references is not None:
        text += f"; at the measured throughput: on-demand only {references[0]:.4g}, offline optimum {references[1]:.4g}"
    print_table(header, rows, text)
    write_ledger(spot.state, run_dir, references)


def write_ledger(state: SpotRunState, run_dir: Path, references: tuple[float, float] | None = None) -> None:
    """Write the ledger of a run.

    Args:
        state: State of the run.
        run_dir: Its folder.
        references: Its cost on on-demand nodes alone, and at the offline optimum, once it has ended.
    """
    body = {"intervals": [row._asdict() for row in state.rows], "cost": sum(row.cost for row in state.rows),
            "jobs": {name: span._asdict() for name, span in state.spans.items()},
            "on_demand_cost": references and references[0], "optimum": references and references[1]}  # fmt: skip
    write_whole(run_dir / LEDGER, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_ledger(run_dir: Path) -> SpotRunState:
    """Return the state of a run to resume; empty if no interval of it had ended.

    Raises:
        BundleError: If the file is not a ledger.
    """
    path = run_dir / LEDGER
    if not path.exists():
        return SpotRunState()
    try:
        body = json.loads(read_own(run_dir, LEDGER, MAX_LEDGER_BYTES))
        spans = {str(name): JobSpan(**span) for name, span in body["jobs"].items()}
        return SpotRunState(tuple(IntervalRecord(**row) for row in body["intervals"]), spans)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        message = (
            f"{path}: is not the ledger of a run ({type(error).__name__}: {error}); move it away to start a new one"
        )
        raise BundleError([message]) from None
