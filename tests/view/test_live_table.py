"""The live table of a pool in a notebook: what it says, how large it gets, and that no text can break out of it."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.pool import show as module
from lightning_core.pool.show import show
from lightning_core.report.live_table import HEIGHT, MAX_JOBS, MAX_POINTS, WIDTH, key_of, live_table, thinned
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings

CAN = frozenset({Capability.TIME_SLICE, Capability.HOLD})


def running(batches: int = 1000) -> tuple[float, list[JobStatus]]:
    """Two jobs, one with a target in batches and one with a loss to reach, after some seconds."""
    scheduler = Scheduler(Settings(devices=2))
    jobs = (Job("vit", 300.0, BatchTarget(2000), can=CAN), Job("gru", 600.0, LossTarget("val_loss", 0.05), can=CAN))
    scheduler.handle(Submit(jobs), 0.0)
    for number in range(1, batches // 20 + 1):
        now, at = 2.0 * number, 20 * number
        cells = (Cell(number, at, 2.0 / at**0.5),)
        for job in jobs:
            scheduler.handle(Report(job.name, 1, number, 99, at, now, cells), now)
        if (wakeup := scheduler.wakeup()) is not None and wakeup <= now:
            scheduler.handle(Tick(), now)
    return scheduler.now, scheduler.status()


class Balanced(HTMLParser):
    """Checks that what is opened is closed, and collects text and addresses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "path":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_each_job_has_a_row_with_its_fan() -> None:
    now, jobs = running()
    page = Balanced(live_table(now, jobs, {}))
    assert "2 jobs, 2 not over" in page.text
    assert "✓ feasible" in page.text
    assert "1,000 / 2,000" in page.text
    assert [tag for tag, _ in page.tags].count("svg") == 2
    fans = [at for tag, at in page.tags if tag == "path" and at.get("fill") == "#e69f00"]
    assert len(fans) == sum(job.finish is not None for job in jobs) == 2


def test_a_fan_leads_from_now_to_the_goal() -> None:
    now, [job, *_] = running()
    job = replace(job, finish=(now + 50.0, now + 100.0, now + 150.0), deadline=2 * now + 300.0, value=1000.0)
    [path] = [
        at["d"] or "" for tag, at in Balanced(live_table(now, [job], {})).tags if at.get("fill") == "#e69f00"
    ]  # fmt: skip
    (x, y), (early, goal), (late, same) = [tuple(map(float, p.split())) for p in path.strip("Mz").split("L")]
    assert goal == same < y < HEIGHT  # up: a target in batches
    assert 0 < x < early < late < WIDTH
    assert (late - x) / (early - x) == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "&lt;", "\x1b[2J"])
def test_no_text_breaks_out(evil: str) -> None:
    now, [job, *_] = running()
    job = replace(job, name=evil, reason=Reason("crashed", text=evil), grant_reason=Reason("paused", text=evil))
    page = Balanced(live_table(now, [job], {}))
    assert {tag for tag, _ in page.tags} <= {
        "div",
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
        "svg",
        "path",
    }
    assert not {"src", "href", "onerror"} & {key for _, at in page.tags for key in at}


def test_jobs_in_trouble_are_above_and_many_are_counted() -> None:
    now, [job, *_] = running()
    jobs = [replace(job, name=f"job-{k}", submitted_at=float(k)) for k in range(100)]
    jobs[60] = replace(jobs[60], verdict=Verdict.INFEASIBLE)
    jobs[0] = replace(jobs[0], state=State.ENDED, verdict=Verdict.MISSED, finish=None, finished_at=now)
    text = live_table(now, jobs, {})
    assert text.count("<tr>") == MAX_JOBS + 1
    assert "and 60 more" in text
    assert text.index("job-60<") < text.index("job-1<")
    assert "job-0<" not in text
    assert len(text) < 200_000


def test_a_curve_is_thinned() -> None:
    points: list[int] = []
    for k in range(10_000):
        points = thinned([*points, k])
        assert len(points) <= MAX_POINTS
        assert points[-1] == k
    assert points[0] == 0
    assert points == sorted(points)


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What IPython was asked to display in one place of a notebook, in its order."""
    pages: list[str] = []

    def display(page: Any, display_id: bool) -> Any:
        assert display_id
        assert not pages
        pages.append(page._repr_html_())
        return SimpleNamespace(update=lambda page: pages.append(page._repr_html_()))

    ipython, fake = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.__dict__.update(get_ipython=lambda: SimpleNamespace(kernel=1))
    fake.__dict__.update(display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    return pages


def test_the_table_is_kept_up_to_date_until_all_jobs_have_ended(displayed: list[str]) -> None:
    now, jobs = running()
    over = [replace(job, state=State.ENDED, verdict=Verdict.MET, finish=None, finished_at=now) for job in jobs]
    looks = iter([(now, jobs), (now + 1, jobs), (now + 2, over)])
    before = threading.active_count()
    show(lambda: next(looks), 60.0, 0.01)
    assert threading.active_count() == before
    assert ["2 not over" in page for page in displayed] == [True, True, False]
    assert "✓ met" in displayed[-1]
    assert next(looks, None) is None
    assert key_of(jobs[0]) == ("vit", 0.0)


def test_it_ends_after_some_seconds_or_at_once(displayed: list[str]) -> None:
    show(running, 0.0, 60.0)
    assert len(displayed) == 1


def test_the_button_that_stops_a_cell_ends_it_quietly(displayed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupted)  # type: ignore[attr-defined]
    show(running, 60.0, 1.0)
    assert len(displayed) == 1


def test_without_ipython_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(ImportError, match="IPython"):
        show(running, 0.0, 1.0)
