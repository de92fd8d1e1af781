"""Which part of their device trainings keep busy, and what follows from it for who trains beside whom."""

from __future__ import annotations

import pytest

from lightning_core.core.events import Report, Submit, Tick
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.scheduler.company.paces import Paces
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings


def started(*names: str) -> Scheduler:
    made = Scheduler(Settings("edf"))
    made.handle(Submit(tuple(Job(name, 1e5, BatchTarget(10**6)) for name in names)), 0.0)
    return made


def train(scheduler: Scheduler, job: str, parts: list[float | None], first: int = 1, incarnation: int = 1) -> None:
    """Report one second of training after the other, and the part of the device that each used."""
    used = 0.0
    for number, part in enumerate(parts, start=first):
        used += part or 0.0
        version = scheduler._table.directives[scheduler._table.row_of[job]].version
        told = None if part is None else used
        scheduler.handle(Report(job, incarnation, number, version, 10 * number, float(number), used=told), 2.0 * number)


def use(scheduler: Scheduler) -> dict[str, float]:
    return scheduler._state.forming.paces._use


def test_the_part_is_that_of_the_seconds_since_the_report_before() -> None:
    scheduler = started("a")
    train(scheduler, "a", [0.0, 0.4, 0.4, 0.4])
    assert use(scheduler)["a"] == pytest.approx(0.4)
    scheduler.handle(Report("a", 1, 5, 99, 50, 5.0, used=0.1), 10.0)  # less than before is nothing
    assert use(scheduler)["a"] == pytest.approx(1.2 / 4, abs=0.03)


def test_newer_seconds_count_more_and_it_is_at_most_one() -> None:
    scheduler = started("a")
    train(scheduler, "a", [0.0, *[0.2] * 30, *[0.8] * 200])
    assert use(scheduler)["a"] == pytest.approx(0.8, abs=0.03)
    scheduler = started("a")
    train(scheduler, "a", [0.0, 3.0, 3.0])
    assert use(scheduler) == {"a": 1.0}


def test_a_training_that_does_not_say_is_unknown_and_one_that_begins_to_say_it_counts_from_then() -> None:
    scheduler = started("a")
    train(scheduler, "a", [None] * 9)
    assert use(scheduler) == {}
    train(scheduler, "a", [0.3, 0.3, 0.3], first=10)
    assert use(scheduler)["a"] == pytest.approx(0.3)


def test_another_incarnation_counts_anew() -> None:
    scheduler = started("a")
    train(scheduler, "a", [0.0, 0.5, 0.5])
    table = scheduler._table
    table.last_report[0], table.incarnation[0], table.busy_before[0] = 0, 2, table.busy[0]
    train(scheduler, "a", [90.0, 0.5, 0.5], incarnation=2)
    assert use(scheduler)["a"] == pytest.approx(0.5)


def test_what_is_used_beside_others_says_nothing() -> None:
    scheduler = started("a", "b")
    table = scheduler._table
    train(scheduler, "a", [0.0, 0.9, 0.9])
    known = dict(use(scheduler))
    for row in (0, 1):
        table.beside[row], table.obeys[row], table.counts_from[row] = 1, True, True
    train(scheduler, "a", [0.9, 0.1, 0.1, 0.1], first=4)
    assert use(scheduler) == known


@pytest.mark.parametrize("used", [-0.1, float("nan"), float("inf"), 1e13])
def test_a_report_that_cannot_be_is_refused(used: float) -> None:
    scheduler = started("a")
    scheduler.handle(Report("a", 1, 1, 0, 10, 1.0, used=used), 1.0)
    assert scheduler._table.batches[0] == 0


def company_of(part: float | None, names: tuple[str, ...] = ("a", "b")) -> set[tuple[str, ...]]:
    """Return which companies are formed in the first 40 s of jobs that keep so much of their device busy."""
    scheduler = started(*names)
    found = set[tuple[str, ...]]()
    table = scheduler._table
    reported, busy = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    for k in range(200):
        now = 0.2 * k
        rates = {name: float(table.share[row]) for row, name in enumerate(names)}
        for row, name in enumerate(names):
            rate = rates[name] or (1.0 if table.beside[row] else 0.0)
            busy[name] += 0.2 * rate
            reported[name] += 1
            scheduler.handle(
                Report(
                    name, 1, reported[name], table.directives[row].version, int(50 * busy[name]), busy[name],
                    used=None if part is None else part * busy[name],
                ),
                now,
            )  # fmt: skip
            if table.beside[row]:
                found.add(table.beside_names(row))
        scheduler.handle(Tick(), now)
    return found


def test_trainings_that_each_fill_their_device_are_never_tried_together() -> None:
    assert company_of(1.0) == set()
    assert company_of(0.3) == {("a",), ("b",)}
    assert company_of(None), "nothing speaks against it"


def test_three_that_fill_the_device_are_not_expected_to_be_as_fast_as_each_pair() -> None:
    paces = Paces()
    for name in "abc":
        paces.use(name, 0.5)
    assert paces.expect("a", ("b",)).pace == pytest.approx(1.0)
    assert paces.expect("a", ("b", "c")).pace == pytest.approx(1 / 1.5)
    for _ in range(30):
        paces.observe("a", ("b",), 0.9, 2.0)
    assert paces.expect("a", ("b", "c")).pace == pytest.approx(0.9 / 1.5, abs=0.01)
    full = Paces()
    for name in "abc":
        full.use(name, 1.0)
    assert full.expect("a", ("b", "c")).pace == pytest.approx(1 / 3)
