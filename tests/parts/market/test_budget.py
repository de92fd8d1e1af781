"""The money that a pool may spend: a market never costs more, and the more urgent job is paid for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.controllers import CONTROLLERS
from lightning_core.core.answers import End, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume
from lightning_core.core.events import Submit
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.pool_view import PoolView
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.cloud_events import Quoted
from lightning_core.parts.market.market_controller import MarketController, check_budget
from lightning_core.scheduler.scheduler import Scheduler, Settings
from tests.examples import examples
from tests.parts.market.market_pool import MARKET, MarketPool
from tests.parts.market.market_world import World, controller, elastic, market


def pool(money: float = 3.0, **market_terms: Any) -> MarketPool:
    return MarketPool({"market": MARKET | {"budget": money} | market_terms})


def test_the_more_urgent_job_is_paid_for_and_the_other_one_is_told_why_it_waits() -> None:
    made = pool()
    made.submit(elastic("later", 100, 300.0), elastic("urgent", 20, 100.0))
    made.quote(0.5, 8)
    made.live(1.0)
    assert made.wanted == (4, 0)
    assert [(ask.job, ask.devices, ask.reason.code) for ask in made.asks] == [
        ("urgent", 4, "market.nodes_held"),
        ("later", 0, "market.no_money"),
    ]
    assert str(made.asks[-1].reason) == "its nodes would cost more than the remaining 1"
    assert "its nodes would cost more than the remaining" in str(made.scheduler.last("later").grant_reason)
    made.live(40.0)
    assert made.scheduler.last("urgent").verdict is Verdict.MET
    assert made.market.describe()["money"] == pytest.approx(3.0 - 9 * 0.2)  # its four nodes were there for 9 s
    made.quote(0.25, 8)  # they are cheaper now
    made.live(10.0)
    assert (made.wanted, made.scheduler.last("later").paused) == ((4, 0), False)


def test_a_job_that_waited_for_nodes_is_told_when_it_waits_for_money() -> None:
    world = World({"a": elastic("a", 300, 200.0)}, market([4] * 20))
    run = controller(budget=3.2, initial_throughput=1.0)
    world.live(run, 13.0)
    world.submit(run, elastic("b", 60, 180.0))
    world.live(run, 8.0)
    assert [(ask.job, ask.devices, ask.reason.code) for ask in world.told] == [
        ("a", 4, "market.nodes_held"),
        ("b", 0, "market.nodes_held"),
        ("b", 0, "market.no_money"),
        ("a", 0, "market.no_money"),
    ]


def test_nodes_that_would_stay_for_others_leave_where_they_cost_too_much() -> None:
    """After 15.5 s the old on-demand node has cost 1.5; with the spot nodes that do not come, the rest is 0.81."""
    for money, stays in ((2.35, 1), (2.25, 0)):
        world = World({"a": elastic("a", 300, 100.0)}, market([2] * 12), spot=0)
        run = controller(budget=money)
        world.live(run, 16.0)
        assert world.held[0] == (0, 1)
        assert world.asked_for == (2, stays)
        world.live(run, 5.0)
        assert world.rows[1].cost == pytest.approx(1.0 if stays else 0.6)
        assert run.spent <= money


def test_what_a_lost_node_has_cost_is_counted_before_another_one_is_wanted() -> None:
    """Four spot nodes have cost 0.4 after 3 s, and four on-demand ones until the interval ends cost 2.8."""
    for money, come in ((3.25, 4), (3.15, 0)):
        world = World({"a": elastic("a", 180, 50.0)}, market([4] * 8))
        run = controller(budget=money, initial_throughput=1.0)
        world.live(run, 3.0)
        world.spot, world.present = 0, world.present._replace(spot=0)
        world.live(run, 1.0)
        assert world.asked_for.on_demand == come
        world.live(run, 7.0)
        assert world.rows[0].cost == pytest.approx(0.4 + 0.65 * come)


def test_nodes_that_stay_until_the_interval_ends_are_counted_where_yet_another_job_comes() -> None:
    """After 4 s 0.6 is spent, 2.4 is to come for the nodes of the first job, and 2.4 for those of the second one."""
    for money, devices in ((5.45, 4), (5.35, 0)):
        world = World({"a": elastic("a", 180, 50.0)}, market([4] * 8))
        run = controller(budget=money, initial_throughput=1.0)
        world.live(run, 3.0)
        world.spot, world.present = 0, world.present._replace(spot=0)
        world.live(run, 1.0)
        assert world.asked_for == (0, 4)
        world.submit(run, elastic("b", 40, 12.0))
        assert (world.told[-1].job, world.told[-1].devices) == ("b", devices)
        world.live(run, 7.0)
        assert run.spent == pytest.approx(3.0 + 0.6 * devices)


def test_a_new_job_goes_without_on_demand_nodes_that_cost_too_much() -> None:
    """After 3 s 0.4 is spent, 1.12 is to come for the nodes of the first job, and the second one's would cost 2.8."""
    world = World({"a": elastic("a", 300, 200.0)}, market([4] * 20))
    run = controller(budget=4.3, initial_throughput=1.0)
    world.live(run, 3.0)
    answers = world.submit(run, elastic("b", 40, 12.0))
    assert [(one.devices, one.reason.code) for one in answers] == [(0, "market.no_money")]
    assert world.asked_for == (4, 0)


ACTIONS = st.tuples(st.integers(0, 9), st.integers(0, 8), st.floats(0.05, 1.2))


def act(made: MarketPool, number: int, action: int, amount: int, price: float) -> None:
    names = made.scheduler.names(active=True) or ["none"]
    match action:
        case 0 | 1:  # what a price will be is known before it holds
            made.tell(Quoted(price, amount, 1.0 + price, int(made.clock // 10) + 1))
        case 2:
            made.spot = amount
        case 3:
            spot, on_demand = made.wanted
            made.see(min(amount, spot), min(int(4 * price), on_demand))
        case 4 | 5 | 6:
            made.submit(elastic(f"job-{number}", 10 + 15 * amount, 10.0 + 90.0 * price))
        case 7:
            made.tell(Pause(names[0]) if amount % 2 else Resume(names[0]))
        case 8:
            made.tell(Cancel(names[-1]))
    made.live(1.0 + amount)


@pytest.mark.promise("R27")
@given(
    st.lists(ACTIONS, min_size=4, max_size=14), st.booleans(), st.floats(0.5, 6.0), st.sampled_from([0.0, 4.0, 12.0])
)
@settings(max_examples=examples(25), deadline=None)
def test_no_more_is_spent_than_may_be(
    story: list[tuple[int, int, float]], known: bool, money: float, minimum: float
) -> None:
    """Nodes leave within the second that passes before the pool is looked at again."""
    terms: dict[str, Any] = {"leave": 1.0, "minimum_charge": minimum}
    made = pool(money, initial_throughput=1.0 if known else None, **terms)
    made.quote(0.4, 6)
    for number, (action, amount, price) in enumerate(story):
        act(made, number, action, amount, price)
        cost = sum(row.cost for row in made.rows)
        assert cost == pytest.approx(made.market.spent)
        assert cost <= money + 1e-9
    for name in made.scheduler.names(active=True):
        made.tell(Cancel(name))
    made.live(1.0)
    assert sum(row.cost for row in made.rows) <= money + 1e-9
    assert made.wanted == (0, 0)


# ------------------------------------------------------------------------------------------------ rights and refusals


def test_jobs_that_cannot_leave_a_node_are_refused_on_a_market() -> None:
    made, can = pool(), frozenset({Capability.TIME_SLICE})
    [end] = [one for one in made.submit(Job("a", 60.0, BatchTarget(100), can=can)) if isinstance(one, End)]
    assert (end.verdict, end.reason.code) == (Verdict.CANCELLED, "needs_launch")
    scheduler = Scheduler(Settings())  # only a pool whose nodes come and go refuses it
    submitted = scheduler.handle(Submit((Job("a", 60.0, BatchTarget(100), can=can),)), 0.0)
    assert not [one for one in submitted if type(one) is End]


class Breaks(MarketController):
    """Raises once a time has come."""

    def handle(self, event: Any, now: float, pool: PoolView) -> Any:
        if now > 3.0:
            raise ZeroDivisionError("by hand")
        return super().handle(event, now, pool)


def test_a_market_that_fails_gives_its_nodes_back_if_money_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says any more how much may be spent."""
    monkeypatch.setattr("lightning_core.scheduler.state.SchedulerState.check", lambda *_: None)
    monkeypatch.setitem(CONTROLLERS, "market", Breaks)
    for money, stay in ((100.0, False), (None, True)):
        made = MarketPool({"market": MARKET | ({} if money is None else {"budget": money})})
        made.submit(elastic("a", 100, 300.0))
        made.quote(0.5, 8)
        made.live(1.0)
        assert made.wanted == (4, 0)
        made.live(4.0)
        assert made.wanted == ((4, 0) if stay else (0, 0))
        assert made.scheduler.failed_parts == {"controller market": "ZeroDivisionError: by hand"}


@pytest.mark.parametrize("money", [0, -1.0, float("nan"), float("inf"), True, "3", None, 1e300])
def test_a_budget_out_of_its_range_is_refused(money: Any) -> None:
    rule = "at most" if money == 1e300 else "positive and finite"
    with pytest.raises(ValueError, match=f"budget must be {rule}"):
        check_budget(money)
