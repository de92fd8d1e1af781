"""The benchmark of one node under a deadline: its recordings, its optimum, and what holds for every policy."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.market.late import __main__ as late
from benchmarks.market.late.cells import OPTIMUM, Cell, play_cell
from benchmarks.market.late.contestants import CODE, HOURLY, LEARNERS, ON_DEMAND, OURS, POLICIES, TEXT, with_zones
from benchmarks.market.late.hindsight import optimum
from benchmarks.market.late.late_baselines import Greedy, OnDemand, UniformProgressCode
from benchmarks.market.late.node_play import Clairvoyant, Job, Kind, State, on_demand_cost, play
from benchmarks.market.late.recordings import Recording, load, read, seeded
from lightning_core.core.arrays import BoolArray
from tests.benchmarks.test_late_play import market

HOUR = 3600.0
ALL = {**POLICIES, **HOURLY}


def markets(seed: int, count: int, ticks: int) -> list[BoolArray]:
    """Return random markets of short and long runs."""
    draw = np.random.default_rng(seed)
    lengths = [draw.geometric(draw.uniform(0.02, 0.6), ticks) for _ in range(count)]
    return [np.repeat((np.arange(ticks) + draw.integers(2)) % 2 == 1, one)[:ticks] for one in lengths]


JOBS = [
    Job(5 * HOUR, 7 * HOUR, 720.0, 600.0),
    Job(5 * HOUR, 6 * HOUR, 72.0, 600.0),
    Job(5 * HOUR, 9 * HOUR, 1440.0, 585.0),
    Job(4.1 * HOUR, 6.3 * HOUR, 600.0, 600.0, spot_price=0.8),
    Job(4 * HOUR, 4 * HOUR + 1440.0, 1440.0, 600.0),  # no time to lose
    Job(4 * HOUR, 6 * HOUR, 0.0, 600.0),
]


@pytest.mark.parametrize("job", [*JOBS[4:], *(pytest.param(job, marks=pytest.mark.nightly) for job in JOBS[:4])])
def test_no_policy_is_late_or_costs_less_than_the_optimum(job: Job) -> None:
    for available in markets(1, 10, job.ticks + 30):
        starts = [0, 30]
        least = optimum(job, available, starts)
        for name, make in ALL.items():
            policy = make()
            for start, best in zip(starts, least.tolist(), strict=True):
                outcome = play(policy, job, available, start)
                assert outcome.on_time, name
                assert outcome.cost >= best - 1e-6, name
        assert (least <= on_demand_cost(job) + 1e-6).all()


class Plan:
    """Holds kinds in their order; none where it would hold a spot node and there is none."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = kinds

    def decide(self, state: State) -> Kind:
        kind = self.kinds[round(state.elapsed / state.job.tick)]
        return Kind.NONE if kind is Kind.SPOT and not state.spot else kind


@pytest.mark.parametrize("start_up", [0.0, 25.0, 60.0, 80.0])
@pytest.mark.parametrize("deadline", [360.0, 410.0])
def test_the_optimum_is_the_best_of_all_plans(start_up: float, deadline: float) -> None:
    for number, available in enumerate(markets(2, 6, 7)):
        job = Job(150.0 + 40.0 * (number % 3), deadline, start_up, 60.0, spot_price=(0.3, 0.7)[number % 2])
        plans = itertools.product(Kind, repeat=job.ticks)
        outcomes = [play(Plan(plan), job, available, 0) for plan in plans]
        best = min(outcome.cost for outcome in outcomes if outcome.on_time)
        assert optimum(job, available, [0]).tolist() == pytest.approx([best])


def test_the_optimum_does_not_buy_a_launch_that_does_not_pay() -> None:
    job = Job(600.0, 900.0, 60.0, 60.0, spot_price=0.5)
    # 11 ticks on demand; or 5 on spot nodes, of which one is a launch, and 7 on demand, of which one is one.
    assert optimum(job, market("+++++----------"), [0]).tolist() == [(5 * 0.5 + 7) * 60.0]
    assert optimum(job, market("++-------------"), [0]).tolist() == [11 * 60.0]


def test_the_optimum_launches_spot_nodes_where_they_stay_until_they_have_started() -> None:
    job = Job(150.0, 360.0, 80.0, 60.0, spot_price=0.25)
    assert optimum(job, market("++++--"), [0]).tolist() == [4 * 15.0]
    assert optimum(job, market("+-++--"), [0]).tolist() == [4 * 60.0]


def test_the_optimum_does_not_count_on_the_rest_of_the_tick_of_the_deadline() -> None:
    # Spot nodes alone end at 230 s; a second earlier, the first tick must be on demand.
    for deadline, cost in ((230.0, 3 * 15.0), (229.0, 60.0 + 3 * 15.0)):
        job = Job(150.0, deadline, 20.0, 60.0, spot_price=0.25)
        assert optimum(job, market("-+++"), [0]).tolist() == [cost]


def test_the_optimum_wants_whole_seconds() -> None:
    with pytest.raises(ValueError, match="must be whole seconds"):
        optimum(Job(600.0, 900.0, 0.5, 60.0), market("+" * 15), [0])


@pytest.mark.parametrize("name", ALL)
def test_no_policy_knows_the_future(name: str) -> None:
    job, before = Job(5 * HOUR, 8 * HOUR, 720.0, 600.0), 20
    # A spot node comes in the last tick that is the same for all; how long it will stay is not known yet.
    past = np.concatenate([markets(4, 1, 30)[0], market("-----+")])
    held = {
        play(ALL[name](), job, np.concatenate([past, future]), before).held[: len(past) - before]
        for future in (*markets(3, 6, 40), market("-" * 40), market("+" * 40))
    }
    assert (len(held) == 1) is not isinstance(ALL[name](), Clairvoyant)


@pytest.mark.parametrize("name", ALL)
def test_a_policy_begins_anew_with_each_job(name: str) -> None:
    job = Job(5 * HOUR, 8 * HOUR, 720.0, 600.0)
    one, other = markets(5, 2, job.ticks)
    policy = ALL[name]()
    assert play(policy, job, one, 0) == play(ALL[name](), job, one, 0)
    assert play(policy, job, other, 0) == play(ALL[name](), job, other, 0)


# ---------------------------------------------------------------------------------------------- recordings and cells


def write(path: Path, gap: int, data: Sequence[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": list(data)}))


def test_of_the_second_set_every_third_answer_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "any" / "aws-10-26-2022" / "us-west-2a_k80_1.json", 600, [1, 0, 1, 1])
    write(tmp_path / "any" / "aws-02-15-2023" / "us-east-1f_v100_1.json", 195, [1, 0, 0, 0, 1, 1, 1])
    [first], recorded = load(tmp_path, "first")
    assert (first.name, first.zone, first.tick, recorded) == ("us-west-2a_k80_1", "us-west-2a", 600.0, True)
    assert first.available.tolist() == [True, False, True, True]
    [second], _ = load(tmp_path, "second")
    assert (second.zone, second.tick, second.available.tolist()) == ("us-east-1f", 585.0, [True, False, True])


def test_a_recording_of_counts_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "zone_4.json", 600, [1, 0, 4])
    with pytest.raises(ValueError, match=r"data must be 0 or 1, got \[4\]"):
        read(tmp_path / "zone_4.json")


def test_without_recordings_the_markets_are_seeded(tmp_path: Path) -> None:
    (first, recorded), (second, _) = load(tmp_path, "first"), load(tmp_path, "second")
    assert not recorded
    assert len({one.name for one in first + second}) == len({one.zone for one in first + second}) == 16
    assert all(0.02 < one.available.mean() < 0.98 for one in first + second)
    assert (seeded(3).available == first[3].available).all()


def test_starts_are_seeded_and_leave_room_for_the_deadline() -> None:
    recording = Recording("name", "zone", 600.0, np.ones(30, np.bool_))
    starts = recording.starts(200, 25, (0, 1))
    assert set(starts.tolist()) == set(range(6))
    assert (starts == recording.starts(200, 25, (0, 1))).all()
    assert (starts != recording.starts(200, 25, (1, 1))).any()
    with pytest.raises(ValueError, match="name must have at least 31 ticks, got 30"):
        recording.starts(1, 31, (0,))


@pytest.mark.nightly
def test_a_cell_holds_all_jobs_of_each_policy_in_one_order() -> None:
    recordings = [seeded(0), seeded(1)]
    cell = play_cell(recordings, 52, 0.2, starts=2, seed=5)
    assert set(cell.costs) == {*POLICIES, OPTIMUM} | {with_zones(name) for name in LEARNERS}
    assert cell.costs[ON_DEMAND] == [1.0] * 4
    job = Job(48 * HOUR, 52 * HOUR, 0.2 * HOUR, 600.0)
    [start, *_] = recordings[1].starts(2, job.ticks, (5, 1)).tolist()
    assert cell.costs["greedy"][2] == play(Greedy(), job, recordings[1].available, start).cost / on_demand_cost(job)
    assert cell.late == dict.fromkeys(cell.costs, 0)


def test_a_policy_that_learns_is_given_the_recordings_of_other_zones_alone() -> None:
    ones = [Recording(str(k), zone, 600.0, seeded(k).available) for k, zone in enumerate("aab")]
    given = []

    def learn(others: Sequence[BoolArray]) -> Greedy:
        given.append([number for other in others for number, one in enumerate(ones) if other is one.available])
        return Greedy()

    cell = play_cell(ones, 52, 0.2, 1, 0, {"on-demand": OnDemand}, {"greedy": learn})
    assert given == [[2], [2], [0, 1]]
    assert set(cell.costs) == {"on-demand", "greedy, other zones known", OPTIMUM}


class Never:
    """Holds nothing."""

    def decide(self, state: State) -> Kind:
        return Kind.NONE


@pytest.mark.nightly
def test_late_jobs_are_counted() -> None:
    cell = play_cell([seeded(0)], 52, 0.2, 4, 0, {"never": Never, "code": UniformProgressCode})
    assert (cell.late["never"], cell.late["code"]) == (4, 0)


def test_differences_are_paired() -> None:
    cell = Cell({"a": [0.1, 0.5, 0.9], "b": [0.2, 0.5, 1.3]})
    assert cell.mean("a") == pytest.approx((0.5, 0.4 / 3**0.5))
    mean, error = cell.difference("a", "b")
    assert (mean, error) == pytest.approx((-0.5 / 3, np.std([-0.1, 0.0, -0.4], ddof=1) / 3**0.5))


def test_ours_is_compared_with_the_better_form_of_uniform_progress() -> None:
    cell = Cell({OURS: [0.5, 0.7], TEXT: [0.6, 0.9], CODE: [0.6, 0.7]})  # -0.15 +- 0.05 and -0.05 +- 0.05
    assert late._in_standard_errors(cell) == pytest.approx(-1.0)
    assert late._in_standard_errors(Cell({name: [0.5, 0.7] for name in (OURS, TEXT, CODE)})) is None


def test_the_figures_and_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(late, "STARTS", {"first": 2, "second": 1})
    monkeypatch.setattr(late, "POLICIES", {**POLICIES, OURS: Greedy})  # ours takes minutes
    figures = late.measure("quick", tmp_path, seed=1)
    named = {f"{name}_{hours}" for name in ("ours", "up", "up_code", "optimum") for hours in (52, 70, 92)}
    differences = {"ours_minus_up_52_se", "ours_minus_up_70_se", "points", "points_above_up"}
    assert set(figures) == named | differences | {"late_jobs", "recorded_jobs"}
    assert (figures["late_jobs"], figures["recorded_jobs"], figures["points"]) == (0.0, 0.0, 3.0)
    printed = capsys.readouterr().out
    assert "SEEDED markets" in printed
    assert all(name in printed for name in (OPTIMUM, f"{OURS} less {TEXT}", f"{OURS} less {CODE}"))
    assert late.measure("quick", tmp_path, seed=2) != figures


def test_the_seed_is_an_option_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.common import Figures, Size, main

    def measure(size: Size, seed: int) -> Figures:
        return {"seed": float(seed)}

    for words, seed in ((["--seed", "7"], 7), ([], 3)):
        monkeypatch.setattr(sys, "argv", ["late", *words, "--json", str(tmp_path / "out.json")])
        main("market.late", "", measure, numbers={"seed": (3, "seed of the starts")})
        assert json.loads((tmp_path / "out.json").read_text()) == {"figures": {"seed": seed}}
