"""Backtests of policies on several offers: a policy decides the number of nodes, and :mod:`.where` their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.parts.market.backtest import Playback, Settled, play_all
from lightning_core.parts.market.changeover import throughput_of
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import ForecastProvider, SpotPolicy
from lightning_core.parts.market.offers import Offer
from lightning_core.parts.market.safety_net import SafetyNet
from lightning_core.parts.market.spot_job import EXACT, SpotJob
from lightning_core.parts.market.zones.offer_trace import OfferTrace, any_of
from lightning_core.parts.market.zones.stays import expected_stay
from lightning_core.parts.market.zones.where import MoveCost, choose

NOTHING = NodeCounts()


@dataclass(frozen=True, eq=False, slots=True)
class ZoneLedger(Ledger):
    """Ledger of a backtest on several offers; costs include the egress.

    Attributes:
        moves: Times that a job's nodes were launched where it had none before, its beginning left out, shape ``(B,)``.
        egress: Money paid for the checkpoint to leave a region, shape ``(B,)``.
        counts: Spot and on-demand nodes of each offer, shape ``(B, D, offers, 2)``.
    """

    moves: IntArray
    egress: FloatArray
    counts: IntArray


def _speed(nodes: Sequence[NodeCounts], offers: Sequence[Offer]) -> float:
    """Return the mean throughput of nodes, relative to the slowest type on offer; 1 of none."""
    number = sum(has.all for has in nodes)
    return sum(has.all * offer.throughput for has, offer in zip(nodes, offers, strict=True)) / number if number else 1.0


def backtest_zones(
    policies: Sequence[SpotPolicy], jobs: Sequence[SpotJob], traces: Sequence[OfferTrace], starts: Sequence[int],
    forecasts: ForecastProvider, *, transfer: float = 0.0, egress: float = 0.0, guarded: bool = True,
    preemption_cost: float = 0.0,
) -> list[ZoneLedger]:  # fmt: skip
    """Play policies through the recordings of several offers, from each job's first interval to its deadline.

    A policy sees the market of all offers together (:func:`.offer_trace.any_of`), and which of its nodes stand. Each
    launch costs time, also one that only replaces a node of another zone.

    Args:
        policies: The policies, each playing for itself.
        jobs: The jobs. Each launch counts as one in another region, with the transfer of the checkpoint, for the
            guarantee of the safety net.
        traces: Recordings that begin at the same time and have intervals of one length.
        starts: Interval in which each job begins.
        forecasts: Forecasts of the market of all offers together.
        transfer: Intervals of a launch that it saves to stay in the region.
        egress: Money for moving the checkpoint to another region.
        guarded: Whether the safety net guards deadlines.
        preemption_cost: Cost of a preemption, a launch included, in intervals at full throughput.

    Returns:
        A ledger for each policy.

    Raises:
        ValueError: If the recordings or jobs do not go together, or a transfer takes longer than a launch with it.
    """
    batch = JobBatch(jobs, any_of(traces), starts)
    for name, cost in (("transfer", transfer), ("egress", egress)):
        if not 0 <= cost < np.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {cost}")
    if transfer > batch.launch.min() + EXACT:
        raise ValueError(f"transfer must be at most the launch that it is part of, {batch.launch.min():g} intervals, "
                         f"got {transfer:g}")  # fmt: skip
    playback = _ZonePlayback(batch, traces, len(policies), guarded, preemption_cost, transfer, egress)
    play_all(playback, policies, forecasts)
    ledger = playback.zone_ledger()
    return [ledger.of(slice(at, at + len(batch))) for at in range(0, len(policies) * len(batch), len(batch))]


class _ZonePlayback(Playback):
    """A playback in which each node is of an offer."""

    def __init__(
        self, batch: JobBatch, traces: Sequence[OfferTrace], policy_count: int, guarded: bool, preemption_cost: float,
        transfer: float, egress: float,
    ) -> None:  # fmt: skip
        super().__init__(batch, policy_count, (0, 0), guarded, preemption_cost)
        rows = len(self.rows)
        self.traces, self.transfer, self.egress = traces, transfer, egress
        self.counts = np.zeros((rows, batch.intervals, len(traces), 2), np.int64)
        self.moves, self.egress_paid = np.zeros(rows, np.int64), np.zeros(rows)
        self.standing = [[NOTHING] * len(traces) for _ in range(rows)]
        # Places of each job's last nodes: its checkpoint is in the regions of these offers.
        self.homes = [frozenset[int]() for _ in range(rows)]
        self._offers: dict[int, list[Offer]] = {}
        self._stays: dict[tuple[int, int, int], float] = {}

    def lose(self, interval: int) -> None:
        cost = np.maximum(self.preemption_cost - self.rows.launch, 0.0) * self.rows.fastest
        for row, stand in enumerate(self.standing):
            if interval >= self.rows.deadline[row] or self.done[row] >= self.rows.work[row] - EXACT:
                continue
            offers = self._at(row, interval)
            left = [NodeCounts(min(has.spot, offer.available), has.on_demand)
                    for has, offer in zip(stand, offers, strict=True)]  # fmt: skip
            if left != stand:
                self.standing[row] = left
                self.has[0, row] = sum(has.spot for has in left)
                self.done[row] = max(self.done[row] - cost[row], 0.0)
                # The remaining ones restart without them.
                self.launching[row] = max(self.launching[row], self.rows.shrink_time[row])

    def settle(self, interval: int, chosen: IntArray, net: SafetyNet) -> Settled:
        rows, may_move = self.rows, self._may_move(chosen, net)
        wait, throughput = net.change.wait(*chosen), throughput_of(rows, chosen.sum(0))
        had = throughput_of(rows, np.minimum(self.has.sum(0), rows.max_nodes))
        paid, before = np.zeros((2, len(rows)))
        for row, stand in enumerate(self.standing):
            wanted = NodeCounts(*chosen[:, row].tolist())
            if not wanted.all:
                self.standing[row] = [NOTHING] * len(self.traces)
                continue
            offers, homes = self._at(row, interval), self.homes[row]
            left = min((rows.work[row] - self.done[row]) / throughput[row], float(rows.deadline[row] - interval))
            cost = MoveCost(rows.launch[row] - self.transfer, self.transfer, self.egress,
                            max(self.preemption_cost - rows.launch[row], 0.0))  # fmt: skip
            stays = [self._stay(row, interval, at, wanted.spot) for at in range(len(offers))]
            regions = {self.traces[at].at(0).region for at in homes}
            nodes = choose(offers, stays, stand, wanted, regions, cost, left, may_move=bool(may_move[row]))
            launched = [at for at, (has, new) in enumerate(zip(stand, nodes, strict=True)) if new != new.minimum(has)]
            abroad = bool(regions) and any(offers[at].region not in regions for at in launched)
            throughput[row] *= _speed(nodes, offers)
            had[row] *= _speed(stand, offers)
            if launched:
                wait[row] = rows.launch[row] - self.transfer * (not abroad and self._is_sooner(row, throughput, had))
                before[row] = self._trains_on(row, wait[row]) * had[row]
            self.moves[row] += bool(homes) and not homes.issuperset(launched)
            self.egress_paid[row] += abroad * self.egress
            ends = self._ends(row, wait[row], throughput[row], before[row], had[row])
            paid[row] = abroad * self.egress + self._bill(row, stand, nodes, offers, ends, wait[row], bool(launched))
            self.standing[row], self.counts[row, interval] = nodes, nodes
            self.homes[row] = frozenset(at for at, has in enumerate(nodes) if has.all)
        return Settled(wait, throughput, before, paid)

    def _overlap(self, row: int, launch: float) -> float:
        """Return the intervals for which the nodes that a job had stay while others are launched."""
        rows = self.rows
        if not rows.overlap[row] or self.has[:, row].sum() < rows.min_nodes[row]:
            return 0.0
        hand_over = self.batch.jobs[row % self.jobs].hand_over_time or 0.0
        return float(min(max(launch - hand_over, 0.0), 1.0))

    def _is_sooner(self, row: int, throughput: FloatArray, had: FloatArray) -> bool:
        """Return whether a launch without a transfer gives no less work in its interval than the net counts on.

        The net has the job train on for as long as the transfer would take.
        """
        rows = self.rows
        return not rows.overlap[row] or bool(throughput[row] >= had[row] and rows.launch[row] <= 1.0)

    def _trains_on(self, row: int, launch: float) -> float:
        """Return the intervals for which a job trains on them: once they have started themselves."""
        return max(self._overlap(row, launch) - float(self.launching[row]), 0.0)

    def _ends(self, row: int, wait: float, throughput: float, before: float, had: float) -> float:
        """Return the fraction of an interval for which a job's nodes are billed: where it counts, to the job's end."""
        left = self.rows.work[row] - self.done[row]
        if not self.rows.by_second[row] or before + max(1.0 - wait, 0.0) * throughput < left - EXACT:
            return 1.0
        on_old = self.launching[row] + left / max(had, EXACT)
        return float(np.clip(on_old if before >= left - EXACT else wait + (left - before) / throughput, 0.0, 1.0))

    def _bill(
        self, row: int, stand: Sequence[NodeCounts], nodes: Sequence[NodeCounts], offers: Sequence[Offer], ends: float,
        launch: float, launched: bool,
    ) -> float:  # fmt: skip
        """Return the cost of an interval, as :meth:`.changeover.Changeover.bill` has it in one zone."""
        rows, bill = self.rows, 0.0
        stays = self._overlap(row, launch) if launched else 0.0
        stays = min(ends, stays) if rows.by_second[row] else float(stays > 0)
        for had, has, offer in zip(stand, nodes, offers, strict=True):
            new, surplus = (
                NodeCounts(*(max(n, 0) for n in one.minus(other))) for one, other in ((has, had), (had, has))
            )
            bill += has.cost(offer.price, offer.on_demand) * ends + surplus.cost(offer.price, offer.on_demand) * stays
            bill += new.cost(offer.price, offer.on_demand) * max(float(rows.minimum_charge[row]) - ends, 0.0)
        return bill

    def zone_ledger(self) -> ZoneLedger:
        """Return the ledger of all rows."""
        base = self.ledger()
        return ZoneLedger(base.spot, base.on_demand, base.part, base.progress, base.paid, base.late, base.cost,
                          base.utility, self.moves, self.egress_paid, self.counts)  # fmt: skip

    def _may_move(self, chosen: IntArray, net: SafetyNet) -> BoolArray:
        """Return whether each job has time for a launch that the safety net does not know of."""
        if not self.guarded:
            return np.ones(len(self.rows), np.bool_)
        spare: BoolArray = net.slack(*chosen) - self.rows.launch * self.rows.fastest >= net.work_at_risk(chosen[0])
        return spare

    def _at(self, row: int, interval: int) -> list[Offer]:
        at = int(self.rows.starts[row]) + interval
        if at not in self._offers:
            self._offers[at] = [trace.at(at) for trace in self.traces]
        return self._offers[at]

    def _stay(self, row: int, interval: int, trace: int, wanted: int) -> float:
        """Return the expected stay of spot nodes of an offer: of as many of the wanted ones as there are."""
        at = int(self.rows.starts[row]) + interval
        nodes = min(wanted, self._offers[at][trace].available)
        if not nodes:
            return 1.0
        key = at, trace, nodes
        if key not in self._stays:
            self._stays[key] = expected_stay(self.traces[trace].market.available[: at + 1], nodes)
        return self._stays[key]
