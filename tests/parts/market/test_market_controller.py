"""The market: the nodes that it wants interval by interval, and what they cost, by values worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from lightning_core.core.commands import Pause, Resume, SetDeadline
from lightning_core.core.control import Ask, WallClock
from lightning_core.core.events import Close, Tick, WorkersLost
from lightning_core.core.jobs import OnMiss
from lightning_core.core.saved_state import StateError
from lightning_core.parts.market.cloud_events import CloudPart, CloudTrouble, IntervalEnded, NodesWanted, Quoted
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.online.start_up_times import StartUpTimes
from lightning_core.testing.checks import saved_and_restored
from tests.parts.market.market_world import CACHES, World, controller, elastic, market

TWO_PLACES = market([2, 2, 0, 0, 4, 4, 4, 4])


def test_a_run_holds_its_planned_nodes_and_returns_them() -> None:
    world, run = World({"a": elastic("a", 100, 80.0)}, TWO_PLACES), controller()
    world.live(run, 60.0)
    assert [ask.devices for ask in world.told][:3] == [1, 2, 0]
    # The first interval measures its throughput.
    assert world.held[:3] == [(0, 1), (2, 0), (0, 0)]
    assert world.rows[1].batches == pytest.approx(20, abs=2)
    # Two spot nodes from half a second on, and for a second the on-demand node that they replace.
    assert world.rows[1].cost == pytest.approx(9.5 * 0.08 + 1.0 * 0.1)
    assert world.batches["a"] == 100
    assert world.asked_for == (0, 0)
    assert world.spent == pytest.approx(sum(row.cost for row in world.rows))
    assert [row.number for row in world.rows] == list(range(len(world.rows)))


def test_nodes_are_released_once_their_replacement_is_ready() -> None:
    world, run = World({"a": elastic("a", 300, 100.0)}, market([2] * 12)), controller()
    world.live(run, 9.9)
    assert world.present == (0, 1)
    world.spot = 0  # they start slowly
    world.live(run, 3.0)
    assert world.asked_for == (2, 1)
    assert world.present == (0, 1)
    world.spot = 2
    world.obey()
    world.live(run, 1.0)
    assert world.present == (2, 0)
    world.live(run, 8.0)
    assert world.held[1] == (2, 0)


def test_a_late_replacement_takes_over_once_it_is_warm() -> None:
    world, run = World({"a": elastic("a", 300, 100.0)}, market([2] * 12), spot=1), controller()
    world.live(run, 16.0)
    assert (world.present, world.asked_for) == ((1, 1), (2, 1))
    world.spot, world.cold = 2, 1
    world.live(run, 1.0)
    assert (world.present, world.asked_for) == ((2, 1), (2, 1))
    world.cold = 0
    world.live(run, 1.0)
    assert world.present == (2, 0)


def test_a_replacement_that_comes_as_an_interval_ends_takes_over_in_the_next_one() -> None:
    world, run = World({"a": elastic("a", 300, 100.0)}, market([2] * 12), spot=1), controller()
    world.live(run, 19.5)
    world.spot, world.cold = 2, 1
    world.live(run, 2.0)
    assert (world.present, world.asked_for) == ((2, 1), (2, 1))
    world.cold = 0
    world.live(run, 1.0)
    assert world.present == (2, 0)
    world.live(run, 8.0)
    assert world.held[2] == (2, 0)
    assert world.rows[2].cost == pytest.approx(0.8 + 2.0 * 0.1)  # it was billed for two seconds more


@pytest.mark.parametrize("policy", ["on-demand", "semi-markov"])
def test_a_job_without_a_deadline_waits_for_spot_nodes(policy: str) -> None:
    jobs = {"a": elastic("a", 150, inf)}
    world, run = World(jobs, market([0, 0, 0, 4, 4, 0, 0, 4, 4, 4, 4])), controller(policy, initial_throughput=1.0)
    world.live(run, 110.0)
    assert not any(nodes.on_demand for nodes in world.held)
    assert world.batches["a"] >= 150
    assert not world.present.all


def test_a_deadline_that_is_taken_and_given_back_changes_the_policy_and_no_node_of_the_interval() -> None:
    """The policy of the pool rents on demand alone; without a deadline spot nodes are waited for."""
    world = World({"a": elastic("a", 400, 120.0)}, market([2] * 16))
    run = controller("on-demand", initial_throughput=1.0)

    def set_deadline(deadline: float) -> None:
        world.live(run, 5.0)  # within an interval
        before, asked = world.present, world.told[-1].devices
        world.jobs["a"] = replace(world.jobs["a"], deadline=deadline)
        world.tell(run, SetDeadline("a", deadline, from_submission=True))
        world.live(run, 4.0)
        assert (world.present, world.told[-1].devices) == (before, asked)
        world.live(run, 11.0)

    world.live(run, 10.0)
    set_deadline(inf)
    assert world.held[-1] == (0, 4)
    assert world.present == (2, 0)
    set_deadline(160.0)
    assert world.present == (0, 4)


def test_a_pool_that_needs_fewer_nodes_gives_them_back_at_once() -> None:
    """Also if one of them is cold: none replaces another."""
    world, run = World({"a": elastic("a", 57, 100.0)}, market([4] * 12)), controller(initial_throughput=1.0)
    world.live(run, 9.5)
    assert world.present == (4, 0)
    world.cold = 1
    world.live(run, 1.0)
    assert world.asked_for == (2, 0)


def test_nodes_stay_if_no_replacement_comes() -> None:
    world, run = World({"a": elastic("a", 300, 100.0)}, market([2] * 12), spot=0), controller()
    world.live(run, 14.0)
    assert world.asked_for == (2, 1)
    world.live(run, 2.0)
    assert world.asked_for == (2, 1)  # no node has come: the old one stays
    world.live(run, 5.0)
    assert world.held[1] == (0, 1)
    assert world.rows[1].cost == pytest.approx(1.0)


def test_a_known_throughput_skips_the_learning_interval() -> None:
    world, run = World({"a": elastic("a", 100, 80.0)}, market([2] * 8)), controller(initial_throughput=1.0)
    world.live(run, 11.0)
    assert world.held[0] == (2, 0)


@pytest.mark.parametrize(("batches", "come"), [(100, NodeCounts()), (180, NodeCounts(0, 4))])
def test_preempted_spot_nodes_are_replaced_on_demand_without_slack(batches: int, come: NodeCounts) -> None:
    """After three of fifty seconds, on at most four nodes: 88 batches more can wait, 168 cannot."""
    world, run = World({"a": elastic("a", batches, 50.0)}, market([4] * 8)), controller(initial_throughput=1.0)
    world.live(run, 3.0)
    assert world.present == (4, 0)
    world.spot, world.present = 0, NodeCounts()
    world.live(run, 1.0)
    assert world.present == come


def test_several_jobs_share_the_available_nodes() -> None:
    world = World({"a": elastic("a", 200, 100.0), "b": elastic("b", 200, 60.0)}, market([5] * 10))
    world.live(controller(initial_throughput=1.0), 1.0)
    # The more urgent job gets four of five spot nodes; the safety net requests on-demand nodes beside them.
    assert world.present.spot == 5
    assert {ask.job for ask in world.told} == {"a", "b"}


@pytest.mark.parametrize(("batches", "come"), [(30, NodeCounts()), (185, NodeCounts(0, 4))])
def test_each_job_without_time_to_wait_gets_its_own_replacement(batches: int, come: NodeCounts) -> None:
    """Both have four spot nodes, which are all preempted: 181 batches in nine intervals of at most 20 cannot wait."""
    jobs = {"a": elastic("a", batches, 50.0), "b": elastic("b", 20, 80.0)}
    world, run = World(jobs, market([8] * 8, seconds=5.0)), controller(interval=5.0, initial_throughput=1.0)
    world.live(run, 1.0)
    assert world.present == (8, 0)
    world.spot, world.present = 0, NodeCounts()
    world.live(run, 1.0)
    assert world.present == come


def test_a_market_that_is_saved_and_restored_keeps_its_plans_and_counts_what_passed_meanwhile() -> None:
    world = World({"a": elastic("a", 10, 30.0), "b": elastic("b", 60, 80.0)}, TWO_PLACES)
    first = controller(initial_throughput=1.0)
    world.live(first, 25.0)  # in the middle of an interval, which is paid for
    second = saved_and_restored(first, controller(initial_throughput=1.0), CACHES)
    assert second.wakeup() == first.wakeup()
    world.now, world.present = 41.0, NodeCounts(0, 1)
    world.batches["b"] += 2  # while it left
    world.live(second, 39.0)
    assert [row.number for row in world.rows[:5]] == [0, 1, 2, 3, 4]
    assert world.rows[3].batches == world.rows[3].used == 0  # it passed unobserved
    assert sum(row.batches for row in world.rows) == 70
    # It has the same time, and is compared with the cost of the whole run.
    assert [job.deadline for job in second.jobs] == [3, 8]
    assert second.reference_costs() is not None
    assert not any(ask.job == "a" for ask in world.told[2:])


def test_start_up_time_of_a_node_is_measured_and_charged() -> None:
    jobs = {"a": elastic("a", 80, 100.0)}
    trace = market([4, 0, 0, 0, 0, 0, 4, 4, 4, 4])
    world = World(jobs, trace, present=NodeCounts(0, 1), warm_up=3.0, trains_at=3.0)
    run = controller(initial_throughput=1.0)
    world.live(run, 1.0)
    [job] = run.jobs
    assert job.launch == 0.0  # nothing is known of it
    world.live(run, 10.0)
    assert run.jobs[0].launch == pytest.approx(0.3, abs=0.06)  # until the first batch
    world.warm_up = 4.0
    world.live(run, 60.0)
    assert run.jobs[0].launch == pytest.approx(0.4, abs=0.06)  # nodes that came again


def test_what_a_move_takes_is_measured_and_the_old_nodes_train_until_then() -> None:
    jobs = {"a": elastic("a", 80, 100.0)}
    world = World(jobs, market([0] * 10), warm_up=25.0)
    run = controller("on-demand", initial_throughput=1.0, kept_fraction=0.9, minimum_charge=6.0)
    world.live(run, 1.0)
    [job] = run.jobs
    assert (job.launch, job.hand_over_time, job.overlap) == pytest.approx((0.1, 0.1, 0.0))  # as it was told
    assert job.minimum_charge == 0.6
    world.resizes["a"] = 2.0
    world.live(run, 39.0)
    [job] = run.jobs
    # A node starts for longer than an interval of ten seconds; the move takes two of them.
    assert (job.launch, job.hand_over_time, job.overlap) == pytest.approx((2.5, 0.2, 1.0), abs=0.11)


def test_unsaved_batches_count_as_work_left() -> None:
    """Of 130 batches 118 are left, not 102: without this interval on-demand nodes can do about 112."""
    several: list[dict[str, int]] = [{}, {"a": 12}]
    for recovering in several:
        world = World({"a": elastic("a", 130, 60.0)}, market([4, 0, 0, 0, 0, 0]), present=NodeCounts(0, 1))
        run = controller(initial_throughput=1.0)
        world.live(run, 10.0)
        world.batches["a"], world.recovering, world.present = 28.0, recovering, NodeCounts()
        world.spot = 0
        world.live(run, 21.0)
        assert world.rows[2].on_demand == (4 if recovering else 0)


def test_one_start_in_ten_may_be_late_without_counting() -> None:
    times = StartUpTimes()
    assert times.seconds == 0.0
    late = {3: 90.0, 12: 80.0}
    expected = {1: 5.0, 3: 5.0, 4: 90.0, 9: 90.0, 10: 5.0, 12: 5.0, 13: 80.0, 19: 80.0, 20: 5.0}
    for number in range(30):
        if number in expected:
            assert times.seconds == expected[number], number
        times.request("a", 100.0 * number, number, node_present=False)
        now = 100.0 * number + late.get(number, 5.0)
        times.observe(now, {"a": World({"a": elastic("a", 100, 1.0)}, batches={"a": number + 1.0}).status("a")})  # type: ignore[dict-item]
    again = StartUpTimes()
    again.restore(times.state())
    assert again.seconds == times.seconds == 5.0


def test_start_time_is_measured_apart_from_repeated_work() -> None:
    world = World({"a": elastic("a", 300, 100.0)}, market([4] * 10), present=NodeCounts(0, 1), warm_up=3.0)
    run = controller(initial_throughput=1.0, save_every=1.0)
    world.live(run, 19.5)
    world.spot, world.present = 0, NodeCounts()  # all of them, as an interval ends
    world.live(run, 0.5)
    world.spot = 4
    world.live(run, 1.0)
    world.batches["a"] -= 8.0  # two seconds' worth is done again
    world.live(run, 10.0)
    # Of intervals of ten seconds: a start, and what is not saved.
    assert run.jobs[0].preemption_cost == pytest.approx(0.4, abs=0.11)


def test_one_node_counts_for_one_job() -> None:
    jobs = {name: elastic(name, 100, 60.0) for name in "ab"}
    world, run = World(jobs, market([0] * 6), present=NodeCounts(0, 1), warm_up=4.0, trains_at=4.0), controller()
    world.live(run, 15.0)
    # One had a node that was up, the other waited for one: that counts, for both.
    assert run.jobs[0].preemption_cost == pytest.approx(0.5, abs=0.06)
    assert len(run._plans._start_up._lags) == 1


def test_nodes_preempted_at_the_start_of_an_interval_count_once() -> None:
    """224 batches are left and 266 possible: 38 are reserved for preemptions of the lost and of the remaining nodes."""
    trace = market([4, 4, 4, 2, 2, 2, 2, 2, 2, 2])
    world = World({"a": elastic("a", 341, 100.0)}, trace, present=NodeCounts(0, 1))
    run = controller(initial_throughput=1.0, save_every=4.5)
    world.live(run, 30.0)
    assert world.present == (4, 0)
    world.spot, world.present = 2, NodeCounts(2, 0)
    world.live(run, 1.0)
    assert run.jobs[0].preemption_cost == pytest.approx(0.5, abs=0.06)
    assert world.present == (2, 2)


def test_start_up_is_timed_from_the_first_node() -> None:
    trace = market([0, 0, 4, 4, 4, 4, 4, 4, 4, 4])
    world, run = World({"a": elastic("a", 80, 100.0)}, trace, warm_up=3.0), controller(initial_throughput=1.0)
    world.live(run, 15.0)
    assert run.jobs[0].launch == 0.0
    assert not world.present.all
    world.live(run, 20.0)
    assert run.jobs[0].launch == pytest.approx(0.3, abs=0.06)


def test_a_preemption_costs_a_start_and_unsaved_work() -> None:
    world = World({"a": elastic("a", 80, 100.0)}, market([4] * 10), warm_up=3.0)
    run = controller(initial_throughput=1.0, save_every=2.0)
    world.live(run, 1.0)
    assert run.jobs[0].preemption_cost == pytest.approx(0.2)  # of intervals of ten seconds
    world.live(run, 10.0)
    assert run.jobs[0].preemption_cost == pytest.approx(0.5, abs=0.06)
    world = World({"a": elastic("a", 80, 100.0, save_every=6.0)}, market([4] * 10))
    run = controller(initial_throughput=1.0, save_every=2.0)
    world.live(run, 1.0)
    assert run.jobs[0].preemption_cost == pytest.approx(0.6)  # as the job says


# ---------------------------------------------------------------------------------------- jobs that come, wait and go


def asked(answers: list[Any]) -> list[tuple[str, int | None, str]]:
    """What is asked of jobs: each with its devices and why."""
    return [(answer.job, answer.devices, answer.reason.code) for answer in answers if isinstance(answer, Ask)]


def wanted(answers: list[Any]) -> list[tuple[int, int, str]]:
    """What nodes are wanted, and why."""
    return [(one.spot, one.on_demand, one.reason.code) for one in answers if isinstance(one, NodesWanted)]


def test_a_job_that_comes_within_an_interval_waits_for_the_next_one() -> None:
    world, run = World({"a": elastic("a", 300, 200.0)}, market([4] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    answers = world.submit(run, elastic("b", 60, 100.0))
    assert asked(answers) == [("b", 0, "market.nodes_held")]
    assert wanted(answers) == []
    world.live(run, 6.5)
    assert [ask.job for ask in world.told] == ["a", "b"]
    world.live(run, 1.5)  # it is the more urgent one
    assert [(ask.job, ask.devices) for ask in world.told[2:]] == [("b", 4), ("a", 0)]


def test_a_job_that_cannot_wait_gets_on_demand_nodes_at_once() -> None:
    world, run = World({"a": elastic("a", 300, 200.0)}, market([4] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    answers = world.submit(run, elastic("b", 40, 12.0))
    assert asked(answers) == [("b", 4, "market.nodes_held")]
    assert wanted(answers) == [(4, 4, "market.nodes_for_new")]
    world.live(run, 8.0)
    assert world.held[1] == (4, 4)
    assert world.rows[1].cost == pytest.approx(4 * 0.4 + 4 * 1.0 * 0.7)  # they have come after three seconds


def test_a_job_of_unknown_throughput_gets_its_fewest_devices_at_once() -> None:
    world, run = World({"a": elastic("a", 300, 200.0)}, market([4] * 20)), controller()
    world.live(run, 13.0)
    answers = world.submit(run, replace(elastic("b", 60, 100.0), sizes=(2, 4), min_devices=2))
    assert asked(answers) == [("b", 2, "market.nodes_held")]
    assert wanted(answers) == [(4, 2, "market.nodes_for_new")]


def test_an_idle_pool_wants_nothing_and_begins_again_within_an_interval() -> None:
    world, run = World({}, market([4] * 20)), controller()
    world.live(run, 33.0)
    assert (world.wanted, world.rows, run.wakeup()) == ([], [], None)
    answers = world.submit(run, elastic("a", 30, 60.0))
    assert wanted(answers) == [(0, 1, "market.nodes_for_new")]
    world.live(run, 30.0)
    assert not world.is_active("a")
    assert [row.number for row in world.rows] == [3, 4]
    assert world.held == [(0, 1), (4, 0)]
    assert sum(row.batches for row in world.rows) == 30
    assert wanted(world.wanted[-1:]) == [(0, 0, "market.no_nodes")]
    assert run.wakeup() is None
    world.live(run, 20.0)
    assert len(world.rows) == 2


def test_a_job_begins_no_earlier_than_it_should() -> None:
    world, run = World({"a": elastic("a", 100, 90.0, begin=23.0)}, market([4] * 20)), controller()
    world.live(run, 22.5)
    assert world.asked_for == (0, 0)
    assert world.told == []
    world.live(run, 2.0)
    assert world.asked_for == (0, 1)


def test_a_job_that_is_held_has_no_nodes_from_the_next_interval_on_and_gets_them_again() -> None:
    world, run = World({"a": elastic("a", 300, 300.0)}, market([4] * 30)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    world.paused.add("a")
    assert world.tell(run, Pause("a")) == []
    world.live(run, 6.5)
    assert world.asked_for == (4, 0)
    world.live(run, 13.5)
    assert world.asked_for == (0, 0)
    assert world.held == [(4, 0), (4, 0), (0, 0)]
    world.paused.clear()
    assert asked(world.tell(run, Resume("a"))) == [("a", 0, "market.nodes_held")]  # it can wait for the next interval
    world.live(run, 10.0)
    assert world.asked_for == (4, 0)
    assert asked(world.told[-1:]) == [("a", 4, "market.nodes_held")]


def test_a_job_that_goes_on_without_time_to_wait_gets_its_nodes_at_once() -> None:
    world, run = World({"a": elastic("a", 215, 80.0)}, market([4] * 30)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    world.paused.add("a")
    world.tell(run, Pause("a"))
    world.live(run, 20.0)
    world.paused.clear()
    assert wanted(world.tell(run, Resume("a"))) == [(0, 4, "market.nodes_for_new")]


def test_a_late_job_that_is_held_keeps_no_nodes() -> None:
    world = World({"a": elastic("a", 300, 15.0, on_miss=OnMiss.HOLD)}, market([4] * 30))
    run = controller(initial_throughput=1.0)
    world.live(run, 19.0)
    assert world.asked_for == (0, 4)
    world.live(run, 2.0)
    assert world.asked_for == (0, 0)


# ------------------------------------------------------------------------------------------------ a pool that closes


def test_nodes_stay_in_a_pool_that_closes_until_no_job_holds_a_device() -> None:
    world, run = World({"a": elastic("a", 300, 200.0)}, market([4] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    world.closing = True
    assert world.tell(run, Close("Ctrl-C")) == []
    world.live(run, 5.0)
    assert world.asked_for == (4, 0)
    world.paused.add("a")  # it has left
    world.live(run, 1.0)
    assert wanted(world.wanted[-1:]) == [(0, 0, "market.pool_closes")]
    assert [row.number for row in world.rows] == [0, 1]


def test_a_job_that_does_not_leave_a_pool_that_closes_keeps_nodes_for_a_minute() -> None:
    world, run = World({"a": elastic("a", 300, 200.0)}, market([4] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    world.closing, looks = True, 0
    world.tell(run, Close("Ctrl-C"))
    while world.asked_for.all:
        wakeup = run.wakeup()
        assert wakeup is not None
        assert wakeup >= world.now + 0.2 or wakeup % 10 == 0  # it looks now and then, and is not busy with it
        world.now, looks = wakeup, looks + 1
        world.tell(run, Tick())
    assert world.now == pytest.approx(73.0, abs=0.5)
    assert looks < 300
    # The intervals that passed meanwhile are billed, and the last one until no node is there.
    assert [row.number for row in world.rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [row.cost for row in world.rows[1:]] == pytest.approx([1.6] * 6)
    world.now += 0.5
    world.tell(run, world.nodes)
    assert run.wakeup() is None
    assert world.rows[-1].number == 7
    assert world.rows[-1].cost == pytest.approx((world.now - 70.0) * 0.16)


def test_a_pool_that_was_closed_and_begins_again_goes_on() -> None:
    world, run = World({"a": elastic("a", 300, 200.0)}, market([4] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    world.closing = True
    world.tell(run, Close("Ctrl-C"))
    world.paused.add("a")
    world.live(run, 2.0)
    assert world.asked_for == (0, 0)
    world.closing = False
    world.paused.clear()
    world.tell(run, WorkersLost())
    world.live(run, 6.0)
    assert world.asked_for == (4, 0)
    assert [row.number for row in world.rows] == [0, 1, 1]  # of the second part of the interval nothing was held
    assert world.held[-1] == (0, 0)


# ------------------------------------------------------------------------------------------------ quotes


def test_without_a_first_quote_nothing_is_wanted() -> None:
    world, run = World({"a": elastic("a", 100, 80.0)}), controller()
    world.live(run, 5.0)
    assert (world.wanted, world.told, run.wakeup(), run.reference_costs()) == ([], [], None, None)
    assert wanted(world.tell(run, Quoted(0.4, 2))) == [(0, 1, "market.nodes_for_new")]


def test_a_pool_holds_the_nodes_that_are_quoted() -> None:
    world, run = World({"a": elastic("a", 100, 80.0)}), controller(initial_throughput=1.0)
    world.tell(run, Quoted(0.4, 2))
    world.live(run, 12.0)
    assert world.tell(run, Quoted(0.5, 1)) == []  # of the next interval on
    world.live(run, 10.0)
    assert [(row.price, row.available, row.spot) for row in world.rows] == [(0.4, 2, 2), (0.4, 2, 2)]
    world.live(run, 10.0)
    assert (world.rows[2].price, world.rows[2].available, world.rows[2].spot) == (0.5, 1, 1)
    others = run.reference_costs()
    assert others is not None
    assert others[1] <= others[0]


def test_of_an_old_quote_no_more_spot_nodes_count_than_are_there() -> None:
    world, run = World({"a": elastic("a", 300, 300.0)}), controller(initial_throughput=1.0)
    world.spot = 2
    world.tell(run, Quoted(0.4, 4))
    world.live(run, 9.5)
    assert world.asked_for == (4, 0)
    world.live(run, 10.5)  # at 10 s the quote is of this interval and no older
    assert world.held[0] == (2, 0)
    world.live(run, 5.0)
    assert world.asked_for == (2, 0)
    world.tell(run, Quoted(0.4, 4))
    world.live(run, 6.0)
    assert world.asked_for == (4, 0)


def test_a_quote_for_an_interval_that_has_begun_is_ignored() -> None:
    world, run = World({"a": elastic("a", 300, 300.0)}, market([2] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    assert world.tell(run, Quoted(0.1, 4, interval=1)) == []
    assert world.tell(run, Quoted(0.1, 4, interval=0)) == []
    world.live(run, 8.0)
    assert [(row.price, row.available) for row in world.rows] == [(0.4, 2)] * 2
    world.tell(run, Quoted(0.1, 4, interval=3))
    world.live(run, 10.0)
    assert (world.asked_for, world.rows[2].price) == ((4, 0), 0.4)


def test_trouble_of_the_cloud_changes_nothing() -> None:
    world, run = World({"a": elastic("a", 300, 300.0)}, market([2] * 20)), controller(initial_throughput=1.0)
    world.live(run, 13.0)
    world.tell(run, Tick())
    wakeup = run.wakeup()
    assert world.tell(run, CloudTrouble(CloudPart.NODES, "no capacity")) == []
    assert run.wakeup() == wakeup


# ------------------------------------------------------------------------------------------------ nodes


def test_nodes_that_were_not_wanted_are_billed_as_surplus() -> None:
    world, run = World({"a": elastic("a", 300, 300.0)}, market([2] * 20)), controller(initial_throughput=1.0)
    world.live(run, 10.0)
    world.present = NodeCounts(2, 3)
    world.live(run, 11.0)
    assert world.held[1] == (2, 0)
    assert world.rows[1].cost == pytest.approx(0.8 + 3 * 1.0)
    assert world.rows[1].surplus == pytest.approx(3.0)


def test_nodes_that_do_not_come_are_not_paid_for_and_wanted_all_the_same() -> None:
    world, run = World({"a": elastic("a", 300, 300.0)}, market([4] * 20), spot=1), controller(initial_throughput=1.0)
    world.live(run, 21.0)
    assert world.held == [(1, 0)] * 2
    assert [row.cost for row in world.rows] == pytest.approx([9.5 * 0.04, 0.4])
    assert world.asked_for == (4, 0)
    assert [(ask.job, ask.devices) for ask in world.told] == [("a", 4)]


def test_on_demand_nodes_that_are_lost_are_wanted_all_the_same() -> None:
    world, run = World({"a": elastic("a", 180, 50.0)}, market([0] * 20)), controller(initial_throughput=1.0)
    world.live(run, 3.0)
    assert world.asked_for == (0, 4)
    world.on_demand, world.present = 2, NodeCounts(0, 2)
    told = len(world.wanted)
    world.live(run, 4.0)
    assert (world.asked_for, len(world.wanted)) == ((0, 4), told)
    world.on_demand = 4
    world.live(run, 4.0)
    assert world.rows[0].on_demand == 4
    assert world.present == (0, 4)


def test_spot_nodes_that_are_lost_for_one_job_are_replaced_for_that_one() -> None:
    jobs = {"a": elastic("a", 190, 50.0), "b": elastic("b", 40, 500.0)}
    world, run = World(jobs, market([8] * 60)), controller(initial_throughput=1.0)
    world.live(run, 2.0)
    assert world.asked_for == (8, 0)
    world.spot, world.present = 6, NodeCounts(6, 0)  # the nodes that are left belong to the more urgent one
    world.live(run, 1.0)
    assert world.asked_for == (8, 0)
    world.spot, world.present = 1, NodeCounts(1, 0)
    world.live(run, 1.0)
    assert wanted(world.wanted[-1:]) == [(1, 3, "market.nodes_replaced")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"interval": 0.0}, "interval must be at least 0.01 seconds, got 0.0"),
        ({"save_every": -1.0}, "save_every must be at least 0 seconds, got -1.0"),
        (
            {"policy": "chian"},
            "spot policy must be one of ahanp, ahap, all-or-nothing, chain, max-spot, "
            "next-lifetime, on-demand, semi-markov, uniform-progress, got 'chian'; did you mean",
        ),
        ({"policy": "ahap:omega=0"}, "omega must be at least 1 interval, got 0"),
        (
            {"forecaster": "perfect"},
            "forecaster must be one of last, autoregressive, seasonal, arima where the future is not recorded, got",
        ),
        ({"minimum_charge": -1.0}, "minimum_charge must be at least 0 seconds, got -1.0"),
        ({"kept_fraction": 0.0}, "kept_fraction must be above 0 and at most 1, got 0.0"),
        ({"initial_throughput": 0.0}, "initial_throughput must be positive and finite, got 0.0"),
    ],
)
def test_terms_of_a_market_out_of_their_range_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        controller(**arguments)
    with pytest.raises(StateError, match="not the state of a market: KeyError"):
        controller().restore({})


def test_after_an_absence_plans_wait_a_little_for_a_quote() -> None:
    world = World({"a": elastic("a", 400, 600.0)}, market([4] * 60))
    run = controller(initial_throughput=1.0)
    world.live(run, 15.0)
    wanted = world.asked_for
    assert wanted.spot == 4
    world.now = 60.5  # the scheduler did not run, and nothing was quoted
    assert world.tell(run, WallClock(1.0)) == []
    assert world.asked_for == wanted
    world.live(run, 1.0)
    assert world.asked_for == wanted
    assert [row.number for row in world.rows] == [0, 1, 2, 3, 4, 5]
    # Without a quote they do not wait for long.
    world.now, world.trace = 121.5, None
    assert next(type(answer) for answer in world.tell(run, Tick())) is IntervalEnded
