"""The conformance suite on every client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core.agent.reporting.joining import FallbackClient
from lightning_core.core.answers import Directive, JobForecast, JoinReply
from lightning_core.core.commands import Cancel
from lightning_core.core.events import Report, Submit, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.protocols import Client
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.clients.local_client import LocalClient
from lightning_core.server.clients.socket_client import SocketClient
from lightning_core.testing import client_conformance
from lightning_core.testing.client_conformance import check_client, check_unreachable
from tests.socket_servers import Pool

JOB = Job("job", 600.0, BatchTarget(10**6), can=frozenset({Capability.TIME_SLICE, Capability.HOLD}))


def cancelled_in(client: LocalClient) -> Callable[[], object]:
    return lambda: client.event(Cancel(JOB.name))


@pytest.mark.parametrize("make", [LocalClient, lambda: FallbackClient(Settings(), str, 10.0)])
def test_clients_with_a_scheduler_of_their_own_conform(make: Callable[[], LocalClient]) -> None:
    client = make()
    check_client(client, JOB, cancelled_in(client))


def test_the_client_of_a_socket_conforms(pool: Pool) -> None:
    check_client(SocketClient(pool.path), JOB, lambda: pool.do(pool.actor.event(Cancel(JOB.name))))


def test_the_client_of_a_socket_says_when_there_is_no_server(tmp_path: Path) -> None:
    check_unreachable(SocketClient(tmp_path / "socket"), JOB)


@pytest.mark.cluster
def test_the_client_of_a_ray_actor_conforms(local_ray: None, tmp_path: Path) -> None:
    import ray

    from lightning_core.server.clients.ray_client import RayClient
    from lightning_core.server.start_scheduler import start_scheduler

    name = f"conforms-{secrets.token_hex(4)}"
    scheduler = start_scheduler(name, Settings("uniform"), tmp_path)
    ray.get(scheduler.event.remote(Submit((JOB,))))
    check_client(RayClient(name), JOB, lambda: ray.get(scheduler.event.remote(Cancel(JOB.name))), joins=False)
    ray.get(scheduler.close.remote())
    ray.kill(scheduler)
    check_unreachable(RayClient(f"{name}-away"), JOB)


class Wrong:
    """A client with one mistake, around one without."""

    def __init__(self, mistake: str) -> None:
        self.inner, self.mistake = LocalClient(), mistake
        self.report_period = -1.0 if mistake == "runs backwards" else 0.0

    def join(self, job: Job, device: str) -> JoinReply:
        if self.mistake == "twice":
            self.inner.left(WorkerExited(job.name, 1))
        return self.inner.join(job, device)

    def report(self, report: Report) -> Directive | None:
        match self.mistake:
            case "forgets the version":
                return self.inner._host.newer(report.job, 0) if report.version else self.inner.report(report)
            case "drops":
                return None
        return self.inner.report(report)

    def wait(self, job: str, version: int, timeout: float) -> Directive | None:
        match self.mistake:
            case "hurries":
                return self.inner.wait(job, version, 0.0)
            case "sleeps":
                time.sleep(min(timeout, 0.5))
                return self.inner.wait(job, version, 0.0)
        return self.inner.wait(job, version, timeout)

    def job_forecast(self, job: str) -> JobForecast | None:
        found = self.inner.job_forecast(job)
        return JobForecast(None, "?", 0.0, None, None) if self.mistake == "makes up" else found

    def left(self, event: WorkerExited) -> None:
        if self.mistake != "stays":
            self.inner.left(event)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("makes up", "job_forecast must be None for an unknown job"),
        ("twice", "to join again must not begin a new incarnation, got 2 after 1"),
        ("runs backwards", "report_period must be at least 0 and finite, got -1.0"),
        ("drops", "a job that trains must get a Grant, got None"),
        ("forgets the version", "a report with the newest version must be answered with None"),
        ("hurries", "wait must wait for its timeout of 0.2 s"),
        ("sleeps", "wait must return newer answers at once"),
        ("stays", "a job that joins after its worker has exited must be incarnation 2, got 1"),
    ],
)
def test_the_suite_names_the_rule_that_a_client_breaks(
    mistake: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake == "sleeps":
        monkeypatch.setattr(client_conformance, "NEWS_SECONDS", 0.3)
    client = Wrong(mistake)
    with pytest.raises(AssertionError, match=rule):
        check_client(client, JOB, cancelled_in(client.inner))


def test_a_client_that_hides_a_broken_connection_is_found() -> None:
    client: Any = LocalClient()
    assert isinstance(client, Client)
    with pytest.raises(AssertionError, match="report must raise ConnectionError without a scheduler, got None"):
        check_unreachable(Wrong("drops"), JOB)
