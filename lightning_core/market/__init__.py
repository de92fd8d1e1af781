"""How many spot and on-demand instances to hold, slot by slot, so that jobs end in time at the least cost."""

from lightning_core.market.forecasters import Arima, Autoregressive, Foreseen, LastValue, Noisy, Perfect, Seasonal
from lightning_core.market.model import JobBatch, Ledger, Market, SpotJob
from lightning_core.market.play import play

__all__ = [
    "Arima",
    "Autoregressive",
    "Foreseen",
    "JobBatch",
    "LastValue",
    "Ledger",
    "Market",
    "Noisy",
    "Perfect",
    "Seasonal",
    "SpotJob",
    "play",
]  # fmt: skip
