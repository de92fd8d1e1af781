"""Scenarios of the placement benchmark: jobs, nodes and prices.

Scenario A has 400 jobs, B 600, of 3 to 7 tasks; ten nodes at the edge with 200 single V100 and 100 machines of eight;
three periods with 0.25, 1 and 0.5 of the tasks; 15 samples per second for a task, of 0.4 to 2.4 MB; windows of 30 s,
100 epochs; 166 samples per second on a V100 with fp32 and 566 with mixed precision (1,210 and 4,160 on eight). The
paper's values are used where it gives them. It does not give the accuracy of its two precisions, the distance of the
cloud, or the jobs for which that is too far: here 0.9 and 0.7, 40 ms, and every fifth job must stay within 20 ms. With
its prices the cloud is cheaper than the edge for tasks that may go there. In the second set of prices a GPU at the edge
costs 0.8 times one in the cloud, so that there is something to decide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lightning_core.parts.edge_cloud.placement import Cloud, Demands, EdgePrices, Gpu, Level, Node, PlacedJob, Weights

GPUS = {"v100": Gpu(2.08), "eight_v100": Gpu(16.7)}
IN_ONE = {"v100": 1, "eight_v100": 8}
LEVELS = {
    "fp32": Level(0.9, {"v100": 166.0, "eight_v100": 1210.0}),
    "mixed": Level(0.7, {"v100": 566.0, "eight_v100": 4160.0}),
}
SIZES, TASKS, RATE, RATIOS = (0.4, 0.8, 1.2, 1.6, 2.0, 2.4), (3, 7), 15.0, (0.25, 1.0, 0.5)
# 10 Tbit/s, and 6,000 cores: one for each task as planned.
CORES = 6000.0
NODE, NODES = Node({"v100": 200.0, "eight_v100": 100.0}, bandwidth=1.25e6, aggregation=CORES), 10
FAR, BOUND, SHARE = 40.0, 20.0, 0.2
SCENARIOS = {"A": 400, "B": 600}
PUBLISHED, PAYS = "as published", "edge pays"
SETS = {PUBLISHED: EdgePrices(1.5, 0.001), PAYS: EdgePrices(0.8, 0.001)}
SURGE, BUSIEST = 1.2, 1
# The paper's figures give moves no weight.
CHEAPEST, FEW_MOVES = Weights(1.0, 0.0), Weights(1.0, 0.0, 0.05)


def scenario(
    jobs: int, edge: EdgePrices, seed: int = 0, bound: float = SHARE, *, sizes: bool = False, cores: float = CORES
) -> Demands:
    """Draw jobs, for some of which the cloud is too far.

    Args:
        jobs: Number of jobs.
        edge: Prices at the edge.
        seed: Seed of the draws.
        bound: Part of the jobs for which the cloud is too far.
        sizes: Whether no two jobs have samples of the same size.
        cores: Cores of each node that aggregate weights, one for each task as planned (eq. 7).
    """
    draw = np.random.default_rng(seed)
    made = {}
    for number in range(jobs):
        tasks = int(draw.integers(TASKS[0], TASKS[1] + 1))
        size = float(draw.choice(SIZES))
        made[f"job{number}"] = PlacedJob(
            tuple(max(round(ratio * tasks), 1) for ratio in RATIOS), RATE, size + 1e-6 * number * sizes, 1.0 / RATE,
            delay=BOUND if draw.random() < bound else 1000.0,
        )  # fmt: skip
    nodes = {f"edge{number}": replace(NODE, aggregation=cores) for number in range(NODES)}
    return Demands(("night", "day", "evening"), GPUS, LEVELS, nodes, made, Cloud(FAR, 0.01), edge)
