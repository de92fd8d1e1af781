"""What each job cost on a market, and what was on offer, read from a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_core.core.answers import End, Grant, Verdict
from lightning_core.core.events import Tick
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.history.own_time import OwnTime
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesSeen, Quoted
from lightning_core.parts.market.market_history import MarketHistory, Money
from lightning_core.parts.market.market_ledger import read_ledger
from lightning_core.parts.market.market_tables import money_by_job, offers
from lightning_core.parts.market.offers import Offer, PlacedNodes
from lightning_core.report.page import page
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from tests.parts.market.test_simulated_market import drawn, elastic, simulated


def holding(market: MarketHistory, name: str, *devices: int) -> JobHistory:
    """A job of a market that holds devices."""
    job = JobHistory.of(Job(name, 9.0, BatchTarget(1)), 0.0, 1, None)
    hold(market, job, *devices)
    return job


def hold(market: MarketHistory, job: JobHistory, *devices: int) -> None:
    share = 1.0 if devices else 0.0
    job.answer(Grant(job.name, job.version + 1, share, devices, Reason("submitted")), 0.0)
    market.hold(job)


def test_a_node_that_two_jobs_use_at_once_is_paid_once_and_by_the_work_of_each() -> None:
    market = MarketHistory(100.0)
    market.take(Quoted(0.5, 4, 1.0), 0.0)
    market.take(NodesSeen(("a",), ()), 0.0)
    pair, own = [JobHistory.of(Job(name, 9.0, BatchTarget(1)), 0.0, 1, None) for name in "ab"], OwnTime()
    for job, share, pace in zip(pair, (1.0, 0.0), (0.9, 0.6), strict=True):
        job.answer(Grant(job.name, 1, share, (0,), Reason("submitted"), beside=1, pace=pace), 0.0)
        own.note(job)
    for job in own.divide(0.0):
        market.hold(job)
    market.take(Tick(), 50.0)
    assert [market.jobs[job].spot for job in pair] == pytest.approx([0.6 * 0.25, 0.4 * 0.25])
    assert market.overlap.all == pytest.approx(0.0)


def row(number: int, cost: float) -> IntervalEnded:
    return IntervalEnded(number, 0.5, 4, 2, 1, 0.0, 3.0, cost, 20, 1, 0, 0)


def test_each_second_of_the_nodes_that_are_up_is_split_over_the_devices_held() -> None:
    market = MarketHistory(100.0)
    market.take(Quoted(0.5, 4, 1.0), 0.0)
    market.take(NodesSeen(("a", "b"), (), billed_on_demand=("c",)), 0.0)
    one = holding(market, "one", 0)
    two = holding(market, "two", 1)
    market.take(NodesSeen(("a", "b"), ("c",)), 40.0)  # the third was starting until now
    hold(market, two, 1, 2)
    market.take(Quoted(0.7, 4, 1.0), 60.0)
    market.take(NodesSeen(("a",), ("c",)), 70.0)
    hold(market, one)
    market.take(Tick(), 80.0)
    # 0 to 40 s: a spot node each; to 60 s: thirds; to 70 s at the higher price; to 80 s all for the second one.
    assert market.jobs[one].spot == pytest.approx((40 * 0.5 + 20 * 2 / 3 * 0.5 + 10 * 2 / 3 * 0.7) / 100)
    assert market.jobs[one].on_demand == pytest.approx((20 / 3 + 10 / 3) / 100)
    assert market.jobs[two].spot == pytest.approx((40 * 0.5 + 20 * 4 / 3 * 0.5 + 10 * 4 / 3 * 0.7 + 10 * 0.7) / 100)
    assert market.jobs[two].on_demand == pytest.approx((20 * 2 / 3 + 10 * 2 / 3 + 10) / 100)
    assert (market.overlap.spot, market.overlap.on_demand) == pytest.approx((0.0, 0.4), abs=1e-12)
    assert market.in_progress == pytest.approx(market.all)
    market.take(NodesSeen(), 80.0)
    job_ends = End("two", 9, Verdict.MET, Reason("target_met", (1.0,)))
    two.answer(job_ends, 80.0)
    market.hold(two)
    paid = market.all
    market.take(Tick(), 1e6)
    assert market.all == paid


def test_jobs_that_hold_more_devices_than_nodes_are_up_pay_for_those_that_leave() -> None:
    market = MarketHistory(100.0)
    market.take(Quoted(0.5, 4, 1.0), 0.0)
    job = holding(market, "job", 0, 1, 2)
    market.take(NodesSeen(("a",), (), billed_spot=("b",)), 0.0)
    market.take(Tick(), 50.0)
    assert market.jobs[job].spot == pytest.approx(2 * 0.25)
    assert market.overlap == Money()


def test_minimum_charges_and_moves_are_of_no_job() -> None:
    market = MarketHistory(100.0, minimum_charge=60.0)
    market.take(Quoted(0.5, 4, 1.0), 0.0)
    job = holding(market, "job", 0)
    market.take(NodesSeen((), ("a",)), 0.0)
    market.take(NodesSeen(), 45.0)
    assert market.jobs[job].on_demand == pytest.approx(0.45)
    assert market.minimum_charges == pytest.approx(0.15)
    assert market.moves == 0.0
    market.answer(row(0, 0.65), 100.0)
    assert market.moves == pytest.approx(0.05)
    assert market.in_progress == 0.0
    assert market.all == pytest.approx(0.65)


def test_the_money_of_all_jobs_is_together_the_ledger_s(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    jobs = elastic("a", 2, 4), elastic("b", 1.5, 6, 600.0), elastic("c", 1, 12)
    simulated(drawn(3), *jobs, policy="uniform-progress", path=path, minimum_charge=1500.0)
    with Journal.open(path, read_only=True) as journal:
        history = History.read(journal)
    market = history.parts["market"]
    assert market is not None
    assert market.all == pytest.approx(read_ledger(path).cost, rel=1e-12)
    split = [money.all for money in (*market.jobs.values(), market.overlap)]
    assert sum(split) + market.minimum_charges + market.moves == pytest.approx(market.all, rel=1e-9)
    assert {job.name: money.all > 0.5 for job, money in market.jobs.items()} == dict.fromkeys("abc", True)
    assert market.overlap.all > 0.1
    html = page(history)
    for words in ("Money by job", "beside the jobs", "On offer at the end", f"{market.all:.4g}"):
        assert words in html
    assert "Money by job" not in page(History(Settings()))


def test_a_quote_that_changes_says_since_when_and_what_it_was() -> None:
    history = History(Settings(controllers={"market": {"interval": 100.0}}))
    market = history.parts["market"]
    assert market is not None
    assert "Nothing has been quoted yet" in offers(history, 0.0)
    assert "Nothing has been paid yet" in money_by_job(history)
    first = Offer("z-1a", "<big>", 0.5, 3), Offer("z-2b", "", 0.4, 1, throughput=2.0)
    market.take(Quoted.of(first), 0.0)
    market.take(Quoted.of(first), 50.0)
    assert [(quote.since, quote.before) for quote in market.quotes.values()] == [(0.0, None)] * 2
    market.take(Quoted.of([Offer("z-1a", "<big>", 0.6, 2)]), 60.0)
    html = offers(history, 120.0)
    assert market.quotes["<big>@z-1a"].before == (0.5, 3)
    assert not market.quotes["z-2b"].stands
    for words in ("60.0s ago; it was 0.5, with 3 on offer", "no longer quoted", "&lt;big&gt;", "throughput"):
        assert words in html, words
    market.take(Quoted.of(first), 90.0)
    assert market.quotes["z-2b"].stands
    assert market.quotes["z-2b"].since == 90.0


def test_offers_that_are_no_longer_quoted_are_forgotten_in_time() -> None:
    market = MarketHistory(100.0)
    for k in range(300):
        market.take(Quoted.of([Offer(f"zone {k}")]), float(k))
    assert len(market.quotes) == 200
    assert market.quotes["zone 299"].stands


def test_a_market_of_one_price_has_one_offer() -> None:
    history = History(Settings(controllers={"market": {}}))
    history.parts["market"].take(Quoted(0.5, 2), 0.0)
    html = offers(history, 30.0)
    assert "any" in html
    assert "30.0s ago" in html
    assert "type" not in html.replace('type="', "")
    assert offers(History(Settings()), 0.0) == money_by_job(History(Settings())) == ""


def test_many_jobs_are_one_row_beyond_the_most_expensive() -> None:
    history = History(Settings(controllers={"market": {"interval": 100.0}}))
    market = history.parts["market"]
    assert market is not None
    market.take(Quoted(0.5, 2), 0.0)
    market.take(NodesSeen(tuple(map(str, range(130))), (), places=(PlacedNodes("z", "", 130),)), 0.0)
    for k in range(130):
        job = holding(market, f"job {k}", k)
        history.jobs.append(job)
        history._newest[job.name] = job
    market.take(Tick(), 10.0)
    html = money_by_job(history)
    assert "30 other jobs" in html
    assert html.count("<tr>") == 1 + 100 + 1 + 1 + 1
