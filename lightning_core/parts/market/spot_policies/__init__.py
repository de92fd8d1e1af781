"""Spot policies decide how many spot and on-demand nodes to hold; one file each."""

from lightning_core.core.specs import Family
from lightning_core.parts.market.observation import SpotPolicy
from lightning_core.parts.market.spot_policies.ahanp import Ahanp
from lightning_core.parts.market.spot_policies.ahap import Ahap
from lightning_core.parts.market.spot_policies.chain import Chain
from lightning_core.parts.market.spot_policies.max_spot import MaxSpot
from lightning_core.parts.market.spot_policies.next_lifetime import NextLifetime
from lightning_core.parts.market.spot_policies.on_demand import OnDemand
from lightning_core.parts.market.spot_policies.semi_markov import SemiMarkov
from lightning_core.parts.market.spot_policies.uniform_progress import AllOrNothing, UniformProgress

__all__ = [
    "SPOT_POLICIES", "Ahanp", "Ahap", "AllOrNothing", "Chain", "MaxSpot", "NextLifetime", "OnDemand", "SemiMarkov",
    "UniformProgress",
]  # fmt: skip

SPOT_POLICIES: Family[SpotPolicy] = Family(
    "spot policy",
    {
        "semi-markov": SemiMarkov,
        "chain": Chain,
        "ahap": Ahap,
        "ahanp": Ahanp,
        "max-spot": MaxSpot,
        "uniform-progress": UniformProgress,
        "all-or-nothing": AllOrNothing,
        "next-lifetime": NextLifetime,
        "on-demand": OnDemand,
    },
    outside="spot_policies",
    methods=("decide",),
)
"""Factories of the policies, by name; their arguments are keywords, or stand in a spec such as ``ahap:omega=5``."""
