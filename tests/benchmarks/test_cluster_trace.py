"""The benchmark on a cluster trace: reading traces, upper bounds, and the published policies."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.clusters.cluster import DECOR, TRACES, Group, contenders, play_all, print_group
from benchmarks.clusters.cluster_play import Contender, play
from benchmarks.clusters.cluster_rounds import round_ms
from benchmarks.clusters.cluster_trace import (
    PARAMETERS,
    Wanted,
    drawn,
    find,
    fraction_as_asked,
    fraction_in_reach,
    in_reach,
    jittered,
    read,
    repeated,
    restart_of,
    synthetic,
    with_restarts,
)
from benchmarks.clusters.elasticflow import ElasticFlowLike, Known, Slots
from benchmarks.clusters.gavel import Gavel

COLUMNS = ["job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write two traces and two tables, one of which lacks a model."""
    write(tmp_path / "large.csv", COLUMNS, [
        [0, 1000, 100, "bert", 1110, 64, 1],  # 100 s on one, 50 s on four
        [1, 1000, 100, "bert", 1060, 64, 1],  # only on four
        [2, 1000, 100, "bert", 1040, 64, 4],  # on none
        [3, 1600, 1000, "ncf", 1700, 128, 2],  # only on one: two are slower
        [4, 1600, 10, "ncf", 1600, 128, 2],  # no time at all: missed
    ])  # fmt: skip
    write(tmp_path / "small.csv", COLUMNS, [[0, 0, 1, "ncf", 9, 128, 1]])
    write(tmp_path / "other.csv", ["step", "loss"], [[1, 0.5]] * 100)
    for table in ("throughputs_A", "throughputs_B"):
        (tmp_path / table).mkdir()
        write(tmp_path / table / "ncf.csv", ["global_batch_size", 1, 2, 4], [[128, 20.0, 5.0, 0]])
    write(
        tmp_path / "throughputs_B" / "bert.csv", ["global_batch_size", 1, 2, 4], [[64, 1.0, "nan", 2.0], [128, 1, 1, 1]]
    )
    return tmp_path


def write(path: Path, header: list[object] | list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_every_model_of_a_trace_has_throughputs(folder: Path) -> None:
    found = find(folder)
    assert [(trace.name, throughputs.name) for trace, throughputs in found] == [
        ("large.csv", "throughputs_B"), ("small.csv", "throughputs_A"),
    ]  # fmt: skip
    *jobs, no_time = read(*found[0])
    assert not no_time.can_run(4)
    assert all(job.can_run(1) for job in jobs)
    assert [(job.submitted, job.deadline, job.batches, job.asked) for job in jobs] == [
        (0, 110, 100, 1), (0, 60, 100, 1), (0, 40, 100, 4), (600, 100, 1000, 2),
    ]  # fmt: skip
    assert jobs[0].throughputs == {1: 1.0, 4: 2.0}  # neither nan nor 0
    assert jobs[3].throughputs == {1: 20.0, 2: 5.0}
    assert fraction_in_reach(jobs, 4) == 3 / 4
    assert fraction_in_reach(jobs, 1) == 2 / 4
    assert fraction_as_asked(jobs) == 1 / 4
    assert [job.fixed(4) for job in jobs] == [1, 1, 4, 2]
    assert jobs[2].fixed(2) == 1
    assert [job.fastest(4) for job in jobs] == [4, 4, 4, 1]
    assert jobs[0].fastest(2) == 1
    with pytest.raises(FileNotFoundError, match="no trace with deadlines"):
        find(folder / "throughputs_A")


@pytest.mark.skipif(not TRACES.exists(), reason="the traces are not here")
def test_the_trace_agrees_with_its_published_bounds() -> None:
    jobs = read(*find(TRACES)[0])
    assert len(jobs) == 195
    assert round(100 * fraction_in_reach(jobs, 64), 1) == 92.8
    assert round(100 * fraction_as_asked(jobs), 1) == 51.8


def test_restarts_cost_25_to_250_seconds_by_model_size() -> None:
    cost = {model: restart_of(model) for model in [*PARAMETERS, "unheard of"]}
    assert min(cost.values()) == 25
    assert max(cost.values()) == cost["bert"] == 250
    assert cost["imagenet"] < cost["unheard of"] < cost["vgg16"]
    jobs = synthetic(3)
    assert [job.restart for job in with_restarts(jobs, None)] == [restart_of(job.model) for job in jobs]
    assert [job.restart for job in with_restarts(jobs, 8.0)] == [8.0] * 3


def test_a_trace_is_repeated_identically() -> None:
    jobs = synthetic(20)
    many = repeated(jobs, 50)
    assert many == repeated(jobs, 50)
    assert len({job.name for job in many}) == 50
    assert [job.submitted for job in many] == sorted(job.submitted for job in many)
    assert many[-1].submitted > 2 * jobs[-1].submitted - 3600
    assert repeated(jobs, 5) == jobs[:5]


def test_submissions_are_shifted_by_up_to_600_seconds() -> None:
    jobs = synthetic(20)
    shifted = {job.name: job for job in jittered(jobs, 1)}
    moves = np.array([shifted[job.name].submitted - job.submitted for job in jobs])
    assert np.abs(moves).max() <= 600
    assert moves.std() > 200
    assert min(job.submitted for job in shifted.values()) >= 0
    assert jittered(jobs, 1) == jittered(jobs, 1) != jittered(jobs, 2)


def test_drawn_jobs_have_the_load_and_the_deadlines_of_the_trace() -> None:
    jobs = synthetic(20)
    many = drawn(jobs, 200, 16, 2.0, seed=0)
    asked = sum(job.alone(job.fixed(16)) * job.fixed(16) for job in many)
    assert asked / (16 * many[-1].submitted) == pytest.approx(2.0, rel=0.05)
    assert {(job.model, job.deadline, job.batches) for job in many} <= {
        (job.model, job.deadline, job.batches) for job in jobs
    }
    assert many[0].submitted == 0
    assert len({job.name for job in many}) == 200


@pytest.mark.nightly
def test_no_policy_is_above_the_bound_and_all_jobs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs that cannot run are missed by each; with restarts by model, ours meets at least as many as the others."""
    unable = Wanted("none", "bert", 0.0, 1000.0, 10, 1, {})
    jobs = [*synthetic(24), unable]
    rows = ["ours", "ElasticFlow-like, backwards", "Gavel, SLOs relaxed", "EDF, fastest sizes"]
    group = Group("", "synthetic", rows, 16, 600.0, [jobs])
    assert group.bound == [in_reach(jobs[:-1], 16)]
    played = play_all(group)
    for several in played.values():
        (one,) = several
        assert one.jobs == len(one.verdicts) == 25
        assert one.verdicts["none"] == "missed"
        assert one.met == sum(verdict == "met" for verdict in one.verdicts.values())
        assert one.device_hours > 0
        assert one.hours_lost <= one.device_hours_lost <= one.device_hours
    figures = print_group(group, played)
    for cost in ("0", "03", "8", "model"):
        assert figures[f"ours_met_{cost}"] == played["ours", cost][0].met
        assert figures[f"best_other_met_{cost}"] == max(played[name, cost][0].met for name in rows if name != "ours")
    assert played["ours", "model"][0].met >= (figures["best_other_met_model"] or 0.0)
    assert figures["ours_met_pct"] == 4 * played["ours", "model"][0].met
    assert "restart costs" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="FIFO met 1 deadlines: above 0"):
        play_all(Shrunk("", "", ["FIFO"], 16, 600.0, [jobs[:1]]))


class Shrunk(Group):
    """A group whose bound is wrong."""

    @property
    def bound(self) -> list[int]:
        return [0] * len(self.jobs)


def test_a_single_job_takes_the_time_given_by_its_throughputs() -> None:
    one = Wanted("a", "ncf", 0.0, 7200.0, 3600, 2, {1: 1.0, 2: 1.5, 4: 2.0})
    fixed = play([one], 4, Contender("fifo"))
    assert fixed.device_hours == pytest.approx(2 * 3600 / 1.5 / 3600)
    ours = play([one], 4, contenders()["ours"])
    assert (ours.met, ours.moves) == (1, 0)
    assert ours.device_hours == pytest.approx(1.0)


def test_rounds_are_timed() -> None:
    assert 0 < round_ms(DECOR, 10, 8, crowded=True, repeats=2) < 1000


# ------------------------------------------------------------------------------------------------- published policies


def job(left: float, deadline: float, *throughputs: float, holds: int = 0, move: float = 0.0) -> Known:
    return Known(left, holds, 0.0, move, tuple(2**k for k in range(len(throughputs))), throughputs, deadline)


def test_progressive_filling_of_slots() -> None:
    slots = Slots(0.0, 4)
    assert slots.reserve_min(job(100, 100, 1, 1.9, 3), 0.0) == [(0.0, 100.0, 1)]
    way: Any = slots.reserve_min(job(150, 100, 1, 1.9, 3), 0.0)
    assert way == [(0.0, pytest.approx(150 / 1.9), 2)]
    slots.claim(way)
    assert slots.reserve_min(job(240, 100, 1, 1.9, 3), 0.0) is None
    way = slots.reserve(job(200, 120, 1, 1.9, 3), 4)
    assert way == [
        (0.0, pytest.approx(150 / 1.9), 2),
        (pytest.approx(150 / 1.9), pytest.approx(150 / 1.9 + 50 / 3), 4),
    ]


def test_filling_backwards_uses_the_larger_quota_only_where_it_is_needed() -> None:
    """From 20 s on, two devices do 152 batches: it has one before, and two from there until its 140 are done."""
    slots = Slots(0.0, 4)
    slots.claim([(0.0, 20.0, 1)])
    one = job(140, 100, 1, 1.9, 3)
    assert slots.reserve_min(one, 0.0) == [(0.0, 20.0, 2), (20.0, pytest.approx(140 / 1.9), 2)]
    assert slots.reserve_min(one, 0.0, backwards=True) == [(0.0, 20.0, 1), (20.0, pytest.approx(20 + 120 / 1.9), 2)]
    more = job(190, 100, 1, 1.9, 3)  # two devices all the time
    assert slots.reserve_min(more, 0.0, backwards=True) == slots.reserve_min(more, 0.0)
    least = job(90, 100, 1, 1.9, 3)  # one suffices
    assert slots.reserve_min(least, 0.0, backwards=True) == slots.reserve_min(least, 0.0)


def test_an_admitted_job_keeps_its_guarantee() -> None:
    """Two jobs fill the pool; a third, more urgent one is dropped for good, although it alone could end in time."""
    throughputs = {1: 1.0, 2: 1.0}
    first = [Wanted(name, "ncf", 0.0, 1100.0, 1000, 1, throughputs) for name in ("a", "b")]
    urgent = Wanted("c", "ncf", 100.0, 700.0, 600, 1, throughputs)
    played = play([*first, urgent], 2, Contender(ElasticFlowLike, sizes="chosen"))
    assert played.verdicts == {"a": "met", "b": "met", "c": "missed"}
    assert played.moves == 0


def test_spare_devices_go_where_they_save_the_most_time() -> None:
    sizes = [1, 1]
    what = [job(100, 1000, 1.0, 1.2), job(100, 1000, 1.0, 1.9)]
    ElasticFlowLike._spend(what, [0, 1], sizes, 1, 0.0)
    assert sizes == [1, 2]
    ElasticFlowLike._spend(what, [0, 1], sizes, 5, 0.0)
    assert sizes == [2, 2]
    sizes = [1]  # a restart that costs more than it gains is avoided
    ElasticFlowLike._spend([job(100, 1000, 1.0, 1.9, holds=1, move=60.0)], [0], sizes, 5, 0.0)
    assert sizes == [1]


@pytest.mark.parametrize(
    ("work", "relaxed", "least"),
    [
        ([50, 50], False, [0.5, 0.5]),
        ([20, 50], False, [0.2, 0.5]),
        ([80, 300], False, [0.8, 0.0]),  # an infeasible job has no claim
        ([80, 80], False, [0.0, 0.0]),  # not all can be kept: none is asked for
        ([80, 40], True, [0.6, 0.2]),  # the shortage is minimal
    ],
)
def test_gavel_s_linear_program(work: list[float], relaxed: bool, least: list[float]) -> None:
    """One device, 100 s left for both: the parts of the time sum to 1."""
    found = Gavel(relaxed)._linear_program(np.array(work, float), np.full(2, 100.0), np.array([1, 1]), 1)
    assert found.sum() == pytest.approx(1.0)
    assert np.all(found >= np.array(least) - 1e-6)
    assert np.all(found <= 1 + 1e-9)


def test_gavel_shares_time_in_rounds() -> None:
    """Two jobs of a whole pool each that both need half of the time: each has its turns, and both are in time."""
    jobs = [Wanted(name, "cifar10", 0.0, 9000.0, 3600, 2, {2: 1.0}) for name in ("a", "b")]
    played = play(jobs, 2, Contender(Gavel))
    assert played.verdicts == {"a": "met", "b": "met"}
    assert 4 <= played.moves <= 20
