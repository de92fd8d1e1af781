"""How far verdicts can be trusted, by histories of verdicts written by hand."""

from __future__ import annotations

import pytest

from benchmarks.curves.verdicts import JudgedJob, trust
from lightning_core.core.answers import Verdict
from lightning_core.core.jobs import Job
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import GivenVerdict, SimulatedJob
from lightning_core.simulation.simulation import Simulation

F, A, I = Verdict.FEASIBLE, Verdict.AT_RISK, Verdict.INFEASIBLE  # noqa: E741


def job(
    *told: tuple[float, int, Verdict], work: float = 50.0, deadline: float = 100.0, batches: int = 500, met: bool = True
) -> JudgedJob:
    """Return a job of 10 batches per second, whose target is at 500 batches."""
    return JudgedJob(work, deadline, 10.0, batches, met, tuple(GivenVerdict(*one) for one in told))


def test_only_jobs_that_could_be_met_count_as_told_infeasible() -> None:
    jobs = [
        job((10.0, 50, I)),
        job((10.0, 50, F)),
        job((10.0, 50, F), work=100.0, met=False),  # just possible alone
        job((10.0, 50, I), work=101.0, met=False),
        job((10.0, 50, A), work=float("inf"), met=False),
    ]
    assert trust(jobs).told == pytest.approx(1 / 3)
    assert trust(jobs).found == pytest.approx(1 / 2)


@pytest.mark.parametrize(("at", "wrong"), [(60.0, 1.0), (60.1, 0.0)])
def test_a_job_is_wrongly_told_that_it_is_infeasible_while_it_could_make_it_alone(at: float, wrong: float) -> None:
    """After 100 of its 500 batches it needs 40 s more, and its deadline is at 100 s."""
    waited = [job((at, 100, I), batches=100, met=False)]
    assert trust(waited).told == 1.0
    assert trust(waited).wrongly == wrong


def test_a_job_that_met_its_target_was_wrongly_told_that_it_is_infeasible() -> None:
    """By its nominal work it was too late, by rounding or a training that sped up."""
    assert trust([job((50.1, 0, I))]).wrongly == 1.0


def test_changes_are_counted_between_different_verdicts_and_the_first_is_none() -> None:
    jobs = [job(), job((1.0, 10, F)), job((1.0, 10, F), (2.0, 20, A), (3.0, 30, A), (4.0, 40, F), (5.0, 50, I))]
    assert trust(jobs).changes == (1.5, 1.5)


def test_a_job_is_asked_for_its_newest_verdict_at_each_part_of_its_way() -> None:
    """Its target is at 500 batches, so that 5, 10, 20 and 50 % are 25, 50, 100 and 250."""
    asked = job((3.0, 26, F), (6.0, 60, A), (9.0, 60, F), (25.0, 249, I))
    assert [asked.at(part) for part in (0.05, 0.1, 0.2, 0.5)] == [None, F, F, I]
    assert job((3.0, 20, F), batches=99, met=False).at(0.1) is F
    assert job((3.0, 20, F), batches=99, met=False).at(0.2) is None


def test_the_way_of_a_job_that_cannot_be_met_ends_at_its_deadline() -> None:
    never = job((3.0, 100, F), (9.0, 101, A), work=float("inf"), batches=900, met=False)
    assert never.at(0.1) is F
    assert never.at(0.2) is A


def test_feasible_comes_true_if_the_target_is_met_and_at_risk_if_it_is_not() -> None:
    met, missed = {"met": True}, {"met": False}
    told = [(F, met), (F, met), (F, missed), (A, met), (A, missed), (A, missed), (I, missed)]
    found = trust([job((1.0, 10, verdict), met=end["met"]) for verdict, end in told])
    assert found.feasible == pytest.approx([2 / 3] * 4)
    assert found.at_risk == pytest.approx([2 / 3] * 4)
    assert found.asked == ((3, 3),) * 4
    figures = found.figures()
    assert figures["feasible_true_5"] == pytest.approx(2 / 3)
    assert figures["at_risk_true_50"] == pytest.approx(2 / 3)


def test_a_mean_of_nothing_is_no_figure() -> None:
    assert set(trust([]).figures().values()) == {None}


def test_a_simulation_keeps_the_verdicts_on_each_job() -> None:
    """By the hyperbola 2 / s it reaches 0.02 at 100 batches, 10 s; the verdict comes once it has shown enough."""
    position = list(range(1, 201))
    given = SimulatedJob(Job("a", 30.0, LossTarget("loss", 0.02)), position, [2.0 / s for s in position], 10.0)
    [end] = Simulation(Settings(policy="edf", judge_after=10), [given]).run().jobs
    assert end.verdict is Verdict.MET
    assert [one.verdict for one in end.verdicts] == [A, F]
    assert [one.batches for one in end.verdicts] == [int(one.at * 10.0 + 1e-6) for one in end.verdicts]
    assert end.verdicts[0].batches == 10
