"""What the prices and counts of the next intervals will be.

Those of :mod:`lightning_core.planning.time_series`, ARIMA, and futures that were made wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.market.job_batch import JobBatch
from lightning_core.market.observation import Forecast
from lightning_core.market.spot_market import Market
from lightning_core.planning.time_series import (
    REFIT,
    WINDOW,
    Autoregressive,
    Forecaster,
    LastValue,
    Perfect,
    Seasonal,
    errors,
)

__all__ = [
    "FORECASTERS",
    "Arima",
    "Autoregressive",
    "Forecaster",
    "LastValue",
    "MarketForecaster",
    "Noisy",
    "Perfect",
    "Seasonal",
    "Tails",
    "errors",
]  # fmt: skip

# No price is forecast below it.
LOWEST_PRICE = 0.01
Tails = Literal["uniform", "heavy"]


@dataclass(frozen=True, slots=True)
class Noisy:
    """The future, made wrong on purpose (the paper's four regimes; it gives no formula).

    Args:
        by: how wrong: 0.1 is 10 %.
        scale: what that is a part of: ``None``, the true value; else so much, say the price of an instance.
        tails: of the errors: ``"uniform"`` in -1 to 1, or ``"heavy"``, half of Student's t with 1.5 degrees of
            freedom, cut off at 6.
        seed: of the errors.
    """

    by: float
    scale: float | None = None
    tails: Tails = "uniform"
    seed: int = 0

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        true = Perfect().table(values, horizon)
        draw = np.random.default_rng(self.seed)
        if self.tails == "uniform":
            errors = draw.uniform(-1, 1, true.T.shape).T  # the first intervals ahead are the same, however many follow
        else:
            errors = np.clip(0.5 * draw.standard_t(1.5, true.T.shape), -6, 6).T
        return true + self.by * errors * (true if self.scale is None else self.scale)


@dataclass(slots=True)
class Arima:
    """ARIMA, fitted by maximum likelihood to the newest values, now and again; statsmodels does it.

    Args:
        order: of the autoregression, the differences and the moving average.
        window: newest intervals to fit to.
        refit: intervals after which it is fitted again.
    """

    order: tuple[int, int, int] = (1, 1, 0)
    window: int = WINDOW
    refit: int = REFIT

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        import warnings

        try:
            from statsmodels.tsa.arima.model import ARIMA
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "forecasts by ARIMA need statsmodels: pip install 'lightning-core-learning[arima]'"
            ) from None

        values = np.asarray(values, float)
        found = LastValue().table(values, horizon)
        for begin in range(4 * sum(self.order), len(values), self.refit):
            seen = values[max(begin + 1 - self.window, 0) : begin + 1]
            if np.ptp(seen) == 0:  # all goes on as it is
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it has not converged is no news to whoever sees its errors
                try:
                    fitted = ARIMA(seen, order=self.order).fit()
                    for now in range(begin, min(begin + self.refit, len(values))):
                        if now > begin:
                            fitted = fitted.append(values[now : now + 1])
                        found[now] = fitted.forecast(horizon)
                except (ValueError, np.linalg.LinAlgError):
                    continue
        lowest, highest = np.minimum.accumulate(values)[:, None], np.maximum.accumulate(values)[:, None]
        return np.clip(np.where(np.isfinite(found), found, values[:, None]), lowest, highest)


class PersistenceForecaster:
    """Each interval to come is like this one: what :class:`MarketForecaster` says with :class:`LastValue`, without any tables."""

    def look(self, batch: JobBatch, interval: int, horizon: int) -> Forecast:
        """The interval and so many behind it, one row a job."""
        now = np.minimum(interval, batch.intervals - 1)
        prices, counts = (
            np.repeat(column[:, now : now + 1], 1 + horizon, 1) for column in (batch.price, batch.available)
        )
        prices[:, 1:] = np.maximum(prices[:, 1:], LOWEST_PRICE)
        return Forecast(prices, counts)


class MarketForecaster:
    """What one forecaster says of prices, and one of counts; the tables of a market are made once.

    Args:
        prices: forecaster of prices.
        counts: forecaster of counts; the same if there is none. Two that draw should have two seeds.
    """

    def __init__(self, prices: Forecaster, counts: Forecaster | None = None) -> None:
        self._prices, self._counts = prices, counts or prices
        self._tables: dict[tuple[int, int], tuple[Market, FloatArray, FloatArray]] = {}

    def look(self, batch: JobBatch, interval: int, horizon: int) -> Forecast:
        """The interval and so many behind it, one row a job."""
        at = batch.starts + np.minimum(interval, batch.deadline - 1)
        now = np.minimum(interval, batch.intervals - 1)
        prices, counts = batch.price[:, now : now + 1], batch.available[:, now : now + 1]
        if horizon:
            several = [self._of(market, horizon) for market in batch.markets]
            ahead = [(one[1][row], one[2][row]) for one, row in zip(several, at, strict=True)]
            later_prices, later_counts = (np.array(column) for column in zip(*ahead, strict=True))
            prices = np.concatenate([prices, np.maximum(later_prices, LOWEST_PRICE)], axis=1)
            whole = np.maximum(np.floor(later_counts + 0.5), 0).astype(np.int64)
            counts = np.concatenate([counts, whole], axis=1)
        return Forecast(prices, counts)

    def _of(self, market: Market, horizon: int) -> tuple[Market, FloatArray, FloatArray]:
        key = id(market), horizon
        if key not in self._tables:
            prices = self._prices.table(market.price, horizon)
            counts = self._counts.table(market.available.astype(float), horizon)
            self._tables[key] = market, prices, counts  # the market too: no other may get its id
        return self._tables[key]


FORECASTERS: Mapping[str, Callable[[Market], Forecaster]] = MappingProxyType(
    {
        "last": lambda _: LastValue(),
        "autoregressive": lambda _: Autoregressive(),
        "seasonal": lambda market: Seasonal(max(round(86400 / market.seconds), 1)),
        "arima": lambda _: Arima(),
        "perfect": lambda _: Perfect(),
    }
)
"""By name, for a market. ``arima`` needs statsmodels."""
