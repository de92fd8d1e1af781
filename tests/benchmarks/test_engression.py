"""Engression as an offline estimator. Where its package is not installed, a least-squares line stands in for it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.curves.bundles import Recording, recordings
from benchmarks.forecasts import extrapolation
from benchmarks.forecasts.engression_curve import FARTHEST, fit_engression
from benchmarks.forecasts.lara_comparison import ESTIMATORS_COMPARED, compare, forecast_seconds
from benchmarks.forecasts.m4 import M4, fit_m4
from benchmarks.forecasts.offline import Offline
from lightning_core.core.arrays import FloatArray
from lightning_core.simulation.recorded_curves import Curve

POSITION = np.arange(10.0, 1010.0, 10.0)
LOSS = 3.0 * POSITION**-0.4


class Line:
    """A least-squares line with a little of torch's noise, called as the package is."""

    def __init__(self, x: FloatArray, y: FloatArray) -> None:
        assert x.shape == y.shape == (len(x), 1)
        self.slope, self.height = np.polyfit(x[:, 0], y[:, 0], 1)

    def predict(self, x: FloatArray, target: str, sample_size: int) -> torch.Tensor:
        assert (target, x.shape[1]) == ("mean", 1)
        noise = 1e-6 * torch.randn(len(x), 1, dtype=torch.float64)
        return torch.as_tensor(self.slope * x + self.height) + noise


def fit_line(x: FloatArray, y: FloatArray, *, verbose: bool) -> Line:
    assert not verbose
    return Line(x, y)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engression", SimpleNamespace(engression=fit_line))


@pytest.fixture
def engression(request: pytest.FixtureRequest) -> None:
    """Provide the package, or what stands in for it."""
    if find_spec("engression") is None:
        request.getfixturevalue("line")


def recorded(loss: FloatArray, name: str = "a") -> Recording:
    return recordings([Curve(name, "cv", name, name, 10.0 * np.arange(1.0, len(loss) + 1), loss)])[0]


def test_a_power_law_is_forecast_closer_than_by_the_best_constant(engression: None) -> None:
    curve = fit_engression(POSITION, LOSS, logarithms=True)
    ahead = np.array([4000.0])
    truth = 3.0 * 4000.0**-0.4
    assert abs(curve.predict(ahead)[0] - truth) < abs(LOSS.mean() - truth)
    assert np.isinf(curve.first_passage(1e-6))
    assert 1000.0 < curve.first_passage(0.9 * LOSS[-1]) < FARTHEST * 1000.0


def test_the_same_seed_gives_the_same_forecast_and_draws_no_random_number_elsewhere(engression: None) -> None:
    before = torch.random.get_rng_state()
    one, same = (fit_engression(POSITION[:20], LOSS[:20]).predict(np.array([300.0, 900.0])) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("logarithms", [True, False])
def test_losses_or_their_logarithms_are_fitted(line: None, logarithms: bool) -> None:
    curve = fit_engression(POSITION, LOSS, logarithms=logarithms)
    ahead = curve.predict(np.array([[2000.0], [1e6]]))
    assert ahead.shape == (2, 1)
    if logarithms:
        np.testing.assert_allclose(ahead[:, 0], 3.0 * np.array([2000.0, 1e6]) ** -0.4, rtol=1e-4)
        assert curve.first_passage(3.0 * 2000.0**-0.4) == pytest.approx(2000.0, rel=0.02)
    else:
        assert ahead[1] < 0 < ahead[0] + 1.0  # a line through losses goes below zero
    assert curve.first_passage(2.0 * LOSS[-1]) == 1000.0  # at the last cell already


def test_five_cells_are_too_few(line: None) -> None:
    with pytest.raises(ValueError, match="needs at least 6 points, got 5"):
        fit_engression(POSITION[:5], LOSS[:5])


def test_without_the_package_the_extra_is_named_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engression", None)
    for size, lara in (("full", False), ("quick", True)):
        with pytest.raises(ModuleNotFoundError, match=r"not installed; run pip install .*\[bench\]"):
            extrapolation.measure(size, Path("nowhere"), lara=lara)  # type: ignore[arg-type]


def test_a_fit_that_is_remembered_is_made_again_after_the_next_cell() -> None:
    fits = 0

    def count(s: FloatArray, loss: FloatArray) -> M4:
        nonlocal fits
        fits += 1
        return fit_m4(s, loss)

    row, loss = np.array([0]), 0.5 + LOSS
    for remember, made in ((True, 2), (False, 4)):
        bank, fits = Offline(count, remember=remember), 0
        bank.grow(1)
        for end in (20, 21):
            for k in range(0 if end == 20 else 20, end):
                bank.observe(row, POSITION[[k]], loss[[k]])
            bank.predict(row, np.array([900.0]))
            bank.first_passage(row, np.array([0.6]))
        assert fits == made


def test_lara_s_comparison_is_of_some_recordings(line: None, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    pool = [recorded(LOSS[0] * np.arange(1.0, 201.0) ** -0.4 * draw.lognormal(0, 0.02, 200), name) for name in "abcd"]
    makes: dict[str, Any] = {name: ESTIMATORS_COMPARED[name] for name in ("weighted", "engression_of_logs")}
    figures = compare(pool, makes, every=2)
    assert figures["lara_recordings"] == 2
    for name in makes:
        assert 0 < (figures[f"lara_{name}_data_mixed"] or 0) < 1
        assert 0 < (figures[f"lara_{name}_s"] or 0) < 10
    assert figures["lara_weighted_error_mixed_1"] is None  # 1 % of 200 cells are two
    assert "2 of 4 recordings" in capsys.readouterr().out
    assert forecast_seconds(makes["weighted"], pool[0]) > 0
