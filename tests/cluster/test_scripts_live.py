"""Jobs that are scripts beside jobs of Lightning, with real Ray: turns, retries, a move to another device, a kill."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.codec import decode_event
from lightning_core.core.commands import SetDeadline, SetTerms
from lightning_core.core.events import Report
from lightning_core.core.targets import BatchTarget
from lightning_core.node.processes import started
from lightning_core.server.ray_settings import NAMESPACE
from lightning_core.storage.journals.journal import Journal
from tests.cluster.test_cluster import DEADLINE, Seen, bundle, job, pid_of
from tests.conftest import ROOT
from tests.waiting import until

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster


def script(options: str, batches: int, **terms: Any) -> dict[str, Any]:
    terms = {"deadline": DEADLINE, "cell": 5, **terms}
    return {"script": f"tests/looping.py {options}", "target": {"batches": batches}, **terms}


def log_of(folder: Path, name: str) -> str:
    path = folder / "jobs" / name / "log.txt"
    return path.read_text() if path.exists() else ""


def test_scripts_and_lightning_take_turns_and_a_script_that_raises_is_tried_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    def finish(now: float, jobs: list[JobStatus]) -> bool:
        if (over := jobs[0].state is State.ENDED) and jobs[1].batches:
            cluster.tell(SetTerms("lightning", target=BatchTarget(jobs[1].batches + 5)))
        return over

    made = bundle(
        "uniform",
        script=script("--pause 0.01 --folder --raise-at 60", 120, retries=1, save_every="0.2s"),
        lightning=job(pause=0.01, target={"batches": 10**6}),
    )
    summary = made.run(run_dir=tmp_path, cluster=cluster, watcher=Seen(finish))
    assert [j.verdict for j in summary.jobs] == [Verdict.MET, Verdict.MET], [str(j.reason) for j in summary.jobs]
    assert summary.jobs[0].incarnation == 2
    log = log_of(tmp_path, "script")
    assert "ValueError: this script was made to fail" in log
    assert begins_in(tmp_path)[1][1] > 0
    assert log.count("after the training") == 1
    with Journal.open(tmp_path / "journal.db") as journal:
        told = [decode_event(entry.event) for entry in journal.entries()]
    order = [event.job for event in told if isinstance(event, Report)]
    assert sum(one != other for one, other in pairwise(order)) > 10
    assert (tmp_path / "jobs" / "script" / "last.ckpt" / "state.json").is_file()


def test_nothing_is_left_of_a_script_whose_worker_is_killed_and_it_resumes(cluster: Cluster, tmp_path: Path) -> None:
    import ray

    killed: dict[str, int] = {}

    def kill(now: float, jobs: list[JobStatus]) -> bool:
        """Kill the worker of the script, whichever it is, once the script has saved."""
        pids = re.findall(r"child (\d+)", log_of(tmp_path, "script"))
        if jobs[0].batches < 30 or not pids:
            return False
        killed.update(child=int(pids[0]), batches=jobs[0].batches)
        for number in range(3):
            worker = ray.get_actor(f"{cluster.name}-worker-0-{number}", namespace=NAMESPACE)
            if ray.get(worker.job.remote()) is not None:
                os.kill(pid_of(worker), signal.SIGKILL)
                return True
        return False

    def finish(now: float, jobs: list[JobStatus]) -> bool:
        if jobs[0].incarnation == 1 or jobs[0].state is not State.RUNNING:
            return False
        cluster.tell(SetTerms("script", target=BatchTarget(jobs[0].batches + 30)))
        return True

    made = bundle("edf", script=script("--pause 0.01 --child", 10**6, save_every="0.2s"))
    [status] = made.run(run_dir=tmp_path, cluster=cluster, watcher=Seen(kill, finish)).jobs
    assert (status.verdict, status.incarnation) == (Verdict.MET, 2)
    until(lambda: started(killed["child"]) is None)
    (_, first), (_, second) = begins_in(tmp_path)
    assert first == 0 < second <= killed["batches"] + 100


def test_a_script_is_released_for_a_more_urgent_job_and_resumes_on_another_device(
    three: Cluster, tmp_path: Path
) -> None:
    def hurry(now: float, jobs: list[JobStatus]) -> bool:
        _, patient, _ = jobs
        if patient.batches > 10:
            three.tell(SetDeadline("urgent", 600.0))
        return patient.batches > 10

    def make_room(now: float, jobs: list[JobStatus]) -> bool:
        first, _, urgent = jobs
        if urgent.batches > 0:
            three.tell(SetTerms("first", target=BatchTarget(first.batches + 5)))
        return urgent.batches > 0

    def finish(now: float, jobs: list[JobStatus]) -> bool:
        _, patient, urgent = jobs
        if patient.incarnation == 1 or patient.state is not State.RUNNING:
            return False
        for one in (patient, urgent):
            three.tell(SetTerms(one.name, target=BatchTarget(one.batches + 20)))
        return True

    long = {"batches": 10**6}
    made = Bundle.from_dict({"policy": "edf", "period": "0.5s", "pool": {"devices": 2}, "jobs": {
        "first": job(target=long, pause=0.01),
        "patient": script("--track --pause 0.01", 10**6, deadline="10h"),
        "urgent": job(target=long, pause=0.01, deadline="11h"),
    }}, ROOT)  # fmt: skip
    made = replace(made, settings=replace(made.settings, stay=0.5))
    summary = made.run(run_dir=tmp_path, cluster=three, watcher=Seen(hurry, make_room, finish))
    assert [status.verdict for status in summary.jobs] == [Verdict.MET] * 3
    (before, first), (after, second) = begins_in(tmp_path, "patient")
    assert before != after
    [saved] = re.findall(r"released after (\d+)", log_of(tmp_path, "patient"))
    assert first == 0 < second == int(saved)


def begins_in(folder: Path, name: str = "script") -> list[tuple[int, int]]:
    """Return for each incarnation of a script its device, and the batches at which it began."""
    found = re.findall(r"incarnation \d begins at (\d+) on \((\d),\)", log_of(folder, name))
    return [(int(device), int(batches)) for batches, device in found]
