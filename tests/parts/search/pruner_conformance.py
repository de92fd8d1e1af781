"""Conformance suite for pruners of Optuna, whatever a study reports.

Run it on a pruner of your own::

    check_pruner(MyPruner)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import optuna
from optuna.trial import TrialState

from lightning_core.testing.checks import require

Direction = Literal["minimize", "maximize"]
STEPS, TRIALS = 16, 60


def check_pruner(make: Callable[[], optuna.pruners.BasePruner]) -> None:
    """Check that a pruner answers in every state of a study, changes nothing in it, and can be copied.

    Args:
        make: Creates the pruner, for trials of 16 steps that last less than an hour together.

    Raises:
        AssertionError: If a rule is broken; the message names it.

    Example::

        >>> check_pruner(optuna.pruners.MedianPruner)
    """
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        _check_first_report(make)
        _check_study(make, "minimize")
        _check_study(make, "maximize")
        _check_copies(make)
    finally:
        optuna.logging.set_verbosity(level)


def _check_first_report(make: Callable[[], optuna.pruners.BasePruner]) -> None:
    trial = _study(make).ask()
    require(trial.should_prune() is False, "a trial that has reported nothing must continue")
    trial.report(1.0, 0)
    require(isinstance(trial.should_prune(), bool | np.bool_), "prune() must return a bool")


def _check_study(make: Callable[[], optuna.pruners.BasePruner], direction: Direction) -> None:
    """Play a study of good, bad, late, broken and diverging trials, some side by side."""
    study = _study(make, direction)
    rng = np.random.default_rng(0)
    sign = 1.0 if direction == "minimize" else -1.0
    furthest = 0
    beside = study.ask()
    for number in range(TRIALS):
        trial = study.ask()
        level, slope, broken = rng.uniform(0.5, 2.0), rng.uniform(0.1, 0.6), number % 10 == 9
        for step in range(STEPS):
            value = math.nan if number % 10 == 8 else level * (1 + step) ** -slope
            trial.report(sign * value, step)
            furthest = max(furthest, step)
            before = _reported(study)
            prunes = trial.should_prune()
            require(isinstance(prunes, bool | np.bool_), "prune() must return a bool")
            require(repr(before) == repr(_reported(study)), "prune() must not change the study")
            if prunes:
                study.tell(trial, state=TrialState.PRUNED)
                break
            if broken and step == 3:
                study.tell(trial, state=TrialState.FAIL)
                break
        else:
            study.tell(
                trial, None if math.isnan(value) else sign * value, state=TrialState.FAIL if math.isnan(value) else None
            )
        if number % 5 == 0:
            beside.report(sign * 1.5 / (1 + number // 5), number // 5)
            require(isinstance(beside.should_prune(), bool | np.bool_), "prune() must answer for a trial that is late")
    require(furthest > 0, "some trial must continue after its first report")


def _check_copies(make: Callable[[], optuna.pruners.BasePruner]) -> None:
    study = _study(make)
    for number in range(3):
        trial = study.ask()
        for step in range(4):
            trial.report(1.0 + number - 0.1 * step, step)
            trial.should_prune()
        study.tell(trial, 1.0)
    twin = copy.deepcopy(study.pruner)
    trial = study.ask()
    trial.report(0.5, 0)
    frozen = study.get_trials()[-1]
    require(isinstance(twin.prune(study, frozen), bool | np.bool_), "a copy of a pruner must answer")


def _reported(study: optuna.Study) -> list[tuple[TrialState, dict[int, float]]]:
    return [(one.state, dict(one.intermediate_values)) for one in study.get_trials(deepcopy=False)]


def _study(make: Callable[[], optuna.pruners.BasePruner], direction: Direction = "minimize") -> optuna.Study:
    return optuna.create_study(direction=direction, pruner=make(), sampler=optuna.samplers.RandomSampler(seed=0))
