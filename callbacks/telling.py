"""What the user's own loggers are told: the share that the job holds, its forecast and its verdict."""

from __future__ import annotations

import lightning.pytorch as pl

from lightning_core.types import End, Outlook, Verdict

CODES = {
    Verdict.MET: 3.0,
    Verdict.FEASIBLE: 2.0,
    Verdict.AT_RISK: 1.0,
    Verdict.INFEASIBLE: 0.0,
    Verdict.MISSED: -1.0,
    Verdict.CANCELLED: -2.0,
    Verdict.CRASHED: -3.0,
}


def scalars(news: Outlook | End) -> dict[str, float]:
    """As loggers take them; what is not known is left out.

    Example::

        >>> scalars(Outlook(Verdict.AT_RISK, "late by 12m", 0.5, 60.0, None))
        {'lightning_core/share': 0.5, 'lightning_core/seconds_left': 60.0, 'lightning_core/verdict': 1.0}
    """
    known: dict[str, float | None] = {}
    if isinstance(news, Outlook):
        known = {"share": news.share, "seconds_left": news.left, "seconds_to_spare": news.spare}
    known["verdict"] = None if news.verdict is None else CODES[news.verdict]
    return {f"lightning_core/{name}": value for name, value in known.items() if value is not None}


def tell(trainer: pl.Trainer, news: Outlook | End) -> None:
    """Logs at the step that Lightning gives to what is logged now."""
    for logger in trainer.loggers:
        logger.log_metrics(scalars(news), step=trainer.fit_loop.epoch_loop._batches_that_stepped)
