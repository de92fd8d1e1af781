"""Policies that play the benchmark, by name. A policy is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.market.late.late_baselines import (
    Greedy,
    LifetimeOracle,
    OnDemand,
    UniformProgress,
    UniformProgressCode,
)
from benchmarks.market.late.node_play import Policy
from lightning_core.core.arrays import BoolArray

# The policy that is compared with both forms of Uniform Progress.
OURS = "greedy"
ON_DEMAND, TEXT, CODE = "on-demand", "uniform progress", "uniform progress, code"

POLICIES: Mapping[str, Callable[[], Policy]] = {
    ON_DEMAND: OnDemand,
    "greedy": Greedy,
    TEXT: UniformProgress,
    CODE: UniformProgressCode,
    "uniform progress, lifetimes known": LifetimeOracle,
}
# Policies that learn from whole recordings of other zones.
LEARNERS: Mapping[str, Callable[[Sequence[BoolArray]], Policy]] = {}
