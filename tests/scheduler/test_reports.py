"""Duplicate, late and lost reports, deadlines that pass in any state of a job, and workers that come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import JobStatus, Verdict, Watched
from lightning_core.core.commands import Pause
from lightning_core.core.events import Cell, Event, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.targets import BatchTarget, EpochTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.server.host import Host
from lightning_core.storage.journals.journal import Journal
from tests.examples import examples

RUN = 12  # reports


def counted(status: JobStatus) -> tuple[object, ...]:
    return status.batches, status.cells, status.rejected, status.busy, status.loss, status.throughput


def report(number: int, known: int = 0, incarnation: int = 1) -> Report:
    """Return report ``number`` with all cells after the ``known`` ones; some are not numbers."""
    cells = tuple(Cell(n, 10 * n, 1e301 if n % 5 == 0 else 2.0 / n) for n in range(known + 1, number + 1))
    return Report("a", incarnation, number, 0, 10 * number, 1.5 * number, cells)


def scheduler_with_one_job() -> Scheduler:
    made = Scheduler(Settings("edf"))
    made.handle(Submit((Job("a", 1e4, LossTarget("loss", 0.01)),)), 0.0)
    return made


@pytest.mark.parametrize(("mode", "loss"), [("min", 0.4), ("max", None)])
def test_what_a_job_that_counts_epochs_watches_is_a_loss_where_less_is_better(mode: str, loss: float | None) -> None:
    scheduler = Scheduler(Settings("edf"))
    scheduler.handle(Submit((Job("a", 1e4, EpochTarget(9, metric="val", mode=mode)),)), 0.0)
    scheduler.handle(Report("a", 1, 1, 0, 10, 1.0, (Cell(1, 10, 0.4),), evaluated=True, epoch_batches=10), 1.0)
    status = scheduler.last("a")
    assert (status.value, status.best, status.loss) == (10.0, 10.0, loss)
    assert status.watched == Watched(10, 0.4, 0.4)


@pytest.mark.promise("F12", "R16")
@settings(max_examples=examples(30), deadline=None)
@given(st.data())
@pytest.mark.nightly
def test_duplicate_late_and_lost_reports_lead_to_the_same_state(data: st.DataObject) -> None:
    """A worker sends cells again until they are acknowledged; in between, reports may be lost or repeated."""
    calm, rough = scheduler_with_one_job(), scheduler_with_one_job()
    for number in range(1, RUN + 1):
        calm.handle(report(number, known=number - 1), 2.0 * number)
    sent, known = [report(1)], 0
    for number in range(1, RUN + 1):
        sent.append(newest := report(number, known))
        arrives = number == RUN or data.draw(st.booleans())
        heard = data.draw(st.lists(st.sampled_from(sent), max_size=4))
        if arrives:
            heard.append(newest)
        stale = [
            report(number, 0, incarnation=other) for other in data.draw(st.lists(st.sampled_from([0, 2]), max_size=1))
        ]
        for event in (*heard, *stale, *(heard if data.draw(st.booleans()) else ())):
            rough.handle(event, 2.0 * number)
            rough.check()
        if arrives and data.draw(st.booleans()):  # else the answer is lost
            known = number
    [expected], [found] = calm.status(), rough.status()
    assert counted(found)[:-1] == counted(expected)[:-1]
    assert expected.cells == RUN - RUN // 5


WHERE: dict[str, tuple[Event, ...]] = {
    "while it waits": (),
    "while it trains": (Report("late", 1, 1, 1, 10, 1.0),),
    "while it is paused": (Pause("late"),),
    "while its worker is away": (Report("late", 1, 1, 1, 10, 1.0), WorkerExited("late", 1, ExitCause.LOST, "dead")),
}


@pytest.mark.promise("F15")
@pytest.mark.parametrize("on_miss", list(OnMiss))
@pytest.mark.parametrize("where", WHERE)
def test_a_passed_deadline_ends_or_keeps_the_job_as_requested(where: str, on_miss: OnMiss) -> None:
    """It takes nothing from another job that is in time."""
    pool = Scheduler(Settings("edf"))
    other = Job("other", 5.0 if where == "while it waits" else 500.0, BatchTarget(1000), on_miss=OnMiss.CONTINUE)
    pool.handle(Submit((Job("late", 10.0, BatchTarget(1000), on_miss=on_miss), other)), 0.0)
    for at, event in enumerate(WHERE[where], 1):
        pool.handle(event, float(at))
    while (wakeup := pool.wakeup()) is not None and wakeup <= 12.0:
        pool.handle(Tick(), wakeup)
        pool.check()
    late, other_now = pool.status()
    if on_miss is OnMiss.STOP:
        assert (late.verdict, late.finished_at, late.share) == (Verdict.MISSED, 10.0, 0.0)
    else:
        assert (late.verdict, late.finished_at) == (Verdict.MISSED, None)
        assert late.share == 0.0 or on_miss is OnMiss.CONTINUE
    if other_now.deadline > 12.0:
        assert other_now.share == 1.0


@pytest.mark.promise("F15")
def test_a_deadline_passes_while_no_process_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(Settings("edf"), tmp_path / "j.db", lambda: 0.0)
    host.handle(Submit((Job("late", 10.0, BatchTarget(9), on_miss=OnMiss.STOP), Job("other", 1e6, BatchTarget(9)))))
    monkeypatch.setattr(Journal, "age", lambda journal: 60.0)
    again = Host(Settings("edf"), tmp_path / "j.db", lambda: 0.0)
    again.catch_up()
    late, other = again.scheduler.status()
    assert (late.verdict, other.share) == (Verdict.MISSED, 1.0)


@pytest.mark.promise("F34", "R9")
def test_a_worker_that_always_dies_is_launched_with_pauses(
    record_property: Callable[[str, object], None],
) -> None:
    """Jobs that train beside it are not moved."""
    pool = Scheduler(Settings("edf", devices=2, resident=2))
    pool.handle(Submit((Job("calm", 5e3, BatchTarget(10**6)), Job("flaps", 4e3, BatchTarget(10**6)))), 0.0)
    launches, now, moved = 0, 0.0, set()
    while now < 600.0:
        if any(placement.job == "flaps" for placement in pool.placements()):
            launches += 1
            now += 2.0
            pool.handle(Report("flaps", pool.incarnation("flaps"), 1, 0, 5, 0.5), now)
            pool.handle(WorkerExited("flaps", pool.incarnation("flaps"), ExitCause.LOST, "dead"), now)
        wakeup = pool.wakeup()
        assert wakeup is not None
        now = max(now, wakeup)
        pool.handle(Tick(), now)
        pool.check()
        moved.add(pool.status()[0].devices)
    assert 5 <= launches <= 16
    assert len(moved) == 1
    record_property("figure", f"{launches} launches in 10 min of a worker that dies at once")
