"""A script's own checkpoint carries its job: resumed, it keeps its deadline and its curve."""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from lightning_core.agent.job_record import MAX_POINTS, NEWEST_POINTS, CurvePoint, JobRecord, LossCurve
from lightning_core.agent.reporting import forecast_watch
from lightning_core.callbacks import CoreCallback
from lightning_core.callbacks.launched import LaunchedCallback
from lightning_core.core.answers import Grant, Verdict
from lightning_core.core.events import Report
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.server import discovery as connecting
from lightning_core.server.clients.local_client import LocalClient
from tests.callbacks.test_callback import fit
from tests.examples import day_and_night
from tests.faults.test_joining import Pool, training
from tests.matrix.forks import Forks
from tests.tiny import QUIET, Line, ValidatedPoints
from tests.waiting import join

AWAY = 20.0
# Key of the callback's state in a checkpoint.
KEY = "CoreCallback"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool(Grant("job", 1, 1.0, (0,), Reason("fixed_share")))
    monkeypatch.setattr(connecting, "connect", lambda pool: made)
    return made


def callback(target: Target | None = None, **more: Any) -> CoreCallback:
    target = target or LossTarget("loss", 1e-9)
    return CoreCallback("job", **{"deadline": "60s", "target": target, **more})


def saved(tmp_path: Path, target: Target | None = None, **more: Any) -> Path:
    """Return the checkpoint of a script that trained three epochs of 16 batches by itself."""
    trainer = fit(callback(target, pool="local"), Line(log="train_loss"), **{"max_epochs": 3, **more})
    trainer.save_checkpoint(tmp_path / "script.ckpt", weights_only=False)
    return tmp_path / "script.ckpt"


def state(path: Path) -> dict[str, Any]:
    """Return the callback's state in a checkpoint."""
    found: dict[str, Any] = torch.load(path, weights_only=True)["callbacks"][KEY]
    return found


def changed(path: Path, **entry: Any) -> Path:
    """Return a copy with another entry, or with parts of the entry changed."""
    checkpoint = torch.load(path, weights_only=True)
    states = checkpoint["callbacks"]
    states[KEY] = entry["whole"] if "whole" in entry else states[KEY] | entry
    torch.save(checkpoint, path)
    return path


def aged(path: Path, seconds: float = AWAY) -> Path:
    """Return a copy that was saved some seconds earlier."""
    entry = state(path)
    return changed(path, began_at=entry["began_at"] - seconds, ends_at=entry["ends_at"] - seconds)


def resumed(path: Path, script: CoreCallback, data: Any = None) -> None:
    fit(script, Line(pause=0.005, log="train_loss"), data, max_epochs=6, ckpt_path=path)


def test_a_resumed_script_keeps_its_deadline_and_its_curve(tmp_path: Path, pool: Pool) -> None:
    path = aged(saved(tmp_path))
    before = state(path)
    assert before["batches"] == [10, 20, 30, 40]
    resumed(path, callback())
    [job] = pool.jobs
    assert 60 - AWAY - 15 < job.deadline < 60 - AWAY  # the time away counts
    first = pool.reports[0]
    assert [(cell.number, cell.batches) for cell in first.cells[:4]] == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert [cell.value for cell in first.cells[:4]] == before["values"]
    assert (first.batches_at_start, first.number) == (48, 1)
    numbers = {cell.number: cell.batches for report in pool.reports for cell in report.cells}
    assert list(numbers.values()) == sorted(set(numbers.values()))
    assert list(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    ("other", "carried"),
    [
        ({"deadline": "50s"}, True),
        ({"target": LossTarget("loss", 1e-8)}, True),
        ({"target": LossTarget("train_loss", 1e-9)}, False),
    ],
)
def test_with_other_terms_the_deadline_counts_from_now(
    tmp_path: Path, pool: Pool, caplog: pytest.LogCaptureFixture, other: dict[str, Any], carried: bool
) -> None:
    resumed(aged(saved(tmp_path)), callback(**other))
    [job] = pool.jobs
    assert job.deadline == (50.0 if "deadline" in other else 60.0)
    assert "the checkpoint has other terms (job, 60s, loss <= 1e-09)" in caplog.text
    assert any(cell.batches <= 48 for report in pool.reports for cell in report.cells) is carried


def test_a_deadline_that_passed_meanwhile_is_warned_about(
    tmp_path: Path, pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    resumed(aged(saved(tmp_path), 3660.0), callback())
    assert "the deadline passed 1h" in caplog.text
    assert pool.jobs[0].deadline == 1.0


HOSTILE: dict[str, dict[str, Any]] = {
    "no mapping": {"whole": 7},
    "another format": {"format": 1},
    "a number for a name": {"job": 7},
    "no target": {"target": {"metric": "loss"}},
    "an unknown part of a target": {"target": {"metric": "loss", "at_most": 0.1, "x": 1}},
    "times that are none": {"began_at": math.nan},
    "a deadline before the beginning": {"ends_at": 1.0},
    "a curve with holes": {"values": [1.0]},
    "a curve of texts": {"values": ["a", "b", "c", "d"]},
    "batches that are none": {"batches": [-1, 2, 3, 4]},
    "values that are none": {"values": [1.0, math.inf, 1.0, 1.0]},
    "a curve without end": {"batches": list(range(1, 20_001)), "values": [1.0] * 20_000},
    "an unknown stage": {"evaluated_in": "\x1b[2J"},
    "more than there should be": {"more": 1},
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A checkpoint with an entry that is as it should be."""
    return saved(tmp_path_factory.mktemp("good")).read_bytes()


@pytest.mark.parametrize("what", HOSTILE)
def test_a_damaged_or_hostile_entry_leaves_a_record_as_it_was(
    good: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    (tmp_path / "script.ckpt").write_bytes(good)
    entry = state(changed(tmp_path / "script.ckpt", **HOSTILE[what]))
    job = Job("job", 60.0, LossTarget("loss", 1e-9))
    record = JobRecord(job, "60s")
    record.take(entry, 1e9)
    assert (record.job, record.curve.points, record.resumed, record.ends_at) == (job, [], False, 0.0)
    assert "the checkpoint's record of the job is ignored" in caplog.text
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("what", day_and_night(HOSTILE, ("no mapping", "a curve without end", "an unknown stage")))
def test_a_damaged_or_hostile_entry_is_ignored(
    good: bytes, tmp_path: Path, pool: Pool, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    (tmp_path / "script.ckpt").write_bytes(good)
    resumed(changed(tmp_path / "script.ckpt", **HOSTILE[what]), callback())
    assert pool.reports[-1].batches == 96
    assert pool.jobs[0].deadline == 60.0
    assert "the checkpoint's record of the job is ignored" in caplog.text
    assert "\x1b" not in caplog.text


def test_a_pool_that_knows_the_job_takes_its_curve_without_doubling_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = LocalClient()
    monkeypatch.setattr(connecting, "connect", lambda pool: client)
    monkeypatch.setattr(client, "close", lambda: None)
    trainer = fit(callback(), Line(pause=0.005), max_epochs=3)
    trainer.save_checkpoint(tmp_path / "script.ckpt", weights_only=False)
    [first] = client.status()
    resumed(tmp_path / "script.ckpt", callback())
    second = client.status()[-1]
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert (first.batches, second.batches) == (48, 96)
    assert (first.cells, second.cells) == (4, 8)


def test_the_whole_curve_is_known_with_the_first_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, path, counts = LocalClient(), saved(tmp_path), list[int]()
    monkeypatch.setattr(connecting, "connect", lambda pool: client)
    handle = client.report

    def report(said: Report) -> Any:
        answer = handle(said)
        counts.append(client.status()[0].cells)
        return answer

    monkeypatch.setattr(client, "report", report)
    resumed(path, callback())
    assert counts[0] == 4


def test_a_resumed_script_knows_how_its_metric_is_evaluated(tmp_path: Path, pool: Pool) -> None:
    target = LossTarget("val_loss", 1e-9)
    trainer = fit(callback(target, pool="local"), data=ValidatedPoints(), max_epochs=3)
    trainer.save_checkpoint(tmp_path / "script.ckpt", weights_only=False)
    resumed(tmp_path / "script.ckpt", callback(target), data=ValidatedPoints())
    assert pool.reports[0].evaluated
    cells = {cell.number: cell.batches for report in pool.reports for cell in report.cells}
    assert list(cells.values()) == [16, 32, 48, 64, 80, 96]


def test_a_checkpoint_without_the_callback_and_one_with_it_load(tmp_path: Path, pool: Pool) -> None:
    trainer = fit(callback(pool="local"), callbacks=[], max_epochs=3)
    trainer.save_checkpoint(tmp_path / "plain.ckpt", weights_only=False)
    assert KEY not in torch.load(tmp_path / "plain.ckpt", weights_only=True)["callbacks"]
    resumed(tmp_path / "plain.ckpt", callback())
    assert pool.jobs[0].deadline == 60.0
    resumed(saved(tmp_path), LaunchedCallback("job", BatchTarget(10**9), client=pool))
    assert pool.reports[-1].batches == 96


def test_a_long_curve_is_thinned_and_its_newest_points_are_not() -> None:
    curve = LossCurve()
    for batches in range(10, 100_001, 10):
        curve.add(batches, batches**-0.3)
    assert MAX_POINTS // 3 < len(curve.points) <= MAX_POINTS
    assert [point.batches for point in curve.points[-NEWEST_POINTS:]] == list(
        range(100_000 - 10 * NEWEST_POINTS + 10, 100_001, 10)
    )
    assert curve.points[0] == CurvePoint(10, 10**-0.3)
    gaps = [later.batches - sooner.batches for sooner, later in zip(curve.points, curve.points[1:], strict=False)]
    assert max(gaps) < 0.1 * 100_000
    assert curve.points[4].batches < 0.02 * 100_000


def test_a_clock_that_was_set_back_gives_no_more_time() -> None:
    record = JobRecord(Job("job", 60.0, BatchTarget(9)), "60s")
    record.begin(1000.0)
    heir = JobRecord(Job("job", 60.0, BatchTarget(9)), "60s")
    heir.take(record.to_entry(), 900.0)
    assert heir.began_at == 900.0
    assert heir.job.deadline == 160.0  # the promise was made in wall-clock time


def test_verdict_and_forecast_stay_after_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    script = callback(LossTarget("loss", 0.05), pool="local")
    assert (script.verdict, script.forecast) == (None, None)
    fit(script, Line(pause=0.001), max_epochs=-1)
    assert script.verdict is Verdict.MET
    assert script.forecast is not None
    assert "target met" in script.forecast.reason
    missing = callback(LossTarget("loss", 1e-9), pool="local")
    fit(missing, max_epochs=2)
    assert missing.verdict is Verdict.MISSED


@pytest.mark.nightly
def test_during_training_the_forecast_has_three_quantiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_watch, "FORECAST_PERIOD", 0.2)
    script = callback(BatchTarget(400), pool="local")
    thread = training(script, Line(pause=0.01), max_epochs=-1)
    found = []
    deadline = time.monotonic() + 30
    while thread.is_alive() and time.monotonic() < deadline:
        if (job_forecast := script.forecast) is not None and job_forecast.left is not None and job_forecast.left > 0:
            found.append(job_forecast)
        time.sleep(0.05)
    join(thread)
    assert found
    for job_forecast in found:
        assert job_forecast.early is not None
        assert job_forecast.late is not None
        assert job_forecast.early <= (job_forecast.left or 0.0) <= job_forecast.late


def test_a_notebook_shows_a_card() -> None:
    script = CoreCallback("job", "60s", LossTarget("a<b", 0.05), pool="local")
    page = script._repr_html_()
    assert "too early to tell" in page
    assert "a&lt;b &lt;= 0.05" in page
    assert "a<b" not in page
    fitted = callback(LossTarget("loss", 0.05), pool="local")
    fit(fitted, Line(pause=0.001), max_epochs=-1)
    page = fitted._repr_html_()
    for part in ("<svg", ">met<", "loss &lt;= 0.05", "target met"):
        assert part in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def spawned(how: str) -> list[str]:
    """Train in processes that the Trainer spawns; return what this one knows of it, and the files that are left."""
    core = CoreCallback("job", "1h", "val_loss<=0.05", pool="local", keep_best=tempfile.mkdtemp())
    options = {**QUIET, "max_epochs": 60, "devices": 2, "strategy": how}
    trainer = pl.Trainer(**options, callbacks=[core])
    trainer.fit(Line(pause=0.001), datamodule=ValidatedPoints())
    assert core.forecast is not None
    told = [str(core.verdict), core.forecast.reason, core.best_model_path]
    left = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("lightning_core-")]
    return [*told, *left]


@pytest.mark.parametrize("how", ["ddp_fork", pytest.param("ddp_spawn", marks=pytest.mark.nightly)])
def test_verdict_and_best_model_come_back_from_processes_that_the_trainer_spawns(
    forks: Forks, how: str, tmp_path: Path
) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    [ended] = forks.run("tests.callbacks.test_script_checkpoints:spawned", how, environment=environment, limit=120.0)
    assert ended.value is not None, ended.output[-3000:]
    verdict, reason, best = ended.value
    assert (verdict, reason[:11]) == ("met", "target met ")
    assert Path(best).is_file()
