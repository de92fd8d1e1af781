"""Virtual time: end times agree with values worked by hand, and each delay has its expected effect."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_core.bundle.bundle_file import BundleSpec
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.core.answers import Verdict
from lightning_core.core.events import Report, WorkerExited
from lightning_core.core.jobs import Capability, Job, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.policies import POLICIES
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.scenario import Delays, Outcome, SimulatedJob
from lightning_core.simulation.simulation import Simulation
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.journals.replay import replay
from tests.examples import day_and_night

SPEED = 100.0
SCRIPT = frozenset({Capability.TIME_SLICE, Capability.HOLD})


def known(name: str, seconds: float, deadline: float = 100.0, submitted: float = 0.0, **terms: Any) -> SimulatedJob:
    """Return a job of known work with a cell every tenth of a second."""
    batches = round(seconds * SPEED)
    position = list(range(10, batches + 1, 10))
    job = Job(name, deadline, BatchTarget(batches), **terms)
    return SimulatedJob(job, position, [100.0 / s for s in position], SPEED, submitted)


def falling(name: str, losses: list[float], target: float, deadline: float = 100.0, **terms: Any) -> SimulatedJob:
    """A cell a second."""
    job = Job(name, deadline, LossTarget("loss", target), **terms)
    return SimulatedJob(job, [100 * n for n in range(1, len(losses) + 1)], losses, SPEED)


def play(
    policy: str, *jobs: SimulatedJob, delays: Delays | None = None, journal: Path | None = None, **settings: Any
) -> Outcome:
    usual: dict[str, Any] = {"estimator": "log_time", "window": 1}
    given = Settings(policy=policy, **(usual | settings))
    return Simulation(given, jobs, delays, journal, check=True).run()


def ends(outcome: Outcome) -> list[float | None]:
    return [None if job.finished_at is None else round(job.finished_at, 9) for job in outcome.jobs]


def switches(outcome: Outcome) -> list[int]:
    assert outcome.switches == sum(job.switches for job in outcome.jobs)
    return [job.switches for job in outcome.jobs]


def verdicts(outcome: Outcome) -> list[str]:
    return [str(job.verdict) for job in outcome.jobs]


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind as JSON values, with the defaults that the journal leaves out."""
    defaults = {f.name: f.default for f in fields(Report if kind == "report" else WorkerExited)}
    with Journal.open(path, read_only=True) as journal:
        every = [defaults | json.loads(entry.event) | {"now": entry.now} for entry in journal.entries()]
    return [event for event in every if event["kind"] == kind]


# ---------------------------------------------------------------------------------------------------- order of jobs


@pytest.mark.parametrize(
    ("policy", "finished", "switched"),
    [
        ("fifo", [3.0, 5.0, 6.0], [0, 1, 1]),
        ("edf", [6.0, 3.0, 1.0], [1, 1, 0]),
        # A third each until c is done at 3, a half each until b is at 5, then a alone. In the three units of three
        # the first costs 2 (no job ran before), the others 2 each; in the two units of two c, the last, is gone: 2 and
        # 1; then a follows b.
        ("uniform", [6.0, 5.0, 3.0], [3 + 2 + 1 - 1, 3 + 2 - 1, 3 - 2]),
        ("rr:1", [6.0, 5.0, 3.0], [2, 2, 1]),
    ],
)
def test_policies_on_one_device(policy: str, finished: list[float], switched: list[int]) -> None:
    name, _, quantum = policy.partition(":")
    args = {"quantum": float(quantum)} if quantum else {}
    outcome = play(name, known("a", 3, 30), known("b", 2, 20), known("c", 1, 10), policy_args=args)
    assert (ends(outcome), switches(outcome)) == (finished, switched)
    assert verdicts(outcome) == ["met"] * 3
    assert [round(job.busy, 9) for job in outcome.jobs] == [3.0, 2.0, 1.0]
    assert [job.batches for job in outcome.jobs] == [300, 200, 100]
    assert (outcome.met, outcome.summary.wall) == (3, 6.0)


def test_policies_on_two_devices() -> None:
    assert ends(play("fifo", known("a", 3), known("b", 2), known("c", 2), devices=2)) == [3.0, 2.0, 4.0]


def test_a_job_of_two_devices_has_both() -> None:
    outcome = play("fifo", known("a", 2), known("b", 3, max_devices=2, min_devices=2), known("c", 1), devices=2)
    # b waits until both are free; c fills the gap, and keeps its device until it is done.
    assert ends(outcome) == [2.0, 5.0, 1.0]
    assert switches(outcome) == [0, 2, 0]


def test_jobs_wait_for_their_begin() -> None:
    assert ends(play("fifo", known("a", 4, begin=2.0), known("b", 3))) == [6.0, 7.0]
    assert ends(play("edf", known("a", 4, 20, begin=2.0), known("b", 3, 10))) == [7.0, 3.0]


def test_later_submissions_count_from_their_time() -> None:
    outcome = play("edf", known("a", 4, 100), known("b", 2, 10, submitted=1.5), known("c", 1, submitted=50.0))
    assert ends(outcome) == [6.0, 3.5, 51.0]
    assert [job.submitted_at for job in outcome.summary.jobs] == [0.0, 1.5, 50.0]


def test_heavier_jobs_are_preferred() -> None:
    one = play("guarded_edf", known("a", 4, 5, work=4.0), known("b", 4, 5, work=4.0, weight=3.0))
    other = play("guarded_edf", known("a", 4, 5, work=4.0, weight=3.0), known("b", 4, 5, work=4.0))
    assert (verdicts(one), verdicts(other)) == (["missed", "met"], ["met", "missed"])


def test_fixed_shares() -> None:
    outcome = play("fixed", known("a", 1), known("b", 1), policy_args={"shares": [0.5, 0.25]})
    assert ends(outcome) == [2.0, 4.0]


# ---------------------------------------------------------------------------------------------------- delays


@pytest.mark.parametrize(
    ("delays", "finished"),
    [
        (Delays(), [3.0, 5.0]),
        (Delays(switch=0.5), [3.0, 5.5]),
        # Both are launched at once.
        (Delays(start=0.5), [3.5, 5.5]),
        # a learns of its placement 0.5 late, gets its grant after 1 more, and its end is known 0.5 late. b is resident
        # and gets its grant 0.5 late.
        (Delays(report=0.5), [3.0 + 2.0, 5.0 + 3.0]),
        (Delays(release=0.5), [3.0, 5.0]),
    ],
)
def test_each_delay_of_resident_jobs_counts(delays: Delays, finished: list[float]) -> None:
    assert ends(play("fifo", known("a", 3), known("b", 2), delays=delays)) == finished


def test_turns_cost_a_switch_for_each_job_in_each_unit() -> None:
    outcome = play("uniform", known("a", 3), known("b", 2), delays=Delays(switch=0.1))
    # Two switches of 0.1 in each second leave each job 0.4 of one; then a has one second left, and is switched to.
    assert ends(outcome) == [5.0 + 0.1 + 1.0, 5.0]
    assert [round(job.busy, 9) for job in outcome.jobs] == [3.0, 2.0]
    longer = play("uniform", known("a", 3), known("b", 2), delays=Delays(switch=0.1, turn_unit=2.0))
    assert ends(longer)[1] == round(2.0 / 0.45, 9)


def test_switches_that_take_all_the_time_leave_none_to_train() -> None:
    outcome = play("uniform", known("a", 3, 9, on_miss=OnMiss.STOP), known("b", 2, 9, on_miss=OnMiss.STOP),
                   delays=Delays(switch=0.5))  # fmt: skip
    assert (verdicts(outcome), [job.batches for job in outcome.jobs]) == (["missed", "missed"], [0, 0])


def test_an_interrupted_switch_is_wasted() -> None:
    outcome = play("rr", known("a", 2), known("b", 1), delays=Delays(switch=1.0), policy_args={"quantum": 1.0})
    # After the first second of a all time goes to switches, until the deadlines at 100 have passed and one job stays.
    assert ends(outcome) == [100.0 + 1.0 + 1.0, 102.0 + 1.0 + 1.0]
    assert switches(outcome) == [50, 51]


def test_a_device_with_one_worker_slot(tmp_path: Path) -> None:
    """b is more urgent: a saves and leaves, b is launched, and a again when b is done."""
    jobs = known("a", 4, 100), known("b", 2, 10, submitted=1.0)
    delays = Delays(release=0.5, start=0.25)
    outcome = play("edf", *jobs, delays=delays, journal=tmp_path / "j.db", resident=1, stay=0)
    done_before = 1.0 - 0.25
    b = 1.0 + 0.5 + 0.25 + 2.0
    assert ends(outcome) == [b + 0.25 + 4.0 - done_before, b]
    assert switches(outcome) == [1, 1]
    [left] = events(tmp_path / "j.db", "worker_exited")
    assert (left["job"], left["incarnation"], left["cause"], left["now"]) == ("a", 1, "released", 1.5)
    again = [report for report in events(tmp_path / "j.db", "report") if report["incarnation"] == 2]
    assert [report["number"] for report in again] == list(range(1, len(again) + 1))
    assert {report["batches_at_start"] for report in again} == {75}
    assert (again[0]["batches"], again[0]["busy"], again[1]["cells"][0][:2]) == (75, 0.0, [1, 80])
    assert round(again[-1]["busy"], 9) == 3.25
    assert round(outcome.jobs[0].busy, 9) == 4.0


def test_a_warm_job_moves_to_a_free_device(tmp_path: Path) -> None:
    """c is warm on a's device when b's device becomes free: it leaves without having trained, and is launched there."""
    jobs = known("a", 4), known("b", 2), known("c", 2)
    delays = Delays(release=0.5, start=0.25)
    outcome = play("fifo", *jobs, delays=delays, journal=tmp_path / "j.db", devices=2)
    assert ends(outcome) == [4.25, 2.25, 2.25 + 0.5 + 0.25 + 2.0]
    assert [(left["job"], left["now"]) for left in events(tmp_path / "j.db", "worker_exited")] == [("c", 2.75)]


def test_a_job_loses_its_device_while_it_saves() -> None:
    """A script on device 0 is more urgent than a, which saves there and continues on device 1."""
    jobs = known("a", 4, 100), known("b", 2, 10, submitted=1.0, device=0)
    outcome = play("edf", *jobs, delays=Delays(release=0.5, start=0.25), devices=2, stay=0)
    assert ends(outcome) == [1.5 + 0.25 + 4.0 - 0.75, 1.5 + 2.0]


def test_scripts_change_devices_without_leaving(tmp_path: Path) -> None:
    jobs = [known(name, seconds, can=SCRIPT) for name, seconds in (("a", 4), ("b", 2), ("c", 2))]
    delays = Delays(release=5.0, start=5.0)
    outcome = play("fifo", *jobs, delays=delays, journal=tmp_path / "j.db", devices=2)
    assert ends(outcome) == [4.0, 2.0, 4.0]
    assert events(tmp_path / "j.db", "worker_exited") == []


def test_scripts_stay_on_their_device() -> None:
    jobs = [known(name, 2, device=device) for name, device in (("a", 0), ("b", 0), ("c", 1))]
    assert ends(play("fifo", *jobs, devices=2)) == [2.0, 4.0, 2.0]


# ---------------------------------------------------------------------------------------------------- reports


def test_reports_of_a_single_job(tmp_path: Path) -> None:
    play("fifo", known("a", 1), delays=Delays(report_every=0.25), journal=tmp_path / "j.db")
    reports = events(tmp_path / "j.db", "report")
    assert [(report["now"], report["number"], report["batches"]) for report in reports] == [
        (0.0, 1, 0),
        (0.3, 2, 30),
        (0.6, 3, 60),
        (0.9, 4, 90),
        (1.0, 5, 100),
    ]
    assert [[cell[:2] for cell in report["cells"]] for report in reports] == [
        [],
        [[1, 10], [2, 20], [3, 30]],
        [[4, 40], [5, 50], [6, 60]],
        [[7, 70], [8, 80], [9, 90]],
        [[10, 100]],
    ]
    assert [report["busy"] for report in reports] == [0.0, 0.3, 0.6, 0.9, 1.0]


def test_a_job_that_stops_reports_it(tmp_path: Path) -> None:
    play("edf", known("a", 3, 100), known("b", 1, 10, submitted=0.95), journal=tmp_path / "j.db")
    reports = [(r["now"], r["batches"], r["version"]) for r in events(tmp_path / "j.db", "report") if r["job"] == "a"]
    assert (0.95, 95, 2) in reports
    after = [report for report in reports if report[0] > 0.95]
    assert after[0] == (2.0, 100, 3)  # the first cell after it continues


def test_a_batch_target_between_two_cells_is_reported_when_it_is_reached(tmp_path: Path) -> None:
    job = SimulatedJob(Job("a", 10.0, BatchTarget(33)), [10, 20, 30, 40], [4.0, 3.0, 2.0, 1.0], 10.0)
    outcome = play("fifo", job, journal=tmp_path / "j.db")
    assert ends(outcome) == [3.3]
    assert [report["batches"] for report in events(tmp_path / "j.db", "report")] == [0, 10, 20, 30, 33]


def test_a_loss_target_is_met_by_the_mean_over_the_window() -> None:
    losses = [8.0, 6.0, 4.0, 4.0, 2.0, 2.0]
    for window, finished in ((1, 3.0), (2, 4.0), (3, 5.0)):
        assert ends(play("fifo", falling("a", losses, 4.0), window=window)) == [finished]


def test_events_at_the_deadline_are_in_time() -> None:
    [job] = play("fifo", falling("a", [3.0, 2.0, 1.0], 1.0, deadline=3.0, on_miss=OnMiss.STOP)).jobs
    assert (job.verdict, job.finished_at) == (Verdict.MET, 3.0)


def test_past_its_recording_a_job_repeats_the_last_tenth(tmp_path: Path) -> None:
    losses = [float(n) for n in range(40, 20, -1)]
    job = falling("a", losses, 0.5, deadline=26.5, on_miss=OnMiss.STOP)
    outcome = play("fifo", job, delays=Delays(report_every=0.0), journal=tmp_path / "j.db")
    cells = [cell for report in events(tmp_path / "j.db", "report") for cell in report["cells"]]
    assert cells[17:] == [[n, 100 * n, loss] for n, loss in zip(range(18, 27), [23.0, *[22.0, 21.0] * 4], strict=True)]
    assert (outcome.jobs[0].verdict, outcome.jobs[0].finished_at) == (Verdict.MISSED, 26.5)


def test_a_training_ends_when_deadline_and_recording_are_over() -> None:
    """a goes first once b's deadline has passed, and meets its target late; b continues to the end of its recording."""
    outcome = play("edf", falling("a", [3.0, 2.0, 1.0], 1.0, 2.0), falling("b", [3.0, 2.0, 1.0], 0.5, 1.5))
    assert (ends(outcome), verdicts(outcome)) == ([4.5, 6.0], ["missed", "missed"])
    assert [str(job.reason) for job in outcome.summary.jobs] == [
        "target met 2.5s after the deadline",
        "its training ended: best 1, target 0.5",
    ]


def test_a_held_job_does_not_progress() -> None:
    outcome = play("fifo", falling("a", [2.0, 1.0], 0.5, 1.5, on_miss=OnMiss.HOLD), known("b", 1))
    assert (ends(outcome), verdicts(outcome)) == ([None, 2.5], ["missed", "met"])


def test_a_job_that_does_not_fit_the_pool_is_refused() -> None:
    outcome = play("fifo", known("a", 1, min_devices=2, max_devices=2), known("b", 1))
    assert (ends(outcome), verdicts(outcome)) == ([0.0, 1.0], ["cancelled", "met"])


def test_a_simulation_can_end_early() -> None:
    jobs = known("a", 3), known("b", 2), known("c", 2, submitted=20.0)
    outcome = Simulation(Settings(policy="fifo", estimator="log_time"), jobs).run(until=4.0)
    assert ends(outcome) == [3.0, None, None]
    assert [job.batches for job in outcome.jobs] == [300, 100, 0]
    assert (verdicts(outcome)[2], len(outcome.summary.jobs)) == ("None", 2)


# ---------------------------------------------------------------------------------------------------- one story


def draw(seed: int, count: int = 6, devices: int = 1) -> list[SimulatedJob]:
    """Falling losses with noise, some targets out of reach; terms of all kinds."""
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(count):
        n = int(rng.integers(20, 60))
        position = np.cumsum(rng.integers(5, 20, n))
        loss = 3.0 * position ** -rng.uniform(0.1, 0.6) * rng.lognormal(0, 0.1, n)
        target = float(np.quantile(loss, rng.uniform(0.0, 0.7)))
        terms: dict[str, Any] = {"deadline": rng.uniform(5, 60), "weight": float(rng.integers(1, 3))}
        if number % 3 == 1:
            terms |= {"begin": terms["deadline"] * 0.2, "on_miss": OnMiss.STOP}
        if number % 4 == 3:
            terms["can"] = SCRIPT
        if number == 2 and devices > 1:
            terms |= {"min_devices": 2, "max_devices": 2}
        goal = BatchTarget(int(position[n // 2])) if number % 5 == 4 else LossTarget("loss", target)
        jobs.append(SimulatedJob(Job(f"j{number}", target=goal, **terms), position, loss, rng.uniform(20, 80),
                                 float(rng.integers(0, 3) * 2.5)))  # fmt: skip
    return jobs


ROUGH = Delays(report=0.05, switch=0.1, release=0.4, start=0.7)


@pytest.mark.stories
# Golden journals replay each policy, too, and tests/scheduler/test_invariants.py draws pools like the others.
@pytest.mark.parametrize(
    "policy", day_and_night([name for name in POLICIES if name != "fixed"], ["decor", "edf", "laira", "lara", "triage"])
)
@pytest.mark.parametrize(("devices", "resident"), day_and_night([(1, None), (2, 4), (3, 3)], [(2, 4)]))
def test_every_policy_runs_in_virtual_time_and_replays(
    policy: str, devices: int, resident: int | None, tmp_path: Path
) -> None:
    """The journal replays bit for bit, a run without a journal is the same, and no device is oversold."""
    jobs = draw(devices, devices=devices)
    settings = Settings(policy=policy, devices=devices, resident=resident, window=2, stay=2.0)
    for delays in (Delays(), ROUGH):
        path = tmp_path / f"{delays.start}.db"
        outcome = Simulation(settings, jobs, delays, path, check=True).run()
        again = Simulation(settings, jobs, delays).run()
        assert (again.jobs, again.switches, again.events, again.rounds) == (
            outcome.jobs, outcome.switches, outcome.events, outcome.rounds,
        )  # fmt: skip
        with Journal.open(path, read_only=True) as journal:
            found = replay(journal)
            assert (found.digest, found.events) == (journal.digest, outcome.events)
        assert [job.verdict for job in found.scheduler.status()] == [job.verdict for job in again.summary.jobs]
        ended = [job.finished_at for job in outcome.jobs]
        assert None not in ended
        wall = outcome.summary.wall + 2 * delays.report
        sizes = {given.job.name: given.job.max_devices for given in jobs}
        assert sum(job.busy * min(sizes[job.name], devices) for job in outcome.jobs) <= devices * wall + 1e-6
        for job, given in zip(outcome.jobs, jobs, strict=True):
            assert job.batches == pytest.approx(job.busy * given.throughput, abs=1.0 + 1e-6)
        if delays is not ROUGH:
            said_at_end = {job.name: job.batches for job in outcome.summary.jobs}
            met = [job for job in outcome.jobs if job.verdict is Verdict.MET]
            assert all(said_at_end[job.name] == job.batches for job in met)


@pytest.mark.parametrize("seed", range(4))
def test_simulated_workers_report_like_live_ones(seed: int, tmp_path: Path) -> None:
    """Report numbers have no gaps within an incarnation, counts only grow, and incarnations follow each other."""
    path = tmp_path / "j.db"
    jobs = draw(seed, devices=2)
    Simulation(Settings(policy="edf", devices=2, resident=2, window=2, stay=0.5), jobs, ROUGH, path).run()
    reports = events(path, "report")
    assert any(left["cause"] == "released" for left in events(path, "worker_exited"))
    for name in {report["job"] for report in reports}:
        said = [report for report in reports if report["job"] == name]
        incarnations = sorted({report["incarnation"] for report in said})
        assert incarnations == list(range(1, len(incarnations) + 1))
        seen = [cell[1] for report in said for cell in report["cells"]]
        assert all(a < b for a, b in pairwise(seen))
        assert all(a["batches"] <= b["batches"] for a, b in pairwise(said))
        for incarnation in incarnations:
            one = [report for report in said if report["incarnation"] == incarnation]
            assert [report["number"] for report in one] == list(range(1, len(one) + 1))
            assert (one[0]["busy"], one[0]["cells"], one[0]["batches"]) == (0.0, (), one[0]["batches_at_start"])
            assert [cell[0] for report in one for cell in report["cells"]] == list(
                range(1, sum(len(report["cells"]) for report in one) + 1)
            )
            assert all(a["busy"] <= b["busy"] for a, b in pairwise(one))
            for report in one:
                assert all(cell[1] <= report["batches"] for cell in report["cells"])


@pytest.mark.parametrize("seed", range(5))
def test_end_times_of_edf_are_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    work, deadline = rng.uniform(1, 9, 12).round(1), rng.uniform(100, 200, 12)
    outcome = play("edf", *(known(f"j{k}", w, d) for k, (w, d) in enumerate(zip(work, deadline, strict=True))))
    order = np.argsort(deadline)
    expected = np.empty(12)
    expected[order] = np.cumsum(work[order])
    assert ends(outcome) == pytest.approx(expected.tolist())
    assert outcome.switches == 11


# ---------------------------------------------------------------------------------------------------- bad input


def test_invalid_simulations_are_refused() -> None:
    job = Job("a", 10.0, BatchTarget(5))
    for position, loss, speed, words in (
        ([], [], 1.0, "a: needs a loss for each position, got 0 for 0"),
        ([1], [], 1.0, "a: needs a loss for each position, got 0 for 1"),
        ([0], [1.0], 1.0, "a: positions must be whole batches that grow, got 0.0 after 0.0"),
        ([2, 2], [1.0, 1.0], 1.0, "a: positions must be whole batches that grow, got 2.0 after 2.0"),
        ([1.5], [1.0], 1.0, "a: positions must be whole batches that grow, got 1.5 after 0.0"),
        ([float("nan")], [1.0], 1.0, "a: positions must be whole batches that grow, got nan after 0.0"),
        ([1], [float("nan")], 1.0, "a: losses must be finite, got nan at 1.0"),
        ([1], [float("inf")], 1.0, "a: losses must be finite, got inf at 1.0"),
        ([1], [1.0], 0.0, "a: throughput must be positive and finite, got 0.0"),
    ):
        with pytest.raises(ValueError, match=f"^{words}$"):
            SimulatedJob(job, position, loss, speed)
    with pytest.raises(ValueError, match=r"^a: submitted must be at least 0 and finite, got -1.0$"):
        SimulatedJob(job, [1], [1.0], 1.0, -1.0)
    with pytest.raises(ValueError, match=r"^jobs: at least one job is needed$"):
        Simulation(Settings(), [])
    with pytest.raises(ValueError, match=r"^jobs: 'a' is there twice$"):
        Simulation(Settings(), [known("a", 1), known("b", 1), known("a", 2)])
    with pytest.raises(ValueError, match=r"^delay switch must be at least 0 seconds and finite, got -1$"):
        Delays(switch=-1)
    with pytest.raises(ValueError, match=r"^delay turn_unit must be positive, got 0$"):
        Delays(turn_unit=0)


def test_a_journal_is_never_overwritten(tmp_path: Path) -> None:
    play("fifo", known("a", 1), journal=tmp_path / "j.db")
    with pytest.raises(JournalError, match="a journal already exists"):
        play("fifo", known("a", 1), journal=tmp_path / "j.db")


def test_the_outcomes_are_those_of_all_jobs_however_many_and_however_long() -> None:
    """A scheduler forgets in time what has ended; a run or a simulation has to tell of all that was in it."""
    count, apart = 400, 1000.0
    jobs = [
        SimulatedJob(Job(f"job-{k}", 500.0, BatchTarget(10)), [10], [1.0], 10.0, submitted=k * apart)
        for k in range(count)
    ]
    outcome = Simulation(Settings("edf"), jobs).run()
    assert count * apart > 4 * 86400
    assert [str(job.verdict) for job in outcome.jobs] == ["met"] * count
    assert (outcome.summary.met, len(outcome.summary.jobs)) == (count, count)


def test_the_scheduler_of_a_bundle_remembers_all_its_jobs() -> None:
    specs = tuple(JobSpec(Job(f"job-{k}", 500.0, BatchTarget(10)), {}) for k in range(600))
    assert BundleSpec(specs).settings.remember == 600
    assert BundleSpec(specs[:3]).settings.remember == Settings().remember
