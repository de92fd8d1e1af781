"""Live workers that die, hang or run harmful code, and a scheduler that is stopped."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.cluster.bundle import Bundle
from lightning_core.cluster.worker_slots import MAX_SILENCE
from lightning_core.core.answers import JobStatus, Verdict
from lightning_core.core.commands import Cancel, Pause, Resume
from tests.builders import launched
from tests.conftest import ROOT
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

Jobs = dict[str, JobStatus]
# Longer than a worker may be silent, seconds.
STANDSTILL = 10.0
# What a process has in memory that has imported torch or Lightning.
LOADED = re.compile("libtorch|site-packages/lightning/")
Told = Generator[None, Jobs, None]


class Story:
    """A watcher that runs a story, a generator, frame by frame, and cancels the jobs at its end."""

    def __init__(self, cluster: Cluster, tell: Callable[[Story], Told]) -> None:
        self.cluster = cluster
        self.jobs: Jobs = {}
        self._told = tell(self)
        self._over = False
        next(self._told)

    def update(self, now: float, jobs: list[JobStatus]) -> None:
        self.jobs = {job.name: job for job in jobs}
        if not self._over:
            try:
                self._told.send(self.jobs)
            except StopIteration:
                self._over = True
                for name in self.jobs:
                    self.do(Cancel(name))

    def close(self) -> None:
        """Do nothing."""

    def until(self, what: Callable[[Jobs], Any], within: float = 2 * PATIENCE) -> Told:
        """Wait for the next frame in which a condition holds."""
        before = time.monotonic()
        while not what((yield)):
            seen = {name: (job.state, job.incarnation, job.batches, str(job.fault)) for name, job in self.jobs.items()}
            assert time.monotonic() - before < within, f"not within {within:.0f} s: {seen}"

    def do(self, event: Any) -> None:
        import ray

        ray.get(self.cluster.scheduler.event.remote(event), timeout=PATIENCE)  # type: ignore[union-attr]

    def pid(self, job: str, device: int | None = None) -> int:
        """Return the process id of the worker that has a job."""
        import ray

        from lightning_core.server.ray_settings import NAMESPACE

        for at in range(self.cluster.devices) if device is None else [device]:
            worker = ray.get_actor(f"{self.cluster.name}-worker-{at}-0", namespace=NAMESPACE)
            held: Any = ray.get(worker.job.remote(), timeout=PATIENCE)
            if held is not None and held.job == job:
                return int(ray.get(worker.pid.remote(), timeout=PATIENCE))
        raise AssertionError(f"no worker trains {job}")


def job(batches: int = 10**6, model: str = "tests.tiny.Line", **terms: Any) -> dict[str, Any]:
    init = terms.pop("init", {"pause": 0.005})
    return launched({"batches": batches}, "300s", model=model, init=init, **terms)


def told(
    cluster: Cluster, folder: Path, tell: Callable[[Story], Told], restarts: int | None = None, **jobs: Any
) -> Any:
    content = {"pool": {"devices": cluster.devices}, "policy": "edf", "period": "0.5s", "jobs": jobs}
    made = Bundle.from_dict(content, ROOT)
    made = replace(made, jobs=tuple(replace(s, job=replace(s.job, restarts=restarts)) for s in made.jobs))
    return made.run(run_dir=folder, cluster=cluster, watcher=Story(cluster, tell))


def begun(incarnation: int, *names: str) -> Callable[[Jobs], bool]:
    """Return whether these jobs train in this incarnation."""
    return lambda jobs: all(
        jobs[name].incarnation == incarnation and jobs[name].busy > 0 and jobs[name].state == "running"
        for name in names
    )


@pytest.mark.promise("R5", "R7", "R10", "R11", "F5")
def test_jobs_resume_after_killed_hung_and_incomplete_process_groups(
    three: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """One job is killed after it was released, and hangs; of the other, rank 1 of 2 is killed."""
    figures: dict[str, float] = {}

    def tell(story: Story) -> Told:
        yield from story.until(lambda jobs: jobs and min(job.batches for job in jobs.values()) > 20)
        # Released: it saves, leaves, and comes back with no batch lost.
        story.do(Pause("one", release=True))
        yield from story.until(lambda jobs: jobs["one"].state == "released" and story_free(story, "one"))
        kept = story.jobs["one"].batches
        story.do(Resume("one"))
        yield from story.until(lambda jobs: begun(2, "one")(jobs) and jobs["one"].batches > kept + 20)
        assert story.jobs["one"].lost_batches == 0

        # Killed, and of the other job a rank of two: known at once, and from where it was saved; the whole gang.
        spare = {"one": story.pid("one"), "two": story.pid("two", story.jobs["two"].devices[1])}
        for pid in spare.values():
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        for name, number in (("one", 3), ("two", 2)):
            yield from story.until(lambda jobs, name=name, number=number: jobs[name].incarnation == number)  # type: ignore[misc]
            figures[name] = time.monotonic() - began
            assert "the worker's process died" in str(story.jobs[name].fault)
        assert f"from batch {kept}" in str(story.jobs["one"].fault)
        yield from story.until(lambda jobs: begun(3, "one")(jobs) and begun(2, "two")(jobs))
        assert story.jobs["one"].batches >= kept

        # Hung: given up long before Ray would; its device has another worker, though the old one is still there.
        hung = story.pid("one")
        os.kill(hung, signal.SIGSTOP)
        began = time.monotonic()
        try:
            yield from story.until(lambda jobs: jobs["one"].incarnation == 4)
            figures["hung"] = time.monotonic() - began
            assert "has not answered" in str(story.jobs["one"].fault)
            yield from story.until(lambda jobs: jobs["one"].batches > kept + 20 and jobs["one"].state == "running")
        finally:
            os.kill(hung, signal.SIGCONT) if alive(hung) else None
        yield from story.until(lambda _: not alive(hung))
        assert story.jobs["one"].incarnation == 4

    told(three, tmp_path, tell, one=job(), two=job(devices=2))
    # Told by Ray, not by their silence; the figures say how soon.
    assert max(figures["one"], figures["two"]) < MAX_SILENCE
    assert figures["hung"] < 2 * MAX_SILENCE
    words = "killed: told after {one:.1f} s; a rank of two: {two:.1f} s; hung: {hung:.1f} s"
    record_property("figure", words.format(**figures))


@pytest.mark.promise("R10", "F27")
def test_a_job_whose_step_hangs_is_told_about_and_restarted_and_meets_its_target(
    three: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    figures: dict[str, float] = {}

    def tell(story: Story) -> Told:
        yield from story.until(lambda jobs: jobs and (tmp_path / "hung").exists())
        began = time.monotonic()
        yield from story.until(lambda jobs: jobs["hangs"].alert is not None and jobs["hangs"].alert.code == "hung")
        figures["told"] = time.monotonic() - began
        assert story.jobs["hangs"].incarnation == 1
        yield from story.until(lambda jobs: jobs["hangs"].incarnation == 2)
        figures["over"] = time.monotonic() - began
        yield from story.until(lambda jobs: jobs["hangs"].state == "ended")

    hangs = job(200, "tests.faults.jobs.HangsOnce", init={"mark": str(tmp_path / "hung")}, hang="2s")
    found = {status.name: status for status in told(three, tmp_path, tell, restarts=0, hangs=hangs, fine=job()).jobs}
    assert found["hangs"].verdict is Verdict.MET
    assert found["hangs"].restarts == 1
    assert str(found["hangs"].fault).startswith("no step for ")
    assert "time.sleep(1e6)" in found["hangs"].detail
    assert (found["fine"].incarnation, found["fine"].restarts) == (1, 0)
    words = "limit 2 s; told after {told:.1f} s, given up after {over:.1f} s"
    record_property("figure", words.format(**figures))


@pytest.mark.promise("R2", "R3", "F3", "F4")
@pytest.mark.nightly
@pytest.mark.parametrize("standstill", [STANDSTILL, 30.0])
def test_a_stall_gives_up_no_worker_and_a_restart_forgets_none(
    three: Cluster, tmp_path: Path, record_property: Callable[[str, object], None], standstill: float
) -> None:
    """Scheduler and pool manager are stopped together for longer than a worker may be silent; then the first is killed
    while one job is held and one is released."""

    def tell(story: Story) -> Told:
        yield from story.until(lambda jobs: jobs and min(job.batches for job in jobs.values()) > 20)
        scheduler, pool_manager = process_of(three.scheduler), process_of(three.pool_manager)
        assert not LOADED.search(Path(f"/proc/{scheduler}/maps").read_text())
        story.do(Pause("held"))
        story.do(Pause("away", release=True))
        yield from story.until(lambda jobs: jobs["held"].state == "held" and jobs["away"].state == "released")
        yield from story.until(lambda _: story_free(story, "away"))
        before = story.jobs["runs"]
        for pid in (scheduler, pool_manager):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(standstill)
        for pid in (scheduler, pool_manager):
            os.kill(pid, signal.SIGCONT)
        yield
        yield from story.until(lambda jobs: jobs["runs"].busy > before.busy + 0.5 * standstill, 5)
        record_property(
            "figure", f"{story.jobs['runs'].busy - before.busy:.1f} s of training in {standstill:.0f} s of it"
        )

        os.kill(scheduler, signal.SIGKILL)
        yield from story.until(lambda jobs: jobs["runs"].batches > before.batches + 1)
        time.sleep(2.0)
        yield
        states = {name: (job.state, job.incarnation, job.restarts) for name, job in story.jobs.items()}
        assert states == {"runs": ("running", 1, 0), "held": ("held", 1, 0), "away": ("released", 2, 0)}
        began = time.monotonic()
        for name in ("held", "away"):
            story.do(Resume(name))
        yield from story.until(lambda jobs: begun(1, "held")(jobs) and begun(2, "away")(jobs), 15)
        assert time.monotonic() - began < 15
        assert story.jobs["away"].lost_batches == 0

    told(three, tmp_path, tell, runs=job(), held=job(), away=job())


def story_free(story: Story, job: str) -> bool:
    import ray

    return job not in ray.get(story.cluster.pool_manager.busy.remote(), timeout=PATIENCE)


def process_of(actor: Any) -> int:
    import ray

    return int(ray.get(actor.pid.remote(), timeout=PATIENCE))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.promise("R10", "F31")
@pytest.mark.nightly
def test_the_worst_code_of_a_job_ends_that_job_only(three: Cluster, tmp_path: Path) -> None:
    worst = {
        "leaves": "SystemExit: 3",
        "dies": "the worker's process died",
        "falls": "the worker's process died",
        "unbuilt": "ValueError: not today",
        "thirsts": "OOM: MemoryError",
    }

    def tell(story: Story) -> Told:
        yield from story.until(lambda jobs: jobs and all(jobs[name].state == "ended" for name in worst))

    jobs = {name: job(model="tests.faults.worst.Worst", init={"how": name}) for name in worst}
    summary = told(three, tmp_path, tell, restarts=0, good=job(), **jobs)
    found = {status.name: status for status in summary.jobs}
    for name, words in worst.items():
        assert found[name].verdict is Verdict.CRASHED
        assert words in str(found[name].reason), name
    assert found["good"].verdict is Verdict.CANCELLED
    assert (found["good"].incarnation, found["good"].batches > 100) == (1, True)
