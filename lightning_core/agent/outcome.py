"""A job's forecast and outcome as metrics for loggers, and as the line that is printed at its end."""

from __future__ import annotations

from lightning_core.core.answers import End, JobForecast


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
