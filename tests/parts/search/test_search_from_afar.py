"""A search in a pool on another machine, by its API: submits, pauses, resumes and ends its trials there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from lightning_core.core.answers import JobStatus, State
from lightning_core.core.events import Cell, Report
from lightning_core.parts.search.pool_search import Best, PoolSearch, study_of
from lightning_core.parts.search.search_file import SearchSpec
from lightning_core.parts.web.visitors import account
from lightning_core.pool import Pool
from tests.parts.web.pages import Page
from tests.parts.web.serving import served
from tests.waiting import until

TOKEN, PER_EPOCH = "lct_s3cret", 10
SEARCH = {
    "deadline": "40s",
    "model": "tests.tiny.Line",
    "search": {
        "metric": "val_loss", "epochs": 4, "at_once": 1, "trials": 2, "seed": 0,
        "space": {"model.init_args.lr": {"float": [0.1, 1.0]}},
    },
}  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setattr("lightning_core.cluster.config_checker.ask", lambda *_: [])
    with served(tmp_path / "pool", allow_submit=True) as (made, url):
        made.people |= {TOKEN: account("ann")}
        monkeypatch.setenv("LIGHTNING_CORE_POOL", url)
        monkeypatch.setenv("LIGHTNING_CORE_TOKEN", TOKEN)
        yield made


def epoch(page: Page, name: str, number: int, value: float) -> None:
    """Report an epoch of a trial."""
    done = number * PER_EPOCH
    report = Report(
        name, 1, number, 10**6, done, done / 100, (Cell(number, done, value),), evaluated=True,
        epoch_batches=PER_EPOCH if number == 1 else None,
    )  # fmt: skip
    page.server.do(page.server.actor.report(report))


def test_a_search_runs_from_afar(page: Page, tmp_path: Path) -> None:
    """Its trials are those of the person whose token it has, who has also paused those that make room."""
    path = tmp_path / "night.yaml"
    path.write_text(json.dumps(SEARCH))
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def seen(name: str) -> JobStatus | None:
        return next((job for job in page.server.do(page.server.actor.status())[1] if job.name == name), None)

    def state(name: str) -> str:
        job = seen(name)
        if job is None or job.state is State.ENDED:
            return "ended" if job else ""
        return "paused" if job.paused else "granted" if job.share else "waits"

    with Pool.connect(patience=5.0) as pool:
        spec = SearchSpec.from_file(path, pool.as_existing())
        search, found = PoolSearch(pool, spec, study_of(spec, tmp_path / "study.db"), poll=0.02), list[Best]()
        search.check()
        thread = threading.Thread(target=lambda: found.append(search.run()))
        thread.start()
        try:
            until(lambda: state("night-0") == "granted")
            first = seen("night-0")
            assert first is not None
            assert (first.owner, str(first.target)) == ("ann", "4 epochs, lowest val_loss")
            assert first.parts == {"search": {"trial_of": "night"}}
            epoch(page, "night-0", 1, 9.0)
            until(lambda: state("night-0") == "paused" and state("night-1") == "granted")
            for number in range(1, 5):
                epoch(page, "night-1", number, 1.0 / number)
            until(lambda: state("night-1") == "ended" and state("night-0") == "granted")
            for number in range(2, 5):
                epoch(page, "night-0", number, 8.0)
        finally:
            thread.join(60)
        why = [row.reason for row in pool.reasons("night-0") if row.what == "command"]
    assert found == [Best(0.25, found[0].params, "night-1", 4)]
    assert why == ["ann: pause, and free its memory", "ann: resume"]
    assert seen("night-0").state is State.ENDED  # type: ignore[union-attr]
