"""The in-process client and the host's clock."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lightning_core.core.answers import End, Grant, JobForecast, Verdict, VerdictChanged
from lightning_core.core.events import Cell, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.protocols import JoinRefusedError
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.local_client import LocalClient
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from tests.builders import job


def test_the_host_wakes_the_scheduler_before_it_hands_over_an_event() -> None:
    clock = [50.0]
    host = Host(Settings(policy="edf"), clock=lambda: clock[0])
    host.handle(Submit((job("a", 5.0, 10, on_miss=OnMiss.STOP), job("b", 60.0, 10, on_miss=OnMiss.STOP))))
    assert host.seconds_to_wakeup() == 1.0
    clock[0] += 7.0
    answers = host.handle(Report("b", 1, 1, 0, 0, 0.0))
    assert [(d.job, type(d)) for d in answers if not isinstance(d, VerdictChanged)][:2] == [("a", End), ("b", Grant)]
    assert host.now() == 7.0
    host.close()


def test_an_event_that_cannot_be_journalled_has_no_effect(tmp_path: Path) -> None:
    host = Host(Settings(policy="fifo"), tmp_path / "j.db")
    host.handle(Submit((job("a", 60.0, 10, on_miss=OnMiss.STOP),)))
    with pytest.raises(ValueError, match="cells: expected a finite number, got nan"):
        host.handle(Report("a", 1, 1, 0, 7, 1.0, (Cell(1, 5, float("nan")),)))
    assert host.scheduler.status()[0].batches == 0
    host.handle(Report("a", 1, 1, 0, 3, 1.0))
    host.close()
    with Journal.open(tmp_path / "j.db") as journal:
        assert replay(journal).scheduler.status() == host.scheduler.status()


def test_the_local_client(tmp_path: Path) -> None:
    client = LocalClient(Settings(policy="fifo"), tmp_path / "j.db")
    assert client.join(job("a", 60.0, 10, on_miss=OnMiss.STOP), "cpu").incarnation == 1
    client.join(job("b", 60.0, 10, on_miss=OnMiss.STOP), "cpu")
    grant = client.report(Report("a", 1, 1, 0, 5, 1.0))
    assert isinstance(grant, Grant)
    assert client.report(Report("a", 1, 2, grant.version, 6, 1.1)) is None
    end = client.report(Report("a", 1, 3, grant.version, 10, 1.5))
    assert isinstance(end, End)
    client.left(WorkerExited("b", 1, ExitCause.RAISED, detail="boom"))
    assert [s.verdict for s in client.status()] == [Verdict.MET, Verdict.CRASHED]
    client.close()
    with Journal.open(tmp_path / "j.db") as journal:
        assert [entry.event.split('"')[3] for entry in journal.entries() if "tick" not in entry.event] == [
            "submit", "submit", "report", "report", "report", "worker_exited"
        ]  # fmt: skip


def test_a_job_that_does_not_fit_is_refused() -> None:
    client = LocalClient()
    with pytest.raises(JoinRefusedError, match="a: needs 2 devices, but the pool has 1"):
        client.join(Job("a", 60.0, BatchTarget(10), min_devices=2, max_devices=2), "cpu")


def test_the_forecast_agrees_with_the_status() -> None:
    client = LocalClient()
    assert client.job_forecast("a") is None
    client.join(job("a", 60.0, 10, on_miss=OnMiss.STOP), "cpu")
    assert client.job_forecast("a") == JobForecast(None, "too early to tell", 1.0, None, None)
    client._host.handle(Report("a", 1, 1, 1, 5, 10.0))
    client._host.scheduler.handle(Tick(), now := client._host.now() + 1.0)
    job_forecast = client.job_forecast("a")
    assert job_forecast is not None
    assert job_forecast.verdict is Verdict.FEASIBLE
    assert job_forecast.left == pytest.approx(10.0)  # five batches of two seconds
    assert job_forecast.spare == pytest.approx(60.0 - now - 10.0, abs=0.5)


def test_wait_returns_with_the_next_directive() -> None:
    client = LocalClient(Settings(policy="fifo"))
    client.join(job("a", 60.0, 10, on_miss=OnMiss.STOP), "cpu")
    client.join(job("b", 60.0, 10, on_miss=OnMiss.STOP), "cpu")
    held = client.wait("b", 0, 5.0)
    assert isinstance(held, Grant)
    assert held.share == 0.0
    start = time.monotonic()
    threading.Timer(0.1, client.left, [WorkerExited("a", 1)]).start()
    news = client.wait("b", held.version, 120.0)
    assert isinstance(news, Grant)
    assert news.share == 1.0
    assert time.monotonic() - start < 60


def test_wait_wakes_the_scheduler() -> None:
    client = LocalClient(Settings(policy="fifo"))
    client.join(job("a", 0.3, 10, on_miss=OnMiss.STOP), "cpu")
    grant = client.report(Report("a", 1, 1, 0, 0, 0.0))
    assert grant is not None
    end = client.wait("a", grant.version, 10.0)
    assert isinstance(end, End)
    assert end.verdict is Verdict.MISSED
