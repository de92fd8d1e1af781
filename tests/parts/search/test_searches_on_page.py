"""Searches on the page: a line for each, the trials that may train in the list, the others if they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from lightning_core.core.commands import Cancel, Pause
from lightning_core.core.control import Asker
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, EpochTarget
from lightning_core.parts.web.visitors import account
from tests.parts.web.browsing import Browsing, browsing
from tests.parts.web.pages import Page

TARGET = EpochTarget(10, metric="val_acc", mode="max")


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsing]:
    expect.set_options(timeout=60_000)
    with browsing(tmp_path_factory.mktemp("page") / "pool") as found:
        jobs = [Job(f"night-{k}", 600.0, TARGET, parts={"search": {"trial_of": "night"}}) for k in range(4)]
        found.page.submit(Job("vit", 900.0, BatchTarget(1000)), *jobs)
        for name, value in (("night-0", 0.7), ("night-1", 0.8), ("night-2", 0.95)):
            epoch(found.page, name, 1, value)
        do = found.page.server.do
        do(found.page.server.actor.event(Pause("night-1", by=Asker("search"))))
        do(found.page.server.actor.event(Cancel("night-2")))
        found.page.look()
        found.page.watch.start()
        yield found
        found.close_tabs()
        assert found.troubles == []


def epoch(page: Page, name: str, number: int, value: float) -> None:
    cells = (Cell(number, 10 * number, value),)
    report = Report(name, 1, number, 10**6, 10 * number, number / 10, cells, evaluated=True,
                    epoch_batches=10 if number == 1 else None)  # fmt: skip
    page.server.do(page.server.actor.report(report))


def test_a_search_is_a_line_that_opens_its_trials(site: Browsing) -> None:
    tab = site.enter(account("ann"))
    rows, line = tab.locator("#jobs tbody th a"), tab.locator("#groups label")
    expect(line).to_have_text(
        " search night: 4 trials: 1 training, 1 waiting, 1 paused, 1 ended; best val_acc 0.95, of night-2"
    )
    assert sorted(rows.all_inner_texts()) == ["night-0", "night-3", "vit"]
    expect(tab.locator("#count")).to_have_text("3 of 5 jobs")
    tab.get_by_label("search night").check()
    expect(rows).to_have_count(4)
    assert "vit" not in rows.all_inner_texts()
    tab.reload()  # what was chosen stays
    expect(rows).to_have_count(4)
    epoch(site.page, "night-3", 1, 0.97)
    expect(line).to_contain_text("best val_acc 0.97, of night-3")
    expect(tab.get_by_label("search night")).to_be_checked()
    assert Axe().run(tab).response["violations"] == []
    tab.get_by_label("search night").uncheck()
    expect(rows).to_have_count(3)
    tab.get_by_label("Search", exact=True).fill("night-1")
    expect(rows).to_have_text(["night-1"])
    tab.goto(f"{site.base}/#group=gone")
    tab.reload()
    expect(rows).to_have_count(3)


def test_searches_of_two_owners_are_chosen_apart_and_one_that_is_over_stays_if_it_is_ticked(site: Browsing) -> None:
    do, actor = site.page.server.do, site.page.server.actor
    bobs = [Job(f"bob-{k}", 5000.0, TARGET, parts={"search": {"trial_of": "night"}}, owner="bob") for k in range(2)]
    do(actor.event(Submit(tuple(bobs))))
    tab = site.enter(account("ann"))
    rows, of_bob = tab.locator("#jobs tbody th a"), tab.get_by_label("search night of bob")
    expect(tab.locator("#groups label")).to_have_count(2)
    of_bob.check()
    expect(rows).to_have_text(["bob-0", "bob-1"])
    for k in range(7):  # newer ones that are over: five have a line
        do(actor.event(Submit((Job(f"s{k}-0", 900.0 + 100 * k, TARGET, parts={"search": {"trial_of": f"s{k}"}}),))))
        do(actor.event(Cancel(f"s{k}-0")))
    for job in bobs:
        do(actor.event(Cancel(job.name)))
    expect(tab.locator("#earlier")).to_have_text("and 2 earlier")
    expect(of_bob).to_be_checked()
    expect(rows).to_have_count(2)
    of_bob.uncheck()
    expect(rows).to_have_text(["night-0", "night-3", "vit"])
