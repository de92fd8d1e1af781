"""The scheduler's actor killed again and again, while workers report to it."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.events import Cell, Report
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.faults.prefixes import Limits, first_broken, history_of

KILLS, EVENTS = 5, 1000
NAMES = "abcd"
BACK_WITHIN = 10.0


def pid_of(actor: Any) -> int:
    """Return the id of the actor's process as soon as it has one."""
    import ray

    until = time.monotonic() + 30.0
    while True:
        try:
            pid: int = ray.get(actor.pid.remote(), timeout=2.0)
            return pid
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            assert time.monotonic() < until, "the scheduler does not come back"


def libraries(pid: int) -> set[str]:
    """Return the names of the files that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.rsplit("/", 1)[1] for line in lines if "/" in line}


def kept(folder: Path) -> Scheduler:
    """Return a scheduler replayed from a journal that another process is writing."""
    with Journal.open(folder / "journal.db", read_only=True) as journal:
        return replay(journal).scheduler


@pytest.mark.promise("R1", "R2", "F1", "F2")
@pytest.mark.nightly
def test_a_thousand_reports_survive_five_kills_of_the_scheduler(
    local_ray: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """No report is lost or counts twice; the scheduler is back within seconds each time, without torch."""
    import ray

    from lightning_core.server.clients.ray_client import RayClient
    from lightning_core.server.start_scheduler import start_scheduler

    called = f"killed-{secrets.token_hex(4)}"
    scheduler = start_scheduler(called, Settings("uniform", resident=len(NAMES)), tmp_path)
    client = RayClient(called)
    ray.get(scheduler.submit.remote(tuple(Job(job, 1e6, BatchTarget(10**9)) for job in NAMES)))
    kill_at = [EVENTS * (k + 1) // (KILLS + 1) for k in range(KILLS)]
    away: list[float] = []
    began = time.monotonic()
    for number in range(1, EVENTS // len(NAMES) + 1):
        for job in NAMES:
            report = Report(job, 1, number, 0, 10 * number, 1.0 * number, (Cell(number, 10 * number, 1 / number),))
            sent = (number - 1) * len(NAMES) + NAMES.index(job)
            killed = sent in kill_at
            if killed:
                before = kept(tmp_path).status()
                os.kill(pid := pid_of(scheduler), signal.SIGKILL)
                died = time.monotonic()
            while True:
                try:
                    client.report(report)
                    break
                except ConnectionError:
                    assert time.monotonic() - died < 30.0
            if killed:
                away.append(time.monotonic() - died)
                assert pid_of(scheduler) != pid
                after = ray.get(scheduler.status.remote())[1]
                assert [(j.name, j.deadline, j.incarnation, j.submitted_at) for j in after] == [
                    (j.name, j.deadline, j.incarnation, j.submitted_at) for j in before
                ]
                assert [j.batches - 10 * (j.name == job) for j in after] == [j.batches for j in before]
    took = time.monotonic() - began
    each = EVENTS // len(NAMES)
    _, status = ray.get(scheduler.status.remote())
    assert [(job.name, job.batches, job.cells, job.busy) for job in status] == [
        (name, 10 * each, each, float(each)) for name in NAMES
    ]
    mapped = libraries(pid_of(scheduler))
    assert "_raylet.so" in mapped
    assert not {library for library in mapped if library.startswith("libtorch")}
    ray.get(scheduler.close.remote())
    ray.kill(scheduler)
    assert kept(tmp_path).status()[0].cells == each
    assert first_broken(history_of(tmp_path / "journal.db"), Limits(ready=1e9)) is None
    assert max(away) <= BACK_WITHIN
    record_property(
        "figure",
        f"{EVENTS} reports over {KILLS} kills in {took:.0f} s, none lost or doubled; back after {min(away):.1f} to"
        f" {max(away):.1f} s",
    )
