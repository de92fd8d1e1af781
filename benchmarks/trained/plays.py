"""Bundles that are trained live, row by row, and a file in which what came of them is kept.

A play is a bundle under one row. Each is written when it has ended, so that a table can be continued later; what is
simulated is computed anew from the rates that were kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.curves.bundles import WINDOW, Bundle, Recording, draw_at, recordings
from lightning_core.history.history import History
from lightning_core.simulation.recorded_curves import SHIPPED, load_curves

FIVE = (
    "fashion_mnist__cnn_momentum_lr0.01",
    "digits__gru_adam_lr0.002",
    "movie_reviews__bag_adam_lr0.001",
    "prompt_languages__gru_adam_lr0.001",
    "cartpole_q__mlp_adam_lr0.0005",
)
TEN = (
    *FIVE,
    "digits__mlp_momentum_lr0.02",
    "fashion_mnist__mlp_adam_lr0.001",
    "shakespeare_characters__gru_adam_lr0.002",
    "japanese_vowels__gru_adam_lr0.001",
    "cartpole_imitation__mlp_adam_lr0.001",
)
# Ways to draw deadlines, by turns of the seeds: LARA's and LaiRA's.
KINDS = ("sequence", "terms")
# Between the seeds of the devices of a bundle.
APART = 1000


class Table(NamedTuple):
    """Bundles of the same trainings on the same devices.

    Args:
        runs: Names of the recordings, each of which is a job.
        devices: Number of devices. The bundle is one drawn for each of them, put together.
    """

    runs: tuple[str, ...]
    devices: int

    def pool(self) -> list[Recording]:
        """Return the recordings of its jobs."""
        known = {one.curve.name: one for one in recordings(load_curves(SHIPPED))}
        return [known[name] for name in self.runs]

    def draw(self, rates: Mapping[str, float], seed: int, per_model: float) -> Bundle:
        """Draw a bundle.

        Args:
            rates: Batches per second of each training alone.
            seed: Seed of all draws.
            per_model: Nominal work of a job in the mean, in seconds.
        """
        pool, kind = self.pool(), KINDS[seed % len(KINDS)]
        drawn = []
        for device in range(self.devices):  # one bundle a device, which all devices then train together
            part = pool[device :: self.devices]
            at = [rates[one.curve.name] for one in part]
            drawn.append(draw_at(part, at, kind=kind, seed=seed + APART * device, seconds=per_model * len(part)))
        return Bundle(
            tuple(job for one in drawn for job in one.jobs),
            np.concatenate([one.work for one in drawn]),
            kind,
            tuple(recording for one in drawn for recording in one.recordings),
        )


TABLES = {"five": Table(FIVE, 1), "ten": Table(TEN, 1), "five_on_two": Table(FIVE, 2), "ten_on_two": Table(TEN, 2)}


class JobPlayed(NamedTuple):
    """The outcome of a job."""

    met: bool
    best: float
    """Lowest mean loss over a window by its deadline; infinite if it never had one."""
    busy: float
    """Seconds for which it held a device."""
    batches: int = 0
    """Batches that it trained; 0 in plays that were kept before it was recorded."""


@dataclass(frozen=True)
class Play:
    """What came of a bundle under one row.

    Args:
        table: Name in :data:`TABLES`.
        seed: Seed of the bundle.
        row: Name of the row.
        jobs: What came of each job, in the order of the bundle.
        starts: Number of times that the share of a job went from nothing to something; 0 where nothing manages them.
        building: Seconds until the first job trained; where nothing manages them, from the turn of a job until it
            trained, in the mean.
    """

    table: str
    seed: int
    row: str
    jobs: tuple[JobPlayed, ...]
    starts: int = 0
    building: float = 1.0

    @property
    def met(self) -> int:
        """Number of jobs that met their targets."""
        return sum(one.met for one in self.jobs)

    @property
    def wasted(self) -> float:
        """Device-seconds on jobs that missed, as a fraction of all."""
        busy = sum(one.busy for one in self.jobs)
        return sum(one.busy for one in self.jobs if not one.met) / busy if busy else 0.0

    def pace(self, bundle: Bundle) -> float:
        """Return the throughput in this play relative to that at which the bundle was drawn, averaged over device time.

        NaN if the batches were not recorded. The device time of a training without a pool includes building it.
        """
        expected = sum(one.batches / given.throughput for one, given in zip(self.jobs, bundle.jobs, strict=True))
        return expected / sum(one.busy for one in self.jobs) if expected else np.nan

    def way(self, bundle: Bundle) -> float:
        """Return the mean fraction of the way from its first loss to its target that a job had come by its deadline."""
        return float(np.mean([_way(one.best, recording, given.job.target.goal) for one, recording, given
                              in zip(self.jobs, bundle.recordings, bundle.jobs, strict=True)]))  # fmt: skip


def _way(best: float, recording: Recording, target: float) -> float:
    first = float(recording.smooth[WINDOW - 1])
    return 1.0 if best <= target else max(first - best, 0.0) / (first - target) if best < first else 0.0


def ceiling(bundle: Bundle, devices: int) -> int:
    """Return a bound on the number of jobs that a clairvoyant scheduler could meet.

    By each deadline, the devices must have done all the work of the jobs that are due by then, and of each other one
    what does not fit between then and its own deadline. On one device this is exact.
    """
    if devices == 1:
        return bundle.ceiling
    deadline = np.array([one.job.deadline for one in bundle.jobs])
    rows = np.flatnonzero(bundle.work <= deadline).tolist()

    def fits(chosen: Sequence[int]) -> bool:
        work, due = bundle.work[list(chosen)], deadline[list(chosen)]
        return all(np.maximum(work - np.maximum(due - end, 0.0), 0.0).sum() <= devices * end for end in due.tolist())

    return next(size for size in range(len(rows), -1, -1) if any(map(fits, combinations(rows, size))))


def starts(history: History) -> int:
    """Return how often the share of a job went from nothing to something."""
    count = 0
    for one in history.jobs:
        shares = [0.0, *(grant.share for grant in one.grants)]
        count += sum(before == 0.0 < after for before, after in pairwise(shares))
    return count


class Plays:
    """The file of plays: one line for the rates at which a bundle was drawn, and one for each play.

    Args:
        path: File of JSON lines; it need not exist.

    Attributes:
        rates: Batches per second of each training alone, by table and seed.
        played: Plays by table, seed and row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rates: dict[tuple[str, int], dict[str, float]] = {}
        self.played: dict[tuple[str, int, str], Play] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self._take(json.loads(line))

    def _take(self, read: Mapping[str, object]) -> None:
        line = dict(read)
        if "rates" in line:
            self.rates[line["table"], line["seed"]] = line["rates"]  # type: ignore[index, assignment]
        else:
            line["jobs"] = tuple(JobPlayed(*one) for one in line["jobs"])  # type: ignore[attr-defined]
            play = Play(**line)  # type: ignore[arg-type]
            self.played[play.table, play.seed, play.row] = play

    def drawn_at(self, table: str, seed: int, rates: Mapping[str, float]) -> None:
        """Keep the rates at which a bundle is drawn."""
        self._append({"table": table, "seed": seed, "rates": {name: round(rate, 2) for name, rate in rates.items()}})

    def add(self, play: Play) -> None:
        """Keep a play."""
        # JSON has no infinity: a job without a loss gets the largest number there is.
        jobs = [(one.met, float(f"{min(one.best, 1e300):.5g}"), round(one.busy, 3), one.batches) for one in play.jobs]
        self._append(asdict(play) | {"jobs": jobs, "building": round(play.building, 3)})

    def _append(self, line: Mapping[str, object]) -> None:
        with self._path.open("a") as opened:
            opened.write(json.dumps(line) + "\n")
        self._take(json.loads(json.dumps(line)))
