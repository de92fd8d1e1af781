"""What loggers are told, the share that a job holds, its forecast and its verdict; and the last line."""

from __future__ import annotations

import lightning.pytorch as pl

from lightning_core.core.answers import End, JobForecast, Verdict

CODES = {
    Verdict.MET: 3.0,
    Verdict.FEASIBLE: 2.0,
    Verdict.AT_RISK: 1.0,
    Verdict.INFEASIBLE: 0.0,
    Verdict.MISSED: -1.0,
    Verdict.CANCELLED: -2.0,
    Verdict.CRASHED: -3.0,
}


def scalars(news: JobForecast | End) -> dict[str, float]:
    """As loggers take them; what is not known is left out.

    Example::

        >>> scalars(JobForecast(Verdict.AT_RISK, "late by 12m", 0.5, 60.0, None))
        {'lightning_core/share': 0.5, 'lightning_core/seconds_left': 60.0, 'lightning_core/verdict': 1.0}
    """
    known: dict[str, float | None] = {}
    if isinstance(news, JobForecast):
        known = {"share": news.share, "seconds_left": news.left, "seconds_to_spare": news.spare}
    known["verdict"] = None if news.verdict is None else CODES[news.verdict]
    return {f"lightning_core/{name}": value for name, value in known.items() if value is not None}


def tell(trainer: pl.Trainer, news: JobForecast | End) -> None:
    """Logs at the step that Lightning gives to what is logged now."""
    for logger in trainer.loggers:
        logger.log_metrics(scalars(news), step=trainer.fit_loop.epoch_loop._batches_that_stepped)


def last_line(job: str, word: JobForecast | None, refused: str = "") -> str:
    """Return what became of a job in one line: whether it met its target, or why not, and what would have done.

    Example::

        >>> last_line("a", JobForecast(Verdict.MET, "target met with 51.0s to spare", 0.0, None, None))
        'lightning_core: a: met: target met with 51.0s to spare'
    """
    if word is None or word.verdict is None:
        why = f"the pool refused it: {refused}" if refused else "no scheduler answers"
        return f"lightning_core: {job}: not known whether it met its target: {why}"
    return f"lightning_core: {job}: {word.verdict}: {word.reason}"


def say(trainer: pl.Trainer, line: str) -> None:
    """Print a line where the training's user sees it, whatever is logged: above its progress bar, if there is one."""
    bar = trainer.progress_bar_callback
    if bar is not None and getattr(bar, "is_enabled", False):
        bar.print(line)
    else:
        print(line, flush=True)
