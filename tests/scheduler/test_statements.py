"""What is said of a job at one time does not contradict itself: verdict, likely end, chance, reason of the grant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightning_core.agent.outcome import metrics_of
from lightning_core.core.answers import JobStatus, State, Verdict
from lightning_core.core.codec import decode_event
from lightning_core.core.durations import FAR, format_forecast, parse_duration
from lightning_core.core.jobs import Job
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.history.forecasts import fill_in
from lightning_core.history.history import History
from lightning_core.parts.web.status_rows import row_of
from lightning_core.report.card import card
from lightning_core.report.page import page
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.storage.journals.journal import Journal
from lightning_core.view.job_line import COLUMNS, line
from lightning_core.view.why import rows
from tests.driven import Curve, drive

IN_TIME = ("on time", "to spare", "in time with", "early")
LATE = (" late", "cannot finish", "not scheduled: by forecast", "ends at")
SEED = 1
POLICIES_WITH_FORECASTS = ("triage", "guarded_edf", "edf", "lara", "laira", "decor", "fifo", "successive_halving")
LIKELY = re.compile(r"(\d+)% likely")


def contradictions(verdict: str, words: str) -> Iterator[str]:
    """Yield what contradicts itself in what is said of a job that has not ended."""
    chances = [int(found) / 100 for found in LIKELY.findall(words)]
    if any(part in words for part in IN_TIME) and any(part in words for part in LATE):
        yield "late and in time"
    if verdict == "feasible" and (min(chances, default=1.0) < 0.5 or any(part in words for part in LATE)):
        yield "feasible, and unlikely or late"
    if verdict == "at risk" and ("on time" in words or "early" in words or max(chances, default=0.0) > 0.751):
        yield "at risk, and early or likely"
    if verdict == "infeasible" and ("may " in words or "on time" in words or max(chances, default=0.0) > 0.5):
        yield "infeasible, and likely"
    if len(set(chances)) > 1:
        yield "two chances"


def beside(job: JobStatus, words: str) -> Iterator[str]:
    """Yield where the likely end contradicts what is said beside it."""
    if job.finish is None or job.verdict is None:
        return
    in_time, chances = job.finish[1] <= job.deadline, [int(found) for found in LIKELY.findall(words)]
    if (job.verdict is Verdict.FEASIBLE) > in_time or (job.verdict is Verdict.INFEASIBLE and in_time):
        yield "the likely end is another than the verdict's"
    if (in_time and (" late" in words or min(chances, default=100) < 50)) or (not in_time and "on time" in words):
        yield "the likely end is another than the reason's"


def out_of_reach(words: str) -> Iterator[str]:
    """Yield forecast numbers that are out of all proportion to the time that there is."""
    if found := re.findall(r"(?:needs|finish) (?:about |at least )?(\S*[dy])\b", words):  # of jobs of a minute
        yield f"needs {found[0]}"
    if found := re.findall(r"(?:needs|finish) (?:about |at least )?(\d+\.\ds|\d{3,}s)", words):
        yield from (f"three figures: {one}" for one in found if len(one) > 4)


def bundle(seed: int) -> dict[float, list[tuple[Job, Curve]]]:
    """Return jobs with targets that are easy, hard and out of reach, by the time of their submission."""
    draw = np.random.default_rng(seed)
    jobs: dict[float, list[tuple[Job, Curve]]] = {}
    for number in range(7):
        target: BatchTarget | LossTarget = LossTarget("loss", draw.uniform(0.03, 0.6))
        if number == 3:
            target = BatchTarget(int(draw.integers(300, 3000)))
        if number == 5:
            target = LossTarget("val_acc", at_least=draw.uniform(0.5, 0.95))
        job = Job(f"job{number}", draw.uniform(15.0, 60.0), target)
        curve = Curve(draw.uniform(0.5, 3.0), draw.uniform(0.0, 0.6), draw.uniform(20.0, 80.0))
        jobs.setdefault(float(draw.integers(0, 3) * 5), []).append((job, curve))
    return jobs


@pytest.mark.parametrize("policy", POLICIES_WITH_FORECASTS)
def test_no_two_statements_of_one_moment_contradict_each_other(policy: str, tmp_path: Path) -> None:
    path, told, wrong = tmp_path / "journal.db", set[str](), list[str]()
    drive(path, Settings(policy), bundle(SEED), 70.0)
    with Journal.open(path, read_only=True) as journal:
        scheduler, history = Scheduler(journal.settings()), History.read(journal)
        for entry in journal.recent_entries():
            scheduler.handle(decode_event(entry.event), entry.now)
            for job in scheduler.status():
                if job.state is State.ENDED:
                    continue
                words = dict(zip(COLUMNS, line(entry.now, job), strict=True))["reason"]
                found = [
                    *contradictions(str(job.verdict), words),
                    *beside(job, words),
                    *out_of_reach(words),
                ]
                wrong += [f"{entry.now} s, {job.name}, {job.verdict}: {words}: {one}" for one in found]
                told.add(str(job.verdict))
    for past in history.jobs:
        verdict = ""
        for row in rows(past):
            verdict = row.what if row.what in set(Verdict) else verdict
            if row.what in ("grant", verdict):
                wrong += [f"{past.name}, {verdict}: {row}: {one}" for one in contradictions(verdict, row.reason)]
    assert not wrong, "\n".join(wrong[:20])
    assert len(told) > 3


TOLD = re.compile(r"\d[\d.dhmsy]*[dhmsy]\b")


def too_exact(words: str) -> list[str]:
    """Return the durations that have more than the two figures of a forecast."""
    told = (found for found in TOLD.findall(words) if found != "0.0s")
    return [found for found in told if format_forecast(parse_duration(found)) != found]


def test_card_loggers_page_and_report_say_no_end_beyond_reach_nor_three_figures(tmp_path: Path) -> None:
    path, wrong, told = tmp_path / "journal.db", list[str](), 0
    drive(path, Settings("triage"), bundle(SEED), 70.0)
    with Journal.open(path, read_only=True) as journal:
        scheduler, history = Scheduler(journal.settings()), History.read(journal)
        fill_in(journal, history)
        for entry in journal.recent_entries():
            scheduler.handle(decode_event(entry.event), entry.now)
            for job in scheduler.status():
                forecast = scheduler.job_forecast(job.name)
                if job.state is State.ENDED or forecast is None or forecast.left is None:
                    continue
                told += 1
                most = FAR * (job.deadline - job.submitted_at)
                numbers = {**metrics_of(forecast), "left": forecast.left, "late": forecast.late or 0.0}
                wrong += [f"{job.name}: {name} {number}" for name, number in numbers.items() if abs(number) > most]
                [words] = re.findall(r">(in \S+ .*?)</td>", card(job.name, job.target, [], forecast))
                wrong += [f"card of {job.name}: {words}: {one}" for one in too_exact(words)]
                ends = [end for end in row_of(job, entry.now)["finish"] if end is not None]
                wrong += [f"page: {job.name}: {end}" for end in ends if end - job.submitted_at > most]
        for title in re.findall(r"<title>forecast after [^:]*: ([^<]*)", page(history, "run")):
            told += 1
            wrong += [f"report: {title}: {one}" for one in too_exact(title)]
            assert "∞" not in title
            assert ">1y" not in title
    assert not wrong, "\n".join(wrong[:20])
    assert told > 50  # else the test says nothing
