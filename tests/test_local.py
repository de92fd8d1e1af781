"""The in-process driver and the host's clock."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from lightning_core.drivers.host import Host
from lightning_core.drivers.local import LocalClient
from lightning_core.journal import Journal
from lightning_core.protocols import Client
from lightning_core.scheduler import Settings
from lightning_core.types import BatchTarget, End, Grant, Job, Report, Submit, Verdict, WorkerLeft


def job(name: str, deadline: float = 60.0) -> Job:
    return Job(name, deadline, BatchTarget(10))


def test_the_host_wakes_the_scheduler_before_it_hands_over_an_event() -> None:
    clock = [50.0]
    host = Host(Settings(policy="edf"), clock=lambda: clock[0])
    host.handle(Submit((job("a", 5.0), job("b"))))
    assert host.seconds_to_wakeup() == 1.0
    clock[0] += 7.0
    directives = host.handle(Report("b", 1, 1, 0, 0, 0.0))
    assert [(d.job, type(d)) for d in directives][:2] == [("a", End), ("b", Grant)]
    assert host.now() == 7.0
    host.close()


def test_a_client_alone(tmp_path: Path) -> None:
    client = LocalClient(Settings(policy="fifo"), tmp_path / "j.db")
    assert isinstance(client, Client)
    client.submit(job("a"), job("b"))
    grant = client.report(Report("a", 1, 1, 0, 5, 1.0))
    assert isinstance(grant, Grant)
    assert client.report(Report("a", 1, 2, grant.version, 6, 1.1)) is None
    end = client.report(Report("a", 1, 3, grant.version, 10, 1.5))
    assert isinstance(end, End)
    client.left(WorkerLeft("b", 1, crashed=True, detail="boom"))
    assert [s.verdict for s in client.status()] == [Verdict.MET, Verdict.CRASHED]
    client.close()
    with Journal.open(tmp_path / "j.db") as journal:
        assert len(list(journal.entries())) == 5


def test_waiting_ends_with_news_and_not_before() -> None:
    client = LocalClient(Settings(policy="fifo"))
    client.submit(job("a"), job("b"))
    start = time.monotonic()
    assert client.wait("b", 0, 0.2) is None
    assert time.monotonic() - start >= 0.2
    threading.Timer(0.1, client.left, [WorkerLeft("a", 1)]).start()
    news = client.wait("b", 0, 10.0)
    assert isinstance(news, Grant)
    assert news.duty == 1.0
    assert time.monotonic() - start < 5


def test_waiting_keeps_the_time_for_the_scheduler() -> None:
    client = LocalClient(Settings(policy="fifo"))
    client.submit(job("a", 0.3))
    grant = client.report(Report("a", 1, 1, 0, 0, 0.0))
    assert grant is not None
    end = client.wait("a", grant.version, 10.0)
    assert isinstance(end, End)
    assert end.verdict is Verdict.MISSED
