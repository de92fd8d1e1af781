"""The earlier times of a pool: what is listed, what is shown, and what is not a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.people import Person, Right
from lightning_core.server.host import Host
from lightning_core.web.routes.earlier_routes import Archive
from lightning_core.web.visitors import account
from tests.web.pages import page_of

ANN = account("ann")
STAMP = "20261124-101500-000000"


def put_aside(folder: Path) -> None:
    """Write the journal of an earlier time, in which one job met its target."""
    old = folder / "old"
    old.mkdir(parents=True)
    now = [0.0]
    host = Host(Settings(policy="edf"), old / f"journal-{STAMP}.db", clock=lambda: now[0])
    host.handle(Submit((Job("vit", 60.0, LossTarget("loss", 0.5)),)))
    now[0] = 5.0
    cells = tuple(Cell(k, 10 * k, 2.0 / k) for k in range(1, 12))
    host.handle(Report("vit", 1, number=1, version=1, batches=110, busy=5.0, cells=cells))
    host.close()
    (old / "journal-x.db").write_text("no journal")
    (old / "journal-20261124-101500-000001.db").write_text("no journal")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put_aside(tmp_path / "pool")
    return tmp_path / "pool"


def test_an_earlier_time_is_shown_with_its_jobs(folder: Path) -> None:
    with page_of(folder) as page:
        browser = page.of(ANN)
        assert 'href="/earlier"' in browser.get("/timeline").text
        listed = browser.get("/earlier").text
        assert f'href="/earlier/{STAMP}"' in listed
        assert "until Tue 24 Nov 2026, 10:15" in listed
        then = browser.get(f"/earlier/{STAMP}")
        assert then.status_code == 200, then.text
        assert "1 of 1 target met in time" in then.text
        assert f'href="/earlier/{STAMP}/0"' in then.text
        job = browser.get(f"/earlier/{STAMP}/0").text
        assert 'class="chart"' in job
        assert "target met with" in job


def test_what_is_not_there_or_damaged_is_said(folder: Path) -> None:
    with page_of(folder) as page:
        browser = page.of(ANN)
        assert browser.get(f"/earlier/{STAMP}/7").status_code == 404
        assert browser.get("/earlier/20200101-000000-000000").status_code == 404
        assert browser.get("/earlier/..%2fjournal").status_code == 404
        assert browser.get("/earlier/20261124-101500-000001").status_code == 409
        assert browser.get("/earlier/x").status_code == 404


def test_they_are_for_who_sees_all(folder: Path) -> None:
    with page_of(folder) as page:
        bob = page.of(Person("bob", frozenset({Right.STEER_OWN})))
        for path in ("/earlier", f"/earlier/{STAMP}", f"/earlier/{STAMP}/0"):
            assert bob.get(path).status_code == 403
            assert page.browser().get(path).status_code == 401


def test_one_is_read_once(folder: Path) -> None:
    archive = Archive(folder)
    assert archive.history(STAMP) is archive.history(STAMP)
    assert [one.stamp for one in archive.all()] == ["20261124-101500-000001", STAMP]
    assert Archive(folder / "nowhere").all() == []
