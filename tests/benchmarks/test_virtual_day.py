"""A day that is played again: what is measured of it is what it was made with, and the same is decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.market.virtual_day import (
    Cloud,
    Conditions,
    Decision,
    Entry,
    LiveDay,
    Start,
    _moves,
    decisions,
    differences,
)
from lightning_core.core.answers import Grant
from lightning_core.core.events import Checkpoint, ExitCause, Report, Tick, WorkerExited
from lightning_core.core.jobs import Capability, Job
from lightning_core.core.reasons import Reason
from lightning_core.core.targets import BatchTarget
from lightning_core.parts.market.spot_market import Market
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, SimulatedJob
from lightning_core.simulation.simulation import Simulation

INTERVAL, WORK, SIZES, THROUGHPUT = 40.0, 9000, (1, 2), (15.0, 26.0)
START_UP, WARM_UP, START, RELEASE, HEARD = 2.5, 6.0, 0.5, 0.25, 1.5
FIRST = Start(START_UP, WARM_UP, START)
AVAILABLE = [1, 2, 2, 2, 2, 1, 2, 2, 1, 1, 2, 2, 2, 2]


def write_day(path: Path, notice: float, warm_up: float = WARM_UP, first: Start = FIRST) -> Market:
    """Write the journal of a day with these delays; return its market."""
    market = Market(np.full(len(AVAILABLE), 0.6), np.array(AVAILABLE), seconds=INTERVAL)
    job = Job("a", 480.0, BatchTarget(WORK), save_every=5.0, can=frozenset(Capability), max_devices=2, sizes=SIZES)
    cells = [*range(4, WORK, 4), WORK]
    given = SimulatedJob(job, cells, [1.0] * len(cells), THROUGHPUT[-1], 1.0, THROUGHPUT, START)
    terms = {"interval": INTERVAL, "policy": "semi-markov", "kept_fraction": 0.8, "save_every": 5.0}
    settings = Settings("fifo", period=0.5, devices=4, controllers={"market": terms})
    conditions = Conditions(first, START_UP, warm_up, START, RELEASE, HEARD, dict(zip(SIZES, THROUGHPUT, strict=True)))
    delays = Delays(release=RELEASE, start=first.start)
    Simulation(settings, [given], delays, path, nodes=Cloud(market, notice, conditions)).run()
    return market


@pytest.mark.parametrize("notice", [0.0, pytest.param(5.0, marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_a_day_is_measured_and_played_again_as_it_was(notice: float, tmp_path: Path) -> None:
    market = write_day(path := tmp_path / "journal.db", notice)
    day = LiveDay(path, market, notice)
    found = day.measured.medians()
    assert day.measured.submitted == 1.0
    assert found.first == pytest.approx(tuple(FIRST), abs=0.01)
    assert found[1:-1] == pytest.approx((START_UP, WARM_UP, START, RELEASE, HEARD), abs=0.01)
    assert found.throughput == pytest.approx(dict(zip(SIZES, THROUGHPUT, strict=True)), rel=0.01)
    again = day.play(found, beside := tmp_path / "virtual.db")
    one, other = decisions(path), decisions(beside)
    assert list(differences(one, other, WORK)) == []
    # Nodes are billed by the second, and delays are measured to a hundredth of one.
    costs = [decision.cost for decision in one]
    assert sum(costs) == pytest.approx(again.nodes.cost, rel=0.001)
    assert costs == pytest.approx([row.cost for row in again.nodes.rows], rel=0.01, abs=0.01)
    assert one[0].planned == (0, 1)
    assert {decision.planned for decision in one} > {(0, 1), (2, 0)}
    assert day.costs(1) == day.costs(1)


@pytest.mark.nightly
def test_until_there_is_another_start_a_virtual_day_knows_of_starts_what_the_live_one_knew(tmp_path: Path) -> None:
    """Whatever the later ones take."""
    first = Start(3.0, 7.0, 2.0)
    market = write_day(path := tmp_path / "journal.db", 0.0, warm_up=15.0, first=first)
    day = LiveDay(path, market, 0.0)
    assert day.measured.first == pytest.approx(tuple(first), abs=0.01)
    assert day.measured.medians().warm_up == pytest.approx(15.0, abs=0.01)
    known = costs_of_a_start(decisions(path))
    assert known[0] == pytest.approx(sum(first) / INTERVAL, rel=0.05)
    for seed in range(2):
        day.play(day.measured.drawn(np.random.default_rng(seed)), beside := tmp_path / f"{seed}.db")
        assert costs_of_a_start(decisions(beside))[0] == pytest.approx(known[0], rel=0.01)


def test_a_start_counts_from_the_grant_that_it_came_of() -> None:
    """Other devices were granted after its first batch, and before its first report."""

    def granted(now: float, *devices: int) -> Entry:
        return Entry(now, Tick(), [Grant("a", 1, 1.0, devices, Reason("first_in_line"))])

    def reported(now: float, incarnation: int, busy: float) -> Entry:
        return Entry(now, Report("a", incarnation, 1, 1, 9, busy), [])

    left = Entry(13.5, WorkerExited("a", 1, ExitCause.RELEASED, checkpoint=Checkpoint(9, "0" * 64)), [])
    entries = [granted(10.0, 0), granted(13.0, 0, 1), reported(13.2, 1, 0.7), left, reported(16.0, 2, 1.5)]
    starts, releases = _moves(entries)
    assert starts == pytest.approx([2.5, 1.0])
    assert releases == pytest.approx([0.5])
    assert _moves([granted(10.0, 0), reported(10.5, 1, 0.6)])[0] == [0.0]  # what rounding makes negative


def costs_of_a_start(several: list[Decision]) -> list[float]:
    """Return what a start was taken to cost in each decision that knew it."""
    return [decision.start_up for decision in several if not np.isnan(decision.start_up)]


@pytest.mark.nightly
def test_where_two_days_part_is_told_by_interval(tmp_path: Path) -> None:
    """On one of them a node is warm only after most of an interval."""
    write_day(one := tmp_path / "one.db", 0.0)
    write_day(other := tmp_path / "other.db", 0.0, warm_up=30.0)
    quick, slow = decisions(one), decisions(other)
    told = list(differences(quick, slow, WORK))
    pairs = enumerate(zip(quick, slow, strict=False))
    first = next(number for number, (here, there) in pairs if here.planned != there.planned or here.held != there.held)
    assert told[0].startswith(f"{first}: ")
    assert any("other plans: live" in line and "a start costs" in line for line in told)
    assert list(differences(quick, quick, WORK)) == []
