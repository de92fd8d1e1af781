"""Rents and returns the nodes of a run on a spot market, interval by interval.

At the beginning of an interval each job's spot policy decides, from what has really been trained, how many spot and
on-demand nodes the job should hold, and a provisioner is asked for all of them together. The job is told to train on
that many devices, and trains on fewer until they are there. A node that is preempted within an interval is handled as
any lost node; whether an on-demand node must replace it at once is up to the safety net, without a forecast.

Each of several jobs has a plan of its own. The pool is as large as all plans together ask for; the run's policy says
which job trains where, and which one goes without if not all nodes have come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ray.exceptions import RayError

from lightning_core.cloud.provisioner import Provisioner
from lightning_core.cloud.quotes import MarketFeed, market_feed
from lightning_core.cluster.planned_jobs import PlannedJobs, Run
from lightning_core.core.answers import JobStatus, State
from lightning_core.market import Market, SpotJob
from lightning_core.market.observation import SpotPolicy
from lightning_core.market.online.current_interval import CurrentInterval
from lightning_core.market.online.interval_ledger import IntervalRecord, SpotRunState
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.run.follow import Watcher

log = logging.getLogger(__name__)

EMPTY_STATE = SpotRunState()


class SpotWatcher:
    """Keeps the nodes of a run as its jobs' spot policies want them.

    The pool should have twice as many devices as the jobs can use, so that new nodes are warm before old ones go.

    Args:
        run: Run in progress.
        provisioner: Source of nodes.
        present: Returns the nodes that are up and not draining.
        market: Market of the run, whose first interval is the run's first. Of a recording only the past and the present
            interval are looked at; :class:`~lightning_core.cloud.quotes.Quotes` are asked as the run goes on.
        policy_of: Returns the spot policy of a job; called once for each.
        kept_fraction: Largest fraction of an interval that is left for training when the number of nodes changes in it.
            Where a job had no node, the measured time from the request to its first batch is subtracted instead.
        initial_throughput: Batches per second on one device until they have been measured; None: each job begins on as
            few on-demand nodes as it can train on.
        setup: Seconds that bringing up the first node and a worker on it took, before the run began.
        view: Another watcher to show the jobs to.
        save: Called with the state whenever an interval has ended.
        resume_from: State of the run to resume; its scheduler time continues.

    Raises:
        ValueError: If ``kept_fraction`` is out of range.
    """

    def __init__(
        self,
        run: Run,
        provisioner: Provisioner,
        present: Callable[[], NodeCounts],
        market: Market | MarketFeed,
        policy_of: Callable[[JobStatus], SpotPolicy],
        kept_fraction: float = 0.9,
        initial_throughput: float | None = None,
        setup: float = 0.0,
        view: Watcher | None = None,
        save: Callable[[SpotRunState], None] = lambda state: None,
        resume_from: SpotRunState = EMPTY_STATE,
    ) -> None:
        if not 0 < kept_fraction <= 1:
            raise ValueError(f"kept_fraction must be above 0 and at most 1, got {kept_fraction}")
        self._run, self._provisioner, self._present = run, provisioner, present
        self._market_feed = market_feed(market)
        self._market = self._market_feed(0)
        self._view, self._save = view, save
        self._plans = PlannedJobs(
            run, self.seconds, policy_of, kept_fraction, initial_throughput, setup, resume_from.spans
        )
        self._shown: dict[str, JobStatus] = {}
        self._interval: CurrentInterval | None = None
        self._closed = False
        self.rows: list[IntervalRecord] = list(resume_from.rows)
        """Records of the intervals that have ended."""

    @property
    def seconds(self) -> float:
        """Seconds of an interval."""
        return self._market.seconds

    @property
    def cost(self) -> float:
        """Cost of the intervals that have ended."""
        return sum(row.cost for row in self.rows)

    @property
    def state(self) -> SpotRunState:
        """State from which the run is resumed."""
        return SpotRunState(tuple(self.rows), dict(self._plans.spans))

    @property
    def jobs(self) -> list[SpotJob]:
        """The jobs as the market sees them, at the throughput measured last."""
        return self._plans.jobs

    def reference_costs(self) -> tuple[float, float] | None:
        """Return what the jobs would have cost on on-demand nodes alone, and at the offline optimum.

        Both follow from the measured throughput; None while that of a job is unknown.
        """
        return self._plans.reference_costs(self._market)

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        """Take in the jobs as of scheduler time ``now``."""
        self._shown = {job.name: job for job in jobs}
        if self._shown and not self._closed:
            try:
                self._look(now, self._shown)
            except (OSError, RuntimeError, RayError) as error:  # the jobs train on the nodes that there are
                log.warning("the nodes were left as they are: %s", error)
        if self._view is not None:
            self._view.update(now, jobs)

    def close(self) -> None:
        """Return all nodes: the run is over, or interrupted."""
        with ExitStack() as stack:
            if self._view is not None:
                stack.callback(self._view.close)
            stack.callback(self._provisioner.scale_to, NodeCounts())
            self._end_interval(self._shown)
            self._closed = True

    def _look(self, now: float, jobs: Mapping[str, JobStatus]) -> None:
        present, number = self._present(), int(now // self._market.seconds)
        interval = self._interval
        if interval is not None:
            interval.count(now, jobs.values(), present)
        self._plans.observe(now, jobs)
        if interval is None or number > interval.number:
            had = NodeCounts() if interval is None else interval.present.minimum(interval.requested)
            self._end_interval(jobs, number)
            self._begin_interval(number, now, jobs, present, preempted=had != had.minimum(present))
        else:
            request = interval.settle(now, present, self._run.warm_devices(), self._market.seconds)
            if request is not None:
                self._provisioner.scale_to(request)
            self._replace_preempted(interval, now, jobs, present)
        if all(job.state is State.ENDED for job in jobs.values()):
            self._end_interval(jobs)
            self._closed = True
            self._provisioner.scale_to(NodeCounts())

    # ------------------------------------------------------------------------------------------------ an interval

    def _begin_interval(
        self, number: int, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts, *, preempted: bool
    ) -> None:
        """Have the plans decide; ``preempted``: nodes have just vanished, and the work they lost is not yet known."""
        self._market = self._market_feed(number)
        wanted = self._plans.decide(self._market, number, now, jobs, present, preempted=preempted)
        price, available = float(self._market.price[number]), int(self._market.available[number])
        interval = CurrentInterval(number, now, price, available, wanted, present, dict(jobs))
        self._provisioner.scale_to(interval.begin())
        self._interval = interval

    def _replace_preempted(
        self, interval: CurrentInterval, now: float, jobs: Mapping[str, JobStatus], present: NodeCounts
    ) -> None:
        """Ask for on-demand nodes at once if nodes were preempted and a job cannot wait for the next interval."""
        had = interval.present.minimum(interval.requested)
        interval.present = present
        if present.spot >= had.spot and present.on_demand >= had.on_demand:
            return
        log.warning("nodes were lost: %d spot and %d on-demand are left of %d and %d", *present, *had)
        more = self._plans.replace_preempted(self._market, interval.number, now, jobs, present)
        if more:
            log.warning("asking for %d more on-demand nodes at once: a job would otherwise be late", more)
            self._provisioner.scale_to(interval.replace_preempted(present.spot, more))

    def _end_interval(self, jobs: Mapping[str, JobStatus], number: int = 0) -> None:
        """Record the interval, and the later ones before ``number``, which passed unobserved."""
        if (interval := self._interval) is None:
            return
        self._interval = None
        on_demand = self._market.on_demand
        self.rows.append(interval.record(jobs, self._plans.count_batches(jobs), on_demand))
        for passed in range(interval.number + 1, number):
            price, available = float(self._market.price[passed]), int(self._market.available[passed])
            self.rows.append(interval.unobserved(passed, price, available, on_demand))
        try:
            self._save(self.state)
        except OSError as error:  # the next one contains it
            log.warning("the ledger could not be written: %s", error)
