"""Forecasters of market prices and counts.

Those of :mod:`lightning_core.planning.time_series`, ARIMA, and futures with artificial errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.specs import Family, Spec, parse_spec
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import SpotForecast
from lightning_core.parts.market.spot_market import Market
from lightning_core.planning.time_series import (
    REFIT,
    WINDOW,
    Autoregressive,
    Forecaster,
    LastValue,
    LiveForecaster,
    Perfect,
    Seasonal,
    errors,
)

__all__ = [
    "FORECASTERS", "Arima", "Autoregressive", "Forecaster", "LastValue", "LiveMarketForecaster", "MarketForecaster",
    "Noisy", "Perfect", "Seasonal", "Tails", "errors", "make_forecaster", "make_live_forecaster",
]  # fmt: skip

# Smallest price that is forecast.
MIN_PRICE = 0.01
Tails = Literal["uniform", "heavy"]


@dataclass(frozen=True, slots=True)
class Noisy:
    """The true future with artificial errors (the paper's four regimes, for which it gives no formula).

    Args:
        by: Size of the errors: 0.1 is 10 %.
        scale: Value that the size is relative to, such as the price of a node; ``None`` for the true value.
        tails: Distribution of the errors: ``"uniform"`` in -1 to 1, or ``"heavy"``, half of Student's t with 1.5
            degrees of freedom, cut off at 6.
        seed: Seed of the errors.
    """

    by: float
    scale: float | None = None
    tails: Tails = "uniform"
    seed: int = 0

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        true = Perfect().table(values, horizon)
        draw = np.random.default_rng(self.seed)
        if self.tails == "uniform":
            errors = draw.uniform(-1, 1, true.T.shape).T  # the first forecasts are the same for any horizon
        else:
            errors = np.clip(0.5 * draw.standard_t(1.5, true.T.shape), -6, 6).T
        return true + self.by * errors * (true if self.scale is None else self.scale)


@dataclass(slots=True)
class Arima:
    """ARIMA, refitted now and then by maximum likelihood to the newest values (needs statsmodels).

    Args:
        order: Orders of the autoregression, the differences and the moving average.
        window: Number of newest values to fit to.
        refit: Number of intervals between two fits.
    """

    order: tuple[int, int, int] = (1, 1, 0)
    window: int = WINDOW
    refit: int = REFIT

    def table(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        found = np.array([self._following(values[: now + 1], horizon) for now in range(len(values))])
        lowest, highest = np.minimum.accumulate(values)[:, None], np.maximum.accumulate(values)[:, None]
        return np.clip(np.where(np.isfinite(found), found, values[:, None]), lowest, highest)

    def newest(self, values: FloatArray, horizon: int) -> FloatArray:
        values = np.asarray(values, float)
        found = self._following(values, horizon)
        return np.clip(np.where(np.isfinite(found), found, values[-1]), values.min(), values.max())

    def check(self) -> None:
        """Check that statsmodels is installed.

        Raises:
            ValueError: If it is not.
        """
        try:
            _arima()
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from None

    def _following(self, values: FloatArray, horizon: int) -> FloatArray:
        """Return the forecast after the last value: that value itself while too few are known, or they are constant."""
        first, last = 4 * sum(self.order), len(values) - 1
        begin = first + max(last - first, 0) // self.refit * self.refit
        seen = values[max(begin + 1 - self.window, 0) : begin + 1]
        if last < first or np.ptp(seen) == 0:
            return np.full(horizon, values[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence, which the reported errors show
            try:
                return _continued(self.order, seen.tobytes(), values[begin + 1 :].tobytes(), horizon)
            except (ValueError, np.linalg.LinAlgError):
                return np.full(horizon, values[-1])


def _arima() -> Any:
    """Return the class of statsmodels."""
    try:
        from statsmodels.tsa.arima.model import ARIMA
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "forecasts by ARIMA need statsmodels: pip install -c constraints.txt '.[arima]' in the clone"
        ) from None
    return ARIMA


@lru_cache(maxsize=16)
def _fitted(order: tuple[int, int, int], seen: bytes) -> Any:
    """Return a model fitted to values; it is asked for again until the next fit is due."""
    return _arima()(np.frombuffer(seen), order=order).fit()


@lru_cache(maxsize=16)
def _continued(order: tuple[int, int, int], seen: bytes, more: bytes, horizon: int) -> FloatArray:
    """Return the forecast after values that a model was fitted to and more; all jobs of an interval ask for it."""
    fitted = _fitted(order, seen)
    if more:
        fitted = fitted.append(np.frombuffer(more))
    following: FloatArray = fitted.forecast(horizon)
    return following


class MarketForecaster:
    """Forecasts a market by a forecaster of prices and one of counts; the tables of a market are computed once.

    Args:
        prices: Forecaster of prices.
        counts: Forecaster of counts; None for the same. Two that draw at random should have different seeds.
    """

    def __init__(self, prices: Forecaster, counts: Forecaster | None = None) -> None:
        self._prices, self._counts = prices, counts or prices
        self._tables: dict[tuple[int, int], tuple[Market, FloatArray, FloatArray]] = {}

    def look(self, batch: JobBatch, interval: int, horizon: int) -> SpotForecast:
        """Return the interval and this many after it, one row a job."""
        at = batch.starts + np.minimum(interval, batch.deadline - 1)
        several = [self._of(market, horizon) for market in batch.markets] if horizon else []
        return _forecast(batch, interval, [
            (prices[row], counts[row]) for (_, prices, counts), row in zip(several, at, strict=bool(horizon))
        ])  # fmt: skip

    def _of(self, market: Market, horizon: int) -> tuple[Market, FloatArray, FloatArray]:
        key = id(market), horizon
        if key not in self._tables:
            prices = self._prices.table(market.price, horizon)
            counts = self._counts.table(market.available.astype(float), horizon)
            self._tables[key] = market, prices, counts  # keep the market alive, so that its id is not reused
        return self._tables[key]


class LiveMarketForecaster:
    """Forecasts a live market from its past; equals a :class:`MarketForecaster`.

    Args:
        series: Forecaster of prices and of counts.
    """

    def __init__(self, series: LiveForecaster) -> None:
        self._series = series

    def look(self, batch: JobBatch, interval: int, horizon: int) -> SpotForecast:
        """Return the interval and this many after it, one row a job."""
        ahead = []
        if horizon:
            seen = batch.starts + np.minimum(interval, batch.deadline - 1) + 1
            for market, until in zip(batch.markets, seen.tolist(), strict=True):
                columns = market.price[:until], market.available[:until].astype(float)
                ahead.append(tuple(self._series.newest(column, horizon) for column in columns))
        return _forecast(batch, interval, ahead)


def _forecast(batch: JobBatch, interval: int, ahead: Sequence[Sequence[FloatArray]]) -> SpotForecast:
    """Return an interval and the forecast after it.

    Args:
        batch: The jobs.
        interval: The interval.
        ahead: Prices and counts that are forecast for each job; empty if the horizon is 0.
    """
    now = np.minimum(interval, batch.intervals - 1)
    prices, counts = batch.price[:, now : now + 1], batch.available[:, now : now + 1]
    if ahead:
        later_prices, later_counts = (np.array(column) for column in zip(*ahead, strict=True))
        prices = np.concatenate([prices, np.maximum(later_prices, MIN_PRICE)], axis=1)
        whole = np.maximum(np.floor(later_counts + 0.5), 0).astype(np.int64)
        counts = np.concatenate([counts, whole], axis=1)
    return SpotForecast(prices, counts)


FORECASTERS: Family[Forecaster] = Family(
    "forecaster",
    {"last": LastValue, "autoregressive": Autoregressive, "seasonal": Seasonal, "arima": Arima, "perfect": Perfect},
)
"""Forecasters by name, as :func:`make_forecaster` makes them. ``arima`` needs statsmodels."""


def make_forecaster(text: str, seconds: float) -> Forecaster:
    """Return a forecaster by its spec, such as ``autoregressive:order=4``.

    Args:
        text: The spec.
        seconds: Seconds of an interval: the period of ``seasonal`` is a day, unless it is given.

    Raises:
        ValueError: If there is no such forecaster, or an argument is unknown or out of range.
    """
    name, _, _ = text.partition(":")
    if name == "seasonal" and "period" not in (given := parse_spec(text).arguments):
        text = str(Spec(name, {"period": max(round(86400 / seconds), 1), **given}))
    return FORECASTERS.make(text)


def make_live_forecaster(text: str, seconds: float) -> LiveMarketForecaster:
    """Return a forecaster for a live market.

    Raises:
        ValueError: As :func:`make_forecaster`; or it knows the future, or what it needs is not installed.
    """
    made = make_forecaster(text, seconds)
    if isinstance(made, Arima):
        made.check()
    if not isinstance(made, LiveForecaster):
        can = [name for name, kind in FORECASTERS.items() if hasattr(kind, "newest")]
        raise ValueError(
            f"forecaster must be one of {', '.join(can)} where nodes are held, got {text!r}, which knows the future"
        )
    return LiveMarketForecaster(made)


def is_reproducible(text: str) -> bool:
    """Return whether a forecast is the same to the bit on every machine; a fit by maximum likelihood need not be."""
    return not isinstance(FORECASTERS.make(text), Arima)
