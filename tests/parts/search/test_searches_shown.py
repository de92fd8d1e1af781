"""A search has one line for all of its trials, of which only those that may train are listed."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lightning_core.cli.status_command import RECENT_SECONDS, recent_of
from lightning_core.core.answers import JobStatus, State, Verdict, Watched
from lightning_core.core.codec import job_from_dict, job_to_dict, status_from_dict, status_to_dict
from lightning_core.core.events import Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.parts import check_job_data
from lightning_core.core.targets import BatchTarget, EpochTarget, LossTarget, Target
from lightning_core.report.live_table import live_table
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.view.board import Board
from lightning_core.view.group_lines import MAX_ENDED, group_lines, is_listed
from lightning_core.view.job_entry import job_entry, job_of_entry
from lightning_core.view.progress import LiveView
from lightning_core.view.why import why_now

METRIC = EpochTarget(10, metric="val_acc", mode="max")


def trials(search: str, *best: float | None, target: Target = METRIC, now: float = 1.0) -> list[JobStatus]:
    """Return trials of a search: the first trains, the second is paused, all others have ended."""
    scheduler = Scheduler(Settings(policy="edf", devices=1))
    jobs = [Job(f"{search}-{k}", 600.0, target, parts={"search": {"trial_of": search}}) for k in range(len(best))]
    scheduler.handle(Submit(tuple(jobs)), 0.0)
    scheduler.handle(Tick(), now)
    found = [
        replace(job, watched=None if value is None else Watched(5, 0.0, value), best=value)
        for job, value in zip(scheduler.status(), best, strict=True)
    ]
    found[0] = replace(found[0], state=State.RUNNING)
    found[1:2] = [replace(job, paused=True, state=State.RELEASED) for job in found[1:2]]
    found[2:] = [replace(job, state=State.ENDED, finished_at=now, share=0.0) for job in found[2:]]
    return found


def plain(jobs: list[JobStatus], only: list[JobStatus] | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(Board(1.0, jobs, "edf", 1, only=only))
    return out.getvalue().splitlines()


def test_a_search_is_a_line() -> None:
    jobs = trials("night", 0.7, 0.8, 0.95, None)
    assert group_lines(jobs) == ["search night: 4 trials: 1 training, 1 paused, 2 ended; best val_acc 0.95, of night-2"]
    assert group_lines(trials("short", None)) == ["search short: 1 trial: 1 training"]
    assert group_lines([replace(job, parts={}) for job in jobs]) == []
    waits = [replace(job, state=State.QUEUED) for job in jobs[:1]]
    assert group_lines(waits) == ["search night: 1 trial: 1 waiting; best val_acc 0.7, of night-0"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (EpochTarget(10, metric="val_loss"), "; best val_loss 0.2, of own-1"),
        (LossTarget("val_loss", 0.1), "; best val_loss 0.2, of own-1"),
        (BatchTarget(100), ""),
    ],
)
def test_the_best_is_that_of_what_is_observed(target: Target, words: str) -> None:
    jobs = trials("own", 0.5, 0.2, 0.3, target=target)
    if not target.watches:
        jobs = [replace(job, watched=None) for job in jobs]
    assert group_lines(jobs) == [f"search own: 3 trials: 1 training, 1 paused, 1 ended{words}"]


def test_a_crashed_trial_is_counted_apart() -> None:
    jobs = trials("night", 0.7, 0.8, 0.9)
    jobs[2] = replace(jobs[2], verdict=Verdict.CRASHED)
    assert group_lines(jobs)[0].startswith("search night: 3 trials: 1 training, 1 paused, 1 crashed; best ")


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("deadline", [600.0, 500.0, math.inf])
def test_a_search_that_ended_before_another_of_its_name_began_is_not_counted(ended: bool, deadline: float) -> None:
    """Where its deadline was another one: else they are two runs of one search."""
    earlier = [
        replace(job, submitted_at=-100.0, deadline=deadline, state=State.ENDED, finished_at=-50.0 if ended else 50.0)
        for job in trials("night", 0.1, 0.9)
    ]
    number = 1 if ended and deadline != 600.0 else 3
    best = "best val_acc 0.5, of night-0" if number == 1 else "best val_acc 0.9, of night-1"
    [line] = group_lines([*trials("night", 0.5), *earlier])
    assert line.startswith(f"search night: {number} trial")
    assert line.endswith(best)


def test_trials_with_deadlines_of_their_own_or_none_are_all_counted() -> None:
    jobs = trials("own", 0.7, 0.95, 0.8)
    for deadlines in ((math.inf,) * 3, (600.0, 1200.0, 1800.0), (9.0, math.inf, 5.0)):
        told = [replace(job, deadline=deadline) for job, deadline in zip(jobs, deadlines, strict=True)]
        assert group_lines(told) == ["search own: 3 trials: 1 training, 1 paused, 1 ended; best val_acc 0.95, of own-1"]


def test_searches_of_two_owners_are_told_apart() -> None:
    jobs = [replace(job, owner=owner) for owner in ("ann", "bob", "") for job in trials("night", 0.5)]
    assert [line.split(":")[0] for line in group_lines(jobs)] == [
        "search night of ann", "search night of bob", "search night of -"
    ]  # fmt: skip


def test_trials_are_compared_by_what_the_newest_observes() -> None:
    jobs = trials("mixed", 0.7, 0.8)
    jobs[1] = replace(jobs[1], target=EpochTarget(10, metric="val_loss"), submitted_at=5.0)
    assert group_lines(jobs)[0].endswith("; best val_loss 0.8, of mixed-1")
    assert group_lines(trials("none", math.nan, math.inf)) == ["search none: 2 trials: 1 training, 1 paused"]


def test_the_newest_searches_are_shown_and_all_that_go_on() -> None:
    [live], *others = [trials(f"s{k}", None) for k in range(MAX_ENDED + 3)]
    jobs = [replace(live, submitted_at=0.0)]
    for k, [job] in enumerate(others, 1):
        jobs.append(replace(job, submitted_at=float(k), state=State.ENDED, finished_at=50.0))
    lines = [line.split(":")[0] for line in group_lines(jobs)]
    assert lines == [*(f"search s{k}" for k in (7, 6, 5, 4, 3)), "search s0", "and 2 earlier"]


def test_the_board_has_the_line_and_the_trials_that_may_train() -> None:
    jobs = [*trials("night", 0.7, 0.8, 0.95), replace(trials("x", None)[0], name="mine", parts={})]
    lines = plain(jobs, list(filter(is_listed, jobs)))
    names = [line.split(maxsplit=1)[0] for line in lines[3:] if line[:1] != " "]
    assert names == ["night-0", "mine", "search"]
    assert lines[-1].startswith("search night: 3 trials: ")
    assert plain(jobs[1:3], [])[2:] == group_lines(jobs[1:3])
    for lists_all, listed in ((False, ["night-0", "mine"]), (True, [job.name for job in jobs])):
        view = LiveView(Console(file=io.StringIO(), width=160), lists_all=lists_all)
        view.update(1.0, jobs)
        view.close()
        assert [job.name for job in view._live.renderable._only] == listed  # type: ignore[union-attr]


def test_a_board_of_one_search_does_not_call_idle_what_another_job_may_hold() -> None:
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(
        Board(1.0, trials("night", 0.7), "edf", 2, group=("search", "night"))
    )
    assert "jobs of search night" in out.getvalue()
    assert "device 1: idle, or another job's" in out.getvalue()


def test_a_notebook_shows_a_search_in_a_line_too() -> None:
    jobs = trials("<b>night", 0.7, 0.8, 0.95)
    table = live_table(1.0, jobs, {})
    assert table.count("<tr>") == 2  # the head and the one that trains
    assert "<div>search &lt;b&gt;night: 3 trials: 1 training, 1 paused, 1 ended; best val_acc 0.95" in table


def test_names_cannot_control_the_terminal() -> None:
    jobs = [replace(job, parts={"search": {"trial_of": "\x1b[2J\nx"}}) for job in trials("night", 0.7)]
    [line] = group_lines(jobs)
    assert "\x1b" not in line
    assert "\n" not in line
    assert "\x1b" not in "".join(why_now(jobs[0]))


def test_a_search_that_goes_on_keeps_what_ended_long_ago() -> None:
    now = 3 * RECENT_SECONDS
    old = [replace(job, finished_at=10.0) for job in trials("night", 0.7, 0.8, 0.95)[2:]]
    alive, ended = trials("night", 0.7), [replace(job, parts={}) for job in old]
    assert recent_of([*old, *alive], now) == [*old, *alive]
    assert recent_of(old, now) == []
    assert recent_of([*ended, *alive], now) == alive


def test_a_trial_stays_one_on_the_way() -> None:
    [status] = trials("night", 0.7)
    assert status_from_dict(status_to_dict(status)) == status
    assert job_of_entry(job_entry(status, Path("/"))).parts == {"search": {"trial_of": "night"}}
    job = Job("night-0", 60.0, METRIC, parts={"search": {"trial_of": "night"}})
    assert job_from_dict(job_to_dict(job)) == job
    assert "parts" not in job_to_dict(Job("a", 60.0, METRIC))
    assert why_now(status)[1] == "search: night"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"trial_of": "x" * 1000}, "search: trial_of must have at most"),
        ({"trial_of": " "}, "search: trial_of must be the name of a search"),
        ({"trial_of": 1}, "search: trial_of: expected str, got 1"),
        ({}, "search: .*trial_of"),
    ],
)
def test_data_of_another_form_are_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_job_data({"search": data})
