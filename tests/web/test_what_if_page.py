"""The panel of futures: who may ask, what is answered, and that the pool does not notice."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from starlette.routing import Route

from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.asking.prospects import Assumed, Kept, Prospects, Resized
from lightning_core.server.access.people import Person, Right
from lightning_core.simulation.what_if import Assumption, Chances
from lightning_core.storage.journals.journal import Journal
from lightning_core.web.pages.what_if_panel import answer
from lightning_core.web.routes import what_if_process
from lightning_core.web.routes.what_if_process import NoFutureError, WhatIf, read_prospects
from lightning_core.web.routes.what_if_routes import MAX_PROCESSES, MAX_WAITING, WhatIfRoutes
from lightning_core.web.visitors import account, reader
from tests.waiting import PATIENCE, until
from tests.web.pages import Page, page_of

ANN = account("ann")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with page_of(tmp_path / "pool", devices=1) as made:
        made.submit(Job("vit", 60.0, BatchTarget(1000)), Job("gru", 60.0, BatchTarget(1000)))
        for name in ("vit", "gru"):
            made.report(name, 1, [2.0, 1.5], batches=50)  # a hundred batches in a second
        yield made


def events(journal: Path) -> list[str]:
    """All events of a journal but the ticks."""
    with Journal.open(journal, read_only=True) as opened:
        return [entry.event for entry in opened.entries() if '"tick"' not in entry.event]


def test_a_question_is_answered_beside_the_pool(page: Page) -> None:
    journal = page.web_app.folder / "journal.db"
    before = events(journal)
    browser = page.of(ANN)
    found = browser.get("/what-if", params={"devices": 2, "job": "gru", "left": 1})
    assert found.status_code == 200, found.text
    assert all(words in found.text for words in ("simulated future", "vit", "gru", "▼ worse"))
    assert events(journal) == before
    assert "Of the unfinished jobs" in browser.get("/what-if").text
    assert "Of the unfinished jobs" in browser.get("/what-if", params={"job": "gru"}).text
    assert browser.get("/what-if", params={"job": "unknown", "left": 5}).text.strip().endswith("that has not ended")
    assert browser.get("/what-if", params={"devices": 0}).status_code == 400
    assert "gru trains on 1 device only" in browser.get("/what-if", params={"job": "gru", "own": 2}).text
    assert browser.get("/what-if", params={"job": "gru", "own": 0}).status_code == 400
    assert browser.get("/what-if", params={"job": "a/b"}).status_code == 400


def test_who_sees_their_own_jobs_alone_may_not_ask(page: Page) -> None:
    own = page.of(Person("bob", frozenset({Right.STEER_OWN})))
    assert own.get("/what-if", params={"devices": 2}).status_code == 403
    assert page.browser().get("/what-if", params={"devices": 2}).status_code == 401
    assert 'id="what-if"' not in own.get("/").text
    assert 'id="if-apply"' in page.of(ANN).get("/jobs/vit").text
    looks = page.of(reader("reader")).get("/").text
    assert ('id="what-if"' in looks, 'id="if-apply"' in looks) == (True, False)


def test_an_answer_is_kept_while_the_pool_is_as_it_was(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def simulated(source: object, change: Assumption) -> object:
        asked.append(source)
        prospects = read_prospects(source) if isinstance(source, Path) else source
        assert isinstance(prospects, Prospects)
        prospects = deepcopy(prospects)  # as it comes from another process
        prospects.played.append(np.zeros(2))
        return prospects, Chances(["vit"], [1.0], [0.5], [True], 3)

    monkeypatch.setattr(what_if_process, "simulated", simulated)
    what_if = WhatIf(page.web_app.folder / "journal.db")
    for devices in (2, 2, 3):
        assert what_if.ask(Assumption(devices=devices)).futures == 3
    assert [isinstance(source, Path) for source in asked] == [True, False]  # the journal was read once
    what_if.ask(Assumption(devices=4))
    assert isinstance(asked[-1], Prospects)
    assert len(asked[-1].played) == 2  # what was played for the questions before


def test_no_more_than_some_questions_wait(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = list[Assumption](), threading.Event()

    def ask(_: WhatIf, change: Assumption) -> Chances:
        begun.append(change)
        assert go_on.wait(PATIENCE)
        return Chances(["vit"], [1.0], [1.0], [True], 1)

    monkeypatch.setattr(WhatIf, "ask", ask)
    [routes] = [getattr(route.endpoint, "__self__", None) for route in page.web_app.starlette.routes
                if isinstance(route, Route) and route.path == "/what-if"]  # fmt: skip
    assert isinstance(routes, WhatIfRoutes)
    browser = page.of(ANN)
    with browser, ThreadPoolExecutor(MAX_WAITING) as threads:  # one event loop for all requests
        waiting = [threads.submit(browser.get, "/what-if") for _ in range(MAX_WAITING)]
        until(lambda: routes.waiting == MAX_WAITING and len(begun) == MAX_PROCESSES)
        assert browser.get("/what-if").status_code == 503
        assert browser.get("/timeline/lanes").status_code == 200  # those who wait hold nothing up
        go_on.set()
        assert [one.result().status_code for one in waiting] == [200] * MAX_WAITING
    assert routes.waiting == 0


def test_a_process_that_finds_nothing_says_why(tmp_path: Path) -> None:
    with pytest.raises(NoFutureError, match="no journal here"):
        WhatIf(tmp_path / "journal.db").ask(Assumption())


def test_names_are_words_and_the_changed_come_first() -> None:
    found = Chances(
        ["a", "<b>", "c", "d"], [1.0, 0.25, 0.5, math.nan], [1.0, 0.75, 0.0, 1.0], [True, False, True, True], 40
    )
    html = answer(found, Assumption(devices=2))
    assert "the mean of 40 simulated futures" in html
    assert "<b>" not in html.replace("<b>2.8 finish in time</b>", "")
    assert html.index(">d<") < html.index("&lt;b&gt;") < html.index(">c<") < html.index("1 job as before")
    assert "nothing is known yet" in html
    assert "no difference" in answer(Chances(["a"], [0.5], [0.51], [True], 1), Assumption(devices=2))


def test_it_is_said_what_starts_cost() -> None:
    def said(assumed: Assumed) -> str:
        return answer(Chances(["a"], [0.5], [0.5], [True], 1, assumed), Assumption())

    assert "take 12.0s to 60.0s, as moves were measured here" in said(Assumed((12.0, 60.0), True))
    assert "No start, resume or move has been measured yet" in said(Assumed(None, True))
    assert "moves" not in said(Assumed())


def test_it_is_said_whose_memory_is_not_known() -> None:
    def said(assumed: Assumed) -> str:
        return answer(Chances(["a"], [0.5], [0.5], [True], 1, assumed), Assumption())

    assert "memory needs of 2 jobs are not known yet: once tried, each takes 3GiB" in said(
        Assumed(None, True, 2, 3 * 2**30)
    )
    assert "memory needs of 1 job are not known yet: each has its devices for itself" in said(Assumed(None, True, 1))
    assert "memory" not in said(Assumed(None, True))


def test_it_is_said_how_many_devices_the_job_takes() -> None:
    def said(resized: Resized) -> str:
        return answer(Chances(["a"], [0.5], [0.5], [True], 1, Assumed(resized=resized)), Assumption("a", own=3))

    assert "&lt;a&gt; takes 2 devices." in said(Resized("<a>", 2, True))
    assert "a takes 1 device, and how fast it is on so many has not been measured, but" in said(Resized("a", 1, False))


def test_it_is_said_first_that_a_market_is_not_played() -> None:
    def said(kept: Kept) -> str:
        return answer(Chances(["a"], [0.5], [0.5], [True], 1, Assumed(None, True, kept=kept)), Assumption())

    assert "not played.</b> The 3 devices that the market holds now stay to the end; 1 job without" in said(Kept(3, 1))
    assert "not played.</b> The device that the market holds now stays to the end. No start" in said(Kept(1, 0))
    assert "The market holds no device now, and none comes to the end; 2 jobs" in said(Kept(0, 2))
