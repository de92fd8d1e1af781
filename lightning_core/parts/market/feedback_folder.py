"""Feedback of the spot policy selector, which a finished run or pool leaves in its folder for later ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from lightning_core.parts.market.earlier_feedback import feedback_text
from lightning_core.parts.market.feedback_file import FEEDBACK
from lightning_core.parts.market.market_terms import MarketTerms, terms_of
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay


def leave_feedback(folder: Path, scheduler: Scheduler | None = None) -> None:
    """Write ``feedback.json``, unless there is nothing to tell.

    Args:
        folder: Folder of the run or pool, with its journal.
        scheduler: Its scheduler, if it is at hand.
    """
    path = folder / FEEDBACK
    try:
        if scheduler is None:
            with Journal.open(folder / "journal.db", read_only=True) as journal:
                if terms_of(journal.settings()) is None:
                    return
                scheduler = replay(journal).scheduler
        if (text := feedback_text(scheduler)) is not None:
            write_whole(path, text)
    except Exception as error:  # the run is over all the same
        print(f"{path}: cannot be written: {type(error).__name__}: {error}", file=sys.stderr)


def with_feedback(folder: Path, settings: Settings) -> Settings:
    """Return the settings of a new pool, whose selector begins with the feedback of the folder's earlier pools."""
    plans = settings.controllers.get("market", {})
    if plans.get("terms") is None or plans["terms"].get("feedback") or not (folder / FEEDBACK).exists():
        return settings
    terms = {**plans["terms"], "feedback": str(folder / FEEDBACK)}
    try:
        MarketTerms(**terms).earlier_jobs()
    except ValueError as error:  # it was a market with other policies
        print(f"spot policies are chosen without feedback from earlier jobs: {error}", file=sys.stderr)
        return settings
    return replace(settings, controllers={**settings.controllers, "market": {**plans, "terms": terms}})
