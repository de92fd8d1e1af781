"""Measure four kinds of loops, each with its adapter: what a batch costs, what is trained, and whether shares hold.

- The same training in each of them, with and without us: the weights at the end, and the cells of losses that their
  scheduler is told, are compared to the bit.
- What a user pays is the time of a batch with the adapter and a scheduler in the process, above that of the bare loop;
  for the two Trainers above that with a callback that does nothing. One training after the other, next round in the
  opposite order; medians of the differences within each round.
- One training of each kind on one device of a pool: the work that each does in any ten seconds, compared with its
  share of what it does alone.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.workloads import read_stamps
from benchmarks.loop_trainings import LOOPS, WARM, Stopwatch, Terms, digest, regression, works
from lightning_core.core.commands import Cancel, Pause, Resume
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head
from lightning_core.testing.loop_conformance import NAME, ScriptedScheduler, scheduled

ROOT = Path(__file__).resolve().parents[1]
WIDTH, WINDOW = 192, 10.0
# Batches of the trainings whose weights are compared: more than an epoch.
COMPARED = 150


def never_over(_: int) -> bool:
    """Return that a training is not to end."""
    return False


def compared() -> Figures:
    """Train the same in each loop; return the parts of the trainings whose weights, and cells, are the same."""
    rows, weights, cells = [], list[bool](), list[bool]()
    for name, work in works().items():
        bare, told = {}, {}
        for loop, train in LOOPS.items():
            bare[loop] = digest(train(work, COMPARED, None, never_over))
            client = ScriptedScheduler()
            with scheduled(client), redirect_stdout(io.StringIO()):
                with_us = digest(train(work, COMPARED, Terms(job=NAME, deadline="1h", target="loss<=0"), never_over))
            told[loop] = client.cells()
            weights.append(with_us == bare[loop])
        cells += [told[loop] == told["plain"] and len(told[loop]) > 0 for loop in LOOPS]
        rows.append([name, len(set(bare.values())), len({str(one) for one in told.values()})])
    table(["training", "different weights of the four bare loops", "different curves of the four"], rows)
    return {"same_weights": float(np.mean(weights)), "same_cells": float(np.mean(cells))}


def paid(rounds: int, batches: int) -> Figures:
    """Return what a batch costs in each loop, above the loop without us, in microseconds."""
    work = regression(WIDTH)
    took: dict[tuple[str, bool], list[float]] = {(loop, ours): [] for loop in LOOPS for ours in (False, True)}
    for turn in range(rounds):
        for loop, ours in list(took)[:: 1 if turn % 2 == 0 else -1]:
            watch = Stopwatch(batches)
            terms = Terms(job="m", deadline="1d", target="loss<=1e-9", pool="local") if ours else None
            more: dict[str, Any] = {"log_every": 10} if loop == "hf" else {}
            with redirect_stdout(io.StringIO()):
                LOOPS[loop](work, WARM + batches, terms, watch, **more)
            took[loop, ours].append(watch.seconds)
    found: Figures = {}
    rows = []
    for loop in LOOPS:
        bare, ours_took = np.array(took[loop, False]) * 1e6, np.array(took[loop, True]) * 1e6
        differences = ours_took - bare
        found[f"overhead_us_{loop}"] = float(np.median(differences))
        spread = np.quantile(differences, [0.25, 0.75]).round(1).tolist()
        rows.append([loop, float(np.median(bare)), float(np.median(ours_took)), found[f"overhead_us_{loop}"], *spread])
    table(["loop", "without, us", "with, us", "paid, us", "first quarter", "last quarter"], rows)
    return found


# ------------------------------------------------------------------------------------------- one of each on a device


class OnePool:
    """A pool with one device, and a script of each loop that has joined it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._env = os.environ | {"LIGHTNING_CORE_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        (config := home / "pool.yaml").write_text("{pool: {devices: 1, beside: never}, policy: uniform}")
        self.command("up", "--config", str(config))
        head = read_head(home / "pool")
        assert head is not None  # it is up
        self.client = SocketClient(Path(head["socket"]))
        self.scripts = {loop: self._start(loop) for loop in LOOPS}

    def command(self, *words: str) -> None:
        """Run a command of the pool."""
        line = [sys.executable, "-m", "lightning_core.cli.main", *words]
        subprocess.run(line, env=self._env, cwd=self.home, check=True, stdout=subprocess.DEVNULL)

    def stamps(self, loop: str) -> Path:
        """Return where a script writes the times of its batches."""
        return self.home / f"{loop}.npy"

    def batches(self) -> dict[str, int]:
        """Return the batches that each has reported."""
        return {job.name: job.batches for job in self.client.status()[1]}

    def alone(self, seconds: float) -> dict[str, tuple[float, float]]:
        """Let each train alone for some seconds, the others paused; return from when to when it did."""
        found = {}
        for loop in LOOPS:
            others = [other for other in LOOPS if other != loop]
            for other in others:
                self.client.event(Pause(other))
            time.sleep(1.0)
            found[loop] = time.monotonic(), time.monotonic() + seconds
            time.sleep(seconds)
            for other in others:
                self.client.event(Resume(other))
            time.sleep(0.3)
        return found

    def end(self) -> None:
        """End the scripts, which write when their batches ended."""
        for loop in LOOPS:
            self.client.event(Cancel(loop))
        for script in self.scripts.values():
            script.wait(60)

    def _start(self, loop: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "benchmarks.loops", "--train", loop, str(self.stamps(loop))]
        return subprocess.Popen(line, env=self._env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def train_script(loop: str, path: str) -> None:
    """Train until the pool cancels the job, and write the times at which batches ended."""
    torch.set_num_threads(1)
    times: list[float] = []

    def watch(_: int) -> bool:
        times.append(time.monotonic())
        return False

    more: dict[str, Any] = {"log_every": 10} if loop == "hf" else {}
    try:
        LOOPS[loop](regression(WIDTH), 0 if loop == "hf" else -1, Terms(job=loop, target="loss<=1e-9"), watch, **more)
    finally:
        np.save(path, np.array(times))


def shared(solo: float, seconds: float) -> Figures:
    """Return the worst deviation of a loop's work from its share, one of each on one device."""
    with tempfile.TemporaryDirectory(prefix="lc-") as temp:
        pool = OnePool(Path(temp))
        try:
            while sum(done > 50 for done in pool.batches().values()) < len(LOOPS):
                time.sleep(0.2)
            before = pool.alone(solo)
            time.sleep(0.7)
            begin = time.monotonic()
            time.sleep(seconds)
            end = time.monotonic()
            after = pool.alone(solo)
            pool.end()
            stamps = {loop: read_stamps(pool.stamps(loop)) for loop in LOOPS}
        finally:
            pool.command("down", "--now")
    rows, worst, use = [], 0.0, 0.0
    for loop, times in stamps.items():
        rates = [
            np.sum((times >= first) & (times < last)) / (last - first) for first, last in (before[loop], after[loop])
        ]
        reference = float(np.mean(rates))
        starts = np.linspace(begin, end - WINDOW, 20)
        shares = np.array([np.sum((times >= t) & (times < t + WINDOW)) for t in starts]) / (reference * WINDOW)
        error = float(np.abs(shares * len(LOOPS) - 1).max())
        worst, use = max(worst, error), use + float(shares.mean())
        rows.append([loop, *map(float, rates), float(shares.mean()), error])
    table(["loop", "alone before, 1/s", "alone after, 1/s", "work, of one alone", "worst error of its share"], rows)
    return {"worst_share_error": worst, "device_use": use}


def measure(size: Size) -> Figures:
    """Measure all of it, print the tables and return the figures."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning_core", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rounds, batches = {"quick": (8, 1000), "default": (30, 1500), "full": (60, 2000)}[size]
    solo, seconds = {"quick": (2.0, 11.0), "default": (3.0, 20.0), "full": (5.0, 60.0)}[size]
    return compared() | paid(rounds, batches) | shared(solo, seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_script(*sys.argv[2:4])
    else:
        main("loops", __doc__.splitlines()[0], measure)
