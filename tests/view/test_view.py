"""Output in the terminal: the live board, plain lines, the summary."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from lightning_core.core.answers import JobStatus, State, Verdict, Watched
from lightning_core.core.durations import format_duration
from lightning_core.core.events import Cell, ExitCause, Report, Submit, Tick, WorkerExited
from lightning_core.core.jobs import Job
from lightning_core.core.reasons import WORDS, Reason
from lightning_core.core.targets import BatchTarget, EpochTarget, LossTarget
from lightning_core.parts.web.status_rows import row_of
from lightning_core.run.follow import remembering
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.summary import Summary
from lightning_core.view.board import Board, bar_of
from lightning_core.view.job_line import COLUMNS, line
from lightning_core.view.progress import LiveView, PlainView, print_summary, view_for


def some_jobs() -> list[JobStatus]:
    scheduler = Scheduler(Settings(policy="edf", estimator="log_time"))
    jobs = (
        Job("cnn", 60.0, LossTarget("loss", 0.01)),
        Job("lstm", 90.0, BatchTarget(500)),
        Job("bad", 95.0, BatchTarget(5)),
    )
    scheduler.handle(Submit(jobs), 0.0)
    cells = tuple(Cell(n, 10 * n, 1.0 / n) for n in range(1, 21))
    scheduler.handle(Report("cnn", 1, 1, 1, 200, 10.0, cells, rejected=2), 10.0)
    scheduler.handle(Report("lstm", 1, 1, 1, 20, 1.0), 10.0)
    scheduler.handle(WorkerExited("bad", 1, ExitCause.RAISED, detail="Traceback\nValueError: \x1b[2J<b>"), 10.5)
    scheduler.handle(Tick(), 11.0)
    return scheduler.status()


def shown(now: float, jobs: list[JobStatus], width: int, *, encoding: str = "utf-8", height: int | None = None) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(Board(now, jobs, "edf", 2, one_screen=height is not None))
    out.seek(0)
    return out.read()


def test_a_device_that_is_not_planned_on_is_not_shown_as_idle() -> None:
    def lines(devices: int, unavailable: set[int]) -> list[str]:
        out = io.StringIO()
        board = Board(11.0, some_jobs(), "edf", devices, unavailable=unavailable)
        Console(file=out, width=220, color_system=None).print(board)
        return out.getvalue().splitlines()

    assert lines(3, {2})[1].split("   ") == ["device 0: cnn 1.00", "device 1: idle", "device 2: unavailable"]
    # A script trains where no worker can be started.
    assert lines(2, {0})[1].split("   ") == ["device 0: cnn 1.00", "device 1: idle"]
    assert "and 12 devices more; 17 of all are idle, 2 unavailable" in "\n".join(lines(20, {0, 3, 19}))


def test_a_wide_board_shows_every_column() -> None:
    text = shown(11.0, some_jobs(), 220)
    head, devices, columns, cnn, lstm, bad = text.splitlines()
    for words in ("edf", "2 devices", "11.0s", "✓ 2 feasible", "† 1 crashed", "1 running", "1 held"):
        assert words in head
    assert devices.split("   ") == ["device 0: cnn 1.00", "device 1: idle"]
    assert set(re.split("  +", columns.strip())) == {*COLUMNS, "now to deadline"} - {"owner", "memory"}
    for words in ("0.0559 / 0.01", "11.0s / 60.0s", "1.00", "20", "51s", "✓ feasible", "on time with 9.0s"):
        assert words in cnn
    assert "2 NaN or infinite losses ignored" in cnn
    assert "20 / 500 batches" in lstm
    assert "queued behind 1 job" in lstm
    assert "ValueError: [2J<b>" in bad
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 150, 200, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    jobs = [replace(job, name=job.name * 30) for job in some_jobs()]
    lines = shown(11.0, jobs, width).splitlines()
    assert 6 <= len(lines) <= 2 + 2 + 3 * 3  # the devices may take a line each, a job three
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_essential_columns_are_shown_at_any_width(width: int) -> None:
    text = shown(11.0, some_jobs(), width)
    columns, cnn = next(line for line in text.splitlines() if line.startswith("job ")), text.split("\ncnn ")[1]
    assert {"job", "verdict", "time / deadline", "loss / target"} <= set(re.split("  +", columns.strip()))
    assert "forecast" in columns
    told = ("0.0559 / 0.01", "11.0s / 60.0s", "✓ feasible", "51s", "1.00", "running", "on time with 9.0s to spare")
    for words in (*told, "2 NaN or infinite losses ignored"):
        assert words in cnn.split("\nlstm ")[0].replace("\n  ", " ")
    assert "ValueError: [2J<b>" in text
    assert width < 100 or "now to deadline" in columns


def test_a_wide_terminal_shows_reasons_beside_the_jobs() -> None:
    assert len(shown(11.0, some_jobs(), 220).splitlines()) == 3 + 3


def test_jobs_in_trouble_get_the_lines_for_reasons_first() -> None:
    cnn, lstm, bad = some_jobs()
    lines = shown(11.0, [cnn, lstm, bad], 80, height=9).splitlines()  # one for a reason, three are missing
    assert len(lines) == 7
    assert lines[-1].strip() == "ended: ValueError: [2J<b>"
    assert len(shown(11.0, [cnn, lstm, bad], 80, height=30).splitlines()) == 9


def test_a_terminal_without_unicode_is_given_ascii() -> None:
    assert shown(11.0, some_jobs(), 100, encoding="ascii").isascii()


def test_only_as_many_jobs_as_lines_are_shown() -> None:
    cnn, lstm, bad = some_jobs()
    jobs = [replace(bad, name=f"bad{k}") for k in range(20)] + [cnn] + [replace(lstm, name=f"l{k}") for k in range(20)]
    text = shown(11.0, jobs, 200, height=20)
    assert len(text.splitlines()) <= 20
    assert "cnn" in text  # those that have ended make room first
    assert "bad0" not in text
    assert "more, 20 of them ended" in text


def test_many_devices_do_not_fill_the_screen() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(Board(11.0, some_jobs(), "edf", 64))
    assert "and 56 devices more; 63 of all are idle" in out.getvalue()
    assert len(out.getvalue().splitlines()) == 1 + 9 + 1 + 3 * 2 + 1  # one of the reasons takes two lines


def bar(job: JobStatus, now: float, width: int = 20) -> str:
    return bar_of(now, job, width).plain


def test_the_progress_bar_of_a_job() -> None:
    job = replace(some_jobs()[0], submitted_at=0.0, deadline=100.0, finish=(60.0, 80.0, 120.0), finished_at=None)
    line = bar(job, 50.0)
    assert len(line) == 20
    assert [line.index(sign) for sign in "●◆┃"] == [int(t * 0.156) for t in (50, 80, 100)]
    assert line[9:12] == "▒▒▒"  # early to likely
    assert line[16:19] == "▒▒▒"  # past the deadline to late
    assert bar(replace(job, finish=(60.0, 300.0, float("inf"))), 50.0)[-1] == "»"
    assert "◆" not in bar(replace(job, finish=None), 50.0)
    ended = replace(job, state=State.ENDED, verdict=Verdict.MET, finish=None, finished_at=70.0)
    assert bar(ended, 500.0).index("✓") == int(70 * 0.156)
    late = bar(replace(job, finish=None), 400.0)  # it goes on after its deadline: both must be seen
    assert late.index("┃") < late.index("●") < 20


def test_the_best_of_a_metric_that_is_watched_is_shown() -> None:
    target = EpochTarget(30, 10, "val_acc", "max")
    job = replace(some_jobs()[0], target=target, batches=70, value=70.0, watched=Watched(70, 0.81, 0.9234))
    assert "7 / 30 epochs, highest val_acc 0.9234" in line(50.0, job)
    assert row_of(job, 50.0)["target"] == "30 epochs, highest val_acc 0.9234"
    assert "7 / 30 epochs, highest val_acc" in line(50.0, replace(job, watched=None))


def test_a_job_without_a_deadline_has_a_bar_to_its_forecast_end() -> None:
    job = replace(some_jobs()[0], submitted_at=0.0, deadline=inf, finish=(60.0, 80.0, 120.0), finished_at=None)
    line = bar(job, 50.0)
    assert "┃" not in line
    assert [line.index(sign) for sign in "●◆"] == [int(t * 0.13) for t in (50, 80)]
    assert "●" in bar(replace(job, finish=None), 50.0)
    assert "/ ∞" in shown(50.0, [job], 220)


def test_a_metric_that_grows_is_shown_as_it_was_logged() -> None:
    [job, *_] = some_jobs()
    growing = replace(job, target=LossTarget("val_acc", at_least=0.9), value=0.75)
    assert "0.75 / 0.9" in shown(11.0, [growing], 220)
    out = io.StringIO()
    PlainView(out).update(11.0, [growing])
    assert "0.75 / 0.9" in out.getvalue()


def test_a_reused_name_shows_the_newest_job() -> None:
    _, _, bad = some_jobs()
    jobs = [bad, replace(bad, submitted_at=20.0, state=State.RUNNING, verdict=None, finished_at=None)]
    earlier, newest = shown(30.0, jobs, 160).splitlines()[-2:]
    assert earlier.startswith("bad (earlier)  ended")
    assert newest.startswith("bad            running")
    out = io.StringIO()
    plain = PlainView(out)
    for _ in range(3):
        plain.update(30.0, jobs)
    assert len(out.getvalue().splitlines()) == 2


def test_lines_of_a_log_stand_in_the_order_of_time_and_say_nothing_of_what_is_not() -> None:
    met, running, _ = some_jobs()
    met = replace(met, submitted_at=0.0, state=State.ENDED, verdict=Verdict.MET, finished_at=3.6, devices=(), share=0.0)
    running = replace(running, submitted_at=0.0, verdict=None, finish=None, throughput=None)
    out = io.StringIO()
    plain = PlainView(out)
    plain.update(3.5, [running])
    plain.update(3.9, [replace(running, state=State.RELEASED), met])
    lines = out.getvalue().splitlines()
    assert [text.split()[0] for text in lines] == ["3.5s", "3.6s", "3.9s"]
    assert not any(part in text for text in lines for part in (" -", "None", "share 0.00 of device -"))


def test_a_job_without_a_verdict_has_none_in_the_table_at_the_end(tmp_path: Path) -> None:
    job = replace(some_jobs()[0], verdict=None)
    out = io.StringIO()
    print_summary(Summary.of(Settings(), 11.0, [job], tmp_path), out)
    assert "None" not in out.getvalue()


def test_a_paused_job_is_shown_as_paused() -> None:
    [job, *_] = some_jobs()
    for width in (60, 100):
        text = shown(11.0, [replace(job, paused=True, state=State.HELD)], width)
        assert "paused" in text.split("\ncnn ")[1]
    assert "1 paused" in text


def test_live_and_plain_views() -> None:
    out = io.StringIO()
    live = LiveView(Console(file=out, width=160, force_terminal=True))
    live.update(11.0, some_jobs())
    live.update(12.0, some_jobs())
    live.close()
    assert "cnn" in out.getvalue()
    plain_out = io.StringIO()
    assert isinstance(view_for(plain_out), PlainView)
    plain = PlainView(plain_out)
    plain.update(11.0, some_jobs())
    plain.update(11.2, some_jobs())
    plain.close()
    assert plain_out.getvalue().count("cnn: running") == 1
    assert "\x1b" not in plain_out.getvalue()


def test_the_summary_is_complete_and_valid_json(tmp_path: Path) -> None:
    summary = Summary.of(Settings(policy="lara", policy_args={"order": "edf"}), 11.0, some_jobs(), tmp_path)
    body = json.loads(summary.to_json())
    assert (body["policy"], body["met"]) == ("lara:order=edf", 0)
    assert set(body["jobs"]["cnn"]) >= {"verdict", "finished_at", "loss", "batches", "reason"}
    assert body["jobs"]["bad"]["verdict"] == "crashed"
    assert body["jobs"]["bad"]["traceback"].startswith("Traceback")
    assert body["figures"]["rejected_losses"] == 2
    assert summary.exit_code == 1
    out = io.StringIO()
    print_summary(summary, out)
    assert "lara:order=edf: 0 of 3 met" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_the_time_of_a_run_ends_with_its_last_job_and_use_is_at_most_one() -> None:
    scheduler = Scheduler(Settings(policy="edf"))
    scheduler.handle(Submit((Job("short", 60.0, BatchTarget(5)), Job("long", 190.0, BatchTarget(500)))), 100.0)
    scheduler.handle(Report("short", 1, 1, 1, 5, 0.5), 100.8)
    scheduler.handle(Report("long", 1, 1, 1, 100, 9.5), 112.0)
    left = Summary.of(Settings(policy="edf"), 112.0, scheduler.status(), Path(), 2)
    assert left.met == 1
    assert left.wall == pytest.approx(12.0)
    assert left.figures["device_use"] == pytest.approx(10.0 / 12.0)
    out = io.StringIO()
    print_summary(left, out)
    assert "edf: 1 of 2 met in 12.0s; the device was busy 83 % of it" in out.getvalue()

    scheduler.handle(Report("long", 2, 1, 1, 500, 8.5), 220.0)
    ended = Summary.of(Settings(policy="edf"), 240.0, scheduler.status(), Path(), down=100.0)
    assert ended.wall == pytest.approx(140.0)  # one has not ended: an older incarnation says nothing
    scheduler.handle(Report("long", 1, 2, 1, 500, 18.0), 220.0)
    ended = Summary.of(Settings(policy="edf"), 240.0, scheduler.status(), Path(), down=100.0)
    assert ended.figures["down_s"] == 100.0
    assert ended.wall == pytest.approx(120.0)
    assert ended.figures["device_use"] == pytest.approx(18.5 / 20.0)
    out = io.StringIO()
    print_summary(ended, out)
    assert "2 of 2 met in 2m, 1m40s of it stopped; the device was busy 92 % of the rest" in out.getvalue()
    measured = Summary.of(Settings(policy="edf"), 240.0, scheduler.status(), Path(), down=102.0)
    assert measured.figures["device_use"] == 1.0


def test_exit_codes_follow_verdicts() -> None:
    def code(*verdicts: str, interrupted: int | None = None) -> int:
        scheduler = Scheduler(Settings())
        for k, verdict in enumerate(verdicts):
            scheduler.handle(Submit((Job(f"{k}", 50.0, BatchTarget(5)),)), 0.0)
            done = Report(f"{k}", 1, 1, 9, 5 if verdict == "met" else 0, 1.0)
            scheduler.handle(done, 1.0)
            if verdict != "met":
                scheduler.handle(
                    WorkerExited(f"{k}", 1, ExitCause.RAISED if verdict == "crashed" else ExitCause.DONE), 1.0
                )
        return Summary.of(Settings(), 2.0, scheduler.status(), Path(), interrupted).exit_code

    assert code("met", "met") == 0
    assert code("met", "missed") == 3
    assert code("missed", "crashed") == 1
    assert code("met", interrupted=2) == 130
    assert code("crashed", interrupted=15) == 143


def test_a_forecast_without_an_upper_end_is_shown() -> None:
    """The early and the likely end are finite, the late one is not (seen in a real run)."""
    [job, *_] = some_jobs()
    unsure = replace(job, finish=(12.0, 20.0, float("inf")))
    assert "20s (12s to beyond reach)" in shown(11.0, [unsure], 220)
    out = io.StringIO()
    PlainView(out).update(11.0, [unsure])
    assert "20s (12s to beyond reach)" in out.getvalue()


def test_every_reason_has_words_that_render() -> None:
    for code in WORDS:
        assert str(Reason(code, tuple(map(float, range(6))), "text"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (99.0, "99.0s"),
        (100.0, "1m40s"),
        (3600, "1h"),
        (90_000, "1d1h"),
        (86_460, "1d"),
        (1e12, ">1y"),
        (float("inf"), "∞"),
    ],
)
def test_durations_are_shown_as_text(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_run_still_shows_what_its_pool_has_forgotten() -> None:
    jobs = some_jobs()
    looks = iter([(0.0, jobs[:2]), (9.0, jobs[1:2])])
    look = remembering(looks.__next__)
    assert (look(), look()) == ((0.0, jobs[:2]), (9.0, jobs[:2]))


def test_a_job_that_counts_epochs_says_how_many_it_has_done() -> None:
    known, unknown = EpochTarget(30, 8), EpochTarget(30)
    job = replace(some_jobs()[0], target=known, batches=60, value=60.0)
    assert "7.5 / 30 epochs" in line(50.0, job)
    assert (row_of(job, 50.0)["value"], row_of(job, 50.0)["progress"]) == ("7.5", 0.25)
    early = replace(job, target=unknown)
    assert "60 batches / 30 epochs" in line(50.0, early)
    assert row_of(early, 50.0)["progress"] is None
