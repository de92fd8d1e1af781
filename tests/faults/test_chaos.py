"""Small jobs on a pool whose parts are killed and stopped: all end, and every prefix of the journal is valid."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import JobStatus, Verdict
from tests.builders import launched
from tests.conftest import ROOT
from tests.faults.killer import NO_PROCESS, Fault, Killer, kill, stop
from tests.faults.prefixes import Limits, first_broken, history_of
from tests.faults.trace import Trace, told

PAUSE = 0.005


def job(batches: int) -> dict[str, Any]:
    model, data = "tests.faults.jobs.SavedOften", "tests.tiny.NoisyPoints"
    return launched({"batches": batches}, "5m", model=model, data=data, init={"pause": PAUSE})


def pids(ask: Callable[[], Any]) -> Callable[[], list[int]]:
    """Return a function that asks an actor for process ids; none if it does not answer."""
    import ray

    def found() -> list[int]:
        try:
            said = ray.get(ask(), timeout=2.0)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError, ValueError):
            return []
        return said if isinstance(said, list) else [said]

    return found


class Frames:
    """A watcher that keeps the newest statuses."""

    def __init__(self) -> None:
        self.jobs: list[JobStatus] = []

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        self.jobs = jobs

    def close(self) -> None:
        """Do nothing."""


def chaos(
    folder: Path, seed: int, batches: int, pause: tuple[float, float], most: int
) -> tuple[list[JobStatus], Trace, float]:
    """Run four jobs on two devices under faults; return their last statuses, the trace, and the seconds it took."""
    from lightning_core.cluster.cluster import Cluster

    names = ("a", "b", "c", "d")
    bundle = Bundle.from_dict(
        {"policy": "uniform", "period": "0.5s", "pool": {"devices": 2}, "jobs": {name: job(batches) for name in names}},
        ROOT,
    )
    with Cluster(workers=4, devices=2) as cluster:
        faults: dict[str, Fault] = {
            "worker": kill(pids(lambda: cluster.pool_manager.pids.remote())),
            "scheduler": kill(pids(lambda: cluster.scheduler.pid.remote())),  # type: ignore[union-attr]
            "pool_manager": kill(pids(lambda: cluster.pool_manager.pid.remote())),
            "worker stopped": stop(pids(lambda: cluster.pool_manager.pids.remote()), 12.0),
        }
        frames, began = Frames(), time.monotonic()
        with Killer(seed, faults, pause, most) as killer:
            summary = bundle.run(cluster=cluster, run_dir=folder / "run", watcher=frames)
        took = time.monotonic() - began
    return list(summary.jobs), Trace(seed, killer.actions, history_of(folder / "run" / "journal.db")), took


def judged(jobs: list[JobStatus], trace: Trace, took: float, kept: Path) -> str:
    """Return the figure of the promise.

    Raises:
        AssertionError: If a job has not ended, or a prefix of the journal is broken; the trace is kept.
    """
    broken = first_broken(trace.history, Limits())
    ended = [job.verdict for job in jobs] == [Verdict.MET] * len(jobs)
    if broken is not None or not ended:
        trace.write(kept)
    assert broken is None, f"{told(trace, broken)}\nkept in {kept}"
    assert ended, f"{[(job.name, job.verdict, str(job.reason)) for job in jobs]}\n{told(trace, None)}\nkept in {kept}"
    faults = [action.what for action in trace.actions if action.whom != NO_PROCESS]
    counts = ", ".join(f"{faults.count(what)} x {what}" for what in sorted(set(faults)))
    restarts, lost = sum(job.restarts for job in jobs), sum(job.lost_batches for job in jobs)
    return f"seed {trace.seed}, {took:.0f} s: {counts}; {restarts} restarts, {lost} batches done again, all targets met"


@pytest.mark.nightly
@pytest.mark.promise("R4", "R9", "F5")
def test_all_jobs_end_under_faults(
    local_ray: None, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    jobs, trace, took = chaos(tmp_path, seed=5, batches=600, pause=(2.0, 3.0), most=3)
    record_property("figure", judged(jobs, trace, took, tmp_path / "trace.json"))
    assert any(action.whom != NO_PROCESS for action in trace.actions)


@pytest.mark.nightly
@pytest.mark.promise("R4", "R9", "F2", "F5", "F23")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_jobs_end_after_a_minute_of_faults(
    local_ray: None, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    jobs, trace, took = chaos(tmp_path, seed=seed, batches=2500, pause=(2.0, 8.0), most=12)
    record_property("figure", judged(jobs, trace, took, tmp_path / "trace.json"))
    assert len(trace.actions) >= 6
