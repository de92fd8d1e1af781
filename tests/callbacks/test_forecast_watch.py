"""When a training asks for its forecast, and what its loggers get of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_core.agent.reporting import forecast_watch
from lightning_core.agent.reporting.forecast_watch import FORECAST_PERIOD, MAX_UNREAD, ForecastWatch
from lightning_core.core.answers import JobForecast, Verdict


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(forecast_watch, "time", made)
    return made


def scheduler(say: Callable[[], JobForecast | None], period: float = 0.0) -> Any:
    return SimpleNamespace(report_period=period, job_forecast=lambda job: say())


def forecast(verdict: Verdict | None, left: float = 9.0) -> JobForecast:
    return JobForecast(verdict, "because", 1.0, left, None)


def asked(clock: Clock, seconds: float, period: float = 0.0) -> list[float]:
    """Times at which a training asks that looks every tenth of a second, for some seconds."""
    watch, found = ForecastWatch(True), list[float]()

    def say() -> JobForecast:
        found.append(round(clock.now - 100.0, 1))
        return forecast(None)

    for k in range(round(10 * seconds)):
        clock.now = 100.0 + k / 10
        watch.poll(scheduler(say, period), "job", now=False, alerts=False)
    return found


def test_a_short_training_asks_often_and_a_long_one_every_five_seconds(clock: Clock) -> None:
    times = asked(clock, 200.0)
    assert times[0] == 0.0
    assert len([at for at in times if at < 6.0]) >= 10
    pauses = [b - a for a, b in pairwise(times)]
    assert min(pauses) > 0.45
    assert max(pauses) <= FORECAST_PERIOD + 0.2
    assert all(abs(pause - FORECAST_PERIOD) < 0.2 for at, pause in zip(times, pauses, strict=False) if at > 51)
    assert len(times) < 70


def test_a_scheduler_with_much_to_do_is_asked_less_from_the_beginning(clock: Clock) -> None:
    assert len(asked(clock, 60.0, period=2.0)) == 3


def test_loggers_get_the_newest_forecast_and_every_change_of_the_verdict(clock: Clock) -> None:
    watch = ForecastWatch(True)
    said = [forecast(None), forecast(Verdict.FEASIBLE, 9.0), forecast(Verdict.FEASIBLE, 8.0),
            forecast(Verdict.AT_RISK), forecast(Verdict.FEASIBLE, 7.0), forecast(Verdict.FEASIBLE, 6.0)]  # fmt: skip
    for one in said:
        watch.poll(scheduler(lambda one=one: one), "job", now=True, alerts=False)  # type: ignore[misc]
    assert watch.read() == [said[0], said[2], said[3], said[5]]
    assert watch.read() == []
    assert watch.newest == said[5]


def test_an_unread_forecast_is_kept_and_not_all_of_them(clock: Clock) -> None:
    watch = ForecastWatch(True)
    for k in range(3 * MAX_UNREAD):
        told = forecast(Verdict.AT_RISK if k % 2 else Verdict.FEASIBLE)
        watch.poll(scheduler(lambda told=told: told), "job", now=True, alerts=False)  # type: ignore[misc]
    assert len(watch.read()) == MAX_UNREAD


def test_without_a_forecast_nothing_is_logged(clock: Clock) -> None:
    watch = ForecastWatch(True)
    watch.poll(scheduler(lambda: None), "job", now=True, alerts=False)
    assert watch.read() == []
