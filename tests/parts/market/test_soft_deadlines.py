"""Deadlines that may be passed at a price: in plans, in a pool whose clock the test holds, and in simulations."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.bundle.problems import BundleError
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import IntArray
from lightning_core.core.events import PartEvent, Submit
from lightning_core.core.jobs import OnMiss
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.counterfactual import CounterfactualReplay, ReplayableJob
from lightning_core.parts.market.earlier_feedback import play
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster, Perfect
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.market_terms import MarketTerms
from lightning_core.parts.market.observation import Observation, SpotPolicy
from lightning_core.parts.market.programs.optimum import optimum
from lightning_core.parts.market.spot_job import Overhead, SpotJob
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.spot_policies import (
    SPOT_POLICIES,
    Ahanp,
    Ahap,
    AllOrNothing,
    Chain,
    MaxSpot,
    OnDemand,
    SemiMarkov,
    UniformProgress,
)
from lightning_core.parts.market.spot_policies.on_demand import on_demand_cost, steady_cost
from lightning_core.parts.market.traces import shipped_trace
from lightning_core.scheduler.scheduler import Scheduler
from tests.parts.market.market_world import World, controller, elastic, market
from tests.parts.market.test_market_jobs import ended, pool
from tests.parts.market.test_market_jobs import job as job_of
from tests.parts.market.test_simulated_market import HOUR, flat, simulated
from tests.parts.market.test_simulated_market import elastic as hours_of

# In time it needs two nodes for four intervals, of which one is a spot node: 1.4 an interval. That node alone takes
# eight, for 0.4 each: it costs 2.4 less, and a half of the value.
JOB = SpotJob(8.0, 4, max_nodes=2, growth_fraction=1.0, shrink_fraction=1.0, launch_time=0.0, grace=3.0)
CHEAP, DEAR = replace(JOB, value=2.0).softened(), replace(JOB, value=10.0).softened()
LAST = MarketForecaster(LastValue())


def played(policy: SpotPolicy, job: SpotJob, forecasts: Any = LAST, **how: Any) -> Ledger:
    there = Market(np.full(job.deadline, 0.4), np.ones(job.deadline, np.int64))
    [ledger] = backtest([policy], JobBatch([job], there, [0]), forecasts, **how)
    assert ledger.utility[0] <= optimum(JobBatch([job], there, [0]))[0] + 1e-9
    return ledger


# ------------------------------------------------------------------------------------------------ plans


def test_the_end_of_the_grace_is_the_deadline_that_is_kept() -> None:
    assert (CHEAP.due, CHEAP.deadline, JOB.due, JOB.deadline) == (4, 12, 4, 4)
    assert [CHEAP.value_at(interval) for interval in (3, 4, 5, 8, 12, 13)] == [2.0, 2.0, 1.75, 1.0, 0.0, 0.0]
    assert [CHEAP.charge(interval) for interval in (0, 3, 4, 11, 12)] == [0.0, 0.0, 0.25, 0.25, 0.0]
    assert not [JOB.charge(interval) for interval in range(4) if JOB.charge(interval)]
    assert replace(JOB, grace=1.2).softened().deadline == 4  # less than an interval more


@pytest.mark.parametrize("soft", [0, 5, -1])
def test_a_soft_deadline_is_no_later_than_the_one_that_is_kept(soft: int) -> None:
    with pytest.raises(ValueError, match=f"soft_deadline must be 1 to the deadline 4, got {soft}"):
        replace(JOB, soft_deadline=soft)


@pytest.mark.parametrize(
    ("policy", "overhead", "forecasts"),
    [
        (SemiMarkov, "launches", LAST),
        (lambda: Chain(stays=1.0), "total", LAST),
        (lambda: Ahap(11, end="rollout"), "launches", LAST),
        (lambda: Ahap(11, end="literal"), "total", MarketForecaster(Perfect())),
    ],
    ids=["semi-markov", "chain", "ahap", "ahap of the paper"],
)
def test_a_job_is_late_where_that_costs_less(policy: Any, overhead: Any, forecasts: Any) -> None:
    cheap, dear = (played(policy(), replace(job, overhead=overhead), forecasts) for job in (CHEAP, DEAR))
    assert (cheap.late[0], dear.late[0]) == (4, 0)
    assert (cheap.cost[0], dear.cost[0]) == pytest.approx((3.2, 5.6))
    assert (cheap.utility[0], dear.utility[0]) == pytest.approx((1.0 - 3.2, 10.0 - 5.6))
    assert not cheap.on_time.any()


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.nightly) if one == "semi-markov" else one for one in SPOT_POLICIES]
)
def test_every_policy_is_done_by_the_end_of_the_grace(name: str) -> None:
    there = shipped_trace()
    overhead: Overhead = "total" if name == "chain" else "launches"
    job = SpotJob(80.0, 10, value=120.0, overhead=overhead).softened()
    batch = JobBatch([job] * 8, there, [*range(0, 1200, 150)])
    [ledger] = backtest([SPOT_POLICIES.make(name)], batch, LAST)
    assert (ledger.late <= job.deadline - job.due).all()
    assert (ledger.utility <= optimum(batch) + 1e-6).all()
    if name not in ("ahap", "chain", "semi-markov"):
        assert ledger.on_time.all()


@pytest.mark.parametrize("policy", [UniformProgress(), AllOrNothing(), OnDemand(), SemiMarkov(horizon_limit=3)])
def test_an_even_pace_leads_to_the_soft_deadline(policy: SpotPolicy) -> None:
    none = Market(np.full(12, 0.4), np.zeros(12, np.int64))
    [ledger] = backtest([policy], JobBatch([replace(DEAR, work=6.0)], none, [0]), LAST)
    assert ledger.on_time.all()


@pytest.mark.parametrize("policy", [UniformProgress(), AllOrNothing(), OnDemand(), Ahanp(), Ahanp(mode="paper")])
def test_policies_that_see_no_value_plan_a_soft_deadline_as_any_other(policy: SpotPolicy) -> None:
    there, hard = shipped_trace(), SpotJob(60.0, 10, value=120.0, launch_time=0.4)
    one, other = (
        backtest([policy], JobBatch([job] * 8, there, [*range(0, 1200, 150)]), LAST, guarded=False)[0]
        for job in (hard, hard.softened())
    )
    assert one.spot.tolist() == other.spot[:, :10].tolist()
    assert one.on_demand.tolist() == other.on_demand[:, :10].tolist()


class Waits:
    """A policy that leaves all to the safety net."""

    horizon = 0
    sees_value = True

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        return np.zeros_like(observation.held), np.zeros_like(observation.held)


def test_the_net_keeps_the_end_of_the_grace_or_the_deadline_where_a_policy_does_not_see_its_price() -> None:
    waits, blind = played(Waits(), DEAR), played(MaxSpot(), DEAR)
    assert (waits.late[0], np.flatnonzero(waits.spot[0]).tolist()) == (8, [8, 9, 10, 11])
    assert (blind.late[0], blind.cost[0]) == (0, pytest.approx(5.6))
    bare = played(MaxSpot(), DEAR, guarded=False)
    assert (bare.on_demand.sum(), bare.late[0]) == (0, 4)


def test_the_cost_on_on_demand_nodes_alone_is_known_at_once() -> None:
    for work in (3.0, 40.0, 80.0):
        job = SpotJob(work, 10, launch_time=0.1, hand_over_time=0.02, minimum_charge=0.0)
        for one in (job, job.softened()):
            assert steady_cost(one, 2.0) == pytest.approx(on_demand_cost(one, 2.0), rel=0.02)


# ------------------------------------------------------------------------------------------------ a pool


def rented(job: Any, value: float, *, soft: bool = True, policy: str = "semi-markov") -> tuple[World, Any]:
    """Return a pool after a job, with two of the four spot nodes that it can use on offer, and what has held it."""
    terms = {"soft_deadlines": soft, "value": value, "grace": 3.0}
    run = controller(policy, initial_throughput=1.0, terms=terms)
    world = World({"a": job}, market([2] * 40, price=0.2))
    world.live(run, 150.0)
    return world, run


def test_a_pool_buys_no_nodes_to_be_in_time_where_lateness_costs_less() -> None:
    job = elastic("a", 140, 50.0)
    hard, cheap, dear = rented(job, 0.2, soft=False)[0], rented(job, 0.2)[0], rented(job, 8.0)[0]
    for world in (hard, dear):
        assert sum(held.on_demand for held in world.held) > 0
        assert sum(row.batches for row in world.rows[:5]) == 140
    assert sum(held.on_demand for held in cheap.held) == 0
    assert sum(row.batches for row in cheap.rows[:5]) == 100
    assert sum(row.batches for row in cheap.rows) == 140
    assert cheap.spent < hard.spent


@pytest.mark.parametrize("on_miss", [OnMiss.STOP, OnMiss.HOLD])
@pytest.mark.parametrize("policy", SPOT_POLICIES)
def test_a_job_that_may_not_go_on_is_planned_as_ever(on_miss: OnMiss, policy: str) -> None:
    job = elastic("a", 140, 50.0, on_miss=on_miss)
    soft, hard = (rented(job, 0.2, soft=soft, policy=policy) for soft in (True, False))
    assert (soft[0].wanted, soft[0].told, soft[0].rows) == (hard[0].wanted, hard[0].told, hard[0].rows)
    assert soft[1].state()["plans"] == hard[1].state()["plans"]


def test_a_pool_that_begins_again_keeps_its_soft_deadlines() -> None:
    terms = {"soft_deadlines": True, "value": 0.2, "grace": 3.0}
    one, other = (controller("semi-markov", initial_throughput=1.0, terms=terms) for _ in range(2))
    world = World({"a": elastic("a", 140, 50.0)}, market([2] * 40, price=0.2))
    world.live(one, 55.0)
    other.restore(one.state())
    assert other.state() == one.state()
    assert [(job.soft_deadline, job.deadline) for job in other.jobs] == [(5, 15)]
    world.live(other, 50.0)
    assert sum(held.on_demand for held in world.held) == 0


@pytest.mark.parametrize(("sees_value", "end"), [(False, 5), (True, 15)])
def test_a_job_that_gets_no_spot_nodes_is_done_by_the_deadline_that_is_kept(
    sees_value: bool, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MaxSpot, "sees_value", sees_value, raising=False)
    run = controller("max-spot", initial_throughput=1.0, terms={"soft_deadlines": True, "grace": 3.0})
    world = World({"a": elastic("a", 140, 50.0)}, market([0] * 40))
    world.live(run, 160.0)
    assert sum(row.batches for row in world.rows[:end]) == 140
    assert sum(row.batches for row in world.rows[: end - 4]) == 0


# ------------------------------------------------------------------------------------------------ simulations


def test_a_simulation_is_late_where_that_costs_less_as_its_backtest_is() -> None:
    """The same job on the same market: what it saves by being late is what a backtest says, but for its start-up."""
    there, hours = flat([2] * 60, price=0.2), 14.0
    costs = dict[str, float]()
    for name, terms in {"hard": {}, "soft": {"soft_deadlines": True, "value": 0.2, "grace": 3.0}}.items():
        _, outcome, _ = simulated(
            there, hours_of("a", hours, 4.5), policy="semi-markov", initial_throughput=1.0, terms=terms
        )
        costs[name] = outcome.nodes.cost
        [job] = outcome.jobs
        assert job.verdict is (Verdict.MET if name == "hard" else Verdict.MISSED)
        assert (job.finished_at or 0.0) <= 3 * 4.5 * HOUR
    plan = SpotJob(2 * hours, 9, max_nodes=4, launch_time=0.03, hand_over_time=0.01, minimum_charge=0.0, grace=3.0)
    soft = replace(plan, value=0.2 * on_demand_cost(plan, 1.0)).softened()
    played = [backtest([SemiMarkov()], JobBatch([one], there, [0]), LAST)[0] for one in (plan, soft)]
    assert [ledger.on_time[0] for ledger in played] == [True, False]
    saved = played[0].cost[0] - played[1].cost[0]
    assert costs["hard"] - costs["soft"] == pytest.approx(saved, rel=0.2)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"soft_deadlines": "yes"}, "market soft_deadlines must be true or false, got 'yes'"),
        ({"soft_deadlines": True, "value": -1.0}, "market value must be positive and finite, got -1.0"),
        ({"soft_deadlines": True, "grace": 1.0}, "market grace must be above 1 and finite, got 1.0"),
    ],
)
def test_wrong_terms_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MarketTerms(**terms)


def bundle(folder: Path, *on_miss: str) -> Bundle:
    jobs = "".join(
        f"  {name}: {{model: tests.tiny.Line, deadline: 5h, target: {{batches: 9}}, on_miss: {miss}}}\n"
        for name, miss in zip("abc", on_miss, strict=False)
    )
    path = folder / "bundle.yaml"
    path.write_text("market: {soft_deadlines: true}\njobs:\n" + jobs)
    return Bundle.from_file(path)


def test_a_bundle_in_which_no_job_goes_on_is_refused(tmp_path: Path) -> None:
    message = "market soft_deadlines needs a job with on_miss: continue, got hold, stop"
    with pytest.raises(BundleError, match=re.escape(message)):
        bundle(tmp_path, "stop", "hold", "stop").supplied()
    terms = bundle(tmp_path, "stop", "continue").supplied().settings.controllers["market"]["terms"]
    assert terms["soft_deadlines"] is True


# ------------------------------------------------------------------------------------------------ feedback


@pytest.mark.parametrize(("on_miss", "due", "until"), [(OnMiss.CONTINUE, 12.0 + 3 * 50.0, 12), (OnMiss.STOP, 62.0, 4)])
def test_feedback_awaits_the_end_of_the_grace(tmp_path: Path, on_miss: OnMiss, due: float, until: int) -> None:
    settings = pool(tmp_path, soft_deadlines=True, grace=3.0)
    replays, scheduler = CounterfactualReplay.of(settings), Scheduler(settings)
    assert replays is not None
    scheduler.handle(Submit((replace(job_of("a", 50.0, 600), on_miss=on_miss),)), 12.0)
    ended(scheduler, "a", 20.0, batches=600)
    assert replays.next(scheduler) == due
    [replayable] = replays.due(scheduler, due)
    assert replayable.job is not None
    assert (replayable.start, replayable.job.due, replayable.job.deadline) == (2, 4, until)
    assert all(0 < utility < 1 for utility in replays.feedback(replayable).utilities)
    scheduler.handle(PartEvent.of(replays.feedback(replayable)), due)
    assert replays.next(scheduler) is None


def test_feedback_of_a_long_job_merges_intervals_up_to_the_end_of_its_grace(tmp_path: Path) -> None:
    replays = CounterfactualReplay.of(pool(tmp_path, soft_deadlines=True, grace=3.0))
    assert replays is not None
    there = Market(np.full(200, 0.4), np.full(200, 2), seconds=10.0)
    job = SpotJob(60.0, 60, max_nodes=2, growth_fraction=0.9, grace=3.0).softened()
    utilities = replays.feedback(ReplayableJob("a", job, 5, there)).utilities
    assert len(utilities) == 3
    assert all(0 < utility < 1 for utility in utilities)


def test_jobs_that_are_played_in_the_past_are_late_there_too() -> None:
    terms = MarketTerms(policies=("max-spot", "on-demand"), grace=3.0)
    past = Market(np.full(40, 0.4), np.full(40, 1))
    hard, soft = play(terms, past), play(replace(terms, soft_deadlines=True), past)
    assert len(soft) == 11  # starts from which the grace ends within the past
    assert max(row[0] for row in soft) > max(row[0] for row in hard)
