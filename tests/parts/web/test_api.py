"""The API of a pool: what it answers, who may ask, and that it is what its description says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.testclient import TestClient

from lightning_core.core.answers import JobStatus
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.parts.web.api.endpoints import ENDPOINTS, Endpoint
from lightning_core.parts.web.api.endpoints import page_of as page_of_jobs
from lightning_core.parts.web.api.openapi import document
from lightning_core.parts.web.request_guard import MAX_BODY_BYTES
from lightning_core.parts.web.visitors import account, reader
from lightning_core.server.access.people import Person, Right
from lightning_core.storage.job_specs import home_of
from lightning_core.view.job_entry import job_entry, job_of_entry
from tests.parts.web.pages import HOST, ORIGIN, Page, page_of
from tests.parts.web.test_submission import BUNDLE

ANN, READER, BOB = account("ann"), reader("reader"), Person("bob", frozenset({Right.STEER_OWN}))
API = "/api/v1"
BODIES: dict[str, Any] = {
    "/jobs/{name}/deadline": {"deadline": "2h"},
    "/jobs/{name}/devices": {"devices": 1},
    "/bundles": {"bundle": BUNDLE},
    "/bundles/check": {"bundle": "jobs: {a: {deadline: 10m}}"},
}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with page_of(tmp_path / "pool", allow_submit=True) as made:
        made.people |= {"of-ann": ANN, "of-reader": READER, "of-bob": BOB}
        made.submit(
            Job("vit", 600.0, LossTarget("loss", 0.5)), Job("gru", 900.0, BatchTarget(1000), owner="bob"),
        )  # fmt: skip
        made.report("vit", 1, [2.0, 1.5, 1.3, 1.2])
        yield made


def program(page: Page, token: str = "of-ann") -> TestClient:
    """A program that sends a token with each request."""
    client = page.browser()
    client.headers["authorization"] = f"Bearer {token}"
    return client


def ask(client: TestClient, endpoint: Endpoint, name: str = "vit") -> Any:
    path = API + endpoint.path.format(name=name)
    return client.get(path) if endpoint.method == "GET" else client.post(path, json=BODIES.get(endpoint.path, {}))


def strict(schema: Any) -> Any:
    """Return a schema under which an answer may have no key that is not declared."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False} | found if "properties" in schema else found


def check_answer(answer: Any, endpoint: Endpoint) -> None:
    described = document()
    operation = described["paths"][API + endpoint.path][endpoint.method.lower()]
    responses = operation["responses"]
    response = responses["200"] if answer.status_code == 200 else responses["default"]
    schema = {**response["content"]["application/json"]["schema"], "components": strict(described["components"])}
    Draft202012Validator(schema).validate(answer.json())


def test_the_description_is_valid_and_is_what_is_served(page: Page) -> None:
    described = program(page).get(f"{API}/openapi.json").json()
    validate(described)
    assert described == json.loads(json.dumps(document()))
    ids = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids)) == len(ENDPOINTS)
    [outcome] = [one for one in described["paths"][f"{API}/jobs"]["get"]["parameters"] if one["name"] == "outcome"]
    assert "at risk" in outcome["schema"]["enum"]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_every_answer_is_as_described(page: Page, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_core.cluster.config_checker.ask", lambda *_: [])
    home = home_of(page.web_app.folder, "vit")
    home.mkdir(parents=True)
    (home / "log.txt").write_text("one\ntwo\n")
    if endpoint.path.endswith("/resume"):
        program(page).post(f"{API}/jobs/vit/pause", json={})
    answer = ask(program(page), endpoint)
    assert answer.status_code == 200, answer.text
    check_answer(answer, endpoint)
    refused = ask(page.browser(), endpoint)
    assert (refused.status_code, refused.json()["error"]["rule"]) == (401, "token")
    assert "vit" not in refused.text
    check_answer(refused, endpoint)
    if "{name}" in endpoint.path:
        unknown = ask(program(page), endpoint, "other")
        assert (unknown.status_code, unknown.json()["error"]["rule"]) == (404, "unknown"), unknown.text
        check_answer(unknown, endpoint)


def test_a_job_is_what_status_says_of_it_and_is_read_back(page: Page) -> None:
    _, [vit, *_] = page.server.do(page.server.actor.status())
    entry = program(page).get(f"{API}/jobs/vit").json()
    assert entry == json.loads(json.dumps(job_entry(vit, page.web_app.folder)))
    again = job_of_entry(entry)
    assert isinstance(again, JobStatus)
    assert (again.target, again.deadline, again.devices, again.finish) == (
        vit.target, vit.deadline, vit.devices, vit.finish,
    )  # fmt: skip
    assert str(again.reason) == str(vit.reason)


def test_jobs_are_found_by_owner_outcome_and_name(page: Page) -> None:
    client = program(page)

    def names(**query: str) -> list[str]:
        return [job["name"] for job in client.get(f"{API}/jobs", params=query).json()["jobs"]]

    assert names() == ["vit", "gru"]
    assert names(owner="bob") == ["gru"]
    assert names(name="vit") == ["vit"]
    assert client.post(f"{API}/jobs/gru/cancel").status_code == 200
    assert names(outcome="cancelled") == ["gru"]
    wrong = {"outcome": ("good", "good"), "owners": ("bob", "did you mean"), "owner": ("x" * 300, "200")}
    for key, (value, words) in wrong.items():
        answer = client.get(f"{API}/jobs", params={key: value})
        assert (answer.status_code, words in answer.json()["error"]["words"]) == (400, True), answer.text


def test_jobs_come_in_pages_of_which_each_says_where_the_next_begins(page: Page) -> None:
    page.submit(*(Job(f"more-{k}", 600.0, BatchTarget(9)) for k in range(5)))
    client, pages, after = program(page), list[list[str]](), None
    while True:
        answer = client.get(f"{API}/jobs", params={"limit": 3} | ({} if after is None else {"after": after})).json()
        pages.append([job["name"] for job in answer["jobs"]])
        if (after := answer["next"]) is None:
            break
        if len(pages) == 1:
            page.submit(Job("late", 600.0, BatchTarget(9)))
    assert pages == [["vit", "gru", "more-0"], ["more-1", "more-2", "more-3"], ["more-4", "late"]]
    whole = client.get(f"{API}/jobs").json()
    assert (len(whole["jobs"]), whole["next"]) == (8, None)
    exact = client.get(f"{API}/jobs", params={"limit": 8}).json()
    assert (len(exact["jobs"]), exact["next"]) == (8, None)
    for query in ({"limit": "0"}, {"limit": "10001"}, {"after": "vit"}, {"after": "vit@now"}):
        answer = client.get(f"{API}/jobs", params=query)
        assert (answer.status_code, next(iter(query)) in answer.json()["error"]["words"]) == (400, True), answer.text


def test_jobs_that_are_forgotten_between_two_pages_hide_no_other() -> None:
    jobs = [SimpleNamespace(name=f"j{k}", submitted_at=at) for k, at in enumerate([0.1, 2.5, 2.5, 2.5, 7.0])]

    def names(found: Any, after: str | None) -> tuple[list[str], str | None]:
        page, following = page_of_jobs(found, 2, after)
        return [job.name for job in page], following

    assert names(jobs, None) == (["j0", "j1"], "j1@2.5")
    assert names(jobs, "j1@2.5") == (["j2", "j3"], "j3@2.5")
    assert names(jobs, "j3@2.5") == (["j4"], None)
    assert names(jobs[2:], "j1@2.5") == (["j2", "j3"], "j3@2.5")
    assert names([*jobs[:1], *jobs[2:]], "j1@2.5") == (["j2", "j3"], "j3@2.5")
    assert names([*jobs[:3], jobs[4]], "j3@2.5") == (["j1", "j2"], "j2@2.5")  # again rather than never
    assert names(jobs[:1], "j4@7.0") == ([], None)


def test_a_curve_is_thinned_and_a_story_says_why(page: Page) -> None:
    page.report("vit", 2, [1.0, 0.9, 0.8, 0.7])
    client = program(page)
    whole = client.get(f"{API}/jobs/vit/curve").json()
    assert whole["seen"] == len(whole["points"]) == 4
    assert whole["points"][-1]["value"] == pytest.approx(0.92)  # the mean of the last five losses
    thin = client.get(f"{API}/jobs/vit/curve", params={"limit": 2}).json()
    assert (thin["seen"], thin["points"]) == (whole["seen"], [whole["points"][0], whole["points"][-1]])
    assert client.get(f"{API}/jobs/vit/curve", params={"limit": 1}).status_code == 400
    assert client.post(f"{API}/jobs/vit/pause", json={}).status_code == 200
    story = client.get(f"{API}/jobs/vit/story").json()["moments"]  # of now, though no page looks at the pool
    assert story[0]["what"] == "submitted"
    assert any("ann" in moment["reason"] for moment in story if moment["what"] == "command")
    assert len(client.get(f"{API}/jobs/vit/story", params={"limit": 1}).json()["moments"]) == 1
    assert client.get(f"{API}/jobs/vit/story", params={"run": 2}).status_code == 404


def test_who_may_see_their_own_jobs_alone_sees_no_other(page: Page) -> None:
    client = program(page, "of-bob")
    assert [job["name"] for job in client.get(f"{API}/jobs").json()["jobs"]] == ["gru"]
    assert client.get(f"{API}/counters").status_code == 403
    for endpoint in ENDPOINTS:
        if "{name}" in endpoint.path:
            answer = ask(client, endpoint, "vit")
            assert answer.status_code == 404, (endpoint.path, answer.text)
            assert ask(client, endpoint, "gru").status_code in (200, 404), endpoint.path
    assert client.get(f"{API}/jobs/gru").json()["verdict"] == "cancelled"


def test_the_log_of_a_name_is_for_the_owner_of_its_newest_job(page: Page) -> None:
    page.submit(Job("mine", 600.0, BatchTarget(10), owner="bob"))
    page.report("mine", 1, [1.0])
    home = home_of(page.web_app.folder, "mine")
    home.mkdir(parents=True)
    (home / "log.txt").write_text("of another\n")
    page.submit(Job("mine", 600.0, BatchTarget(10), owner="eve"))
    client = program(page, "of-bob")
    assert client.get(f"{API}/jobs/mine").json()["owner"] == "bob"
    for part in ("log", "story", "curve"):
        assert client.get(f"{API}/jobs/mine/{part}").status_code == 404, part
    assert client.get(f"{API}/jobs/mine/story", params={"run": 1}).status_code == 200


def test_a_reader_changes_nothing(page: Page) -> None:
    client = program(page, "of-reader")
    for endpoint in ENDPOINTS:
        if endpoint.method == "POST":
            answer = ask(client, endpoint)
            assert (answer.status_code, answer.json()["error"]["rule"]) == (403, "right"), endpoint.path
    assert not program(page).get(f"{API}/jobs/vit").json()["paused"]


def test_the_program_of_a_request_is_noted_beside_its_user(page: Page) -> None:
    client = program(page, "of-bob")
    for name in ("", "a b c", "mcp (a) (b)", "x" * 10**4):
        refused = client.post(f"{API}/jobs/gru/pause", json={}, headers={"asked-through": name})
        assert (refused.status_code, "invalid name of a program" in refused.text) == (400, True)
    assert client.post(f"{API}/jobs/gru/pause", json={}, headers={"asked-through": "mcp (cursor)"}).status_code == 200
    assert client.get(f"{API}/jobs/gru").json()["grant_reason"] == "paused by bob through mcp (cursor)"


def test_a_request_that_is_sent_again_is_done_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_core.cluster.config_checker.ask", lambda *_: [])
    client, again = program(page), {"request-id": "1"}
    first = client.post(f"{API}/bundles", json={"bundle": BUNDLE}, headers=again)
    assert first.json() == {"jobs": ["a"]}
    assert client.post(f"{API}/bundles", json={"bundle": BUNDLE}, headers=again).json() == first.json()
    assert client.post(f"{API}/bundles", json={"bundle": BUNDLE}).status_code == 409  # the name is taken
    other = client.post(f"{API}/jobs/vit/pause", json={}, headers=again)
    assert (other.status_code, "another request" in other.text) == (400, True)
    # It was another person's number 1, and what failed is done anew.
    reader = program(page, "of-reader").post(f"{API}/jobs/vit/pause", json={}, headers=again)
    assert reader.status_code == 403
    page.people["of-reader"] = Person("reader", frozenset({Right.STEER_ALL}))
    assert program(page, "of-reader").post(f"{API}/jobs/vit/pause", json={}, headers=again).status_code == 200
    assert client.post(f"{API}/jobs/vit/resume", headers={"request-id": "x" * 65}).status_code == 400


def test_problems_of_a_bundle_have_their_place(page: Page) -> None:
    wrong = BUNDLE.replace("10m", "-5")
    answer = program(page).post(f"{API}/bundles", json={"bundle": wrong})
    error = answer.json()["error"]
    assert (answer.status_code, error["rule"]) == (422, "bundle")
    assert [(one["line"], one["column"]) for one in error["problems"]] == [(5, 5)]
    check_answer(answer, next(one for one in ENDPOINTS if one.path == "/bundles"))


def test_a_server_without_the_flag_takes_no_bundle(tmp_path: Path) -> None:
    with page_of(tmp_path / "pool") as page:
        page.people["of-ann"] = ANN
        answer = program(page).post(f"{API}/bundles", json={"bundle": BUNDLE})
        assert (answer.status_code, "--allow-submit" in answer.text) == (403, True)
        assert program(page).get(f"{API}/pool").json()["takes_bundles"] is False


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("deadline", {}, "missing"),
        ("deadline", {"deadline": 5}, "deadline: expected"),
        ("deadline", {"deadline": "yesterday"}, "yesterday"),
        ("devices", {"devices": -1}, "-1"),
        ("devices", {"devices": True}, "devices: expected"),
        ("pause", {"relase": True}, "did you mean 'release'"),
        ("cancel", [], "object"),
        ("cancel", {"now": 1}, "unknown"),
    ],
)
def test_a_value_that_is_invalid_is_refused(page: Page, path: str, body: object, words: str) -> None:
    answer = program(page).post(f"{API}/jobs/vit/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["rule"]) == (400, "value"), answer.text
    assert words in answer.json()["error"]["words"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/v2/jobs", 404, "there is v1"),
        ("/api/v1/job", 404, "openapi.json"),
        ("/api/v1", 404, ""),
        ("/api/v1/jobs/..%2f..%2fhead.json/log", 404, ""),
        ("/api/v1/jobs/a%00b", 404, "name"),
        ("/api/v1/jobs/vit/cancel", 405, ""),
    ],
)
def test_what_is_not_there_is_said_in_json(page: Page, path: str, status: int, words: str) -> None:
    (page.web_app.folder / "head.json").write_text('{"token": "s3cret"}')
    answer = program(page).get(path)
    assert (answer.status_code, words in answer.json()["error"]["words"]) == (status, True), answer.text
    assert "s3cret" not in answer.text


def test_versions_are_told(page: Page) -> None:
    assert program(page).get("/api").json() == {"versions": [{"version": "v1", "openapi": f"{API}/openapi.json"}]}


def test_other_sites_and_odd_bodies_are_refused_in_json(page: Page) -> None:
    browser, cancel = page.of(ANN), f"{API}/jobs/vit/cancel"
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {}):
        answer = browser.post(cancel, json={}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["rule"]) == (403, "right"), headers
    assert browser.get(f"{API}/jobs", headers={"host": "evil.example"}).json()["error"]["rule"] == "host"
    client = program(page)
    large = client.post(f"{API}/bundles", content=b" " * (MAX_BODY_BYTES + 1))
    assert (large.status_code, large.json()["error"]["rule"]) == (413, "size")
    form = client.post(cancel, data={"a": "b"})
    assert (form.status_code, form.json()["error"]["rule"]) == (415, "json")
    for content in (b"{", b"\xff", b"[" * 100, b'{"a": NaN}'):
        answer = client.post(cancel, content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["rule"]) == (400, "value"), content
    assert client.get(f"{API}/jobs/vit").json()["finished_at"] is None
    assert browser.post(f"{API}/jobs/vit/pause", json={}, headers=ORIGIN).status_code == 200  # by its session


def test_a_pool_that_does_not_answer_is_said(page: Page) -> None:
    page.server.do(page.server.actor.close())
    answer = program(page).get(f"{API}/jobs")
    assert (answer.status_code, answer.json()["error"]["rule"]) == (503, "pool"), answer.text
    assert HOST not in answer.text
