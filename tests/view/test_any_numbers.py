"""One job's numbers, whatever they are, are drawn, or fail alone with its name."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from lightning_core.core.answers import JobForecast, Verdict
from lightning_core.core.events import Cell, Event, Report, Submit
from lightning_core.core.jobs import Job
from lightning_core.core.limits import MAX_SECONDS
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.history.moments import FinishForecast
from lightning_core.report import chart
from lightning_core.report.card import card
from lightning_core.report.page import page
from lightning_core.report.svg import Scale, value_scale
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.board import Board
from lightning_core.view.why import rows
from tests.examples import examples
from tests.view.test_report import harmless

pytestmark = pytest.mark.promise("R15", "S8")

LOSSES = st.floats(-1e299, 1e299) | st.sampled_from([5e-324, 1e-322, 1e-300, 1e290, -1e290, 0.0, 1.0])
POSITIVE = st.floats(5e-324, 1e299)
SECONDS = st.floats(1e-9, MAX_SECONDS)
TARGETS: st.SearchStrategy[Target] = st.one_of(
    st.builds(LossTarget, st.just("loss"), LOSSES),
    st.builds(LossTarget, st.just("acc"), at_least=st.floats(-1e299, 0.9), best=st.floats(1.0, 1e299)),
    st.builds(BatchTarget, st.integers(1, 10**12)),
)
HOSTILE = [
    (LossTarget("loss", 5e-324), [1e290] * 12, MAX_SECONDS),
    (LossTarget("loss", 1e290), [1e-322] * 12, 1e-9),
    (LossTarget("loss", 0.1), [1e290, 1e-322] * 6, 60.0),
    (LossTarget("loss", 0.1), [1.0] * 6 + [1e290] + [0.5] * 6, 60.0),
    (LossTarget("acc", at_least=-1e299, best=1e299), [1e290] * 12, 60.0),
]


def events_of(target: Target, losses: list[float], deadline: float) -> list[tuple[Event, float]]:
    """A job with these losses beside one with usual ones."""
    events: list[tuple[Event, float]] = [
        (Submit((Job("any", deadline, target), Job("good", 60.0, LossTarget("loss", 0.1)))), 0.0)
    ]
    for number, loss in enumerate(losses, 1):
        cells = (Cell(number, 10 * number, loss),)
        events.append((Report("any", 1, number, 99, 10 * number, 0.5 * number, cells), float(number)))
        usual = (Cell(number, 10 * number, 2.0 * (10 * number) ** -0.4),)
        events.append((Report("good", 1, number, 99, 10 * number, 0.5 * number, usual), number + 0.1))
    return events


def told(target: Target, losses: list[float], deadline: float) -> tuple[Scheduler, History]:
    chosen = Settings(judge_after=4)
    scheduler, history = Scheduler(chosen), History(chosen)
    for event, now in events_of(target, losses, deadline):
        answers = scheduler.handle(event, now)
        history.take(event, now, answers, scheduler.accepted)
        for job in history.jobs:
            status = scheduler.last(job.name)
            if status.finish is not None and isinstance(event, Report):
                job.forecasts.append(FinishForecast(now, *status.finish))
    return scheduler, history


@settings(deadline=None, max_examples=examples(25))
@given(TARGETS, st.lists(LOSSES, min_size=1, max_size=14), SECONDS)
@example(*HOSTILE[0])
@example(*HOSTILE[1])
@example(*HOSTILE[2])
@example(*HOSTILE[3])
@example(*HOSTILE[4])
def test_report_board_and_reasons_show_any_numbers(target: Target, losses: list[float], deadline: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler, history = told(target, losses, deadline)
        text = page(history, "any")
        harmless(text)
        assert "cannot be drawn" not in text
        assert "nan" not in text
        stream = io.StringIO()
        for width in (60, 160):
            Console(width=width, file=stream).print(Board(99.0, scheduler.status()))
        assert "any" in stream.getvalue()
        assert all(rows(job) for job in history.jobs)


@settings(deadline=None, max_examples=examples(100))
@given(TARGETS, st.lists(st.tuples(st.floats(0, 1e12), LOSSES), max_size=20), st.lists(SECONDS, min_size=4, max_size=4))
def test_a_card_shows_any_numbers(target: Target, points: list[tuple[float, float]], times: list[float]) -> None:
    left, spare, early, late = times
    forecast = JobForecast(Verdict.FEASIBLE, "on time", 1.0, left, spare, early, late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = card("any", target, sorted(points), forecast, window=3)
    assert "nan" not in text


@settings(deadline=None, max_examples=examples(100))
@given(POSITIVE, POSITIVE, LOSSES)
@example(5e-324, 5e-324, 0.0)
@example(1e-322, 1e299, -1e299)
def test_scales_map_any_values_to_pixels(one: float, other: float, value: float) -> None:
    low, high = min(one, other), max(one, other)
    for log in (True, False):
        scale = value_scale(low, high, 158.0, 26.0, log=log)
        ticks = scale.ticks()
        assert 26.0 - 1e-6 <= scale(high) <= scale(low) <= 158.0 + 1e-6
        assert 1 <= len(ticks) <= 20
        room = 1e-6 * (scale.high - scale.low)
        assert all(scale.low - room <= tick <= scale.high + room for tick in ticks)
        assert abs(scale(value)) < float("inf")
    assert len(Scale(-high, high, 0.0, 100.0).ticks()) <= 20


def test_a_spike_does_not_hide_the_losses_after_it() -> None:
    _, history = told(*HOSTILE[3])
    assert history.of("any").curve()[-1, 1] == 0.5


def test_a_chart_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, history = told(*HOSTILE[3])
    drawn = chart.chart

    def failing(job: object, label: str, *rest: object) -> str:
        if label == "any":
            raise ValueError("math domain <error>")
        return drawn(job, label, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("lightning_core.report.job_card.chart", failing)
    text = page(history, "one")
    harmless(text)
    assert "The chart of any cannot be drawn: math domain &lt;error&gt;." in text
    assert text.count('<svg class="chart"') == 1


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_forecasts_of_any_numbers_are_filled_in(number: int, tmp_path: Path) -> None:
    scheduler, path = Scheduler(Settings(judge_after=4)), tmp_path / "journal.db"
    with Journal.create(path, scheduler.settings, durable=False) as journal:
        for event, now in events_of(*HOSTILE[number]):
            journal.append(event, now, scheduler.handle(event, now), scheduler.accepted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with Journal.open(path, read_only=True) as journal:
            fill_in(journal, History.read(journal))
