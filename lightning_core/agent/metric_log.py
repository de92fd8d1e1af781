"""Logging of a job's share, forecast and verdict through the loggers of its training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lightning_core.agent.outcome import metrics_of
from lightning_core.agent.user_code.guarded import Guarded
from lightning_core.core.answers import End, JobForecast

# Seconds of training per second that a call of the loggers has taken: a server that is slow costs at most two percent.
TRAINING_PER_CALL = 50


class MetricLog:
    """Logs forecasts and outcome of a job through loggers of the form that Lightning and Fabric have.

    A logger that raises, for example because its server is away, costs the training nothing but what it would have
    shown: it is warned about once and gets no more of these metrics.

    Args:
        job: Name of the job.
        loggers: Returns the loggers.
        step: Returns the step at which metrics are logged now.
        everywhere: Whether the training has one process only. Of several, Lightning calls each logger on all, so that
            one of others may communicate there: then only Lightning's own, which log on rank 0, get these metrics.
    """

    def __init__(
        self, job: str, loggers: Callable[[], Sequence[Any]], step: Callable[[], int], *, everywhere: bool = True
    ) -> None:
        self._job = job
        self._loggers, self._step = loggers, step
        self._everywhere = everywhere
        self._guarded = Guarded(job)
        self._failed: set[int] = set()
        self._not_before = 0.0

    def log(self, news: JobForecast | End, *, at_once: bool = False) -> None:
        """Log a forecast or an end.

        Args:
            news: What to log.
            at_once: Whether to log it even if the loggers have just taken long.
        """
        began = time.monotonic()
        if began < self._not_before and not at_once:
            return
        step, metrics = self._step(), metrics_of(news)
        for number, logger in enumerate(self._loggers()):
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
