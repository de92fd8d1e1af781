"""Pages, panels and columns of parts on the page of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_core.core.answers import JobStatus
from lightning_core.core.jobs import Job
from lightning_core.core.parts import Html, LivePage, Part, register, unregister
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.web.visitors import account, reader
from lightning_core.server.access.people import Person, Right
from tests.parts.web.pages import Page, page_of

ANN, BOB = account("ann"), Person("bob", frozenset({Right.STEER_OWN}))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with page_of(tmp_path / "pool") as made:
        made.submit(Job("vit", 600.0, BatchTarget(100)))
        yield made


@pytest.fixture
def bring() -> Iterator[Callable[..., None]]:
    def bring(**members: Any) -> None:
        register("strange", Part(**members))

    yield bring
    unregister("strange")


def test_a_page_is_in_the_navigation_and_drawn_for_who_sees_all(page: Page, bring: Callable[..., None]) -> None:
    def shown(scene: PoolScene) -> list[list[str]]:
        return [["job", "width"], *([f"<{job.name}>", str(scene.width)] for job in scene.jobs)]

    bring(pages={"Night & day": LivePage(shown)})
    ann = page.of(ANN)
    assert '<a href="/pages/night-day">Night &amp; day</a>' in ann.get("/").text
    whole = ann.get("/pages/night-day")
    assert whole.status_code == 200
    assert "<h1>Night &amp; day</h1>" in whole.text
    assert "<td>&lt;vit&gt;</td><td>900</td>" in whole.text
    assert "<td>500</td>" in ann.get("/pages/night-day/body", params={"width": 500}).text
    assert page.of(reader("reader")).get("/pages/night-day").status_code == 200
    bob = page.of(BOB)
    assert "night-" not in bob.get("/").text
    assert [bob.get(f"/pages/night-day{end}").status_code for end in ("", "/body")] == [403, 403]
    assert page.browser().get("/pages/night-day").status_code == 401
    assert ann.get("/pages/other").status_code == 404


def test_a_page_is_there_once_it_fits_the_pool(page: Page, bring: Callable[..., None]) -> None:
    fits = [False]
    bring(pages={"Late": LivePage(lambda scene: Html("<b>here</b>"), lambda about: about["pid"] > 0 and fits[0])})
    ann = page.of(ANN)
    assert "/pages/late" not in ann.get("/").text
    assert ann.get("/pages/late").status_code == 404
    fits[0] = True
    assert "/pages/late" in ann.get("/").text
    assert "<b>here</b>" in ann.get("/pages/late").text


def test_a_page_that_raises_says_so_and_the_others_stay(page: Page, bring: Callable[..., None]) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("<night>")

    bring(pages={"Broken": LivePage(fail), "Unfit": LivePage(fail, fail)})
    ann = page.of(ANN)
    assert "cannot be drawn: KeyError: &#x27;&lt;night&gt;&#x27;" in ann.get("/pages/broken").text
    assert "Unfit" not in ann.get("/").text


def test_panels_of_parts_are_below_the_timeline(page: Page, bring: Callable[..., None]) -> None:
    def names(history: History) -> str:
        return ", ".join(job.name for job in history.jobs)

    bring(panels={"Who is there": names, "Broken": lambda history: 1 / 0})
    lanes = page.of(ANN).get("/timeline/lanes").text
    assert "<h2>Who is there</h2><div class=panel><p>vit</p></div>" in lanes
    assert "cannot be drawn: ZeroDivisionError" in lanes


def test_a_column_of_a_part_is_in_the_row_of_a_job_and_follows_it(page: Page, bring: Callable[..., None]) -> None:
    mood = ["calm"]

    def column(job: JobStatus) -> str:
        return mood[0]

    bring(columns={"mood": column})
    page.look()
    [row] = page.watch.view.rows.values()
    assert "mood calm" not in row.text  # nothing of the job has changed
    page.report("vit", 1, [1.0])
    [row] = page.watch.view.rows.values()
    assert "mood calm" in row.text
