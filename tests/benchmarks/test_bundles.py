"""Bundles drawn from recordings, their upper bounds, and the statistics of the results."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.curves.bundles import KINDS, WINDOW, Bundle, Recording, draw, recordings
from benchmarks.curves.replay import Cell, Contender, Played, play, reporting
from benchmarks.policies.standings import ahead, behind, ceiling_fractions, error
from benchmarks.policies.tune import SPACES, contender, mean_fraction, trials, tuned
from lightning_core.core.arrays import FloatArray
from lightning_core.core.targets import LossTarget
from lightning_core.scheduler.settings import Settings
from lightning_core.simulation.recorded_curves import SHIPPED, Curve, load_curves
from lightning_core.simulation.simulation import Simulation


@pytest.fixture(scope="module")
def pool() -> list[Recording]:
    return recordings(load_curves(SHIPPED))


def best_by_trying(work: FloatArray, deadline: FloatArray) -> int:
    """Return the size of the largest set of jobs that ends in time, by trying every set."""
    order = np.argsort(deadline)
    for size in range(len(work), 0, -1):
        for chosen in combinations(order.tolist(), size):
            rows = list(chosen)
            if np.all(np.cumsum(work[rows]) <= deadline[rows]):
                return size
    return 0


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_the_ceiling_is_the_best_of_all_sets(pool: list[Recording], kind: str) -> None:
    for seed in range(4):
        bundle = draw(pool, 7, pure=False, kind=kind, seed=seed)
        deadline = np.array([one.job.deadline for one in bundle.jobs])
        assert bundle.ceiling == best_by_trying(bundle.work, deadline)


@pytest.mark.nightly
def test_the_work_of_each_job_is_its_time_alone(pool: list[Recording]) -> None:
    """The scheduler notices a target exactly when the bundle says that it is reached, and never an unreachable one."""
    for seed in range(3):
        bundle = draw(pool, 6, pure=True, kind="load 1.2", seed=seed)
        for one, work in zip(bundle.jobs, bundle.work.tolist(), strict=True):
            [alone] = Simulation(Settings(policy="fifo", estimator="log_time"), [one]).run().jobs
            if work <= one.job.deadline:
                assert alone.verdict == "met"
                # A report comes with the first cell that closes 0.2 s after the last.
                slowest = float(np.diff(one.position).max()) / one.throughput
                assert work - 1e-6 <= alone.finished_at <= work + 0.2 + slowest + 1e-6
            else:
                assert alone.verdict == "missed"


def test_a_bundle_is_drawn_reproducibly_and_by_its_rules(pool: list[Recording]) -> None:
    for kind in sorted(set(KINDS)):
        one, again = (draw(pool, 12, pure=True, kind=kind, seed=5) for _ in range(2))
        assert [a.job for a in one.jobs] == [b.job for b in again.jobs]
        assert np.array_equal(one.work, again.work)
        targets = [a.job.target for a in one.jobs]
        assert all(isinstance(target, LossTarget) and target.threshold > 0 for target in targets)
        assert np.isfinite(one.work).any()
        assert np.isinf(one.work).any()


def test_deadlines_are_short_medium_and_long_in_a_ratio_of_two_six_two(pool: list[Recording]) -> None:
    """Long deadlines are easier: all of the last fifth by deadline can be met, but not all of the rest."""
    possible = []
    for seed in range(8):
        bundle = draw(pool, 20, pure=False, kind="terms", seed=seed)
        by_deadline = np.argsort([one.job.deadline for one in bundle.jobs])
        possible.append(np.isfinite(bundle.work[by_deadline]))
    share_possible = np.mean(possible, axis=0)
    assert share_possible[-4:].mean() > share_possible[:4].mean()


def test_jobs_report_the_learning_rates_of_their_recordings_if_asked() -> None:
    steps = np.arange(1.0, 401.0)
    curves = [
        Curve(name, "cv", name, name, steps, 1.0 / np.sqrt(steps), lr=None if name == "a" else 1.0 - steps / 400)
        for name in "ab"
    ]
    drawn = {}
    for schedule in (False, True):
        bundle = draw(recordings(curves), 2, pure=False, kind="load 1.2", seed=0, schedule=schedule)
        drawn[schedule] = bundle
    told = [one.learning_rates for one in drawn[True].jobs]
    assert [one for one in told if one is not None] == [curves[1].learning_rates()]
    assert {one.learning_rates for one in drawn[False].jobs} == {None}
    assert [one.job for one in drawn[True].jobs] == [one.job for one in drawn[False].jobs]


def test_cells_cover_equal_numbers_of_batches() -> None:
    """Of a log with a hundred single steps and then every 500th, the first hundred are one cell."""
    steps = np.concatenate([np.arange(1.0, 101.0), np.arange(500.0, 200_001.0, 500.0)])
    [cut] = recordings([Curve("a", "cv", "a", "a", steps, 1.0 / np.sqrt(steps))])
    assert np.all(np.diff(cut.position) >= 499)
    assert cut.loss[0] == pytest.approx(np.mean(1.0 / np.sqrt(steps[:101])))
    assert np.isinf(cut.smooth[: WINDOW - 1]).all()
    assert cut.smooth[-1] == pytest.approx(cut.loss[-WINDOW:].mean())


def test_results_use_no_family_that_was_used_for_tuning(tmp_path: Path) -> None:
    step = np.arange(1, 201)
    for task in ("hopper-medium-v0", "new_task"):
        rows = "\n".join(f"{s},{1 / s**0.5:.6f}" for s in step.tolist())
        (tmp_path / f"{task}.csv").write_text(f"step,loss\n{rows}\n")
    (tmp_path / "index.csv").write_text(
        "file,domain,task\nhopper-medium-v0.csv,rl,hopper-medium-v0\nnew_task.csv,x,new_task\n"
    )
    assert [one.curve.task for one in reporting(tmp_path)] == ["new_task"]


@pytest.mark.nightly
def test_no_policy_is_above_the_ceiling_and_all_play_the_same_bundles(pool: list[Recording]) -> None:
    cell = Cell(4, False)
    rows = {"edf": Contender("edf", estimator="log_time"), "triage": Contender("triage"), "twin": Contender("triage")}
    results = play(pool, {cell: 3}, rows, processes=1)
    assert results[cell]["triage"] == [p._replace(deciding=q.deciding) for p, q in zip(
        results[cell]["twin"], results[cell]["triage"], strict=True)]  # fmt: skip
    assert [p.ceiling for p in results[cell]["edf"]] == [p.ceiling for p in results[cell]["triage"]]
    assert all(p.met <= p.ceiling for played in results[cell].values() for p in played)


def test_a_contender_above_the_ceiling_is_an_error(pool: list[Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "ceiling", property(lambda self: -1))
    with pytest.raises(AssertionError, match=r"edf met \d of a bundle of 3 mixed, seed 0: above its ceiling, -1"):
        play(pool, {Cell(3, False): 1}, {"edf": Contender("edf", estimator="log_time")}, processes=1)


# ---------------------------------------------------------------------------------------------------- statistics


def played(*met: int) -> list[Played]:
    return [Played(m, 4, 0, 0, 0.0) for m in met]


def test_shares_their_errors_and_comparisons() -> None:
    results = {
        Cell(5, False): {"a": played(2, 2, 3, 3), "b": played(2, 2, 3, 3)},
        Cell(5, True): {"a": played(1, 1, 1, 1), "b": played(2, 1, 2, 2)},
        Cell(10, True): {"a": played(1, 3, 1, 3), "b": played(3, 1, 2, 2)},
    }
    assert ceiling_fractions(results, "a") == {Cell(5, False): 10 / 16, Cell(5, True): 4 / 16, Cell(10, True): 8 / 16}
    assert error(np.array([1.0, 3.0, 1.0, 3.0])) == pytest.approx(np.sqrt(4 / 3) / 2)
    assert behind(results, "a", "b") == [Cell(5, True)]
    assert behind(results, "b", "a") == []


def test_holm_corrects_for_all_comparisons_together() -> None:
    """By hand: t = 0.5 / (0.5345 / sqrt 8) = 2.646 with 7 degrees of freedom is p = 0.01657, thrice 0.0497."""
    up = played(1, 0, 1, 1, 0, 1, 0, 0)
    flat = played(0, 0, 0, 0, 0, 0, 0, 0)
    other = played(1, 1, 0, 1, 0, 1, 0, 0)
    sure = ahead({Cell(5, False): {"a": up, "b": flat, "c": flat, "d": other}}, "a", ["b", "c", "d"])
    assert sure[5, "b"] == pytest.approx(3 * 0.01657, rel=1e-3)
    assert sure[5, "c"] == sure[5, "b"]
    assert sure[5, "d"] == pytest.approx(0.5)


def test_trials_begin_with_the_defaults_and_are_equal_in_number() -> None:
    for policy, space in SPACES.items():
        found = trials(policy, 6, seed=1)
        assert found[0] == {}
        assert len(found) == 6
        assert len({str(one) for one in found}) == 6
        for constants in found:
            assert set(constants) <= set(space)
            contender(policy, constants).settings(10)
        contender(policy, tuned(policy)).settings(10)


def test_a_mean_share_weighs_cells_equally() -> None:
    assert mean_fraction({Cell(5, False): played(4, 4), Cell(100, True): played(2)}) == pytest.approx(0.75)
