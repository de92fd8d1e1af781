"""Two scripts and a bundle of three on one pool: does each get its grant, and how soon do heirs inherit?

A pool is brought up as a person would, two ordinary scripts join it, three jobs are submitted. All do the same work a
batch and stamp every batch with the time. Before and after the shared phase each trains alone for a while, the others
paused: the median of those rates is the yardstick. Then one script is killed and one is interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.live.workloads import job
from lightning_core.core.commands import Pause, Resume
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 10.0
WIDTH = 192
SCRIPTS, LAUNCHED = ("script1", "script2"), ("job1", "job2", "job3")
NAMES = (*SCRIPTS, *LAUNCHED)


class Pool:
    """A pool in a folder of its own, and what runs on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._env = os.environ | {"LIGHTNING_CORE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.command("up", "--resident", "3", "--policy", "uniform")
        head = read_head(home / "pool")
        assert head is not None  # it is up
        self.client = SocketClient(Path(head["socket"]))

    def command(self, *words: str) -> None:
        line = [sys.executable, "-m", "lightning_core.cli.main", *words]
        subprocess.run(line, env=self._env, cwd=self.home, check=True, stdout=subprocess.DEVNULL)

    def script(self, name: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "benchmarks.live.pool", "--script", name, str(self.stamps(name))]
        return subprocess.Popen(line, env=self._env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stamps(self, name: str) -> Path:
        return self.home / f"{name}.npy"

    def shares(self) -> dict[str, float]:
        return {job.name: job.share for job in self.client.status()[1]}

    def batches(self) -> dict[str, int]:
        return {job.name: job.batches for job in self.client.status()[1]}

    def alone(self, seconds: float) -> list[float]:
        """Batches a second of each job while it has the device to itself, by its reports."""
        rates = []
        for name in NAMES:
            for other in NAMES:
                self.client.event(Resume(other) if other == name else Pause(other))
            time.sleep(0.7)
            begin, before = time.monotonic(), self.batches()[name]
            time.sleep(seconds)
            rates.append((self.batches()[name] - before) / (time.monotonic() - begin))
        for name in NAMES:
            self.client.event(Resume(name))
        return rates

    def inherited(self, share: float, heirs: int) -> float:
        """Seconds until so many jobs have that share."""
        began = time.monotonic()
        while sum(abs(part - share) < 1e-6 for part in self.shares().values()) < heirs:
            if time.monotonic() - began > 30:
                raise TimeoutError(f"{heirs} jobs never got {share}: {self.shares()}")
            time.sleep(0.02)
        return time.monotonic() - began


def measure(size: Size) -> Figures:
    solo, shared = {"quick": (1.0, 11.0), "default": (3.0, 20.0), "full": (5.0, 60.0)}[size]
    with tempfile.TemporaryDirectory(prefix="lc-") as temp:
        pool = Pool(Path(temp))
        try:
            scripts = [pool.script(name) for name in SCRIPTS]
            jobs = {name: job(WIDTH, pool.stamps(name), 86400.0) for name in LAUNCHED}
            (pool.home / "bundle.yaml").write_text(json.dumps({"jobs": jobs}))
            pool.command("submit", "bundle.yaml")
            while sum(done > 100 for done in pool.batches().values()) < len(NAMES):
                time.sleep(0.2)
            told_before = pool.alone(solo)
            time.sleep(0.7)
            begin, at_begin = time.monotonic(), pool.batches()
            end = begin + shared
            time.sleep(shared)
            at_end = pool.batches()
            told_after = pool.alone(solo)
            time.sleep(0.5)
            scripts[0].kill()
            kill = pool.inherited(1 / 4, 4)
            scripts[1].send_signal(signal.SIGINT)
            leave = pool.inherited(1 / 3, 3)
            for name in LAUNCHED:
                pool.command("cancel", name)
            scripts[1].wait(30)
            while any(job.devices for job in pool.client.status()[1]):
                time.sleep(0.2)
            time.sleep(1.0)  # the last ones write their stamps as they leave
            stamps = {name: np.load(pool.stamps(name)) for name in NAMES[1:]}
        finally:
            pool.command("down", "--now")
    # All do the same work a batch, so one yardstick serves: a machine's noise in ten rates cancels better than in two.
    solos = np.array([told_before, told_after])
    yardstick = float(np.median(solos))
    starts = np.linspace(begin, end - WINDOW, 20)
    done = [(at_end[NAMES[0]] - at_begin[NAMES[0]]) / shared / yardstick]  # the killed one could write no stamps
    worst: list[object] = [""]
    for name in NAMES[1:]:
        count = np.array([np.sum((stamps[name] >= t) & (stamps[name] < t + WINDOW)) for t in starts])
        shares = count / (yardstick * WINDOW)
        done.append(float(shares.mean()))
        worst.append(float(np.abs(shares * len(NAMES) - 1).max()))
    use = sum(done)
    uneven = max(abs(part * len(NAMES) / use - 1) for part in done)
    rows = [[name, *solos[:, k].tolist(), done[k], worst[k]] for k, name in enumerate(NAMES)]
    table(["job", "alone before /s", "alone after /s", "share of work", "worst error in 10 s"], rows)
    print(f"together they did {use:.3f} of what one job does alone; the most uneven one was {uneven:.1%} off the mean")
    print(f"after kill -9 the heirs had their part in {kill:.2f} s, after Ctrl-C in {leave:.2f} s")
    return {
        "worst_share_error": max(error for error in worst if isinstance(error, float)),
        "uneven": uneven,
        "device_use": use,
        "kill_s": kill,
        "leave_s": leave,
    }


def script(name: str, stamps: str) -> None:
    """What a person would write, and stamps."""
    import lightning.pytorch as pl
    import torch

    from benchmarks.live.workloads import Noise, Regression, Stamps
    from lightning_core.callbacks import CoreCallback
    from lightning_core.core.targets import BatchTarget

    torch.set_num_threads(1)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callbacks = [CoreCallback(name, deadline="1d", target=BatchTarget(10**9)), Stamps(stamps)]
    pl.Trainer(max_epochs=-1, accelerator="cpu", callbacks=callbacks, **quiet).fit(Regression(WIDTH), Noise())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:
        script(*sys.argv[2:4])
    else:
        main("live.pool", __doc__.splitlines()[0], measure)
