"""A journal as series: losses, forecasts, and the reasons of grants and verdicts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from lightning_core.core.answers import Accepted, End, Grant, Verdict, VerdictChanged
from lightning_core.core.codec import decode_event
from lightning_core.core.commands import SetDeadline, SetDevices, SetLocation
from lightning_core.core.events import Cell, Checkpoint, Event, ExitCause, Report, Submit, WorkerExited, WorkersLost
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.history.moments import Belief
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.view.why import why
from tests.builders import RESIZER
from tests.driven import HOSTILE, drive_sample, grant


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "journal.db"
    drive_sample(path)
    return path


@pytest.fixture(scope="module")
def history(run: Path) -> History:
    with Journal.open(run) as journal:
        history = History.read(journal)
        fill_in(journal, history)
    return history


def test_every_job_has_its_series(run: Path, history: History) -> None:
    with Journal.open(run) as journal:
        events = [decode_event(entry.event) for entry in journal.entries()]
    assert [(job.name, job.run_number) for job in history.jobs] == [
        ("cnn", 1), ("acc", 1), ("known", 1), ("bad", 1), ("steered", 1), ("cnn", 2),
    ]  # fmt: skip
    first, acc, known, bad, steered, second = history.jobs
    assert history.of("cnn") is second
    assert [history.label(job) for job in (first, second)] == ["cnn@1", "cnn"]
    cells = sum(len(event.cells) for event in events if isinstance(event, Report) and event.job == "steered")
    assert len(steered.points) == cells
    assert not known.points
    assert known.curve()[-1].tolist() == [known.ended, 300.0]
    assert [job.verdict for job in history.jobs] == [
        Verdict.MET, Verdict.MET, Verdict.MET, Verdict.CRASHED, Verdict.CANCELLED, Verdict.MET,
    ]  # fmt: skip
    assert bad.detail.startswith("Traceback")
    assert first.curve()[-1][1] <= first.goal == 0.4
    assert acc.curve()[-1][1] >= acc.goal == pytest.approx(0.7)
    for job in history.jobs:
        times = [point.time for point in job.points]
        assert times == sorted(times)
        assert job.ended is not None
        assert all(job.submitted <= time <= job.ended for time in times)
    assert [remark.words for remark in steered.remarks] == [
        "pause", "resume", "deadline 40.0s to 1m45s", "new terms: weight 1 to 2", "cancel",
    ]  # fmt: skip
    assert steered.deadlines == [(30.0, 70.0), (45.0, 135.0)]


def test_the_series_end_where_the_scheduler_is(run: Path, history: History) -> None:
    with Journal.open(run, read_only=True) as journal:
        statuses = replay(journal).scheduler.status()
    for job, status in zip(history.jobs, statuses, strict=True):
        assert (job.verdict, job.reason, job.ended) == (status.verdict, status.reason, status.finished_at)
        assert (job.deadline, job.progress[-1].batches) == (status.deadline, status.batches)
        assert job.progress[-1].busy == pytest.approx(status.busy)
        if isinstance(job.job.target, LossTarget):
            assert status.value is not None
            assert len(job.points) == status.cells
            assert job.curve()[-1][1] == pytest.approx(status.value)
            assert job.reached == status.value


def test_points_lie_between_the_reports_that_brought_them_and_not_where_the_job_was_held() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 99.0, LossTarget("loss", 0.1)),)), 0.0, [grant(1, 1.0)], [Accepted("a")])
    first, second = [(1, 10, 3.0), (2, 20, 2.0)], [(3, 30, 1.0), (4, 40, 0.9)]
    history.take(report(1, first), 4.0, [grant(2, 0.0)], [Accepted("a", 20, 4.0, tuple(cell[1:] for cell in first))])
    history.take(report(2, []), 10.0, [grant(3, 1.0)], [Accepted("a", 20, 4.0)])
    history.take(report(3, second), 12.0, [], [Accepted("a", 40, 6.0, tuple(cell[1:] for cell in second))])
    assert [point.time for point in history.of("a").points] == [2.0, 4.0, 11.0, 12.0]


def report(number: int, cells: list[tuple[int, int, float]], incarnation: int = 1, batches_at_start: int = 0) -> Report:
    batches = cells[-1][1] if cells else batches_at_start
    return Report(
        "a",
        incarnation,
        number,
        1,
        batches,
        1.0,
        tuple(Cell(*cell) for cell in cells),
        batches_at_start=batches_at_start,
    )


def test_a_job_beside_another_trains_although_it_has_no_share() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 99.0, LossTarget("loss", 0.1)),)), 0.0, [grant(1, 0.0)], [Accepted("a")])
    history.take(report(1, []), 4.0, [grant(2, 0.0)._replace(beside=7)], [Accepted("a")])
    history.take(report(2, []), 6.0, [grant(3, 1.0)], [Accepted("a")])
    assert history.of("a").trains_since == 4.0


@pytest.mark.parametrize(("share", "beside"), [(1.0, 0), (0.0, 7)])
def test_device_time_is_counted_by_the_devices_that_were_held_then(share: float, beside: int) -> None:
    history = History(Settings(devices=2))
    two = Grant("a", 1, 1.0, (0, 1), Reason("first_in_line"))
    one = Grant("a", 2, share, (0,), Reason("first_in_line"), beside=beside)
    history.take(Submit((Job("a", 99.0, LossTarget("loss", 0.1), max_devices=2),)), 0.0, [two], [Accepted("a")])
    for number, (busy, answers) in enumerate([(4.0, []), (10.0, [one]), (15.0, [])], 1):
        history.take(Report("a", 1, number, 1, 10 * number, busy), busy, answers, [Accepted("a", 10 * number, busy)])
    assert history.of("a").device_seconds == 10.0 * 2 + 5.0 * 1


def test_events_that_the_scheduler_did_not_accept_are_left_out() -> None:
    """The history shows what the scheduler accepted: it has no rules of its own for what is stale or repeated."""
    scheduler = Scheduler(Settings("fifo"))
    history = History(scheduler.settings)

    def take(event: Event, now: float) -> None:
        history.take(event, now, scheduler.handle(event, now), scheduler.accepted)

    launched = frozenset({Capability.HOLD, Capability.RELEASE})
    take(Submit((Job("a", 50.0, LossTarget("loss", 0.1), can=launched),)), 1.0)
    take(Submit((Job("a", 99.0, BatchTarget(5)),)), 2.0)  # the first one stands
    take(report(1, [(1, 10, 3.0), (3, 30, 1.0)]), 3.0)  # the second cell is missing
    take(report(2, [(1, 10, 3.0), (2, 20, math.nan), (3, 30, 1.0)]), 4.0)
    take(Report("stranger", 1, 1, 1, 5, 1.0), 4.0)
    job = history.of("a")
    assert [point[1:] for point in job.points] == [(10, 3.0), (30, 1.0)]
    assert (len(history.jobs), len(job.grants), job.deadline, job.rejected) == (1, 1, 51.0, 1)
    take(WorkerExited("a", 1, ExitCause.LOST, "it died", Checkpoint(20, "0" * 64)), 4.5)
    take(report(1, [(1, 40, 0.8)], incarnation=2, batches_at_start=20), 6.0)
    take(report(3, [(4, 50, 0.7)]), 7.0)  # the first incarnation again
    take(WorkerExited("a", 1, ExitCause.RAISED, detail="old"), 7.0)
    take(SetDeadline("a", -3.0 + 10.0), 8.0)
    take(SetLocation("a", "nowhere"), 8.0)  # the pool has none
    assert [point.batches for point in job.points] == [10, 30, 40]
    assert (job.ended, job.detail, job.deadline, job.job.location) == (None, "it died", 15.0, "")
    assert [(fault.what, fault.batches, fault.start, fault.back) for fault in job.faults] == [("it died", 10, 20, 6.0)]
    assert [remark.words for remark in job.remarks] == ["resumed from batch 20", "deadline 50.0s to 14.0s"]
    assert job.progress[-1].busy == 2.0  # of both incarnations


def test_verdicts_change_when_noticed_and_the_last_is_the_end() -> None:
    history = History(Settings())
    history.take(Submit((Job("a", 50.0, BatchTarget(9)),)), 0.0, [grant(1, 1.0)], [Accepted("a")])
    assert history.of("a").verdict is None
    late, met = Reason("late", (3.0,)), Reason("target_met", (5.0,))
    lost = Reason("pool_lost", (0.0, 0.0))
    history.take(report(1, []), 2.0, [VerdictChanged("a", Verdict.AT_RISK, late)], [Accepted("a", 0, 1.0)])
    history.take(WorkersLost(), 3.0, [], [Accepted("a", fault=lost, restart=1)])
    history.take(report(2, []), 45.0, [End("a", 2, Verdict.MET, met)], [Accepted("a", 9, 1.0)])
    history.take(report(3, []), 46.0, [End("a", 2, Verdict.MET, met)], [])  # repeated
    job = history.of("a")
    assert job.beliefs == [Belief(2.0, Verdict.AT_RISK, late), Belief(45.0, Verdict.MET, met)]
    assert (job.ended, history.wall, history.last) == (45.0, 45.0, 46.0)
    assert [remark.words for remark in job.remarks] == []
    assert [fault.what for fault in job.faults] == ["the pool was lost, and its worker"]
    with pytest.raises(KeyError, match="no job 'b'; there are a"):
        history.of("b")


def test_forecasts_are_those_that_the_scheduler_made(run: Path, history: History) -> None:
    job = history.of("steered")
    assert len(job.forecasts) >= 6
    asked = job.forecasts[3]
    with Journal.open(run) as journal:
        scheduler = Scheduler(journal.settings())
        for entry in journal.entries():
            if entry.now > asked.time:
                break
            scheduler.handle(decode_event(entry.event), entry.now)
    [status] = [status for status in scheduler.status() if status.name == "steered"]
    assert (asked.early, asked.likely, asked.late) == status.finish
    for job in history.jobs:
        assert all(job.submitted < made.time < (job.ended or 0.0) for made in job.forecasts)
        assert all(made.early <= made.likely <= made.late for made in job.forecasts)


def test_why_lists_every_grant_verdict_and_command(history: History) -> None:
    lines = why(history, "steered")
    assert re.fullmatch(
        r"steered: cancelled: best \S+, target 0\.05 \(cancelled\)",
        lines[0],
    )
    assert lines[1].split() == ["after", "what", "share", "device", "reason"]
    assert re.search(r"0\.0s  submitted +loss <= 0\.05, deadline 40\.0s", lines[2])
    text = "\n".join(lines)
    assert re.search(r"5\.0s  command +pause\n", text)
    assert re.search(r"5\.0s  grant +0\.00  \S+ +paused by a person", text)
    assert re.search(r"at risk +forecast to take more than ten times as long as it has", text)
    assert re.search(r"15\.5s  command +new terms: weight 1 to 2", text)
    assert lines[-1].split()[:3] == ["70.0s", "cancelled", "cancelled:"]
    assert "(job 2 of this name)" in why(history, "cnn")[0]


def test_remarks_name_who_asked() -> None:
    history, job = History(Settings()), Job("a", 50.0, BatchTarget(9))
    history.take(Submit((job,)), 0.0, [grant(1, 1.0)], [Accepted("a")])
    history.take(SetDevices("a", 0, RESIZER), 20.0, [], [Accepted("a")])
    assert history.of("a").remarks[-1] == (20.0, "resizer", "number of devices: 0")


def test_why_cannot_control_the_terminal() -> None:
    for words in HOSTILE:
        history = History(Settings())
        end = End(words, 2, Verdict.CRASHED, Reason("crashed", text=words))
        history.take(
            Submit((Job(words, 50.0, LossTarget(words, 0.5)),)), 0.0, [grant(1, 1.0, words), end], [Accepted(words)]
        )
        assert all(line.isprintable() for line in why(history, words))
