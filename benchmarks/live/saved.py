"""Measure the device-seconds that ``decor`` saves on five jobs, compared with fixed numbers of devices.

Three jobs start, and two more when those are due. Each deadline lies between what one device and what two devices
reach, or is just reached by one device. Fixed is the fewest devices on which a job alone meets its deadline; under
``decor`` a job may have one or two. Devices are logical: a micro-batch waits for 20 ms, and each step for 8 ms more
that a second device does not shorten. Both must meet every deadline.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from benchmarks.common import Figures, Size, main, table
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import JobStatus, Verdict

# Seconds of a micro-batch, and of a step beyond its micro-batches.
MICRO_BATCH, STEP = 0.02, 0.008
# By job: the throughput that it needs, as a multiple of that of one device; whether it is in the second wave.
NEEDS = {"a": (1.1, False), "b": (0.8, False), "c": (0.6, False), "d": (1.15, True), "e": (1.3, True)}


class Waits(pl.Callback):
    """Waits for the part of a step that devices cannot share."""

    def on_before_optimizer_step(self, trainer: pl.Trainer, *_: Any) -> None:
        import time

        time.sleep(STEP)


def job(folder: Path, batches: int, deadline: float, begin: float, **devices: int) -> dict[str, Any]:
    """Return a job as in a bundle file."""
    folder.mkdir(parents=True)
    return {
        "seed_everything": 0,
        "model": {
            "class_path": "benchmarks.live.numbered_training.Network",
            "init_args": {"folder": str(folder), "pause": MICRO_BATCH},
        },
        "data": {"class_path": "benchmarks.live.numbered_training.Data"},
        "trainer": {"logger": False, "callbacks": [{"class_path": "benchmarks.live.saved.Waits"}]},
        "deadline": f"{deadline:.2f}s",
        **({"begin": f"{begin:.2f}s"} if begin else {}),
        "target": {"batches": batches},
        **devices,
    }


def run(cluster: Cluster, folder: Path, policy: Any, jobs: dict[str, Any]) -> tuple[dict[str, JobStatus], float]:
    """Return the jobs as they ended, and their device-seconds."""
    bundle = Bundle.from_dict({"pool": {"devices": 4}, "policy": policy, "jobs": jobs})
    bundle.check()
    (folder / "run").mkdir(parents=True)
    summary = cluster.run(bundle, folder / "run")
    return {status.name: status for status in summary.jobs}, _device_seconds(folder / "run" / "journal.db")


def _device_seconds(journal: Path) -> float:
    held: dict[str, tuple[float, float]] = {}
    area = 0.0
    with sqlite3.connect(journal) as database:
        for now, text in database.execute("SELECT now, answers FROM events ORDER BY number"):
            for answer in json.loads(text) if text else ():
                if "verdict" in answer and "version" not in answer:
                    continue  # a message to people, not a grant
                since, devices = held.get(answer["job"], (now, 0.0))
                area += devices * (now - since)
                held[answer["job"]] = now, answer.get("share", 0.0) * len(answer.get("devices", ()))
    return area


def _throughput(cluster: Cluster, folder: Path, devices: int, seconds: float) -> float:
    """Return the steps per second on this many devices, with two micro-batches per step."""
    accumulated = {"accumulate_grad_batches": 2 // devices}
    spec = job(folder / "job", int(seconds / (MICRO_BATCH * 2 / devices + STEP)), 600.0, 0.0, devices=devices)
    spec["trainer"] |= accumulated
    jobs, _ = run(cluster, folder, "fifo", {"job": spec})
    return jobs["job"].throughput or 0.0


def measure(size: Size) -> Figures:
    """Run the jobs with fixed devices and under ``decor``, and return their device-seconds."""
    seconds = {"quick": 8.0, "default": 60.0, "full": 120.0}[size]
    with Cluster(8, "cpu", 4) as cluster, tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        one, two = (_throughput(cluster, folder / f"alone{n}", n, min(seconds, 15.0)) for n in (1, 2))
        print(f"{one:.1f} steps per second on one device, {two:.1f} on two", flush=True)
        found = {}
        for name, policy in (("fixed", "edf"), ("decor", {"name": "decor", "alpha": 0.95})):
            jobs = {}
            for key, (need, second) in NEEDS.items():
                deadline = seconds * (2.1 if second else 1.0)
                begin = seconds * 1.1 if second else 0.0
                batches = int((deadline - begin) * 0.95 * need * one)
                fewest = {"devices": 1 if need < 1 else 2}
                sizes = fewest if name == "fixed" else {"min_devices": 1, "max_devices": 2}
                jobs[key] = job(folder / name / key, batches, deadline, begin, **sizes)
                if name == "fixed" and fewest["devices"] == 1:
                    jobs[key]["trainer"]["accumulate_grad_batches"] = 2
            found[name] = run(cluster, folder / f"{name}-run", policy, jobs)
    rows, met = [], {}
    for name, (jobs_ended, area) in found.items():
        met[name] = sum(status.verdict is Verdict.MET for status in jobs_ended.values())
        ends = ", ".join(f"{100 * (s.finished_at or 0) / s.deadline:.0f}" for s in jobs_ended.values())
        rows.append([name, met[name], area, ends])
    table(["", "met of 5", "device-seconds", "ends, % of the deadlines"], rows)
    fixed, ours = found["fixed"][1], found["decor"][1]
    return {
        "saved_pct": 100 * (1 - ours / fixed),
        "met": float(met["decor"]),
        "fixed_met": float(met["fixed"]),
        "device_seconds": ours,
        "fixed_device_seconds": fixed,
    }


if __name__ == "__main__":
    main("live.saved", __doc__.splitlines()[0], measure)
