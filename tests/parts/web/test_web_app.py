"""The pages of a pool: who comes in, what is shown, and what is asked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core.events import Report
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.parts.web import pool_watch
from lightning_core.parts.web.event_stream import update
from lightning_core.parts.web.request_guard import MAX_BODY_BYTES
from lightning_core.parts.web.visitors import SESSION_SECONDS, Visitors, account, reader
from lightning_core.server.access.people import Person, Right
from tests.parts.web.pages import HOST, ORIGIN, Page, page_of, state_of

OF_A_JOB = ("/jobs/vit", "/jobs/vit/log", "/jobs/vit/chart", "/jobs/vit/story", "/jobs/vit/facts")
ANN, READER = account("ann"), reader("reader")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with page_of(tmp_path / "pool") as made:
        made.submit(
            Job("vit", 600.0, LossTarget("loss", 0.5)), Job("gru", 900.0, BatchTarget(1000)),
            Job("free", math.inf, BatchTarget(10)),
        )  # fmt: skip
        made.report("vit", 1, [2.0, 1.5, 1.3, 1.2])
        yield made


def test_no_person_comes_in_without_a_link_or_a_token(page: Page) -> None:
    browser = page.browser()
    for path in (
        "/",
        "/events",
        "/timeline",
        "/timeline/lanes",
        "/jobs/vit",
        "/jobs/vit/log",
        "/jobs/vit/chart",
        "/metrics",
    ):
        answer = browser.get(path)
        assert answer.status_code == 401, path
        assert "vit" not in answer.text
    assert browser.post("/api/v1/jobs/vit/cancel", json={}, headers=ORIGIN).status_code == 401
    assert browser.get("/enter", params={"key": "wrong"}).status_code == 401
    assert browser.get("/", headers={"accept": "text/html"}).text.count("Sign in") == 1


def test_a_link_works_once_and_its_cookie_is_for_this_page_alone(page: Page) -> None:
    secret = page.web_app.visitors.link(ANN)
    first, second = page.browser(), page.browser()
    answer = first.get("/enter", params={"key": secret})
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert secret not in cookie
    assert first.get("/").status_code == 200
    assert second.get("/enter", params={"key": secret}).status_code == 401
    assert first.post("/leave", headers=ORIGIN).status_code == 200
    assert first.get("/").status_code == 401


def test_what_a_script_told_of_its_hyper_parameters_is_shown(page: Page) -> None:
    told = (("lr", "0.1"), ("name", "<b>"))
    page.server.do(page.server.actor.report(Report("gru", 1, 1, 10**6, 5, 1.0, hyper_parameters=told)))
    page.look()
    text = page.of(READER).get("/jobs/gru").text
    assert "<dt>lr</dt><dd>0.1</dd>" in text
    assert "<dt>name</dt><dd>&lt;b&gt;</dd>" in text


def test_links_and_sessions_end_in_time() -> None:
    now = [0.0]
    visitors = Visitors(lambda _: None, clock=lambda: now[0])
    late, again = visitors.link(ANN, 10.0), visitors.link(READER, 100.0, once=False)
    now[0] = 10.0
    assert visitors.enter(late) is None
    entered = visitors.enter(again)
    assert entered is not None
    assert visitors.enter(again) is not None
    assert visitors.of_cookie(entered[0]) == READER
    now[0] = 100.0
    assert visitors.enter(again) is None
    now[0] = 10.0 + SESSION_SECONDS
    assert visitors.of_cookie(entered[0]) is None


def test_a_token_lets_in_and_ends_the_session_when_it_is_revoked(page: Page) -> None:
    page.people["t0ken"] = READER
    browser = page.browser()
    assert browser.get("/", headers={"authorization": "Bearer t0ken"}).status_code == 200
    assert browser.post("/enter", data={"token": "t0ken"}, headers=ORIGIN).status_code == 200
    assert browser.get("/").status_code == 200
    del page.people["t0ken"]
    assert browser.get("/").status_code == 401
    assert browser.get("/", headers={"authorization": "Bearer t0ken"}).status_code == 401


def test_the_first_page_has_every_job(page: Page) -> None:
    answer = page.of(ANN).get("/")
    state = json.loads(state_of(answer.text))
    rows = {row["name"]: row for row in state["rows"]}
    assert list(rows) == ["vit", "gru", "free"]
    assert (rows["vit"]["value"], rows["vit"]["target"]) == ("1.5", "loss <= 0.5")
    assert rows["free"]["deadline"] is None
    assert rows["gru"]["progress"] == 0.0
    assert state["about"]["policy"] == "edf"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_the_page_tells_which_devices_are_not_planned_on(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.server.do(page.server.actor.set_unavailable([(1, "its node is lost")]))
    monkeypatch.setattr(pool_watch, "ABOUT", 0.0)
    page.look()
    for person, why in ((ANN, "its node is lost"), (Person("bob", frozenset({Right.STEER_OWN})), "")):
        state = json.loads(state_of(page.of(person).get("/").text))
        assert state["about"]["unavailable"] == [{"device": 1, "why": why}]


def test_a_stream_tells_what_changes_and_nothing_else(page: Page) -> None:
    before = page.watch.view
    page.look()
    assert update(page.watch.view, before.version, None, lambda _: True) is None
    page.report("vit", 2, [1.0, 0.9, 0.8, 0.7])
    text = update(page.watch.view, before.version, None, lambda _: True)
    assert text is not None
    body = json.loads(text.removeprefix("event: update\ndata: "))
    assert ([row["name"] for row in body["rows"]], body["gone"], body["all"]) == (["vit"], [], False)
    assert update(page.watch.view, before.version, None, lambda job: job.name == "gru") is None
    everything = update(page.watch.view, -1, {}, lambda _: True)
    assert everything is not None
    assert json.loads(everything.removeprefix("event: update\ndata: "))["all"] is True


def test_a_pool_that_does_not_answer_is_said(page: Page) -> None:
    before = page.watch.view
    page.server.do(page.server.actor.close())
    page.watch.look()
    view = page.watch.view
    assert view.trouble
    text = update(view, before.version, None, lambda _: True)
    assert text is not None
    assert json.loads(text.removeprefix("event: update\ndata: "))["trouble"] == view.trouble


@pytest.mark.parametrize(
    ("action", "body", "row"),
    [
        ("pause", {}, {"state": "paused"}),
        ("deadline", {"deadline": "2h"}, {}),
        ("deadline", {"deadline": "none"}, {"deadline": None}),
        ("devices", {"devices": 0}, {"share": 0.0}),
        ("cancel", {}, {"verdict": "cancelled"}),
    ],
)
def test_what_is_asked_reaches_the_pool(
    page: Page, action: str, body: dict[str, object], row: dict[str, object]
) -> None:
    browser = page.of(ANN)
    answer = browser.post(f"/api/v1/jobs/vit/{action}", json=body, headers=ORIGIN)
    assert (answer.status_code, "vit" in answer.text) == (200, True), answer.text
    page.look()
    state = json.loads(state_of(browser.get("/").text))
    [found] = [one for one in state["rows"] if one["name"] == "vit"]
    assert row.items() <= found.items()
    assert "ann: " in browser.get("/jobs/vit/story").text  # who did it is in the journal


@pytest.mark.parametrize(
    ("action", "body", "words"),
    [
        ("deadline", {"deadline": "yesterday"}, "yesterday"),
        ("deadline", {"deadline": 5}, "expected"),
        ("devices", {"devices": -1}, "-1"),
        ("devices", {"devices": "2"}, "expected"),
        ("pause", [], "object"),
    ],
)
def test_a_value_that_is_invalid_is_refused(page: Page, action: str, body: object, words: str) -> None:
    answer = page.of(ANN).post(f"/api/v1/jobs/vit/{action}", json=body, headers=ORIGIN)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text


def test_a_reader_changes_nothing(page: Page) -> None:
    browser = page.of(READER)
    assert "data-ask" not in browser.get("/jobs/vit").text
    assert "data-ask" in page.of(ANN).get("/jobs/vit").text
    bodies: dict[str, object] = {"deadline": {"deadline": "9h"}, "devices": {"devices": 1}}
    for action in ("pause", "resume", "cancel", "deadline", "devices"):
        body = bodies.get(action, {})
        assert browser.post(f"/api/v1/jobs/vit/{action}", json=body, headers=ORIGIN).status_code == 403
    assert page.watch.view.newest("vit") is not None
    page.look()
    assert not page.watch.view.newest("vit").paused  # type: ignore[union-attr]


def test_who_may_see_their_own_jobs_alone_sees_no_other(page: Page) -> None:
    own = Person("bob", frozenset({Right.STEER_OWN}))
    browser = page.of(own)
    assert json.loads(state_of(browser.get("/").text))["rows"] == []
    for path in OF_A_JOB:
        assert browser.get(path).status_code == 404, path
    assert browser.post("/api/v1/jobs/vit/cancel", json={}, headers=ORIGIN).status_code == 404
    for path in ("/timeline", "/timeline/lanes", "/metrics"):
        assert browser.get(path).status_code == 403, path


def test_an_earlier_job_of_a_name_may_be_another_persons(page: Page) -> None:
    """A name is free again once its job has ended."""
    for owner in ("bob", "ann"):
        page.submit(Job("mine", 600.0, BatchTarget(10), owner=owner))
        page.report("mine", 1, [1.0])
        page.look()
    bob, ann = (page.of(Person(name, frozenset())) for name in ("bob", "ann"))
    with page.web_app.history.reading() as history:
        assert [job.job.owner for job in history.jobs if job.name == "mine"] == ["bob", "ann"]
        # Once the pool has forgotten the earlier one, the journal still has it.
        sees = Person("ann", frozenset()).sees
        shown = [page.web_app.history.job(history, "mine", run, sees) is not None for run in (1, 2, None)]
        assert shown == [False, True, True]
    # Both have been there under this name: neither is shown what is the other's.
    assert bob.get("/jobs/mine").status_code == 404
    assert ann.get("/jobs/mine", params={"run": 1}).status_code == 404
    assert page.of(ANN).get("/jobs/mine", params={"run": 1}).status_code == 200


def test_the_page_of_a_job_shows_its_curve_and_why(page: Page) -> None:
    answer = page.of(ANN).get("/jobs/vit")
    assert answer.status_code == 200
    assert 'class="curve"' in answer.text
    assert "submitted" in answer.text
    page.report("vit", 2, [1.0, 0.9, 0.8, 0.7])
    assert "<dt>batches</dt><dd>80</dd>" in page.of(ANN).get("/jobs/vit/facts").text
    zoomed = page.of(ANN).get("/jobs/vit/chart", params={"from": 0, "to": 5, "width": 900})
    assert 'viewBox="0 0 900 262"' in zoomed.text
    assert 'data-high="5.0"' in zoomed.text
    assert page.of(ANN).get("/jobs/vit/chart", params={"from": "x"}).status_code == 400
    assert page.of(ANN).get("/jobs/other").status_code == 404
    assert page.of(ANN).get("/jobs/vit", params={"run": 2}).status_code == 404
    lanes = page.of(ANN).get("/timeline/lanes", params={"last": 60})
    assert "device 1" in lanes.text
    assert 'style="left:' in lanes.text
    assert "style-src-attr 'unsafe-inline'" in lanes.headers["content-security-policy"]  # or no place would count


@pytest.mark.parametrize("path", ["/", "/timeline", "/jobs/vit"])
def test_what_has_a_label_has_a_role(page: Page, path: str) -> None:
    """A label of an element that says nothing by itself is not read out."""
    text = page.of(ANN).get(path).text
    assert "aria-label=" in text
    assert re.findall(r"<(?:div|pre|span|p)\b(?=[^>]* aria-label=)(?![^>]* role=)[^>]*>", text) == []


@pytest.mark.parametrize("path", ["/jobs/..%2f..%2fhead.json/log", "/jobs/%2e%2e/log", "/jobs/a%00b/log"])
def test_no_path_leads_out_of_the_folder(page: Page, path: str) -> None:
    (page.web_app.folder / "head.json").write_text('{"token": "s3cret"}')
    answer = page.of(ANN).get(path)
    assert answer.status_code in (400, 404)
    assert "s3cret" not in answer.text


def test_other_names_other_sites_and_huge_bodies_are_refused(page: Page) -> None:
    browser = page.of(ANN)
    assert browser.get("/", headers={"host": "evil.example:8710"}).status_code == 421
    for headers in (
        {"origin": "https://evil.example"}, {"origin": "null"}, {},
        ORIGIN | {"sec-fetch-site": "cross-site"}, {"origin": f"http://{HOST}.evil.example"},
    ):  # fmt: skip
        assert browser.post("/api/v1/jobs/vit/cancel", json={}, headers=headers).status_code == 403, headers
    assert (
        browser.post("/api/v1/jobs/vit/pause", content=b" " * (MAX_BODY_BYTES + 1), headers=ORIGIN).status_code == 413
    )
    page.look()
    assert page.watch.view.newest("vit").finished_at is None  # type: ignore[union-attr]


def test_a_program_with_a_token_needs_no_origin(page: Page) -> None:
    page.people["t0ken"] = ANN
    browser = page.browser()
    headers = {"authorization": "Bearer t0ken"}
    assert browser.post("/api/v1/jobs/vit/pause", json={}, headers=headers).status_code == 200


def test_hostile_words_stay_words(page: Page, tmp_path: Path) -> None:
    page.submit(Job("odd", 900.0, LossTarget("a</script><b>&", 0.5)))
    html = page.of(ANN).get("/").text
    assert html.count("</script>") == html.count("<script")
    rows = json.loads(state_of(html))["rows"]
    assert rows[-1]["target"] == "a</script><b>& <= 0.5"
    for path in ("/jobs/odd", "/jobs/odd/chart", "/jobs/odd/story"):
        assert "<b>" not in page.of(ANN).get(path).text


def test_metrics_are_for_who_sees_all(page: Page) -> None:
    page.people["t0ken"] = READER
    answer = page.browser().get("/metrics", headers={"authorization": "Bearer t0ken"})
    assert "lightning_core_up 1.0" in answer.text
