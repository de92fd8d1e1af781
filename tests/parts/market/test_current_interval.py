"""The interval in progress: what is asked for while nodes change, and the record of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_core.core.answers import JobStatus, State
from lightning_core.parts.market.cloud_events import IntervalEnded
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.online.current_interval import CurrentInterval, Toll

SECONDS = 100.0
NONE = NodeCounts()


def status(
    name: str, devices: int = 1, incarnation: int = 1, restarts: int = 0, lost_batches: int = 0, first: int = 0,
    share: float = 1.0, beside: tuple[str, ...] = (),
) -> JobStatus:  # fmt: skip
    base: Any = dict.fromkeys(JobStatus.__dataclass_fields__)
    return JobStatus(**base | {
        "name": name, "state": State.RUNNING, "share": share, "beside": beside,
        "devices": tuple(range(first, first + devices)),
        "incarnation": incarnation, "restarts": restarts, "lost_batches": lost_batches,
    })  # fmt: skip


def interval(planned: NodeCounts, present: NodeCounts, *jobs: JobStatus) -> CurrentInterval:
    """Return the fourth interval; a spot node costs half as much as an on-demand node."""
    tolls = {job.name: Toll.of(job) for job in jobs}
    return CurrentInterval(3, 300.0, 0.5, 4, 1.0, planned, present, tolls)


def test_its_record_has_the_largest_number_held_and_means_over_its_time() -> None:
    now = interval(NodeCounts(2, 1), NodeCounts(1, 1))
    now.count(340.0, [status("a", 2), status("b", 1, first=2)], NodeCounts(2, 1), billed=4)
    now.count(380.0, [status("a", 3)], NodeCounts(1, 0), billed=3)
    now.batches = 5
    # Three devices for all of 80 s; of four nodes billed for 40 s, three were held.
    assert now.record({}, 7, 1.25) == IntervalEnded(3, 0.5, 4, 2, 1, 0.5, 3.0, 1.25, 12, 0, 0, 0)
    assert now.unobserved(4, 0.6, 3, 1.0, 2.0) == IntervalEnded(4, 0.6, 3, 2, 1, 0.0, 0.0, 2.0, 0, 0, 0, 0)


def test_a_device_on_which_several_train_counts_once() -> None:
    now = interval(NodeCounts(1, 0), NodeCounts(1, 0))
    pair = [status("a", beside=("b",)), status("b", share=0.0, beside=("a",))]
    now.count(350.0, pair, NodeCounts(1, 0), billed=1)
    now.count(400.0, [status("a", share=0.5), status("b", share=0.5)], NodeCounts(1, 0), billed=1)
    assert now.record({}, 0, 0.0).used == 1.0


def test_its_record_has_what_faults_have_cost_since_it_began() -> None:
    now = interval(NodeCounts(1, 0), NodeCounts(1, 0), status("a", 1, 2, 1, 40), status("b", 1, 5, 3, 10))
    assert now.record({}, 0, 0.0)[-3:] == (0, 0, 0)
    ended = {
        "a": status("a", 1, 4, 2, 70), "b": status("b", 1, 1, 0, 25),  # "b" means another job now
        "c": status("c", 1, 9, 9, 99),  # it came later
    }  # fmt: skip
    assert now.record(ended, 0, 0.0)[-3:] == (2, 1, 45)


def test_surplus_nodes_stay_until_what_replaces_them_is_warm() -> None:
    now = interval(NodeCounts(2, 0), NodeCounts(0, 2))
    assert now.begin(warm=2) == NodeCounts(2, 2)
    assert now.hands_over
    assert now.settle(310.0, NodeCounts(1, 2), 2, SECONDS) is None
    assert now.settle(320.0, NodeCounts(2, 2), 2, SECONDS) is None  # they are there, and cold
    assert now.settle(330.0, NodeCounts(2, 2), 4, SECONDS) == NodeCounts(2, 0)
    assert (now.hands_over, now.requested) == (False, NodeCounts(2, 0))
    assert now.settle(340.0, NodeCounts(2, 0), 2, SECONDS) is None


def test_surplus_nodes_for_which_no_replacement_comes_are_held_if_there_is_money() -> None:
    for money, requested in ((None, NodeCounts(2, 1)), (0.8, NodeCounts(2, 1)), (0.7, NodeCounts(2, 0))):
        now = interval(NodeCounts(2, 0), NodeCounts(1, 2))
        now.begin(warm=3)
        assert now.settle(350.0, NodeCounts(1, 2), 3, SECONDS, money) is None  # half of it is not over yet
        # Two spot nodes and one other cost 2 an interval, of which .4 are left.
        assert now.settle(360.0, NodeCounts(1, 2), 3, SECONDS, money) == requested
        assert (now.requested, now.hands_over) == (requested, requested.on_demand > 0)


def test_nothing_is_handed_over_where_all_planned_nodes_are_there_and_warm() -> None:
    now = interval(NodeCounts(1, 1), NodeCounts(3, 1))
    assert now.begin(warm=4) == NodeCounts(1, 1)
    assert not now.hands_over
    cold = interval(NodeCounts(1, 1), NodeCounts(3, 1))
    assert cold.begin(warm=3) == NodeCounts(2, 1)  # one of them does not train yet


def test_after_a_preemption_those_spot_nodes_are_asked_for_that_are_left() -> None:
    now = interval(NodeCounts(3, 0), NodeCounts(3, 0))
    rest = now.rest(325.0, NodeCounts(1, 0), SECONDS)
    assert (rest.elapsed, rest.preempted) == (0.25, True)
    assert now.add(rest, NodeCounts(0, 2)) == NodeCounts(1, 2)
    rest = now.rest(350.0, NodeCounts(1, 2), SECONDS)
    assert not rest.preempted
    assert now.add(rest, NodeCounts(1, 0)) == now.planned == NodeCounts(2, 2)
    now.replan(360.0, NodeCounts(0, 1), 0.6, 2, 1.2)
    assert now.rest_of_cost(NodeCounts(1, 1), 375.0, SECONDS) == pytest.approx(0.45)
    assert now.rest_of_cost(NodeCounts(1, 1), 500.0, SECONDS) == 0.0
    now.give_up()
    assert (now.planned, now.requested, now.hands_over) == (NONE, NONE, False)


def test_an_interval_that_was_saved_goes_on() -> None:
    now = interval(NodeCounts(2, 1), NodeCounts(1, 1), status("a", 1, 2, 1, 40))
    now.begin(warm=1)
    now.count(340.0, [status("a", 2)], NodeCounts(2, 1), billed=4)
    again = CurrentInterval.of(json.loads(json.dumps(now.state())))
    assert again == now
