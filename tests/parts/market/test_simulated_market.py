"""A market in virtual time: nodes come and go as recorded, and the controller that ships rents them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.core.control import part_objects
from lightning_core.core.events import DevicesUnavailable, Event, ExitCause, Report, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market import forecasters
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesSeen, NodesWanted, Quoted
from lightning_core.parts.market.forecasters import LastValue, LiveMarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import SPOT_POLICIES
from lightning_core.parts.market.traces import shipped_trace
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.examples import day_and_night, examples
from tests.parts.market.messages import seen

HOUR, INTERVAL, LEAVE = 3600.0, 1800.0, 10.0
SIZES = (1, 2, 4)
DELAYS = Delays(start=5.0, release=3.0, report_every=30.0)


def elastic(name: str, device_hours: float, deadline: float, submitted: float = 0.0, **terms: Any) -> SimulatedJob:
    """Return a job that does a batch a second on each of up to four devices; its deadline is in hours."""
    work = int(device_hours * HOUR)
    cells = [*range(60, work, 60), work]
    usual: dict[str, Any] = {"max_devices": SIZES[-1], "sizes": SIZES, "can": frozenset(Capability)}
    job = Job(name, deadline * HOUR, BatchTarget(work), save_every=300.0, **(usual | terms))
    return SimulatedJob(job, cells, [1.0 / cell for cell in cells], float(SIZES[-1]), submitted, [*map(float, SIZES)])


def drawn(seed: int, intervals: int = 48, most: int = 6) -> Market:
    """Return a day of the shipped recording, with fewer nodes, so that some are preempted."""
    draw, market = np.random.default_rng(seed), shipped_trace()
    at = int(draw.integers(0, len(market) - intervals))
    available = np.minimum(market.available[at : at + intervals], draw.integers(0, most + 1, intervals))
    return replace(market, price=market.price[at : at + intervals], available=available)


def flat(available: Sequence[int], price: float = 0.4) -> Market:
    return Market(np.full(len(available), price), np.array(available), seconds=INTERVAL)


class Watched(Simulation):
    """A simulation whose events are kept."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self.told: list[tuple[float, Any]] = []
        self.wants: list[tuple[float, int, int]] = []
        super().__init__(*arguments, **more)

    def _handle(self, event: Event) -> None:
        self.told.append((self._queue.now, seen(event)))
        super()._handle(event)

    def _hear(self, answers: Any) -> None:
        self.wants += [
            (self._queue.now, one.spot, one.on_demand) for one in part_objects(answers) if isinstance(one, NodesWanted)
        ]
        super()._hear(answers)

    def exits(self, *causes: ExitCause) -> list[WorkerExited]:
        return [event for _, event in self.told if isinstance(event, WorkerExited) and event.cause in causes]


def simulated(
    market: Market, *jobs: SimulatedJob, policy: str = "max-spot", path: Path | None = None, start_up: float = 60.0,
    notice: float = 0.0, warm_up: float = 0.0, heard: float = 0.0, delays: Delays = DELAYS,
    until: float = math.inf, **arguments: Any,
) -> tuple[Watched, Outcome, VirtualCloud]:  # fmt: skip
    cloud = VirtualCloud(market, start_up, notice, LEAVE, warm_up, heard)
    args = {"interval": market.seconds, "policy": policy, **arguments}
    terms = Settings("edf", estimator="log_time", period=60.0, devices=2 * sum(one.job.max_devices for one in jobs),
                     controllers={"market": args})  # fmt: skip
    simulation = Watched(terms, jobs, delays, path, check=True, nodes=cloud)
    outcome = simulation.run(until)
    return simulation, outcome, cloud


def invoiced(cloud: VirtualCloud, minimum_charge: float = 0.0) -> float:
    """Return what the cloud bills by its own record: the seconds of each node at the price of each, and minimums."""
    total, market = 0.0, cloud.recording
    for lease in cloud.invoice:
        times = [lease.launched, *(k * market.seconds for k in range(len(cloud.market) + 100)), lease.until]
        times = sorted(time for time in times if lease.launched <= time <= lease.until)
        bought = [(time, until - time) for time, until in pairwise(times)]
        bought.append((lease.until, max(minimum_charge - (lease.until - lease.launched), 0.0)))
        spot = lease.kind == "spot"
        total += sum((market.price[int(at // market.seconds)] if spot else market.on_demand) * seconds
                     for at, seconds in bought) / market.seconds  # fmt: skip
    return float(total)


def check_bill(simulation: Watched, outcome: Outcome, cloud: VirtualCloud, *, known: bool = True) -> None:
    """Check that no node outlives what was wanted, or what was on offer, and that the ledger is the invoice.

    The pool knows when nodes end, unless they go without notice and it hears of it later.
    """
    assert outcome.nodes.cost == pytest.approx(sum(row.cost for row in outcome.nodes.rows))
    assert (
        outcome.nodes.cost == pytest.approx(invoiced(cloud), rel=1e-9)
        if known
        else outcome.nodes.cost > invoiced(cloud)
    )
    assert [row.number for row in outcome.nodes.rows] == sorted({row.number for row in outcome.nodes.rows})
    invoice = cloud.invoice
    assert all(lease.until < math.inf for lease in invoice)  # all are given back
    last = max(job.finished_at or 0.0 for job in outcome.jobs)
    assert max(lease.until for lease in invoice) <= last + LEAVE
    wants = [*simulation.wants, (math.inf, 0, 0)]
    for (since, *counts), (until, *_) in pairwise(wants):
        at = since + LEAVE  # from when on those that are too many are gone
        while at < min(until, last):
            for kind, number in zip(("spot", "on-demand"), counts, strict=True):
                there = [one for one in invoice if one.kind == kind and one.since <= at < one.until]
                assert len(there) <= number
            at += INTERVAL / 7


@pytest.mark.promise("R26", "R28")
@pytest.mark.parametrize(("policy", "seed"), [("max-spot", 1), ("ahanp", 3), ("chain", 4)])
@pytest.mark.nightly
def test_a_day_on_a_recorded_market_meets_all_deadlines_and_replays(policy: str, seed: int, tmp_path: Path) -> None:
    """Two jobs, of which one comes later, on spot nodes that go without notice."""
    jobs = elastic("a", 24, 11), elastic("b", 16, 9, submitted=7000.0)
    path = tmp_path / "journal.db"
    simulation, outcome, cloud = simulated(drawn(seed), *jobs, policy=policy, path=path)
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET, Verdict.MET]
    check_bill(simulation, outcome, cloud)
    assert outcome.nodes.references is not None
    with Journal.open(path, read_only=True) as journal:
        again, digest = replay(journal, whole=True), journal.digest
    assert again.digest == digest
    assert again.scheduler.state() == simulation._scheduler.state()
    other = tmp_path / "again.db"
    simulated(drawn(seed), *jobs, policy=policy, path=other)
    with Journal.open(other, read_only=True) as journal:
        assert journal.digest == digest


def test_a_pool_looks_ahead_by_arima_and_its_journal_replays_whatever_a_fit_gives_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    for kept in (forecasters._fitted, forecasters._continued):  # of the tests before it
        kept.cache_clear()
    _, outcome, _ = simulated(
        drawn(1), elastic("a", 12, 6), policy="ahap:omega=5", forecaster="arima:window=30,refit=6", path=path
    )
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET]
    assert forecasters._fitted.cache_info().misses > 0
    forecasters._continued.cache_clear()
    monkeypatch.setattr(forecasters, "_fitted", lambda *_: Drifting())
    with Journal.open(path, read_only=True) as journal:
        assert replay(journal, whole=True).digest == journal.digest
    forecasters._continued.cache_clear()


class Drifting:
    """A fit that says something else."""

    def append(self, values: FloatArray) -> Drifting:
        return self

    def forecast(self, horizon: int) -> FloatArray:
        return np.zeros(horizon)


def test_at_one_instant_nodes_go_first_then_the_market_is_quoted_and_decides() -> None:
    simulation, _, _ = simulated(flat([4, 4, 1, 4]), elastic("a", 6, 4), initial_throughput=1.0)
    quotes = [(now, event.interval) for now, event in simulation.told if isinstance(event, Quoted)]
    assert quotes[:4] == [(0.0, 0), (0.0, 1), (INTERVAL, 2), (2 * INTERVAL, 3)]
    at = [event for now, event in simulation.told if now == 2 * INTERVAL]
    kinds = (NodesSeen, DevicesUnavailable, Quoted, WorkerExited)
    first = [next(k for k, event in enumerate(at) if isinstance(event, kind)) for kind in kinds]
    assert first == sorted(first)
    assert len(at[first[0]].spot) == 1
    assert simulation.told[0][1] == DevicesUnavailable(tuple(range(8)), simulation.told[0][1].detail)


@pytest.mark.parametrize("notice", [0.0, 30.0])
def test_batches_are_lost_only_without_a_notice(notice: float) -> None:
    market = flat([4, 4, 4, 0, 0, 4, 2, 4, 4, 4, 4, 4])
    simulation, outcome, cloud = simulated(market, elastic("a", 12, 6), notice=notice, initial_throughput=1.0)
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET]
    lost = sum(row.lost for row in outcome.nodes.rows)
    exits = simulation.exits(ExitCause.LOST, ExitCause.PREEMPTED)
    gone = [lease for lease in cloud.invoice if lease.kind == "spot" and lease.until // INTERVAL == 3]
    assert len(gone) == 4
    if notice:
        assert (lost, exits) == (0, [])
        assert {lease.until for lease in gone} == {3 * INTERVAL + DELAYS.release}  # as soon as its job has left
    else:
        assert lost > 0
        assert {event.cause for event in exits} == {ExitCause.LOST}  # no one had said that it is a preemption
        assert {lease.until for lease in gone} == {3 * INTERVAL}
    check_bill(simulation, outcome, cloud)


def test_a_job_that_does_not_leave_within_its_notice_is_preempted() -> None:
    slow = replace(DELAYS, release=40.0)
    simulation, outcome, cloud = simulated(
        flat([4, 0, 4, 4, 4, 4]), elastic("a", 6, 3), notice=30.0, delays=slow, initial_throughput=1.0
    )
    [event, *_] = simulation.exits(ExitCause.PREEMPTED)
    assert (event.detail, sum(row.lost for row in outcome.nodes.rows) > 0) == ("its node was preempted", True)
    assert {lease.until for lease in cloud.invoice if lease.since == 60.0} == {INTERVAL + 30.0}


def test_a_node_of_a_cloud_that_lets_it_stay_is_billed_for_all_of_its_time() -> None:
    cloud = VirtualCloud(flat([4] * 6), leave=LEAVE)
    cloud.early = False
    terms = {"interval": INTERVAL, "policy": "max-spot", "initial_throughput": 1.0}
    outcome = Simulation(Settings("edf", devices=8, controllers={"market": terms}), [elastic("a", 2, 3)], DELAYS,
                         nodes=cloud).run()  # fmt: skip
    [until] = {lease.until for lease in cloud.invoice}
    finished = outcome.jobs[0].finished_at or 0.0
    assert until == pytest.approx(finished + LEAVE)
    assert outcome.nodes.cost == pytest.approx(invoiced(cloud), rel=1e-9)


def test_nodes_are_seen_before_there_is_a_worker_on_them() -> None:
    simulation, outcome, _ = simulated(flat([4, 4, 4, 4]), elastic("a", 6, 3), warm_up=90.0, initial_throughput=1.0)
    seen = [(now, len(event.spot), event.warm) for now, event in simulation.told if isinstance(event, NodesSeen)]
    assert seen[:3] == [(0.0, 0, 0), (60.0, 4, 0), (150.0, 4, 4)]  # first they are billed, and start
    trained = [now for now, event in simulation.told if isinstance(event, Report) and event.batches]
    assert trained[0] == pytest.approx(150.0 + DELAYS.start + DELAYS.report_every, abs=DELAYS.report_every)
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET]


@pytest.mark.parametrize("notice", [0.0, 30.0])
def test_nodes_that_go_are_counted_on_until_the_pool_hears_of_it(notice: float) -> None:
    """Without notice their job trains no more by then, and its worker is missed at the same time."""
    simulation, outcome, cloud = simulated(
        flat([4, 0, 4, 4, 4, 4]), elastic("a", 6, 3), notice=notice, heard=7.0, initial_throughput=1.0
    )
    counts = [(now, len(event.spot)) for now, event in simulation.told if isinstance(event, NodesSeen)]
    assert next(pair for pair in counts if pair[0] >= INTERVAL) == (INTERVAL + 7.0, 0)
    gone = {lease.until for lease in cloud.invoice if lease.since == 60.0}
    lost = simulation.exits(ExitCause.LOST, ExitCause.PREEMPTED)
    if notice:
        assert (gone, lost) == ({INTERVAL + 7.0 + DELAYS.release}, [])
    else:
        assert (gone, [event.cause for event in lost]) == ({INTERVAL}, [ExitCause.LOST])
        assert next(now for now, event in simulation.told if event is lost[0]) == INTERVAL + 7.0
        reported = [now for now, event in simulation.told if isinstance(event, Report) and event.incarnation == 1]
        assert max(reported) <= INTERVAL
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET]
    check_bill(simulation, outcome, cloud, known=notice > 0)


def test_a_worker_that_is_lost_while_it_starts_keeps_its_progress() -> None:
    """Its node goes a second before it would train, and it begins from where it was saved."""
    late = replace(DELAYS, start=INTERVAL - 59.0)
    simulation, outcome, _ = simulated(flat([4, 0, 4, 4]), elastic("a", 2, 12), delays=late, initial_throughput=1.0)
    assert [event.checkpoint for event in simulation.exits(ExitCause.LOST)] == [None]
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET]


def test_a_minimum_is_charged_for_nodes_that_end_before() -> None:
    """Of an hour, on nodes that are preempted after half of one, and on those that are given back when it is done."""
    market = flat([4, 0, 4, 4, 4, 4])
    _, outcome, cloud = simulated(market, elastic("a", 5, 3), initial_throughput=1.0, minimum_charge=HOUR)
    assert len({lease.until - lease.launched for lease in cloud.invoice}) > 1
    assert outcome.nodes.cost == pytest.approx(invoiced(cloud, HOUR), rel=1e-9)
    assert outcome.nodes.cost > 1.2 * invoiced(cloud)


NODES = st.lists(st.integers(0, 4), min_size=3, max_size=5)
SECONDS = st.sampled_from([0.0, 7.0, 400.0, 2500.0])


@pytest.mark.promise("R29")
@given(NODES, st.lists(st.floats(0.1, 1.5), min_size=8, max_size=8), SECONDS, SECONDS, st.sampled_from([0.0, 60.0]),
       st.sampled_from([0.0, 60.0, 4000.0]), st.sampled_from(["max-spot", "ahanp"]))  # fmt: skip
@settings(max_examples=examples(5), deadline=None)
def test_the_ledger_is_the_invoice(
    counts: list[int], prices: list[float], start_up: float, warm_up: float, notice: float, minimum: float, policy: str
) -> None:
    """Whatever nodes start slowly, overlap, are preempted or never come, and whatever prices do."""
    market = Market(np.array(prices[: len(counts)]), np.array(counts), seconds=INTERVAL)
    jobs = elastic("a", 1, 1.5), elastic("b", 1, 1, submitted=2000.0)
    _, outcome, cloud = simulated(
        market, *jobs, policy=policy, start_up=start_up, warm_up=warm_up, notice=notice, minimum_charge=minimum
    )
    assert outcome.nodes.cost == pytest.approx(invoiced(cloud, minimum), rel=1e-9)


@pytest.mark.promise("R27")
@pytest.mark.nightly
def test_a_budget_ends_the_renting_and_is_not_exceeded() -> None:
    job = elastic("a", 24, 11, on_miss=OnMiss.STOP)
    _, whole, _ = simulated(drawn(1), job)
    _, outcome, cloud = simulated(drawn(1), job, budget=9.0)
    assert whole.nodes.cost > 9.0
    assert outcome.nodes.cost <= 9.0
    assert [one.verdict for one in outcome.jobs] == [Verdict.MISSED]
    assert all(lease.until < math.inf for lease in cloud.invoice)
    paid = [row.number for row in outcome.nodes.rows if row.cost]
    assert max(lease.until for lease in cloud.invoice) <= (paid[-1] + 1) * INTERVAL + LEAVE


def test_a_late_job_that_is_held_gives_its_nodes_back() -> None:
    simulation, outcome, cloud = simulated(flat([2] * 6), elastic("a", 40, 1, on_miss=OnMiss.HOLD))
    assert [job.verdict for job in outcome.jobs] == [Verdict.MISSED]
    assert max(lease.until for lease in cloud.invoice) <= 3 * INTERVAL + LEAVE
    assert simulation.wants[-1][1:] == (0, 0)


def test_between_two_jobs_there_are_no_nodes() -> None:
    simulation, outcome, cloud = simulated(
        flat([4] * 40), elastic("a", 2, 3), elastic("b", 2, 3, submitted=9.3 * HOUR), initial_throughput=1.0
    )
    assert [job.verdict for job in outcome.jobs] == [Verdict.MET, Verdict.MET]
    first, second = (job.finished_at or 0.0 for job in outcome.jobs)
    assert not [one for one in cloud.invoice if one.since < 9.3 * HOUR and one.until > first + LEAVE]
    assert min(one.since for one in cloud.invoice if one.since > first) >= 9.3 * HOUR + 60.0
    assert second < 12.3 * HOUR
    assert 10 not in [row.number for row in outcome.nodes.rows if row.cost]
    check_bill(simulation, outcome, cloud)


@pytest.mark.parametrize(
    ("policy", "seed"), day_and_night(list(product(("max-spot", "chain", "ahap"), (5, 6))), [("chain", 5)])
)
def test_the_cost_is_close_to_that_of_the_backtest(policy: str, seed: int) -> None:
    """Within 10 %, for a job whose throughput is known and whose nodes are there within a minute; -4 % to +4 % here."""
    market, hours = drawn(seed, most=9), 24
    given = elastic("a", hours, 11, throughputs=tuple(map(float, SIZES)), sizes=SIZES)
    _, outcome, _ = simulated(market, given, policy=policy)
    table = (0.0, *(INTERVAL * size for size in (1, 2, 2, 4)))
    lag = 60.0 + DELAYS.start
    kept = 1 - lag / INTERVAL
    job = SpotJob(
        hours * HOUR, 22, 1, 4, table, min(kept, 0.9), 0.9, value=0.0, preemption_cost=(lag + 300.0) / INTERVAL
    )
    [ledger] = backtest([SPOT_POLICIES[policy]()], JobBatch([job], market, [0]), LiveMarketForecaster(LastValue()),
                        preemption_cost=0.1)  # fmt: skip
    assert outcome.nodes.cost == pytest.approx(float(ledger.cost[0]), rel=0.1)


def test_a_cloud_goes_with_a_market_and_serves_one_simulation() -> None:
    job, cloud = elastic("a", 1, 1), VirtualCloud(flat([1]))
    terms = Settings("edf", devices=8, controllers={"market": {"interval": INTERVAL, "policy": "max-spot"}})
    for wrong in ((terms, None), (Settings("edf"), cloud)):
        with pytest.raises(ValueError, match="nodes: must be given where the settings have a supply"):
            Simulation(wrong[0], [job], nodes=wrong[1])
    Simulation(terms, [job], nodes=cloud)
    with pytest.raises(ValueError, match="each simulation needs one of its own"):
        Simulation(terms, [job], nodes=cloud)
    with pytest.raises(ValueError, match="notice must be at least 0 seconds and finite, got -1"):
        VirtualCloud(flat([1]), notice=-1.0)


def test_rows_are_those_of_the_answers() -> None:
    simulation, outcome, _ = simulated(flat([4] * 6), elastic("a", 4, 3))
    assert all(isinstance(row, IntervalEnded) for row in outcome.nodes.rows)
    assert simulation._scheduler.describe_controllers()["market"]["spent"] == pytest.approx(outcome.nodes.cost)
