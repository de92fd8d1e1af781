"""The report of a journal."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lightning_core.core.answers import Accepted, End, Verdict
from lightning_core.core.events import Cell, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.report.lanes import lanes, use
from lightning_core.report.page import MAX_ROWS, page, write
from lightning_core.report.style import STYLE
from lightning_core.report.svg import steps, thin, time_ticks
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from tests.driven import HOSTILE, Curve, drive, drive_sample, grant


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "journal.db"
    drive_sample(path)
    return path


@pytest.fixture(scope="module")
def history(run: Path) -> History:
    with Journal.open(run) as journal:
        history = History.read(journal)
        fill_in(journal, history)
    return history


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
        {0.0: [(Job(name, 60.0, BatchTarget(300)), Curve(throughput=20.0)) for name in "abc"]},
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
    """Check that a page runs nothing, loads nothing and closes every element."""
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
    assert not re.search(r"https?:|url\((?!#)|@import", text)
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
    for word in ("cnn@1", "val_acc >= 0.7", "deadline 40.0s to 1m45s", "first in line", "device 1"):
        assert word in words
    ids = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for svg in read.all("svg"):
        if "role" in svg:
            assert all(name in ids for name in (svg["aria-labelledby"] or "").split())
    assert len(read.all("svg", "chart")) == 6
    named = [attrs["href"] for attrs in read.all("a")]
    assert named == [*(f"#job{k}" for k in range(6)), "#job3"]  # who crashed is among the faults


def test_the_fan_has_a_blade_for_each_forecast(history: History) -> None:
    read = Page(page(history))
    made = sum(len(job.forecasts) for job in history.jobs)
    fans = [attrs for attrs in read.all("path", "fan") if "d" in attrs]
    assert len(fans) == made + 1  # and one in the legend
    wide = [attrs["d"] for attrs in fans if len(set(re.findall(r" (-?[\d.]+)", attrs["d"] or ""))) > 5]
    assert len(wide) > made / 2  # they are wedges, not lines
    assert len(read.all("path", "likely")) > 1


@pytest.mark.promise("S8")
@pytest.mark.parametrize("words", HOSTILE)
def test_text_from_outside_is_escaped(words: str) -> None:
    history = History(Settings())
    reason = Reason("crashed", text=words)
    jobs = (Job(words, 50.0, LossTarget(words, 0.5)), Job("b", 50.0, BatchTarget(5)))
    history.take(Submit(jobs), 0.0, [grant(1, 1.0, words)], [Accepted(words), Accepted("b")])
    history.take(
        Report(words, 1, 1, 1, 20, 1.0, (Cell(1, 10, 1.0), Cell(2, 20, 0.9))),
        5.0,
        [],
        [Accepted(words, 20, 1.0, ((10, 1.0), (20, 0.9)), batches_at_start=0)],
    )
    history.take(
        WorkerExited(words, 1, ExitCause.RAISED, detail=f"Trace\n{words}"),
        6.0,
        [End(words, 2, Verdict.CRASHED, reason)],
        [Accepted(words)],
    )
    text = page(history, words)
    read = harmless(text)
    shown = "".join(c for c in words if c.isprintable())
    assert sum(shown in data for data in read.words) >= 5
    assert all(c.isprintable() or c == "\n" for c in text)


def test_a_report_of_no_jobs_and_of_a_waiting_job() -> None:
    harmless(page(History(Settings())))
    history = History(Settings())
    history.take(Submit((Job("a", 50.0, LossTarget("loss", 0.5)),)), 0.0, [], [Accepted("a")])
    words = " ".join(harmless(page(history)).words)
    assert "0 of 1 target met in time, 1 still running" in words
    assert "no verdict yet" in words
    history.take(Tick(), 60.0, [], [])
    assert "0 of 1 target met in time, 1 running past the deadline" in " ".join(harmless(page(history)).words)


@pytest.mark.nightly
def test_eight_jobs_for_ten_minutes_fit_in_a_megabyte(tmp_path: Path) -> None:
    jobs = [(Job(f"job{k}", 500.0, LossTarget("loss", 0.01)), Curve(3.0, 0.2 + 0.05 * k, 30.0)) for k in range(8)]
    drive(tmp_path / "journal.db", Settings(policy="lara"), {0.0: jobs}, 600.0)
    with Journal.open(tmp_path / "journal.db") as journal:
        write(journal, tmp_path / "report.html")
        grants = max(len(job.grants) for job in History.read(journal).jobs)
    text = (tmp_path / "report.html").read_text()
    harmless(text)
    assert len(text) < 1_000_000
    assert (f"the newest {MAX_ROWS}" in text) == (grants > MAX_ROWS)


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(dark: bool) -> None:
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


def test_charts_have_their_elements() -> None:
    assert steps([(0.0, 1.0), (2.0, 0.0), (2.0, 0.5), (9.0, 1.0)], end=6.0) == [(0.0, 2.0, 1.0), (2.0, 6.0, 0.5)]
    points = np.column_stack([np.arange(1000.0), np.zeros(1000)])
    points[500, 1], points[501, 1] = 5.0, -5.0
    kept = thin(points, 100)
    assert len(kept) <= 110
    assert {(500.0, 5.0), (501.0, -5.0), (999.0, 0.0)} <= set(map(tuple, kept.tolist()))
    for end in (0.5, 7.0, 100.0, 5000.0, 1e6, 1e8):
        assert 1 <= len(time_ticks(end)) <= 6
