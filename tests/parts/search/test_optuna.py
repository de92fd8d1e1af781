"""The pruner for Optuna."""

import logging
import math
from collections.abc import Callable
from datetime import datetime
from typing import Literal

import optuna
import pytest

from benchmarks.searches.optuna_contender import BEGINNING, OptunaContender
from benchmarks.searches.play import Action, Played, Terms, play
from lightning_core.parts.search.optuna import ForecastPruner
from tests.parts.search.pruner_conformance import check_pruner
from tests.parts.search.trials import table

Pruner = Callable[[], optuna.pruners.BasePruner]
PRUNERS: dict[str, Pruner] = {
    "nop": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "percentile": lambda: optuna.pruners.PercentilePruner(25.0),
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=16),
    "patient": lambda: optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(), 2),
    "forecast": lambda: ForecastPruner("1h", 16),
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(logging.ERROR)


@pytest.mark.parametrize("name", PRUNERS)
def test_pruners_conform(name: str) -> None:
    check_pruner(PRUNERS[name])


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (lambda study, trial: None, "must continue|return a bool"),
        (lambda study, trial: bool(trial.intermediate_values), "some trial must continue after its first report"),
        (lambda study, trial: study.ask() is None, "must not change the study"),
    ],
)
def test_a_pruner_that_breaks_a_rule_is_found(broken: Callable[[optuna.Study, object], bool], rule: str) -> None:
    class Broken(optuna.pruners.BasePruner):
        def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
            return broken(study, trial)

    with pytest.raises(AssertionError, match=rule):
        check_pruner(Broken)


def played(make: Callable[[Callable[[], float]], optuna.pruners.BasePruner], deadline: float) -> Played:
    trials = table()
    return play(OptunaContender(make, len(trials)), trials, Terms(deadline, 2, 27, 0.1))


def test_its_value_at_the_deadline_is_not_behind_that_of_halving() -> None:
    ours = played(lambda clock: ForecastPruner(60, 27, clock=clock), 60)
    theirs = played(lambda clock: optuna.pruners.SuccessiveHalvingPruner(), 60)
    assert ours.best[-1] <= 1.05 * theirs.best[-1]
    assert ours.best[-1] < 1.1 * 1.6 * 27**-0.7
    assert ours.trials > 8


def test_a_search_with_less_time_begins_fewer_trials() -> None:
    short, long = (played(lambda clock, d=d: ForecastPruner(d, 27, clock=clock), d) for d in (12, 90))  # type: ignore[misc]
    assert short.trials < 0.5 * long.trials


def asked(
    pruner: optuna.pruners.BasePruner, values: list[float], direction: Literal["minimize", "maximize"] = "minimize"
) -> bool:
    trial = optuna.create_study(direction=direction, pruner=pruner).ask()
    for step, value in enumerate(values):
        trial.report(value, step)
    return trial.should_prune()


class Watched(OptunaContender):
    """Keeps what became of trials, and when."""

    def __init__(self, make: Callable[[Callable[[], float]], optuna.pruners.BasePruner], trials: int) -> None:
        super().__init__(make, trials)
        self.actions = list[tuple[float, Action]]()

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        action = super().result(trial, epoch, value, now, last)
        self.actions.append((now, action))
        return action


@pytest.mark.parametrize("deadline", ["30s", datetime.fromtimestamp(BEGINNING + 30)])
def test_after_the_deadline_every_trial_is_stopped(deadline: object) -> None:
    trials = table()
    watched = Watched(lambda clock: ForecastPruner(deadline, 27, clock=clock), len(trials))
    play(watched, trials, Terms(40.0, 2, 27, 0.1))
    assert Action.GO_ON in [action for at, action in watched.actions if at < 30]
    late = [action for at, action in watched.actions if at >= 30]
    assert len(late) > 8
    assert set(late) == {Action.STOP}


def test_a_trial_that_has_diverged_is_stopped_and_one_at_its_last_step_is_not() -> None:
    assert asked(ForecastPruner("1h", 10), [math.nan])
    assert not asked(ForecastPruner("1h", 3), [3.0, 3.0, 3.0])


@pytest.mark.parametrize(("direction", "values"), [("minimize", [0.4] * 9), ("maximize", [0.6] * 9)])
def test_at_its_target_a_study_is_over(direction: Literal["minimize", "maximize"], values: list[float]) -> None:
    steps = len(values) + 1
    assert not asked(ForecastPruner("1h", steps), values, direction)
    assert asked(ForecastPruner("1h", steps, target=0.5), values, direction)


@pytest.mark.parametrize(
    ("deadline", "steps", "message"),
    [
        ("tomorrow", 10, "must be a duration such as '90s', '1h30m' or '02:30:00', or a time"),
        ("1h", 1, "max_steps must be at least 2 and finite, got 1"),
        (-5, 10, "duration must be positive, got -5"),
    ],
)
def test_a_bad_argument_is_refused(deadline: object, steps: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForecastPruner(deadline, steps)


@pytest.mark.parametrize("target", [None, 1.0])
def test_a_study_ends_with_its_deadline_or_target(target: float | None) -> None:
    began = datetime.now().timestamp()  # Optuna dates trials by the clock on the wall
    now = [began]
    study = optuna.create_study(pruner=ForecastPruner("100s", 10, target=target, clock=lambda: now[0]))

    def objective(trial: optuna.Trial) -> float:
        for step in range(10):
            now[0] += 1.0
            trial.report(1.0 / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.1

    study.optimize(objective, n_trials=1000)
    assert now[0] - began <= (101.0 if target is None else 1.0)


def test_a_deadline_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"deadline: must be a duration such as .*, got 'soon'"):
        ForecastPruner("soon", 10)
