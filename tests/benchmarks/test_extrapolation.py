"""Evaluation of forecasts of recorded curves: the targets, the cells seen by then, and the scores by hand."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import Figures, Size, main
from benchmarks.curves.bundles import Recording, recordings
from benchmarks.curves.histories import Mismatch, earlier_runs, like, with_enough
from benchmarks.forecasts.coverage import coverage
from benchmarks.forecasts.extrapolation import ONE_PASS, costs, measure
from benchmarks.forecasts.offline import Offline
from benchmarks.forecasts.scores import (
    NEVER,
    PARTS,
    Look,
    Questions,
    answers,
    feed,
    loss_errors,
    nearer,
    passages,
    questions,
    score,
    study,
)
from lightning_core.core.arrays import LEVELS, FloatArray, IntArray
from lightning_core.core.earlier_runs import check_run
from lightning_core.estimators import LeastSquares, Posterior
from lightning_core.simulation.recorded_curves import Curve


def recorded(loss: FloatArray, family: str = "task", domain: str = "cv") -> Recording:
    position: FloatArray = 10.0 * np.arange(1.0, len(loss) + 1)
    return recordings([Curve(family, domain, family, family, position, loss)])[0]


def falling(n: int, noise: float = 0.0, seed: int = 0) -> FloatArray:
    draw = np.random.default_rng(seed).lognormal(0, noise, n)
    return 3.0 * np.arange(1.0, n + 1) ** -0.4 * draw


class Scribe:
    """Writes down what it is shown, and says the same whatever it is asked."""

    def __init__(self, says: float = 1.0) -> None:
        self.seen: list[list[tuple[float, float]]] = []
        self.says = says

    def grow(self, rows: int) -> None:
        self.seen += [[] for _ in range(rows - len(self.seen))]

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        assert len(set(rows.tolist())) == len(rows)
        for row, at, value in zip(rows.tolist(), position.tolist(), loss.tolist(), strict=True):
            self.seen[row].append((at, value))

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        return np.full(len(rows), self.says)

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        assert len(set(rows.tolist())) == len(rows)
        return np.full((len(rows), len(LEVELS)), self.says)


def test_each_row_sees_the_first_cells_of_its_recording_and_no_more() -> None:
    one, other = recorded(falling(200)), recorded(falling(300) + 1.0)
    bank = Scribe()
    feed(bank, [Look(one, 7, 0.1), Look(other, 3, 0.1), Look(one, 4, 0.1)])
    for seen, (recording, n) in zip(bank.seen, [(one, 7), (other, 3), (one, 4)], strict=True):
        assert seen == list(zip(recording.position[:n].tolist(), recording.loss[:n].tolist(), strict=True))


def test_errors_of_later_losses_equal_values_worked_by_hand() -> None:
    long, short = np.full(600, 4.0), np.full(200, 8.0)
    long[495:500] = 1.0, 2.0, 3.0, 2.0, 2.0  # the five cells that end at the 500th: 2
    short[195:] = 0.5
    errors = loss_errors(partial(Scribe, 1.0), [recorded(long), recorded(short)])
    assert errors.shape == (len(PARTS), 2)
    np.testing.assert_allclose(errors[:, 0], 0.5)
    # 1 and 2 % of 200 cells are less than five.
    np.testing.assert_allclose(errors[:, 1], [np.nan, np.nan, 1.0, 1.0, 1.0, 1.0])


def test_power_law_methods_forecast_a_power_law() -> None:
    errors = loss_errors(partial(LeastSquares, gamma=1.0), [recorded(falling(600))])
    assert errors.max() < 0.01  # the truth is a mean over five cells


def test_targets_are_reached_as_recorded_or_never() -> None:
    pool = [recorded(falling(400, 0.05, seed)) for seed in range(3)] + [recorded(np.full(300, 2.0))]
    asked = questions(pool)
    assert sorted(set(asked.part)) == list(PARTS[1:])
    real = np.isfinite(asked.work)
    assert 30 < real.sum() < (~real).sum()
    for k in range(len(asked.look)):
        recording, seen, _ = asked.looks[asked.look[k]]
        assert seen >= 6
        here = recording.position[seen - 1]
        assert asked.here[k] == here
        reached = recording.smooth <= asked.threshold[k]
        if real[k]:
            at = int(np.flatnonzero(recording.position == here + asked.work[k])[0])
            assert at >= seen
            assert reached[at]
            assert not reached[at - 1]
        else:
            assert not reached.any()
            assert np.isclose(asked.threshold[k] / recording.loss.min(), NEVER).any()
            assert 0 < asked.horizon[k] <= recording.position[-1] - here
    # A recording that stands still comes down to nothing.
    assert not real[[asked.looks[look].recording is pool[3] for look in asked.look]].any()


def test_several_targets_of_one_recording_are_forecast_separately() -> None:
    recording = recorded(falling(200, 0.05))
    looks = [Look(recording, 50, 0.25), Look(recording, 90, 0.45)]
    rows, threshold = np.array([0, 1, 0, 1, 0]), np.array([0.3, 0.35, 0.4, 0.2, 0.5])
    bank = Posterior()
    feed(bank, looks)
    together = passages(bank, rows, threshold)
    for k, row in enumerate(rows.tolist()):
        alone = Posterior()
        feed(alone, [looks[row]])
        np.testing.assert_array_equal(together[k], alone.first_passage(np.array([0]), threshold[[k]])[0])


def test_no_target_is_reached_before_the_next_cell() -> None:
    asked = questions([recorded(falling(200))])
    left = answers(partial(Scribe, 1.0), asked)  # forecasts a passage long ago
    np.testing.assert_allclose(left, 10.0)


def test_scores_equal_values_worked_by_hand() -> None:
    recording = recorded(falling(200))
    # Four jobs at position 100: the first three need 100 more batches, the last never gets there and has 300.
    asked = Questions(
        [Look(recording, 10, 0.05)], np.zeros(4, np.int64), np.ones(4), np.array([100.0, 100.0, 100.0, np.inf]),
        np.full(4, 300.0),
    )  # fmt: skip
    left = np.repeat([[100.0], [400.0], [50.0], [290.0]], 20, axis=1)
    left[1, :4] = 140.0  # four of twenty quantiles: a chance of .2 to make it with half as much time again
    marks = score(asked, left, np.ones(4, np.bool_))
    assert marks.work == pytest.approx(np.log(2.0))  # of 0, ln 4 and ln 1/2
    assert marks.data == pytest.approx(0.25)  # of 0, 300 / 200 and 50 / 200
    assert marks.data_mean == pytest.approx((0 + 1.5 + 0.25) / 3)
    assert [marks.q10, marks.q50, marks.q90] == pytest.approx([2 / 3, 2 / 3, 2 / 3])
    # With 150: the second has its chance, though its median says no. With 67: the third is believed to make it.
    assert [marks.drop, marks.keep, marks.never] == pytest.approx([0, 1 / 3, 1])
    assert [marks.point_drop, marks.point_keep, marks.point_never] == pytest.approx([1 / 3, 1 / 3, 1])
    first = score(asked, left, np.array([True, False, False, False]))
    assert [first.work, first.q50, first.keep] == [0.0, 1.0, 0.0]
    assert np.isnan(first.never)  # nothing of that kind was asked


def test_an_infinite_error_counts_as_ten() -> None:
    asked = Questions([Look(recorded(falling(200)), 10, 0.05)], np.array([0]), np.ones(1), np.ones(1), np.ones(1))
    marks = score(asked, np.full((1, 20), np.inf), np.ones(1, np.bool_))
    assert (marks.work, marks.data, marks.data_mean, marks.drop) == (np.inf, np.inf, 10.0, 1.0)


def test_coverage_of_easy_curves() -> None:
    pool = [recorded(falling(400, 0.02, seed)) for seed in range(4)]
    assert 0.8 < coverage(pool).covered[:, 2].mean() <= 1.0
    assert coverage(pool, partial(Scribe, 1.0)).covered[:, 2].mean() < 0.2  # one cell more is hardly ever enough
    assert coverage(pool, partial(Scribe, 1e9)).covered.tolist() == [[1.0] * 3] * 4


def test_earlier_runs_are_of_the_same_task_with_another_configuration_and_no_copies() -> None:
    pool = [recorded(falling(400, 0.02, seed)) for seed in range(5)]
    pool = [
        one._replace(curve=replace(one.curve, name=f"r{k}", family=family, method=method))
        for k, (one, family, method) in enumerate(
            zip(pool, "aaaab", ("sgd", "adam", "adam", "sgd", "sgd"), strict=True)
        )
    ]
    pool.append(pool[0]._replace(curve=replace(pool[0].curve, name="copy", method="other")))
    assert [one.curve.name for one in like(pool[0], pool)] == ["r1", "r2"]
    assert [one.curve.name for one in with_enough(pool, 3)] == ["r1", "r2", "r3", "copy"]
    draw = np.random.default_rng(0)
    right, wrong = (earlier_runs(pool[0], pool, 3, draw, Mismatch(task=task)) for task in (False, True))
    assert {run.name for run in right} == {"r1", "r2"}
    assert {run.name for run in wrong} == {"r4"}
    [scaled] = earlier_runs(pool[0], pool, 1, np.random.default_rng(1), Mismatch(batches=4.0, loss=3.0))
    [as_it_was] = earlier_runs(pool[0], pool, 1, np.random.default_rng(1))
    assert scaled.batches[-1] == pytest.approx(4 * as_it_was.batches[-1], rel=0.05)
    assert scaled.losses[0] == pytest.approx(3 * as_it_was.losses[0], rel=0.05)
    for run in right:
        check_run(run)


def test_closest_method_is_counted_by_recording_and_by_family() -> None:
    pool = [recorded(falling(200), family) for family in ("a", "a", "a", "b", "c", "d")]
    one = np.array([[1.0, 1.0, 3.0, 1.0, 1.0, np.nan], [np.nan] * 6])
    other = np.array([[2.0, 2.0, 2.0, 0.5, 2.0, 1.0], [1.0] * 6])
    seen, nothing = nearer(one, other, pool)
    assert seen == (0.6, 2, 3)
    assert np.isnan(nothing[0])
    assert nothing[1:] == (0, 0)


def test_m4_gives_no_forecast_for_five_cells_or_a_flat_curve() -> None:
    bank = Offline()
    recording = recorded(falling(300) + 0.5)
    feed(bank, [Look(recording, 5, 0.0), Look(recorded(np.full(200, 2.0)), 50, 0.0), Look(recording, 100, 0.0)])
    rows = np.arange(3)
    said = bank.predict(rows, np.full(3, 3000.0))
    assert np.isnan(said[:2]).all()
    assert said[2] == pytest.approx(recording.loss[-1], rel=0.02)
    reached = bank.first_passage(rows, np.full(3, recording.loss[199]))
    assert reached.shape == (3, 20)
    assert np.isnan(reached[:2]).all()
    np.testing.assert_allclose(reached[2], 2000.0, rtol=0.1)


def test_the_pure_subset_is_the_largest_domain() -> None:
    domains = ["cv", "nlp", "nlp"]
    pool = [recorded(falling(200, 0.02, seed), f"t{seed}", domain) for seed, domain in enumerate(domains)]
    one = study(ONE_PASS["weighted"], pool)
    np.testing.assert_array_equal(one.errors["pure"], one.errors["mixed"][:, 1:])
    alone = study(ONE_PASS["weighted"], pool[1:])
    assert one.scores["pure", 0] == alone.scores["mixed", 0]
    assert one.scores["pure", 0.1] == alone.scores["mixed", 0.1] != one.scores["mixed", 0.1]


def test_all_methods_are_timed() -> None:
    made = costs({"weighted": ONE_PASS["weighted"], "m4": Offline}, recorded(falling(200)), cells=15)
    assert 0 < 3 * made["weighted"].loss < made["m4"].loss


@pytest.mark.nightly
def test_a_folder_of_recordings_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        rows = [f"{step},{loss}" for step, loss in enumerate(falling(400, 0.02, seed).tolist(), 1)]
        (tmp_path / f"cv__{seed}.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    figures = measure("quick", tmp_path, tmp_path / "plots")
    assert (tmp_path / "plots" / "extrapolation.png").read_bytes().startswith(b"\x89PNG")
    assert figures["least_squares_error_mixed_1"] is None  # 1 % of 400 cells are four
    found = {name: figures[f"{name}_error_pure_20"] for name in ONE_PASS}
    assert all(error is not None and 0 <= error < 0.5 for error in found.values())
    assert figures["m4_vs_dkf"] is None
    json.dumps(figures, allow_nan=False)
    assert "2 are shorter than 500 cells" in capsys.readouterr().out


def test_paths_are_command_line_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(size: Size, curves: Path, plots: Path | None) -> Figures:
        return {"full": float(size == "full"), "curves": float(curves == Path("there")), "plots": float(plots is None)}

    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["x", "--full", "--curves", "there", "--json", str(file)])
    main("x", "Says what it was told.", echo, curves=Path("here"), plots=None)
    assert json.loads(file.read_text()) == {"figures": {"full": 1.0, "curves": 1.0, "plots": 1.0}}
