"""Searches with a deadline: which trials of a hyper-parameter search train, for the best value by then.

:mod:`.decision` weighs trials by growth curves that are fitted to all of them (pure). It decides in a pool, whose jobs
are the trials (:mod:`.pool_search`, the command ``search``), with Lightning Trainers on one device
(:mod:`.lightning_search`), and inside Optuna (:mod:`.optuna`) and Ray Tune (:mod:`.tune`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_core.core.control import Rights
from lightning_core.core.limits import check_length
from lightning_core.core.parts import Group, Part


@dataclass(frozen=True)
class TrialData:
    """What a job of a pool has as ``parts: {search: ...}``.

    Args:
        trial_of: Name of the search of which the job is a trial.
    """

    trial_of: str

    def __post_init__(self) -> None:
        if not self.trial_of.strip():
            raise ValueError(f"trial_of must be the name of a search, got {self.trial_of!r}")
        check_length("trial_of", self.trial_of)


def _add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    from lightning_core.parts.search.search_commands import add_commands

    add_commands(command)


def _describe(trials: Sequence[Any]) -> str:
    from lightning_core.parts.search.trial_words import describe

    return describe(trials)


part = Part(
    commands=_add_commands,
    job_data=TrialData,
    group=Group(name=lambda data: str(data["trial_of"]), describe=_describe),
    askers={"search": Rights("its search", holds=True, rank=60)},
)
"""What ``lightning_core`` registers as the part ``search``."""
