"""Views of many jobs with many observations: what is read and drawn is bounded, whatever happened."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from lightning_core.core.answers import Accepted, Answer, End, Grant, Verdict, VerdictChanged
from lightning_core.core.codec import decode_accepted, decode_answers, decode_event
from lightning_core.core.commands import Pause
from lightning_core.core.events import Cell, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import LossTarget
from lightning_core.history import forecasts
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History, read_entry
from lightning_core.history.moments import MetricPoint, Series
from lightning_core.report.lanes import Lane, count_boxes, lanes, seconds_held, thinned
from lightning_core.report.page import MAX_CARDS, first_jobs, page, write
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_database import JournalEntry
from lightning_core.view.why import why
from tests.driven import drive_sample
from tests.view.test_report import Page, harmless

MAX_BYTES = 5_000_000
# Elements of a page, most of which are folded away.
MAX_ELEMENTS = 60_000
ENDS = (Verdict.MET, Verdict.MISSED, Verdict.CRASHED, Verdict.CANCELLED)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "journal.db"
    drive_sample(path)
    return path


def write_journal(path: Path, jobs: int, reports: int, cells: int, devices: int) -> None:
    """Write what a busy pool would have written: every report brings cells, a grant and a verdict."""
    target = LossTarget("loss", 0.01)
    given = tuple(Job(f"job{k}", 50.0 + k, target) for k in range(jobs))
    with Journal.create(path, Settings(devices=devices), durable=False) as journal:
        journal.append(Submit(given), 0.0, [], [Accepted(job.name) for job in given])
        for number in range(1, reports + 1):
            for k, job in enumerate(given):
                now = number + k / jobs
                batches = [10 * (cells * (number - 1) + n) for n in range(1, cells + 1)]
                seen = tuple((at, 1.0 / at) for at in batches)
                sent = tuple(Cell(at // 10, at, value) for at, value in seen)
                report = Report(job.name, 1, number, number, batches[-1], float(number), sent)
                verdict = Verdict.FEASIBLE if number % 2 else Verdict.AT_RISK
                grant = Grant(job.name, number, (number % 2) / 4, (k % devices,), Reason("chosen", (1.0, 2.0)))
                answers: list[Answer] = [grant, VerdictChanged(job.name, verdict, Reason("on_time", (9.0,)))]
                if number == reports and k % 5:
                    answers = [End(job.name, number, ENDS[k % 4], Reason("crashed", text="x" * 500))]
                journal.append(report, now, answers, [Accepted(job.name, batches[-1], float(number), seen)])


def check_bounded(text: str, jobs: int) -> Page:
    read = harmless(text)
    assert len(text.encode()) < MAX_BYTES
    assert len(read.elements) < MAX_ELEMENTS
    assert len(read.all("svg", "chart")) == MAX_CARDS
    words = " ".join(read.words)
    assert f"Of {jobs:,} jobs, {MAX_CARDS} have a chart" in words
    assert f"{jobs - 20:,} more jobs" in words
    assert "--forecasts" in words
    return read


@pytest.mark.nightly
def test_the_report_of_many_jobs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "MAX_SECONDS", 0.0)
    write_journal(tmp_path / "journal.db", 250, 12, 10, 40)
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        write(journal, tmp_path / "report.html")
        history = History.read(journal)
    check_bounded((tmp_path / "report.html").read_text(), 250)
    assert sum(len(job.points) for job in history.jobs) == 250 * 12 * 10
    verdicts = [history.jobs[key].verdict for key in first_jobs(history)]
    assert verdicts == [Verdict.CRASHED] * 50 + [Verdict.MISSED] * 50  # those in trouble first


@pytest.mark.nightly
def test_the_report_of_a_thousand_jobs_and_a_million_cells_is_bounded(tmp_path: Path) -> None:
    write_journal(tmp_path / "journal.db", 1000, 50, 20, 64)
    with Journal.open(tmp_path / "journal.db", read_only=True) as journal:
        write(journal, tmp_path / "report.html")
    check_bounded((tmp_path / "report.html").read_text(), 1000)


def test_a_job_that_changed_all_the_time_has_a_bounded_chart() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 5000.0, LossTarget("loss", 0.1)),)), 0.0, [], [Accepted("a")])
    for number in range(1, 3000):
        grant = Grant("a", number, 1.0 / (1 + number % 3), (0,), Reason("its_turn"))
        verdict = VerdictChanged("a", Verdict.FEASIBLE if number % 2 else Verdict.AT_RISK, Reason("on_time", (9.0,)))
        history.take(Pause("a"), float(number), [grant, verdict], [Accepted("a")])
    read = harmless(page(history))
    assert len(read.elements) < 1500
    boxes = [attrs["d"] or "" for attrs in read.all("path", "share")]
    assert max(map(len, boxes)) < 20_000


def test_a_crowded_lane_keeps_the_time_that_each_job_held() -> None:
    turns = 20_000
    lane: Lane = {job: [(float(t), t + 1.0, 0.0, 1.0) for t in range(turns) if t % 40 == job] for job in range(40)} | {
        40: [(float(turns), 2.0 * turns, 0.25, 0.75)]
    }
    found = thinned(lane, 2.0 * turns, 1000)
    assert count_boxes(found) <= 1000
    assert sum(map(seconds_held, found.values())) == pytest.approx(sum(map(seconds_held, lane.values())), rel=0.1)
    assert seconds_held(found[40]) == pytest.approx(turns / 2, rel=0.01)
    assert all(0 <= low < high <= 1 for stretches in found.values() for _, _, low, high in stretches)
    few: Lane = {0: [(0.0, 1.0, 0.0, 1.0)]}
    assert thinned(few, 1.0, 1000) is few


def test_lanes_follow_a_job_from_device_to_device() -> None:
    history = History(Settings(devices=3))
    history.take(Submit((Job("a", 50.0, LossTarget("loss", 0.1)),)), 0.0, [], [Accepted("a")])
    for version, (now, devices) in enumerate([(1.0, (0,)), (2.0, (0, 1)), (4.0, (1,)), (5.0, ())], 1):
        grant = Grant("a", version, 1.0 if devices else 0.0, devices, Reason("its_turn"))
        history.take(Pause("a"), now, [grant], [Accepted("a")])
    assert lanes(history) == [{0: [(1.0, 4.0, 0.0, 1.0)]}, {0: [(2.0, 5.0, 0.0, 1.0)]}, {}]


def test_a_job_is_read_alone_as_with_all_others(sample: Path) -> None:
    with Journal.open(sample, read_only=True) as journal:
        whole = History.read(journal)
        for name in ("cnn", "acc", "known", "bad", "steered"):
            alone = History.read(journal, name)
            assert why(alone, name) == why(whole, name)
            assert list(alone.of(name).points) == list(whole.of(name).points)
            read, there = (sum(len(job.points) for job in one.jobs if job.name != name) for one in (alone, whole))
            assert read < there / 4


def test_an_entry_is_read_as_it_is_decoded(sample: Path) -> None:
    with Journal.open(sample, read_only=True) as journal:
        for entry in journal.entries():
            event = decode_event(entry.event)
            taken = read_entry(entry)
            assert taken.accepted == decode_accepted(entry.answers, event)
            assert taken.answers == decode_answers(entry.answers)
            assert taken.event == event


@pytest.mark.parametrize(
    "cell", [[1, 10, float("nan")], [1, 10, float("inf")], [1, True, 0.5], [1, 1.5, 0.5], [1, 2**60, 0.5], [1, 10, "x"],
             [1, 10, None], [1, 10], 7]
)  # fmt: skip
def test_a_cell_of_another_form_is_refused(cell: object) -> None:
    body = {"kind": "report", "job": "a", "incarnation": 1, "number": 1, "version": 1, "batches": 10, "busy": 1.0}
    event = json.dumps(body | {"cells": [cell]}, separators=(",", ":"))
    with pytest.raises((TypeError, ValueError)):
        read_entry(JournalEntry(1, 0.0, event, '[{"job":"a","accepted":{}}]', ""))


def test_forecasts_of_a_long_run_are_left_out_unless_asked_for(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "MAX_SECONDS", 0.1)
    with Journal.open(sample, read_only=True) as journal:
        history = History.read(journal)
        assert not fill_in(journal, history)
        assert not any(job.forecasts for job in history.jobs)
        assert "--forecasts" in page(history)
        assert fill_in(journal, history, always=True)
        assert any(job.forecasts for job in history.jobs)
        assert "--forecasts" not in page(history)


def test_an_observation_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        series = Series(MetricPoint)
        for k in range(100):
            series.extend((float(k), 10 * n, 0.5) for n in range(1000))
        assert tracemalloc.get_traced_memory()[0] < 32 * len(series)
    finally:
        tracemalloc.stop()
    assert series[-1] == MetricPoint(99.0, 9990, 0.5)
    assert series[-3:-1] == [MetricPoint(99.0, 9970, 0.5), MetricPoint(99.0, 9980, 0.5)]
    with pytest.raises(IndexError):
        series[100_000]
