"""What people are told is true: no figure that nobody has, no reason that no longer holds."""

from __future__ import annotations

import pytest

from lightning_core.core.answers import Answer, Verdict, VerdictChanged
from lightning_core.core.commands import Pause, Resume
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import CODES
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings


def notices(answers: list[Answer]) -> list[tuple[Verdict, str]]:
    return [(answer.verdict, str(answer.reason)) for answer in answers if isinstance(answer, VerdictChanged)]


def train(scheduler: Scheduler, job: str, loss: float, cells: int = 24) -> None:
    """A curve that stays where it is, a cell each ten batches and half second."""
    for k in range(1, cells + 1):
        scheduler.handle(Report(job, 1, k, 9, 10 * k, 0.5 * k, (Cell(k, 10 * k, loss),)), 0.5 * k)


@pytest.mark.parametrize("policy", ["triage", "guarded_edf", "index_edf"])
def test_a_job_that_does_not_get_there_is_not_said_to_need_no_time(policy: str) -> None:
    scheduler = Scheduler(Settings(policy=policy))
    scheduler.handle(Submit(tuple(Job(name, 60.0, LossTarget("loss", 0.1)) for name in "ab")), 0.0)
    train(scheduler, "a", 1.0)
    train(scheduler, "b", 2.0)
    scheduler.handle(Tick(), 13.0)
    told = [str(status.why) for status in scheduler.status()]
    assert all("0.0s" not in words for words in told)
    assert any(words.startswith("given up for now: by forecast it does not reach its target, ") for words in told)
    assert {"never", "likely_never"} <= set(CODES)


def test_a_verdict_is_explained_by_the_grant_that_holds_and_not_by_the_one_before() -> None:
    """The job is resumed, its policy cannot say when it ends: why it is at risk is not that it was paused."""
    scheduler = Scheduler(Settings(policy="fixed", policy_args={"shares": [1.0]}))
    scheduler.handle(Submit((Job("b", 60.0, BatchTarget(10**6)), Job("a", 60.0, BatchTarget(100)))), 0.0)
    scheduler.handle(Report("a", 1, 1, 9, 1, 0.1), 1.0)
    scheduler.handle(Pause("a"), 2.0)
    [_, status] = scheduler.status()
    assert (status.verdict, str(status.why)) == (Verdict.FEASIBLE, "paused by a person")
    assert str(status.reason) == "would need about 9.9s alone from now, and has 58.0s"
    assert notices(scheduler.handle(Resume("a"), 3.0)) == [(Verdict.AT_RISK, "has no fixed share")]


def test_a_paused_job_is_told_when_it_can_no_longer_make_it() -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 60.0, BatchTarget(100)), Job("b", 90.0, BatchTarget(10**6)))), 0.0)
    scheduler.handle(Report("a", 1, 1, 9, 1, 0.1), 1.0)
    scheduler.handle(Pause("a"), 2.0)
    told = [told for second in range(3, 60) for told in notices(scheduler.handle(Tick(), float(second)))]
    assert told == [(Verdict.INFEASIBLE, "needs at least 9.4s alone on the device and has 9.0s")]
