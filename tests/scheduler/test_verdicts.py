"""Verdicts on jobs whose work is forecast from their curves: patient, steady, and not moved by the clock."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.answers import Verdict
from lightning_core.core.arrays import FloatArray
from lightning_core.core.commands import SetDeadline
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler import status
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import SimulatedJob
from lightning_core.simulation.simulation import Simulation

F, A, I = Verdict.FEASIBLE, Verdict.AT_RISK, Verdict.INFEASIBLE  # noqa: E741
PLATEAU = 1.0 + 0.01 * np.sin(np.arange(1.0, 401.0))


def train(scheduler: Scheduler, losses: FloatArray, first: int = 1) -> None:
    """Report one cell of 10 batches a second and decide anew, from the cell ``first`` on."""
    for number, loss in enumerate(losses.tolist(), first):
        cell = Cell(number, 10 * number, loss)
        scheduler.handle(Report("a", 1, number, 99, 10 * number, float(number), (cell,)), float(number))
        scheduler.handle(Tick(), float(number))


def told(scheduler: Scheduler) -> Verdict | None:
    return scheduler.last("a").verdict


def submitted(deadline: float) -> Scheduler:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", deadline, LossTarget("loss", 0.5)),)), 0.0)
    return scheduler


@pytest.mark.parametrize(("drops", "verdicts"), [(True, {F, A}), (False, {F, A, I})])
def test_a_plateau_is_given_up_only_once_it_is_too_late_for_a_drop(drops: bool, verdicts: set[Verdict]) -> None:
    """The loss stands still for half of the time and then halves in 16 s; or it does not."""
    losses = PLATEAU.copy()
    if drops:
        losses[200:] *= np.geomspace(1.0, 1e-4, 200)
    given = SimulatedJob(Job("a", 400.0, LossTarget("loss", 0.5)), 10 * np.arange(1, 401), losses, 10.0)
    [end] = Simulation(Settings(policy="triage"), [given]).run(until=399.0).jobs
    assert {one.verdict for one in end.verdicts} <= verdicts
    assert end.verdict is (Verdict.MET if drops else I)
    assert len(end.verdicts) <= 3


def test_a_job_that_waits_is_not_found_infeasible_because_time_passes() -> None:
    scheduler = submitted(100.0)
    train(scheduler, PLATEAU[:40])
    for now in (60.0, 90.0, 99.9):
        scheduler.handle(Tick(), now)
        assert told(scheduler) is A


def test_new_terms_are_judged_at_once() -> None:
    scheduler = submitted(1000.0)
    train(scheduler, PLATEAU[:40])
    assert told(scheduler) is A
    scheduler.handle(SetDeadline("a", 1.0), 40.0)
    assert told(scheduler) is I
    scheduler.handle(SetDeadline("a", 1000.0), 40.0)
    assert told(scheduler) is A


@pytest.mark.parametrize(
    ("deadline", "target", "left", "verdict"),
    [
        (1e5, 0.05, 50.0, F),
        (1e5, 0.05, 1e8, A),  # in time by the estimator, but not by the forecast that is stated
        (41.0, 1e-6, 1e8, I),
        (41.0, 1e-6, 1.0, A),
    ],
)
def test_a_verdict_does_not_contradict_the_stated_forecast(
    monkeypatch: pytest.MonkeyPatch, deadline: float, target: float, left: float, verdict: Verdict
) -> None:
    monkeypatch.setattr(status, "work_left", lambda *_: np.full(20, left))
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", deadline, LossTarget("loss", target)),)), 0.0)
    train(scheduler, np.arange(10.0, 410.0, 10.0) ** -0.5)
    assert told(scheduler) is verdict


def test_a_forecast_is_restated_as_often_as_the_logarithm_of_the_batches_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[float]()

    def counted(position: FloatArray, *_: object) -> FloatArray:
        asked.append(float(position[-1]))
        return np.full(20, 50.0)

    monkeypatch.setattr(status, "work_left", counted)
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 1e5, LossTarget("loss", 0.01)),)), 0.0)
    train(scheduler, np.arange(10.0, 2010.0, 10.0) ** -0.5)
    growth = np.log(2000 / 100) / np.log(1.0 + status.RESTATED_AFTER)
    assert growth / 2 < len(asked) <= growth + 1


@pytest.mark.parametrize(
    ("power", "deadline", "steps"),
    [
        (1.0, 1e6, [(0.74, A), (0.76, F), (0.66, F), (0.64, A), (0.74, A)]),  # by forecast in time
        (0.0, 30.0, [(0.06, A), (0.04, I), (0.09, I), (0.11, A), (0.06, A)]),  # by forecast never
    ],
)
def test_a_verdict_stays_within_its_margin(
    monkeypatch: pytest.MonkeyPatch, power: float, deadline: float, steps: list[tuple[float, Verdict]]
) -> None:
    """At each step the job has trained twice as far, by the curve s^-power, and has another chance."""
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", deadline, LossTarget("loss", 1e-4)),)), 0.0)
    train(scheduler, np.arange(10.0, 100.0, 10.0) ** -power)
    found = []
    for number, (chance, _) in enumerate(steps, 10):
        monkeypatch.setattr(status, "trusted_chances", lambda jobs, now, history, chance=chance: np.array([chance]))
        batches = 100 * 2 ** (number - 10)
        cell = Cell(number, batches, float(batches) ** -power)
        scheduler.handle(Report("a", 1, number, 99, batches, batches / 10, (cell,)), float(number))
        scheduler.handle(Tick(), float(number))
        found.append(told(scheduler))
    assert found == [verdict for _, verdict in steps]
