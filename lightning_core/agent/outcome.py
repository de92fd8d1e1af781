"""How a training ended, for its scheduler, as metrics for loggers, and as the line that is printed."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from lightning_core.agent.steering.fit_signals import JobEnded, JobReleased
from lightning_core.core.answers import End, JobForecast
from lightning_core.core.events import ExitCause, WorkerExited


def exit_of(job: str, error: BaseException | None, limit: Callable[[], str]) -> WorkerExited:
    """Return how the training of a script has ended.

    Args:
        job: Name of the job.
        error: Exception by which it left its loop; None if there was none.
        limit: Returns what ended a training without an exception, such as ``at max_epochs=3``; empty if unknown.
    """
    if error is None:
        return WorkerExited(job, 0, ExitCause.DONE, limit())
    if isinstance(error, KeyboardInterrupt):
        return WorkerExited(job, 0, ExitCause.INTERRUPTED, "Ctrl-C")
    if type(error).__name__ == "SIGTERMException":  # Lightning's, of either of its packages
        return WorkerExited(job, 0, ExitCause.INTERRUPTED, "SIGTERM")
    if isinstance(error, JobEnded | JobReleased) or (isinstance(error, SystemExit) and not error.code):
        return WorkerExited(job, 0, ExitCause.DONE)
    message = " ".join(str(error).split()) or "no message"
    detail = f"{''.join(traceback.format_exception(error))}{type(error).__name__}: {message}"
    return WorkerExited(job, 0, ExitCause.RAISED, detail=detail)


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
