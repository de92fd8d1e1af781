"""Asks for a job's forecast now and then, and tells the user when its verdict changes."""

from __future__ import annotations

import time
from collections import deque

from lightning_core.core.answers import JobForecast, Verdict
from lightning_core.core.protocols import Client
from lightning_core.view.console_lines import inform, logger

log = logger(__name__)

# Seconds between two requests for the forecast: a tenth of the training so far, so that a short one has some too, from
# the first number to the second; and reports between two where the scheduler asks for few.
MIN_FORECAST_PERIOD, FORECAST_PERIOD, FORECASTS_IN_A_TIME, REPORTS_PER_FORECAST = 0.5, 5.0, 10.0, 10
# Forecasts that a training which does no batch for long keeps for its loggers.
MAX_UNREAD = 100


class ForecastWatch:
    """Keeps the newest forecast of one job.

    Args:
        enabled: Whether forecasts are asked for at all.
    """

    def __init__(self, enabled: bool) -> None:
        self.newest: JobForecast | None = None
        """The newest forecast; None before there is any."""
        self._enabled = enabled
        self._since, self._next = time.monotonic(), 0.0
        self._requested = False
        self.unread = deque[JobForecast](maxlen=MAX_UNREAD)
        """Forecasts since the last call of :meth:`read`."""

    def request(self) -> None:
        """Ask for a forecast after the next report, whenever the last one came. Called from the training thread."""
        self._requested = True

    def take_request(self) -> bool:
        """Return whether a forecast was requested, and reset that."""
        requested, self._requested = self._requested, False
        return requested

    def read(self) -> list[JobForecast]:
        """Return the forecasts since the last call: the newest, and each before it whose verdict was another."""
        found = [self.unread.popleft() for _ in range(len(self.unread))]
        return [one for k, one in enumerate(found) if k + 1 == len(found) or one.verdict is not found[k + 1].verdict]

    def poll(self, client: Client, job: str, *, now: bool, alerts: bool, over: bool = False) -> None:
        """Ask for the forecast if it is time.

        Args:
            client: Client of the scheduler.
            job: Name of the job.
            now: Whether to ask even if it is too early.
            alerts: Whether to log alerts. The training logs those about its losses itself.
            over: Whether the job has ended, which the training itself reports.
        """
        if not self._enabled or not (now or time.monotonic() >= self._next):
            return
        before, self.newest = self.newest, client.job_forecast(job)
        period = max((time.monotonic() - self._since) / FORECASTS_IN_A_TIME, MIN_FORECAST_PERIOD)
        self._next = time.monotonic() + max(min(period, FORECAST_PERIOD), REPORTS_PER_FORECAST * client.report_period)
        if self.newest is None:
            return
        self.unread.append(self.newest)
        if alerts and self.newest.alert and not (before is not None and before.alert):
            log.warning("%s: %s", job, self.newest.alert)
        if not over:
            _tell_change(job, self.newest, None if before is None else before.verdict)


def _tell_change(job: str, forecast: JobForecast, before: Verdict | None) -> None:
    if forecast.verdict is None or forecast.verdict is before:
        return
    message = f"{job}: {forecast.verdict}: {forecast.reason}"
    if forecast.verdict in (Verdict.AT_RISK, Verdict.INFEASIBLE):
        log.warning(message)
    else:
        inform(message)
