"""Whose the time of a device is in a history, while several jobs train on it at once."""

from __future__ import annotations

import pytest

from lightning_core.core.answers import End, Grant, Verdict
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.history.job_history import JobHistory
from lightning_core.history.own_time import OwnTime

WHY = Reason("submitted")


class Told:
    """Histories of jobs that are told of grants as a journal has them."""

    def __init__(self, *names: str) -> None:
        self.jobs = {name: JobHistory.of(Job(name, 60.0, BatchTarget(1)), 0.0, 1, None) for name in names}
        self.own = OwnTime()

    def at(self, now: float, **grants: tuple[float, int, float] | None) -> set[str]:
        """Give jobs a share, a group and a pace, or end them; return those whose part of a group has changed."""
        for name, given in grants.items():
            job = self.jobs[name]
            version = job.version + 1
            if given is None:
                job.answer(End(name, version, Verdict.MET, WHY), now)
            else:
                share, group, pace = given
                job.answer(Grant(name, version, share, (0,), WHY, beside=group, pace=pace), now)
            self.own.note(job)
        return {job.name for job in self.own.divide(now)}

    def shares(self) -> dict[str, float]:
        return {name: job.owned[-1].share for name, job in self.jobs.items() if job.ended is None and job.owned}


def test_alone_a_job_owns_its_share() -> None:
    told = Told("a", "b")
    assert told.at(0.0, a=(0.75, 0, 1.0), b=(0.25, 0, 1.0)) == set()
    assert told.shares() == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize(
    ("a", "b", "shares"),
    [
        ((1.0, 1, 0.9), (0.0, 1, 0.6), (0.6, 0.4)),
        ((1.0, 1, 1.0), (0.0, 1, 1.0), (0.5, 0.5)),
        ((0.5, 1, 0.8), (0.25, 1, 0.2), (0.6, 0.15)),
    ],
)
def test_a_company_divides_what_it_has_by_the_work_of_each(
    a: tuple[float, int, float], b: tuple[float, int, float], shares: tuple[float, float]
) -> None:
    told = Told("a", "b")
    assert told.at(0.0, a=a, b=b) == {"a", "b"}
    assert tuple(told.shares().values()) == pytest.approx(shares)
    assert told.jobs["a"].owned[-1].beside == ("b",)


def test_what_is_left_of_a_company_is_divided_anew() -> None:
    told = Told("a", "b", "c")
    told.at(0.0, a=(1.0, 1, 0.5), b=(0.0, 1, 0.5), c=(0.0, 1, 1.0))
    assert told.shares() == {"a": 0.25, "b": 0.25, "c": 0.5}
    assert told.at(5.0, c=None) == {"a", "b"}
    assert told.shares() == {"a": 0.5, "b": 0.5}
    told.at(6.0, b=(0.0, 0, 1.0), a=(1.0, 0, 1.0))
    assert told.shares() == {"a": 1.0, "b": 0.0}
    assert [(one.time, one.beside) for one in told.jobs["a"].owned] == [
        (0.0, ("b", "c")), (5.0, ("b",)), (6.0, ()),
    ]  # fmt: skip


def test_a_job_that_changes_its_company_leaves_the_one_before() -> None:
    told = Told("a", "b", "c")
    told.at(0.0, a=(0.5, 1, 0.8), b=(0.0, 1, 0.8), c=(0.5, 0, 1.0))
    told.at(1.0, a=(0.5, 0, 1.0), b=(0.0, 3, 0.8), c=(0.5, 3, 0.8))
    assert told.shares() == {"a": 0.5, "b": 0.25, "c": 0.25}


def test_a_repeated_grant_changes_nothing() -> None:
    told = Told("a", "b")
    told.at(0.0, a=(1.0, 1, 0.9), b=(0.0, 1, 0.6))
    for job in told.jobs.values():
        job.answer(Grant(job.name, 1, 1.0, (0,), WHY), 3.0)
        told.own.note(job)
    told.own.divide(3.0)
    assert told.shares() == pytest.approx({"a": 0.6, "b": 0.4})
    assert [len(job.owned) for job in told.jobs.values()] == [1, 1]
