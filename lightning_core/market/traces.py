"""Recordings of markets, read; and one that is made up.

Whatever a recording's grain, a slot has the least count that was there in it, so what is counted could be kept for the
whole slot, and the highest price. Where a recording has no prices, whoever reads it says what a spot instance costs.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TextIO

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.model import Market

SLOT = 1800.0
# Names that columns have in the recordings that are about.
COUNTS, PRICES = ("available", "avail", "count"), ("price", "price_p10", "spot_price")
# Slots without any recording for longer than this have no spot instances, seconds.
GAP = 3600.0


def shipped(price: float | None = None, on_demand: float = 1.0, slot: float | None = None) -> Market:
    """28 days of a marketplace for A100 cards, with prices as parts of the on-demand price.

    Args:
        price: of a spot instance instead of those.
        on_demand: price of an on-demand instance.
        slot: seconds of a slot; None: as recorded, 30 minutes.
    """
    with resources.as_file(resources.files("lightning_core.market") / "data" / "a100.csv") as path:
        market = read_slots(path, price, on_demand, slot)
    return market if price is not None else replace(market, price=market.price * on_demand)


def read(
    path: Path, price: float | None = None, on_demand: float = 1.0, slot: float | None = None, pool: str = ""
) -> Market:
    """A recording of any kind that is known: it is told by its ending and its first line.

    Args:
        path: of the file.
        price: of a spot instance. Where a recording has prices it counts instead of them; where it has none it must be
            given.
        on_demand: price of an on-demand instance.
        slot: seconds of a slot; None: 30 minutes, or what a recording of slots says.
        pool: of a snapshot of SpotLake's, ``INSTANCE@ZONE``.

    Raises:
        ValueError: if it is none, or lacks what it must have.
    """
    if path.suffix == ".json":
        return read_spot_traces(path, _must(path, price), on_demand, slot or SLOT)
    with _opened(path) as file:
        header = set(file.readline().strip().split(","))
    if "InstanceType" in header:
        instance, _, zone = pool.partition("@")
        if not (instance and zone):
            raise ValueError(f"{path}: pool must be INSTANCE@ZONE, got {pool!r}")
        folder = sorted(path.parent.glob(f"*{''.join(path.suffixes)}"))
        market = read_spotlake(folder, instance, zone, slot or SLOT)
        prices = market.price * on_demand if price is None else np.full(len(market), price)
        return replace(market, price=prices, on_demand=on_demand)
    if "change" in header:
        return read_events(path, _must(path, price), on_demand, slot or SLOT)
    return read_slots(path, price, on_demand, slot)


def _must(path: Path, price: float | None) -> float:
    if price is None:
        raise ValueError(f"{path}: has no prices: say what a spot instance costs")
    return price


def read_slots(path: Path, price: float | None = None, on_demand: float = 1.0, slot: float | None = None) -> Market:
    """A CSV of slots, one row each, in their order.

    Args:
        path: has a column of counts (``available``, ``avail`` or ``count``), maybe one of prices (``price``,
            ``price_p10`` or ``spot_price``), and maybe ``hour``.
        price: of a spot instance, if there is no such column.
        on_demand: price of an on-demand instance.
        slot: seconds of a slot; None: what ``hour`` says, else 30 minutes. Slots that ``hour`` says are others become
            slots of this length.

    Raises:
        ValueError: if a column is missing, or a value is no number.
    """
    with _opened(path) as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path}: there must be slots, got none")
    counts = _column(path, rows, COUNTS)
    if counts is None:
        raise ValueError(f"{path}: must have a column {' or '.join(COUNTS)}, got {', '.join(rows[0])}")
    prices = _column(path, rows, PRICES)
    least, highest = _whole(path, counts), _prices(path, prices, price, len(rows))
    hours = _column(path, rows, ("hour",))
    recorded = None if hours is None or len(hours) < 2 else float(np.median(np.diff(hours))) * 3600.0
    if slot is not None and recorded is not None and hours is not None and slot != recorded:
        times = (hours - hours[0]) * 3600.0
        least, found = resampled(times, least, highest, slot, end=float(times[-1]) + recorded)
        assert found is not None  # there are prices
        highest = found
    return Market(highest, least, on_demand, slot or recorded or SLOT, path.stem)


def read_spot_traces(path: Path, price: float, on_demand: float = 1.0, slot: float = SLOT) -> Market:
    """A JSON of the public spot traces: ``{"metadata": {"gap_seconds": s}, "data": [count, ...]}``.

    Args:
        path: of the file.
        price: of a spot instance: such a trace has none.
        on_demand: price of an on-demand instance.
        slot: seconds of a slot.

    Raises:
        ValueError: if it is not such a file.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        gap, data = float(body["metadata"]["gap_seconds"]), np.array([float(count) for count in body["data"]])
        if not (0 < gap < math.inf and np.isfinite(data).all()):
            raise ValueError("gap_seconds must be positive, and all counts finite")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: must be an object of metadata.gap_seconds and data: {error}") from None
    counts = _whole(path, data)
    times: FloatArray = np.arange(len(counts), dtype=float) * gap
    least, _ = resampled(times, counts, None, slot, end=len(counts) * gap)
    return Market(np.full(len(least), price), least, on_demand, slot, path.stem)


def read_events(path: Path, price: float, on_demand: float = 1.0, slot: float = SLOT) -> Market:
    """A CSV of events, with the columns ``time``, seconds, and ``change``: so many instances more, or fewer.

    Args:
        path: of the file; the rows in order of time. The last one ends the recording.
        price: of a spot instance.
        on_demand: price of an on-demand instance.
        slot: seconds of a slot.

    Raises:
        ValueError: if a column is missing, the times fall, or more instances go than there are.
    """
    with _opened(path) as file:
        rows = list(csv.DictReader(file))
    times, changes = _column(path, rows, ("time",)), _column(path, rows, ("change",))
    if times is None or changes is None or len(rows) < 2:
        raise ValueError(f"{path}: must have at least two rows with the columns time and change")
    counts = np.cumsum(changes)
    if (np.diff(times) < 0).any() or (counts < 0).any():
        raise ValueError(f"{path}: times must not fall, and there cannot be fewer than no instances")
    least, _ = resampled(times - times[0], _whole(path, counts), None, slot, end=float(times[-1] - times[0]))
    return Market(np.full(len(least), price), least, on_demand, slot, path.stem)


def read_spotlake(paths: Iterable[Path], instance: str, zone: str, slot: float = SLOT, score: str = "T3") -> Market:
    """SpotLake's snapshots of AWS: how many instances a pool is thought to give, and at what price.

    The count is the largest capacity that scored well enough, 0 to 50; prices are parts of the on-demand price. An
    empty cell and -1 are missing, 0 is a value. Of two prices of a pool the higher counts. A slot whose snapshots are
    missing goes on with what was known, and with nothing after an hour.

    Args:
        paths: of snapshots, ``.csv`` or ``.csv.gz``, in any order.
        instance: type, as ``p4d.24xlarge``.
        zone: id of its availability zone, as ``use1-az1``.
        slot: seconds of a slot.
        score: ``"T3"`` or ``"T2"``.

    Raises:
        ValueError: if no snapshot has the pool, or a column is missing.
    """
    found: dict[float, tuple[int, float]] = {}
    for path in paths:
        with _opened(path) as file:
            for row in csv.DictReader(file):
                if row.get("InstanceType") != instance or row.get("AZ") != zone:
                    continue
                try:
                    when = datetime.strptime(row["Time"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
                    count, spot, full = (_known(row[name]) for name in (score, "SpotPrice", "OndemandPrice"))
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
    least, highest = resampled(times - times[0], counts, prices, slot, end=float(times[-1] - times[0]) + 600.0, gap=GAP)
    assert highest is not None  # there are prices
    return Market(highest, least, 1.0, slot, f"{instance} {zone}")


def synthetic(
    seed: int, slots: int = 1344, most: int = 16, price: float = 0.6, calm: float = 0.9, slot: float = SLOT
) -> Market:
    """A market that is made up: count and price swing around a daily wave, each as it was but for a part.

    Args:
        seed: of the draws.
        slots: how many.
        most: instances at the best of times.
        price: in the mean, in on-demand prices.
        calm: how much of its distance from the wave each keeps from slot to slot, 0 to below 1.
        slot: seconds of one.

    Raises:
        ValueError: if ``calm`` is out of its range.
    """
    if not 0 <= calm < 1:
        raise ValueError(f"calm must be at least 0 and below 1, got {calm}")
    draw = np.random.default_rng(seed)
    noise = draw.standard_normal((2, slots)) * math.sqrt(1 - calm**2)
    swings = np.zeros((2, slots))
    for at in range(1, slots):
        swings[:, at] = calm * swings[:, at - 1] + noise[:, at]
    wave = np.sin(np.arange(slots) * slot * 2 * np.pi / 86400.0 + draw.uniform(0, 2 * np.pi))
    counts = np.clip(np.round(most * (0.5 + 0.15 * wave + 0.25 * swings[0])), 0, most).astype(np.int64)
    prices = np.clip(price * (1 - 0.05 * wave + 0.12 * swings[1]), 0.05, 1.2)
    return Market(prices, counts, 1.0, slot, f"synthetic {seed}")


def resampled(
    times: FloatArray, counts: IntArray, prices: FloatArray | None, slot: float, end: float, gap: float = math.inf
) -> tuple[IntArray, FloatArray | None]:
    """The least count and the highest price of each whole slot; what is known holds until the next is.

    Args:
        times: seconds since the first, not falling, shape ``(n,)``.
        counts: from then on.
        prices: from then on, if there are any.
        slot: seconds.
        end: of the recording, seconds.
        gap: seconds after which what is known no longer holds: there are none then.

    Raises:
        ValueError: if ``slot`` is not positive, or the recording is shorter than one.
    """
    if not slot > 0:
        raise ValueError(f"slot must be positive, got {slot}")
    number = int((end + 1e-6) / slot)
    if not number:
        raise ValueError(f"the recording must last a slot of {slot:g} s, got {end:g} s")
    least, highest = np.zeros(number, np.int64), None if prices is None else np.zeros(number)
    for k in range(number):
        begin, stop = k * slot, (k + 1) * slot
        first = int(np.searchsorted(times, begin, side="right")) - 1
        last = int(np.searchsorted(times, stop, side="left"))
        held = np.append(times[first:last], stop)
        lost = (np.diff(held) > gap).any()
        least[k] = 0 if lost else counts[first:last].min()
        if highest is not None and prices is not None:
            highest[k] = prices[first:last].max()
    return least, highest


def _opened(path: Path) -> TextIO:
    """Text, packed or not, with or without a byte order mark."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")


def _known(text: str | None) -> float | None:
    """A cell's number; None if it is missing."""
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


def _prices(path: Path, column: FloatArray | None, price: float | None, slots: int) -> FloatArray:
    if price is not None:
        return np.full(slots, price)
    if column is None:
        raise ValueError(f"{path}: has no column {' or '.join(PRICES)}: say what a spot instance costs")
    return column
