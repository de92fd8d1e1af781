"""A pool under faults for hours, while jobs come and go: what its own processes take does not grow."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from lightning_core.core.answers import State, Verdict
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.core.targets import BatchTarget
from lightning_core.node.processes import is_alive
from lightning_core.pool.pool import Pool
from lightning_core.pool.pool_errors import JobEndedError
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.server.discovery import read_head
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.conftest import ROOT
from tests.faults.killer import NO_PROCESS, Killer, kill, stop
from tests.faults.soak import (
    OURS,
    POOL_MANAGER,
    SCHEDULER,
    WORKER,
    Process,
    Sample,
    Usage,
    growths,
    sample,
    titled,
    usage,
)
from tests.faults.test_chaos import job

SECONDS = float(os.environ.get("LC_SOAK_SECONDS", "7200"))
SEED = 22
# Seconds between two looks, and between two faults.
EVERY, PAUSE = 2.0, (15.0, 45.0)
# Launched jobs at a time, the batches of one, which take 20 to 60 s, and looks between two scripts. Some kilobytes of
# each job that is over are remembered for a day, by design: many more in an hour would look like a leak.
JOBS, BATCHES, SCRIPT_EVERY = 4, (2000, 6000), 10
# Seconds before the second quarter in which nothing is killed that must live through the rest.
SETTLE = 30.0
# Seconds within which the last jobs must have ended.
END = 300.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a pool of two devices, that is up."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-m", "lightning_core.cli.main"]
    subprocess.run([*command, "up", "--devices", "2", "--folder", tmp_path / "pool"], check=True, timeout=180)
    yield tmp_path / "pool"
    head = read_head(tmp_path / "pool")
    if head is not None and is_alive(head):
        subprocess.run([*command, "down", "--now", "--folder", tmp_path / "pool"], check=True, timeout=180)


class Traffic:
    """Jobs that come and go in a pool: launched ones, of which some are cancelled or held for a while, and scripts.

    Args:
        folder: Folder of the pool.
        seed: Seed of what happens to the jobs.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._draw = folder, random.Random(seed)
        self._bundle = folder / "bundle.yaml"
        self._held: list[str] = []
        self.cancelled: set[str] = set()
        self.steps = self.submitted = self.scripts = 0

    def step(self) -> None:
        """Submit what is missing, do something to a job, and be a script for a moment now and then."""
        self.steps += 1
        with Pool.connect(str(self._folder)) as pool:
            active = [one.name for one in pool.jobs() if one.state is not State.ENDED]
            while len(active) < JOBS:
                active.append(self._submit(pool))
            self.resume(pool)
            name, what = self._draw.choice(active), self._draw.random()
            if what < 0.02:
                self.cancelled.add(name)
                pool.cancel(name)
            elif what < 0.1 and name not in self.cancelled:
                self._held.append(name)
                pool.pause(name, release=what < 0.04)
            if self.steps % SCRIPT_EVERY == 0:
                self._be_a_script(Path(pool.client.path), leaves=what < 0.5)

    def resume(self, pool: Pool) -> None:
        """Let the jobs that are held go on."""
        while self._held:
            with suppress(JobEndedError, JoinRefusedError):  # it was resumed, and only the answer was lost
                pool.resume(self._held[-1])
            self._held.pop()

    def _submit(self, pool: Pool) -> str:
        self.submitted += 1
        name = f"job{self.submitted}"
        body = job(self._draw.randint(*BATCHES)) | {"deadline": "1h"}
        self._bundle.write_text(json.dumps({"jobs": {name: body}}))
        pool.submit(self._bundle)
        return name

    def _be_a_script(self, path: Path, *, leaves: bool) -> None:
        """Join, report and end: with a word, or by closing the connection."""
        self.scripts += 1
        name, can = f"script{self.scripts}", frozenset({Capability.TIME_SLICE, Capability.HOLD})
        with closing(SocketClient(path)) as client:
            incarnation = client.join(Job(name, 600.0, BatchTarget(10**6), can=can), "cpu").incarnation
            for number in range(1, 4):
                client.report(Report(name, incarnation, number, 0, number, 0.1 * number))
            if leaves:
                client.left(WorkerExited(name, incarnation))


def ended(folder: Path, traffic: Traffic) -> list[tuple[str, Verdict | None]]:
    """Wait until no job of a pool is active; return name and verdict of all."""
    until = time.monotonic() + END
    with Pool.connect(str(folder)) as pool:
        traffic.resume(pool)
        while active := [one for one in pool.jobs() if one.state is not State.ENDED]:
            assert time.monotonic() < until, [(one.name, one.state, str(one.reason)) for one in active]
            time.sleep(1.0)
        return [(one.name, one.verdict) for one in pool.jobs()]


@pytest.mark.nightly
@pytest.mark.promise("R22", "R9")
def test_a_pool_does_not_grow_under_faults(folder: Path, record_property: Callable[[str, object], None]) -> None:
    """From the second quarter on only workers are hit: the processes that are compared live through the rest."""
    head = read_head(folder)
    assert head is not None
    root = head["pid"]
    workers = titled(root, WORKER)
    lasting = {"worker": kill(workers), "worker stopped": stop(workers, 12.0)}
    all_faults = lasting | {
        "scheduler": kill(titled(root, SCHEDULER)),
        "pool manager": kill(titled(root, POOL_MANAGER)),
    }
    traffic, samples, began = Traffic(folder, SEED), list[Sample](), time.monotonic()
    most = int(SECONDS / PAUSE[0]) + 1
    faults: Counter[str] = Counter()
    for kinds, until in ((all_faults, SECONDS / 4 - SETTLE), (lasting, SECONDS)):
        with Killer(SEED, kinds, PAUSE, most) as killer:
            while (at := time.monotonic() - began) < until:
                samples.append(sample(at, root))
                with suppress(ConnectionError, JobEndedError):  # it is being restarted, or was too quick
                    traffic.step()
                time.sleep(EVERY)
        faults.update(action.what for action in killer.actions if action.whom != NO_PROCESS)
    every = ended(folder, traffic)
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        assert [(one.name, one.verdict) for one in replay(journal).scheduler.status()] == every
    jobs = [(name, verdict) for name, verdict in every if name.startswith("job")]
    found = growths(samples, SECONDS)
    hit = ", ".join(f"{count} x {what}" for what, count in sorted(faults.items()))
    record_property("figure", f"{SECONDS:.0f} s, {len(jobs)} jobs and {traffic.scripts} scripts, {hit}: "
                    + "; ".join(map(str, found)))  # fmt: skip
    print(*found, sep="\n")
    assert {verdict for name, verdict in jobs if name not in traffic.cancelled} == {Verdict.MET}
    assert {one.name for one in found} >= OURS.keys()
    assert not [str(one) for one in found if one.name in OURS and not one.is_flat]


def sampled(at: float, mb: float, descriptors: int, threads: int) -> Sample:
    process = Process(1, 1)
    return Sample(at, {process: Usage(mb, descriptors, threads)}, {process: "scheduler"})


@pytest.mark.parametrize(
    ("mb", "descriptors", "threads", "flat"),
    [(0.0, 0.0, 0.0, True), (0.05, 0.01, 0.01, True), (0.2, 0.0, 0.0, False), (0.0, 0.05, 0.0, False),
     (0.0, 0.0, 0.05, False)],
)  # fmt: skip
def test_what_grows_is_noticed(mb: float, descriptors: float, threads: float, flat: bool) -> None:
    """What a process adds a second, over 100 s, to 100 MB, 50 descriptors and 20 threads."""
    samples = [sampled(at, 100 + mb * at, 50 + int(descriptors * at), 20 + int(threads * at)) for at in range(101)]
    [growth] = growths([sampled(0, 900, 90, 90), *samples], 100)
    assert growth.is_flat is flat
    assert growth.before.mb == pytest.approx(100 + mb * 37)
    assert growth.after.mb == pytest.approx(100 + mb * 87.5)


def test_a_process_that_ended_is_not_compared() -> None:
    other = Sample(60.0, {}, {})
    assert (
        growths(
            [sampled(at, 1, 1, 1) for at in range(60)] + [other] + [sampled(at, 1, 1, 1) for at in range(61, 101)], 100
        )
        == []
    )


def test_the_usage_of_a_process_is_read() -> None:
    root = os.getpid()
    before = usage(root)
    with open(os.devnull), open(os.devnull):
        after = usage(root)
    assert after.descriptors == before.descriptors + 2
    assert 1 < before.mb < 10_000
    with subprocess.Popen([sys.executable, "-c", "input()", "a-name-of-its-own"], stdin=subprocess.PIPE) as child:
        until = time.monotonic() + 10
        while titled(root, "a-name-of-its-own")() != [child.pid] and time.monotonic() < until:
            pass
        assert titled(root, "a-name-of-its-own")() == [child.pid]
