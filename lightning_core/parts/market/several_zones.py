"""``market backtest`` and ``market plan`` with several recordings: one plan over several zones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lightning_core.core.durations import format_duration
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import make_market_forecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_policies.paper_pool import make_pool
from lightning_core.parts.market.study import Study
from lightning_core.parts.market.zones.offer_trace import OfferTrace, any_of
from lightning_core.parts.market.zones.stays import expected_stay
from lightning_core.parts.market.zones.where import choose
from lightning_core.parts.market.zones.zone_backtest import ZoneLedger, backtest_zones
from lightning_core.view.tables import print_table
from lightning_core.view.text import clean


@dataclass(frozen=True, slots=True)
class Zones:
    """Recordings of several zones, and the job as it is planned in them.

    Args:
        traces: The recordings, of as many intervals.
        job: The job, whose launch is one in another region.
        transfer: Intervals of that for the transfer of its checkpoint.
        egress: Money for a transfer.
    """

    traces: list[OfferTrace]
    job: SpotJob
    transfer: float
    egress: float


def read_zones(study: Study) -> Zones:
    """Return the zones of a study, and print a summary.

    Raises:
        ValueError: If two recordings are of one zone, or the job cannot be read.
    """
    zones = [path.stem.partition("_")[0] for path in study.traces]
    if repeated := next((zone for zone in zones if zones.count(zone) > 1), ""):
        raise ValueError(f"trace: the name of each file, up to its first underscore, must be that of another zone, "
                         f"got {clean(repeated)!r} twice")  # fmt: skip
    markets = study.markets()
    length = min(map(len, markets))
    traces = [
        OfferTrace(replace(market, price=market.price[:length], available=market.available[:length]), zone)
        for market, zone in zip(markets, zones, strict=True)
    ]
    together = any_of(traces)
    job = study.job_on(together)
    several = len({trace.at(0).region for trace in traces}) > 1
    transfer = study.moves["transfer"] if several else 0.0
    print(f"{len(traces)} recordings, from the same time on: {length} intervals of {format_duration(together.seconds)}")
    rows = [
        [clean(trace.zone), clean(trace.at(0).region), f"{(trace.market.available > 0).mean():.0%}",
         f"{trace.market.price.mean():.3g}", f"{trace.market.on_demand:g}"]
        for trace in traces
    ]  # fmt: skip
    rows.append(["any of them", "", f"{(together.available > 0).mean():.0%}", f"{together.price.mean():.3g}",
                 f"{together.on_demand:g}"])  # fmt: skip
    print_table(["zone", "region", "with spot nodes", "price", "on-demand"], rows, "zones")
    return Zones(traces, replace(job, launch_time=job.launch + transfer), transfer,
                 study.moves["checkpoint"] * study.moves["egress"])  # fmt: skip


def print_zone_backtest(
    zones: Zones, texts: list[str], forecaster: str, starts: list[int]
) -> dict[str, dict[str, float | str]]:
    """Compare what policies cost in all zones, in the best one, and in all of them if moves were free.

    Args:
        zones: The zones, and the job.
        texts: Specs of the policies.
        forecaster: Spec of the forecaster.
        starts: Interval of each start.

    Returns:
        The figures of each policy.
    """
    together, job, policies = any_of(zones.traces), zones.job, make_pool(texts)
    forecasts = make_market_forecaster(forecaster, together.seconds)
    jobs, made, lost = [job] * len(starts), list(policies.values()), job.preemption_cost

    def play(traces: list[OfferTrace], transfer: float) -> list[ZoneLedger]:
        one = replace(job, launch_time=job.launch - zones.transfer + transfer)
        return backtest_zones(made, [one] * len(starts), traces, starts, forecasts, transfer=transfer,
                              egress=zones.egress, preemption_cost=lost)  # fmt: skip

    alone = [play([trace], 0.0) for trace in zones.traces]
    everywhere = play(zones.traces, zones.transfer)
    free = backtest(made, JobBatch(jobs, together, starts), forecasts, preemption_cost=lost)
    rows, body = [], dict[str, dict[str, float | str]]()
    for number, name in enumerate(policies):
        ledger = everywhere[number]
        costs = [float(one[number].cost.mean()) for one in alone]
        best = int(np.argmin(costs))
        body[name] = {
            "cost": float(ledger.cost.mean()), "on_time": float(ledger.on_time.mean()),
            "moves": float(ledger.moves.mean()), "egress": float(ledger.egress.mean()),
            "best_zone": zones.traces[best].zone, "best_zone_cost": costs[best],
            "free_moves_cost": float(free[number].cost.mean()),
        }  # fmt: skip
        rows.append([
            clean(name), f"{ledger.cost.mean():.4g}", f"{ledger.on_time.mean():.0%}", f"{ledger.moves.mean():.3g}",
            f"{ledger.egress.mean():.3g}", f"{costs[best]:.4g}", clean(zones.traces[best].zone),
            f"{free[number].cost.mean():.4g}",
        ])  # fmt: skip
    print_table(
        ["policy", "cost", "on time", "moves", "egress", "best zone alone", "which", "moves free"], rows,
        f"{len(starts)} starts in {len(zones.traces)} zones, forecast: {forecaster}",
    )  # fmt: skip
    return body


def print_where(zones: Zones, wanted: NodeCounts) -> None:
    """Print where the nodes of the first interval are, at the end of the recordings."""
    last = len(zones.traces[0].market) - 1
    offers = [trace.at(last) for trace in zones.traces]
    stays = [
        expected_stay(trace.market.available, min(wanted.spot, offer.available))
        if min(wanted.spot, offer.available) else 1.0
        for trace, offer in zip(zones.traces, offers, strict=True)
    ]  # fmt: skip
    nodes = choose(offers, stays, [NodeCounts()] * len(offers), wanted, left=float(zones.job.deadline))
    rows = [
        [clean(offer.zone), f"{offer.available}", f"{offer.price:.3f}", f"{stay:.3g}" if offer.available else "",
         f"{has.spot}", f"{has.on_demand}"]
        for offer, stay, has in zip(offers, stays, nodes, strict=True)
    ]  # fmt: skip
    print_table(["zone", "on offer", "price", "expected to stay", "spot", "on-demand"], rows, "where to hold them now")
