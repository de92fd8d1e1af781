"""The market: the nodes that it wants interval by interval, and what they cost, by values worked by hand."""

from __future__ import annotations

import pytest

from lightning_core.core.conformance import saved_and_restored
from lightning_core.market.online.node_counts import NodeCounts
from tests.control.market_world import CACHES, World, controller, elastic, market

TWO_PLACES = market([2, 2, 0, 0, 4, 4, 4, 4])


def test_a_run_holds_its_planned_nodes_and_returns_them() -> None:
    world, run = World({"a": elastic("a", 100, 80.0)}, TWO_PLACES), controller()
    world.live(run, 60.0)
    assert [ask.devices for ask in world.told][:3] == [1, 2, 0]
    # The first interval measures its throughput.
    assert world.held[:3] == [(0, 1), (2, 0), (0, 0)]
    assert world.rows[1].batches == pytest.approx(20, abs=2)
    assert world.rows[1].cost == pytest.approx(0.8)
    assert world.batches["a"] == 100
    assert world.asked_for == (0, 0)
    assert world.spent == pytest.approx(sum(row.spot * 0.4 + row.on_demand for row in world.rows))
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


def test_nodes_stay_if_no_replacement_comes() -> None:
    world, run = World({"a": elastic("a", 300, 100.0)}, market([2] * 12), spot=0), controller()
    world.live(run, 14.0)
    assert world.asked_for == (2, 1)
    world.live(run, 2.0)
    assert world.asked_for == (2, 1)  # no node has come: the old one stays, and is paid for
    world.live(run, 5.0)
    assert (world.held[1], world.rows[1].cost) == ((0, 1), 1.0)


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
    assert job.growth_fraction == 1.0  # nothing is known of it
    world.live(run, 10.0)
    assert run.jobs[0].growth_fraction == pytest.approx(0.7, abs=0.06)  # until the first batch
    world.warm_up = 4.0
    world.live(run, 60.0)
    assert run.jobs[0].growth_fraction == pytest.approx(0.6, abs=0.06)  # nodes that came again


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
    assert run.jobs[0].growth_fraction == 1.0
    assert not world.present.all
    world.live(run, 20.0)
    assert run.jobs[0].growth_fraction == pytest.approx(0.7, abs=0.06)


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
