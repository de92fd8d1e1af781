"""A thousand jobs at once: what the scheduler's actor can take in, what that costs, and how soon a decision arrives.

The actor, its durable journal and its server are the real ones; the trainings are simulated by a few processes beside
it (:mod:`benchmarks.crowd`), as scripts that speak through the socket, and as launched jobs that call the actor.
For each number of jobs, all report at the live period while some are paused and resumed; then all report as fast as
they are answered. There is a device for each job, as far as a pool may have so many.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Figures, Size, main, table
from benchmarks.crowd import PERIOD, ActorCrowd, Seen
from lightning_core.core.commands import Pause, Resume
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.socket_client import SocketClient

# Numbers of jobs, by how they speak with the scheduler.
JOBS: dict[str, dict[str, tuple[int, ...]]] = {
    "quick": {"socket": (10, 100, 1000)},
    "default": {"socket": (10, 100, 1000, 3000), "ray": (10, 100, 1000)},
    "full": {"socket": (10, 100, 1000, 3000), "ray": (10, 100, 1000, 3000)},
}
# Seconds of settling, of reporting at the live period, and of reporting as fast as answers come.
SECONDS = {"quick": (10.0, 15.0, 5.0), "default": (15.0, 30.0, 10.0), "full": (30.0, 60.0, 20.0)}
PROCESSES = 4
# Seconds between two decisions, and for which a job stays paused.
DECISION_INTERVAL, PAUSED = 0.5, 2.0


class Sample(NamedTuple):
    """What was measured with one number of jobs."""

    by: str
    jobs: int
    live: float
    """Acknowledged reports per second at the live period."""
    p50_ms: float
    p99_ms: float
    """Time of an answer."""
    grant_p50_ms: float
    grant_p99_ms: float
    """From a decision to the grant at its worker."""
    cores: float
    """CPU seconds per second of the actor."""
    crowd_cores: float
    """CPU seconds per second of the processes that simulate the trainings."""
    most: float
    """Acknowledged reports per second as fast as answers come."""
    most_p99_ms: float
    failed: int
    """Calls that failed."""

    @property
    def ms_per_report(self) -> float:
        """CPU milliseconds of the actor per report."""
        return 1e3 * self.cores / max(self.live, 1e-9)


class Scripts:
    """Scripts, in processes of their own.

    Args:
        socket: Path of the pool's socket.
        names: Names of the jobs of each process.
    """

    def __init__(self, socket: Path, names: Sequence[Sequence[str]]) -> None:
        command = [sys.executable, "-m", "benchmarks.crowd", str(socket)]
        self._processes = [
            subprocess.Popen([*command, *some], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for some in names
        ]
        self._tell("join")

    def run(self, seconds: float, period: float) -> list[Seen]:
        """Let all report; return what each process has seen."""
        return [Seen(*answer) for answer in self._tell(f"{seconds} {period}")]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()

    def _tell(self, line: str) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self._processes if process.stdout is not None]


class Launched:
    """Launched jobs, in actors of their own.

    Args:
        scheduler: Name of the scheduler's actor.
        names: Names of the jobs of each.
    """

    def __init__(self, scheduler: str, names: Sequence[Sequence[str]]) -> None:
        import ray

        made: Any = ray.remote(num_cpus=0)(ActorCrowd)
        self._actors = [made.remote(scheduler, some) for some in names]

    def run(self, seconds: float, period: float) -> list[Seen]:
        """Let all report; return what each actor has seen."""
        import ray

        return [Seen(*seen) for seen in ray.get([actor.run.remote(seconds, period) for actor in self._actors])]

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)


@contextmanager
def pool(folder: Path, jobs: int) -> Iterator[tuple[str, Path, Any]]:
    """Yield the name of a scheduler's actor, the path of its socket, and the actor."""
    import ray

    from lightning_core.server.start_scheduler import start_scheduler

    devices = min(jobs, MAX_DEVICES)
    name, socket = f"scale-{folder.name}", folder / "socket"
    actor = start_scheduler(name, Settings(devices=devices), folder / "pool", str(socket))
    try:
        ray.get(actor.register_devices.remote([(f"cpu{k}", "") for k in range(devices)]))
        yield name, socket, actor
    finally:
        ray.get(actor.close.remote())
        ray.kill(actor)


def decide(socket: Path, names: Sequence[str], seconds: float) -> list[tuple[str, bool, float]]:
    """Pause and resume jobs for some seconds; return for each decision the job, whether it is a pause, and when."""
    client, until, draw = SocketClient(socket), time.monotonic() + seconds, random.Random(0)
    made: list[tuple[str, bool, float]] = []
    paused: list[tuple[float, str]] = []
    while time.monotonic() < until:
        began = time.monotonic()
        job = draw.choice([name for name in names if name not in {one for _, one in paused}])
        made.append((job, True, began))
        client.event(Pause(job))
        paused.append((began, job))
        while paused and time.monotonic() - paused[0][0] >= PAUSED:
            _, job = paused.pop(0)
            made.append((job, False, time.monotonic()))
            client.event(Resume(job))
        time.sleep(max(began + DECISION_INTERVAL - time.monotonic(), 0.0))
    for _, job in paused:
        client.event(Resume(job))
    client.close()
    return made


def delays(decisions: Sequence[tuple[str, bool, float]], seen: Sequence[Seen], end: float) -> list[float]:
    """Return the seconds from each decision to its grant; up to the end for one that did not arrive.

    Args:
        decisions: Job of each, whether it is a pause, and its time.
        seen: What the trainings have seen.
        end: Time until which they have listened.
    """
    grants: dict[str, list[tuple[float, float]]] = {}
    for job, share, at in (grant for one in seen for grant in one.grants):
        grants.setdefault(job, []).append((at, share))
    waited = []
    for job, is_pause, since in decisions:
        arrivals = [at for at, share in grants.get(job, []) if at >= since and (share == 0.0) == is_pause]
        waited.append(min(arrivals, default=end) - since)
    return waited


def sample(by: str, jobs: int, size: Size, folder: Path) -> Sample:
    """Measure with one number of jobs."""
    settle, live, fast = SECONDS[size]
    names = [f"job-{k}" for k in range(jobs)]
    parts = [names[k::PROCESSES] for k in range(PROCESSES)]
    with pool(folder, jobs) as (name, socket, actor), ThreadPoolExecutor(2) as threads:
        import ray

        pid = ray.get(actor.pid.remote())
        crowds: Scripts | Launched
        if by == "socket":
            crowds = Scripts(socket, parts)
        else:
            ray.get(actor.submit.remote(tuple(Job(name, 1e6, LossTarget("loss", 1e-3)) for name in names)))
            crowds = Launched(name, parts)
        try:
            crowds.run(settle, PERIOD)
            # What they hear in the last seconds is still counted, and what is decided then is not.
            running: Future[list[Seen]] = threads.submit(crowds.run, live, PERIOD)
            time.sleep(0.2)
            before, began = cpu(pid), time.monotonic()
            made = decide(socket, names, live - 3.0)
            used, took = cpu(pid) - before, time.monotonic() - began
            seen = running.result()
            waited = delays(made, seen, time.monotonic())
            most = crowds.run(fast, 0.0)
        finally:
            crowds.close()
    answers, quickest = ([took for one in ones for took in one.answers] for ones in (seen, most))
    return Sample(
        by, jobs, len(answers) / live, *percentiles(answers), *percentiles(waited), used / took,
        sum(one.cpu for one in seen) / live, len(quickest) / fast, percentiles(quickest)[1],
        sum(one.failed for one in (*seen, *most)),
    )  # fmt: skip


def cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds; NaN of nothing."""
    if not len(seconds):
        return math.nan, math.nan
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
    return float(p50), float(p99)


def measure(size: Size) -> Figures:
    """Measure with each number of jobs; print a table."""
    import ray

    from lightning_core.cluster.ray_cluster import start_local_ray

    header = ["by", "jobs", "reports/s", "answer p50, ms", "p99", "grant p50, ms", "p99", "cores", "of the crowd",
              "most reports/s", "answer p99, ms", "failed", "ms per report"]  # fmt: skip
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
        start_local_ray(Path(folder))
        try:
            for by, numbers in JOBS[size].items():
                for jobs in numbers:
                    within = Path(folder) / f"{by}-{jobs}"
                    within.mkdir()
                    samples.append(sample(by, jobs, size, within))
                    print(samples[-1], file=sys.stderr, flush=True)
        finally:
            ray.shutdown()
    table(header, [[*one, one.ms_per_report] for one in samples])
    for by in JOBS[size]:
        ones = [one for one in samples if one.by == by]
        if len(ones) < 2:
            continue
        slope = np.polyfit(np.log([one.jobs for one in ones]), np.log([one.cores for one in ones]), 1)[0]
        print(f"{by}: cores grow with the {slope:.2f}th power of the number of jobs")
    by_ray = next((one for one in samples if (one.by, one.jobs) == ("ray", 1000)), None)
    by_socket = {one.jobs: one for one in samples if one.by == "socket"}
    return {
        "reports_per_s_max": max(one.most for one in by_socket.values()),
        "actor_cores_1000": by_socket[1000].cores,
        "p50_answer_ms_1000": by_socket[1000].p50_ms,
        "p99_grant_ms_1000": by_socket[1000].grant_p99_ms,
        "actor_cores_1000_ray": None if by_ray is None else by_ray.cores,
        "p99_grant_ms_1000_ray": None if by_ray is None else by_ray.grant_p99_ms,
    }


if __name__ == "__main__":
    main("scale", (__doc__ or "").split("\n")[0], measure)
