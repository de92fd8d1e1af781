"""Jobs side by side: whose, over what, and in what they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_core.core.commands import Cancel
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.server.access.people import Person, Right
from lightning_core.storage.job_specs import FILE, home_of
from lightning_core.web.visitors import account
from tests.web.pages import Page, page_of

ANN = account("ann")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with page_of(tmp_path / "pool") as made:
        made.submit(
            Job("vit", 600.0, LossTarget("loss", 0.5), owner="bob"), Job("gru", 900.0, LossTarget("loss", 0.4)),
            Job("count", 900.0, BatchTarget(1000)),
        )  # fmt: skip
        made.report("vit", 1, [2.0, 1.5, 1.3, 1.2])
        made.report("gru", 1, [3.0, 2.5, 2.3, 2.2])
        yield made


def with_config(page: Page, name: str, **values: object) -> None:
    home = home_of(page.web_app.folder, name)
    home.mkdir(parents=True, mode=0o700)
    (home / FILE).write_text(json.dumps({"config": {"model": {"init_args": values}}}))
    (home / FILE).chmod(0o600)


def test_curves_of_one_metric_share_a_chart(page: Page) -> None:
    found = page.of(ANN).get("/compare", params=[("job", "vit"), ("job", "gru"), ("job", "count")])
    assert found.status_code == 200, found.text
    assert found.text.count('<svg class="chart"') == 1  # no batch of the third has been reported
    assert found.text.count('<path class="compared"') == 2 + 3  # two curves, and a legend of three
    assert "stroke-dasharray" in found.text
    drawn = page.of(ANN).get("/compare/charts", params=[("job", "vit"), ("axis", "batches"), ("width", "400")])
    assert 'viewBox="0 0 400' in drawn.text
    assert ">batches<" in drawn.text
    assert "axis=epochs" not in found.text  # it is not known how many batches one has


def test_hyper_parameters_that_differ_are_told_and_secrets_are_not(page: Page) -> None:
    with_config(page, "vit", lr=0.1, layers=3, api_key="s3cret")
    with_config(page, "gru", lr=0.2, layers=3, api_key="other")
    text = page.of(ANN).get("/compare", params=[("job", "vit"), ("job", "gru")]).text
    assert "model.lr" in text
    assert "model.layers" not in text
    assert not any(secret in text for secret in ("s3cret", "other"))


def test_an_earlier_run_of_a_name_can_be_compared(page: Page) -> None:
    page.server.do(page.server.actor.event(Cancel("gru")))
    page.submit(Job("gru", 900.0, LossTarget("loss", 0.4)))
    page.report("gru", 1, [1.0, 0.9])
    browser = page.of(ANN)
    text = browser.get("/compare", params=[("job", "gru"), ("job", "gru@1")]).text
    assert "gru@1" in text
    first = next(job for job in page.watch.view.statuses() if job.name == "gru")
    by_time = browser.get("/compare", params=[("job", f"gru@{first.submitted_at!r}")]).text
    assert "gru@1" in by_time
    assert browser.get("/compare", params={"job": "gru@7"}).status_code == 404
    assert browser.get("/compare", params={"job": "gru@<b>"}).status_code == 400


def test_who_may_not_see_a_job_may_not_compare_it(page: Page) -> None:
    bob = page.of(Person("bob", frozenset({Right.STEER_OWN})))
    assert bob.get("/compare", params={"job": "vit"}).status_code == 200
    assert bob.get("/compare", params=[("job", "vit"), ("job", "gru")]).status_code == 404
    assert bob.get("/compare/charts", params={"job": "gru"}).status_code == 404
    assert page.browser().get("/compare", params={"job": "vit"}).status_code == 401


def test_values_of_an_address_are_checked(page: Page) -> None:
    browser = page.of(ANN)
    assert "Choose jobs" in browser.get("/compare").text
    assert browser.get("/compare", params=[("job", f"j{k}") for k in range(9)]).status_code == 400
    assert browser.get("/compare", params={"job": "vit", "axis": "<b>"}).status_code == 400
    assert browser.get("/compare", params={"job": "unknown"}).status_code == 404
    assert browser.get("/compare", params={"job": "../x"}).status_code == 404
