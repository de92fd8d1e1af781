"""A training that reports far more often than its scheduler answers: nothing piles up, and the newest counts."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from lightning_core.agent.reporting.joining import SchedulerConnection
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.core.answers import Directive
from lightning_core.core.events import ExitCause, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.server.clients.local_client import LocalClient

REPORTS, MAX_BYTES = 10_000, 2**20


class Slow(LocalClient):
    """A client whose first report is answered only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[Report] = []
        self.in_flight = self.most_in_flight = 0
        self.called, self.answer = threading.Event(), threading.Event()

    def report(self, report: Report) -> Directive | None:
        self.reports.append(report)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.called.set()
        self.answer.wait(60)
        self.in_flight -= 1
        return super().report(report)


@pytest.fixture
def client() -> Iterator[Slow]:
    made = Slow()
    made.join(Job("a", 600.0, BatchTarget(10**6)), "cpu")
    yield made
    made.answer.set()
    made.close()


@pytest.mark.promise("R17", "F13")
def test_a_flood_of_reports_is_one_call_and_then_the_newest(client: Slow) -> None:
    mailbox = Mailbox(lambda: SchedulerConnection(client, 1), "a", period=0.001)
    mailbox.begin(0)
    assert client.called.wait(60)
    tracemalloc.start()
    try:
        for number in range(1, REPORTS + 1):
            mailbox.outbox.progress = (number, 0.001 * number, 0)
            mailbox.hurry()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(client.reports) == 1
    client.answer.set()
    mailbox.close(WorkerExited("a", 0, ExitCause.DONE), timeout=30.0)
    assert client.most_in_flight == 1
    assert [report.batches for report in client.reports][:2] == [0, REPORTS]
    assert held < MAX_BYTES
