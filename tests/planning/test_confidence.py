"""How far forecasts are trusted, by hand: 100 cells over 1,000 batches at 10 batches/s unless said otherwise."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest

from lightning_core.planning.confidence import averaged, trusted_chances
from tests.views import view

NONE = np.zeros(1)


def test_of_jobs_without_a_chance_by_forecast_half_are_hoped_for_in_eight_times_as_long_as_far_as_it_is_doubted() -> (
    None
):
    """700 s are 7,000 batches more; a hundred cells halve the doubt."""
    assert trusted_chances(view([inf], [700.0]), 0.0, NONE) == pytest.approx(0.5 * 0.5)
    assert trusted_chances(view([inf], [800.0]), 100.0, NONE) == pytest.approx(0.5 * 0.5)
    assert trusted_chances(view([inf], [700.0], cells=[300], position=[1000]), 0.0, NONE) == pytest.approx(0.25 * 0.5)


def test_a_forecast_is_doubted_by_how_far_it_reaches() -> None:
    """It is doubted fully from 20 times as far as the job has trained, and half as much at the root of that."""
    near, far, farther = 100.0 * (sqrt(20) - 1), 1900.0, 2500.0
    for work, doubt in ((near, 0.25), (far, 0.5), (farther, 0.5)):
        slack = 1000.0 * 7.0
        usual = 1 - (1000 / 71_000) ** (1 / 3)
        assert trusted_chances(view([work], [slack]), 0.0, NONE) == pytest.approx(1 - doubt + doubt * usual)


def test_what_rests_on_earlier_runs_is_doubted_half_as_much() -> None:
    jobs = view([inf], [700.0])
    assert trusted_chances(jobs, 0.0, np.array([0.6])) == pytest.approx(0.7 * 0.25)
    assert trusted_chances(jobs, 0.0, np.array([1.0])) == pytest.approx(0.5 * 0.25)


def test_a_training_that_ends_first_leaves_less_room_for_a_surprise() -> None:
    jobs = view([inf, inf, inf], [700.0] * 3)
    ends = replace(jobs, ends_at=np.array([8000.0, 1000.0, 900.0]))
    assert trusted_chances(ends, 0.0, np.zeros(3)) == pytest.approx([0.25, 0.0, 0.0])


def test_an_average_forgets_by_batches_and_a_job_that_waits_keeps_it() -> None:
    before, at = np.array([0.9, 0.9, 0.9, np.nan]), np.array([100, 100, 100, 0])
    seen = np.array([100.0, 200.0, 100.0 * 2**0.1, 50.0])
    assert averaged(before, at, np.full(4, 0.1), seen) == pytest.approx([0.9, 0.1, 0.5, 0.1], abs=0.001)
