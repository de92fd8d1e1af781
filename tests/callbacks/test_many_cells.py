"""A training that was cut off for long has more loss cells than one report may have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightning_core.agent.reporting.joining import SchedulerConnection
from lightning_core.agent.reporting.mailbox import Mailbox
from lightning_core.core.events import Cell, ExitCause, Report, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_REPORTED_CELLS
from lightning_core.core.targets import BatchTarget
from lightning_core.server.clients.local_client import LocalClient

CELLS = 2 * MAX_REPORTED_CELLS + 500


@pytest.fixture
def client() -> Iterator[LocalClient]:
    made = LocalClient()
    made.join(Job("a", 600.0, BatchTarget(10**6)), "cpu")
    yield made
    made.close()


def test_all_cells_arrive_in_several_reports_before_it_leaves(
    client: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Report] = []
    report = client.report

    def spied(one: Report) -> object:
        reports.append(one)
        return report(one)

    monkeypatch.setattr(client, "report", spied)
    monkeypatch.setattr(client, "close", lambda: None)
    mailbox = Mailbox(lambda: SchedulerConnection(client, 1), "a", period=60.0)
    for number in range(1, CELLS + 1):
        mailbox.add(Cell(number, number, 0.5))
    mailbox.outbox.progress = (CELLS, 1.0, 0)
    mailbox.close(WorkerExited("a", 0, ExitCause.DONE), timeout=30.0)
    assert max(len(one.cells) for one in reports) == MAX_REPORTED_CELLS
    assert client.status()[0].cells == CELLS
