"""Placement of tasks over the day: the plan compared with every possible plan, and invalid demands."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.parts.edge_cloud.placement import (
    CLOUD,
    RECONFIGURERS,
    Choice,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    InfeasibleError,
    Level,
    Node,
    ObjectiveRanges,
    PlacedJob,
    SampleNeeds,
    Task,
    TaskPlacement,
    Weights,
    plan,
)
from lightning_core.parts.edge_cloud.placement.baselines import incremental, one_period, only
from lightning_core.parts.edge_cloud.placement.milp_model import MilpModel
from lightning_core.parts.edge_cloud.placement.plan import usage
from lightning_core.parts.edge_cloud.placement.planner import group_tasks
from tests.examples import examples

GPUS = {"v100": Gpu(2.08)}
LEVELS = {"fp32": Level(0.9, {"v100": 166.0}), "mixed": Level(0.7, {"v100": 566.0})}


def demands(jobs: dict[str, PlacedJob], nodes: dict[str, Node] | None = None, **more: Any) -> Demands:
    count = len(next(iter(jobs.values())).tasks)
    there = {"edge": Node({"v100": 20})} if nodes is None else nodes
    return Demands(tuple("abcdef"[:count]), GPUS, LEVELS, there, jobs, **more)


def job(*tasks: int, **more: Any) -> PlacedJob:
    return PlacedJob(tasks, **{"rate": 15.0, "sample": 0.4, **more})


# ------------------------------------------------------------------------------------------------- what things cost


def test_costs_of_a_task_with_the_published_prices() -> None:
    """3 GPUs in mixed arithmetic; the cloud costs 0.054 to 0.063 a task, the edge 0.078."""
    found = {}
    for sample in (0.4, 2.4):
        wanted = demands({"a": job(1, sample=sample)})
        for choice in wanted.choices(wanted.jobs["a"].during(0)):
            found[choice.location, choice.level, sample] = choice
    mixed = {
        location: [round(found[location, "mixed", sample].cost, 3) for sample in (0.4, 2.4)]
        for location in ("edge", CLOUD)
    }
    assert mixed == {"edge": [0.078, 0.079], CLOUD: [0.054, 0.063]}
    assert found["edge", "mixed", 0.4].gpu_count == 3
    assert found["edge", "fp32", 0.4].gpu_count == 10  # 9.04, whole
    parted = demands({"a": job(1)}, whole=False)
    assert parted.choices(parted.jobs["a"].during(0))[0].gpu_count == pytest.approx(9.036, abs=1e-3)


def test_choices_respect_delay_and_accuracy() -> None:
    wanted = demands({"a": job(1, delay=30.0, accuracy=0.8)}, cloud=Cloud(delay=40.0))
    assert [(choice.location, choice.level) for choice in wanted.choices(wanted.jobs["a"].during(0))] == [
        ("edge", "fp32")
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gpu(0.0), "price must be positive and finite, got 0.0"),
        (lambda: Level(1.2, {"v100": 1.0}), "accuracy must be 0 to 1, got 1.2"),
        (lambda: Level(0.5, {}), "at least one type of GPU, got none"),
        (lambda: Level(0.5, {"v100": 0.0}), "v100 must be positive and finite, got 0.0"),
        (lambda: Node({"v100": -1}), "v100 must be at least 0, got -1"),
        (lambda: Node({}, bandwidth=-1.0), "bandwidth must be at least 0, got -1.0"),
        (lambda: Node({}, aggregation=math.nan), "aggregation must be at least 0, got nan"),
        (lambda: Cloud(gigabyte=-0.1), "gigabyte must be at least 0 and finite, got -0.1"),
        (lambda: Cloud(delay=-1.0), "delay must be at least 0 and finite, got -1"),
        (lambda: EdgePrices(gigabyte=-0.1), "gigabyte must be at least 0 and finite, got -0.1"),
        (lambda: EdgePrices(gpu=math.nan), "gpu must be at least 0 and finite, got nan"),
        (lambda: job(), "a whole number for each period"),
        (lambda: job(1, 1.5), "a whole number for each period"),  # type: ignore[arg-type]
        (lambda: job(2, -1), "a whole number for each period"),
        (lambda: job(0, 0), "at least one of them, got \\(0, 0\\)"),
        (lambda: job(1, 1, rate=(1.0,)), "rate must have one entry per period, 2, got 1"),
        (lambda: job(1, sample=[1.0, 2.0]), "sample must have one entry per period, 1, got 2"),
        (lambda: job(1, 1, aggregation=()), "aggregation must have one entry per period, 2, got 0"),
        (lambda: job(1, 1, rate=(1.0, 0.0)), "rate must be positive and finite, got 0.0"),
        (lambda: job(1, 1, sample=(math.inf, 1.0)), "sample must be positive and finite, got inf"),
        (lambda: job(1, 1, aggregation=(0.0, -1.0)), "aggregation must be at least 0, got -1.0"),
        (lambda: job(1, 1, processing=(1.0,)), "processing must have one entry per period, 2, got 1"),
        (lambda: job(1, 1, processing=(1.0, 0.0)), "processing must be positive and finite, got 0.0"),
        (lambda: job(1, rate=0.0), "rate must be positive and finite, got 0.0"),
        (lambda: job(1, accuracy=2.0), "accuracy must be 0 to 1, got 2.0"),
        (lambda: job(1, delay=math.nan), "delay must be at least 0, got nan"),
        (lambda: Weights(-1.0), "cost must be at least 0, got -1.0"),
        (lambda: Weights(0.0, 0.0, 0.0), "at least one weight must be above 0"),
        (
            lambda: demands({"a": job(1), "b": job(1, 2)}),
            "job b: tasks must be 1 numbers, one a period, got \\(1, 2\\)",
        ),
        (
            lambda: demands({"a": job(1, accuracy=0.95)}),
            "job a: accuracy must be at most that of the best level, 0.9, got 0.95",
        ),
        (
            lambda: job(1, 1, levels={"mixed": SampleNeeds(processing=(1.0, 0.0))}),
            "processing at level mixed must be positive and finite, got 0.0",
        ),
        (
            lambda: job(1, 1, levels={"mixed": SampleNeeds(sample=(1.0,))}),
            "sample at level mixed must have one entry per period, 2, got 1",
        ),
        (
            lambda: demands({"a": job(1, levels={"int8": SampleNeeds()})}),
            "job a: levels must be of fp32, mixed, got 'int8'",
        ),
        (lambda: demands({"a": job(1)}, {CLOUD: Node({})}), "a node must not be called 'cloud'"),
        (lambda: demands({"a": job(1)}, {"n": Node({"h100": 1})}), "node n: must have GPUs of v100, got 'h100'"),
        (lambda: demands({"a": job(1)}, window=0.0), "window must be positive and finite, got 0.0"),
        (lambda: Demands((), GPUS, LEVELS, {}, {"a": job(1)}), "periods must have distinct names"),
        (lambda: Demands(("a",), GPUS, LEVELS, {}, {}), "jobs must have at least one entry, got none"),
    ],
)
def test_invalid_demands_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# ------------------------------------------------------------------------------------------------- the best of all


def every(wanted: Demands) -> list[TaskPlacement]:
    """Return all feasible plans."""
    tasks = [Task(name, k) for name, one in wanted.jobs.items() for k in range(max(one.tasks))]
    ways = []
    for task in tasks:
        one = wanted.jobs[task.job]
        there: list[list[Choice | None]] = [
            list(wanted.choices(one.during(period))) if task.number < count else [None]
            for period, count in enumerate(one.tasks)
        ]
        ways.append(list(product(*there)))
    found = []
    for served in product(*ways):
        placement = TaskPlacement(wanted, dict(zip(tasks, served, strict=True)))
        try:
            placement.check()
        except AssertionError:
            continue
        found.append(placement)
    return found


def check_best(wanted: Demands) -> TaskPlacement:
    """Check the planner against every plan, under several weights; return the last placement."""
    for weights in (Weights(1.0, 0.0), Weights(1.0, 0.0, 0.3), Weights(0.5, 0.5, 0.1)):
        solution = plan(wanted, weights, gap=0.0)
        solution.placement.check()
        best = min(solution.ranges.objective(weights, one.cost, one.accuracy, one.moves) for one in every(wanted))
        assert solution.objective == pytest.approx(best, abs=1e-6)
    return solution.placement


@st.composite
def small(draw: st.DrawFn) -> Demands:
    """Demands with few enough tasks to try every plan."""
    periods = draw(st.integers(1, 2))
    jobs = {}
    for name in "xy"[: draw(st.integers(1, 2))]:
        tasks = draw(st.lists(st.integers(0, 2 if periods == 1 else 1), min_size=periods, max_size=periods).filter(any))
        rate, sample, processing = (
            draw(st.one_of(each, st.tuples(*[each] * periods)))
            for each in (st.sampled_from([15.0, 5.0]), st.sampled_from([0.4, 2.4]), st.sampled_from([1.0, 0.5, 2.0]))
        )
        differs = st.builds(SampleNeeds, st.none() | st.just(0.2), st.none(), st.none() | st.sampled_from([0.5, 3.0]))
        jobs[name] = job(
            *tasks, rate=rate, sample=sample, processing=processing, delay=draw(st.sampled_from([20.0, 90.0])),
            accuracy=draw(st.sampled_from([0.0, 0.8])), moves=draw(st.booleans()),
            levels=draw(st.dictionaries(st.sampled_from(sorted(LEVELS)), differs, max_size=2)),
        )  # fmt: skip
    gpu_count = st.integers(0, 22)
    nodes = {
        "n": Node({"v100": draw(gpu_count)}),
        "m": Node({"v100": draw(gpu_count)}, bandwidth=draw(st.sampled_from([5.0, 99.0]))),
    }
    return Demands(tuple("ab"[:periods]), GPUS, LEVELS, nodes, jobs, Cloud(delay=draw(st.sampled_from([10.0, 50.0]))),
                   EdgePrices(draw(st.sampled_from([0.5, 1.5]))))  # fmt: skip


def test_rates_and_sizes_by_period_are_planned_exactly() -> None:
    """By night `a` takes 4 GPUs and 12 MB/s, by day 13 and 8, and no node has both; `c` is like it by night alone."""
    jobs = {
        "a": job(1, 1, rate=(5.0, 20.0), sample=(2.4, 0.4), delay=20.0, accuracy=0.8),
        "b": job(1, 1, rate=(20.0, 5.0), sample=(0.4, 2.4), accuracy=0.8),
        "c": job(1, 1, rate=5.0, sample=2.4, delay=20.0, accuracy=0.8),
    }
    nodes = {"n": Node({"v100": 12.0}, bandwidth=24.0), "m": Node({"v100": 13.0}, bandwidth=8.0)}
    wanted = demands(jobs, nodes, cloud=Cloud(delay=40.0), edge=EdgePrices(0.9))
    placement = check_best(wanted)
    [night, day] = placement.served[Task("a", 0)]
    assert night is not None
    assert day is not None
    assert (night.location, night.gpu_count, day.location, day.gpu_count) == ("n", 4.0, "m", 13.0)
    same = plan(demands({"a": job(2, 1, rate=(15.0, 15.0), sample=(0.4, 0.4), aggregation=(0.0, 0.0))})).placement
    assert same.cost == plan(demands({"a": job(2, 1)})).placement.cost


def test_processing_by_period_is_planned_exactly() -> None:
    """The paper's G: by day `a` needs four times the processing, 13 GPUs in place of 4, for the same data.

    `c` equals `a` by night only, so the planner must not group them.
    """
    jobs = {
        "a": job(1, 1, rate=5.0, processing=(1.0, 4.0), delay=20.0, accuracy=0.8),
        "b": job(1, 1, rate=5.0, processing=(4.0, 1.0), accuracy=0.8),
        "c": job(1, 1, rate=5.0, delay=20.0, accuracy=0.8),
    }
    nodes = {"n": Node({"v100": 12.0}, bandwidth=4.0), "m": Node({"v100": 13.0}, bandwidth=4.0)}
    wanted = demands(jobs, nodes, cloud=Cloud(delay=40.0), edge=EdgePrices(0.9))
    placement = check_best(wanted)
    [night, day] = placement.served[Task("a", 0)]
    assert night is not None
    assert day is not None
    assert (night.gpu_count, day.location, day.gpu_count) == (4.0, "m", 13.0)
    one = wanted.choice(wanted.jobs["a"].during(1), "m", "v100", "fp32")
    like = wanted.choice(job(1, rate=20.0, sample=0.1).during(0), "m", "v100", "fp32")
    assert one == like  # four times the samples, each a fourth of the size
    same = plan(demands({"a": job(2, 1, processing=(1.0, 1.0))})).placement
    assert same.cost == plan(demands({"a": job(2, 1)})).placement.cost


def test_what_a_sample_needs_by_level_is_planned_exactly() -> None:
    """The paper's G and B by accuracy: mixed arithmetic halves the data of `a`, and is dear for `b` by day."""
    jobs = {
        "a": job(1, 1, rate=5.0, sample=0.8, levels={"mixed": SampleNeeds(sample=0.4, processing=2.0)}),
        "b": job(1, 1, rate=5.0, levels={"mixed": SampleNeeds(aggregation=2.0, processing=(0.5, 4.0))}),
        "c": job(1, 1, rate=5.0, sample=0.8),
    }
    nodes = {"n": Node({"v100": 4.0}, bandwidth=4.0), "m": Node({"v100": 5.0}, bandwidth=3.0, aggregation=10.0)}
    wanted = demands(jobs, nodes, cloud=Cloud(delay=40.0), edge=EdgePrices(0.9))
    check_best(wanted)
    a, b = (wanted.jobs[name].during(1) for name in "ab")
    ways = {(needs, level): wanted.choice(needs, "m", "v100", level) for needs in (a, b) for level in LEVELS}
    mixed = LEVELS["mixed"].throughput["v100"] / 100.0
    assert {key: way.gpu_count for key, way in ways.items() if way is not None} == {
        (a, "fp32"): 4.0, (b, "fp32"): 4.0,
        (a, "mixed"): math.ceil(5 * 2 / mixed), (b, "mixed"): math.ceil(5 * 4 / mixed),
    }  # fmt: skip
    used = {key: usage(key[0], way) for key, way in ways.items() if way is not None}
    assert [used[a, level]["bandwidth"] for level in ("fp32", "mixed")] == [4.0, 2.0]
    assert [used[b, level]["aggregation"] for level in ("fp32", "mixed")] == [0.0, 10.0]
    day = ways[b, "mixed"]
    assert day is not None
    assert wanted.served_rate(b, day) == pytest.approx(math.ceil(5 * 4 / mixed) * mixed / 4)
    alone = only(wanted, 1).jobs["b"].during(0)
    assert alone == b


@pytest.mark.parametrize("more", [{"rate": (5.0, 20.0)}, {"rate": 5.0, "processing": (1.0, 4.0), "sample": 1.6}])
def test_baselines_take_each_period_s_own_needs(more: dict[str, Any]) -> None:
    """One task by night and day, four times as much to do by day: the busiest period is the day."""
    jobs = {"a": job(1, 1, **more, delay=20.0, accuracy=0.8)}
    wanted = demands(jobs, {"n": Node({"v100": 13.0})}, cloud=Cloud(delay=40.0))
    solution = plan(wanted, Weights(1.0, 0.0))
    for one in (one_period, incremental):
        placement = one(wanted, Weights(1.0, 0.0), solution.ranges)
        placement.check()
        assert [choice.gpu_count for choice in placement.choices()] == [4.0, 13.0]
        assert placement.held("n", 1)["bandwidth"] == pytest.approx(20.0 * 0.4)
    small = replace(wanted, nodes={"n": Node({"v100": 4.0})})
    assert incremental(small, Weights(1.0, 0.0), solution.ranges).unserved == [(Task("a", 0), 1)]
    with pytest.raises(InfeasibleError, match="1 tasks cannot be served in b"):
        one_period(small, Weights(1.0, 0.0), solution.ranges)


@pytest.mark.stories
@given(
    wanted=small(), weights=st.sampled_from([Weights(), Weights(0.7, 0.2, 0.1), Weights(0.2, 0.7, 0.1), Weights(1, 0)])
)
@settings(max_examples=examples(20), deadline=None)
def test_the_plan_is_optimal(wanted: Demands, weights: Weights) -> None:
    plans = every(wanted) if all(wanted.choices(one.during(0)) for one in wanted.jobs.values()) else []
    if not plans:
        with pytest.raises(ValueError, match=r"cannot be served|no location can serve"):
            plan(wanted, weights)
        return
    solution = plan(wanted, weights, gap=0.0)
    solution.placement.check()
    assert not solution.placement.unserved
    best = min(solution.ranges.objective(weights, one.cost, one.accuracy, one.moves) for one in plans)
    assert solution.objective == pytest.approx(best, abs=1e-6)
    assert solution.bound <= best + 1e-6
    target = sorted(one.accuracy for one in plans)[len(plans) // 2]
    cheapest = plan(wanted, Weights(1.0, 0.0), accuracy=target, gap=0.0).placement
    assert cheapest.accuracy >= target - 1e-6
    assert cheapest.cost == pytest.approx(min(one.cost for one in plans if one.accuracy >= target - 1e-9), abs=1e-6)


@pytest.mark.stories
@given(wanted=small(), weights=st.sampled_from([Weights(), Weights(0.7, 0.2, 0.1), Weights(1, 0)]))
@settings(max_examples=examples(20), deadline=None)
def test_greedy_planning_is_feasible_and_no_better(wanted: Demands, weights: Weights) -> None:
    try:
        solution = plan(wanted, weights, gap=0.0)
    except ValueError:
        return
    rivals = [incremental(wanted, weights, solution.ranges)]
    rivals += [incremental(wanted, weights, solution.ranges, solution.placement.accuracy)]
    try:
        rivals.append(one_period(wanted, weights, solution.ranges))
    except InfeasibleError:
        pytest.fail("a period of a day that can be served can be served")
    for rival in rivals:
        rival.check()
        if not rival.unserved:
            objective = solution.ranges.objective(weights, rival.cost, rival.accuracy, rival.moves)
            assert solution.objective <= objective + 1e-6


def test_greedy_planning_uses_up_the_edge_that_others_need() -> None:
    """The first task takes ten cheap GPUs, and the one that must not use the cloud finds none."""
    jobs = {"far": job(2), "near": job(2, delay=20.0, accuracy=0.8)}
    wanted = demands(jobs, cloud=Cloud(delay=40.0), edge=EdgePrices(0.5))
    solution = plan(wanted, Weights(0.0, 1.0))
    greedy = incremental(wanted, Weights(0.5, 0.5), solution.ranges)
    assert not solution.placement.unserved
    assert [task.job for task, _ in greedy.unserved] in (["near"], ["near", "near"])


@pytest.mark.parametrize(
    ("weights", "places"),
    [(Weights(1.0, 0.0), [CLOUD, "edge"]), (Weights(0.5, 0.0, 0.5), [CLOUD, CLOUD])],
)
def test_one_task_at_a_time_weighs_a_move_against_what_it_saves(weights: Weights, places: list[str]) -> None:
    """The edge, half as dear, has exactly the room of one task; in the first period another job has it."""
    jobs = {"first": job(1, 0, accuracy=0.8), "stays": job(1, 1, accuracy=0.8)}
    wanted = demands(jobs, {"edge": Node({"v100": 10})}, edge=EdgePrices(0.5))
    placement = incremental(wanted, weights, ObjectiveRanges((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)))
    found = {name: [choice and choice.location for choice in placement.served[Task(name, 0)]] for name in jobs}
    assert found == {"first": ["edge", None], "stays": places}


@pytest.mark.parametrize(("cost", "level"), [((0.0, 0.01), "mixed"), ((0.0, 10.0), "fp32")])
def test_one_task_at_a_time_weighs_costs_by_their_range(cost: tuple[float, float], level: str) -> None:
    ranges = ObjectiveRanges(cost, (0.0, 1.0), (0.0, 1.0))
    placement = incremental(demands({"a": job(1)}, {}), Weights(0.5, 0.5), ranges)
    assert [choice and choice.level for choice in placement.served[Task("a", 0)]] == [level]


def test_a_node_without_a_type_of_gpu_has_none_of_it() -> None:
    nodes = {"n": Node({"v100": 10}), "m": Node({"t4": 40})}
    two = Demands(("day",), {"v100": Gpu(2.0), "t4": Gpu(0.1)}, {"fp32": Level(0.9, {"v100": 150.0, "t4": 50.0})},
                  nodes, {"a": job(3, delay=20.0)}, Cloud(delay=40.0))  # fmt: skip
    with pytest.raises(InfeasibleError, match="30 more t4 at the edge would be needed; free: n 0, m 10"):
        plan(two)


@pytest.mark.parametrize("prices", [(2.0, 1.0), (1.0, 2.0)])
def test_in_the_cloud_the_cheapest_gpu_for_a_level_is_the_choice(prices: tuple[float, float]) -> None:
    gpus = dict(zip(("v100", "t4"), map(Gpu, prices), strict=True))
    wanted = Demands(("day",), gpus, {"fp32": Level(0.9, {"v100": 150.0, "t4": 150.0})}, {}, {"a": job(1)})
    assert [choice.gpu for choice in wanted.choices(wanted.jobs["a"].during(0))] == [
        min(gpus, key=lambda name: gpus[name].price)
    ]


@st.composite
def days(draw: st.DrawFn) -> Demands:
    """Several jobs over three periods, in little room."""
    jobs = {}
    for name in "uvwxyz"[: draw(st.integers(2, 6))]:
        tasks = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
        jobs[name] = job(*tasks, sample=draw(st.sampled_from([0.4, 2.4])), moves=draw(st.booleans()))
    nodes = {name: Node({"v100": draw(st.integers(0, 40))}) for name in ("n", "m")}
    return demands(jobs, nodes, edge=EdgePrices(0.7), cycle=draw(st.booleans()))


@pytest.mark.stories
@given(wanted=days(), moves=st.sampled_from([0.0, 0.05, 0.3]))
@settings(max_examples=examples(15), deadline=None)
def test_the_counting_model_equals_the_model_by_task(wanted: Demands, moves: float) -> None:
    weights = Weights(0.5, 0.5 - moves, moves)
    counted = plan(wanted, weights, gap=0.0)
    listed = plan(wanted, weights, gap=0.0, listed=True, ranges=counted.ranges)
    for one in (counted, listed):
        one.placement.check()
        assert not one.placement.unserved
    assert counted.objective == pytest.approx(listed.objective, abs=1e-6)
    assert counted.variables <= listed.variables
    other = plan(wanted, weights, gap=0.0, listed=True).ranges
    assert np.allclose(np.array(other[:2]), np.array(counted.ranges[:2]), atol=1e-5, rtol=1e-5)


# --------------------------------------------------------------------------------------------- aggregation (eq. 7)


def at_edge(placement: TaskPlacement) -> list[int]:
    """Return the number of tasks at the edge in each period."""
    periods = range(len(placement.demands.periods))
    return [
        sum((one := choices[k]) is not None and one.location != CLOUD for choices in placement.served.values())
        for k in periods
    ]


def test_aggregation_binds_at_each_node_in_each_period() -> None:
    """The edge costs less and has GPUs for all. A task takes 15 samples/s times 1: two fit 40, and one fits 20."""
    jobs = {"a": job(4, 3, aggregation=1.0), "b": job(1, 1, rate=30.0, aggregation=0.5), "c": job(2, 2)}
    free = {name: Node({"v100": 500.0}) for name in ("n", "m")}
    few = {"n": Node({"v100": 500.0}, aggregation=40.0), "m": Node({"v100": 500.0}, aggregation=20.0)}
    prices = EdgePrices(0.5)
    loose = plan(demands(jobs, free, edge=prices), Weights(1.0, 0.0), gap=0.0).placement
    tight = plan(demands(jobs, few, edge=prices), Weights(1.0, 0.0), gap=0.0).placement
    assert at_edge(loose) == [7, 6]
    assert at_edge(tight) == [3 + 2, 3 + 2]  # three of those with weights to aggregate, and the two without
    assert sorted(tight.held(node, period)["aggregation"] for node in few for period in (0, 1)) == [15, 15, 30, 30]
    assert tight.cost > loose.cost
    tight.check()
    with pytest.raises(AssertionError, match=r"(40|20) aggregation"):
        TaskPlacement(tight.demands, loose.served).check()


def test_one_task_at_a_time_respects_aggregation_too() -> None:
    few = {"n": Node({"v100": 500.0}, aggregation=40.0)}
    wanted = demands({"a": job(4, aggregation=1.0)}, few, edge=EdgePrices(0.5))
    solution = plan(wanted, Weights(1.0, 0.0))
    for rival in (incremental, one_period):
        placement = rival(wanted, Weights(1.0, 0.0), solution.ranges)
        placement.check()
        assert at_edge(placement) == [2]


@pytest.mark.parametrize("how", RECONFIGURERS)
def test_a_surge_needs_more_aggregation_as_well(how: str) -> None:
    """Twelve GPUs are free where the task stands, but weights of 15 samples a second at most are aggregated there."""
    nodes = {"n": Node({"v100": 50.0}, aggregation=17.9), "m": Node({"v100": 50.0}, aggregation=18.0)}
    wanted = demands({"a": job(1, delay=20.0, aggregation=1.0)}, nodes, cloud=Cloud(delay=40.0))
    stands = wanted.choice(wanted.jobs["a"].during(0), "n", "v100", "fp32")
    placement = TaskPlacement(wanted, {Task("a", 0): (stands,)})
    [moved] = RECONFIGURERS[how](placement, 0).serve({"a": 18.0})
    assert (moved.kind, moved.after.location) == ("moved", "m")
    assert "aggregation" in moved.reason
    [more] = RECONFIGURERS[how](placement, 0).serve({"a": 17.5})
    assert (more.kind, more.after.location) == ("grown", "n")


def test_tasks_of_a_cycle_are_planned_each_on_its_own_if_moves_cost() -> None:
    """Alike tasks are counted together; around a cycle that counts a move for none where two exchange their places."""
    jobs = {"a": job(2, 2, 2), "near": job(0, 1, 0, delay=20.0, accuracy=0.8)}
    wanted = demands(jobs, {"edge": Node({"v100": 20})}, cloud=Cloud(delay=40.0), edge=EdgePrices(0.5), cycle=True)
    found = {listed: plan(wanted, Weights(0.5, 0.0, 0.5), gap=0.0, listed=listed) for listed in (False, True)}
    assert found[False].variables == found[True].variables
    assert found[False].objective == pytest.approx(found[True].objective)
    loose = plan(wanted, Weights(1.0, 0.0), gap=0.0)
    assert loose.variables < found[False].variables  # without a price of moves they are counted
    assert [len(group.tasks) for group in group_tasks(wanted)] == [2, 1]


def test_a_check_names_what_a_location_has_too_little_of() -> None:
    wanted = demands({"a": job(2, delay=20.0, accuracy=0.8)}, whole=False)
    served = dict.fromkeys(
        (Task("a", 0), Task("a", 1)), (wanted.choice(wanted.jobs["a"].during(0), "edge", "v100", "fp32"),)
    )
    for has, words in (  # they take 2 * 100 * 15 / 166 GPUs, and 12 MB/s
        (Node({"v100": 18.0}), "edge in a: 18.0723 of 18 v100"),
        (Node({}), "edge in a: 18.0723 of 0 v100"),
        (Node({"v100": 20.0}, bandwidth=11.99), "edge in a: 12 of 11.99 bandwidth"),
    ):
        with pytest.raises(AssertionError, match=words):
            TaskPlacement(replace(wanted, nodes={"edge": has}), served).check()


def test_a_check_names_the_task_that_is_not_present() -> None:
    wanted = demands({"a": job(1, 2)})
    choice = wanted.choice(wanted.jobs["a"].during(0), "edge", "v100", "mixed")
    TaskPlacement(wanted, {Task("a", 1): (None, choice)}).check()
    with pytest.raises(AssertionError, match="is not present in period 0"):
        TaskPlacement(wanted, {Task("a", 1): (choice, choice)}).check()


def test_a_check_names_the_task_that_must_not_move_and_where_it_is() -> None:
    wanted = demands({"a": job(1, 1, moves=False)})
    both = [wanted.choice(wanted.jobs["a"].during(0), place, "v100", "fp32") for place in ("edge", CLOUD)]
    with pytest.raises(AssertionError, match="must not move, and trains in cloud, edge"):
        TaskPlacement(wanted, {Task("a", 0): tuple(both)}).check()


# ------------------------------------------------------------------------------------------------ what does not fit


def test_an_infeasible_plan_names_the_shortage_and_serves_the_largest_part() -> None:
    near = {"a": job(1, 4, delay=20.0, accuracy=0.8)}  # ten GPUs each, and the cloud is too far
    with pytest.raises(InfeasibleError, match="2 tasks cannot be served in b; b: 20 more v100 at the edge") as refused:
        plan(demands(near, cloud=Cloud(delay=40.0)))
    assert "free: edge 0" in str(refused.value)
    refused.value.largest.check()
    assert len(refused.value.largest.unserved) == 2
    assert refused.value.missing == {("b", "v100"): 20.0}
    enough = {"edge": Node({"v100": 20}, bandwidth=18.0)}  # as much is free as one more task needs
    with pytest.raises(InfeasibleError) as refused:
        plan(demands(near, enough, cloud=Cloud(delay=40.0)))
    assert refused.value.missing == {("b", "v100"): 20.0}


def test_an_unservable_job_is_reported() -> None:
    with pytest.raises(ValueError, match="job a: no location can serve it: its data may travel 20 ms"):
        plan(demands({"a": job(1, delay=20.0)}, {}, cloud=Cloud(delay=40.0)))


def test_an_unreachable_accuracy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"accuracy must be one that can be reached, at most 0\.9000, got 0\.95"):
        plan(demands({"a": job(2)}), accuracy=0.95)


def test_pinned_tasks_stay_and_others_stay_if_moves_cost() -> None:
    """By night the edge is cheaper; by day others need it."""
    jobs = {"still": job(4, 4, moves=False), "free": job(4, 4), "near": job(0, 6, delay=20.0)}
    wanted = demands(jobs, cloud=Cloud(delay=40.0), edge=EdgePrices(0.5))
    loose = plan(wanted, Weights(1.0, 0.0), gap=0.0).placement
    tight = plan(wanted, Weights(0.5, 0.0, 0.5), gap=0.0).placement
    assert loose.moves > tight.moves == 0
    assert loose.cost < tight.cost
    for placement in (loose, tight):
        placement.check()
        assert all(one is not None and two is not None and one.location == two.location
                   for task, (one, two) in placement.served.items() if task.job == "still")  # fmt: skip


def test_a_task_stays_where_it_can_though_another_could_be_placed_there() -> None:
    """By night the third node is taken, by day the first: one of two equal tasks has to move, and the other has not."""
    nodes = {
        "a": Node({"v100": 10}, aggregation=0.0),
        "b": Node({"v100": 10}, bandwidth=10.0, aggregation=0.0),
        "c": Node({"v100": 10}, bandwidth=10.0),
    }
    near = {"delay": 20.0, "accuracy": 0.8}  # ten GPUs each
    jobs = {"two": job(2, 2, **near), "day": job(0, 1, **near, sample=4.0), "night": job(1, 0, **near, aggregation=1.0)}
    placement = plan(demands(jobs, nodes, cloud=Cloud(delay=40.0)), Weights(1.0, 0.0)).placement
    two = [[choice and choice.location for choice in placement.served[Task("two", number)]] for number in range(2)]
    assert sorted(two) == [["a", "c"], ["b", "b"]]
    assert placement.moves == 1


def test_a_task_that_was_away_for_a_period_comes_back_to_where_it_was() -> None:
    jobs = {"still": job(2, 1, 2, moves=False), "near": job(0, 2, 0, delay=20.0, accuracy=0.8)}
    placement = plan(demands(jobs, cloud=Cloud(delay=40.0), edge=EdgePrices(0.5)), Weights(1.0, 0.0)).placement
    placement.check()
    first, second = (placement.served[Task("still", number)] for number in range(2))
    assert {choice.location for choice in first if choice} == {CLOUD}, "by day there is no room for it"
    assert [choice and choice.location for choice in second] == ["edge", None, "edge"]


def test_jobs_with_another_reach_are_not_planned_as_one() -> None:
    """The cloud, cheaper, is as far as the data of one of two otherwise equal jobs may travel."""
    jobs = {"far": job(1, delay=40.0), "near": job(1, delay=20.0)}
    placement = plan(demands(jobs, cloud=Cloud(delay=40.0)), Weights(1.0, 0.0)).placement
    assert [choice.location for choice in placement.choices()] == [CLOUD, "edge"]
    both = {"one": job(1, delay=40.0), "other": job(1, delay=50.0)}
    assert len(group_tasks(demands(both, cloud=Cloud(delay=40.0)))) == 1


def test_a_level_as_accurate_as_a_job_asks_for_is_a_choice() -> None:
    wanted = demands({"a": job(1, accuracy=0.9)})
    assert {choice.level for choice in wanted.choices(wanted.jobs["a"].during(0))} == {"fp32"}


def test_what_is_missing_is_that_of_the_cheapest_choice() -> None:
    gpus, level = {"a100": Gpu(9.0), "v100": Gpu(2.0)}, Level(0.9, {"a100": 150.0, "v100": 150.0})
    with pytest.raises(InfeasibleError) as refused:
        plan(Demands(("day",), gpus, {"fp32": level}, {"n": Node({"a100": 4, "v100": 4})}, {"a": job(1, delay=20.0)},
                     Cloud(delay=40.0)))  # fmt: skip
    assert refused.value.missing == {("day", "v100"): 10.0}


def test_tasks_are_counted_and_not_listed_where_a_day_does_not_repeat() -> None:
    wanted, weights = demands({"a": job(2, 2)}), Weights(0.4, 0.4, 0.2)
    assert plan(wanted, weights).variables < plan(wanted, weights, listed=True).variables


def test_the_limits_of_a_plan_reach_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    given, solve = list[tuple[object, ...]](), MilpModel.solve

    def noted(model: MilpModel, *limits: Any) -> Any:
        given.append(limits)
        return solve(model, *limits)

    monkeypatch.setattr(MilpModel, "solve", noted)
    plan(demands({"a": job(2)}), gap=0.02, nodes=77, seconds=9.0)
    assert given == [(0.02, 77, 9.0)]


def test_one_task_at_a_time_takes_the_cheapest_choice_that_keeps_the_mean_accuracy() -> None:
    wanted = demands({"a": job(3)}, {})
    ranges = ObjectiveRanges((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))
    for accuracy, levels in ((0.8, ["fp32", "mixed", "fp32"]), (0.69, ["mixed"] * 3), (0.99, ["fp32"] * 3)):
        placement = incremental(wanted, Weights(1.0, 0.0), ranges, accuracy)
        assert [choice.level for choice in placement.choices()] == levels


def test_each_part_of_the_objective_lies_in_its_range() -> None:
    ranges = ObjectiveRanges((10.0, 20.0), (0.7, 0.9), (0.0, 4.0))
    assert ranges.objective(Weights(0.5, 0.5), 10.0, 0.7, 0) == 0.0
    assert ranges.objective(Weights(0.5, 0.3, 0.2), 15.0, 0.9, 2) == pytest.approx(0.25 - 0.3 + 0.1)
    assert ObjectiveRanges((1.0, 1.0), (0.9, 0.9), (0.0, 0.0)).objective(Weights(), 1.0, 0.9, 0) == 0.0


def test_the_cloud_is_a_choice_whatever_it_costs() -> None:
    """The tolerance of costs is lost in large ones."""
    dear = Demands(("day",), {"v100": Gpu(1e9)}, {"fp32": Level(0.9, {"v100": 1e-3})}, {},
                   {"cars": PlacedJob((1,), 1e6, 0.4)})  # fmt: skip
    assert [one.location for one in dear.choices(dear.jobs["cars"].during(0))] == [CLOUD]
