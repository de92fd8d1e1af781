"""Bundles that are sent as text: who may, what is wrong with them, and whose the jobs are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.bundle.problems import BundleError
from lightning_core.core.protocols import AccessRefusedError
from lightning_core.parts.web.visitors import reader
from lightning_core.server.access.people import Person, Right
from tests.parts.web.pages import Page, page_of

ANN = Person("ann", frozenset({Right.SUBMIT, Right.STEER_OWN}))
BUNDLE = """jobs:
  a:
    model: {class_path: lightning.pytorch.demos.boring_classes.BoringModel}
    trainer: {max_epochs: 1}
    deadline: 10m
    target: {batches: 20}
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with page_of(tmp_path / "pool", allow_submit=True) as made:
        yield made


def test_problems_have_their_place_in_the_text(page: Page) -> None:
    wrong = BUNDLE.replace("10m", "-5").replace("batches: 20", "batches: 0")
    found = page.web_app.submission.check(ANN, wrong)
    assert [(problem.line, problem.column) for problem in found] == [(5, 5), (6, 5)]
    assert "-5" in found[0].words
    [broken] = page.web_app.submission.check(ANN, "jobs: [")
    assert broken.line is not None
    with pytest.raises(BundleError):
        page.web_app.submission.submit(ANN, wrong)
    assert list(page.watch.view.statuses()) == []


def test_a_check_imports_nothing(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    text = BUNDLE.replace("lightning.pytorch.demos.boring_classes.BoringModel", "trap.Model")
    assert page.web_app.submission.check(ANN, text) == []


def test_who_submits_owns_the_jobs(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_core.cluster.config_checker.ask", lambda *_: [])
    assert page.web_app.submission.check(ANN, BUNDLE) == []
    assert page.web_app.submission.submit(ANN, BUNDLE) == ["a"]
    page.look()
    assert [(job.name, job.owner) for job in page.watch.view.statuses()] == [("a", "ann")]
    with pytest.raises(ValueError, match="taken"):
        page.web_app.submission.submit(ANN, BUNDLE)


def test_without_the_right_or_the_flag_nothing_is_read(page: Page, tmp_path: Path) -> None:
    with pytest.raises(AccessRefusedError, match="submit"):
        page.web_app.submission.check(reader("bob"), BUNDLE)
    with page_of(tmp_path / "other") as other:
        assert not other.web_app.submission.allows(ANN)
        for ask in (other.web_app.submission.check, other.web_app.submission.submit):
            with pytest.raises(AccessRefusedError, match="--allow-submit"):
                ask(ANN, BUNDLE)


def test_what_is_not_in_the_text_has_no_place_there(page: Page, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("trainer: [")
    [found] = page.web_app.submission.check(
        ANN, f"jobs: {{a: {{config: {tmp_path}/config.yaml, deadline: 10m, target: {{batches: 20}}}}}}"
    )
    assert (found.line, found.column) == (None, None)
    assert found.words.startswith(f"{tmp_path}/config.yaml:")


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
