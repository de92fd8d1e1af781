"""Compare the placement plan of edge and cloud with two baselines: one task at a time, and the busiest period alone.

Jobs, nodes and prices: :mod:`benchmarks.clusters.placement_scenarios`. Surges of demand:
:mod:`benchmarks.clusters.placement_surges`. Costs are those of one window in each of the three periods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.clusters.cluster import TRACES
from benchmarks.clusters.placement_scenarios import (
    BUSIEST,
    CHEAPEST,
    FEW_MOVES,
    IN_ONE,
    PAYS,
    SCENARIOS,
    SETS,
    SHARE,
    scenario,
)
from benchmarks.clusters.placement_surges import forecast_errors, simulated_day, surge, surged, thousand
from benchmarks.common import Figures, Size, main, table
from benchmarks.papers.on_placement import ACCURACIES, BEST, SAVED, UNITS, by_costs
from lightning_core.parts.edge_cloud.placement import CLOUD, Demands, EdgePrices, TaskPlacement, Weights, plan
from lightning_core.parts.edge_cloud.placement.baselines import incremental, one_period
from lightning_core.parts.edge_cloud.placement.demands import Choice
from lightning_core.parts.edge_cloud.placement.planner import Solution

PLAN, STAYS, ONE_PERIOD, INCREMENTAL = "plan", "plan, few moves", "one period", "incremental"
RIVALS = (ONE_PERIOD, INCREMENTAL)
TARGETS = (0.72, 0.75, 0.8, 0.85, 0.875, 0.89)
NEAR = TARGETS[2:]
# Relative gaps to the bound: small enough for comparisons with the baselines, and 0.1 % for timings.
TIGHT, TIMED = 1e-6, 1e-3
REPEATS = 3
# Cores of a node that aggregate weights: enough for the tasks that must be at the edge, and too few for all that pay.
FEW_CORES = 50.0


def measure(size: Size, traces: Path, *, figures: bool = False) -> Figures:
    """Print all tables, or those of the paper's figures alone, and return their figures."""
    if figures:
        return paper_figures()
    found: Figures = {}
    for words, edge in SETS.items():
        one, _ = at_80("A", words, scenario(SCENARIOS["A"], edge))
        found |= {figure_of(figure, words, "A"): value for figure, value in one.items()}
    for name, jobs in SCENARIOS.items():
        for words, edge in SETS.items():
            demands = scenario(jobs, edge)
            sweep(name, words, demands, (0.3, 0.5, 0.7) if size == "quick" else tuple(np.arange(1, 10) / 10))
            if size != "quick":
                equal_cost(name, words, demands)
        if size == "quick":
            break
    if size != "quick":
        by_price(5 if size == "full" else 1)
    found |= aggregation(scenario(SCENARIOS["A"], SETS[PAYS]), scenario(SCENARIOS["A"], SETS[PAYS], cores=FEW_CORES))
    for words, edge in SETS.items():
        after = surge(words, scenario(SCENARIOS["A"], edge))
        found |= {figure_of(figure, words, "A"): value for figure, value in after.items()}
    found |= thousand() | forecast_errors(traces)
    if size != "quick":
        found |= simulated_day(scenario(SCENARIOS["A"], SETS[PAYS]))
    return found | speed(size)


def paper_figures() -> Figures:
    """Print and return what the paper's figures 2 to 5 show: both scenarios, with and without the surge."""
    found: Figures = {}
    for name, jobs in SCENARIOS.items():
        for words, edge in SETS.items():
            demands = scenario(jobs, edge)
            figures, placement = at_80(name, words, demands)
            figures |= with_surge(name, words, demands, placement) | equal_cost(name, words, demands, NEAR)
            found |= {figure_of(figure, words, name): value for figure, value in figures.items()}
    return found


def figure_of(what: str, words: str, name: str) -> str:
    """Return the name of a figure of a scenario and a set of prices."""
    return f"{what}_{words.replace(' ', '_')}{'' if name == 'A' else f'_{name}'}"


def _key(rival: str) -> str:
    """Return a rival's part of the names of figures."""
    return rival.replace(" ", "_")


def three(
    demands: Demands, weights: Weights, accuracy: float | None = None, gap: float = TIMED
) -> tuple[Solution, dict[str, TaskPlacement]]:
    """Return the plan, and the placements of the plan and of both baselines."""
    solution = plan(demands, weights, accuracy=accuracy, gap=gap)
    placement = {
        PLAN: solution.placement,
        ONE_PERIOD: one_period(demands, weights, solution.ranges, accuracy),
        INCREMENTAL: incremental(demands, weights, solution.ranges, accuracy),
    }
    for one in placement.values():
        one.check()
    return solution, placement


def at_80(name: str, words: str, demands: Demands) -> tuple[Figures, dict[str, TaskPlacement]]:
    """Print the costs at a mean accuracy of 0.8.

    Returns:
        The savings of both plans in per cent, and all moves; and the placements.
    """
    _, placement = three(demands, CHEAPEST, 0.8)
    best = placement[PLAN]
    placement[STAYS] = few = plan(demands, FEW_MOVES, accuracy=0.8).placement
    rows, figures = [], Figures(moves=best.moves, few_moves=few.moves)
    for rival, one in placement.items():
        parts = best.cost / one.cost, _v100(best) / _v100(one)
        saving, fewer = (round(100 * (1 - part), 6) for part in parts)
        if rival in RIVALS:
            key = _key(rival)
            figures |= {f"saved_{key}": saving, f"gpus_saved_{key}": fewer, f"moves_{key}": one.moves,
                        f"few_moves_saved_{key}": 100 * (1 - few.cost / one.cost)}  # fmt: skip
        told = ""
        if rival in RIVALS:
            told = f"{SAVED[_key(rival)]:.1f} (by its costs {by_costs(_key(rival)):.1f}), {UNITS[_key(rival)]:.1f}"
        rows.append([rival, one.cost, one.accuracy, _v100(one), one.moves, len(one.unserved), saving, fewer, told])
    print(f"\nscenario {name}, {words}: minimum cost at a mean accuracy of at least 0.8")
    table(["", "cost", "accuracy", "V100", "moves", "unserved", "plan saves, %", "V100 saved, %", "paper (A)"], rows)
    return figures, placement


def with_surge(name: str, words: str, demands: Demands, placement: Mapping[str, TaskPlacement]) -> Figures:
    """Print the costs of placements if a fifth more arrives by day, all in one; return the savings.

    The baselines serve the surge one task at a time, as they serve everything; the plan is changed by the paper's
    heuristic, and by the default.
    """
    cases = [(PLAN, "heuristic"), (PLAN, "replan"), (ONE_PERIOD, "heuristic"), (INCREMENTAL, "heuristic")]
    after = {case: surged(placement[case[0]], case[1]) for case in cases}
    costs = {case: sum(choice.cost for choice in choices) for case, (choices, _) in after.items()}
    gpus = {case: _v100_of(choices) for case, (choices, _) in after.items()}
    figures, rows = Figures(), []
    for rival, how in cases:
        case = rival, how
        served = 100 * after[case][1]
        rows.append([f"{rival}, {how}", costs[case], gpus[case], served])
        figures[f"surged_served_{_key(rival)}_{how}"] = served
        if rival == PLAN:
            for other in RIVALS:
                theirs, key = (other, "heuristic"), f"{_key(other)}_{how}"
                figures |= {f"surged_saved_{key}": 100 * (1 - costs[case] / costs[theirs]),
                            f"surged_gpus_saved_{key}": 100 * (1 - gpus[case] / gpus[theirs])}  # fmt: skip
    print(f"\nscenario {name}, {words}: the same day with a fifth more by day")
    table(["", "cost", "V100", "demand by day served, %"], rows)
    return figures


def _v100(placement: TaskPlacement) -> float:
    """Return the number of GPUs over all periods; an eight-GPU machine counts as eight."""
    return _v100_of(placement.choices())


def _v100_of(choices: Iterable[Choice]) -> float:
    return sum(IN_ONE[choice.gpu] * choice.gpu_count for choice in choices)


def aggregation(free: Demands, bound: Demands) -> Figures:
    """Print what few cores for aggregating weights at the edge change (eq. 7); return the figures."""
    rows, figures = [], Figures()
    for name, demands in (("free", free), ("bound", bound)):
        placement = plan(demands, CHEAPEST, accuracy=0.8, gap=TIGHT).placement
        placement.check()
        held = [placement.held(node, BUSIEST)["aggregation"] for node in demands.nodes]
        by_day = [choice for choices in placement.served.values() if (choice := choices[BUSIEST]) is not None]
        at_edge = sum(choice.location != CLOUD for choice in by_day)
        cores = next(iter(demands.nodes.values())).aggregation
        rows.append([cores, max(held), at_edge, placement.cost, placement.accuracy, placement.moves])
        figures |= {f"aggregation_{name}_edge": at_edge, f"aggregation_{name}_cost": placement.cost}
    print("\nscenario A, edge pays, mean accuracy 0.8: cores of each node that aggregate weights, a task a core")
    table(["cores", "used by day at most", "tasks at the edge by day", "cost", "accuracy", "moves"], rows)
    return figures


def sweep(name: str, words: str, demands: Demands, weights: Sequence[float]) -> None:
    """Print accuracy and cost over W, the weight of cost; the plan must match a baseline that serves all."""
    rows = []
    for weight in weights:
        both = Weights(weight, 1 - weight)
        solution, placement = three(demands, both, gap=TIGHT)
        row: list[object] = [weight]
        for rival, one in placement.items():
            objective = solution.ranges.objective(both, one.cost, one.accuracy, one.moves)
            assert one.unserved or solution.objective <= objective + TIGHT, f"{rival} is better than the plan"
            row.append(f"{one.cost:.1f} {one.accuracy:.3f} {objective:+.4f}" + ("*" if one.unserved else ""))
        rows.append(row)
    print(f"\nscenario {name}, {words}: cost, mean accuracy and objective by the weight W of cost (*: not all served)")
    table(["W", PLAN, ONE_PERIOD, INCREMENTAL], rows)


def equal_cost(name: str, words: str, demands: Demands, targets: Sequence[float] = TARGETS) -> Figures:
    """Print the mean accuracies at the cost of the plan for 0.875, and the savings at the highest that all reach.

    Returns:
        Both, with None where a baseline leaves tasks unserved.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    for target in targets:
        for rival, one in three(demands, CHEAPEST, target)[1].items():
            if not one.unserved:
                curves.setdefault(rival, []).append((one.cost, one.accuracy))
    budget = next(cost for cost, reached in curves[PLAN] if reached >= 0.875 - 1e-6)
    rows, figures = [], Figures()
    for rival in (PLAN, *RIVALS):
        costs, reached = np.array(sorted(curves.get(rival, [(0.0, 0.0)]))).T
        # If a higher accuracy leaves tasks unserved, its cost is unknown.
        at_budget = float(np.interp(budget, costs, reached)) if costs[-1] >= budget else None
        saved = 100 * (1 - curves[PLAN][-1][0] / costs[-1]) if len(costs) == len(targets) else None
        rows.append([rival, "not all served" if at_budget is None else at_budget, ACCURACIES[_key(rival)], saved,
                     BEST.get(_key(rival))])  # fmt: skip
        key = _key(rival)
        figures |= {f"equal_cost_{key}": at_budget, f"best_saved_{key}": saved}
    print(f"\nscenario {name}, {words}: accuracy at a cost of {budget:.1f}; saved at an accuracy of {targets[-1]}")
    table(["", "accuracy", "the paper, at $2.75", "plan saves, %", "the paper, at the best"], rows)
    return figures


def by_price(seeds: int) -> None:
    """Print the plan's savings at 0.8, by the price of a GPU at the edge."""
    rows = []
    for price in (0.5, 0.8, 0.9, 1.0, 1.2, 1.5):
        saved: dict[str, list[float]] = {ONE_PERIOD: [], INCREMENTAL: []}
        lacks = dict.fromkeys(saved, 0)
        for seed in range(seeds):
            _, placement = three(scenario(SCENARIOS["A"], EdgePrices(price, 0.001), seed), CHEAPEST, 0.8)
            for rival, some in saved.items():
                some.append(100 * (1 - placement[PLAN].cost / placement[rival].cost))
                lacks[rival] += len(placement[rival].unserved)
        found = {rival: f"{statistics.median(some):.1f}" for rival, some in saved.items()}
        rows.append([price, *(words + "*" * bool(lacks[rival]) for rival, words in found.items())])
    print(f"\nscenario A, mean accuracy 0.8: savings of the plan, %, by the price of an edge GPU (median of {seeds})")
    print("*: the baseline did not serve all tasks, and paid less for that reason")
    table(["edge / cloud", ONE_PERIOD, INCREMENTAL], rows)


def speed(size: Size) -> Figures:
    """Print and return seconds of one core to a gap of 0.1 %: tasks counted or listed; 400 and 4,000 jobs."""
    weights = Weights(0.5, 0.5)
    rows: list[list[object]] = []
    seconds: dict[str, float] = {}
    ranges = None
    # The number of jobs that need the edge is unchanged: there are no more nodes.
    cases: Mapping[str, tuple[Demands, bool]] = {
        "A, counted": (scenario(400, SETS[PAYS]), False),
        "counted": (scenario(4000, SETS[PAYS], bound=SHARE / 10), False),
    }
    if size != "quick":
        cases = {
            **cases,
            "A, listed": (scenario(400, SETS[PAYS]), True),
            "counted, of 400 sizes": (scenario(400, SETS[PAYS], sizes=True), False),
        }
    for name, (demands, listed) in cases.items():
        took = []
        for _ in range(1 if listed else REPEATS):
            began = time.process_time()
            # The ranges of the same tasks are equal, and computing them with listed tasks takes longer than the plan.
            solution = plan(demands, weights, listed=listed, gap=TIMED, ranges=ranges if listed else None)
            took.append(time.process_time() - began)
        seconds[name] = statistics.median(took)
        ranges = solution.ranges if name == "A, counted" else ranges
        left = solution.objective - solution.bound
        rows.append(
            [name, len(demands.jobs), solution.variables, seconds[name], f"{solution.objective:.5f}", f"{left:.0e}"]
        )
    print("\nseconds of one core to a gap of 0.1 %; with the ranges, except for listed tasks")
    table(["", "jobs", "variables", "s", "objective", "left"], rows)
    return {"solve_s_a": seconds["A, counted"], "solve_s_4000": seconds["counted"]}


if __name__ == "__main__":
    only = {"figures": "only the paper's figures 2 to 5: both scenarios, with and without the surge"}
    main("clusters.placement", str(__doc__).partition("\n")[0], measure, flags=only, traces=TRACES)
