"""Measure what a resize costs: warm workers compared with new processes.

A training on two devices of one core each is resized to one and back to two repeatedly, while another job trains on the
device that it leaves. Measured is the time from the decision to the first batch of the next incarnation on all ranks.
The same training is also resized by hand: each rank is a process that saves and exits, and new processes load the
checkpoint. Every sample is recorded: each epoch must see each sample once, in the order of a training that was never
resized, and the last loss must be that of such a training, up to the difference between seeds.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.cold_resizes import Timed, cold_resizes
from benchmarks.live.numbered_training import check_order, mean_losses, seen_samples
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import JobStatus
from lightning_core.core.commands import Cancel, Pause, Resume, SetDeadline

# One device suffices for the first deadline, on a busy machine too; no number of devices does for the other.
LOOSE, TIGHT = 72_000.0, 12.0
# Seconds between two resizes.
SECONDS_BETWEEN = 2.5


class Warm:
    """A pool of two devices on which one training is resized repeatedly.

    Args:
        folder: Folder of the runs and of what the trainings record.
        kind: Kind of the devices.
    """

    def __init__(self, folder: Path, kind: str = "cpu") -> None:
        self.folder, self.kind = folder, kind
        self.cluster = Cluster(4, kind, 2)

    def run(self, name: str, resizes: int, batches: int, seed: int = 0, beside: bool = True) -> dict[str, Any]:
        """Train, and return ``resizes``, ``seen`` by epoch and step, ``losses`` by step, and batches ``beside``."""
        folder = self.folder / name
        specs = {"a": self._job(folder / "a", batches, seed, {"min_devices": 1, "max_devices": 2})}
        if beside:
            specs["b"] = self._job(folder / "b", 10**9, seed, {})
        bundle = Bundle.from_dict(
            {
                "pool": {"devices": 2, "kind": self.kind},
                "policy": {"name": "decor", "alpha": 1.0},
                "jobs": specs,
            }
        )
        bundle.check()
        (folder / "run").mkdir()
        steering = threading.Thread(target=self._steer, args=(bundle, resizes, beside), daemon=True)
        self._offset, self._beside, self._resized = 0.0, list[int](), 0
        steering.start()
        summary = self.cluster.run(bundle, folder / "run")
        steering.join()
        if self._resized < resizes:
            raise RuntimeError(f"the training must be resized {resizes} times, was resized {self._resized} times")
        if resizes and any(job.detail for job in summary.jobs):
            raise RuntimeError("\n".join(job.detail for job in summary.jobs))
        return {
            "resizes": _timed(folder / "run" / "journal.db", folder / "a" / "incarnations", self._offset),
            "seen": seen_samples(folder / "a"),
            "losses": mean_losses(folder / "a"),
            "beside": self._beside,
        }

    @staticmethod
    def _job(folder: Path, batches: int, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
        folder.mkdir(parents=True)
        model = {"folder": str(folder), "pause": 0.005}
        return {
            "seed_everything": seed,
            "model": {"class_path": "benchmarks.live.numbered_training.Network", "init_args": model},
            "data": {"class_path": "benchmarks.live.numbered_training.Data", "init_args": {"seed": seed}},
            "trainer": {"logger": False, "callbacks": [{"class_path": "benchmarks.live.numbered_training.Writes"}]},
            "deadline": f"{LOOSE:.0f}s",
            "target": {"batches": batches},
            **sizes,
        }

    def _steer(self, bundle: Bundle, resizes: int, beside: bool) -> None:
        """Change the deadline of ``a``, so that it needs two devices or one."""
        while self._jobs().get("a") is None or not self._jobs()["a"].batches:
            time.sleep(0.1)
        before = time.monotonic()
        now, _ = ray.get(self.cluster.scheduler.status.remote())  # type: ignore[union-attr]  # it runs
        self._offset = (before + time.monotonic()) / 2 - now
        self._wait_for(1)
        for number in range(resizes):
            time.sleep(SECONDS_BETWEEN)
            wide = number % 2 == 0
            if beside:
                self._beside.append(self._jobs()["b"].batches)
                self._tell(Pause("b") if wide else Resume("b"))
            self._tell(SetDeadline("a", TIGHT if wide else LOOSE))
            if not self._wait_for(2 if wide else 1):
                return
            self._resized += 1
        if resizes:
            time.sleep(SECONDS_BETWEEN)
            self._tell(SetDeadline("a", LOOSE))
        if beside:
            self._tell(Cancel("b"))
            self._tell(Cancel("a"))

    def _jobs(self) -> dict[str, JobStatus]:
        if self.cluster.scheduler is None:
            return {}
        _, jobs = ray.get(self.cluster.scheduler.status.remote())
        return {job.name: job for job in jobs}

    def _tell(self, event: object) -> None:
        ray.get(self.cluster.scheduler.event.remote(event))  # type: ignore[union-attr]

    def _wait_for(self, devices: int) -> bool:
        """Wait until the training has this many devices; return False after 30 s."""
        until = time.monotonic() + 30.0
        while time.monotonic() < until and (job := self._jobs().get("a")) is not None:
            if len(job.devices) == devices:
                return True
            time.sleep(0.02)
        return False


def _timed(journal: Path, incarnations: Path, offset: float) -> list[Timed]:
    """Return the time from each decision to the first batch of all ranks after it."""
    began: dict[int, list[tuple[float, int]]] = defaultdict(list)  # by step: when, and how many ranks
    for line in incarnations.read_text().splitlines():
        when, ranks, _, step = json.loads(line)
        began[step].append((when, ranks))
    starts = sorted((max(when for when, _ in first), first[0][1]) for first in began.values())
    found, before = [], 0
    with sqlite3.connect(journal) as database:
        for now, text in database.execute("SELECT now, answers FROM events ORDER BY number"):
            for answer in json.loads(text) if text else ():
                if answer["job"] != "a" or not answer.get("share") or len(answer["devices"]) == before:
                    continue
                first, before = not before, len(answer["devices"])
                after = [when for when, ranks in starts if when > now + offset and ranks == before]
                if after and not first:
                    found.append(Timed(before, after[0] - now - offset))
    return found


def _has_ray_train() -> bool:
    try:
        import ray.train  # noqa: F401
    except ImportError as error:
        print(f"Ray Train is left out: {error}")
        return False
    return True


def _ray_train(folder: Path) -> float:
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.live.ray_train", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(ran.stdout.strip().splitlines()[-1]))


def _median(timed: Sequence[Timed], ranks: int | None = None) -> float:
    return float(np.median([one.seconds for one in timed if ranks in (None, one.ranks)]))


def measure(size: Size) -> Figures:
    """Resize warm and cold, check the samples, and return the times."""
    resizes = {"quick": 4, "default": 10, "full": 20}[size]
    compared = size == "full" and _has_ray_train()
    torch.set_num_threads(1)
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        with (warm := Warm(folder)).cluster:
            resized = warm.run("resized", resizes, 10**6)
            steps = max((step for _, step in resized["seen"]), default=0)
            plain = warm.run("plain", 0, steps, beside=False)
            same = check_order(resized["seen"], plain["seen"])
            if size != "quick":
                figures |= _compare_losses(warm, resizes)
        cold = cold_resizes(folder / "cold", 2 if size == "quick" else 6)
        theirs = [Timed(2, _ray_train(folder / f"elastic{n}")) for n in range(3)] if compared else []
    timed: list[Timed] = resized["resizes"]
    if min(np.diff(resized["beside"][::2]), default=1) <= 0:
        raise RuntimeError("the other job must train on the device that becomes free, and did not")
    rows = [
        [
            name,
            len(some),
            _median(some),
            _median(some, 2),
            _median(some, 1) if len({one.ranks for one in some}) > 1 else "",
            max(one.seconds for one in some),
        ]
        for name, some in (("warm", timed), ("cold", cold), ("Ray Train, elastic", theirs))
        if some
    ]
    table(["from decision to first batch, s", "resizes", "median", "1 to 2", "2 to 1", "max"], rows)
    print(
        f"{same} steps saw the same samples as without resizes; the other job trained {resized['beside'][-1]} batches"
    )
    return figures | {
        "warm_s": _median(timed),
        "cold_s": _median(cold),
        "cold_ratio": _median(cold) / _median(timed),
        "warm_to_two_s": _median(timed, 2),
        "cold_to_two_s": _median(cold, 2),
        "steps_compared": float(same),
        "ray_train_s": _median(theirs) if theirs else None,
    }


def _compare_losses(warm: Warm, resizes: int) -> Figures:
    """Print and return the final loss with and without resizes, for several seeds."""
    batches, last = int(130 * (resizes + 2) * SECONDS_BETWEEN), 200
    ends: dict[int, list[float]] = defaultdict(list)
    for seed in (0, 1, 2):
        for number in (0, resizes):
            losses = warm.run(f"loss-{seed}-{number}", number, batches, seed, beside=False)["losses"]
            ends[number].append(float(np.mean(losses[batches - last : batches])))
    table(["final loss", "seed 0", "seed 1", "seed 2"],
          [["no resizes", *ends[0]], [f"{resizes} resizes", *ends[resizes]]])  # fmt: skip
    return {
        "loss_difference": float(np.mean(np.abs(np.array(ends[0]) - ends[resizes]))),
        "loss_spread_of_seeds": float(np.ptp(ends[0])),
    }


if __name__ == "__main__":
    main("live.resize", __doc__.splitlines()[0], measure)
