"""The mixed-integer program, part by part, against values worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize

from lightning_core.parts.edge_cloud.placement import (
    CLOUD,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    ObjectiveRanges,
    PlacedJob,
    Task,
    Weights,
)
from lightning_core.parts.edge_cloud.placement.milp_model import MilpModel, TaskGroup

# A task takes 5 GPUs for an accuracy of 0.5, or 10 for 0.9; the edge is the cheaper, and has room for 7.5.
LEVELS = {"low": Level(0.5, {"v100": 300.0}), "high": Level(0.9, {"v100": 150.0})}


def model(gpus: float = 7.5, periods: int = 2, tasks: int = 2) -> MilpModel:
    one = PlacedJob((tasks,) * periods, 15.0, 0.4)
    wanted = Demands(
        tuple("abc"[:periods]), {"v100": Gpu(2.0)}, LEVELS, {"n": Node({"v100": gpus})}, {"a": one},
        Cloud(delay=40.0), EdgePrices(0.5),
    )  # fmt: skip
    several = tuple(Task("a", number) for number in range(tasks))
    group = TaskGroup(
        one, tuple(range(periods)), several, dict.fromkeys(range(periods), tuple(wanted.choices(one.during(0))))
    )
    return MilpModel(wanted, [group], moves=True)


def costs(one: MilpModel) -> dict[tuple[str, str], float]:
    return {(choice.location, choice.level): choice.cost for choice in one.groups[0].choices[0]}


def test_the_objective_is_the_published_one() -> None:
    """Eq. 1: w1 (cost - 1) / (3 - 1) - w2 (mean accuracy - 0.5) / (0.9 - 0.5) + w3 moves / 2, with weights 2, 3, 4.

    Two tasks in two periods are four pairs and two steps; a step on which a task stays is a move less.
    """
    one = model()
    one.weigh(Weights(2.0, 3.0, 4.0), ObjectiveRanges((1.0, 3.0), (0.5, 0.9), (0.0, 2.0)))
    served = [choice.cost - 3.0 / 0.4 / 4 * choice.accuracy for choice in one.groups[0].choices[0]] * 2
    stays = [-2.0] * (len(one.cost) - len(served))
    assert (one.pairs, one.steps) == (4, 2)
    assert len(stays) == 2  # at the edge, and in the cloud
    assert one._objective.tolist() == pytest.approx([*served, *stays])
    assert one.cost[-2:] == [0.0, 0.0]
    assert one.offset == pytest.approx(3.0 * 0.5 / 0.4 - 1.0 + 2.0 * 2)


def test_ranges_are_those_of_divisible_tasks() -> None:
    """In each of three periods 1.5 of 2 tasks fit the edge at the low level, and 0.75 at the high one."""
    one = model(periods=3)
    of = costs(one)
    ranges = one.ranges()
    low = 3 * (1.5 * of["n", "low"] + 0.5 * of[CLOUD, "low"])
    high = 3 * (0.75 * of["n", "high"] + 1.25 * of[CLOUD, "high"])
    assert ranges.cost == pytest.approx((low, high), rel=1e-5)
    assert ranges.accuracy == pytest.approx((0.5, 0.9), rel=1e-5)
    assert ranges.moves == (0, 4)


@pytest.mark.parametrize(("weights", "served"), [(Weights(1.0, 0.0), {"low": 2}), (Weights(0.0, 1.0), {"high": 2})])
def test_the_weights_decide_between_cost_and_accuracy(weights: Weights, served: dict[str, int]) -> None:
    """Whole tasks: one at the edge at the low level, or both in the cloud at the high one."""
    one = model(periods=1)
    one.weigh(weights, one.ranges())
    found = np.round(one.solve(0.0, 1000, None).x)
    chosen = {choice.level: 0 for choice in one.groups[0].choices[0]}
    for choice, count in zip(one.groups[0].choices[0], found.tolist(), strict=False):
        chosen[choice.level] += int(count)
    assert {level: count for level, count in chosen.items() if count} == served


def test_the_mean_accuracy_is_bounded_over_tasks_and_periods() -> None:
    """Of three tasks in two periods, half must be served at 0.9 for a mean of 0.7."""
    one = model(gpus=100.0, tasks=3)
    one.at_least(0.7)
    assert one.relaxed().fun == pytest.approx(3 * costs(one)["n", "low"] + 3 * costs(one)["n", "high"], rel=1e-6)


def test_the_limits_of_the_search_reach_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(optimize, "milp", lambda *_, **named: given.append(named))
    one = model()
    one.solve(0.01, 7, 3.0)
    one.solve(0.01, 7, None)
    one.relaxed()
    assert [each["options"] for each in given[:2]] == [
        {"mip_rel_gap": 0.01, "node_limit": 7, "time_limit": 3.0},
        {"mip_rel_gap": 0.01, "node_limit": 7},
    ]
    choices = 2 * len(one.groups[0].choices[0])
    assert given[0]["integrality"].tolist() == [1] * choices + [0] * 2  # that a task stays follows
    assert not given[2]["integrality"].any()
