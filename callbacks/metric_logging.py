"""Logging of a job's share, forecast and verdict, and the line that is printed at its end."""

from __future__ import annotations

import lightning.pytorch as pl

from lightning_core.core.answers import End, JobForecast
from lightning_core.view.console_lines import clear_bars
from lightning_core.view.console_lines import logger as console_logger

log = console_logger(__name__)


def metrics_of(news: JobForecast | End) -> dict[str, float]:
    """Return a forecast or an end as metrics for loggers, without unknown values.

    Example::

        >>> from lightning_core import Verdict
        >>> metrics_of(JobForecast(Verdict.AT_RISK, "late by 12m", 0.5, 60.0, None))
        {'lightning_core/share': 0.5, 'lightning_core/seconds_left': 60.0, 'lightning_core/verdict': 1.0}
    """
    known: dict[str, float | None] = {}
    if isinstance(news, JobForecast):
        known = {"share": news.share, "seconds_left": news.left, "seconds_to_spare": news.spare}
    known["verdict"] = None if news.verdict is None else float(news.verdict.number)
    return {f"lightning_core/{name}": value for name, value in known.items() if value is not None}


class MetricLog:
    """Logs forecasts and outcome of a job through the loggers of its Trainer.

    A logger that raises, for example because its server is away, costs the training nothing but what it would have
    shown: it is warned about once and gets no more of these metrics.

    Args:
        job: Name of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._failed: set[int] = set()

    def log(self, trainer: pl.Trainer, news: JobForecast | End) -> None:
        """Log a forecast or an end, at the step that Lightning uses for metrics logged now."""
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        for number, logger in enumerate(trainer.loggers):
            if number in self._failed:
                continue
            try:
                logger.log_metrics(metrics_of(news), step=step)
            except Exception as error:  # a logger raises whatever its service raises
                self._failed.add(number)
                log.warning("%s: no more forecasts for %s, which raised %s: %s", self._job, type(logger).__name__,
                            type(error).__name__, error)  # fmt: skip


def summary_line(job: str, forecast: JobForecast | None, refused: str = "") -> str:
    """Return the outcome of a job in one line: whether its target was met and, if not, what it would have taken.

    Args:
        job: Name of the job.
        forecast: Last forecast, which holds the verdict; None if there is none.
        refused: The pool's reason for refusing the job, if it did.

    Example::

        >>> from lightning_core import Verdict
        >>> summary_line("a", JobForecast(Verdict.MET, "target met with 51.0s to spare", 0.0, None, None))
        'lightning_core: a: met: target met with 51.0s to spare'
    """
    if forecast is None or forecast.verdict is None:
        why = f"the pool refused the job: {refused}" if refused else "the scheduler does not answer"
        return f"lightning_core: {job}: unknown whether the target was met: {why}"
    return f"lightning_core: {job}: {forecast.verdict}: {forecast.reason}"


def print_line(line: str) -> None:
    """Print a line where the user sees it whatever the log level, and above a progress bar.

    The bar itself is not asked to: that of tqdm prints nothing once it is closed.
    """
    clear_bars()
    print(line, flush=True)
