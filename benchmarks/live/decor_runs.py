"""Runs of small models with deadlines under ``decor``."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import ray

from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import JobStatus
from lightning_core.core.commands import SetDeadline
from lightning_core.node.cgroups import process_tree

CORES = 2
# Seconds that a batch waits for a logical device, and its samples.
WAIT, LOGICAL_BATCH = 0.08, 16
CHANGED_AT, CHANGED_TO = 0.3, 0.8
# Minimum seconds of the trial that decides how many batches make a run of the wanted length.
TRIAL = 3.0
# Another process that uses half a core: 50 ms of every 100.
NEIGHBOUR = """
import time
while True:
    until = time.monotonic() + 0.05
    while time.monotonic() < until: pass
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Setting:
    """Setting of a run.

    Args:
        kind: ``"cpu"`` for parts of one device of two cores, ``"devices"`` for one or two devices of a core.
        model: Name of the model.
        tightness: Deadline over minimum training time (d_c); 0 for full speed without a deadline.
        alpha: Fraction of the time to the deadline after which it should end.
        changed: Whether the deadline is cut during the run.
        neighbour: Whether another process uses half a core in the middle third.
    """

    kind: str
    model: str
    tightness: float
    alpha: float = 1.0
    changed: bool = False
    neighbour: bool = False


class Moment(NamedTuple):
    """Progress in per cent and devices at a scheduler time."""

    now: float
    progress: float
    devices: float


@dataclass
class Run:
    """Outcome of a run.

    Args:
        setting: Its setting.
        took: Seconds that it took.
        deadline: Deadline in seconds.
        granted: Mean devices or cores.
        used: Mean cores that the kernel counted; NaN without a control group.
        resizes: Number of changes of the number of devices.
        course: Progress and devices over time.
    """

    setting: Setting
    took: float
    deadline: float
    granted: float
    used: float
    resizes: int
    course: list[Moment] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Error in per cent (eq. 7): positive if it ended late."""
        return 100.0 * (self.took - self.deadline) / self.deadline


class _Watcher:
    """A watcher that cuts the deadline, counts cores, and starts and stops the other process."""

    def __init__(self, cluster: Cluster, bundle: Bundle, setting: Setting, deadline: float) -> None:
        self._cluster, self._bundle, self._setting = cluster, bundle, setting
        self.deadline = deadline
        self.course: list[Moment] = []
        self.first: tuple[float, float] | None = None
        self.last: tuple[float, float] | None = None
        self._neighbour: subprocess.Popen[bytes] | None = None
        self._changed = False

    def update(self, now: float, jobs: Sequence[JobStatus]) -> None:
        for job in jobs:
            spec = self._bundle.jobs[0].job
            progress = job.batches / (spec.target.work or 1)
            if job.finished_at is None:
                self.course.append(Moment(now, 100.0 * progress, job.share * len(job.devices)))
            if (used := _used()) is not None:
                self.first, self.last = self.first or (now, used), (now, used)
            if self._setting.changed and not self._changed and progress >= CHANGED_AT:
                self._changed = True
                self.deadline *= CHANGED_TO
                amended = SetDeadline(job.name, self.deadline, from_submission=True)
                ray.get(self._cluster.scheduler.event.remote(amended))  # type: ignore[union-attr]  # it runs
            if self._setting.neighbour:
                self._set_neighbour(self.deadline / 3 < now < 2 * self.deadline / 3)

    def _set_neighbour(self, wanted: bool) -> None:
        if wanted and self._neighbour is None:
            self._neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
        elif not wanted and self._neighbour is not None:
            self._neighbour.kill()
            self._neighbour.wait()

    def close(self) -> None:
        self._set_neighbour(False)


def _used(root: Path = Path("/")) -> float | None:
    """Return the CPU seconds of the training that the kernel limits; None if there is none.

    Workers descend from this process, which has started their cluster; groups of other runs do not count.
    """
    own = {str(pid) for pid in process_tree(root, os.getpid())}
    for mounted in ("cpuacct", "cpu,cpuacct", ""):
        for group in (root / "sys/fs/cgroup" / mounted).glob("**/lightning_core-*-*"):
            if group.name.split("-")[1] not in own:
                continue
            try:
                if (group / "cpuacct.usage").exists():
                    return int((group / "cpuacct.usage").read_text()) / 1e9
                return int((group / "cpu.stat").read_text().split()[1]) / 1e6
            except (OSError, ValueError):
                continue
    return None


class Bench:
    """Runs settings one after another on one cluster."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.batches: dict[str, int] = {}
        self.cluster = Cluster(1, "cpu", 1, CORES) if kind == "cpu" else Cluster(2, "cpu", 2)
        self.runs = 0

    def run(self, setting: Setting, fastest: float) -> Run:
        """Run a setting, with its deadline a multiple of ``fastest`` seconds."""
        batches = self.batches[setting.model]
        deadline = setting.tightness * fastest if setting.tightness else 3600.0
        policy = {"name": "decor", "alpha": setting.alpha} if setting.tightness else {"name": "edf"}
        devices = {"devices": 1, "cores": CORES} if self.kind == "cpu" else {"devices": 2}
        logical = {} if self.kind == "cpu" else {"wait": WAIT}
        data = {} if self.kind == "cpu" else {"batch_size": LOGICAL_BATCH}
        sizes = {} if self.kind == "cpu" else {"min_devices": 1, "max_devices": 2}
        job = {
            "seed_everything": 0,
            "model": {
                "class_path": "benchmarks.live.small_models.Classifier",
                "init_args": {"kind": setting.model, **logical},
            },
            "data": {"class_path": "benchmarks.live.small_models.Images", "init_args": data},
            "trainer": {"logger": False},
            "deadline": f"{deadline:.3f}s",
            "target": {"batches": batches},
            **sizes,
        }
        bundle = Bundle.from_dict({"pool": devices, "policy": policy, "jobs": {"job": job}})
        bundle.check()
        self.runs += 1
        folder = self.folder / f"{self.kind}-{self.runs}"
        folder.mkdir()
        watcher = _Watcher(self.cluster, bundle, setting, deadline)
        [status] = self.cluster.run(bundle, folder, watcher).jobs
        if status.finished_at is None or status.batches < batches:
            raise RuntimeError(f"{setting}: {status.reason}\n{status.detail}")
        took = status.finished_at - status.submitted_at
        granted, resizes = _granted(folder / "journal.db", status.finished_at)
        used = math.nan
        if watcher.first and watcher.last and watcher.last[0] > watcher.first[0]:
            used = (watcher.last[1] - watcher.first[1]) / (watcher.last[0] - watcher.first[0])
        if self.kind == "cpu" and setting.tightness > 1.0 and granted < 1.0:  # else it had all cores all the time
            self._check_limited(folder, used)
        each = CORES if self.kind == "cpu" else 1
        return Run(setting, took, watcher.deadline, granted * each, used, resizes, watcher.course)

    def fastest(self, model: str, seconds: float, tries: int) -> float:
        """Choose the batches for a run of about ``seconds`` at full speed; return the median time of ``tries`` runs."""
        plain = Setting(self.kind, model, 0.0)
        took, self.batches[model] = 0.0, 50
        while took < min(TRIAL, seconds / 2):  # the first batches of a process are slower
            self.batches[model] *= 2
            took = self.run(plain, 0.0).took
        self.batches[model] = int(self.batches[model] * seconds / took)
        return float(np.median([self.run(plain, 0.0).took for _ in range(tries)]))

    def _check_limited(self, folder: Path, used: float) -> None:
        paced = any("paced instead" in log.read_text(errors="replace") for log in folder.rglob("log*.txt"))
        if paced and _writable():
            raise RuntimeError("the kernel must limit the run where a cgroup is writable, and the run was paced")
        if not paced and math.isnan(used):
            raise RuntimeError("the training must be limited by the kernel or paced, and was neither")


def _writable() -> bool:
    from lightning_core.node.cpu_quota import open_quota

    quota = open_quota()
    if quota is not None:
        quota.close()
    return quota is not None


def _granted(journal: Path, end: float) -> tuple[float, int]:
    """Return the mean devices granted from the first grant to the end, and the number of changes."""
    changes: list[tuple[float, float]] = []
    with sqlite3.connect(journal) as database:
        for now, text in database.execute("SELECT now, answers FROM events ORDER BY number"):
            for answer in json.loads(text) if text else ():
                if "share" in answer:
                    changes.append((now, answer["share"] * len(answer["devices"])))
    times = [*(now for now, _ in changes), end]
    area = sum(held * (until - now) for (now, held), until in zip(changes, times[1:], strict=True))
    wholes = [round(held) for _, held in changes if held >= 1]
    return area / (end - times[0]), sum(a != b for a, b in pairwise(wholes))
