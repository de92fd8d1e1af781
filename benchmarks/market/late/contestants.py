"""Policies that play the benchmark, by name; each is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks.market.late.hour_slots import hour_slots
from benchmarks.market.late.late_baselines import (
    Greedy,
    LifetimeOracle,
    OnDemand,
    UniformProgress,
    UniformProgressCode,
)
from benchmarks.market.late.node_play import Policy
from benchmarks.market.late.tick_slots import tick_slots, with_recordings
from lightning_core.core.arrays import BoolArray

# The policy that is compared with both forms of Uniform Progress.
OURS = "semi-markov"
ON_DEMAND, TEXT, CODE = "on-demand", "uniform progress", "uniform progress, code"

POLICIES: Mapping[str, Callable[[], Policy]] = {
    ON_DEMAND: OnDemand,
    OURS: partial(tick_slots, OURS),
    "greedy": Greedy,
    TEXT: UniformProgress,
    CODE: UniformProgressCode,
    f"{TEXT}, lifetimes known": LifetimeOracle,
    f"{CODE}, lifetimes known": lambda: LifetimeOracle(waits=True),
}
# Policies of this project that decide by the hour.
HOURLY: Mapping[str, Callable[[], Policy]] = {
    f"{name}, by the hour": partial(hour_slots, name) for name in ("chain", "ahap", "max-spot")
}
# Policies that are given the recordings of all other zones to learn from.
LEARNERS: Mapping[str, Callable[[Sequence[BoolArray]], Policy]] = {OURS: with_recordings}


def with_zones(name: str) -> str:
    """Return the name of a policy that has learned from other zones."""
    return f"{name}, other zones known"
