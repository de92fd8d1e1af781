"""The list of jobs in a browser, in a pool of two kinds of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import expect

from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.web.visitors import reader
from tests.parts.web.browsing import browsing


def test_a_job_and_a_device_are_shown_with_their_kind(tmp_path: Path) -> None:
    with browsing(tmp_path / "pool") as site:
        page = site.page
        page.server.do(page.server.actor.set_found(("a100", "t4"), ()))
        page.watch.look_soon()
        page.submit(*(Job(name, 600.0, BatchTarget(1000), kinds=(name,)) for name in ("a100", "t4")))
        tab = site.enter(reader("reader"), viewport={"width": 1280, "height": 640})
        expect(tab.locator("#jobs tbody tr", has_text="t4").first).to_contain_text("on t4:1")
        expect(tab.locator("#devices .name")).to_have_text(["a100:0", "t4:1"])
        assert site.troubles == []
