"""The published reconfiguration under higher demand than planned: tasks grow, move or are left, with the reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_core.parts.edge_cloud.placement import (
    CLOUD,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    PlacedJob,
    SampleNeeds,
    Task,
    TaskPlacement,
    Weights,
    plan,
)
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits, Reconfigurer
from lightning_core.parts.edge_cloud.placement.replanner import Replanner

GPUS = {"v100": Gpu(2.0)}
LEVELS = {"fp32": Level(0.9, {"v100": 150.0})}


def planned(gpu_count: dict[str, float], **jobs: PlacedJob) -> TaskPlacement:
    """Return a plan that uses the cheaper edge where it has room. A task of rate 15 takes ten GPUs, of 18 twelve."""
    nodes = {name: Node({"v100": has}) for name, has in gpu_count.items()}
    demands = Demands(("day",), GPUS, LEVELS, nodes, jobs, Cloud(delay=40.0), EdgePrices(0.5))
    return plan(demands, Weights(1.0, 0.0)).placement


def near(tasks: int = 1, **more: Any) -> PlacedJob:
    return replace(PlacedJob((tasks,), 15.0, 0.4, delay=20.0), **more)


def test_a_task_grows_where_there_is_room() -> None:
    now = Reconfigurer(planned({"n": 12.0}, a=near()), 0)
    [change] = now.serve({"a": 18.0})
    assert (change.kind, change.before.gpu_count, change.after.gpu_count, change.reason) == (
        "grown",
        10,
        12,
        "there is room in n",
    )
    [back] = now.serve({"a": 15.0})
    assert (back.kind, back.after.gpu_count) == ("released", 10)
    assert back.reason == "demand is lower: the additional GPUs are given back"
    assert not now.serve({"a": 15.0})


def test_a_task_that_shrinks_frees_what_it_held_and_no_more() -> None:
    """Two tasks hold twelve of 24 GPUs each; one gives two back, and the other, which wants sixteen, may have these."""
    now = Reconfigurer(planned({"n": 24.0}, a=near(rate=18.0), b=near(rate=18.0)), 0)
    shrunk, grown = now.serve({"a": 15.0, "b": 24.0})
    assert (shrunk.kind, shrunk.before.gpu_count, shrunk.after.gpu_count) == ("released", 12, 10)
    assert (grown.kind, grown.after.gpu_count) == ("partly", 14)


def standing(location: str, gpu_count: dict[str, float], **jobs: PlacedJob) -> TaskPlacement:
    """Return a placement of all tasks at one location, whether a plan would choose it or not."""
    demands = planned(gpu_count, **jobs).demands
    return TaskPlacement(demands, {
        Task(name, number): (next(one for one in demands.choices(job.during(0)) if one.location == location),)
        for name, job in jobs.items() for number in range(job.tasks[0])
    })  # fmt: skip


def test_a_task_without_room_moves_and_stays_there() -> None:
    now = Reconfigurer(standing("n", {"n": 11.0, "m": 12.0}, a=near()), 0)
    [moved] = now.serve({"a": 18.0})
    assert (moved.kind, moved.after.location) == ("moved", "m")
    assert moved.reason == "11 of 12 v100 are free in n, m has room"
    [back] = now.serve({"a": 15.0})
    assert (back.kind, back.after.location) == ("released", "m")
    small = Reconfigurer(standing("n", {"n": 11.0, "m": 11.0}, a=near()), 0)
    [left] = small.serve({"a": 18.0})
    assert left.reason == "11 of 12 v100 are free in n, and no other location has room"


def test_some_tasks_of_a_job_may_grow_and_others_not() -> None:
    """Each task releases what it took, and a task that was left is served once there is room."""
    now = Reconfigurer(standing("n", {"n": 22.0}, a=near(2)), 0)
    assert [change.kind for change in now.serve({"a": 18.0})] == ["grown", "left"]
    assert [change.kind for change in now.serve({"a": 18.0})] == ["left"]
    assert [change.kind for change in now.serve({"a": 15.0})] == ["released"]
    assert [change.kind for change in now.serve({"a": 16.5})] == ["grown", "grown"]
    assert sum(choice.gpu_count for choice in now.now.values()) == 22


def test_pinned_tasks_and_too_expensive_moves_are_left() -> None:
    [left] = Reconfigurer(planned({"n": 10.0}, a=near(moves=False)), 0).serve({"a": 18.0})
    assert (left.kind, left.reason) == ("left", "10 of 12 v100 are free in n, and it must not move")
    far = near(delay=90.0)
    [dear] = Reconfigurer(planned({"n": 10.0}, a=far), 0, ReconfigurationLimits(cost=0.5)).serve({"a": 18.0})
    assert dear.kind == "left"
    assert "cloud would cost 2." in dear.reason
    [moved] = Reconfigurer(planned({"n": 10.0}, a=far), 0, ReconfigurationLimits(cost=5.0)).serve({"a": 18.0})
    assert (moved.kind, moved.after.location) == ("moved", CLOUD)
    [none] = Reconfigurer(planned({"n": 10.0}, a=far), 0, ReconfigurationLimits(5.0, moves=0)).serve({"a": 18.0})
    assert (none.kind, none.reason) == (
        "left",
        "10 of 12 v100 are free in n, and 0 tasks have moved already, the limit",
    )


def test_a_task_moves_to_the_cheapest_location() -> None:
    """The cloud comes first by name, and costs twice as much."""
    now = Reconfigurer(standing("n", {"n": 11.0, "z": 12.0}, a=near(delay=90.0)), 0, ReconfigurationLimits(cost=9.0))
    assert [change.after.location for change in now.serve({"a": 18.0})] == ["z"]


@pytest.mark.parametrize(("part", "kind"), [(1.0, "moved"), (0.999, "left")])
def test_a_move_may_cost_as_much_as_its_limit(part: float, kind: str) -> None:
    """A change is affordable if cost - planned <= limit * planned."""
    placement = standing("n", {"n": 10.0}, a=near(delay=90.0))
    [before] = placement.served[Task("a", 0)]
    assert before is not None
    more = next(
        one for one in placement.demands.choices(near(delay=90.0, rate=18.0).during(0)) if one.location == CLOUD
    )
    limits = ReconfigurationLimits(cost=part * (more.cost / before.cost - 1))
    assert [change.kind for change in Reconfigurer(placement, 0, limits).serve({"a": 18.0})] == [kind]


def test_another_gpu_type_is_used_within_the_cost_limit() -> None:
    gpus, levels = {**GPUS, "eight": Gpu(16.0)}, {"fp32": Level(0.9, {"v100": 150.0, "eight": 1100.0})}
    nodes = {"n": Node({"v100": 11.0, "eight": 3.0})}
    demands = Demands(("day",), gpus, levels, nodes, {"a": near()}, Cloud(delay=40.0), EdgePrices(0.5))
    choice = next(
        one for one in demands.choices(demands.jobs["a"].during(0)) if (one.location, one.gpu) == ("n", "v100")
    )
    placement = TaskPlacement(demands, {Task("a", 0): (choice,)})
    now = Reconfigurer(placement, 0, ReconfigurationLimits(cost=1.0))
    [grown] = now.serve({"a": 18.0})
    assert (grown.kind, grown.after.gpu, grown.after.gpu_count) == ("grown", "eight", 2)
    assert now.now == {Task("a", 0): grown.after}
    assert grown.reason == "11 of 12 v100 are free in n, but 2 eight are"
    [partly] = Reconfigurer(placement, 0, ReconfigurationLimits(cost=0.2)).serve({"a": 18.0})
    assert (partly.kind, partly.after.gpu, partly.after.gpu_count) == ("partly", "v100", 11)


def test_a_task_takes_what_is_left_if_it_cannot_have_all() -> None:
    now = Reconfigurer(standing("n", {"n": 22.0}, a=near(moves=False), b=near(moves=False)), 0)
    [partly] = now.serve({"a": 22.5})
    assert (partly.kind, partly.before.gpu_count, partly.after.gpu_count) == ("partly", 10, 12)
    assert partly.reason == "12 of 15 v100 are free in n, and it must not move"
    assert [change.kind for change in now.serve({"a": 22.5})] == ["left"]
    [back] = now.serve({"a": 15.0})
    assert (back.kind, back.after.gpu_count) == ("released", 10)
    parts = replace(planned({"n": 22.0}, a=near()).demands, whole=False, nodes={"n": Node({"v100": 11.0}, 6.5)})
    choice = next(one for one in parts.choices(parts.jobs["a"].during(0)) if one.location == "n")
    thin = Reconfigurer(TaskPlacement(parts, {Task("a", 0): (choice,)}), 0)
    [partly] = thin.serve({"a": 30.0})
    assert partly.after.gpu_count == pytest.approx(10 * 6.5 / 0.4 / 15)  # its line is full before its GPUs are
    few = replace(parts, nodes={"n": Node({"v100": 11.0}, aggregation=32.0)}, jobs={"a": near(aggregation=2.0)})
    short = Reconfigurer(TaskPlacement(few, {Task("a", 0): (choice,)}), 0)
    [partly] = short.serve({"a": 30.0})
    assert partly.after.gpu_count == pytest.approx(10 * 32.0 / 2.0 / 15)  # its processors are, before its GPUs (eq. 7)


@pytest.mark.parametrize(
    ("needs", "node", "rate"),
    [
        (SampleNeeds(sample=0.5), Node({"v100": 11.0}, bandwidth=8.0), 8.0 / 0.5),
        (SampleNeeds(aggregation=2.0), Node({"v100": 11.0}, aggregation=31.0), 31.0 / 2.0),
    ],
)
def test_what_is_left_is_counted_in_samples_of_the_level_at_which_a_task_trains(
    needs: SampleNeeds, node: Node, rate: float
) -> None:
    job = near(aggregation=1.0, levels={"fp32": needs})
    demands = replace(planned({"n": 22.0}, a=near()).demands, whole=False, nodes={"n": node}, jobs={"a": job})
    choice = demands.choice(job.during(0), "n", "v100", "fp32")
    now = Reconfigurer(TaskPlacement(demands, {Task("a", 0): (choice,)}), 0)
    [partly] = now.serve({"a": 30.0})
    assert partly.kind == "partly"
    assert now._rates[Task("a", 0)] == pytest.approx(rate)


def test_what_is_just_enough_is_not_what_a_task_lacks() -> None:
    parts = planned({"n": 22.0}, a=near(moves=False)).demands
    demands = replace(parts, nodes={"n": Node({"v100": 12.0}, bandwidth=7.0)})
    choice = demands.choice(demands.jobs["a"].during(0), "n", "v100", "fp32")
    [left] = Reconfigurer(TaskPlacement(demands, {Task("a", 0): (choice,)}), 0).serve({"a": 18.0})
    assert left.reason == "7 of 7.2 bandwidth are free in n, and it must not move"


@pytest.mark.parametrize("kind", [Reconfigurer, Replanner])
def test_a_surge_needs_the_processing_of_its_period(kind: type[Reconfigurer]) -> None:
    """A sample by day takes twice the processing of one by night: 15 a second 10 GPUs, and 20 of them 14."""
    job = replace(near(), tasks=(1, 1), rate=7.5, processing=(1.0, 2.0))
    demands = Demands(("night", "day"), GPUS, LEVELS, {"n": Node({"v100": 14.0})}, {"a": job}, Cloud(delay=40.0))
    stands = tuple(demands.choice(job.during(period), "n", "v100", "fp32") for period in (0, 1))
    placement = TaskPlacement(demands, {Task("a", 0): stands})
    [night], [day] = (kind(placement, period).serve({"a": 10.0}) for period in (0, 1))
    assert [(one.kind, one.before.gpu_count, one.after.gpu_count) for one in (night, day)] == [
        ("grown", 5.0, 7.0), ("grown", 10.0, 14.0),
    ]  # fmt: skip
    now = kind(placement, 1)
    [partly] = now.serve({"a": 30.0})
    assert (partly.kind, partly.after.gpu_count) == ("partly", 14.0)
    assert now._rates[Task("a", 0)] == pytest.approx(14.0 * 150.0 / 100.0 / 2.0)


def test_the_task_that_lacks_the_most_comes_first() -> None:
    now = Reconfigurer(planned({"n": 26.0}, a=near(), b=near()), 0)
    changes = now.serve({"a": 18.0, "b": 22.5})
    assert [(change.task.job, change.kind) for change in changes] == [("b", "grown"), ("a", "partly")]


@pytest.mark.parametrize(
    ("arrival_rates", "words"),
    [({"c": 1.0}, "arrival_rates must be of the jobs a, got 'c'"), ({"a": 0.0}, "rate must be positive, got 0.0")],
)
def test_invalid_arrival_rates_are_refused(arrival_rates: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Reconfigurer(planned({"n": 12.0}, a=near()), 0).serve(arrival_rates)


@pytest.mark.parametrize(("cost", "moves", "words"), [(-1.0, 1, "cost must be at least 0"), (1.0, -1, "moves must be")])
def test_invalid_limits_are_refused(cost: float, moves: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ReconfigurationLimits(cost, moves)
