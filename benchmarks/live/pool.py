"""Measure the shares of two scripts and a bundle of three on one pool, and how soon a share passes to the other jobs.

A pool is started from the command line, two ordinary scripts join it, and three jobs are submitted. All do the same
work per batch and record the time of every batch. Before and after the shared phase each trains alone for a while, with
the others paused: the median of those throughputs is the reference. Then one script is killed and one interrupted.
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
from benchmarks.live.workloads import job, read_stamps
from lightning_core.core.commands import Pause, Resume
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 10.0
WIDTH = 192
SCRIPTS, LAUNCHED = ("script1", "script2"), ("job1", "job2", "job3")
NAMES = (*SCRIPTS, *LAUNCHED)


class Pool:
    """A pool in a folder of its own, and the jobs that run on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._env = os.environ | {"LIGHTNING_CORE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        (config := home / "pool.yaml").write_text("{pool: {devices: 1, resident: 3}, policy: uniform}")
        self.command("up", "--config", str(config))
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
        """Return the batches per second of each job while it has the device to itself, from its reports."""
        throughputs = []
        for name in NAMES:
            for other in NAMES:
                if other != name:
                    self.client.event(Pause(other))
            time.sleep(0.7)
            begin, before = time.monotonic(), self.batches()[name]
            time.sleep(seconds)
            throughputs.append((self.batches()[name] - before) / (time.monotonic() - begin))
            for other in NAMES:
                if other != name:
                    self.client.event(Resume(other))
        return throughputs

    def cancel_jobs(self) -> None:
        """Cancel the jobs of the bundle, and wait until no job has a device."""
        for name in LAUNCHED:
            self.command("cancel", name)
        while any(job.devices for job in self.client.status()[1]):
            time.sleep(0.2)

    def seconds_until_share(self, share: float, jobs: int) -> float:
        """Return the seconds until this many jobs have that share."""
        began = time.monotonic()
        while sum(abs(part - share) < 1e-6 for part in self.shares().values()) < jobs:
            if time.monotonic() - began > 30:
                raise TimeoutError(f"{jobs} jobs must have a share of {share:.2g} within 30 s, got {self.shares()}")
            time.sleep(0.02)
        return time.monotonic() - began


def measure(size: Size) -> Figures:
    """Run the pool, print the table and return its figures."""
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
            before = pool.alone(solo)
            time.sleep(0.7)
            begin, at_begin = time.monotonic(), pool.batches()
            end = begin + shared
            time.sleep(shared)
            at_end = pool.batches()
            after = pool.alone(solo)
            time.sleep(0.5)
            scripts[0].kill()
            kill = pool.seconds_until_share(1 / 4, 4)
            scripts[1].send_signal(signal.SIGINT)
            leave = pool.seconds_until_share(1 / 3, 3)
            pool.cancel_jobs()
            scripts[1].wait(30)
            time.sleep(1.0)  # the last jobs write their stamps as they leave
            stamps = {name: read_stamps(pool.stamps(name)) for name in NAMES[1:]}
        finally:
            pool.command("down", "--now")
    # All do the same work per batch, so there is one reference: noise cancels better in ten throughputs than in two.
    solos = np.array([before, after])
    reference = float(np.median(solos))
    starts = np.linspace(begin, end - WINDOW, 20)
    done = [(at_end[NAMES[0]] - at_begin[NAMES[0]]) / shared / reference]  # the killed script wrote no stamps
    worst: list[object] = [""]
    for name in NAMES[1:]:
        count = np.array([np.sum((stamps[name] >= t) & (stamps[name] < t + WINDOW)) for t in starts])
        shares = count / (reference * WINDOW)
        done.append(float(shares.mean()))
        worst.append(float(np.abs(shares * len(NAMES) - 1).max()))
    use = sum(done)
    uneven = max(abs(part * len(NAMES) / use - 1) for part in done)
    rows = [[name, *solos[:, k].tolist(), done[k], worst[k]] for k, name in enumerate(NAMES)]
    table(["job", "alone before, 1/s", "alone after, 1/s", "work, of one alone", "worst share error in 10 s"], rows)
    print(
        f"together they did {use:.3f} of the work of one job alone; the largest deviation from the mean is {uneven:.1%}"
    )
    print(
        f"the other jobs had the share of a killed script after {kill:.2f} s, of an interrupted one after {leave:.2f} s"
    )
    return {
        "worst_share_error": max(error for error in worst if isinstance(error, float)),
        "uneven": uneven,
        "device_use": use,
        "kill_s": kill,
        "leave_s": leave,
    }


def script(name: str, stamps: str) -> None:
    """Train as a user's script would, and record the time of every batch."""
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
