"""Earlier runs as candidates: their curves against plain ones, residuals, passages, and what a wrong one costs."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.core.earlier_runs import EarlierRun
from lightning_core.estimators.earlier_curves import LEVEL, LEVEL_ERROR, LOG_STRETCH, POINTS, EarlierCurves
from lightning_core.estimators.posterior import Posterior, _table

ROW = np.array([0])
POWERS = np.array([4.0, 16.0])
BATCHES = np.unique(np.geomspace(10, 5000, 100).round())


def law(batches: FloatArray, slope: float = 0.5) -> FloatArray:
    losses: FloatArray = 3.0 * (np.asarray(batches) + 50.0) ** -slope + 0.02
    return losses


def plateau(batches: FloatArray) -> FloatArray:
    """Return a loss that hardly falls until it drops."""
    losses: FloatArray = 1.0 * (np.asarray(batches) + 20.0) ** -0.05 / (1.0 + (np.asarray(batches) / 2000.0) ** 6.0)
    return losses


def run(name: str = "a-1", how: type | object = plateau, scale: float = 1.0) -> EarlierRun:
    assert callable(how)
    return EarlierRun(name, tuple(map(int, BATCHES)), tuple((scale * how(BATCHES)).tolist()))


def shown(bank: Posterior, losses: FloatArray, positions: FloatArray, row: int = 0) -> None:
    for position, loss in zip(positions.tolist(), losses.tolist(), strict=True):
        bank.observe(np.array([row]), np.array([position]), np.array([loss]))


def fed(*runs: EarlierRun, how: object = plateau, upto: float = 400.0, stretch: float = 1.0) -> Posterior:
    assert callable(how)
    bank = Posterior()
    bank.grow(1)
    if runs:
        bank.history(0, runs)
    positions = np.arange(10.0, upto, 10.0)
    noise = np.random.default_rng(0).lognormal(0.0, 0.01, len(positions))
    shown(bank, how(positions / stretch) * noise, positions)
    return bank


def median(bank: Posterior, threshold: float) -> float:
    quantiles = bank.first_passage(ROW, np.array([threshold]))[0]
    return float(np.sqrt(quantiles[9] * quantiles[10]))


@pytest.mark.parametrize("stretch", [0.6, 1.0, 1.6])
def test_a_drop_is_foreseen_from_an_earlier_run_faster_or_slower(stretch: float) -> None:
    true = stretch * float(np.interp(-0.3, -plateau(BATCHES), BATCHES))
    knows, does_not = (median(fed(*runs, upto=stretch * 1600, stretch=stretch), 0.3) for runs in ((run(),), ()))
    assert abs(np.log(knows / true)) < 0.5
    assert abs(np.log(does_not / true)) > abs(np.log(knows / true)) + 0.1


def test_a_run_of_another_task_is_left_out() -> None:
    with_it, without = fed(run(scale=40.0), how=law), fed(how=law)
    assert median(with_it, 0.1) == pytest.approx(median(without, 0.1), rel=0.02)
    assert with_it.history_share(ROW)[0] < 0.01
    right = fed(run())
    assert np.isfinite(median(right, 0.3))
    assert right.history_share(ROW)[0] > 0.5
    assert without.history_share(ROW)[0] == 0.0


@pytest.mark.parametrize(("scale", "ready"), [(1.0, True), (8.0, False)])
def test_a_forecast_of_a_few_cells_is_ready_only_if_it_rests_on_earlier_runs(scale: float, ready: bool) -> None:
    bank = fed(run(scale=scale), upto=50.0)
    median(bank, 0.3)
    assert bank.ready(ROW).tolist() == [ready]
    assert (bank.history_share(ROW)[0] >= 0.5) == ready


def test_before_its_first_cell_a_job_is_expected_to_go_as_the_runs_before() -> None:
    bank = Posterior()
    bank.grow(2)
    bank.history(0, [run()])
    assert bank.ready(np.array([0, 1])).tolist() == [True, False]
    [quantiles, none] = bank.first_passage(np.array([0, 1]), np.array([0.5, 0.5]))
    true = float(np.interp(-0.5, -plateau(BATCHES), BATCHES))
    assert quantiles[2] < true < quantiles[17]
    assert np.isnan(none).all()


def test_residuals_are_those_of_a_batch_computation() -> None:
    table, origin, step, end = _table(*run(how=law)[1:3])
    bank = EarlierCurves(POWERS)
    bank.add(0, [(table, origin, step, end)])
    positions = np.array([4.0, 12.0, 40.0, 90.0, 300.0])
    losses = law(positions) * np.array([1.02, 0.97, 1.0, 1.05, 0.99])
    for position, loss in zip(positions, losses, strict=True):
        bank.observe(ROW, np.log([position]), np.log([loss]))
    grid = origin + step * np.arange(POINTS)
    far = round(1.0 / step)
    slope = (table[0] - table[far]) / (far * step)
    for m, power in enumerate(POWERS):
        weight = (positions / positions[-1]) ** power
        for k in (5, 7, 9):
            x = np.log(positions) - LOG_STRETCH[k]
            expected = np.where(x < origin, table[0] + slope * (origin - x), np.interp(x, grid, table))
            residual = np.log(losses) - expected
            mean = np.average(residual, weights=weight)
            assert bank._mean[0, m, 0, k] == pytest.approx(mean, rel=1e-9)
            square = (weight * (residual - mean) ** 2).sum()
            assert bank._square[0, m, 0, k] == pytest.approx(square, rel=1e-9)


def test_the_level_is_shrunk_by_its_error() -> None:
    """alpha = mean * LEVEL^2 / (LEVEL^2 + (V + LEVEL_ERROR^2) / n): one candidate, the unstretched run, has it."""
    bank = EarlierCurves(POWERS)
    table, origin, step, end = _table(*run(how=law)[1:3])
    bank.add(0, [(table, origin, step, end)])
    grid = origin + step * np.arange(POINTS)
    bank.observe(ROW, np.array([np.log(100.0)]), np.array([np.interp(np.log(100.0), grid, table) + 0.1]))
    level = 0.1 * LEVEL**2 / (LEVEL**2 + LEVEL_ERROR**2)
    log_threshold = np.interp(np.log(1000.0), grid, table) + level
    found = bank.candidates(ROW, np.array([log_threshold]), 6.0)
    assert np.abs(found.log_passage[0, 0] - np.log(1000.0)).min() < 1e-6


def test_a_loss_that_no_run_comes_down_to_is_never_reached() -> None:
    bank = EarlierCurves(POWERS)
    bank.add(0, [_table(*run(how=law)[1:3])])
    found = bank.candidates(ROW, np.log([1e-6]), 6.0)
    there = found.log_belief > -np.inf
    assert there.sum() == len(POWERS) * len(LOG_STRETCH) * 3  # two of three runs are missing
    assert np.isinf(found.log_passage[there]).all()


def test_like_jobs_share_the_tables_and_those_of_jobs_that_leave_go() -> None:
    bank = Posterior()
    bank.grow(4)
    for row in (3, 1):
        bank.history(row, [run(), run("a-2", law)])
    bank.history(0, [run("a-3", law, 2.0)])
    assert np.count_nonzero(bank._earlier._step) == 3
    before = bank.first_passage(np.array([3]), np.array([0.5]))
    bank.keep(np.array([False, False, True, True]))
    assert np.count_nonzero(bank._earlier._step) == 2
    assert np.array_equal(bank.first_passage(np.array([1]), np.array([0.5])), before)
    bank.keep(np.array([True, False]))
    assert np.count_nonzero(bank._earlier._step) == 0


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 6])
def test_a_job_with_one_run_is_forecast_whatever_the_number_of_runs_of_others(tasks: int) -> None:
    bank = Posterior()
    bank.grow(tasks)
    for row in range(tasks):
        bank.history(row, [run(scale=1.0 + 0.1 * row)])
    for row in range(tasks):
        shown(bank, plateau(BATCHES[:30]), BATCHES[:30], row)
    said = bank.first_passage(np.arange(tasks), np.full(tasks, 0.3))
    alone = Posterior()
    alone.grow(1)
    alone.history(0, [run()])
    shown(alone, plateau(BATCHES[:30]), BATCHES[:30])
    assert said[0].tolist() == alone.first_passage(ROW, np.array([0.3]))[0].tolist()
    assert not np.isnan(said).any()


def test_many_rows_are_forecast_as_one() -> None:
    bank = Posterior()
    bank.grow(3)
    for row, runs in enumerate(([run()], [], [run(), run("a-2", law)])):
        if runs:
            bank.history(row, runs)
    for position in np.arange(10.0, 500.0, 10.0):
        bank.observe(np.arange(3), np.full(3, position), plateau(np.full(3, position)))
    together = bank.first_passage(np.arange(3), np.full(3, 0.5))
    bank._asked[:] = 0.0
    alone = np.concatenate([bank.first_passage(np.array([row]), np.array([0.5])) for row in range(3)])
    assert np.array_equal(together, alone)
