"""Whose jobs these are, wherever that is shown; a hostile name of an owner stays text there."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lightning_core.core.answers import JobStatus
from lightning_core.core.events import Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.parts.owners.owner_line import owner_line
from lightning_core.report.live_table import live_table
from lightning_core.report.page import page
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.board import Board
from lightning_core.view.progress import PlainView
from lightning_core.view.why import why

# What a pool that is no friend could answer: a name that clears the screen, ends a line, turns it round, or is markup.
HOSTILE = "\x1b[2J\n\u202e<b onclick='x'>[red]\x07\x9b31m"
UNSAFE = ("\x1b", "\u202e", "\x07", "\x9b", "<b")


def jobs_of(*owners: str) -> list[JobStatus]:
    scheduler = Scheduler(Settings(policy="edf", devices=2))
    scheduler.handle(Submit(tuple(Job(f"job{k}", 60.0, BatchTarget(50)) for k in range(len(owners)))), 0.0)
    scheduler.handle(Tick(), 1.0)
    return [replace(job, owner=owner) for job, owner in zip(scheduler.status(), owners, strict=True)]


def board(jobs: list[JobStatus], width: int = 200, owner: str | None = None) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(Board(1.0, jobs, "edf", 2, owner=owner))
    return out.getvalue()


def plain(jobs: list[JobStatus]) -> str:
    out = io.StringIO()
    PlainView(out).update(1.0, jobs)
    return out.getvalue()


def history(tmp_path: Path, *owners: str) -> History:
    host = Host(Settings(policy="edf"), tmp_path / "journal.db", clock=lambda: 0.0)
    host.handle(Submit(tuple(Job(f"job{k}", 60.0, BatchTarget(50), owner=owner) for k, owner in enumerate(owners))))
    host.close()
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        return History.read(journal)


def test_the_owner_has_a_column_where_there_are_several() -> None:
    several, one = jobs_of("ann", "", "ann"), jobs_of("ann", "ann")
    lines = board(several).splitlines()
    assert lines[2].split()[:3] == ["job", "owner", "state"]
    assert [line.split()[:2] for line in lines[3:6]] == [["job0", "ann"], ["job1", "-"], ["job2", "ann"]]
    assert "owner" not in board(one)
    assert "ann" not in board(one)
    assert [line.split(":")[0].split("  ")[1] for line in plain(several).splitlines()] == [
        "job0 of ann", "job1 of -", "job2 of ann"
    ]  # fmt: skip
    assert " of ann" not in plain(one)
    assert ">owner</th>" in live_table(1.0, several, {})
    assert "owner" not in live_table(1.0, one, {})


def test_a_board_of_one_owner_does_not_call_idle_what_another_may_hold() -> None:
    held, idle = board(jobs_of("ann"), owner="ann").splitlines()[1].split("   ")
    assert held == "device 0: job0 1.00"
    assert idle == "device 1: idle, or another owner's"
    assert "jobs of ann" in board(jobs_of("ann"), owner="ann")


def test_reports_and_stories_say_whose_a_job_is(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    several, one = history(tmp_path, "ann", "bob", ""), history(tmp_path / "one", "ann")
    assert '<td data-label="owner">bob</td>' in page(several)
    assert '<td data-label="owner">-</td>' in page(several)
    assert "Owner: bob. " in page(several)
    assert 'data-label="owner"' not in page(one)
    assert why(several, "job0")[1] == "owner: ann"
    assert not any("owner" in line for line in why(several, "job2"))


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_hostile_owner_is_text_everywhere(width: int) -> None:
    jobs = jobs_of(HOSTILE, "ann")
    shown = [
        board(jobs, width),
        board(jobs[:1], width, HOSTILE),
        plain(jobs),
        live_table(1.0, jobs, {}).replace("<b>", ""),
    ]
    told = {"jobs": 1, "held": 1.0, "quota": 0, "borrowed": 1.0, "device_hours": 1.0, "budget": None, "per": None}
    shown.append(owner_line({"owner": HOSTILE} | told))
    for text in shown[:2]:
        assert all(len(line) <= width for line in text.splitlines())
    for text in shown:
        assert not [mark for mark in UNSAFE[:4] if mark in text]
    assert "<b" not in shown[3]
    assert len(plain(jobs).splitlines()) == 2
    assert "[red]" in board(jobs, 200)  # no markup of the terminal's either


def test_a_job_with_a_hostile_owner_cannot_be_made() -> None:
    """So no journal, spec or saved state brings one: each of them makes its jobs."""
    with pytest.raises(ValueError, match="invalid name of a person"):
        Job("job", 60.0, BatchTarget(50), owner=HOSTILE)
