"""What a journal tells afterwards: series, reasons, the report, TensorBoard's files, the picture."""

from __future__ import annotations

import itertools
import math
import re
import struct
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.codec import decode_event
from lightning_core.journal import Journal, replay
from lightning_core.reasons import Reason
from lightning_core.scheduler import Scheduler, Settings
from lightning_core.types import (
    Amend,
    BatchTarget,
    Cancel,
    Cell,
    End,
    Event,
    Grant,
    Job,
    LossTarget,
    Notice,
    Pause,
    Report,
    Resume,
    Submit,
    Verdict,
    WorkerLeft,
    WorkersLost,
)
from lightning_core.view import tensorboard
from lightning_core.view.forecasts import fill_in
from lightning_core.view.gantt import lanes, use
from lightning_core.view.history import History
from lightning_core.view.job_history import Belief
from lightning_core.view.picture import draw
from lightning_core.view.report import MOST_GRANTS, page, write
from lightning_core.view.style import STYLE
from lightning_core.view.svg import steps, thin, time_ticks
from lightning_core.view.why import why
from tests.driven import Curve, drive

HOSTILE = ("<script>alert(1)</script>", '"onload="x', "</title></script>", r"$\foo$", "a\x1b[2Jb", "&lt;", "x\u202ey")


def lived(path: Path, settings: Settings | None = None) -> Scheduler:
    """Two devices, six jobs: one crashes, one is steered and cancelled, one name is used twice."""
    jobs = {
        0.0: [
            (Job("cnn", 60.0, LossTarget("loss", 0.4)), Curve(3.0, 0.4, 30.0)),
            (Job("acc", 90.0, LossTarget("val_acc", at_least=0.7)), Curve(1.0, 0.25, 20.0)),
            (Job("known", 70.0, BatchTarget(300)), Curve(speed=30.0)),
            (Job("bad", 80.0, LossTarget("loss", 0.01)), Curve(speed=60.0, crash_after=200)),
        ],
        30.0: [(Job("steered", 40.0, LossTarget("loss", 0.05)), Curve(3.0, 0.2, 30.0))],
        60.0: [(Job("cnn", 60.0, LossTarget("loss", 0.5)), Curve(3.0, 0.4, 30.0))],
    }
    events: dict[float, Event] = {
        35.0: Pause("steered"),
        40.0: Resume("steered"),
        45.0: Amend(Job("steered", 40.0, LossTarget("loss", 0.05), weight=2.0), deadline=90.0),
        100.0: Cancel("steered"),
    }
    return drive(path, settings or Settings(policy="edf", devices=2), jobs, 120.0, step=0.5, events=events)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "journal.db"
    lived(path)
    return path


@pytest.fixture(scope="module")
def history(run: Path) -> History:
    with Journal.open(run) as journal:
        history = History.read(journal)
        fill_in(journal, history)
    return history


# ------------------------------------------------------------------------------------------------ history


def test_every_job_has_its_series(run: Path, history: History) -> None:
    with Journal.open(run) as journal:
        events = [decode_event(entry.event) for entry in journal.entries()]
    assert [(job.name, job.life) for job in history.jobs] == [
        ("cnn", 1), ("acc", 1), ("known", 1), ("bad", 1), ("steered", 1), ("cnn", 2),
    ]  # fmt: skip
    first, acc, known, bad, steered, second = history.jobs
    assert history.of("cnn") is second
    assert [history.label(job) for job in (first, second)] == ["cnn (run 1)", "cnn"]
    cells = sum(len(event.cells) for event in events if isinstance(event, Report) and event.job == "steered")
    assert len(steered.points) == cells
    assert not known.points
    assert known.curve()[-1].tolist() == [known.ended, 300.0]
    assert [job.verdict for job in history.jobs] == [
        Verdict.MET, Verdict.MET, Verdict.MET, Verdict.CRASHED, Verdict.CANCELLED, Verdict.MET,
    ]  # fmt: skip
    assert bad.detail.startswith("Traceback")
    assert first.curve()[-1][1] <= first.goal == 0.4
    assert acc.curve()[-1][1] >= acc.goal == pytest.approx(0.7)
    for job in history.jobs:
        times = [point.time for point in job.points]
        assert times == sorted(times)
        assert job.ended is not None
        assert all(job.submitted <= time <= job.ended for time in times)
    assert [remark.words for remark in steered.remarks] == [
        "pause", "resume", "new terms: weight 1 to 2, deadline 40.0s to 1m45s", "cancel",
    ]  # fmt: skip
    assert steered.deadlines == [(30.0, 70.0), (45.0, 135.0)]


def test_the_series_end_where_the_scheduler_is(run: Path, history: History) -> None:
    with Journal.open(run, read_only=True) as journal:
        statuses = replay(journal).scheduler.status()
    for job, status in zip(history.jobs, statuses, strict=True):
        assert (job.verdict, job.reason, job.ended) == (status.verdict, status.reason, status.finished_at)
        assert (job.deadline, job.progress[-1].batches) == (status.deadline, status.batches)
        assert job.progress[-1].busy == pytest.approx(status.busy)
        if isinstance(job.job.target, LossTarget):
            assert status.loss is not None
            assert len(job.points) == status.cells
            assert job.curve()[-1][1] == pytest.approx(job.job.target.logged(status.loss))


def test_points_lie_between_the_reports_that_brought_them_and_not_where_the_job_was_held() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 99.0, LossTarget("loss", 0.1)),)), 0.0, [grant(1, 1.0)])
    history.take(report(1, [(1, 10, 3.0), (2, 20, 2.0)]), 4.0, [grant(2, 0.0)])
    history.take(report(2, []), 10.0, [grant(3, 1.0)])
    history.take(report(3, [(3, 30, 1.0), (4, 40, 0.9)]), 12.0, [])
    assert [point.time for point in history.of("a").points] == [2.0, 4.0, 11.0, 12.0]


def grant(version: int, duty: float, job: str = "a") -> Grant:
    return Grant(job, version, duty, (0,), Reason("first_in_line"))


def report(number: int, cells: list[tuple[int, int, float]], incarnation: int = 1, began: int = 0) -> Report:
    batches = cells[-1][1] if cells else began
    return Report("a", incarnation, number, 1, batches, 1.0, tuple(Cell(*cell) for cell in cells), began=began)


def test_what_did_not_move_the_scheduler_is_left_out() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 50.0, LossTarget("loss", 0.1)),)), 1.0, [grant(1, 1.0)])
    history.take(Submit((Job("a", 99.0, BatchTarget(5)),)), 2.0, [grant(1, 1.0)])  # the first one stands
    history.take(report(1, [(1, 10, 3.0), (3, 30, 1.0)]), 3.0, [])  # the second cell is missing
    history.take(report(2, [(1, 10, 3.0), (2, 20, math.nan), (3, 30, 1.0)]), 4.0, [])
    history.take(
        Report("stranger", 1, 1, 1, 5, 1.0), 4.0, [End("stranger", 0, Verdict.CANCELLED, Reason("unknown_job"))]
    )
    job = history.of("a")
    assert [point[1:] for point in job.points] == [(10, 3.0), (30, 1.0)]
    assert (len(history.jobs), len(job.grants), job.deadline) == (1, 1, 51.0)
    history.take(report(1, [(1, 40, 0.8)], incarnation=2, began=20), 5.0, [])
    history.take(report(3, [(4, 50, 0.7)]), 6.0, [End("a", 0, Verdict.CANCELLED, Reason("superseded"))])
    history.take(WorkerLeft("a", 1, crashed=True, detail="old"), 6.0, [])
    assert [point.batches for point in job.points] == [10, 30, 40]
    assert (job.ended, job.detail, job.remarks) == (None, "", [])
    assert job.progress[-1].busy == 2.0  # of both incarnations


def test_verdicts_change_when_noticed_and_the_end_is_the_last() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 50.0, BatchTarget(9)),)), 0.0, [grant(1, 1.0)])
    assert history.of("a").verdict is None
    late, met = Reason("late", (3.0,)), Reason("target_met", (5.0,))
    history.take(report(1, []), 2.0, [Notice("a", Verdict.AT_RISK, late)])
    history.take(WorkersLost(), 3.0, [])
    history.take(report(2, []), 45.0, [End("a", 2, Verdict.MET, met)])
    history.take(report(3, []), 46.0, [End("a", 2, Verdict.MET, met)])  # said again
    job = history.of("a")
    assert job.beliefs == [Belief(2.0, Verdict.AT_RISK, late), Belief(45.0, Verdict.MET, met)]
    assert (job.ended, history.wall, history.last) == (45.0, 45.0, 46.0)
    assert [remark.words for remark in job.remarks] == ["the pool was down: its worker is gone"]
    with pytest.raises(KeyError, match="no job 'b'; there are a"):
        history.of("b")


def test_forecasts_are_those_that_the_scheduler_made(run: Path, history: History) -> None:
    job = history.of("steered")
    assert len(job.forecasts) >= 6
    asked = job.forecasts[3]
    with Journal.open(run) as journal:
        scheduler = Scheduler(journal.settings())
        for entry in journal.entries():
            if entry.now > asked.time:
                break
            scheduler.handle(decode_event(entry.event), entry.now)
    [status] = [status for status in scheduler.status() if status.name == "steered"]
    assert asked[1:] == status.finish
    for job in history.jobs:
        assert all(job.submitted < made.time < (job.ended or 0.0) for made in job.forecasts)
        assert all(made.early <= made.likely <= made.late for made in job.forecasts)


def test_why_a_job_got_what_it_got(history: History) -> None:
    lines = why(history, "steered")
    assert lines[0] == "steered: cancelled (cancelled)"
    assert lines[1].split() == ["after", "what", "share", "device", "reason"]
    assert re.search(r"0\.0s  submitted +loss <= 0\.05, deadline 40\.0s", lines[2])
    text = "\n".join(lines)
    assert re.search(r"5\.0s  person +pause\n", text)
    assert re.search(r"5\.0s  grant +0\.00  \S+ +paused by a person", text)
    assert re.search(r"infeasible +needs .* alone on the device", text)
    assert re.search(r"15\.0s  person +new terms: weight 1 to 2", text)
    assert lines[-1].split() == ["70.0s", "cancelled", "cancelled"]
    assert "submitted under this name for the 2. time" in why(history, "cnn")[0]


def test_why_says_nothing_to_the_terminal() -> None:
    for words in HOSTILE:
        history = History(Settings())
        end = End(words, 2, Verdict.CRASHED, Reason("crashed", text=words))
        history.take(Submit((Job(words, 50.0, LossTarget(words, 0.5)),)), 0.0, [grant(1, 1.0, words), end])
        assert all(line.isprintable() for line in why(history, words))


# ------------------------------------------------------------------------------------------------ devices


def test_lanes_hold_what_was_granted(history: History) -> None:
    held = lanes(history)
    assert len(held) == 2
    for lane in held:
        stretches = sorted(stretch for mine in lane.values() for stretch in mine)
        for (since, until, low, high), (after, _, _, _) in itertools.pairwise(stretches):
            assert since < until <= after + 1e-9 or high - low < 1  # one after the other, or beside each other
            assert 0 <= low < high <= 1 + 1e-9
    granted = sum(
        (until - since) * (high - low) for lane in held for mine in lane.values() for since, until, low, high in mine
    )
    assert use(history) == pytest.approx(granted / (2 * history.wall))
    assert 0.3 < use(history) <= 1.0


def test_shares_of_one_device_are_stacked(tmp_path: Path) -> None:
    drive(
        tmp_path / "journal.db",
        Settings(policy="uniform"),
        {0.0: [(Job(name, 60.0, BatchTarget(300)), Curve(speed=20.0)) for name in "abc"]},
        20.0,
    )
    with Journal.open(tmp_path / "journal.db") as journal:
        [lane] = lanes(History.read(journal))
    assert [[pytest.approx(part) for part in lane[k][0][2:]] for k in range(3)] == [
        [0.0, 1 / 3], [1 / 3, 2 / 3], [2 / 3, 1.0],
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ the report


class Page(HTMLParser):
    """Reads a page strictly: every element that is opened is closed."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        found = [attrs for name, attrs in self.elements if name == tag]
        return [attrs for attrs in found if not kind or kind in (attrs.get("class") or "").split()]


def harmless(text: str) -> Page:
    """Nothing runs, nothing is loaded, nothing is left open."""
    read = Page(text)
    assert not read.open
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form", "img", "image", "use", "a:href"}
    for _, attrs in read.elements:
        for name, value in attrs.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "xlink:href", "action")
            assert name != "href" or (value or "").startswith("#job")
    [policy] = [attrs["content"] for attrs in read.all("meta") if "http-equiv" in attrs]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert "script" not in policy
    assert "//" not in STYLE.replace("//*", "")
    assert not re.search(r"https?:|url\(|@import", text)
    return read


def test_the_report_is_one_harmless_page(run: Path, history: History, tmp_path: Path) -> None:
    with Journal.open(run) as journal:
        write(journal, tmp_path / "report.html", "monday")
    text = (tmp_path / "report.html").read_text()
    assert text == page(history, "monday")
    read = harmless(text)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    words = " ".join(read.words)
    assert "4 of 6 targets met in time" in words
    for word in ("cnn (run 1)", "val_acc >= 0.7", "deadline 40.0s to 1m45s", "first in line", "device 1"):
        assert word in words
    ids = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for svg in read.all("svg"):
        if "role" in svg:
            assert all(name in ids for name in (svg["aria-labelledby"] or "").split())
    assert len(read.all("svg", "chart")) == 6
    named = [attrs["href"] for attrs in read.all("a")]
    assert named == [f"#job{k}" for k in range(6)]


def test_the_fan_has_a_blade_for_each_forecast(history: History) -> None:
    read = Page(page(history))
    made = sum(len(job.forecasts) for job in history.jobs)
    fans = [attrs for attrs in read.all("path", "fan") if "d" in attrs]
    assert len(fans) == made + 1  # and one in the legend
    wide = [attrs["d"] for attrs in fans if len(set(re.findall(r" (-?[\d.]+)", attrs["d"] or ""))) > 5]
    assert len(wide) > made / 2  # they are wedges, not lines
    assert len(read.all("path", "likely")) > 1


@pytest.mark.parametrize("words", HOSTILE)
def test_words_from_outside_stay_words(words: str) -> None:
    history = History(Settings())
    reason = Reason("crashed", text=words)
    jobs = (Job(words, 50.0, LossTarget(words, 0.5)), Job("b", 50.0, BatchTarget(5)))
    history.take(Submit(jobs), 0.0, [grant(1, 1.0, words)])
    history.take(Report(words, 1, 1, 1, 20, 1.0, (Cell(1, 10, 1.0), Cell(2, 20, 0.9))), 5.0, [])
    history.take(
        WorkerLeft(words, 1, crashed=True, detail=f"Trace\n{words}"), 6.0, [End(words, 2, Verdict.CRASHED, reason)]
    )
    text = page(history, words)
    read = harmless(text)
    shown = "".join(c for c in words if c.isprintable())
    assert sum(shown in data for data in read.words) >= 5
    assert all(c.isprintable() or c == "\n" for c in text)


def test_a_report_of_nothing_and_of_a_job_that_only_waits() -> None:
    harmless(page(History(Settings())))
    history = History(Settings())
    history.take(Submit((Job("a", 50.0, LossTarget("loss", 0.5)),)), 0.0, [])
    words = " ".join(harmless(page(history)).words)
    assert "0 of 1 target met in time, 1 not over yet" in words
    assert "no verdict yet" in words


def test_eight_jobs_for_ten_minutes_fit_in_a_megabyte(tmp_path: Path) -> None:
    jobs = [(Job(f"job{k}", 500.0, LossTarget("loss", 0.01)), Curve(3.0, 0.2 + 0.05 * k, 30.0)) for k in range(8)]
    drive(tmp_path / "journal.db", Settings(policy="lara"), {0.0: jobs}, 600.0)
    with Journal.open(tmp_path / "journal.db") as journal:
        write(journal, tmp_path / "report.html")
        grants = max(len(job.grants) for job in History.read(journal).jobs)
    text = (tmp_path / "report.html").read_text()
    harmless(text)
    assert len(text) < 1_000_000
    assert (f"the newest {MOST_GRANTS}" in text) == (grants > MOST_GRANTS)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_its_ground(dark: bool) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 at least; 1.4.11: 3 for what is drawn."""
    colours = dict(re.findall(r"--(\w+):(#\w+)", STYLE.split("@media")[0]))
    if dark:
        colours |= dict(re.findall(r"--(\w+):(#\w+)", STYLE.split("@media")[1]))
    for ground in ("page", "card"):
        for ink in ("ink", "soft", "accent"):
            assert contrast(colours[ink], colours[ground]) >= 4.5
        for drawn in ("bad", "risk", "accent"):
            assert contrast(colours[drawn], colours[ground]) >= 3
    for ground in ("goodbg", "riskbg", "badbg", "nonebg"):
        assert contrast("#000000", colours[ground]) >= 4.5


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_what_charts_are_made_of() -> None:
    assert steps([(0.0, 1.0), (2.0, 0.0), (2.0, 0.5), (9.0, 1.0)], end=6.0) == [(0.0, 2.0, 1.0), (2.0, 6.0, 0.5)]
    points = np.column_stack([np.arange(1000.0), np.zeros(1000)])
    points[500, 1], points[501, 1] = 5.0, -5.0
    kept = thin(points, 100)
    assert len(kept) <= 110
    assert {(500.0, 5.0), (501.0, -5.0), (999.0, 0.0)} <= set(map(tuple, kept.tolist()))
    for end in (0.5, 7.0, 100.0, 5000.0, 1e6, 1e8):
        assert 1 <= len(time_ticks(end)) <= 6


# ------------------------------------------------------------------------------------------------ other shapes


def scalars(folder: Path) -> list[tuple[str, int, float, float]]:
    """Tag, step, value and wall time of each scalar in a folder's one event file."""
    event_pb2: Any = pytest.importorskip("tensorboardX.proto.event_pb2")
    [file] = folder.iterdir()
    data, at, found = file.read_bytes(), 0, []
    while at < len(data):
        [length] = struct.unpack_from("<Q", data, at)
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4
        found += [(v.tag, event.step, v.simple_value, event.wall_time) for v in event.summary.value]
    return found


def test_tensorboard_has_a_run_for_each_job(run: Path, history: History, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    runs = tensorboard.write(run, tmp_path)
    assert [path.name for path in runs] == ["cnn (run 1)", "acc", "known", "bad", "steered", "cnn"]
    opened = run.stat().st_mtime - history.last
    job = history.of("steered")
    found = scalars(tmp_path / "steered")
    losses = [row for row in found if row[0] == "loss"]
    assert [row[1] for row in losses] == [point.batches for point in job.points]
    assert [row[2] for row in losses] == pytest.approx([point.loss for point in job.points])
    assert [row[3] for row in losses] == pytest.approx([opened + point.time for point in job.points])
    assert [row[2] for row in found if row[0] == "verdict"][-1] == tensorboard.NUMBERS[Verdict.CANCELLED]
    spare = [row for row in found if row[0] == "spare"]
    assert len(spare) > 50
    assert len({row[0] for row in found}) == 5
    assert max(row[2] for row in scalars(tmp_path / "acc") if row[0] == "val_acc") >= 0.7


def test_tensorboard_folders_stay_inside(tmp_path: Path) -> None:
    names = ["../out", "..", "a/b", "a_b", "$x\x1b"]
    drive(tmp_path / "journal.db", Settings(), {0.0: [(Job(n, 9.0, BatchTarget(50)), Curve()) for n in names]}, 5.0)
    pytest.importorskip("tensorboardX")
    runs = tensorboard.write(tmp_path / "journal.db", tmp_path / "logs")
    assert len(set(runs)) == 5
    assert all(path.parent == tmp_path / "logs" and path.is_dir() and path.name not in (".", "..") for path in runs)


def test_without_tensorboardx_the_user_is_told_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lightning-core-learning\[tensorboard\]'"):
        tensorboard.write(run, tmp_path)


def test_the_picture_is_drawn(run: Path, tmp_path: Path) -> None:
    with Journal.open(run) as journal:
        draw(journal, tmp_path / "run.svg")
    text = (tmp_path / "run.svg").read_text()
    assert text.count('id="line2d') > 20
