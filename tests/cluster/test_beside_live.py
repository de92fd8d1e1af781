"""Real trainings at once on one device of two cores, and in turns where that is not wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightning_core.cluster.bundle import Bundle
from lightning_core.core.answers import Grant, JobStatus, Verdict
from lightning_core.core.codec import decode_answers, decode_event
from lightning_core.core.commands import SetTerms
from lightning_core.core.events import Report
from lightning_core.core.jobs import Beside
from lightning_core.core.targets import BatchTarget
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import launched
from tests.cluster.test_cluster import Seen
from tests.conftest import ROOT

if TYPE_CHECKING:
    from lightning_core.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

NAMES = ("a", "b")
# Batches that both do beside each other.
AT_ONCE = 50


@pytest.fixture(scope="module")
def two_cores(local_ray: None) -> Iterator[Cluster]:
    """A device of two cores, and two warm workers."""
    from lightning_core.cluster.cluster import Cluster

    with Cluster(workers=2, cores=2) as made:
        yield made


def run(cluster: Cluster, folder: Path, beside: Beside, batches: int, watcher: Any = None) -> Any:
    job = launched({"batches": batches}, model="tests.script.Busy", init={})
    content = {"pool": {"devices": 1, "cores": 2}, "policy": "uniform", "jobs": dict.fromkeys(NAMES, job)}
    read = Bundle.from_dict(content, ROOT)
    made = Bundle(read.jobs, replace(read.settings, beside=beside), folder=ROOT)
    return made.run(run_dir=folder, cluster=cluster, watcher=watcher)


def grants(folder: Path) -> list[Grant]:
    with Journal.open(folder / "journal.db") as journal:
        assert replay(journal).digest == journal.digest
        return [one for entry in journal.entries() for one in decode_answers(entry.answers) if isinstance(one, Grant)]


def seconds_of_progress(folder: Path) -> list[set[str]]:
    """Return which jobs made progress in each second of the run in which both were beside each other."""
    found: dict[int, set[str]] = {}
    held, done = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    with Journal.open(folder / "journal.db") as journal:
        for entry in journal.entries():
            report = decode_event(entry.event)
            if isinstance(report, Report):
                if held["a"] == held["b"] > 0 and report.batches > done[report.job]:
                    found.setdefault(int(entry.now), set()).add(report.job)
                done[report.job] = report.batches
            held |= {one.job: one.beside for one in decode_answers(entry.answers) if isinstance(one, Grant)}
    return list(found.values())


def test_two_trainings_of_one_thread_train_at_once_on_a_device_of_two_cores(two_cores: Cluster, tmp_path: Path) -> None:
    began: dict[str, int] = {}

    def train_at_once(now: float, jobs: list[JobStatus]) -> bool:
        if not all(job.beside for job in jobs):
            began.clear()
            return False
        for job in jobs:
            began.setdefault(job.name, job.batches)
        if any(job.batches < began[job.name] + AT_ONCE for job in jobs):
            return False
        for job in jobs:
            two_cores.tell(SetTerms(job.name, target=BatchTarget(job.batches + AT_ONCE)))
        return True

    summary = run(two_cores, tmp_path, Beside.AUTO, 10**6, Seen(train_at_once))
    assert [status.verdict for status in summary.jobs] == [Verdict.MET] * 2
    by_job = {name: {one.beside for one in grants(tmp_path) if one.job == name} - {0} for name in NAMES}
    assert by_job["a"] & by_job["b"]
    assert set(NAMES) in seconds_of_progress(tmp_path)


def test_trainings_take_turns_where_that_is_asked_for(two_cores: Cluster, tmp_path: Path) -> None:
    summary = run(two_cores, tmp_path, Beside.NEVER, 400)
    assert [status.verdict for status in summary.jobs] == [Verdict.MET] * 2
    assert {one.beside for one in grants(tmp_path)} == {0}
    assert any(one.share == pytest.approx(0.5) for one in grants(tmp_path))
