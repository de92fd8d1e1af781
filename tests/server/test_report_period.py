"""The period of reports follows the load of the scheduler's process."""

from __future__ import annotations

import pytest

from lightning_core.server.load.report_period import MAX_PERIOD, MIN_PERIOD, TARGET_CORES, ReportPeriod


class Process:
    """A process of one core, in virtual time, for which each report costs CPU time.

    Args:
        cost: CPU seconds of a report.
        rest: Cores that all else takes.
    """

    def __init__(self, cost: float, rest: float = 0.02) -> None:
        self.cost, self.rest = cost, rest
        self.now = self.used = self.lag = 0.0
        self.period = ReportPeriod(lambda: self.lag, lambda: self.used, lambda: self.now)

    def run(self, jobs: int, seconds: float, delay: float = 0.0) -> tuple[float, float]:
        """Let jobs report for some seconds; return the cores used in the last third, and the period asked for."""
        end, seen, told, step = self.now + seconds, [(self.now, self.used)], [0.0], 0.05
        while self.now < end:
            self.now += step
            obeyed = told[-1 - min(int((told[-1] + delay) / step), len(told) - 1)]  # each obeys with its next report
            self.used += step * min(self.rest + jobs * self.cost / max(MIN_PERIOD, obeyed), 1.0)
            told.append(self.period())
            seen.append((self.now, self.used))
        at, before = seen[len(seen) * 2 // 3]
        return (self.used - before) / (self.now - at), told[-1]


@pytest.mark.parametrize(("jobs", "cost"), [(1000, 0.0003), (1000, 0.001), (3000, 0.0004), (300, 0.001)])
def test_the_process_settles_at_the_cores_that_it_may_use(jobs: int, cost: float) -> None:
    cores, period = Process(cost).run(jobs, 60.0)
    assert cores == pytest.approx(TARGET_CORES, abs=0.05)
    assert period == pytest.approx(jobs * cost / (TARGET_CORES - 0.02), rel=0.2)


def test_a_small_pool_is_asked_for_nothing_and_a_huge_one_for_no_more_than_the_longest_period() -> None:
    cores, period = Process(0.0005).run(100, 30.0)
    assert cores == pytest.approx(0.27)
    assert period == 0.0
    assert Process(0.001).run(20_000, 60.0)[1] == MAX_PERIOD


def test_the_period_goes_when_the_load_does() -> None:
    process = Process(0.0005)
    assert process.run(2000, 30.0)[1] > 1.0
    assert process.run(50, 30.0)[1] == 0.0


def test_a_process_that_gets_too_little_of_a_core_is_reported_to_less() -> None:
    process = Process(0.0001)
    process.lag = 0.5
    assert process.run(100, 30.0)[1] > 1.0
    process.lag = 0.01
    assert process.run(100, 30.0)[1] == 0.0
