"""One job's numbers, whatever they are: the scheduler goes on, and the forecasts of the others do not change."""

from __future__ import annotations

import json
import math
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_core.core.codec import status_to_dict
from lightning_core.core.events import Cell, Horizon, Report, Submit, Tick
from lightning_core.core.jobs import Beside, Job, OnMiss
from lightning_core.core.limits import MAX_SECONDS
from lightning_core.core.targets import BatchTarget, LossTarget, Target
from lightning_core.estimators import ESTIMATORS
from lightning_core.policies import POLICIES
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.scheduler.status import job_forecast
from lightning_core.view.job_line import line

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LOSSES = st.floats(-1e299, 1e299) | st.sampled_from([5e-324, 1e-322, 1e290, -1e290, 1e300, 0.0])
TARGETS: st.SearchStrategy[Target] = st.one_of(
    st.builds(LossTarget, st.just("loss"), LOSSES.filter(lambda value: abs(value) < 1e300)),
    st.builds(BatchTarget, st.integers(1, 10**12)),
    st.builds(LossTarget, st.just("acc"), at_least=st.floats(-1e299, 0.9), best=st.floats(1.0, 1e299)),
)
DEADLINES = st.floats(1e-9, MAX_SECONDS) | st.just(math.inf)
COUNTS = st.integers(0, 10**12) | st.sampled_from([-1, 2**53, 2**70])
REPORTS = st.lists(st.tuples(COUNTS, FLOATS, LOSSES | FLOATS, FLOATS), min_size=1, max_size=25)
PAIRS = [(policy, "") for policy in sorted(POLICIES)] + [("triage", name) for name in sorted(ESTIMATORS)]
ARGUMENTS = {"fixed": {"shares": [0.5, 0.5]}}


def story(
    policy: str, estimator: str, job: Job, reports: list[tuple[int, float, float, float]], *, silent: bool
) -> list[tuple[float, float, float]]:
    """Tell of a job with any numbers beside one with usual ones; return what is said of the second, report by report.

    Args:
        policy: Name of the policy.
        estimator: Name of the estimator.
        job: The first job.
        reports: Batches, busy seconds, a loss and seconds to the end of its training, of each of its reports.
        silent: Whether the first job never reports.
    """
    chosen = Settings(policy, ARGUMENTS.get(policy, {}), estimator, judge_after=3, beside=Beside.NEVER)
    scheduler, said = Scheduler(chosen), []
    scheduler.handle(Submit((job, Job("good", 900.0, LossTarget("loss", 0.1)))), 0.0)
    for number, (batches, busy, loss, seconds) in enumerate(reports, 1):
        now = 10.0 * number
        if not silent:
            cells = (Cell(number, 10 * number, loss),)
            horizon = Horizon(None, "", seconds) if number % 3 == 0 else None
            scheduler.handle(Report("any", 1, number, 99, batches, busy, cells, horizon=horizon), now)
            scheduler.check()
        usual = Cell(number, 100 * number, 2.0 * (100 * number) ** -0.4)
        scheduler.handle(Report("good", 1, number, 99, 100 * number, 5.0 * number, (usual,)), now)
        scheduler.handle(Tick(), now + 1.0)
        scheduler.check()
        for status in scheduler.status():
            assert not math.isnan(status.share)
            json.dumps([status_to_dict(status), job_forecast(status, now)], allow_nan=False)
            assert all(line(now, status))
        row = scheduler._table.row_of["good"]
        table = scheduler._table
        said.append((float(table.work_low[row]), float(table.work_mid[row]), float(table.work_high[row])))
    return said


@pytest.mark.promise("R15")
@pytest.mark.parametrize(("policy", "estimator"), PAIRS)
def test_one_job_with_any_numbers_leaves_the_forecasts_of_the_others(policy: str, estimator: str) -> None:
    check_stories(policy, estimator, max_examples=3)


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "estimator"), PAIRS)
def test_many_such_stories(policy: str, estimator: str) -> None:
    check_stories(policy, estimator, max_examples=300)


def check_stories(policy: str, estimator: str, max_examples: int) -> None:
    @settings(deadline=None, max_examples=max_examples)
    @given(TARGETS, DEADLINES, REPORTS)
    @example(LossTarget("loss", 5e-324), MAX_SECONDS, [(10 * k, 1.0 * k, 1e290, 1.0) for k in range(1, 20)])
    @example(LossTarget("loss", 0.1), 1e-9, [(10 * k, 1e-9 * k, 1e-322, 1e12) for k in range(1, 20)])
    @example(LossTarget("loss", 1e290), 60.0, [(1, 5e-324, 1e299, 0.0)] * 5 + [(2, 1e12, 1e-300, 0.0)] * 5)
    @example(BatchTarget(10**12), 900.0, [(1, 1.0, 1.0, 1.0), (1, 30_000.0, 1.0, 1.0), (2, 30_001.0, 1.0, 1.0)])
    def check(target: Target, deadline: float, reports: list[tuple[int, float, float, float]]) -> None:
        try:
            job = Job("any", deadline, target, on_miss=OnMiss.CONTINUE)
        except ValueError:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            told = story(policy, estimator, job, reports, silent=False)
            alone = story(policy, estimator, job, reports, silent=True)
        assert repr(told) == repr(alone)

    check()
