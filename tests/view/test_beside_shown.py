"""Jobs that train at once on one device, wherever they are shown."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lightning_core.cli.status_command import _first
from lightning_core.core.answers import JobStatus, State
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget
from lightning_core.history.history import History
from lightning_core.history.job_history import JobHistory
from lightning_core.history.moments import Owned
from lightning_core.parts.web.status_rows import row_of, same_on_page
from lightning_core.pool.following import _visible
from lightning_core.pool.frame import frame_of
from lightning_core.report.gantt import about_lanes, gantt
from lightning_core.report.lanes import company, lanes, overlap, seconds_held, use
from lightning_core.report.page import page
from lightning_core.scheduler.summary import Summary
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.board import Board
from lightning_core.view.job_entry import job_entry, job_of_entry
from lightning_core.view.job_line import COLUMNS, line
from lightning_core.view.progress import PlainView
from lightning_core.view.why import why, why_now
from tests.pairs import pair, play, simulated

RESNET, BERT = "at 85% of its throughput alone", "beside resnet, at 85% of its throughput alone"


class Seen:
    """A pair that has been played, and how it was seen."""

    def __init__(self, folder: Path) -> None:
        path = folder / "journal.db"
        self.outcome, self.jobs = play(pair(), path)
        with Journal.open(path) as journal:
            self.history = History.read(journal)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return Seen(tmp_path_factory.mktemp("pair"))


def board(jobs: list[JobStatus], width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(Board(60.0, jobs, "triage", 1))
    return stream.getvalue()


# ------------------------------------------------------------------------------------------------ now


def test_both_train_although_one_has_no_share(seen: Seen) -> None:
    assert [(job.name, job.share, job.state, job.trains) for job in seen.jobs] == [
        ("resnet", 1.0, State.RUNNING, True),
        ("bert", 0.0, State.RUNNING, True),
    ]
    assert sum(job.held_share for job in seen.jobs) == pytest.approx(1.0)


def test_the_line_of_each_says_beside_whom_it_trains_and_how_fast(seen: Seen) -> None:
    resnet, bert = (dict(zip(COLUMNS, line(60.0, job), strict=True)) for job in seen.jobs)
    assert (resnet["share"], bert["share"]) == ("1.00", "beside")
    assert resnet["reason"].endswith(f"; scheduled; beside bert, {RESNET}")
    assert bert["reason"].endswith(f"; {BERT}")
    assert bert["reason"].count("beside") == 1


def test_the_board_says_it_at_any_width(seen: Seen) -> None:
    for width in (70, 90, 160, 240):
        words = " ".join(board(seen.jobs, width).split())
        assert "device 0: resnet 1.00, bert beside resnet" in words
        assert f"beside bert, {RESNET}" in words
        assert BERT in words
        assert "idle" not in words


def test_a_pace_that_has_changed_since_the_grant_is_told_once(seen: Seen) -> None:
    [_, bert] = seen.jobs
    assert "62%" not in (told := line(60.0, replace(bert, pace=0.7))[-1])
    assert told.count("beside resnet") == 1
    assert told.endswith("at 70% of its throughput alone")


def test_plain_lines_and_why_say_it_too(seen: Seen) -> None:
    stream = io.StringIO()
    PlainView(stream).update(60.0, seen.jobs)
    resnet, bert = stream.getvalue().splitlines()
    assert "share 1.00 of device 0" in resnet
    assert "share" not in bert
    assert "device 0" in bert
    assert why_now(seen.jobs[0])[-1] == f"running, 1.00 of device 0: scheduled; beside bert, {RESNET}"
    assert why_now(seen.jobs[1])[-1] == f"running, on device 0: {BERT}"


def test_those_that_train_come_first_in_a_long_list(seen: Seen) -> None:
    [resnet, bert] = seen.jobs
    waits = [replace(bert, name=f"waits-{k}", beside=(), state=State.QUEUED) for k in range(20)]
    shown, _ = _first([*waits, bert, resnet])
    assert {"bert", "resnet"} <= {job.name for job in shown}


def test_programs_read_it(seen: Seen, tmp_path: Path) -> None:
    [_, bert] = seen.jobs
    entry = job_entry(bert, tmp_path)
    assert (entry["beside"], round(entry["pace"], 2), entry["share"]) == (["resnet"], 0.85, 0.0)
    read = job_of_entry(entry)
    assert (read.beside, read.pace, read.held_share, read.device_seconds) == (
        bert.beside, bert.pace, bert.held_share, bert.device_seconds,
    )  # fmt: skip
    row = row_of(bert, 60.0)
    assert (row["beside"], row["held"], row["share"]) == (["resnet"], bert.held_share, 0.0)
    pytest.importorskip("pandas")
    assert frame_of([bert])["beside"].tolist() == [("resnet",)]


def test_a_job_whose_company_changes_is_told_to_who_watches(seen: Seen) -> None:
    [resnet, _] = seen.jobs
    alone = replace(resnet, beside=(), held_share=1.0)
    assert _visible(resnet) != _visible(alone)
    assert not same_on_page(resnet, alone, 60.0)


# ------------------------------------------------------------------------------------------------ afterwards


def test_why_tells_when_company_began_and_ended_and_at_which_pace(seen: Seen) -> None:
    resnet = [line for line in why(seen.history, "resnet") if "beside" in line]
    assert "; beside bert, at 62% of its throughput alone" in resnet[0]  # nothing was known of them
    assert resnet[-1].strip().endswith("; no longer beside bert")
    assert resnet[-1].split()[0] == "1m59s"  # bert has met its target
    bert = [
        line for line in why(seen.history, "bert") if line.endswith("  beside resnet, at 62% of its throughput alone")
    ]
    assert len(bert) == 1


def test_the_time_of_a_device_is_divided_among_those_that_train_at_once(seen: Seen) -> None:
    [lane] = lanes(seen.history)
    took = seen.history.wall
    assert sum(map(seconds_held, lane.values())) == pytest.approx(took)
    assert use(seen.history) == pytest.approx(1.0)
    assert max(high for stretches in lane.values() for *_, high in stretches) <= 1.0 + 1e-9
    for told in (seen.history.jobs, seen.outcome.summary.jobs):  # reports come some time after what they tell of
        assert sum(job.device_seconds for job in told) == pytest.approx(took, rel=0.01)
    assert sum(job.busy for job in seen.outcome.jobs) > 1.5 * took
    assert seen.outcome.summary.figures["device_use"] == pytest.approx(1.0, rel=0.01)


def test_their_time_is_hatched_on_the_report_and_a_legend_says_so(seen: Seen) -> None:
    drawn = page(seen.history)
    assert drawn.count('class="beside"') == 2  # one path for each job
    assert "url(#beside0)" in drawn
    assert 'id="beside0"' in drawn
    assert "Hatched: trained at the same time as others" in drawn
    assert drawn.count('class="share beside"') == 3  # both charts, and the legend


def test_nothing_is_hatched_where_none_trained_beside_another(tmp_path: Path) -> None:
    play(pair(), tmp_path / "journal.db", beside="never")
    with Journal.open(tmp_path / "journal.db") as journal:
        history = History.read(journal)
    assert "beside" not in gantt(history)
    assert about_lanes(history) == "The height is the share of the device."


@pytest.mark.parametrize(
    ("stretches", "times", "found"),
    [
        ([], [(0.0, 1.0)], []),
        ([(0.0, 4.0, 0.0, 1.0)], [], []),
        ([(0.0, 4.0, 0.0, 1.0)], [(1.0, 2.0), (3.0, 9.0)], [(1.0, 2.0, 0.0, 1.0), (3.0, 4.0, 0.0, 1.0)]),
        ([(0.0, 1.0, 0.0, 0.5), (2.0, 3.0, 0.2, 0.4)], [(1.0, 2.0)], []),
        ([(0.0, 1.0, 0.0, 0.5), (2.0, 3.0, 0.2, 0.4)], [(0.5, 2.5)], [(0.5, 1.0, 0.0, 0.5), (2.0, 2.5, 0.2, 0.4)]),
    ],
)
def test_stretches_within_times(
    stretches: list[tuple[float, float, float, float]],
    times: list[tuple[float, float]],
    found: list[tuple[float, float, float, float]],
) -> None:
    assert overlap(stretches, times) == found


def test_times_in_company_are_merged_where_hardly_anything_lies_between() -> None:
    job = JobHistory.of(Job("a", 60.0, BatchTarget(1)), 0.0, 1, None)
    levels: list[tuple[float, tuple[str, ...]]] = [
        (0.0, ()), (1.0, ("b",)), (4.0, ()), (5.0, ("b",)), (6.0, ("b", "c")), (8.0, ()),
    ]  # fmt: skip
    for time, beside in levels:
        job.own(Owned(time, 1.0, 0.5, beside))
    assert company(job, 20.0) == [(1.0, 4.0), (5.0, 8.0)]
    assert company(job, 20.0, gap=1.0) == [(1.0, 8.0)]
    job.own(Owned(9.0, 1.0, 0.5, ("b",)))
    assert company(job, 20.0)[-1] == (9.0, 20.0)
    job.ended = 10.0
    assert company(job, 20.0)[-1] == (9.0, 10.0)


def test_the_summary_says_how_much_of_the_device_each_had(seen: Seen, tmp_path: Path) -> None:
    told: Summary = seen.outcome.summary
    jobs = told.to_dict()["jobs"]
    assert all(jobs[name]["device_seconds"] < 0.7 * jobs[name]["busy"] for name in ("resnet", "bert"))


def test_a_third_one_waits_and_is_not_beside_them(tmp_path: Path) -> None:
    _, jobs = play([*pair(), simulated("vit", 900.0, 1500)])
    [waits] = [job for job in jobs if not job.trains]
    assert (waits.trains, waits.beside, waits.held_share) == (False, (), 0.0)
    assert "beside" not in line(60.0, waits)[COLUMNS.index("reason")]
