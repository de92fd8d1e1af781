"""The scale on which the values of a search are forecast."""

import numpy as np
import pytest

from lightning_core.parts.search.decision.metric_scale import MetricScale


@pytest.mark.parametrize(
    ("values", "mode", "kind"),
    [
        ([2.3, 0.1], "min", "log"),
        ([0.2, 0.9], "max", "share"),
        ([0.0, 1.0], "max", "share"),
        ([2.3, 0.0], "min", "linear"),
        ([0.2, 1.1], "max", "linear"),
        ([-0.1, 0.5], "max", "linear"),
    ],
)
def test_a_scale_is_chosen_by_what_was_seen(values: list[float], mode: str, kind: str) -> None:
    assert MetricScale.of(values, mode).kind == kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "mode"),
    [([2.3, 0.5, 0.1], "min"), ([0.1, 0.8, 0.97], "max"), ([5.0, -2.0, -4.0], "min"), ([-200.0, 3.0, 150.0], "max")],
)
def test_better_values_are_smaller(values: list[float], mode: str) -> None:
    scale = MetricScale.of(values, mode)  # type: ignore[arg-type]
    scaled = scale.scaled(values)
    assert np.all(np.diff(scaled) < 0)


def test_a_value_outside_the_domain_is_not_covered() -> None:
    assert MetricScale("log").covers(0.1)
    assert not MetricScale("log").covers(0.0)
    assert MetricScale("share").covers(1.0)
    assert not MetricScale("share").covers(1.01)


def test_how_bad_a_bad_value_is_tells_nothing_on_the_linear_scale() -> None:
    scale = MetricScale.of([0.0, 1.0, 2.0, 1e9], "min")
    assert scale.scaled(1e9) == scale.scaled(1e6)
    assert scale.scaled(0.0) < scale.scaled(1.0)


@pytest.mark.parametrize(("values", "unit"), [([0.0, 4.0, 8.0], 4.0), ([-3.0, -3.0, -3.0], 3.0), ([0.0, 0.0], 1.0)])
def test_the_unit_of_the_linear_scale_is_the_spread(values: list[float], unit: float) -> None:
    assert MetricScale.of(values, "min").unit == unit
