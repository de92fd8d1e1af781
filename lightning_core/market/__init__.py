"""How many spot and on-demand instances to hold, interval by interval, so that jobs end in time at the least cost."""

from lightning_core.market.backtest import backtest
from lightning_core.market.forecasters import (
    Arima,
    Autoregressive,
    LastValue,
    MarketForecaster,
    Noisy,
    Perfect,
    Seasonal,
)
from lightning_core.market.job_batch import JobBatch, Ledger, Market, SpotJob

__all__ = [
    "Arima",
    "Autoregressive",
    "JobBatch",
    "LastValue",
    "Ledger",
    "Market",
    "MarketForecaster",
    "Noisy",
    "Perfect",
    "Seasonal",
    "SpotJob",
    "backtest",
]  # fmt: skip
