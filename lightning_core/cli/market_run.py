"""A bundle on nodes that come and go, from the command line: made-up machines here, or those of a Ray cluster."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.pool_section import MAX_DEVICES, market_to_dict, read_market
from lightning_core.bundle.problems import BundleError, require
from lightning_core.cloud.quotes import Quotes
from lightning_core.core.answers import JobStatus
from lightning_core.core.durations import parse_duration
from lightning_core.core.names import did_you_mean
from lightning_core.core.targets import BatchTarget
from lightning_core.market import Market
from lightning_core.market.policies import SPOT_POLICIES
from lightning_core.market.traces import INTERVAL
from lightning_core.node.signals import SignalReceivedError, recorded_signals
from lightning_core.run.follow import Watcher
from lightning_core.scheduler.market_terms import MarketTerms
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.job_specs import SAVE_EVERY
from lightning_core.storage.private_files import owner_only

if TYPE_CHECKING:  # Ray takes seconds to import, and its token must be there before
    from lightning_core.cloud.provisioner import Provisioner
    from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner
    from lightning_core.cluster.spot_watcher import SpotRunState, SpotWatcher
    from lightning_core.market.online.node_counts import NodeCounts
    from lightning_core.scheduler.summary import Summary

PATHS = ("trace", "picture")
# How long the first node may take to come, seconds.
FIRST, POLL_SECONDS = 600.0, 0.2
# Of an interval, how often a job saves that was not told.
SAVES = 0.1
LEDGER, TERMS = "ledger.json", "market.json"


@dataclass(frozen=True, slots=True)
class MarketOptions:
    """How a bundle is run on a market.

    Args:
        trace: a recording of it; None where a command says what it offers.
        quotes: that command (:class:`~.quotes.Quotes`).
        interval: seconds of an interval as a duration; None: as recorded, or 30 minutes.
        price: of a spot node, where none is recorded.
        policy: of all jobs; None: one is chosen for each, by the recording.
        ray: address of a cluster; None for made-up machines.
        provision: command that brings up nodes there; None for Ray's autoscaler.
        picture: file for the intervals, PNG, SVG or PDF.

    Raises:
        ValueError: if they do not go together.
    """

    trace: Path | None = None
    quotes: str | None = None
    interval: str | None = None
    price: float | None = None
    policy: str | None = None
    ray: str | None = None
    provision: str | None = None
    picture: Path | None = None

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.quotes is None):
            raise ValueError("a market is either recorded (--market TRACE) or asked for (--quotes COMMAND)")
        if self.provision and not self.ray:
            raise ValueError("--provision brings up nodes of a Ray cluster: it needs --ray ADDRESS")
        if self.provision is not None:
            words = shlex.split(self.provision)
            if not words or shutil.which(words[0]) is None:
                raise ValueError(f"--provision: there is no such command: {words[0] if words else 'none'}")
        if self.quotes is not None and self.price is not None:
            raise ValueError("--price is of a recording; the command of --quotes says what a node costs")
        if self.quotes is not None and self.policy is None:
            raise ValueError("--quotes needs --spot-policy NAME: without a recording none can be chosen")
        if self.policy is not None and self.policy not in SPOT_POLICIES:
            raise ValueError(f"--spot-policy: unknown {self.policy!r}{did_you_mean(self.policy, SPOT_POLICIES)}")
        if self.picture is not None:
            require("matplotlib", extra="view")
            if self.picture.suffix not in (".png", ".svg", ".pdf"):
                raise ValueError(f"--picture: must end in .png, .svg or .pdf, got {self.picture}")
            if not self.picture.parent.is_dir():
                raise ValueError(f"--picture: {self.picture.parent} is not a folder")

    @classmethod
    def of(cls, run_dir: Path) -> MarketOptions | None:
        """How a run was run that was left; None if it was on no market."""
        if not (run_dir / TERMS).is_file():
            return None
        try:
            terms = json.loads((run_dir / TERMS).read_text())
            terms |= {name: Path(terms[name]) for name in PATHS if terms[name] is not None}
            if terms["picture"] is not None and not terms["picture"].parent.is_dir():
                terms["picture"] = run_dir / terms["picture"].name
            return cls(**terms)
        except (ValueError, TypeError, KeyError) as error:
            words = f"{run_dir / TERMS}: does not say how a run is run ({type(error).__name__}: {error})"
            raise BundleError([words]) from None

    def keep(self, run_dir: Path) -> None:
        """Notes it in the run's folder, to go on with."""
        terms = asdict(self)
        paths = {name: str(terms[name].resolve()) for name in PATHS if terms[name] is not None}
        with owner_only():  # a command may have a key in it
            write_whole(run_dir / TERMS, json.dumps(terms | paths, indent=2) + "\n")

    def place(self, bundle: BundleSpec) -> BundleSpec:
        """The same jobs on a pool that has the market, with as many devices as they can use, twice.

        Who was not told how often to save does so some times in an interval: time is kept free for what is not saved.

        Raises:
            BundleError: if a job has no known work, or the market cannot be read.
        """
        problems = [
            f"jobs.{spec.job.name}.target: must be in batches, for a market asks how much is left, "
            f"got {spec.job.target}"
            for spec in bundle.jobs
            if not isinstance(spec.job.target, BatchTarget)
        ]
        problems += [
            f"jobs.{spec.job.name}.location: nodes that come and go are at none; take it out, got {spec.job.location}"
            for spec in bundle.jobs
            if spec.job.location
        ]
        if (max_nodes := sum(spec.job.max_devices for spec in bundle.jobs)) > MAX_DEVICES // 2:
            problems.append(f"jobs: on a market they can use {MAX_DEVICES // 2} devices in all, got {max_nodes}")
        if bundle.kind == "gpu" and self.ray is None:
            problems.append("pool.kind: made-up machines have no GPUs of their own; --ray names a cluster that has")
        terms: dict[str, Any] | None = None
        try:
            if self.trace is not None:
                given = {"trace": str(self.trace.resolve()), "interval": self.interval, "price": self.price,
                         "policies": self.policy and [self.policy]}  # fmt: skip
                said = {key: value for key, value in given.items() if value is not None}
                # What else the bundle says of its market holds here too.
                terms = read_market(market_to_dict(bundle.settings.market or {}) | said, Path())
            elif self.interval is not None:
                parse_duration(self.interval)
        except ValueError as error:
            problems.append(f"--market: {error}" if self.trace else f"--interval: {error}")
        if problems:
            raise BundleError(problems)
        settings = replace(bundle.settings, market=terms, devices=2 * max_nodes, resident=None, locations=())
        every = min(SAVE_EVERY, SAVES * self._seconds(settings.market_terms()))
        jobs = [spec if spec.save_every else replace(spec, save_every=every) for spec in bundle.jobs]
        return replace(bundle, settings=settings, jobs=tuple(jobs))

    def _seconds(self, terms: MarketTerms | None) -> float:
        """Of an interval."""
        if terms is not None:
            return terms.market().seconds
        return INTERVAL if self.interval is None else parse_duration(self.interval)

    def run(self, bundle: BundleSpec, run_dir: Path, view: Watcher | None, was: BundleSpec | None = None) -> Summary:
        """Runs it, or goes on with it; the ledger is printed, and written to ``ledger.json`` in the run's folder.

        Args:
            bundle: as :meth:`place` gives it.
            run_dir: an empty folder, or that of a run to go on with.
            view: is shown the jobs.
            was: the bundle of the run to go on with, as it was.
        """
        with ExitStack() as over:
            before = read_ledger(run_dir)
            market, kept = self._market(bundle, before, over)
            provisioner, there, made_up = over.enter_context(_nodes(bundle, self.ray, self.provision))
            from lightning_core.cluster.cluster import Cluster
            from lightning_core.cluster.spot_watcher import MarketReplay, SpotWatcher, min_size
            from lightning_core.market.online.node_counts import NodeCounts

            devices = bundle.settings.devices
            asked = time.monotonic()
            provisioner.want(NodeCounts(0, min(min_size(spec.job) for spec in bundle.jobs)))
            _wait(there)
            with Cluster(devices, bundle.kind, devices, bundle.settings.cores, least=1) as cluster:
                spot = SpotWatcher(
                    # Each job's policy is its own: it has a state.
                    cluster, provisioner, there, market, lambda status: SPOT_POLICIES[self._policy_of(status)](),
                    kept, setup=time.monotonic() - asked, beside=view,
                    keep=lambda state: write_ledger(state, run_dir), before=before,
                )  # fmt: skip
                watcher: Watcher = spot if made_up is None else MarketReplay(made_up, market, spot)
                summary = cluster.run(bundle, run_dir, watcher, was)
        _tell(spot, run_dir)
        if self.picture is not None:
            draw(spot, bundle, self.picture)
        return summary

    def _market(self, bundle: BundleSpec, before: SpotRunState, over: ExitStack) -> tuple[Market | Quotes, float]:
        """The market, and what a change of nodes leaves of an interval in it."""
        terms = bundle.settings.market_terms()
        if terms is not None:
            market = terms.market()
            print(f"{len(bundle.jobs)} jobs on a market of {len(market)} intervals of {market.seconds:g} s", flush=True)
            return market, terms.kept
        seconds = self._seconds(None)
        assert self.quotes is not None  # else it has terms
        quotes = Quotes(self.quotes, seconds, {row.number: (row.price, row.available) for row in before.rows})
        over.callback(quotes.close)
        price, available, on_demand = quotes.last
        words = f"{available} spot nodes at {price:g}, on demand {on_demand:g}"
        print(f"{len(bundle.jobs)} jobs on a market with intervals of {seconds:g} s; now {words}", flush=True)
        return quotes, MarketTerms().kept

    def _policy_of(self, status: JobStatus) -> str:
        # The scheduler of a pool with a recorded market has chosen for each job.
        return str(status.spot.text) if self.policy is None and status.spot is not None else str(self.policy)


def draw(spot: SpotWatcher, bundle: BundleSpec, path: Path) -> None:
    """Writes a picture of the intervals of a run that is over.

    Args:
        spot: of the run.
        bundle: its jobs, with targets in batches.
        path: of the file; its ending says the format.
    """
    from lightning_core.report.market_plots import IntervalSeries, draw_intervals

    jobs = [spec.job for spec in bundle.jobs]
    work = sum(job.target.batches for job in jobs if isinstance(job.target, BatchTarget))
    done, progress = 0, list[float]()
    for row in spot.rows:
        done += row.batches
        progress.append(done / work)
    columns = {name: [getattr(row, name) for row in spot.rows] for name in ("available", "spot", "on_demand", "losses")}
    columns["intervals"] = [row.number for row in spot.rows]
    deadline = max(job.deadline for job in jobs) / spot.seconds
    max_nodes = sum(job.max_devices for job in jobs)
    others = spot.reference_costs()
    title = f"paid {spot.cost:.3g}"
    if others is not None:
        title += f"; on-demand alone {others[0]:.3g}, at the least {others[1]:.3g}"
    draw_intervals(IntervalSeries(progress=progress, max_nodes=max_nodes, deadline=deadline, **columns), path, title)


@contextmanager
def _nodes(
    bundle: BundleSpec, ray: str | None, command: str | None
) -> Iterator[tuple[Provisioner, Callable[[], NodeCounts], SimulatedProvisioner | None]]:
    resource = "GPU" if bundle.kind == "gpu" else "device"
    if ray is None:
        from lightning_core.cloud.simulated_cloud import local_machines

        with local_machines() as machines:
            from lightning_core.cloud.simulated_provisioner import SimulatedProvisioner

            device = {"num_gpus": 1} if bundle.kind == "gpu" else {"resources": {"device": 1}}
            local = SimulatedProvisioner(machines, **device)
            try:
                yield local, local.there, local
            finally:
                local.close()
        return
    from lightning_core.cloud.autoscaler_provisioner import AutoscalerProvisioner
    from lightning_core.cloud.command_provisioner import CommandProvisioner
    from lightning_core.cloud.provisioner import count_nodes
    from lightning_core.cloud.ray_cluster import join_ray

    join_ray(ray)
    provisioner: Provisioner = AutoscalerProvisioner(resource) if command is None else CommandProvisioner(command)
    try:
        yield provisioner, partial(count_nodes, resource), None
    finally:
        provisioner.close()


def _wait(there: Callable[[], NodeCounts]) -> None:
    until = time.monotonic() + FIRST
    with recorded_signals() as received:
        while not there().all:
            if received:
                raise SignalReceivedError(received[0])
            if time.monotonic() > until:
                raise BundleError([f"no node has come within {FIRST:.0f} s"])
            time.sleep(POLL_SECONDS)


def _tell(spot: SpotWatcher, run_dir: Path) -> None:
    """The ledger."""
    from lightning_core.view.tables import print_table

    header = ["interval", "price", "available", "spot", "on-demand", "over", "used", "cost", "batches", "moves", "losses",
              "again"]  # fmt: skip
    rows = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in spot.rows]
    others = spot.reference_costs()
    words = f"paid: {spot.cost:.4g}"
    if others is not None:
        words += f"; by the measured speed: on on-demand nodes alone {others[0]:.4g}, at the least {others[1]:.4g}"
    print_table(header, rows, words)
    write_ledger(spot.state, run_dir, others)


def write_ledger(state: SpotRunState, run_dir: Path, others: tuple[float, float] | None = None) -> None:
    """Writes the ledger of a run.

    Args:
        state: of it.
        run_dir: its folder.
        others: what it would have cost on on-demand nodes alone, and at the least, once it is over.
    """
    body = {"intervals": [row._asdict() for row in state.rows], "cost": sum(row.cost for row in state.rows),
            "jobs": {name: span._asdict() for name, span in state.spans.items()},
            "on_demand_cost": others and others[0], "optimum": others and others[1]}  # fmt: skip
    write_whole(run_dir / LEDGER, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_ledger(run_dir: Path) -> SpotRunState:
    """Of a run to go on with; empty if no interval of it was over.

    Raises:
        BundleError: if they are not what was written.
    """
    from lightning_core.cluster.spot_watcher import IntervalRecord, JobSpan, SpotRunState

    path = run_dir / LEDGER
    if not path.is_file():
        return SpotRunState()
    try:
        body = json.loads(path.read_text())
        spans = {str(name): JobSpan(**span) for name, span in body["jobs"].items()}
        return SpotRunState(tuple(IntervalRecord(**row) for row in body["intervals"]), spans)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        words = f"{path}: is no ledger of a run ({type(error).__name__}: {error}); take it away to begin a new one"
        raise BundleError([words]) from None
