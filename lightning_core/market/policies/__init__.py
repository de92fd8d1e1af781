"""How many spot and on-demand instances to hold; one file a policy."""

from lightning_core.market.policies.ahanp import Ahanp
from lightning_core.market.policies.ahap import Ahap
from lightning_core.market.policies.chain import Chain
from lightning_core.market.policies.lifetime import NextLifetime
from lightning_core.market.policies.max_spot import MaxSpot
from lightning_core.market.policies.on_demand import OnDemand
from lightning_core.market.policies.uniform_progress import AllOrNothing, UniformProgress

__all__ = ["Ahanp", "Ahap", "AllOrNothing", "Chain", "MaxSpot", "NextLifetime", "OnDemand", "UniformProgress"]
