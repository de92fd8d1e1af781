"""``Pool``, the Python client, over the real socket of a pool."""

from __future__ import annotations

import dataclasses
import sys
import threading
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.python_form import Training
from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.pool import JobEndedError, NoPoolError, NotOnThisMachineError, Pool, UnknownJobError, following
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.view.log_lines import LogLines
from tests import socket_servers
from tests.cli.test_cli import SCRIPT, _home, pool  # noqa: F401
from tests.tiny import Line, Points

ONE = "jobs: {new: {model: tests.tiny.Line, data: tests.tiny.Points, deadline: 9m, target: {batches: 9}}}\n"


@pytest.fixture
def client(pool: socket_servers.Pool) -> Pool:  # noqa: F811
    return Pool.connect()


def test_no_pool_is_an_error_that_says_what_to_do() -> None:
    assert Pool.find() is None
    with pytest.raises(NoPoolError, match=r"no pool is up; `lightning-core up` brings one up"):
        Pool.connect()
    with pytest.raises(ConnectionError, match="/nowhere: there is no pool"):
        Pool.connect("/nowhere")


def test_a_pool_returns_its_settings_and_jobs(client: Pool, tmp_path: Path) -> None:
    with client as connected:
        assert connected.folder == tmp_path / "home" / "pool"
        assert (connected.settings.policy, connected.kind) == ("uniform", "cpu")
        assert connected.describe() == f"the pool at {connected.folder} (1 cpu device, uniform)"
        [job] = connected.jobs()
        assert (job.name, job.batches, job.state) == ("train", 50, State.RUNNING)
        assert connected.status("train").deadline == job.deadline
        forecast = connected.forecast("train")
        assert forecast is not None
        assert (forecast.share, forecast.left) == (1.0, None)  # one report: nothing can be said yet
        assert [row.what for row in connected.reasons("train")][:1] == ["submitted"]
    with pytest.raises(UnknownJobError, match=r"no job 'trian'; did you mean 'train'"):
        client.status("trian")
    for ask in (client.forecast, client.reasons, client.pause, lambda job: next(client.logs(job))):
        with pytest.raises(UnknownJobError):
            ask("other")


def test_deadline_pause_and_cancel(client: Pool) -> None:
    client.set_deadline("train", 300)
    assert client.status("train").deadline == pytest.approx(client.look()[0] + 300, abs=2.0)
    client.set_deadline("train", "45m")
    assert client.status("train").deadline == pytest.approx(client.look()[0] + 2700, abs=2.0)
    client.pause("train")
    assert client.status("train").paused
    client.resume("train")
    assert not client.status("train").paused
    for wrong in (0, -5, float("nan"), "soon", "0s"):
        with pytest.raises(ValueError, match=r"deadline|soon|0s"):
            client.set_deadline("train", wrong)
    client.cancel("train")
    assert client.status("train").verdict is Verdict.CANCELLED
    with pytest.raises(JobEndedError, match="train has ended"):
        client.set_deadline("train", 300)


def test_jobs_are_submitted_from_a_file(client: Pool, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(ONE)
    assert [job.name for job in client.submit(tmp_path / "b.yaml")] == ["new"]
    assert client.status("new").state is State.QUEUED
    with pytest.raises(ValueError, match="'new' is taken"):
        client.submit(tmp_path / "b.yaml")
    (tmp_path / "b.yaml").write_text(ONE.replace("tests.tiny.Line", "tests.tiny.Lime"))
    with pytest.raises(BundleError, match=r"no 'Lime'; did you mean 'Line'"):
        client.submit(tmp_path / "b.yaml")
    assert [job.name for job in client.jobs()] == ["train", "new"]


def test_jobs_are_submitted_from_python(client: Pool) -> None:
    [first] = client.submit(Training("first", "9m", "9 batches", model=partial(Line, lr=0.1), data=Points))
    others = client.submit(Training(name, "9m", "9 batches", model=Line) for name in ("second", "third"))
    assert [job.name for job in (first, *others)] == ["first", "second", "third"]
    assert first.status().target == BatchTarget(9)
    with pytest.raises(BundleError, match=r"jobs.more.devices: must be at most the pool's 1"):
        client.submit(Training("more", "9m", "9 batches", model=Line, devices=2))


def test_a_handle_waits_for_its_job_and_cancels_it(client: Pool) -> None:
    with pytest.raises(UnknownJobError, match="did you mean 'train'"):
        client.job("trian")
    job = client.job("train")
    assert (repr(job), job.status().state) == ("JobHandle('train')", State.RUNNING)
    for ask in (job.wait, job.result):
        with pytest.raises(TimeoutError, match=r"train is running and has not ended after 0.01 s"):
            ask(0.01)
    best = client.folder / "jobs" / "train" / "best.ckpt"
    best.parent.mkdir(parents=True)
    best.touch()
    canceller = threading.Timer(0.2, job.cancel)
    canceller.start()
    assert job.wait(60.0, poll=0.02).state is State.ENDED
    canceller.join()
    result = job.result()
    assert (result.verdict, result.batches, result.best_model) == (Verdict.CANCELLED, 50, str(best))
    with pytest.raises(JobEndedError):
        job.cancel()
    client.submit(Training("train", "9m", "9 batches", model=Line))
    assert client.status("train").state is not State.ENDED
    assert job.result() == result  # a handle keeps its job


def test_the_jobs_are_rows_of_a_data_frame(client: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = client.to_frame()
    assert frame[["name", "state", "batches", "target", "finish"]].to_dict("records") == [
        {"name": "train", "state": "running", "batches": 50, "target": "1000 batches", "finish": None}
    ]
    assert len(frame.columns) == len(dataclasses.fields(JobStatus)) + 2
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_frame\(\) needs pandas, which is not installed; run pip install pandas"):
        client.to_frame()


def test_logs_are_returned(client: Pool) -> None:
    with pytest.raises(NotOnThisMachineError, match="a script prints in its own shell"):
        next(client.logs("train"))
    log = client.folder / "jobs" / "train" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\nhalf")
    assert list(client.logs("train")) == ["one", "two", "three", "half"]
    assert list(client.logs("train", last=2)) == ["three", "half"]
    assert list(client.logs("train", last=0)) == []
    followed = client.logs("train", last=1, follow=True)
    assert next(followed) == "three"
    with log.open("a") as file:
        file.write(" a line\nfour")
    assert next(followed) == "half a line"
    client.cancel("train")
    assert list(followed) == ["four"]


def test_the_last_lines_of_a_long_log_are_read_from_its_end(
    client: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Counted(LogLines):
        def feed(self, data: bytes) -> list[str]:
            read.append(len(data))
            return super().feed(data)

    monkeypatch.setattr(following, "LogLines", Counted)
    monkeypatch.setattr(following, "FIRST_END", 100)
    log = client.folder / "jobs" / "train" / "log.txt"
    log.parent.mkdir(parents=True)
    lines = [f"line {number}" for number in range(10_000)]
    log.write_text("\n".join(lines))
    for last in (0, 1, 5, 500, 10**6):
        assert list(client.logs("train", last=last)) == lines[len(lines) - min(last, len(lines)) :]
    assert list(client.logs("train")) == lines
    read.clear()
    assert list(client.logs("train", last=5)) == lines[-5:]
    assert sum(read) == 100
    monkeypatch.setattr(following, "MAX_END", 200)
    assert 10 < len(list(client.logs("train", last=500))) < 50  # as far as it is read


def test_a_curve_is_returned(client: Pool, pool: socket_servers.Pool) -> None:  # noqa: F811
    found = client.curve("train", 2)
    assert (found["metric"], found["goal"], found["run"]) == ("batches", 1000.0, 1)
    assert found["points"][-1]["value"] == 50
    with pytest.raises(ValueError, match=r"points must be 2 to 10,000, got 1"):
        client.curve("train", 1)
    with pytest.raises(UnknownJobError, match="did you mean 'train'"):
        client.curve("trian")


def test_changes_are_yielded_once(client: Pool, pool: socket_servers.Pool) -> None:  # noqa: F811
    changes = client.changes(poll=0.02)
    first = next(changes)
    assert (first.before, first.now.name) == (None, "train")
    other = SocketClient(pool.path)
    joined = threading.Timer(0.2, lambda: other.join(Job("late", 60.0, BatchTarget(10), can=SCRIPT), "cpu"))
    joined.start()
    names = [(change.now.name, change.before is None) for change in islice(changes, 2)]
    joined.join()
    assert ("late", True) in names
    Pool.connect().cancel("train")
    ended = next(change for change in changes if change.now.name == "train" and change.now.state is State.ENDED)
    assert (ended.before is not None and ended.before.verdict is None) or ended.before is not None
    other.close()
