"""Two at once: what is known of paces, who trains beside whom, and whose time that is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_core.core.answers import Grant
from lightning_core.core.commands import Pause
from lightning_core.core.events import ExitCause, WorkerExited
from lightning_core.core.jobs import Beside, Job, OnHold
from lightning_core.scheduler.company.paces import Paces
from lightning_core.scheduler.scheduler import Scheduler
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.replay import replay
from lightning_core.testing.checks import saved_and_restored
from tests.builders import job
from tests.examples import examples

# Batches per second of every training here, alone.
RATE = 10.0


# ---------------------------------------------------------------------------------------------------- paces


def test_what_one_pair_has_shown_counts_for_its_kinds() -> None:
    paces = Paces()
    unknown = paces.expect("bert", ["gan"])
    paces.observe("bert", ["gan"], 0.9, 5.0)
    paces.observe("gan", ["bert"], 0.3, 5.0)
    seen, other = paces.expect("bert", ["gan"]), paces.expect("bert", ["vgg"])
    assert seen.pace == pytest.approx(0.9, rel=0.05)
    assert paces.expect("gan", ["bert"]).pace == pytest.approx(0.3, rel=0.15)
    assert seen.doubt < other.doubt < unknown.doubt
    assert unknown.pace < other.pace < seen.pace  # it suffers little: so beside others too, perhaps


def test_a_longer_measurement_counts_more() -> None:
    short, long = Paces(), Paces()
    short.observe("a", ["b"], 0.9, 0.1)
    long.observe("a", ["b"], 0.9, 30.0)
    assert Paces().expect("a", ["b"]).pace < short.expect("a", ["b"]).pace < long.expect("a", ["b"]).pace


def test_of_three_a_pace_is_the_product_until_it_is_measured() -> None:
    paces = Paces()
    for other, pace in (("b", 0.8), ("c", 0.5)):
        paces.observe("a", [other], pace, 100.0)
    product = paces.expect("a", ["b", "c"])
    assert product.pace == pytest.approx(paces.expect("a", ["b"]).pace * paces.expect("a", ["c"]).pace)
    paces.observe("a", ["c", "b"], 0.2, 100.0)
    assert paces.expect("a", ["b", "c"]).pace == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"), [(0.5, 0.5, 1.0), (1.0, 1.0, 0.5), (0.2, 0.3, 1.0), (1.0, 0.6, 0.625)]
)
def test_what_a_device_has_left_says_what_to_expect(mine: float, theirs: float, expected: float) -> None:
    paces = Paces()
    paces.use("a", mine)
    assert paces.expect("a", ["b"]).pace == pytest.approx(1 / max(2 * mine, 1))  # another is taken to be like it
    assert paces.expect("c", ["b"]) == Paces().expect("c", ["b"])
    paces.use("b", theirs)
    assert paces.expect("a", ["b"]).pace == pytest.approx(expected)


def test_kinds_that_do_not_run_together_say_nothing_of_others() -> None:
    paces = Paces()
    before = paces.expect("a", ["c"])
    paces.part(["b", "a"])
    assert paces.expect("a", ["c"]) == before
    assert not paces.run_together(["a", "b"])
    assert not paces.run_together(["c", "a", "b"])
    assert paces.run_together(["a", "c"])


def test_paces_are_restored_to_the_bit() -> None:
    paces = Paces()
    paces.observe("a", ["b"], 0.7, 2.0)
    paces.observe("a", ["b", "c"], 0.4, 2.0)
    paces.use("a", 0.5)
    paces.part(["a", "d"])
    other = Paces()
    other.expect("a", ["b"])
    other.restore(json.loads(json.dumps(paces.state())))
    paces.expect("bert", ("vgg",))  # what was worked out is no state
    saved_and_restored(paces, Paces())
    for others in (["b"], ["c"], ["b", "c"]):
        assert other.expect("a", others) == paces.expect("a", others)
    assert not other.run_together(["a", "d"])


# ---------------------------------------------------------------------------------------------------- in virtual time


def play(
    jobs: Sequence[Job],
    paces: Mapping[str, float],
    until: float = math.inf,
    work: float = 60.0,
    journal: Path | None = None,
    **terms: object,
) -> tuple[Outcome, Simulation]:
    """Play jobs of ten batches a second alone.

    Args:
        jobs: The jobs.
        paces: Pace beside anything by name, or by ``one+other`` beside that one.
        until: Seconds after which the play is stopped.
        work: Seconds of work alone that are recorded of each.
        journal: Path of a journal to write; None to write none.
        terms: Settings of the pool.
    """

    def pace(name: str, others: Sequence[str]) -> float:
        return math.prod(paces.get(f"{name}+{other}", paces.get(name, 0.5)) for other in others)

    cells = range(5, int(RATE * work) + 1, 5)
    simulated = [SimulatedJob(one, list(cells), [1.0 for _ in cells], RATE) for one in jobs]
    made = Settings(**{"policy": "edf", **terms})  # type: ignore[arg-type]
    simulation = Simulation(made, simulated, journal=journal, check=True, pace=pace)
    return simulation.run(until), simulation


def scheduler_of(simulation: Simulation) -> Scheduler:
    return simulation._scheduler


def beside_of(simulation: Simulation) -> dict[str, tuple[str, ...]]:
    return {status.name: status.beside for status in scheduler_of(simulation).status()}


def pair(**terms: object) -> list[Job]:
    """Return two jobs of a minute each, of kinds of their own."""
    return [job("a", 1000.0, 600, **terms), job("b", 2000.0, 600, **terms)]  # type: ignore[arg-type]


def test_two_that_lose_nothing_end_in_half_the_time() -> None:
    outcome, _ = play(pair(), {"a": 1.0, "b": 1.0})
    assert max(one.finished_at or math.inf for one in outcome.jobs) < 65.0
    together, _ = play(pair(), {"a": 1.0, "b": 1.0}, beside=Beside.NEVER)
    assert max(one.finished_at or math.inf for one in together.jobs) == pytest.approx(120.0)


def test_a_pair_that_loses_ends_within_seconds_and_is_not_tried_again() -> None:
    outcome, simulation = play(pair(), {"a": 0.3, "b": 0.3})
    assert max(one.finished_at or math.inf for one in outcome.jobs) < 126.0
    assert scheduler_of(simulation)._state.forming._lost < 6.0


def test_those_that_do_not_run_together_are_told_apart() -> None:
    outcome, simulation = play(pair(), {"a": 0.0, "b": 0.0})
    assert max(one.finished_at or math.inf for one in outcome.jobs) < 128.0
    assert not scheduler_of(simulation)._state.forming.paces.run_together(["a", "b"])


def test_the_best_of_those_that_wait_is_chosen() -> None:
    jobs = [job(name, 1e5 + k, 6000) for k, name in enumerate("abcd")]
    _, simulation = play(
        jobs, {"a+c": 1.0, "c+a": 0.9, "a+b": 0.6, "b+a": 0.6, "a+d": 0.2, "d": 0.2}, until=200.0, work=600.0
    )
    assert beside_of(simulation)["a"] == ("c",)
    status = {one.name: one for one in scheduler_of(simulation).status()}
    assert status["a"].pace == pytest.approx(1.0, abs=0.05)
    assert status["c"].pace == pytest.approx(0.9, abs=0.05)
    assert (status["c"].share, status["c"].state) == (0.0, "running")
    assert str(status["c"].grant_reason) == "beside a, at 90% of its throughput alone"


def test_a_job_that_was_never_seen_alone_says_why_it_trains() -> None:
    _, simulation = play([job("a", 1e5, 6000), job("b", 2e5, 6000)], {"a": 1.0, "b": 1.0}, until=1.5)
    seen = [(one.share, one.grant_reason.code) for one in scheduler_of(simulation).status()]
    assert seen == [(0.5, "first_in_line"), (0.5, "seen_alone")]


def test_more_than_two_where_it_pays() -> None:
    jobs = [job(name, 1000.0 + k, 6000) for k, name in enumerate("abc")]
    _, simulation = play(jobs, dict.fromkeys("abc", 0.95), until=200.0, work=600.0)
    assert beside_of(simulation) == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}


def test_no_job_is_made_late_that_is_in_time_without_company() -> None:
    jobs = [job("tight", 62.0, 600), job("b", 2000.0, 600)]
    for paces in ({"tight": 0.9, "b": 1.0}, {"tight": 0.7, "b": 0.7}):
        outcome, _ = play(jobs, paces)
        assert outcome.met == 2
        assert outcome.jobs[0].finished_at == pytest.approx(60.0, abs=1.9)


def test_no_job_that_waits_is_made_late() -> None:
    """Beside the one that has the share, another delays those between the two."""
    jobs = [job("a", 70.0, 600), job("next", 665.0, 6000), job("c", 3000.0, 6000)]
    outcome, _ = play(jobs, {"a": 0.6, "c": 0.9, "next": 0.1}, work=700.0)
    assert outcome.met == 3


@pytest.mark.parametrize("which", ["pool", "first", "second"])
def test_never_is_obeyed(which: str) -> None:
    first, second = pair()
    if which == "first":
        first, second = job("a", 1000.0, 600, beside=Beside.NEVER), second
    elif which == "second":
        first, second = first, job("b", 2000.0, 600, beside=Beside.NEVER)
    beside = Beside.NEVER if which == "pool" else Beside.AUTO
    outcome, _ = play([first, second], {"a": 1.0, "b": 1.0}, beside=beside)
    assert max(one.finished_at or math.inf for one in outcome.jobs) == pytest.approx(120.0)


def test_always_trains_beside_though_it_does_not_pay() -> None:
    _, simulation = play([job("a", 1e5, 6000), job("b", 2e5, 6000, beside=Beside.ALWAYS)], {"a": 0.5, "b": 0.5},
                         until=100.0, work=600.0)  # fmt: skip
    assert beside_of(simulation)["a"] == ("b",)


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="beside must be one of never, auto, always, got 'sometimes'"):
        Settings(beside="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize(("memory", "together"), [(4900, True), (5100, False)])
def test_both_must_fit_the_memory(memory: int, together: bool) -> None:
    terms = {"memory": memory, "on_hold": OnHold.OFFLOAD}
    _, simulation = play(pair(**terms), {"a": 1.0, "b": 1.0}, until=30.0, device_memory=10_000)
    assert bool(beside_of(simulation)["a"]) is together


def test_jobs_of_several_devices_train_alone() -> None:
    jobs = [job("a", 1000.0, 600, devices=2), job("b", 2000.0, 600)]
    _, simulation = play(jobs, {"a": 1.0, "b": 1.0}, until=30.0, devices=2)
    assert not any(beside_of(simulation).values())


def test_jobs_that_share_a_device_train_beside_each_other_in_the_time_of_both() -> None:
    jobs = [job(name, 1000.0, 6000) for name in "ab"]
    outcome, simulation = play(jobs, {"a": 0.8, "b": 0.8}, until=100.0, work=600.0, policy="uniform")
    assert all(beside_of(simulation).values())
    assert sum(one.batches for one in outcome.jobs) == pytest.approx(1.6 * 100.0 * RATE, rel=0.1)


@pytest.mark.parametrize(("pace", "together"), [(0.6, True), (0.4, False)])
def test_of_jobs_with_shares_none_does_less_than_with_its_own(pace: float, together: bool) -> None:
    jobs = [job(name, 1e5, 6000) for name in "ab"]
    _, simulation = play(jobs, {"a": 1.0, "b": pace}, until=60.0, work=600.0, policy="uniform")
    assert bool(beside_of(simulation)["a"]) is together  # each has half of the device


def test_fixed_shares_stay_as_they_are() -> None:
    jobs, shares = [job(name, 1e5, 6000) for name in "ab"], {"shares": [0.7, 0.3]}
    outcome, _ = play(jobs, {"a": 1.0, "b": 1.0}, until=60.0, work=600.0, policy="fixed", policy_args=shares)
    assert [one.batches for one in outcome.jobs] == [420, 180]


def test_a_held_job_leaves_its_company() -> None:
    _, simulation = play(pair(), {"a": 1.0, "b": 1.0}, until=30.0)
    scheduler = scheduler_of(simulation)
    before = scheduler.directive("a")
    answers = scheduler.handle(Pause("b"), 30.5)
    after = scheduler.directive("a")
    assert isinstance(before, Grant)
    assert isinstance(after, Grant)
    assert (before.beside, after.beside, after.version) == (1, 0, before.version + 1)
    assert after in answers
    scheduler.check()


def test_those_that_run_out_of_memory_beside_each_other_are_told_apart() -> None:
    _, simulation = play(pair(), {"a": 1.0, "b": 1.0}, until=30.0)
    scheduler = scheduler_of(simulation)
    assert beside_of(simulation)["a"] == ("b",)
    scheduler.handle(WorkerExited("b", scheduler.incarnation("b"), ExitCause.OUT_OF_MEMORY, "CUDA out of memory"), 30.5)
    scheduler.check()
    assert not scheduler._state.forming.paces.run_together(["a", "b"])
    assert not any(beside_of(simulation).values())


def test_a_play_of_companies_replays_and_continues_from_its_state(tmp_path: Path) -> None:
    jobs = [job(name, 500.0 + k, 600) for k, name in enumerate("abcd")]
    _, simulation = play(jobs, {"a": 0.9, "b": 0.8, "c": 0.4, "d": 0.7}, journal=tmp_path / "journal.sqlite3")
    with Journal.open(tmp_path / "journal.sqlite3", read_only=True) as journal:
        again = replay(journal, strict=True, whole=True)
    assert again.scheduler.state() == scheduler_of(simulation).state()


def test_the_time_of_a_pair_is_divided_by_the_work_that_each_does() -> None:
    _, simulation = play(pair(), {"a": 0.9, "b": 0.45}, until=50.0)
    a, b = scheduler_of(simulation).status()
    assert a.device_seconds + b.device_seconds == pytest.approx(50.0, rel=0.03)
    beside = sum(one.busy for one in (a, b)) - 50.0  # seconds that both trained at once
    assert beside > 35.0
    assert b.device_seconds == pytest.approx(beside * 0.45 / 1.35, rel=0.15)


def test_throughput_and_earlier_runs_are_those_alone() -> None:
    _, simulation = play(pair(), {"a": 0.6, "b": 0.6}, until=50.0)
    a, b = scheduler_of(simulation).status()
    assert a.beside == ("b",)
    assert a.throughput == pytest.approx(RATE, rel=0.02)
    assert b.throughput == pytest.approx(RATE, rel=0.02)
    assert scheduler_of(simulation).speedup("a").throughput(1) == pytest.approx(RATE, rel=0.05)


def test_an_earlier_run_took_as_long_as_it_would_have_alone() -> None:
    _, simulation = play(pair(), {"a": 0.6, "b": 0.6})
    for run in scheduler_of(simulation).ended_runs():
        assert run.trained == pytest.approx(60.0, rel=0.05)


@settings(deadline=None, max_examples=examples(10))
@given(
    st.lists(st.tuples(st.floats(20.0, 400.0), st.integers(50, 900), st.floats(0.0, 1.0)), min_size=2, max_size=6),
    st.sampled_from(["edf", "triage", "uniform", "rr", "lara", "laira", "guarded_edf", "fifo"]),
    st.integers(1, 3),
)
def test_whatever_the_paces_the_invariants_hold(
    jobs: list[tuple[float, int, float]], policy: str, devices: int
) -> None:
    made = [job(f"{'xyz'[k % 3]}-{k}", deadline, batches) for k, (deadline, batches, _) in enumerate(jobs)]
    paces = {one.name: pace for one, (_, _, pace) in zip(made, jobs, strict=True)}
    outcome, _ = play(made, paces, work=100.0, policy=policy, devices=devices)
    assert all(one.finished_at is not None for one in outcome.jobs)
