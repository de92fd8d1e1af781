"""A pool that lasts: a hundred jobs come and go for four weeks of virtual time, and what is left of them is measured.

The host, its journal with its snapshots and the scheduler are the real ones; the trainings are made up, and the clock
is theirs. Whenever a job ends, another one is submitted soon after. Measured at any age: a restart, by a new process,
from a copy of the files as a kill would leave them just before the next snapshot; the size of the folder, with the spec
and the log of each job; the memory of the process, which has imported Ray as the scheduler's actor has; and the time of
a round.

Reports and rounds are thinned: a pool of this size reports some hundred times as often. How many events were played is
printed.
"""

from __future__ import annotations

import ctypes
import gc
import heapq
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import ray  # noqa: F401  for its memory

from benchmarks.common import Figures, Size, main, table
from lightning_core.core.answers import Answer, Directive, End, Grant
from lightning_core.core.events import Cell, Checkpoint, Event, ExitCause, Report, Submit, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host

HOUR, DAY, DAYS = 3600.0, 86400.0, 28
JOBS, DEVICES = 100, 40
# Seconds between two rounds, and between two reports of a job: 2e5, 1e6 and 1e7 events in four weeks.
INTERVALS = {"quick": (60.0, 1000.0), "default": (15.0, 190.0), "full": (2.0, 18.0)}
# Mean seconds that a training takes alone, and until the next job takes its place; its cells; part of the reports after
# which its worker is lost.
TRAINING, GAP, CELLS, LOST = 4 * HOUR, 600.0, 200, 0.002
# Bytes of a spec and of a log, which a job that is over leaves behind for longer than four weeks.
FILES = {"spec.json": 2_000, "log.txt": 30_000}
# Part of the events between two snapshots after which the next one is about to be taken.
ALMOST_DUE = 0.9
MIB = 2**20


class Training:
    """A made-up training: its loss falls by a power law while it has a share.

    Args:
        name: Name of its job.
        draw: Random numbers.
    """

    def __init__(self, name: str, draw: random.Random) -> None:
        self.throughput = draw.uniform(2.0, 20.0)
        self.scale, self.slope = draw.uniform(1.0, 4.0), draw.uniform(0.2, 0.6)
        needed = TRAINING * draw.uniform(0.2, 2.0) * self.throughput
        self.batches_per_cell = max(int(needed / CELLS), 1)
        threshold = self.scale * needed**-self.slope
        target = LossTarget("loss", threshold) if draw.random() < 0.7 else BatchTarget(int(needed))
        self.job = Job(name, needed / self.throughput * draw.uniform(1.2, 5.0), target)
        self.batches, self.saved, self.share, self.version = 0.0, 0, 0.0, 0
        self.there = False  # whether it has a worker
        self._draw = draw

    def launch(self, incarnation: int, now: float) -> None:
        """Begin an incarnation at the newest checkpoint."""
        self.there, self.incarnation, self.batches = True, incarnation, float(self.saved)
        self._began, self._busy, self._number, self._cells, self._seen = self.saved, 0.0, 0, 0, now

    def train(self, now: float) -> None:
        """Train at the present share until now."""
        seconds = (now - self._seen) * self.share
        self._busy += seconds
        self.batches += seconds * self.throughput
        self._seen = now

    def report(self, now: float) -> Report:
        """Return the next report, with the cells and the checkpoint since the last one."""
        self.train(now)
        done, first, cells = int(self.batches), self._began // self.batches_per_cell, []
        while (at := (first + self._cells + 1) * self.batches_per_cell) <= done:
            self._cells += 1
            loss = self.scale * at**-self.slope * self._draw.lognormvariate(0.0, 0.03)
            cells.append(Cell(self._cells, at, loss))
        self._number += 1
        return Report(
            self.job.name,
            self.incarnation,
            self._number,
            self.version,
            done,
            self._busy,
            tuple(cells),
            batches_at_start=self._began,
            checkpoint=self.save() if cells else None,
        )

    def save(self) -> Checkpoint:
        """Return a new checkpoint."""
        self.saved = int(self.batches)
        return Checkpoint(self.saved, f"{self.saved:064x}")


class Sample(NamedTuple):
    """What was measured at one age."""

    day: float
    events: int
    ended: int
    restart_s: float
    disk_mib: float
    memory_mib: float
    round_ms: float


class Weeks:
    """The pool, in virtual time.

    Args:
        folder: Empty folder.
        size: How many events are played.
        seed: Seed of the trainings.
    """

    def __init__(self, folder: Path, size: Size, seed: int = 0) -> None:
        period, self.report_interval = INTERVALS[size]
        self.folder, self.now, self.events, self.ended = folder, 0.0, 0, 0
        self._draw = random.Random(seed)
        self._host = Host(Settings(devices=DEVICES, period=period), folder / "journal.db", clock=lambda: self.now)
        self._trainings: dict[str, Training] = {}
        self._submitted = 0
        self._due = [(self._draw.uniform(0.0, HOUR), k, "") for k in range(JOBS)]  # a free place submits a job
        heapq.heapify(self._due)
        self._order = JOBS
        self._rounds: list[float] = []

    def play(self, until: float) -> None:
        """Play until a time; then on until a snapshot is due, which is the worst moment for a kill."""
        while self.now < until or self._host.replay_share < ALMOST_DUE:
            at, _, name = self._due[0]
            wakeup = self._host.scheduler.wakeup()
            if wakeup is not None and wakeup <= at:
                self.now = max(self.now, wakeup)
                began = time.process_time()
                answers = self._host.catch_up()
                self._rounds.append(time.process_time() - began)
                self.events += 1
                self._obey(answers)
                continue
            heapq.heappop(self._due)
            self.now = max(self.now, at)
            if not name:
                training = Training(f"job-{self._submitted}", self._draw)
                self._submitted += 1
                self._trainings[training.job.name] = training
                self._happen(Submit((training.job,)))
                self._later(self.report_interval, training.job.name)
            elif (running := self._trainings.get(name)) is not None:
                if running.there:
                    lost = self._draw.random() < LOST
                    self._happen(self._exit(running, ExitCause.LOST) if lost else running.report(self.now))
                self._later(self.report_interval, name)

    def _later(self, seconds: float, name: str) -> None:
        self._order += 1
        heapq.heappush(self._due, (self.now + seconds * self._draw.uniform(0.9, 1.1), self._order, name))

    def _happen(self, event: Event) -> None:
        waiting: deque[Event] = deque([event])
        while waiting:
            answers = self._host.handle(waiting.popleft())
            self.events += 1
            waiting += self._obey(answers, ask=False)

    def _obey(self, answers: list[Answer], *, ask: bool = True) -> list[Event]:
        """Let the trainings obey; return the events that follow, after they have happened if ``ask`` is set."""
        follow = []
        for answer in answers:
            if isinstance(answer, Grant | End) and (training := self._trainings.get(answer.job)) is not None:
                follow += self._follow(training, answer)
        if ask:
            for event in follow:
                self._happen(event)
        return follow

    def _follow(self, training: Training, directive: Directive) -> list[Event]:
        if training.there:
            training.train(self.now)
        training.version = directive.version
        if isinstance(directive, End):
            del self._trainings[directive.job]
            self.ended += 1
            home = self.folder / "jobs" / directive.job
            home.mkdir(parents=True)
            for name, size in FILES.items():
                (home / name).write_bytes(bytes(size))
            self._later(self._draw.expovariate(1.0 / GAP), "")
            return [self._exit(training, ExitCause.RELEASED)] if training.there else []
        training.share = directive.share
        if training.there and not directive.devices:
            return [self._exit(training, ExitCause.RELEASED)]
        if directive.devices and not training.there:
            training.launch(self._host.scheduler.incarnation(directive.job), self.now)
        return []

    def _exit(self, training: Training, cause: ExitCause) -> WorkerExited:
        training.there, training.share = False, 0.0
        saved = training.save() if cause is ExitCause.RELEASED else None
        return WorkerExited(training.job.name, training.incarnation, cause, checkpoint=saved)

    def sample(self) -> Sample:
        """Measure at this age; the rounds are those since the last sample."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rounds, self._rounds = statistics.median(self._rounds), []
        return Sample(
            self.now / DAY, self.events, self.ended, restart(self.folder), _bytes(self.folder) / MIB,
            pages * os.sysconf("SC_PAGE_SIZE") / MIB, rounds * 1e3,
        )  # fmt: skip


def restart(folder: Path) -> float:
    """Return the seconds that a restart takes in a new process, without its imports: the median of three."""
    with tempfile.TemporaryDirectory() as copies:
        taken = []
        for k in range(3):
            copy = shutil.copytree(folder, Path(copies) / str(k), ignore=lambda *_: ["jobs"])
            command = [sys.executable, "-m", "benchmarks.lasting", "--reopen", str(copy)]
            taken.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return statistics.median(taken)


def reopen(folder: Path) -> None:
    """Print the seconds that it takes to go on from a journal."""
    began = time.perf_counter()
    Host(Settings(), folder / "journal.db")
    print(time.perf_counter() - began)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(size: Size) -> Figures:
    """Play four weeks; print a line for every third day."""
    with tempfile.TemporaryDirectory() as folder:
        weeks = Weeks(Path(folder), size)
        samples = []
        for day in (
            0.5,
            1.0,
            *range(4, DAYS, 3),
            DAYS - 0.5,
            DAYS,
        ):  # the first and the last half of a day are compared
            weeks.play(day * DAY)
            samples.append(weeks.sample())
            # Ten million events take hours: what is measured is shown as it comes.
            print(samples[-1], file=sys.stderr, flush=True)
    table(
        ["day", "events", "jobs ended", "restart, s", "disk, MiB", "memory, MiB", "round, ms"],
        [[float(value) if isinstance(value, float) else value for value in sample] for sample in samples],
    )
    first, last = samples[1], samples[-1]
    return {
        "events": float(last.events),
        "ended": float(last.ended),
        "restart_s_max": max(sample.restart_s for sample in samples),
        "disk_mb": max(sample.disk_mib for sample in samples) * MIB / 1e6,
        "memory_growth_pct": 100.0 * (last.memory_mib / first.memory_mib - 1.0),
        "round_growth_pct": 100.0 * (last.round_ms / first.round_ms - 1.0),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reopen"]:
        reopen(Path(sys.argv[2]))
    else:
        main("lasting", (__doc__ or "").split("\n")[0], measure)
