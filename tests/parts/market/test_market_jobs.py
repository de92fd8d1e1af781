"""A pool with a market: a spot policy for each job, selected by the feedback of ended jobs."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.core.answers import JobStatus, Verdict
from lightning_core.core.commands import Cancel
from lightning_core.core.events import Cell, Horizon, PartEvent, Report, Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.parts.market.cloud_events import SelectorFeedback
from lightning_core.parts.market.counterfactual import (
    CounterfactualReplay,
    ReplayableJob,
    awaiting_feedback,
    batches_left,
    coarsen,
)
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.parts.market.online.throughput_table import throughput_table
from lightning_core.parts.market.spot_job import SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.virtual_cloud import VirtualCloud
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.ray_actor import SchedulerActor
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.waiting import until_async

POLICIES = ["chain", "max-spot", "on-demand"]
# An interval of ten seconds, and plenty of cheap spot instances but for now and then.
CHEAP = "available,price\n" + "4,0.3\n3,0.3\n0,0.3\n4,0.35\n" * 50


def on_market(terms: dict[str, Any]) -> Settings:
    plans = {"interval": terms.get("interval") or 1800.0, "terms": terms}
    return Settings(policy="edf", controllers={"market": plans})


def pool(tmp_path: Path, **more: object) -> Settings:
    path = tmp_path / "cheap.csv"
    path.write_text(CHEAP)
    return on_market({"trace": str(path), "interval": 10.0, "policies": POLICIES, **more})


def job(name: str, deadline: float = 50.0, batches: int = 200, target: Target | None = None) -> Job:
    can = frozenset({Capability.RELEASE, Capability.RESIZE})
    wanted = target or BatchTarget(batches)
    return Job(name, deadline, wanted, can=can, max_devices=2, sizes=(1, 2), throughputs=(10.0, 18.0))


def launched(name: str) -> Job:
    """Return a job of a hundred batches on one device."""
    return Job(name, 50.0, BatchTarget(100), can=frozenset({Capability.RELEASE, Capability.RESIZE}))


def policy_of(status: JobStatus) -> Reason:
    return status.notes["market"]


def ended(scheduler: Scheduler, name: str, now: float, batches: int = 200) -> None:
    scheduler.handle(Report(name, 1, number=1, version=1, batches=batches, busy=8.0), now)


def test_each_job_gets_a_policy_with_its_probability(tmp_path: Path) -> None:
    scheduler = Scheduler(pool(tmp_path))
    scheduler.handle(Submit((job("a"), job("b"))), 0.0)
    first, second = scheduler.status()
    assert policy_of(first).numbers == policy_of(second).numbers  # nothing has been learned in between
    assert policy_of(first).text in POLICIES
    assert str(policy_of(first)) == f"{policy_of(first).text}, with 33% of the weight after feedback from 0 jobs"
    assert not any(status.notes for status in _without_a_market().status())


def _without_a_market() -> Scheduler:
    scheduler = Scheduler(Settings())
    scheduler.handle(Submit((job("a"),)), 0.0)
    return scheduler


def test_the_next_job_gets_the_policy_with_the_best_feedback(tmp_path: Path) -> None:
    scheduler = Scheduler(pool(tmp_path))
    for number in range(8):
        scheduler.handle(Submit((job(f"j{number}"),)), 10.0 * number)
        ended(scheduler, f"j{number}", 10.0 * number + 5)
        scheduler.handle(PartEvent.of(SelectorFeedback(f"j{number}", (0.9, 0.5, 0.1))), 10.0 * number + 6)
        scheduler.check()
    scheduler.handle(Submit((job("next"),)), 100.0)
    spot = policy_of(scheduler.status()[-1])
    assert (spot.text, spot.numbers[1]) == ("chain", 8)
    assert spot.numbers[0] > 0.9


def test_arima_is_refused_before_the_start_without_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.arima.model", None)
    with pytest.raises(ValueError, match="forecasts by ARIMA need statsmodels: pip install"):
        MarketTerms(forecaster="arima")


def test_the_published_step_moves_the_weights_by_the_number_of_jobs(tmp_path: Path) -> None:
    """Eta is sqrt(2 ln M / K): with M = 3 policies and K = 8 jobs 0.524, so a lead of 1 weighs exp(0.524) times."""
    scheduler = Scheduler(pool(tmp_path, step="paper", jobs=8))
    scheduler.handle(Submit((job("a"),)), 0.0)
    ended(scheduler, "a", 5.0)
    scheduler.handle(PartEvent.of(SelectorFeedback("a", (1.0, 0.0, 0.0))), 6.0)
    scheduler.handle(Submit((job("b"),)), 10.0)
    drawn = policy_of(scheduler.status()[-1])
    raised = math.exp(math.sqrt(2 * math.log(3) / 8))
    assert drawn.numbers[0] == pytest.approx({"chain": raised}.get(drawn.text, 1.0) / (raised + 2))


def test_before_any_feedback_the_first_policy_is_taken_or_as_published_drawn(tmp_path: Path) -> None:
    def drawn(**more: Any) -> list[str]:
        found = []
        for seed in range(20):
            scheduler = Scheduler(pool(tmp_path, seed=seed, **more))
            scheduler.handle(Submit((job("a"),)), 0.0)
            found.append(policy_of(scheduler.status()[0]).text)
        return found

    assert set(drawn()) == {POLICIES[0]}
    as_published = drawn(first_job="drawn")
    assert min(as_published.count(policy) for policy in POLICIES) >= 3  # of 20, where 6.7 are expected
    assert as_published == drawn(first_job="drawn")  # the same seed draws the same
    with pytest.raises(ValueError, match="market first_job must be listed or drawn, got 'best'"):
        MarketTerms(first_job="best")  # type: ignore[arg-type]


def test_the_published_step_is_refused_without_a_number_of_jobs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="market step 'paper' needs to know the number of jobs to come"):
        Scheduler(pool(tmp_path, step="paper"))
    with pytest.raises(ValueError, match="market jobs is for step 'paper', got step 'adaptive'"):
        MarketTerms(jobs=3)
    with pytest.raises(ValueError, match="market jobs must be whole and at least 1, got 0"):
        MarketTerms(step="paper", jobs=0)
    with pytest.raises(ValueError, match="market step must be adaptive or paper, got 'printed'"):
        MarketTerms(step="printed")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "feedback",
    [
        SelectorFeedback("stranger", (1.0, 0.0, 0.0)),
        SelectorFeedback("a", (1.0,)),
        SelectorFeedback("a", (2.0, 0.0, 0.0)),
        SelectorFeedback("a", ()),
    ],
)
def test_invalid_feedback_is_ignored(tmp_path: Path, feedback: SelectorFeedback) -> None:
    scheduler = Scheduler(pool(tmp_path))
    scheduler.handle(Submit((job("a"),)), 0.0)
    ended(scheduler, "a", 5.0)
    scheduler.handle(PartEvent.of(feedback), 6.0)
    scheduler.handle(Submit((job("b"),)), 7.0)
    spot = policy_of(scheduler.status()[-1])
    assert spot.numbers[1] == 0


def test_feedback_of_a_job_counts_once_and_after_its_end(tmp_path: Path) -> None:
    scheduler = Scheduler(pool(tmp_path))
    scheduler.handle(Submit((job("a"),)), 0.0)
    scheduler.handle(PartEvent.of(SelectorFeedback("a", (1.0, 0.0, 0.0))), 1.0)
    assert not awaiting_feedback(scheduler)
    ended(scheduler, "a", 5.0)
    assert awaiting_feedback(scheduler) == {"a": 50.0}
    for _ in range(3):
        scheduler.handle(PartEvent.of(SelectorFeedback("a", (1.0, 0.0, 0.0))), 6.0)
    assert not awaiting_feedback(scheduler)
    scheduler.handle(Submit((job("b"),)), 7.0)
    spot = policy_of(scheduler.status()[-1])
    assert spot.numbers[1] == 1


def test_feedback_replays_the_job_at_its_measured_throughput(tmp_path: Path) -> None:
    settings = pool(tmp_path)
    replays = CounterfactualReplay.of(settings)
    assert replays is not None
    scheduler = Scheduler(settings)
    scheduler.handle(Submit((job("a", deadline=50.0, batches=600),)), 12.0)
    ended(scheduler, "a", 20.0, batches=600)
    assert replays.next(scheduler) == 62.0
    assert not list(replays.due(scheduler, 61.0))  # the market has not come to its deadline yet
    [replayable] = replays.due(scheduler, 62.0)
    assert replayable.job is not None
    # From 12 s on: its first whole interval is the one at 20 s, its last ends at 60 s.
    assert (replayable.start, replayable.job.deadline, replayable.job.work) == (2, 4, 600.0)
    assert replayable.job.throughput == (0.0, 100.0, 180.0)
    feedback = replays.feedback(replayable)
    ours, greedy, dear = feedback.utilities
    assert greedy > dear  # spot nodes are a third of the price
    assert ours >= dear
    assert feedback == replays.feedback(replayable)
    scheduler.handle(PartEvent.of(feedback), 62.0)
    assert not list(replays.due(scheduler, 1000.0))


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (Job("a", 50.0, BatchTarget(200)), 0.0),  # its speed was never seen
        (job("a", deadline=5.0), 0.0),  # shorter than an interval
        (job("a", deadline=5000.0), 0.0),  # beyond the recording
        (job("a", target=LossTarget("loss", 0.1)), 0.0),  # missed: its work is unknown
    ],
)
def test_jobs_without_feedback_are_asked_once(tmp_path: Path, given: Job, at: float) -> None:
    settings = pool(tmp_path)
    replays = CounterfactualReplay.of(settings)
    assert replays is not None
    scheduler = Scheduler(settings)
    scheduler.handle(Submit((given,)), at)
    scheduler.handle(Cancel("a"), given.deadline + 10)
    [replayable] = replays.due(scheduler, 6000.0)
    assert replayable.job is None
    scheduler.handle(PartEvent.of(replays.feedback(replayable)), 6000.0)
    assert not awaiting_feedback(scheduler)


def test_the_selector_of_a_simulated_pool_learns_and_its_journal_replays(tmp_path: Path) -> None:
    settings = pool(tmp_path)
    jobs = [SimulatedJob(launched(f"j{k}"), [10, 100], [0.9, 0.4], 10.0, submitted=60.0 * k) for k in range(10)]
    path = tmp_path / "journal.db"
    market = MarketTerms(**settings.controllers["market"]["terms"]).market()
    cloud = VirtualCloud(market, settings=settings)
    Simulation(settings, jobs, journal=path, check=True, nodes=cloud).run()
    with Journal.open(path, read_only=True) as journal:
        again = replay(journal)
        assert again.digest == journal.digest
    feedback_count = [
        policy_of(status).numbers[1] for status in again.scheduler.status() if policy_of(status) is not None
    ]
    assert feedback_count == list(map(float, range(10)))
    last = policy_of(again.scheduler.status()[-1])
    assert last.text != "on-demand"


def test_the_actor_wakes_to_compute_feedback(tmp_path: Path) -> None:
    """No Ray is needed to ask it; its time is real, so intervals are short."""
    (tmp_path / "cheap.csv").write_text(CHEAP)
    market = {"trace": str(tmp_path / "cheap.csv"), "interval": 0.05, "policies": POLICIES}

    async def story() -> list[float]:
        actor = SchedulerActor(on_market(market).to_dict(), str(tmp_path / "pool"))
        await actor.submit((job("a", deadline=0.4, batches=10),))
        await actor.event(Report("a", 1, number=1, version=1, batches=10, busy=0.3))
        await until_async(lambda: not awaiting_feedback(actor._host.scheduler))  # without any call in between
        await actor.submit((job("b"),))
        _, jobs = await actor.status()
        await actor.close()
        return [policy_of(status).numbers[1] for status in jobs]

    assert asyncio.run(story()) == [0, 1]


def test_a_missing_recording_disables_feedback_only(tmp_path: Path) -> None:
    settings = pool(tmp_path).to_dict()

    async def story(before: bool) -> list[JobStatus]:
        actor = SchedulerActor(settings, str(tmp_path / "pool"))
        await actor.submit((job("before" if before else "after"),))
        _, jobs = await actor.status()
        await actor.close()
        return jobs

    asyncio.run(story(before=True))
    (tmp_path / "cheap.csv").unlink()
    assert [status.name for status in asyncio.run(story(before=False)) if status.notes] == [
        "before",
        "after",
    ]


def test_feedback_that_cannot_be_computed_is_requested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cheap.csv").write_text(CHEAP)
    market = {"trace": str(tmp_path / "cheap.csv"), "interval": 0.05, "policies": POLICIES}
    asked: list[str] = []
    feedback = CounterfactualReplay.feedback

    def fails(self: CounterfactualReplay, replayable: ReplayableJob) -> SelectorFeedback:
        asked.append(replayable.name)
        if replayable.name == "bad":
            raise MemoryError
        return feedback(self, replayable)

    monkeypatch.setattr(CounterfactualReplay, "feedback", fails)

    async def story() -> list[float]:
        actor = SchedulerActor(on_market(market).to_dict(), str(tmp_path / "pool"))
        await actor.submit((job("bad", deadline=0.4, batches=10), job("good", deadline=0.4, batches=10)))
        for name in ("bad", "good"):
            await actor.event(Report(name, 1, number=1, version=1, batches=10, busy=0.3))
        await until_async(lambda: not awaiting_feedback(actor._host.scheduler))
        await actor.submit((job("next"),))
        _, jobs = await actor.status()
        await actor.close()
        return [policy_of(status).numbers[1] for status in jobs]

    assert asyncio.run(story()) == [0, 0, 1]
    assert sorted(asked) == ["bad", "good"]


def test_feedback_of_a_delayed_job_counts_from_its_begin(tmp_path: Path) -> None:
    settings = pool(tmp_path)
    replays = CounterfactualReplay.of(settings)
    assert replays is not None
    scheduler = Scheduler(settings)
    scheduler.handle(Submit((replace(job("a", deadline=100.0), begin=45.0),)), 0.0)
    scheduler.handle(Cancel("a"), 1.0)
    [replayable] = replays.due(scheduler, 100.0)
    assert replayable.job is not None
    assert (replayable.start, replayable.job.deadline) == (5, 5)


def test_a_loss_that_was_met_tells_how_much_work_it_was(tmp_path: Path) -> None:
    settings = pool(tmp_path)
    replays = CounterfactualReplay.of(settings)
    assert replays is not None
    scheduler = Scheduler(settings)
    scheduler.handle(Submit((job("a", target=LossTarget("loss", 0.5)),)), 0.0)
    cells = tuple(Cell(n, 10 * n, 0.1) for n in range(1, 51))
    scheduler.handle(Report("a", 1, 1, 1, 500, 8.0, cells), 8.0)
    assert scheduler.last("a").verdict is Verdict.MET
    [replayable] = replays.due(scheduler, math.inf)
    assert replayable.job is not None
    assert replayable.job.work == 500.0


def test_intervals_are_merged_to_the_fewest_nodes_at_the_highest_price() -> None:
    market = Market(np.array([9.0, 0.4, 0.3, 0.5, 0.2, 0.6]), np.array([9, 4, 3, 5, 0, 6]), 1.0, 60.0)
    some = coarsen(market, 1, 2)
    assert some.available.tolist() == [3, 0]
    assert some.price == pytest.approx([0.8, 1.0])
    assert (some.on_demand, some.seconds) == (2.0, 120.0)


def test_a_job_of_many_intervals_is_replayed_in_fewer() -> None:
    """Where prices are constant, it is worth as much as on a market whose intervals are that long."""
    fine, coarse = (Market(np.full(n, 0.3 * each), np.full(n, 4), each, 10.0 * each) for n, each in ((80, 1), (40, 2)))
    replays = CounterfactualReplay(MarketTerms(policies=("max-spot", "on-demand")), fine)
    speed = (0.0, 10.0, 20.0)
    long = SpotJob(900.0, 64, 1, 2, speed, minimum_charge=0.5)
    short = SpotJob(900.0, 32, 1, 2, tuple(2 * one for one in speed), minimum_charge=0.25)
    merged, whole = (replays.feedback(ReplayableJob("a", *one)) for one in ((long, 3, fine), (short, 0, coarse)))
    assert merged.utilities == pytest.approx(whole.utilities, abs=0.002)


@pytest.mark.nightly
def test_a_long_job_is_replayed_on_the_recorded_market() -> None:
    recorded = MarketTerms().market()
    replays = CounterfactualReplay(MarketTerms(policies=("chain", "max-spot", "on-demand")), recorded)
    speed = tuple(9.7 * n**0.9 for n in range(9))
    feedback = replays.feedback(ReplayableJob("a", SpotJob(1e4, 300, 1, 8, speed, value=1.0), 7, recorded))
    assert len(feedback.utilities) == 3
    assert feedback.utilities[0] > feedback.utilities[2]  # spot instances are cheaper here


def test_throughput_tables_between_and_beyond_known_sizes() -> None:
    speed = SpeedUp((2, 4), (3.0, 5.0))
    assert throughput_table(speed, 10.0) == (2, (0.0, 0.0, 30.0, 30.0, 50.0))
    assert throughput_table(speed, 10.0, max_nodes=5) == (2, (0.0, 0.0, 30.0, 30.0, 50.0, 50.0))
    with pytest.raises(ValueError, match="has not trained yet"):
        throughput_table(SpeedUp((1,)), 10.0)


def test_batches_left_of_a_job() -> None:
    scheduler = Scheduler(Settings(policy="fifo"))
    scheduler.handle(Submit((job("a"), Job("b", 50.0, LossTarget("loss", 0.1)))), 0.0)
    scheduler.handle(Report("a", 1, number=1, version=1, batches=50, busy=5.0), 5.0)
    assert batches_left(scheduler, "a") == 150.0
    with pytest.raises(ValueError, match=r"job 'b': loss <= 0.1 is not forecast to be reached: say how much"):
        batches_left(scheduler, "b")
    cells = tuple(Cell(k, 10 * k, k**-0.5) for k in range(1, 31))  # it will take 1,000 batches, and ends at 1,500
    ends = Horizon(1500, "max_steps")
    scheduler.handle(Report("b", 1, number=1, version=2, batches=300, busy=5.0, cells=cells, horizon=ends), 6.0)
    assert 700 < batches_left(scheduler, "b") <= 1200


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"policies": []}, "at least one, each once, got none"),
        ({"policies": ["chain", "chain"]}, "each once, got chain, chain"),
        ({"policies": ["chains"]}, "spot policy must be one of ahanp, ahap, .* got 'chains'; did you mean"),
        ({"policies": ["ahap:omega=2.5"]}, "spot policy ahap: omega: expected int, got 2.5"),
        ({"forecaster": "perfect", "quoted": True}, "forecaster must be one of last, .*, got 'perfect', which"),
        ({"forecaster": "noisy:by=0.1,seed=-1"}, "seed must be at least 0, got -1"),
        ({"forecaster": "seasonal:period=0"}, "period must be at least 1 interval, got 0"),
        ({"seed": -1}, "seed must be whole and at least 0, got -1"),
        ({"seed": 1.5}, "seed must be whole and at least 0, got 1.5"),
        ({"price": True}, "price must be a number, got True"),
        ({"trace": 3}, "trace must be text, got 3"),
        ({"price": -0.1}, "price must be at least 0 and finite, got -0.1"),
        ({"interval": 0.0}, "interval must be positive and finite, got 0.0"),
        ({"on_demand": 0.0}, "market on_demand must be positive and finite, got 0.0"),
        ({"value": math.inf}, "market value must be positive and finite, got inf"),
        ({"pool": "p" * 1000}, "market pool must have at most 200 characters"),
        ({"grace": 1.0}, "grace must be above 1 and finite, got 1.0"),
        ({"kept_fraction": 0.0}, "kept_fraction must be above 0 and at most 1, got 0.0"),
        ({"minimum_charge": "60s"}, "minimum_charge must be a number, got '60s'"),
        ({"minimum_charge": -1.0}, "minimum_charge must be at least 0"),
        ({"colour": 1}, "controller market: .*unexpected keyword argument 'colour'"),
    ],
)
def test_invalid_market_terms_are_refused(terms: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        on_market(terms)


def test_market_terms_round_trip_through_json() -> None:
    settings = on_market({"policies": ("chain", "ahap"), "seed": 3})
    again = Settings(**json.loads(json.dumps(settings.to_dict())))
    assert terms_of(again) == terms_of(settings) == MarketTerms(policies=("chain", "ahap"), seed=3)
    assert isinstance(MarketTerms().market(), Market)
    assert np.all(MarketTerms().market().price > 0)
