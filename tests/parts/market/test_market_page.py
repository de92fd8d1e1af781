"""The live page of a market."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.history.pool_scene import PoolScene
from lightning_core.parts.market import part
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesWanted, Quoted
from lightning_core.parts.market.market_page import draw
from lightning_core.parts.web.visitors import account
from lightning_core.scheduler.settings import Settings
from tests.parts.web.pages import page_of

CLOUD = {
    "spot": 2, "on_demand": 1, "wanted_spot": 3, "wanted_on_demand": 1, "seen_in": [], "wanted_in": [],
    "reason": "the plans of <2> jobs", "spent": 1.25, "money": None, "trouble": {"quotes": "now.sh: <b>exit code 7"},
}  # fmt: skip


def scene(history: History | None = None, **given: Any) -> PoolScene:
    empty: dict[str, Any] = {"now": 0.0, "about": {}, "jobs": [], "width": 900}
    return PoolScene(history or History(Settings()), **(empty | given))


def test_a_market_is_shown_as_it_was_journalled() -> None:
    history = History(Settings(controllers={"market": {"interval": 60.0}}))
    market = history.parts["market"]
    market.take(Quoted(0.4, 4), 10.0)
    market.cloud = [
        (0.0, NodesWanted(1, 3, 1, Reason("submitted"))),
        *((60.0 * k, IntervalEnded(k, 0.3 + 0.1 * k, 4, 2, 1, 0.0, 3.0, 1.5, 20, 1, 0, 0)) for k in range(3)),
    ]
    html = draw(scene(history, now=60.0, about={"controllers": {"market": CLOUD}}))
    for words in (
        "3 intervals, 4.5 paid",
        "2 of 3 wanted",
        "no limit",
        "price of a spot node",
        "first quoted 50.0s ago",
        "Money by job",
    ):
        assert words.lower() in html.lower(), words
    assert not any(tag in html for tag in ("<2>", "<b>"))


def test_a_job_has_the_spot_policy_of_all_or_one_that_was_chosen_for_it(tmp_path: Path) -> None:
    with page_of(tmp_path / "pool") as page:
        page.submit(Job("vit", 600.0, BatchTarget(10)))
        [job] = page.watch.view.statuses()
    assert "No job is on it" in draw(scene(jobs=[job]))
    about = {"settings": {"controllers": {"market": {"policy": "<max-spot>"}}}}
    assert "&lt;max-spot&gt;" in draw(scene(about=about, jobs=[job]))
    chosen = replace(job, notes={"market": Reason("words", (), "ahap, chosen")})
    assert "ahap, chosen" in draw(scene(about=about, jobs=[chosen]))


def test_a_market_without_an_interval_says_so() -> None:
    html = draw(scene(about={"controllers": {"market": CLOUD | {"trouble": {}, "money": 3.0}}}))
    assert "No interval has ended yet" in html
    assert "Nothing is known of its nodes" in draw(scene())


def test_pools_on_a_market_alone_have_the_page(tmp_path: Path) -> None:
    fits = part.pages["Market"].fits
    assert fits({"settings": {"controllers": {"market": {}}}})
    assert not fits({"settings": {"controllers": {"plan": {}}}})
    with page_of(tmp_path / "pool") as page:
        ann = page.of(account("ann"))
        assert "Market" not in ann.get("/").text
        assert ann.get("/pages/market").status_code == 404
