"""Futures before and after a change: against what can be reckoned by hand, and against the whole simulation."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from lightning_core.core.commands import Pause
from lightning_core.core.events import Cell, Report, Tick
from lightning_core.core.jobs import Job, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.simulation.what_if import Assumption, chances, draws, finish
from tests.simulation.futures import asked, known


def two_jobs(policy: str = "edf") -> Scheduler:
    jobs = [Job("a", 150.0, BatchTarget(100)), Job("b", 260.0, BatchTarget(100)), Job("free", inf, BatchTarget(50))]
    return known(Settings(policy=policy), jobs, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("policy", ["edf", "triage", "fifo", "laira", "rr"])
def test_nothing_differs_without_a_change(policy: str) -> None:
    before, after = asked(two_jobs(policy), Assumption(), 3)
    assert before == after
    assert set(before) == {"a", "b"}


def test_two_jobs_cannot_both_have_the_device_by_the_sooner_deadline() -> None:
    scheduler = two_jobs()
    assert asked(scheduler, Assumption("b", 150.0)) == ({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0})
    assert asked(scheduler, Assumption("b", 150.0, devices=2))[1] == {"a": 1.0, "b": 1.0}
    assert scheduler.last("b").deadline == 260.0  # it was thought of, and not done


def test_fewer_devices_and_no_deadline_are_changes_too() -> None:
    jobs = [Job(name, 150.0, BatchTarget(100)) for name in "abc"]
    scheduler = known(Settings(policy="edf", devices=3), jobs, [1.0] * 3)
    before, after = asked(scheduler, Assumption(devices=1))
    assert (sum(before.values()), sum(after.values())) == (3.0, 1.0)
    before, after = asked(scheduler, Assumption("a", inf))
    assert np.isnan(after["a"])
    assert before["a"] == after["b"] == after["c"] == 1.0


def test_a_job_of_which_nothing_is_known_is_taken_to_be_like_the_others() -> None:
    jobs = [Job("a", 250.0, BatchTarget(100)), Job("new", 1000.0, LossTarget("loss", 0.1))]
    scheduler = known(Settings(policy="edf"), jobs, [1.0, 1.0])
    found = chances(scheduler.prospects(), Assumption(), lambda played: played < 8)
    assert found.known == [True, False]
    assert found.before == [1.0, 1.0]
    with pytest.raises(ValueError, match="nothing is known yet"):
        chances(Scheduler(Settings()).prospects(), Assumption(), lambda _: False)


def test_a_deadline_at_the_middle_of_a_forecast_is_met_in_half_of_the_futures() -> None:
    scheduler = known(Settings(policy="edf"), [Job("a", 1e6, LossTarget("loss", 0.5))], [10.0])
    rng = np.random.default_rng(1)
    cells = [Cell(k, 10 * k, 2.0 * (10 * k) ** -0.2 * float(np.exp(rng.normal(0, 0.03)))) for k in range(1, 40)]
    scheduler.handle(Report("a", 1, number=2, version=9, batches=390, busy=39.0, cells=tuple(cells)), 39.0)
    scheduler.handle(Tick(), 40.0)
    early, likely, late = scheduler.last("a").finish or (inf, inf, inf)
    parts = [asked(scheduler, Assumption("a", deadline), 40)[1]["a"] for deadline in (early, likely, late)]
    assert parts == pytest.approx([0.15, 0.5, 0.85], abs=0.15)


@pytest.mark.parametrize("start", [0.0, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_whole_simulation_where_all_work_is_known(seed: int, start: float) -> None:
    """Futures leave out much; where nothing of that is there, the same jobs must be in time."""
    rng = np.random.default_rng(seed)
    work = rng.integers(20, 200, 12)
    jobs = [Job(f"j{k}", float(rng.uniform(60, 900)), BatchTarget(int(n)), on_miss=OnMiss.STOP,
                resize_seconds=start or None) for k, n in enumerate(work)]  # fmt: skip
    settings = Settings(policy="edf", devices=2, stay=0.0, resident=2 if start else None)
    simulated = [SimulatedJob(job, [1], [1.0], 1.0) for job in jobs]
    outcome = Simulation(settings, simulated, Delays(start=start)).run()
    really = {job.name: float(str(job.verdict) == "met") for job in outcome.jobs}
    before, _ = asked(known(settings, jobs, [1.0] * len(jobs)), Assumption(), 10)
    told = [name for name, chance in before.items() if chance in (0.0, 1.0)]
    assert len(told) >= 6  # work that is known varies by some per cent, so some are not certain
    wrong = [name for name in told if before[name] != really[name]]
    assert len(wrong) <= 1


def test_a_paused_job_is_not_served() -> None:
    scheduler = two_jobs()
    scheduler.handle(Pause("a"), 0.0)
    assert asked(scheduler, Assumption())[0] == {"a": 0.0, "b": 1.0}


def test_what_cannot_be_simulated_is_refused() -> None:
    scheduler = two_jobs()
    with pytest.raises(KeyError):
        asked(scheduler, Assumption("unknown", 10.0))
    with pytest.raises(ValueError, match="devices must be 1 to 4096, got 0"):
        asked(scheduler, Assumption(devices=0))


def test_futures_as_things_are_are_played_once() -> None:
    prospects = two_jobs().prospects()
    one = chances(prospects, Assumption(), lambda played: played < 5)
    kept = [ends.copy() for ends in prospects.played]
    assert (len(kept), one.futures) == (5, 5)
    fewer = chances(prospects, Assumption("b", 150.0), lambda played: played < 3)
    assert (fewer.futures, len(prospects.played)) == (3, 5)
    more = chances(prospects, Assumption("b", 150.0), lambda played: played < 9)
    assert (more.futures, len(prospects.played)) == (9, 9)
    assert np.array_equal(kept, prospects.played[:5])
    assert np.array_equal(
        prospects.played, [finish(prospects, needs) for needs, _ in zip(draws(prospects), range(9), strict=False)]
    )
