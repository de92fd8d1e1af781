"""The page of a market, and the form for bundles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.parts.market.cloud_events import IntervalEnded, NodesWanted, Quoted
from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.people import Person, Right
from lightning_core.web.pages.market_page import body
from lightning_core.web.pool_watch import PoolSnapshot
from lightning_core.web.visitors import account, reader
from tests.web.pages import page_of

ANN = account("ann")
CLOUD = {
    "spot": 2, "on_demand": 1, "wanted_spot": 3, "wanted_on_demand": 1, "seen_in": [], "wanted_in": [],
    "reason": "the plans of <2> jobs", "spent": 1.25, "money": None, "trouble": {"quotes": "now.sh: <b>exit code 7"},
}  # fmt: skip
PLAN = {
    "period": "night",
    "next": 3600.0,
    "asked": {"vit": [False, "edge", 2, "<i>as planned"]},
    "short": {"gru": "no room"},
}


def test_a_market_is_shown_as_it_was_journalled() -> None:
    history = History(Settings(controllers={"market": {"interval": 60.0}}))
    assert history.market is not None
    history.market.take(Quoted(0.4, 4), 10.0)
    history.cloud = [
        (0.0, NodesWanted(1, 3, 1, Reason("submitted"))),
        *((60.0 * k, IntervalEnded(k, 0.3 + 0.1 * k, 4, 2, 1, 0.0, 3.0, 1.5, 20, 1, 0, 0)) for k in range(3)),
    ]
    html = body(history, PoolSnapshot(now=60.0, about={"cloud": CLOUD, "plan": PLAN, "settings": {"market": "given"}}))
    for words in (
        "3 intervals, 4.5 paid",
        "2 of 3 wanted",
        "no limit",
        "price of a spot node",
        "the plan stands: night",
        "first quoted 50.0s ago",
        "Money by job",
    ):
        assert words.lower() in html.lower(), words
    assert "edge, 2 devices" in html
    assert not any(tag in html for tag in ("<i>", "<2>", "<b>"))


def test_a_job_has_the_spot_policy_of_all_or_one_that_was_chosen_for_it(tmp_path: Path) -> None:
    with page_of(tmp_path / "pool") as page:
        page.submit(Job("vit", 600.0, BatchTarget(10)))
        view = page.watch.view
        assert "No job is on it" in body(History(Settings()), view)
        view = replace(view, about={"settings": {"controllers": {"market": {"policy": "<max-spot>"}}}})
        assert "&lt;max-spot&gt;" in body(History(Settings()), view)
        [row] = view.rows.values()
        chosen = replace(row.status, spot_policy=Reason("words", (), "ahap, chosen"))
        assert "ahap, chosen" in body(History(Settings()), replace(view, rows={"vit": replace(row, status=chosen)}))


def test_a_market_without_an_interval_says_so() -> None:
    html = body(History(Settings()), PoolSnapshot(about={"cloud": CLOUD | {"trouble": {}, "money": 3.0}}))
    assert "No interval has ended yet" in html
    assert "<h2>Plan</h2>" not in html
    assert "Nothing is known of its nodes" in body(History(Settings()), PoolSnapshot())


def test_a_pool_without_a_market_shows_its_plan_alone() -> None:
    view = PoolSnapshot(now=600.0, about={"plan": PLAN, "settings": {"controllers": {"plan": {}}}})
    html = body(History(Settings()), view)
    assert view.has_plan
    assert "<h1>Plan of the day</h1>" in html
    assert "The plan stands: night, for another 50m" in html
    assert "edge, 2 devices" in html
    assert "<i>" not in html
    assert "Price and nodes" not in html


def test_the_page_is_for_who_sees_all_and_named_where_there_is_a_market(tmp_path: Path) -> None:
    with page_of(tmp_path / "pool") as page:
        page.look()
        assert page.of(reader("reader")).get("/market").status_code == 200
        assert 'href="/market"' not in page.of(ANN).get("/").text
        assert page.of(Person("bob", frozenset({Right.STEER_OWN}))).get("/market/parts").status_code == 403
        assert page.browser().get("/market").status_code == 401
        own = page.of(Person("bob", frozenset({Right.STEER_OWN}))).get("/").text
        assert 'href="/timeline"' not in own  # it shows the jobs of all
    assert PoolSnapshot(about={"settings": {"controllers": {"market": {}}}}).is_on_market
    assert not PoolSnapshot(about={"settings": {"market": None}}).is_on_market


def test_the_form_takes_the_right_and_a_server_that_allows_it(tmp_path: Path) -> None:
    submitter, other = Person("ann", frozenset({Right.SUBMIT})), Person("bob", frozenset({Right.STEER_OWN, Right.SEE}))
    with page_of(tmp_path / "pool", allow_submit=True) as page:
        form = page.of(submitter).get("/submit")
        assert form.status_code == 200
        assert "<textarea" in form.text
        assert 'href="/submit"' in page.of(submitter).get("/").text
        assert page.of(other).get("/submit").status_code == 403
        assert 'href="/submit"' not in page.of(other).get("/").text
    with page_of(tmp_path / "other") as page:
        assert page.of(submitter).get("/submit").status_code == 403
        assert 'href="/submit"' not in page.of(submitter).get("/").text
