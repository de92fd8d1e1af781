"""Logging of a job's share, forecast and verdict, and the line that is printed at its end."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import lightning.pytorch as pl

from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.core.answers import End, JobForecast

# Seconds of training per second that a call of the loggers has taken: a server that is slow costs at most two percent.
TRAINING_PER_CALL = 50


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
        everywhere: Whether the training has one process only. Of several, Lightning calls each logger on all, so that
            one of others may communicate there: then only Lightning's own, which log on rank 0, get these metrics.
    """

    def __init__(self, job: str, *, everywhere: bool = True) -> None:
        self._job = job
        self._everywhere = everywhere
        self._guarded = Guarded(job)
        self._failed: set[int] = set()
        self._not_before = 0.0

    def log(self, trainer: pl.Trainer, news: JobForecast | End, *, at_once: bool = False) -> None:
        """Log a forecast or an end, at the step that Lightning uses for metrics logged now.

        Args:
            trainer: Trainer of the job.
            news: What to log.
            at_once: Whether to log it even if the loggers have just taken long.
        """
        began = time.monotonic()
        if began < self._not_before and not at_once:
            return
        step, metrics = trainer.fit_loop.epoch_loop._batches_that_stepped, metrics_of(news)
        for number, logger in enumerate(trainer.loggers):
            if number in self._failed or not (self._everywhere or _logs_on_first_rank(logger)):
                continue
            if not self._guarded(f"forecasts in {type(logger).__name__}", partial(_log, logger, metrics, step), False):
                self._failed.add(number)
        took = time.monotonic() - began
        self._not_before = began + took * TRAINING_PER_CALL


def _log(logger: Any, metrics: dict[str, float], step: int) -> bool:
    logger.log_metrics(metrics, step=step)
    return True


def _logs_on_first_rank(logger: Any) -> bool:
    """Return whether a logger is one of Lightning's, none of which communicates between ranks."""
    home: str = type(logger).log_metrics.__module__
    return home.startswith(("lightning.pytorch.loggers.", "pytorch_lightning.loggers."))


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
