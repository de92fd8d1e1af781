"""On which kind of devices a job is, wherever it is shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from lightning_core.core.commands import Cancel
from lightning_core.core.events import DevicesFound, Report, Submit
from lightning_core.history.history import History
from lightning_core.parts.web.pages.job_pages import facts, story
from lightning_core.parts.web.status_rows import row_of
from lightning_core.pool.api_answers import moment_entry
from lightning_core.report.gantt import gantt
from lightning_core.report.job_card import job_card
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.board import Board
from lightning_core.view.job_entry import job_entry, job_of_entry
from lightning_core.view.progress import PlainView
from lightning_core.view.why import rows, why, why_now
from tests.builders import job

KINDS = ("a100", "a100", "t4")


class Seen:
    """Two jobs on two kinds, and how they are seen."""

    def __init__(self, folder: Path, kinds: tuple[str, ...] = (), found: tuple[str, ...] = ()) -> None:
        self.folder, now = folder, 0.0
        self.settings = Settings("edf", devices=3, locations=kinds, resident=6)
        host = Host(self.settings, folder / "journal.db", clock=lambda: now)
        host.handle(DevicesFound(found))
        host.handle(Submit((job("pair", 900.0, 1000, devices=2), job("one", 9000.0, 1000, kinds=("t4",)))))
        now = 10.0
        host.handle(Report("pair", 1, 1, version=9, batches=100, busy=10.0))
        self.jobs = host.scheduler.status()
        host.handle(Cancel("one"))
        self.ended = host.scheduler.last("one")
        host.close()
        with Journal.open(folder / "journal.db") as journal:
            self.history = History.read(journal)


@pytest.fixture(scope="module", params=["named", "found"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("kinds")
    return Seen(folder, KINDS) if request.param == "named" else Seen(folder, found=KINDS)


def test_a_status_says_the_kind_and_the_rates_and_goes_out_as_json(seen: Seen) -> None:
    pair, one = seen.jobs
    assert (pair.kind, pair.devices, one.kind, one.devices) == ("a100", (0, 1), "t4", (2,))
    assert pair.rates == {"a100": pytest.approx(10.0), "t4": pytest.approx(10.0)}
    assert one.rates == {}
    assert seen.ended.kind == "t4"
    entry = job_entry(pair, seen.folder)
    assert (entry["kind"], entry["devices"]) == ("a100", [0, 1])
    assert entry["rates"] == pair.rates
    assert job_of_entry(entry).kind == "a100"
    assert row_of(pair, 10.0)["kind"] == "a100"
    summary = Summary.of(seen.settings, 10.0, seen.jobs, seen.folder).to_dict()
    assert [one["kind"] for one in summary["jobs"].values()] == ["a100", "t4"]


def test_a_terminal_shows_the_kind_before_the_numbers_of_devices(seen: Seen) -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(Board(10.0, seen.jobs, "edf", 3, kinds=KINDS))
    board = out.getvalue()
    assert "a100 0: pair 1.00   a100 1: pair 1.00   t4 2: one 1.00" in board
    assert " a100:0,1 " in board
    plain = io.StringIO()
    PlainView(plain).update(10.0, seen.jobs)
    assert "share 1.00 of device a100:0,1" in plain.getvalue()
    assert "1.00 of device t4:2" in why_now(seen.jobs[1])[1]


def test_the_history_of_a_job_shows_the_kind_of_each_grant(seen: Seen) -> None:
    assert any(" 1.00  a100:0,1 " in line for line in why(seen.history, "pair"))
    granted = next(row for row in rows(seen.history.of("one")) if row.devices)
    assert moment_entry(granted)["kind"] == "t4"
    assert "<td class=n>a100:0, 1</td>" in job_card(seen.history, 0, 10)
    assert 'data-label="device">a100:0, 1</td>' in story(seen.history.of("pair"))
    assert "<dd>10 on a100, 10 on t4</dd>" in facts(seen.history.of("pair"), seen.jobs[0])
    lanes = gantt(seen.history)
    assert '<div class="device">t4 2</div>' in lanes
    assert "Device 2 (t4) was held by one" in lanes


def test_where_all_devices_are_alike_nothing_is_said_of_kinds(tmp_path: Path) -> None:
    alike = Seen(tmp_path, found=("t4", "t4", "t4"))
    assert [(one.kind, one.rates) for one in alike.jobs] == [("", {}), ("", {})]
    out = io.StringIO()
    Console(file=out, width=200).print(Board(10.0, alike.jobs, "edf", 3))
    assert "device 0: pair 1.00" in out.getvalue()
    assert "t4" not in " ".join(why(alike.history, "pair")) + gantt(alike.history)
