"""Readers of market recordings.

An interval gets the lowest count recorded in it, so that this many nodes could have been kept for all of it, and the
highest price. For a recording without prices the caller gives the price of a spot node.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.spot_market import Market
from lightning_core.regular_files import MAX_TABLE_BYTES, read_regular

INTERVAL = 1800.0
# Column names in the recordings that exist.
COUNTS, PRICES = ("available", "avail", "count"), ("price", "price_p10", "spot_price")
# Rows of a file: a year in intervals of half a minute.
MAX_ROWS = 1_000_000
# Seconds without a record after which an interval is assumed to have no spot nodes.
GAP = 3600.0


def resample(
    times: FloatArray, counts: IntArray, prices: FloatArray | None, interval: float, end: float, gap: float = math.inf
) -> tuple[IntArray, FloatArray | None]:
    """Return the lowest count and the highest price of each whole interval; a value holds until the next one.

    Args:
        times: Seconds since the first record, not falling, shape ``(n,)``.
        counts: Count from each time on.
        prices: Price from each time on, if there are any.
        interval: Seconds of an interval.
        end: End of the recording, in seconds.
        gap: Seconds after which a value no longer holds: the count is 0 then.

    Raises:
        ValueError: If ``interval`` is not positive, or the recording is shorter than one.
    """
    if not interval > 0:
        raise ValueError(f"interval must be positive, got {interval}")
    number = int((end + 1e-6) / interval)
    if not number:
        raise ValueError(f"the recording must last an interval of {interval:g} s, got {end:g} s")
    lowest, highest = np.zeros(number, np.int64), None if prices is None else np.zeros(number)
    for k in range(number):
        begin, stop = k * interval, (k + 1) * interval
        first = int(np.searchsorted(times, begin, side="right")) - 1
        last = int(np.searchsorted(times, stop, side="left"))
        held = np.append(times[first:last], stop)
        lost = (np.diff(held) > gap).any()
        lowest[k] = 0 if lost else counts[first:last].min()
        if highest is not None and prices is not None:
            highest[k] = prices[first:last].max()
    return lowest, highest


def shipped_trace(price: float | None = None, on_demand: float = 1.0, interval: float | None = None) -> Market:
    """Return 28 days of a marketplace for A100 cards, with prices relative to the on-demand price.

    Args:
        price: Price of a spot node instead of the recorded ones.
        on_demand: Price of an on-demand node.
        interval: Seconds of an interval; None: as recorded, 30 minutes.
    """
    with resources.as_file(resources.files("lightning_core.parts.market") / "data" / "a100.csv") as path:
        market = read_intervals(path, price, on_demand, interval)
    return market if price is not None else replace(market, price=market.price * on_demand)


def read_trace(
    path: Path, price: float | None = None, on_demand: float = 1.0, interval: float | None = None, pool: str = ""
) -> Market:
    """Read a recording of any known kind, recognised by its suffix and its first line.

    Args:
        path: File to read.
        price: Price of a spot node: instead of recorded ones, and required where none are recorded.
        on_demand: Price of an on-demand node.
        interval: Seconds of an interval; None: as recorded in a file of intervals, else 30 minutes.
        pool: Pool of a SpotLake snapshot, ``INSTANCE@ZONE``.

    Raises:
        ValueError: If it is of no known kind, or lacks something required.
    """
    if path.suffix == ".json":
        return read_spot_traces(path, _require_price(path, price), on_demand, interval or INTERVAL)
    header = set(_text(path).partition("\n")[0].strip().split(","))
    if "InstanceType" in header:
        instance, _, zone = pool.partition("@")
        if not (instance and zone):
            raise ValueError(f"{path}: pool must be INSTANCE@ZONE, got {pool!r}")
        folder = sorted(path.parent.glob(f"*{''.join(path.suffixes)}"))
        market = read_spotlake(folder, instance, zone, interval or INTERVAL)
        prices = market.price * on_demand if price is None else np.full(len(market), price)
        return replace(market, price=prices, on_demand=on_demand)
    if "change" in header:
        return read_events(path, _require_price(path, price), on_demand, interval or INTERVAL)
    return read_intervals(path, price, on_demand, interval)


def _require_price(path: Path, price: float | None) -> float:
    if price is None:
        raise ValueError(f"{path}: has no prices: give the price of a spot node (price)")
    return price


def read_intervals(
    path: Path, price: float | None = None, on_demand: float = 1.0, interval: float | None = None
) -> Market:
    """Read a CSV of intervals, one row each, in order.

    Args:
        path: File with a column of counts (``available``, ``avail`` or ``count``) and optionally prices (``price``,
            ``price_p10`` or ``spot_price``) and ``hour``.
        price: Price of a spot node, if there is no such column.
        on_demand: Price of an on-demand node.
        interval: Seconds of an interval; None: as ``hour`` says, else 30 minutes. Recorded intervals of another
            length are resampled.

    Raises:
        ValueError: If a column is missing, or a value is not a number.
    """
    rows = list(_rows(path))
    if not rows:
        raise ValueError(f"{path}: must have at least one interval, got none")
    counts = _column(path, rows, COUNTS)
    if counts is None:
        raise ValueError(f"{path}: must have a column {' or '.join(COUNTS)}")
    prices = _column(path, rows, PRICES)
    lowest, highest = _whole(path, counts), _prices(path, prices, price, len(rows))
    hours = _column(path, rows, ("hour",))
    recorded = None if hours is None or len(hours) < 2 else float(np.median(np.diff(hours))) * 3600.0
    if interval is not None and recorded is not None and hours is not None and interval != recorded:
        times = (hours - hours[0]) * 3600.0
        lowest, found = resample(times, lowest, highest, interval, end=float(times[-1]) + recorded)
        assert found is not None  # there are prices
        highest = found
    return Market(highest, lowest, on_demand, interval or recorded or INTERVAL, path.stem)


def read_spot_traces(path: Path, price: float, on_demand: float = 1.0, interval: float = INTERVAL) -> Market:
    """Read a JSON of the public spot traces: ``{"metadata": {"gap_seconds": s}, "data": [count, ...]}``.

    Args:
        path: File to read.
        price: Price of a spot node, which such a trace does not contain.
        on_demand: Price of an on-demand node.
        interval: Seconds of an interval.

    Raises:
        ValueError: If it is not such a file.
    """
    try:
        body = json.loads(_text(path))
        gap, data = float(body["metadata"]["gap_seconds"]), np.array([float(count) for count in body["data"]])
        if not (0 < gap < math.inf and np.isfinite(data).all()):
            raise ValueError("gap_seconds must be positive, and all counts finite")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: must be an object of metadata.gap_seconds and data: {error}") from None
    counts = _whole(path, data)
    times: FloatArray = np.arange(len(counts), dtype=float) * gap
    lowest, _ = resample(times, counts, None, interval, end=len(counts) * gap)
    return Market(np.full(len(lowest), price), lowest, on_demand, interval, path.stem)


def read_events(path: Path, price: float, on_demand: float = 1.0, interval: float = INTERVAL) -> Market:
    """Read a CSV of events with the columns ``time``, in seconds, and ``change``, in nodes.

    Args:
        path: File to read, with its rows in order of time. The last row ends the recording.
        price: Price of a spot node.
        on_demand: Price of an on-demand node.
        interval: Seconds of an interval.

    Raises:
        ValueError: If a column is missing, the times fall, or the count becomes negative.
    """
    rows = list(_rows(path))
    times, changes = _column(path, rows, ("time",)), _column(path, rows, ("change",))
    if times is None or changes is None or len(rows) < 2:
        raise ValueError(f"{path}: must have at least two rows with the columns time and change")
    counts = np.cumsum(changes)
    if (np.diff(times) < 0).any() or (counts < 0).any():
        raise ValueError(f"{path}: times must not fall, and the count must not become negative")
    lowest, _ = resample(times - times[0], _whole(path, counts), None, interval, end=float(times[-1] - times[0]))
    return Market(np.full(len(lowest), price), lowest, on_demand, interval, path.stem)


def read_spotlake(paths: Iterable[Path], instance: str, zone: str, interval: float = INTERVAL) -> Market:
    """Read SpotLake's snapshots of AWS: expected numbers of instances of a pool, and their prices.

    The count is the largest capacity with a sufficient score, 0 to 50; prices are relative to the on-demand price. An
    empty cell and -1 are missing values, 0 is a value. Of two prices of a pool the higher one counts. An interval
    without snapshots continues the last one, and has no nodes after an hour.

    Args:
        paths: Snapshots, ``.csv`` or ``.csv.gz``, in any order.
        instance: Instance type, such as ``p4d.24xlarge``.
        zone: Id of the availability zone, such as ``use1-az1``.
        interval: Seconds of an interval.

    Raises:
        ValueError: If no snapshot has the pool, or a column is missing.
    """
    found: dict[float, tuple[int, float]] = {}
    for path in paths:
        for row in _rows(path):
            if row.get("InstanceType") != instance or row.get("AZ") != zone:
                continue
            try:
                when = datetime.strptime(row["Time"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
                count, spot, full = (_parse_cell(row[name]) for name in ("T3", "SpotPrice", "OndemandPrice"))
            except KeyError as error:
                raise ValueError(f"{path}: must have a column {error}") from None
            if count is None or not spot or not full:
                continue
            before = found.get(when, (int(count), 0.0))
            found[when] = min(before[0], int(count)), max(before[1], spot / full)
    if not found:
        raise ValueError(f"no snapshot has a count and prices of {instance} in {zone}")
    times = np.array(sorted(found))
    counts, prices = (np.array([found[when][kind] for when in times]) for kind in (0, 1))
    lowest, highest = resample(
        times - times[0], counts, prices, interval, end=float(times[-1] - times[0]) + 600.0, gap=GAP
    )
    assert highest is not None  # there are prices
    return Market(highest, lowest, 1.0, interval, f"{instance} {zone}")


def _text(path: Path) -> str:
    """Return the text of a file, compressed or not, with or without a byte order mark."""
    content = read_regular(path, MAX_TABLE_BYTES)
    if path.suffix == ".gz":
        try:
            with gzip.GzipFile(fileobj=BytesIO(content)) as file:
                content = file.read(MAX_TABLE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be decompressed: {error}") from None
        if len(content) > MAX_TABLE_BYTES:
            raise ValueError(f"{path}: larger than {MAX_TABLE_BYTES:,} bytes when it is decompressed")
    return content.decode("utf-8-sig")


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        for number, row in enumerate(csv.DictReader(StringIO(_text(path), newline=""))):
            if number >= MAX_ROWS:
                raise ValueError(f"{path}: must have at most {MAX_ROWS:,} rows")
            yield row
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None


def _parse_cell(text: str | None) -> float | None:
    """Return the number in a cell; None if it is missing."""
    value = float(text) if text else -1.0
    return None if value < 0 else value


def _column(path: Path, rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> FloatArray | None:
    for name in names:
        if rows and name in rows[0]:
            try:
                return np.array([float(row[name]) for row in rows])
            except (TypeError, ValueError):
                raise ValueError(f"{path}: every {name} must be a number") from None
    return None


def _whole(path: Path, counts: FloatArray) -> IntArray:
    if (counts != np.round(counts)).any():
        raise ValueError(f"{path}: every count must be whole")
    return counts.astype(np.int64)


def _prices(path: Path, column: FloatArray | None, price: float | None, intervals: int) -> FloatArray:
    if price is not None:
        return np.full(intervals, price)
    if column is None:
        raise ValueError(f"{path}: has no column {' or '.join(PRICES)}: give the price of a spot node")
    return column
