"""Recordings of the availability of one spot node, and the starts of jobs in them.

The recordings are those of the paper (skypilot-org/spot-traces): AWS was asked for one node every ten minutes in the
first set, and every 195 s in the second, of which every third answer is taken. They have no licence file, so that they
do not come with this project. Without them, seeded markets take their place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_core.core.arrays import BoolArray, IntArray

# Folder of each set and how many answers there are to one that is taken.
SETS = {"first": ("aws-10-26-2022", 1), "second": ("aws-02-15-2023", 3)}
# Markets of a seeded set, their ticks, the seconds of a tick, and the standard deviation of the logarithms of times.
MARKETS, TICKS, TICK, SPREAD = 8, 3895, 600.0, 1.2


@dataclass(frozen=True, eq=False, slots=True)
class Recording:
    """Availability of one kind of node in one zone.

    Args:
        name: Name of the file.
        zone: Availability zone; recordings of a zone are left out together.
        tick: Seconds of a tick.
        available: Whether a spot node was available in each tick, shape ``(ticks,)``.
    """

    name: str
    zone: str
    tick: float
    available: BoolArray

    def starts(self, count: int, ticks: int, seed: Sequence[int]) -> IntArray:
        """Return the ticks at which jobs start, each with so many ticks after it."""
        last = len(self.available) - ticks
        if last < 0:
            raise ValueError(f"{self.name} must have at least {ticks} ticks, got {len(self.available)}")
        return np.random.default_rng(seed).integers(0, last + 1, count)


def load(folder: Path, name: str) -> tuple[list[Recording], bool]:
    """Return the recordings of a set, and whether they are recorded rather than seeded.

    Args:
        folder: Folder with the sets, at any depth.
        name: Name of the set.
    """
    inner, every = SETS[name]
    paths = sorted(folder.glob(f"**/{inner}/*.json"))
    if not paths:
        return [seeded(number + MARKETS * list(SETS).index(name)) for number in range(MARKETS)], False
    return [read(path, every) for path in paths], True


def read(path: Path, every: int = 1) -> Recording:
    """Read a recording ``{"metadata": {"gap_seconds": s}, "data": [0 or 1, ...]}``, where 1 is available.

    Args:
        path: File to read, named ``ZONE_NODE_COUNT.json``.
        every: How many answers there are to one that is taken.

    Raises:
        ValueError: If it has anything but 0 and 1.
    """
    body = json.loads(path.read_text())
    data = np.array(body["data"][::every])
    if not np.isin(data, (0, 1)).all():
        raise ValueError(f"{path}: data must be 0 or 1, got {sorted(set(data.tolist()) - {0, 1})}")
    return Recording(path.stem, path.stem.partition("_")[0], body["metadata"]["gap_seconds"] * every, data == 1)


def seeded(seed: int) -> Recording:
    """Return a semi-Markov market: up and down by turns, for times whose logarithms are normally distributed."""
    draw = np.random.default_rng(seed)
    logarithms = draw.uniform(math.log(3), math.log(60), 2)  # of the median ticks down and up
    lengths = np.ceil(np.exp(draw.normal(logarithms, SPREAD, (TICKS // 2, 2)))).astype(np.int64).ravel()
    available = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)[:TICKS]
    return Recording(f"seeded {seed}", f"zone {seed}", TICK, available)
