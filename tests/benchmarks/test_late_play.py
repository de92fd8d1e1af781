"""The benchmark of one node under a deadline: what a job pays and when it ends, on availability written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.market.late.node_play import EXACT, Job, Kind, Outcome, State, on_demand_cost, play
from lightning_core.core.arrays import BoolArray

# A tick is a minute, a launch takes 20 s, and a spot node costs a quarter.
JOB = Job(work=100.0, deadline=600.0, start_up=20.0, tick=60.0, spot_price=0.25)
KINDS = {".": Kind.NONE, "s": Kind.SPOT, "o": Kind.ON_DEMAND}


def market(text: str) -> BoolArray:
    """Return the availability of ``+`` and ``-``."""
    return np.array([letter == "+" for letter in text])


class Script:
    """Holds what its letters say, tick by tick, and keeps the states that it was shown."""

    def __init__(self, letters: str) -> None:
        self.letters = letters
        self.states: list[State] = []

    def decide(self, state: State) -> Kind:
        self.states.append(state)
        return KINDS[self.letters[len(self.states) - 1]]


def run(letters: str, available: str = "++++++++++", job: Job = JOB, start: int = 0) -> Outcome:
    return play(Script(letters), job, market(available), start)


@pytest.mark.parametrize(
    ("letters", "available", "cost", "end", "launches"),
    [
        # 40 s of work in the tick of the launch, then 60.
        ("oo", "----------", 120.0, 120.0, 1),
        ("ss", "++++++++++", 30.0, 120.0, 1),
        # Idling costs nothing and keeps the work, but the next launch takes time again: 40 + 40 + 20.
        ("s.ss", "++++++++++", 45.0, 200.0, 2),
        # A preemption does as well: 40, then 40, then 20.
        ("s.ss", "+-++++++++", 45.0, 200.0, 2),
        # On demand in the very tick of the preemption.
        ("soo", "+-++++++++", 15.0 + 120.0, 140.0, 2),
        # To spot nodes and back: each is a launch, at the price of the new node.
        ("oso", "++++++++++", 60.0 + 15.0 + 60.0, 160.0, 3),
        ("...oo", "----------", 120.0, 300.0, 1),
    ],
)
def test_what_a_job_pays_and_when_it_ends(letters: str, available: str, cost: float, end: float, launches: int) -> None:
    outcome = run(letters, available)
    assert outcome == Outcome(cost, end, True, launches, tuple(KINDS[letter] for letter in letters))


def test_the_last_tick_is_paid_for_whole() -> None:
    outcome = run("oo", job=replace(JOB, work=41.0))
    assert (outcome.end, outcome.cost) == (61.0, 120.0)
    assert run("o", job=replace(JOB, work=40.0)).cost == 60.0


def test_a_launch_may_take_several_ticks() -> None:
    slow = replace(JOB, start_up=90.0)
    assert run("oooo", job=slow) == Outcome(240.0, 190.0, True, 1, (Kind.ON_DEMAND,) * 4)
    script = Script("oooo")
    play(script, slow, market("----------"), 0)
    assert [(state.start_up, state.done) for state in script.states] == [
        (0.0, 0.0),
        (30.0, 0.0),
        (0.0, 30.0),
        (0.0, 90.0),
    ]


def test_a_node_that_is_preempted_while_it_starts_has_done_nothing() -> None:
    slow = replace(JOB, start_up=90.0)
    outcome = run("s.oooo", "+---------", slow)
    assert (outcome.cost, outcome.end, outcome.launches) == (15.0 + 240.0, 120.0 + 190.0, 2)


def test_a_launch_without_start_up_is_free() -> None:
    assert run("osoo", job=replace(JOB, start_up=0.0, work=180.0)).cost == 60.0 + 15.0 + 60.0


def test_a_job_that_is_late_is_finished_on_demand() -> None:
    outcome = run("..........")
    assert (outcome.cost, outcome.end, outcome.on_time, outcome.launches) == (120.0, 720.0, False, 1)
    outcome = run(".........o")
    assert (outcome.cost, outcome.end, outcome.launches) == (120.0, 660.0, 1)  # its node is there already
    outcome = run(".........s")
    assert (outcome.cost, outcome.end, outcome.launches) == (15.0 + 120.0, 680.0, 2)


def test_a_deadline_within_a_tick_counts_to_the_second() -> None:
    job = replace(JOB, deadline=179.0)
    assert job.ticks == 3
    assert not run(".oo", job=job).on_time
    assert run(".oo", job=replace(job, deadline=180.0)).on_time
    # Work that is left after the deadline, in the tick of the deadline, is not paid for twice.
    assert run(".oo", job=job).cost == 120.0


def test_a_policy_sees_the_recording_up_to_now_and_whether_its_node_is_still_there() -> None:
    script, available = Script("s.ss"), market("-+-+-+++++++++")
    play(script, JOB, available, 3)
    assert [state.seen.tolist() for state in script.states] == [available[: 4 + tick].tolist() for tick in range(4)]
    assert [state.held for state in script.states] == [Kind.NONE, Kind.NONE, Kind.NONE, Kind.SPOT]
    assert [state.spot for state in script.states] == [True, False, True, True]
    assert [state.elapsed for state in script.states] == [0.0, 60.0, 120.0, 180.0]
    assert [state.left for state in script.states] == [100.0, 60.0, 60.0, 20.0]
    last = script.states[-1]
    assert (last.time_left, last.even(), last.even(60.0)) == (420.0, 30.0, 40.0)


def test_the_cost_of_on_demand_alone() -> None:
    assert on_demand_cost(JOB) == run("oo").cost
    assert on_demand_cost(replace(JOB, work=101.0)) == 180.0


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"work": 0.0}, "work and tick must be positive"),
        ({"start_up": -1.0}, "start_up at least 0"),
        ({"spot_price": 1.0}, "spot_price must be above 0 and below 1, got 1.0"),
        ({"deadline": 119.0}, "must fit before the deadline"),
    ],
)
def test_jobs_that_cannot_be(change: dict[str, float], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        replace(JOB, **change)


def test_a_job_must_fit_into_the_recording() -> None:
    for start in (-1, 1):
        with pytest.raises(ValueError, match=f"start must be 0 to 0 of this recording, got {start}"):
            run("oo", start=start)


def test_a_spot_node_cannot_be_had_where_there_is_none() -> None:
    with pytest.raises(ValueError, match="not available in tick 1"):
        run("ss", "+---------")


def test_seconds_that_do_not_matter_do_not_make_a_job_late() -> None:
    assert run("oo", job=replace(JOB, deadline=120.0 + EXACT / 2, work=100.0 + EXACT / 2)).on_time
