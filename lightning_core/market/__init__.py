"""Spot and on-demand nodes under a deadline: how many of each to hold, interval by interval, at the least cost."""

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
from lightning_core.market.job_batch import JobBatch
from lightning_core.market.ledger import Ledger
from lightning_core.market.spot_job import SpotJob
from lightning_core.market.spot_market import Market

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
