"""The list of jobs in a browser, while two of them train at once on one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import expect

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.web.visitors import reader
from tests.parts.web.browsing import browsing


def paired(jobs: list[JobStatus]) -> list[JobStatus]:
    """Return two jobs as they are while the second is the companion of the first, and a third alone."""
    first, second, third = jobs
    resnet = replace(first, state=State.RUNNING, share=1.0, held_share=0.6, beside=("bert",), pace=0.9, devices=(0,))
    bert = replace(second, state=State.RUNNING, share=0.0, held_share=0.4, beside=("resnet",), pace=0.6, devices=(0,))
    return [resnet, bert, replace(third, state=State.RUNNING, share=1.0, held_share=1.0, devices=(1,))]


def test_both_are_seen_to_train_and_the_device_is_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with browsing(tmp_path / "pool") as site:
        page = site.page
        page.submit(*(Job(name, 600.0, BatchTarget(1000)) for name in ("resnet", "bert", "vit")))
        now, jobs = page.watch._pool.look()
        monkeypatch.setattr(page.watch._pool, "look", lambda: (now, paired(jobs)))
        page.look()
        tab = site.enter(reader("reader"), viewport={"width": 1280, "height": 640})
        expect(tab.locator("#jobs tbody tr.trains")).to_have_count(3)
        expect(tab.locator("#jobs tbody tr", has_text="resnet").first).to_contain_text("beside bert")
        expect(tab.locator("#tiles")).to_contain_text("2 of 2")
        parts = tab.locator(".part.beside")
        expect(parts).to_have_count(2)
        widths = [box["width"] for one in parts.all() if (box := one.bounding_box()) is not None]
        assert widths[0] / sum(widths) == pytest.approx(0.6, abs=0.05)  # they have padding
        assert site.troubles == []
