"""Runs a bundle on a spot market, on simulated nodes or on those of a Ray cluster, and writes its ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.cli.on_market.ledger_table import draw, print_ledger, write_ledger
from lightning_core.cli.on_market.market_options import MarketOptions
from lightning_core.cloud.quotes import QuoteCommand
from lightning_core.history.market_ledger import read_ledger
from lightning_core.run.feedback_folder import leave_feedback
from lightning_core.run.follow import Watcher
from lightning_core.scheduler.summary import Summary


def run_on_market(
    options: MarketOptions, bundle: BundleSpec, run_dir: Path, view: Watcher | None, was: BundleSpec | None = None
) -> Summary:
    """Run a bundle on a market, or resume it; print the ledger and write it to ``ledger.json`` in the run's folder.

    The pool decides how many nodes it holds: this process follows it, and prints.

    Args:
        options: The market.
        bundle: Bundle, as :meth:`MarketOptions.apply` returns it.
        run_dir: Empty folder, or that of the run to resume.
        view: Watcher that is shown the jobs.
        was: Bundle of the run to resume, as it was.

    Raises:
        BundleError: If there is no quote.
    """
    _say_market(options, bundle)
    from lightning_core.cloud.ray_cluster import join_ray
    from lightning_core.cluster.cluster import Cluster

    if options.ray is not None:
        join_ray(options.ray)
    bundle = replace(bundle, settings=options.rented(bundle.settings))
    devices = bundle.settings.devices
    with Cluster(devices, bundle.kind, devices, bundle.settings.cores, min_devices=0) as cluster:
        cloud = options.cloud(bundle.settings, bundle.kind, cluster.name)
        summary = cluster.run(bundle, run_dir, view, was, cloud)
    ledger = read_ledger(run_dir / "journal.db")
    print_ledger(ledger)
    write_ledger(ledger, run_dir)
    leave_feedback(run_dir)
    if options.picture is not None:
        draw(ledger, bundle, cloud.interval, options.picture)
    return summary


def _say_market(options: MarketOptions, bundle: BundleSpec) -> None:
    terms = bundle.settings.market_terms()
    if terms is not None and not terms.quoted:
        market = terms.market()
        print(f"{len(bundle.jobs)} jobs on a market of {len(market)} intervals of {market.seconds:g} s", flush=True)
        return
    assert options.quotes is not None  # else it is recorded
    quote = QuoteCommand(options.quotes).ask()
    now = f"{quote.available} spot nodes at {quote.price:g}, on demand {quote.on_demand:g}"
    print(f"{len(bundle.jobs)} jobs on a market with intervals of {options.seconds(None):g} s; now {now}", flush=True)
