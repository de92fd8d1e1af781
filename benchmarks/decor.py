"""Does a training end at its deadline, on as few devices as possible? DECOR-NN's tables beside ours, on real runs.

Three small models. Each is first trained with all there is: that is the minimum training time. Its deadline is then
1.0, 1.5 or 1.8 times as long (the paper's coefficient d_c); in some runs it is cut to 80 % when 30 % of the batches
are done. With parts of a CPU, limited by the kernel, and with one or two devices as workers. Those are logical: on two
cores that are two threads of one, two workers that compute do 1.2 times as much as one, and no deadline lies between.
So each batch waits, as for an accelerator. The time of a run is from its submission to the scheduler's knowing that
all batches are done.

d_c 1.0 is reported apart: it measures the machine, on which equal work takes some per cent more or less from run to
run.
"""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import ray

from benchmarks.common import Figures, Size, main, table
from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.cluster import Cluster
from lightning_core.core.answers import JobStatus
from lightning_core.core.commands import SetDeadline

CORES = 2
# What a batch waits for a logical device, seconds, and of how many samples it is.
WAIT, LOGICAL_BATCH = 0.08, 16
CHANGED_AT, CHANGED_TO = 0.3, 0.8
# Batches are first timed for so many seconds, to know how many make a run of the length that is wanted.
TRIAL = 3.0
# The paper's mean |error| in per cent, of its three models: ResNet-50, VGG-19, Inception v3 (tables I to IV).
PAPER = {
    ("cpu", 1.0, False): (3.78, 0.93, 0.79), ("cpu", 1.5, False): (0.43, 0.49, 0.43),
    ("cpu", 1.8, False): (0.34, 0.47, 0.47), ("cpu", 1.5, True): (1.47, 2.30, 2.10),
    ("cpu", 1.8, True): (1.01, 1.38, 1.16), ("devices", 1.0, False): (5.04, 2.53, 2.48),
    ("devices", 1.5, False): (1.25, 0.30, 0.42), ("devices", 1.8, False): (0.83, 0.27, 0.93),
    ("devices", 1.5, True): (2.13, 0.94, 1.40), ("devices", 1.8, True): (1.65, 0.80, 1.19),
}  # fmt: skip
# A process beside that takes half a core: 50 ms of every 100.
NEIGHBOUR = """
import time
while True:
    until = time.monotonic() + 0.05
    while time.monotonic() < until: pass
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Setting:
    """What is run.

    Args:
        kind: ``"cpu"``: parts of one device of two cores; ``"devices"``: one or two devices of a core.
        model: its name.
        tightness: deadline over minimum training time (d_c); 0: as fast as it goes, without a deadline.
        alpha: part of the time to its deadline in which it should end.
        changed: whether the deadline is cut while it runs.
        neighbour: whether another process takes half a core for the middle third.
    """

    kind: str
    model: str
    tightness: float
    alpha: float = 1.0
    changed: bool = False
    neighbour: bool = False


class Moment(NamedTuple):
    now: float
    progress: float
    devices: float


@dataclass
class Run:
    """What became of one.

    Args:
        setting: what was run.
        took: seconds.
        deadline: seconds.
        granted: mean devices, or cores.
        used: mean cores that the kernel counted; NaN where it had no group to count.
        resizes: how often the number of devices changed.
        course: progress in per cent, and devices, as time went by.
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
        """Eq. 7, per cent: positive if it ended late."""
        return 100.0 * (self.took - self.deadline) / self.deadline


class _Watcher:
    """Cuts the deadline, counts cores, brings the neighbour and takes it away."""

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
                self._look_after_neighbour(self.deadline / 3 < now < 2 * self.deadline / 3)

    def _look_after_neighbour(self, wanted: bool) -> None:
        if wanted and self._neighbour is None:
            self._neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
        elif not wanted and self._neighbour is not None:
            self._neighbour.kill()
            self._neighbour.wait()

    def close(self) -> None:
        self._look_after_neighbour(False)


def _used() -> float | None:
    """CPU seconds of the one training that the kernel limits; None if none is."""
    roots = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup"))
    for root in roots:
        for group in root.glob("**/lightning_core-*"):
            try:
                if (group / "cpuacct.usage").exists():
                    return int((group / "cpuacct.usage").read_text()) / 1e9
                return int((group / "cpu.stat").read_text().split()[1]) / 1e6
            except (OSError, ValueError):
                continue
    return None


class Bench:
    """Runs settings one after another, each kind on one cluster."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.batches: dict[str, int] = {}
        self.cluster = Cluster(1, "cpu", 1, CORES) if kind == "cpu" else Cluster(2, "cpu", 2)
        self.runs = 0

    def run(self, setting: Setting, fastest: float) -> Run:
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
                "class_path": "benchmarks.small_models.Classifier",
                "init_args": {"kind": setting.model, **logical},
            },
            "data": {"class_path": "benchmarks.small_models.Images", "init_args": data},
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
        if self.kind == "cpu" and setting.tightness > 1.0:
            self._check_limited(folder, used)
        each = CORES if self.kind == "cpu" else 1
        return Run(setting, took, watcher.deadline, granted * each, used, resizes, watcher.course)

    def fastest(self, model: str, seconds: float, tries: int) -> float:
        """Sees to it that a run takes about so long at full speed; how long it takes, the median of so many."""
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
            raise RuntimeError("the run was paced where a cgroup could be written")
        if not paced and math.isnan(used):
            raise RuntimeError("the kernel counted nothing: the training was neither limited nor paced")


def _writable() -> bool:
    from lightning_core.node.cpu_quota import open_quota

    quota = open_quota()
    if quota is not None:
        quota.close()
    return quota is not None


def _granted(journal: Path, end: float) -> tuple[float, int]:
    """Devices granted, in the mean from the first grant to the end; how often their number changed."""
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


def _settings(kind: str, size: Size, models: Sequence[str]) -> Iterator[tuple[Setting, int]]:
    """What is run, and how often."""
    times = {"quick": 1, "default": 1, "full": 3}[size]
    for model in models:
        if size == "quick":
            yield Setting(kind, model, 1.5), 1
            continue
        if size == "full":
            yield Setting(kind, model, 1.0), times
        for tightness in (1.5, 1.8):
            yield Setting(kind, model, tightness), times
            yield Setting(kind, model, tightness, changed=True), times
        yield Setting(kind, model, 1.5, alpha=0.95), times
        if kind == "cpu":
            yield Setting(kind, model, 1.5, neighbour=True), times


def measure(size: Size, plots: Path | None = None, kinds: Sequence[str] = ("cpu", "devices")) -> Figures:
    kinds = ("cpu",) if size == "quick" else kinds
    models = ("convolutions",) if size == "quick" else ("perceptron", "convolutions", "transformer")
    seconds = 10.0 if size == "quick" else 40.0
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as temp:
        for kind in kinds:
            bench = Bench(kind, Path(temp))
            with bench.cluster:
                for model in models:
                    fastest = bench.fastest(model, seconds, 1 if size == "quick" else 3)
                    print(f"{kind}, {model}: {bench.batches[model]} batches in {fastest:.2f} s with all there is",
                          flush=True)  # fmt: skip
                    for setting, times in _settings(kind, size, (model,)):
                        for _ in range(times):
                            runs.append(bench.run(setting, fastest))
                            _say(runs[-1])
    _tables(runs)
    if plots is not None:
        from benchmarks.plots import courses  # with matplotlib

        courses(runs, plots)
    return _figures(runs)


def _say(run: Run) -> None:
    setting = run.setting
    words = [f"d_c {setting.tightness}", f"alpha {setting.alpha}"]
    words += ["deadline cut"] * setting.changed + ["a neighbour"] * setting.neighbour
    print(f"  {', '.join(words)}: {run.error:+.2f} % of {run.deadline:.1f} s; granted {run.granted:.2f}, used "
          f"{run.used:.2f}, {run.resizes} resizes", flush=True)  # fmt: skip


def _tables(runs: Sequence[Run]) -> None:
    rows = []
    for setting in dict.fromkeys(run.setting for run in runs):
        some = [run for run in runs if run.setting == setting]
        errors = [run.error for run in some]
        theirs = PAPER.get((setting.kind, setting.tightness, setting.changed), ())
        plain = setting.alpha == 1.0 and not setting.neighbour
        rows.append([
            setting.kind, setting.model, setting.tightness, setting.alpha,
            "cut" if setting.changed else "neighbour" if setting.neighbour else "",
            float(np.mean([run.granted for run in some])), float(np.mean([run.used for run in some])),
            float(np.mean(np.abs(errors))), min(errors), max(errors),
            float(np.mean(theirs)) if theirs and plain else "",
        ])  # fmt: skip
    table(
        ["kind", "model", "d_c", "alpha", "", "granted", "used", "mean|e| %", "min e", "max e", "paper's mean|e|"], rows
    )


def _mean_abs(runs: Sequence[Run]) -> float | None:
    return float(np.mean([abs(run.error) for run in runs])) if runs else None


def _figures(runs: Sequence[Run]) -> Figures:
    def some(kind: str, changed: bool, neighbour: bool = False, tight: bool = False) -> list[Run]:
        return [
            run for run in runs
            if run.setting.kind == kind and run.setting.alpha == 1.0 and run.setting.changed == changed
            and run.setting.neighbour == neighbour and (run.setting.tightness == 1.0) == tight
        ]  # fmt: skip

    careful = [run for run in runs if run.setting.alpha < 1.0]
    return {
        "mean_abs_eps_relaxed": _mean_abs(some("cpu", changed=False)),
        "mean_abs_eps_changed": _mean_abs(some("cpu", changed=True)),
        "late_runs": float(sum(run.error > 0 for run in careful)) if careful else None,
        "mean_abs_eps_relaxed_devices": _mean_abs(some("devices", changed=False)),
        "mean_abs_eps_changed_devices": _mean_abs(some("devices", changed=True)),
        "mean_abs_eps_neighbour": _mean_abs(some("cpu", changed=False, neighbour=True)),
        "mean_abs_eps_tight": _mean_abs(some("cpu", changed=False, tight=True)),
        "runs": float(len(runs)),
    }


if __name__ == "__main__":
    began = time.monotonic()
    main("decor", __doc__.splitlines()[0], measure, plots=None)
    print(f"{time.monotonic() - began:.0f} s")
