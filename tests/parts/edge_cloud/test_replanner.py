"""A period planned anew with moves weighed: against every other way to serve its tasks, and against one at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from lightning_core.parts.edge_cloud.placement import (
    CLOUD,
    RECONFIGURERS,
    Choice,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    Task,
    TaskNeeds,
    TaskPlacement,
    replanner,
)
from lightning_core.parts.edge_cloud.placement.plan import capacity_of, usage
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits, Reconfigurer
from lightning_core.parts.edge_cloud.placement.replanner import Replanner
from tests.examples import examples
from tests.parts.edge_cloud.test_reconfigurer import GPUS, LEVELS, near, planned, standing

FAR = 90.0  # a delay that the cloud is within


def test_no_program_is_solved_where_all_tasks_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replanner, "_solved", lambda *_: pytest.fail("solved"))
    now = Replanner(planned({"n": 12.0}, a=near(), b=near(delay=FAR)), 0)
    [grown] = now.serve({"a": 18.0})
    assert (grown.kind, grown.after.gpu_count, grown.reason) == ("grown", 12, "there is room in n")
    [back] = now.serve({"a": 15.0})
    assert (back.kind, back.after.gpu_count) == ("released", 10)


def test_the_cheapest_task_to_move_makes_room_for_one_that_must_stay_and_stays_where_it_went() -> None:
    jobs = {"a": near(), "b": near(delay=FAR), "c": near(delay=FAR, sample=4.0), "d": near(delay=FAR, moves=False)}
    placement = standing("n", {"n": 40.0}, **jobs)
    now = Replanner(placement, 0, ReconfigurationLimits(cost=2.0))
    moved, grown = now.serve({"a": 18.0})
    assert (moved.task.job, moved.kind, moved.before.location, moved.after.location) == ("b", "moved", "n", CLOUD)
    assert moved.reason == "n has 40 v100 and would need 42; cloud has room"
    assert (grown.task.job, grown.kind, grown.after.gpu_count) == ("a", "grown", 12)
    assert [change.kind for change in now.serve({"a": 15.0})] == ["released"]
    assert now.now[Task("b", 0)].location == CLOUD
    # One at a time, the task that lacks room stays as it is.
    [left] = Reconfigurer(placement, 0, ReconfigurationLimits(cost=2.0)).serve({"a": 18.0})
    assert (left.kind, left.reason) == ("left", "10 of 12 v100 are free in n, and no other location has room")


@pytest.mark.parametrize(("limits", "kinds"), [
    (ReconfigurationLimits(cost=2.0, moves=1), ["moved", "grown"]),
    (ReconfigurationLimits(cost=2.0, moves=0), ["left"]),
    (ReconfigurationLimits(cost=0.1), ["left"]),
])  # fmt: skip
def test_moves_are_limited_in_number_and_cost(limits: ReconfigurationLimits, kinds: list[str]) -> None:
    placement = standing("n", {"n": 20.0}, a=near(), b=near(delay=FAR))
    assert [change.kind for change in Replanner(placement, 0, limits).serve({"a": 18.0})] == kinds


def test_the_limit_of_moves_counts_those_of_the_program_and_those_after_it() -> None:
    """One task may move, and another location has room for both that lack something."""
    demands = standing("n", {"n": 10.0, "o": 10.0, "m": 30.0}, a=near(), b=near()).demands
    ways = {
        name: demands.choice(demands.jobs[name].during(0), at, "v100", "fp32") for name, at in (("a", "n"), ("b", "o"))
    }
    placement = TaskPlacement(demands, {Task(name, 0): (way,) for name, way in ways.items()})
    changes = Replanner(placement, 0, ReconfigurationLimits(moves=1)).serve({"a": 18.0, "b": 18.0})
    assert [change.kind for change in changes] == ["moved", "left"]
    assert changes[1].reason.endswith("and 1 tasks have moved already, the limit")


@pytest.mark.parametrize(("price", "moves"), [(0.0, 2), (10.0, 1)])
def test_a_move_must_be_worth_its_price(price: float, moves: int) -> None:
    """One task must leave the full node; another one would be cheaper there than in the cloud where it stands."""
    placement = standing("n", {"n": 10.0, "m": 30.0}, a=near(), b=near(delay=FAR))
    [cloud] = [one for one in placement.demands.choices(near(delay=FAR).during(0)) if one.location == CLOUD]
    placement = replace(placement, served={**placement.served, Task("b", 0): (cloud,)})
    limits = ReconfigurationLimits(cost=9.0, move_price=price)
    changes = Replanner(placement, 0, limits).serve({"a": 18.0})
    assert sum(change.kind == "moved" for change in changes) == moves
    if moves > 1:
        assert [change.reason for change in changes if change.task.job == "b"] == ["m costs less than cloud"]


def test_a_task_takes_another_type_of_gpu_only_if_it_lacks_something() -> None:
    demands = planned({"n": 11.0}, a=near(), b=near(rate=1.5)).demands
    gpus, levels = {**demands.gpus, "eight": Gpu(16.0)}, {"fp32": Level(0.9, {"v100": 150.0, "eight": 1100.0})}
    demands = replace(demands, gpus=gpus, levels=levels, nodes={"n": Node({"v100": 11.0, "eight": 3.0})})
    ways = {name: demands.choice(job.during(0), "n", "v100", "fp32") for name, job in demands.jobs.items()}
    placement = TaskPlacement(demands, {Task(name, 0): (way,) for name, way in ways.items()})
    [grown] = Replanner(placement, 0).serve({"a": 18.0})
    assert (grown.task.job, grown.after.gpu, grown.after.gpu_count) == ("a", "eight", 2)
    assert grown.reason == "n has 11 v100 and would need 13; 2 eight are free"
    [partly] = Replanner(placement, 0, ReconfigurationLimits(cost=0.2)).serve({"a": 18.0})
    assert (partly.kind, partly.reason) == ("left", "10 of 12 v100 are free in n, and no other location has room")


def test_a_task_does_not_become_less_accurate() -> None:
    """Elsewhere there is room for the fast arithmetic only."""
    demands = planned({"n": 10.0, "m": 3.0}, a=near()).demands
    demands = replace(demands, levels={"fp32": Level(0.9, {"v100": 150.0}), "mixed": Level(0.7, {"v100": 600.0})})
    way = demands.choice(demands.jobs["a"].during(0), "n", "v100", "fp32")
    placement = TaskPlacement(demands, {Task("a", 0): (way,)})
    [left] = Replanner(placement, 0).serve({"a": 18.0})
    assert left.kind == "left"
    fast = demands.choice(demands.jobs["a"].during(0), "n", "v100", "mixed")
    tight = replace(demands, nodes={"n": Node({"v100": 4.0}), "m": Node({"v100": 5.0})})
    [moved] = Replanner(TaskPlacement(tight, {Task("a", 0): (fast,)}), 0).serve({"a": 27.0})
    assert (moved.after.location, moved.after.level) == ("m", "mixed")


@pytest.mark.parametrize(
    ("lacking", "grown"), [({"a": 16.5, "b": 16.5, "c": 18.0}, {"a", "b"}), ({"a": 16.5, "c": 18.0}, {"c"})]
)
def test_as_many_tasks_as_possible_are_served_and_of_as_many_those_that_lack_most(
    lacking: dict[str, float], grown: set[str]
) -> None:
    """Two GPUs are free; tasks lack one, one and two."""
    placement = standing("n", {"n": 32.0}, a=near(moves=False), b=near(moves=False), c=near(moves=False))
    changes = Replanner(placement, 0).serve(lacking)
    assert {change.task.job for change in changes if change.kind == "grown"} == grown
    [left] = [change for change in changes if change.kind != "grown"]
    assert (left.kind, left.reason[-31:]) == ("left", "are free in n, and it must not move"[-31:])


def test_a_program_that_is_too_large_or_has_no_answer_leaves_it_to_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placement = standing("n", {"n": 20.0}, a=near(), b=near(delay=FAR))
    limits = ReconfigurationLimits(cost=2.0)
    monkeypatch.setattr(replanner, "MAX_OPTIONS", 3)
    assert [change.kind for change in Replanner(placement, 0, limits).serve({"a": 18.0})] == ["left"]
    monkeypatch.setattr(replanner, "MAX_OPTIONS", 4)  # a grows or stays, b moves or stays
    assert [change.kind for change in Replanner(placement, 0, limits).serve({"a": 18.0})] == ["moved", "grown"]
    with monkeypatch.context() as patched:
        patched.setattr(Replanner, "core", -1000)  # of the options those to stay remain
        assert [change.kind for change in Replanner(placement, 0, limits).serve({"a": 18.0})] == ["left"]
    for solver in ("linprog", "milp"):
        with monkeypatch.context() as patched:
            patched.setattr(optimize, solver, lambda *_, **__: optimize.OptimizeResult(x=None))
            assert [change.kind for change in Replanner(placement, 0, limits).serve({"a": 18.0})] == ["left"]


def test_the_search_is_bounded_by_nodes_and_not_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a journal holds is decided again on another machine."""
    told: list[dict[str, Any]] = []
    solve = optimize.milp

    def solved(*args: Any, options: dict[str, Any], **more: Any) -> Any:
        told.append(dict(options))  # SciPy empties it
        return solve(*args, options=options, **more)

    monkeypatch.setattr(optimize, "milp", solved)
    Replanner(standing("n", {"n": 20.0}, a=near(), b=near(delay=FAR)), 0).serve({"a": 18.0})
    assert told[-1:] == [{"mip_rel_gap": 1e-3, "node_limit": 100}]


def test_the_core_of_a_large_program_is_almost_as_good_as_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty different tasks at two nodes that are almost full; the options that are kept are few more than tasks."""
    draw = np.random.default_rng(4)
    jobs = {
        f"j{k}": near(rate=float(draw.uniform(5.0, 40.0)), delay=FAR if draw.random() < 0.7 else 20.0)
        for k in range(60)
    }
    nodes = {name: 1.05 * 10 / 15 * sum(job.during(0).rate for job in jobs.values()) / 2 for name in ("n", "m")}
    placement = planned({name: float(int(has)) for name, has in nodes.items()}, **jobs)
    rates = {name: 1.2 * job.during(0).rate for name, job in jobs.items()}
    limits, found = ReconfigurationLimits(cost=2.0), {}
    for core in (20, 1000):
        monkeypatch.setattr(Replanner, "core", core)
        now = Replanner(placement, 0, limits)
        assert {change.kind for change in now.serve(rates)} == {"grown", "moved"}
        found[core] = sum(choice.cost for choice in now.now.values())
    assert found[20] <= 1.01 * found[1000]
    one_by_one = Reconfigurer(placement, 0, limits).serve(rates)
    assert sum(change.kind in ("left", "partly") for change in one_by_one) > 0


# ------------------------------------------------------------------------------------------------- the best of all


def every(now: Reconfigurer, rates: dict[str, float]) -> list[tuple[int, float, int]]:
    """Return tasks left short, objective and moves of all ways to serve a period, tasks whole or as they are."""
    tasks, demands, limits = list(now.now), now.demands, now.limits
    ways: list[list[tuple[Choice, TaskNeeds, float, int, int]]] = []
    for task in tasks:
        has, small = now.now[task], now._job(task)
        job = replace(small, rate=rates[task.job])
        grows = job.rate > small.rate
        some = [(has, small, has.cost, 0, int(grows))]
        for one in demands.every(job):
            moves = one.location != has.location
            as_it_is = one[:3] == has[:3]
            dear = one.cost > (1 + limits.cost) * has.cost + 1e-9 and not as_it_is
            if (job.moves if moves else grows) and one.accuracy >= has.accuracy and not dear:
                some.append((one, job, one.cost + limits.move_price * has.cost * moves, int(moves), 0))
        ways.append(some)
    found = []
    for served in product(*ways):
        used: dict[tuple[str, str], float] = {}
        for choice, job, *_ in served:
            for resource, amount in usage(job, choice).items():
                used[choice.location, resource] = used.get((choice.location, resource), 0.0) + amount
        count = sum(way[3] for way in served)
        if count <= limits.moves and all(amount <= capacity_of(demands, *at) + 1e-9 for at, amount in used.items()):
            found.append((sum(way[4] for way in served), sum((way[2] for way in served), 0.0), count))
    return found


@st.composite
def periods(draw: st.DrawFn) -> tuple[TaskPlacement, ReconfigurationLimits, dict[str, float]]:
    """A few tasks that stand somewhere, and more demand."""
    jobs = {
        name: near(1, delay=draw(st.sampled_from([20.0, FAR])), moves=draw(st.booleans()),
                   sample=draw(st.sampled_from([0.4, 2.4])), aggregation=draw(st.sampled_from([0.0, 1.0])))
        for name in "abcd"[: draw(st.integers(2, 4))]
    }  # fmt: skip
    nodes = {
        name: Node({"v100": 10.0 * len(jobs) + draw(st.integers(0, 6))},
                   aggregation=15.0 * len(jobs) + draw(st.sampled_from([0.0, 4.0, 20.0])))
        for name in ("n", "m")
    }  # fmt: skip
    edge = EdgePrices(draw(st.sampled_from([0.5, 1.2])))
    demands = Demands(("day",), GPUS, LEVELS, nodes, jobs, Cloud(delay=40.0), edge)
    served = {Task(name, 0): (draw(st.sampled_from(demands.choices(job.during(0)))),) for name, job in jobs.items()}
    limits = ReconfigurationLimits(draw(st.sampled_from([0.3, 9.0])), draw(st.integers(0, 4)),
                                   draw(st.sampled_from([0.0, 0.1, 1.0])))  # fmt: skip
    return TaskPlacement(demands, served), limits, {name: draw(st.sampled_from([15.0, 16.5, 18.0])) for name in jobs}


@pytest.mark.stories
@given(periods())
@settings(max_examples=examples(60), deadline=None)
def test_no_other_plan_serves_more_or_costs_less(
    period: tuple[TaskPlacement, ReconfigurationLimits, dict[str, float]],
) -> None:
    placement, limits, rates = period
    now = Replanner(placement, 0, limits)
    stood = dict(now.now)
    ways = every(now, rates)
    fits = any(one[0] == 0 and one[2] == 0 for one in ways) and not now._crowded(
        {task: now._job(task, rates[task.job]) for task in now.now}
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replanner, "GAP", 0.0)
        changes = now.serve(rates)
    TaskPlacement(replace(now.demands, jobs={
        name: replace(job, rate=now._rates[Task(name, 0)]) for name, job in now.demands.jobs.items()
    }), {task: (choice,) for task, choice in now.now.items()}).check()  # fmt: skip
    short = sum(change.kind in ("left", "partly") for change in changes)
    moves = sum(change.kind == "moved" for change in changes)
    assert moves == sum(stood[task].location != choice.location for task, choice in now.now.items()) <= limits.moves
    if fits:
        assert (short, moves) == (0, 0)
        return
    assert short == min(one[0] for one in ways)
    if not short:
        found = sum(choice.cost for choice in now.now.values())
        found += sum(limits.move_price * stood[c.task].cost for c in changes if c.kind == "moved")
        assert found == pytest.approx(min(one[1] for one in ways if not one[0]), abs=1e-6)


@pytest.mark.stories
@pytest.mark.parametrize("how", RECONFIGURERS)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(1.0, 40.0)), min_size=1, max_size=12),
    st.lists(st.integers(10, 60), min_size=1, max_size=3),
)
@settings(max_examples=examples(15), deadline=None)
def test_no_location_is_oversold(how: str, story: list[tuple[str, float]], gpu_count: list[int]) -> None:
    jobs = {"a": near(2, delay=FAR), "b": near(1, delay=FAR, moves=False), "c": near(3, delay=FAR)}
    placement = planned({f"n{k}": float(has) for k, has in enumerate(gpu_count)}, **jobs)
    now = RECONFIGURERS[how](placement, 0, ReconfigurationLimits(10.0))
    still = now.now[Task("b", 0)].location
    for name, rate in story:
        before = dict(now.now)
        for change in now.serve({name: rate}):
            assert change.before == before[change.task]
            before[change.task] = change.after
            assert (change.kind == "moved") == (change.before.location != change.after.location)
        assert before == now.now
        kept = {(task, choice.location): now._rates[task] * 0.4 for task, choice in now.now.items()}
        for k, has in enumerate(gpu_count):
            used = sum(rate for (_, location), rate in kept.items() if location == f"n{k}")
            assert now._used.get((f"n{k}", "bandwidth"), 0.0) == pytest.approx(used, abs=1e-6)
            assert sum(choice.gpu_count for choice in now.now.values() if choice.location == f"n{k}") <= has
        assert now.now[Task("b", 0)].location == still
