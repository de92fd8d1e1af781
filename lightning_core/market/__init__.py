"""How many spot and on-demand instances to hold, slot by slot, so that jobs end in time at the least cost."""

from lightning_core.market.forecasters import Arima, Autoregressive, Foreseen, LastValue, Noisy, Perfect, Seasonal
from lightning_core.market.model import Batch, Ledger, Market, SpotJob
from lightning_core.market.play import play
from lightning_core.market.policies import (
    Ahanp,
    Ahap,
    AllOrNothing,
    Chain,
    MaxSpot,
    NextLifetime,
    OnDemand,
    UniformProgress,
)

__all__ = [
    "Ahanp", "Ahap", "AllOrNothing", "Arima", "Autoregressive", "Batch", "Chain", "Foreseen", "LastValue", "Ledger",
    "Market", "MaxSpot", "NextLifetime", "Noisy", "OnDemand", "Perfect", "Seasonal", "SpotJob",
    "UniformProgress", "play",
]  # fmt: skip
