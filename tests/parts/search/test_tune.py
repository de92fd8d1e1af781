"""The scheduler for Ray Tune."""

import json
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import RunConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from benchmarks.searches.play import Action, Played, Terms, play
from benchmarks.searches.tune_contender import TuneContender
from lightning_core.parts.search.tune import DeadlineScheduler
from tests.parts.search.trials import table

NOW = datetime(2026, 11, 26, 17, 0).timestamp()


class InVirtualTime(TuneContender):
    """Tune's controller with a clock for the scheduler, and trials that have checkpoints or have none."""

    def __init__(self, make: Callable[[Callable[[], float]], TrialScheduler], checkpoints: bool) -> None:
        self.now = 0.0
        self.actions = list[tuple[float, Action]]()
        self._checkpoints = checkpoints
        super().__init__(make(lambda: NOW + self.now), len(table()))

    def next_trial(self, now: float) -> int | None:
        self.now = now
        return super().next_trial(now)

    def started(self, trial: int, now: float) -> None:
        super().started(trial, now)
        if self._checkpoints:
            self._running[trial].__class__ = WithCheckpoint

    def result(self, trial: int, epoch: int, value: float, now: float, last: bool) -> Action:
        self.now = now
        action = super().result(trial, epoch, value, now, last)
        self.actions.append((now, action))
        return action


class WithCheckpoint(Trial):
    """A trial that has reported a checkpoint."""

    checkpoint = "checkpoint"  # type: ignore[assignment]


def played(
    make: Callable[[Callable[[], float]], TrialScheduler], deadline: float, checkpoints: bool = True
) -> tuple[Played, InVirtualTime]:
    contender = InVirtualTime(make, checkpoints)
    return play(contender, table(), Terms(deadline, 2, 27, 0.1)), contender


def ours(clock: Callable[[], float], deadline: object = 60) -> DeadlineScheduler:
    return DeadlineScheduler(deadline, 27, metric="value", mode="min", clock=clock)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_its_value_at_the_deadline_is_not_behind_that_of_halving(checkpoints: bool) -> None:
    found, contender = played(ours, 60, checkpoints)
    other, _ = played(lambda clock: ASHAScheduler(max_t=27, metric="value", mode="min"), 60)
    assert found.best[-1] <= 1.05 * other.best[-1]
    assert found.best[-1] < 1.1 * 1.6 * 27**-0.7
    # A trial that has a checkpoint waits, and one that has none is stopped.
    assert (Action.PAUSE in [action for _, action in contender.actions]) == checkpoints


@pytest.mark.parametrize("deadline", ["30s", "17:01"])
def test_after_the_deadline_every_trial_is_stopped_and_none_begins(deadline: object) -> None:
    end = 30 if deadline == "30s" else 60
    _, contender = played(lambda clock: ours(clock, deadline), end + 10.0)
    late = [action for at, action in contender.actions if at >= end]
    assert Action.GO_ON in [action for at, action in contender.actions if at < end]
    assert len(late) <= 2
    assert set(late) <= {Action.STOP}
    assert contender.next_trial(end + 10.0) is None
    assert all(trial.is_finished() for trial in contender.get_trials())


def test_at_its_target_an_experiment_is_over() -> None:
    found, contender = played(
        lambda clock: DeadlineScheduler(60, 27, metric="value", mode="min", target=0.7, clock=clock), 60
    )
    assert found.best[-1] <= 0.7
    assert contender.actions[-1][0] < 60
    assert all(trial.is_finished() for trial in contender.get_trials())


def test_metric_and_mode_are_given_once() -> None:
    scheduler = DeadlineScheduler("1h", 10)
    assert scheduler.set_search_properties("loss", "min")
    assert scheduler.metric == "loss"
    assert not scheduler.set_search_properties("loss", "min")
    with pytest.raises(
        ValueError, match="needs a metric and a mode, here or in TuneConfig, got metric=None and mode=None"
    ):
        DeadlineScheduler("1h", 10).on_trial_add(None, None)


def test_the_status_of_tune_says_how_long_it_has() -> None:
    _, contender = played(ours, 20)
    assert contender.scheduler.debug_string().startswith("DeadlineScheduler: 40 s until the deadline, best value 0.")


def test_a_slow_start_is_no_part_of_the_pace_of_a_trial() -> None:
    now = [0.0]
    scheduler = DeadlineScheduler(60, 20, metric="value", mode="min", clock=lambda: NOW + now[0])
    trial = WithCheckpoint("trial", stub=True)
    scheduler.on_trial_add(None, trial)
    for step in range(1, 4):
        now[0] = 8.0 + 0.1 * step
        result = {"value": 1.0 / step, "training_iteration": step, "time_total_s": now[0]}
        scheduler.on_trial_result(None, trial, result)
    assert scheduler._search.trials[0].seconds_per_step == pytest.approx(0.1)
    assert scheduler._search.start == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("deadline", "steps", "message"),
    [("soon", 10, "must be a duration"), ("1h", 1, "max_steps must be at least 2 and finite, got 1")],
)
def test_a_bad_argument_is_refused(deadline: object, steps: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeadlineScheduler(deadline, steps)


def train(config: dict[str, Any]) -> None:
    """Report a loss twenty times, each after a twentieth of a second, and go on from a checkpoint."""
    import tempfile
    import time

    checkpoint = tune.get_checkpoint()
    step = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "step.json").read_text())
    while step < 20:
        time.sleep(0.05)
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step.json").write_text(json.dumps(step))
            tune.report(
                {"loss": (2.3 - config["slope"]) * step ** -config["slope"], "step": step},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


@pytest.mark.nightly
@pytest.mark.cluster
def test_tune_runs_an_experiment_with_it(local_ray: None, tmp_path: Path) -> None:
    scheduler = DeadlineScheduler("40s", 20, time_attr="step")
    tuner = tune.Tuner(
        train,
        param_space={"slope": tune.uniform(0.05, 0.8)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=12, max_concurrent_trials=2, scheduler=scheduler
        ),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    reported = [result.metrics for result in (results[k] for k in range(len(results))) if result.metrics]
    steps = sorted(metrics["step"] for metrics in reported if "step" in metrics)
    best = results.get_best_result()
    assert best.metrics is not None
    assert math.isfinite(best.metrics["loss"])
    # Not all were trained to their end, and the best was.
    assert steps[0] < 20
    assert steps[-1] == 20
