"""Pools of policies that are played side by side, the paper's among them, and how many of a pool differ."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.programs.window_planner import End, WindowPlanner
from lightning_core.parts.market.spot_policies import SPOT_POLICIES, Ahap

SIGMAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MAX_OMEGA = 5

REPAIRED_POOL = (
    *(
        f"ahap:omega={omega},commitment={commitment},sigma={sigma}"
        for omega in range(1, MAX_OMEGA + 1)
        for commitment in range(1, omega + 1)
        for sigma in SIGMAS
    ),
    *(f"ahanp:sigma={sigma}" for sigma in SIGMAS),
)
"""Specs of the paper's 112 policies, 105 of AHAP by window, commitment and price and 7 of AHANP, with our repairs."""
PAPER_POOL = tuple(f"{spec},mode=paper" for spec in REPAIRED_POOL)
"""Specs of the paper's 112 policies as printed."""
POOLS = {"paper": PAPER_POOL, "repaired": REPAIRED_POOL}
"""Pools by the words that stand for them where policies are listed."""


def pool_of(specs: Sequence[str]) -> tuple[str, ...]:
    """Return the specs of a pool's policies, with those of :data:`POOLS` in place of their words."""
    return tuple(one for spec in specs for one in POOLS.get(spec, (spec,)))


def make_pool(specs: Sequence[str]) -> dict[str, SpotPolicy]:
    """Return new policies by their specs.

    Those of AHAP share the tables of planners, so they must be backtested together or one after another, not
    concurrently.

    Raises:
        ValueError: If a spec is unknown or wrong.
    """
    pool, planners = {spec: SPOT_POLICIES.make(spec) for spec in specs}, dict[End, WindowPlanner]()
    for policy in pool.values():
        if isinstance(policy, Ahap):
            policy.planner = planners.setdefault(policy.planner.end, policy.planner)
    return pool


def distinct(ledgers: Sequence[Ledger]) -> int:
    """Return the number of different decisions among the policies that left these ledgers."""
    return len({(ledger.spot.tobytes(), ledger.on_demand.tobytes()) for ledger in ledgers})
