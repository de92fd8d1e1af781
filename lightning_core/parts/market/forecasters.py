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
from lightning_core.core.limits import MAX_FACTOR, MAX_SEED, check_at_most
from lightning_core.core.specs import Family, Spec, parse_spec
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import SpotForecast
from lightning_core.parts.market.spot_market import Market
from lightning_core.parts.market.traces import INTERVAL
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
    "CAUSAL", "FORECASTERS", "Arima", "Autoregressive", "Forecaster", "LastValue", "LiveMarketForecaster",
    "MarketForecaster", "Noise", "Noisy", "Perfect", "Seasonal", "Tails", "check_live", "errors", "is_reproducible",
    "knows_future", "make_causal_forecaster", "make_forecaster", "make_live_forecaster", "make_market_forecaster",
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


@dataclass(frozen=True, slots=True)
class Noise:
    """The true prices and counts of a market with the paper's artificial errors (:class:`Noisy`), drawn apart.

    Args:
        by: Size of the errors: 0.1 is 10 %, and 0 is the perfect forecast.
        price: Price that errors of prices are relative to, such as that of an on-demand node; ``None``: the true one.
        count: Count that errors of counts are relative to, such as half the most nodes; ``None``: the true one.
        tails: Distribution of the errors, ``"uniform"`` or ``"heavy"``.
        seed: Seed of the errors.

    Raises:
        ValueError: If one is out of its range.
    """

    by: float
    price: float | None = None
    count: float | None = None
    tails: Tails = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("by", "price", "count"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_FACTOR:
                raise ValueError(f"{name} must be 0 to {MAX_FACTOR:g}, got {value}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        check_at_most("seed", self.seed, MAX_SEED)

    @property
    def prices(self) -> Noisy:
        """The forecaster of prices."""
        return Noisy(self.by, self.price, self.tails, 2 * self.seed)

    @property
    def counts(self) -> Noisy:
        """The forecaster of counts."""
        return Noisy(self.by, self.count, self.tails, 2 * self.seed + 1)


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
        prices: Forecaster of prices, or noise on prices and counts.
        counts: Forecaster of counts; None for the same. Two that draw at random should have different seeds.

    Attributes:
        recording: Recording that a live market replays. Forecasts come from it, because the market of a batch is known
            only up to now; after its end the last forecast stays. None: forecasts come from the batch's market.
        first: Interval of the batch's market at which the recording begins.
    """

    def __init__(self, prices: Forecaster | Noise, counts: Forecaster | None = None) -> None:
        self._prices, self._counts = (
            (prices.prices, prices.counts) if isinstance(prices, Noise) else (prices, counts or prices)
        )
        self.recording: Market | None = None
        self.first = 0
        self._tables: dict[tuple[int, int], tuple[Market, FloatArray, FloatArray]] = {}

    def look(self, batch: JobBatch, interval: int, horizon: int) -> SpotForecast:
        """Return the interval and this many after it, one row a job."""
        at = batch.starts + np.minimum(interval, batch.deadline - 1) - self.first
        ahead = []
        for market, row in zip(batch.markets, at.tolist(), strict=True) if horizon else ():
            _, prices, counts = self._of(self.recording or market, horizon)
            last = min(row, len(prices) - 1)
            ahead.append((prices[last], counts[last]))
        return _forecast(batch, interval, ahead)

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


FORECASTERS: Family[Forecaster | Noise] = Family(
    "forecaster",
    {
        "last": LastValue, "autoregressive": Autoregressive, "seasonal": Seasonal, "arima": Arima, "perfect": Perfect,
        "noisy": Noise,
    },
)  # fmt: skip
"""Forecasters by name, as :func:`make_forecaster` makes them. ``arima`` needs statsmodels."""
CAUSAL = tuple(name for name, kind in FORECASTERS.items() if hasattr(kind, "newest"))
"""Those that know no future."""


def make_forecaster(text: str, seconds: float) -> Forecaster | Noise:
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


def make_causal_forecaster(text: str, seconds: float) -> LiveForecaster:
    """Return a forecaster that knows no future.

    Raises:
        ValueError: As :func:`make_forecaster`; or it knows the future.
    """
    made = make_forecaster(text, seconds)
    if not isinstance(made, LiveForecaster):
        can = ", ".join(CAUSAL)
        words = f"forecaster must be one of {can} where the future is not recorded, got {text!r}, which knows it"
        raise ValueError(words)
    return made


def make_market_forecaster(text: str, seconds: float) -> MarketForecaster:
    """Return a forecaster for a recorded market.

    Raises:
        ValueError: As :func:`make_forecaster`.
    """
    return MarketForecaster(make_forecaster(text, seconds))


def make_live_forecaster(text: str, seconds: float) -> LiveMarketForecaster | MarketForecaster:
    """Return a forecaster for a live market; one that knows the future must be given the recording of it."""
    if knows_future(text):
        return make_market_forecaster(text, seconds)
    return LiveMarketForecaster(make_causal_forecaster(text, seconds))


def knows_future(text: str) -> bool:
    """Return whether a forecaster, by its spec, looks at what comes."""
    return parse_spec(text).name not in CAUSAL


def check_live(text: str, *, recorded: bool) -> None:
    """Check a forecaster of a market on which nodes are held.

    Args:
        text: Its spec.
        recorded: True if the market replays a recording, so its future is known.

    Raises:
        ValueError: As :func:`make_forecaster`; or it knows the future, which is not recorded, or what it needs is not
            installed.
    """
    made = FORECASTERS.make(text) if recorded else make_causal_forecaster(text, INTERVAL)
    if isinstance(made, Arima):
        made.check()


def is_reproducible(text: str) -> bool:
    """Return whether a forecast is the same to the bit on every machine.

    A fit by maximum likelihood need not be, nor need random numbers of another version of NumPy.
    """
    return not isinstance(FORECASTERS.make(text), Arima | Noise)
