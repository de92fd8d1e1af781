"""Reasons are true: their numbers are known, they still hold, and their words say what the numbers mean."""

from __future__ import annotations

import pytest

from lightning_core.core.answers import Answer, Verdict, VerdictChanged
from lightning_core.core.commands import Pause, Resume
from lightning_core.core.events import Cell, Report, Submit, Tick
from lightning_core.core.jobs import Beside, Job
from lightning_core.core.reasons import CODES, Reason
from lightning_core.core.speedup import SpeedUp
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.policies import Decor
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from tests.conftest import ROOT
from tests.views import view


def notices(answers: list[Answer]) -> list[tuple[Verdict, str]]:
    return [(answer.verdict, str(answer.reason)) for answer in answers if isinstance(answer, VerdictChanged)]


def train(scheduler: Scheduler, job: str, loss: float, cells: int = 24) -> None:
    """Report a constant loss, a cell for every ten batches and half a second."""
    for k in range(1, cells + 1):
        scheduler.handle(Report(job, 1, k, 9, 10 * k, 0.5 * k, (Cell(k, 10 * k, loss),)), 0.5 * k)


@pytest.mark.parametrize("policy", ["triage", "guarded_edf", "index_edf"])
def test_the_reason_of_an_unreachable_target_names_no_time_needed(policy: str) -> None:
    scheduler = Scheduler(Settings(policy=policy, beside=Beside.NEVER))
    scheduler.handle(Submit(tuple(Job(name, 60.0, LossTarget("loss", 0.1)) for name in "ab")), 0.0)
    train(scheduler, "a", 1.0)
    train(scheduler, "b", 2.0)
    scheduler.handle(Tick(), 13.0)
    directives = [scheduler.directive(name) for name in "ab"]
    told = [str(directive.reason) for directive in directives if directive is not None]
    assert all("0.0s" not in words for words in told)
    assert any(words.startswith("not scheduled: by forecast it does not reach its target in time, ") for words in told)
    assert {"never", "likely_never"} <= set(CODES.values())


def test_a_verdict_is_explained_by_the_current_grant() -> None:
    """The job was resumed, and its policy cannot forecast its end: it is not at risk because it had been paused."""
    scheduler = Scheduler(Settings(policy="fixed", policy_args={"shares": [1.0]}))
    scheduler.handle(Submit((Job("b", 60.0, BatchTarget(10**6)), Job("a", 60.0, BatchTarget(100)))), 0.0)
    scheduler.handle(Report("a", 1, 1, 9, 1, 0.1), 1.0)
    scheduler.handle(Pause("a"), 2.0)
    [_, status] = scheduler.status()
    assert (status.verdict, str(status.grant_reason)) == (Verdict.FEASIBLE, "paused by a person")
    assert str(status.reason) == "would need about 9.9s alone from now and has 58.0s"
    assert notices(scheduler.handle(Resume("a"), 3.0)) == [(Verdict.AT_RISK, "no fixed share")]


def test_a_paused_job_gets_a_reason_when_it_becomes_infeasible() -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("a", 60.0, BatchTarget(100)), Job("b", 90.0, BatchTarget(10**6)))), 0.0)
    scheduler.handle(Report("a", 1, 1, 9, 1, 0.1), 1.0)
    scheduler.handle(Pause("a"), 2.0)
    told = [told for second in range(3, 60) for told in notices(scheduler.handle(Tick(), float(second)))]
    assert told == [(Verdict.INFEASIBLE, "needs at least 9.4s alone on its devices and has 9.0s")]


def test_the_reason_of_a_delayed_job_names_its_devices_and_its_start() -> None:
    """The delay must not be printed as if it were device time."""
    speed = [SpeedUp((1,), (10.0,))] * 2
    plan = Decor(alpha=1.0).plan(view([30.0, 30.0], [30.5, 90.0], exact=[True] * 2, speedup=speed), 0.0)
    assert CODES[plan.codes[1]] == "planned_later"
    devices, delay = plan.numbers[1]
    assert (devices, delay) == (1, pytest.approx(30.0, abs=0.5))
    assert str(Reason("planned_later", (2.0, 1800.0))) == "planned on 2 devices, starting in 30m"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason("behind", (1.0,)), "queued behind 1 job"),
        (Reason("behind", (12.0,)), "queued behind 12 jobs"),
        (Reason("too_large", (2048.0, 1.0)), "needs 2,048 devices, but the pool has 1"),
        (Reason("beyond_reach", (0.35, 60.0)), "cannot finish in time: it would be 60s late on 0.35 devices"),
        (Reason("late", (65.7,)), "forecast to finish 66s late"),
        (Reason("stands_still", (500.0, 8.0)), "would need more than 80s alone from now and has 8.0s"),
        (Reason("too_long", (500.0, 8.0)), "needs more than 80s alone on its devices and has 8.0s"),
        (
            Reason("ends_before", (4400.0, 13155.0), "max_epochs=200"),
            "its training ends at max_epochs=200 after 4,400 batches, but by forecast the target needs at least 13,000",
        ),
        (
            Reason("ends_before", (4400.0, 11183657.0), "max_steps=4400"),
            "its training ends at max_steps=4400 after 4,400 batches, but by forecast the target needs "
            "more than 44,000",
        ),
        (
            Reason("ends_before", (4400.0, 4440.0), "max_epochs=200"),
            "its training ends at max_epochs=200 after 4,400 batches, but by forecast the target needs more",
        ),
        (Reason("too_long", (93.4, 93.1)), "needs more alone on its devices and has 93.1s"),
        (Reason("retry_limit", (1.0,), "its process died"), "its process died; retry limit reached (1)"),
        (Reason("pool_lost", (8.0, 2.0)), "the pool was lost; it resumes from batch 8 and repeats 2 batches"),
        (
            Reason("outbid", (1800.0,)),
            "not scheduled: its 30m of device time would make other jobs miss their deadlines",
        ),
    ],
)
def test_reasons_read_as_english(reason: Reason, words: str) -> None:
    assert str(reason) == words


@pytest.mark.parametrize(
    ("target", "values", "words"),
    [
        (LossTarget("loss", 0.01), [0.5] * 24, "loss is not falling towards the target"),
        (
            LossTarget("val_acc", at_least=0.9),
            [0.5 - 0.01 * k for k in range(24)],
            "val_acc is not rising towards the target",
        ),
        (LossTarget("loss", 1e-9), [0.8 * 0.7**k for k in range(12)] + [0.012] * 60, "loss may not reach"),
        (LossTarget("val_acc", at_least=0.99), [0.1, 0.3, 0.5] + [0.6] * 60, "val_acc may not reach"),
    ],
)
def test_only_a_curve_that_was_seen_not_to_move_is_called_flat(
    target: LossTarget, values: list[float], words: str
) -> None:
    scheduler = Scheduler(Settings(policy="fifo", window=1))
    scheduler.handle(Submit((Job("a", 600.0, target),)), 0.0)
    for k, value in enumerate(values, 1):
        scheduler.handle(Report("a", 1, k, 9, 10 * k, 0.5 * k, (Cell(k, 10 * k, value),)), 0.5 * k)
    scheduler.handle(Tick(), 0.5 * len(values) + 1.0)
    status = scheduler.last("a")
    assert status.verdict is Verdict.AT_RISK
    assert words in str(status.reason)


def test_a_grant_is_explained_by_the_numbers_of_the_last_round() -> None:
    scheduler = Scheduler(Settings(policy="lara"))
    scheduler.handle(Submit(tuple(Job(name, 600.0, LossTarget("loss", 0.1)) for name in "ab")), 0.0)
    told = set()
    for k in range(1, 9):
        scheduler.handle(Report("a", 1, k, 9, 10 * k, 0.5 * k, (Cell(k, 10 * k, 1.0 / k),)), 0.5 * k)
        scheduler.handle(Tick(), 0.5 * k + 0.1)
        if (status := scheduler.last("a")).grant_reason.code == "explore":
            told.add(status.grant_reason.numbers[0])
    assert len(told) > 3


def test_the_last_line_that_the_readme_shows_is_one_that_is_said() -> None:
    reason = Reason("training_ended_more", (0.9134, 0.92, 250.0), " at max_epochs=30")
    shown = f"`lightning_core: resnet: missed: {reason}`"
    assert shown in " ".join((ROOT / "README.md").read_text().split())
