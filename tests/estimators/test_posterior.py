"""The posterior: its candidates against batch fits, its uncertainty, and one forecast for each cell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.estimators.curve_families import (
    EXPONENTS,
    FAMILY,
    MIN_MISFIT,
    PRIOR_MISFIT,
    SHIFTS,
    SIZES,
    SLOPES,
    STRETCHES,
    TIMES,
    CurveFamilies,
)
from lightning_core.estimators.posterior import POWERS, Posterior, UsualWork

ROW = np.array([0])


def fed(positions: FloatArray, losses: FloatArray, **arguments: object) -> Posterior:
    bank = Posterior(**arguments)  # type: ignore[arg-type]
    bank.grow(1)
    for s, loss in zip(positions, losses, strict=True):
        bank.observe(ROW, np.array([s]), np.array([loss]))
    return bank


def noisy(seed: int = 0, n: int = 60) -> tuple[FloatArray, FloatArray]:
    draw = np.random.default_rng(seed)
    s = np.cumsum(draw.integers(5, 30, n)).astype(float)
    return s, (2.0 * (s + 40) ** -0.6 + 0.05) * draw.lognormal(0, 0.05, n)


def test_candidates_equal_weighted_fits() -> None:
    s, losses = noisy()
    scale, base, log_belief = fed(s, losses)._families.candidates(ROW)
    for p, power in enumerate(POWERS):
        root = np.sqrt((s / s[-1]) ** power) / losses
        for k in (0, 7, 21, 44):
            b, shift = EXPONENTS[k // len(SHIFTS)], SHIFTS[k % len(SHIFTS)]
            x = (s / s[0] + shift) ** -b
            [[alone]] = [np.linalg.lstsq((x * root)[:, None], losses * root)[0]]
            assert scale[0, p, 0, k] == pytest.approx(alone, rel=1e-8)
            steep, floor = np.linalg.lstsq(np.stack([x * root, root], axis=1), losses * root)[0]
            if steep > 0 and floor > 0:
                assert (scale[0, p, 1, k], base[0, p, 1, k]) == pytest.approx((steep, floor), rel=1e-6)
            else:
                assert log_belief[0, p, 1, k] == -np.inf


def test_posterior_odds_follow_the_misfit() -> None:
    """The odds of two candidates without a floor are the ratio of misfits to the power of minus half the evidence."""
    s, losses = noisy()
    scale, _, log_belief = fed(s, losses, evidence=3.0)._families.candidates(ROW)
    weight = (s / s[-1]) ** POWERS[0]

    def misfit(k: int) -> float:
        x = (s / s[0] + SHIFTS[k % len(SHIFTS)]) ** -EXPONENTS[k // len(SHIFTS)]
        relative = (losses - scale[0, 0, 0, k] * x) / losses
        return float(((weight * relative**2).sum() + PRIOR_MISFIT) / weight.sum()) + MIN_MISFIT

    odds = np.exp(log_belief[0, 0, 0, 20] - log_belief[0, 0, 0, 30])
    assert odds == pytest.approx((misfit(20) / misfit(30)) ** -1.5, rel=1e-6)


def test_without_evidence_candidates_are_believed_by_their_prior() -> None:
    """A fifth of the curves has a floor; the shapes of a family are alike."""
    s, losses = noisy()
    laws = CurveFamilies(np.array(POWERS), evidence=0.0, families=np.array([0.5, 0.3, 0.2]), floors=0.2)
    laws.grow(1)
    laws.observe_curve(0, s, losses)
    belief = np.exp(laws.candidates(ROW).log_belief)[0]
    prior = np.tile((laws.families / SIZES)[FAMILY], (len(POWERS), 1))
    for floor, part in enumerate((0.8, 0.2)):
        possible = belief[:, floor] > 0
        assert possible[:, FAMILY == 0].any()
        assert belief[:, floor][possible] == pytest.approx(part * prior[possible])


def test_a_whole_curve_is_taken_in_as_cell_by_cell() -> None:
    s, losses = noisy()
    laws, one_by_one = CurveFamilies(np.array(POWERS), 6.0, np.full(3, 1 / 3), 0.05), fed(s, losses)._families
    laws.grow(1)
    laws.observe_curve(0, s, losses)
    for name in laws.STATE:
        assert getattr(laws, name) == pytest.approx(getattr(one_by_one, name), rel=1e-9), name


def test_a_floor_is_detected() -> None:
    s = np.arange(10.0, 3000.0, 10.0)
    bank = fed(s, 5.0 * s**-1.0 + 0.3)
    above, below = (bank.first_passage(ROW, np.array([t]))[0] for t in (0.301, 0.25))
    assert np.isfinite(above[9])
    assert np.isinf(below[14])


def test_uncertainty_grows_with_the_distance() -> None:
    s = np.arange(10.0, 2000.0, 10.0)
    losses = 3.0 * s**-0.5 * np.random.default_rng(1).lognormal(0, 0.03, len(s))

    def width(seen: int, target: float) -> float:
        q = fed(s[:seen], losses[:seen]).first_passage(ROW, np.array([target]))[0] - s[seen - 1]
        return float(np.log(q[14] / q[4]))

    widths = [width(50, 3.0 * (far * s[49]) ** -0.5) for far in (1.5, 3.0, 8.0)]
    assert widths == sorted(widths)


def test_a_forecast_is_made_once_a_cell_and_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    s, losses = noisy()
    bank = fed(s, losses)
    made = []
    forecast = Posterior._forecast

    def counted(self: Posterior, rows: IntArray, threshold: FloatArray) -> FloatArray:
        made.append(threshold[0])
        return forecast(self, rows, threshold)

    monkeypatch.setattr(Posterior, "_forecast", counted)
    for threshold in (0.1, 0.1, 0.2, 0.1):
        bank.first_passage(ROW, np.array([threshold]))
    assert made == [0.1, 0.2, 0.1]
    bank.observe(ROW, np.array([s[-1] + 10]), losses[-1:])
    bank.first_passage(ROW, np.array([0.1]))
    assert made == [0.1, 0.2, 0.1, 0.1]


def test_forecasts_do_not_depend_on_the_unit_of_data() -> None:
    s, losses = noisy()
    one = fed(s, losses).first_passage(ROW, np.array([0.08]))
    thousand = fed(1000 * s, losses).first_passage(ROW, np.array([0.08]))
    assert thousand == pytest.approx(1000 * one, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"powers": ()}, "powers must be at least one"),
        ({"powers": (-1.0,)}, r"each at least 0 and finite, got \[-1.0\]"),
        ({"evidence": 0.0}, "evidence must be positive and finite, got 0.0"),
        ({"floor": 1.0}, "floor must be above 0 and below 1, got 1.0"),
        ({"widening": -0.1}, "widening must be at least 0 and finite, got -0.1"),
        ({"min_cells": 2}, "min_cells must be at least 3 cells, got 2"),
    ],
)
def test_wrong_arguments_name_the_rule_and_the_value(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Posterior(**arguments)  # type: ignore[arg-type]


def test_the_shapes_are_those_of_the_families() -> None:
    u = np.array([1.0, 40.0, 900.0])
    shapes = CurveFamilies(np.array([4.0]), 6.0, np.full(3, 1 / 3), 0.05).shape(u)
    first = np.cumsum([0, *SIZES[:-1]])
    assert shapes[:, 0] == pytest.approx(u ** -EXPONENTS[0])
    assert shapes[:, first[1] + 5] == pytest.approx(np.exp(-((u / TIMES[5]) ** STRETCHES[0])))
    assert shapes[:, first[2] + 5] == pytest.approx(1.0 / (1.0 + (u / TIMES[5]) ** SLOPES[0]))


def test_a_passage_is_where_a_shape_has_come_down_to_a_value() -> None:
    bank, candidates = CurveFamilies(np.array([4.0]), 6.0, np.full(3, 1 / 3), 0.05), np.arange(SIZES.sum())
    for u in (3.0, 200.0):
        [x] = bank.shape(np.array([u]))
        seen = (x > 1e-12) & (x < 1.0 - 1e-9)  # beyond these a shape is level to the last digits
        assert seen.mean() > 0.7
        assert bank.passage(x[seen], candidates[seen]) == pytest.approx(u, rel=1e-4)
    assert np.isinf(bank.passage(np.array([1e-300]), np.array([0])))


@pytest.mark.parametrize("how", [lambda s: np.exp(-s / 300.0), lambda s: 1 / (1 + (s / 300.0) ** 3)])
def test_a_curve_that_is_no_power_law_is_forecast(how: Callable[[FloatArray], FloatArray]) -> None:
    s = np.arange(10.0, 500.0, 10.0)
    bank = fed(s, how(s))
    belief = np.exp(bank._families.candidates(ROW).log_belief[0, 0]).sum(axis=0)
    assert belief[FAMILY == 0].sum() < 0.25 * belief.sum()
    assert bank.first_passage(ROW, how(np.array([800.0])))[0, 9] == pytest.approx(800.0, rel=0.15)


def test_usual_work_keeps_fits_that_go_on_for_ever_from_deciding_alone() -> None:
    s, losses = noisy()
    usual, plain = fed(s, losses, usual=UsualWork()), fed(s, losses)
    goal = np.array([0.04])  # below the floor
    assert usual.first_passage(ROW, goal)[0, 9] < plain.first_passage(ROW, goal)[0, 9]
    assert UsualWork().log_belief(np.array([2.0, 2.0 * np.exp(0.8), np.inf])) == pytest.approx([0.0, -0.5, -5.0])


@pytest.mark.parametrize("families", [(0.5, 0.5), (0.5, 0.6, -0.1), (0.5, 0.3, 0.3)])
def test_families_are_three_probabilities(families: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="families must be three positive probabilities that add up to 1, got"):
        Posterior(families=families)
