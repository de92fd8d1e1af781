"""What people see: live lines, plain lines, the summary."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lightning_core.durations import format_duration, parse_duration
from lightning_core.reasons import WORDS, Reason
from lightning_core.scheduler import Scheduler, Settings
from lightning_core.summary import Summary
from lightning_core.types import BatchTarget, Cell, Job, JobStatus, LossTarget, Report, Submit, Tick, WorkerLeft
from lightning_core.view.progress import LiveView, PlainView, jobs_table, print_summary, view_for


def some_jobs() -> list[JobStatus]:
    scheduler = Scheduler(Settings(policy="edf"))
    jobs = (
        Job("cnn", 60.0, LossTarget("loss", 0.01)),
        Job("lstm", 90.0, BatchTarget(500)),
        Job("bad", 95.0, BatchTarget(5)),
    )
    scheduler.handle(Submit(jobs), 0.0)
    cells = tuple(Cell(n, 10 * n, 1.0 / n) for n in range(1, 21))
    scheduler.handle(Report("cnn", 1, 1, 1, 200, 10.0, cells, rejected=2), 10.0)
    scheduler.handle(Report("lstm", 1, 1, 1, 20, 1.0), 10.0)
    scheduler.handle(WorkerLeft("bad", 1, crashed=True, detail="Traceback\nValueError: \x1b[2J<b>"), 10.5)
    scheduler.handle(Tick(), 11.0)
    return scheduler.status()


def test_the_live_table_shows_every_column() -> None:
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=False).print(jobs_table(11.0, some_jobs()))
    text = out.getvalue()
    for words in ("cnn", "0.0559 / 0.0100", "11.0s / 60.0s", "1.00", "20", "51.0s", "feasible", "on time with 9.0s"):
        assert words in text
    assert "20 / 500 batches" in text
    assert "2 bad losses kept out" in text
    assert "\x1b" not in text


def test_live_and_plain_views() -> None:
    out = io.StringIO()
    live = LiveView(Console(file=out, width=160, force_terminal=True))
    live.update(11.0, some_jobs())
    live.update(12.0, some_jobs())
    live.close()
    assert "cnn" in out.getvalue()
    plain_out = io.StringIO()
    assert isinstance(view_for(plain_out), PlainView)
    plain = PlainView(plain_out)
    plain.update(11.0, some_jobs())
    plain.update(11.2, some_jobs())
    plain.close()
    assert plain_out.getvalue().count("cnn: running") == 1
    assert "\x1b" not in plain_out.getvalue()


def test_the_summary_is_complete_and_valid_json(tmp_path: Path) -> None:
    summary = Summary.of(Settings(policy="lara", policy_args={"order": "edf"}), 11.0, some_jobs(), tmp_path)
    summary.write(tmp_path / "summary.json")
    body = json.loads((tmp_path / "summary.json").read_text())
    assert (body["policy"], body["met"]) == ("lara:order=edf", 0)
    assert set(body["jobs"]["cnn"]) >= {"verdict", "finished_at", "loss", "batches", "reason"}
    assert body["jobs"]["bad"]["verdict"] == "crashed"
    assert body["jobs"]["bad"]["traceback"].startswith("Traceback")
    assert body["figures"]["rejected_losses"] == 2
    assert summary.exit_code == 1
    out = io.StringIO()
    print_summary(summary, out)
    assert "lara:order=edf: 0 of 3 met" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_exit_codes() -> None:
    def code(*verdicts: str, interrupted: int | None = None) -> int:
        scheduler = Scheduler(Settings())
        for k, verdict in enumerate(verdicts):
            scheduler.handle(Submit((Job(f"{k}", 50.0, BatchTarget(5)),)), 0.0)
            done = Report(f"{k}", 1, 1, 9, 5 if verdict == "met" else 0, 1.0)
            scheduler.handle(done, 1.0)
            if verdict != "met":
                scheduler.handle(WorkerLeft(f"{k}", 1, crashed=verdict == "crashed"), 1.0)
        return Summary.of(Settings(), 2.0, scheduler.status(), Path(), interrupted).exit_code

    assert code("met", "met") == 0
    assert code("met", "missed") == 3
    assert code("missed", "crashed") == 1
    assert code("met", interrupted=2) == 130
    assert code("crashed", interrupted=15) == 143


def test_a_forecast_without_an_upper_end_is_shown() -> None:
    """Found live: the optimistic and the likely end are finite, the pessimistic one is not."""
    [job, *_] = some_jobs()
    unsure = replace(job, finish=(12.0, 20.0, float("inf")))
    Console(file=io.StringIO()).print(jobs_table(11.0, [unsure]))
    out = io.StringIO()
    PlainView(out).update(11.0, [unsure])
    assert "20.0s ±∞" in out.getvalue()


def test_every_reason_has_words_that_render() -> None:
    for code in WORDS:
        assert str(Reason(code, (1.0, 2.0), "text"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("0.5s", 0.5), ("1d2h3m4s", 93_784)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1:30", "5x", "-5s", "s", "1m1h", "1 h", "nan", None, 5, True, "0s"])
def test_durations_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match="duration must be"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (99.0, "99.0s"),
        (100.0, "1m40s"),
        (3600, "1h"),
        (90_000, "1d1h"),
        (86_460, "1d"),
        (1e12, ">30y"),
        (float("inf"), "∞"),
    ],
)
def test_durations_as_text(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
