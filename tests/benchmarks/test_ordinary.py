"""The recorded ordinary trainings, and the figures of what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.forecasts.ordinary import Stop, figures, stops, trainings
from benchmarks.recording.record_ordinary import RUNS, record
from lightning_core.core.answers import Verdict


def test_trainings_of_many_kinds_have_targets_that_are_met_and_some_that_never_are() -> None:
    found = trainings()
    reached = [one for one in found if np.isfinite(one.reached)]
    assert len({one.name for one in found}) >= 60
    assert {one.name for one in found} <= RUNS.keys()
    assert len(found) - len(reached) >= 10
    assert all(one.rates is None or one.rates.are_valid for one in found)
    tuned = sum(one.tuned for one in found)
    assert 0.4 < tuned / len(found) < 0.7


def test_a_training_is_recorded_again_as_it_was() -> None:
    run = RUNS["wine val"]._replace(batches=200)
    first, second = record(run, 1), record(run, 1)
    assert first["values"] == second["values"]
    again = next(one for one in trainings() if one.name == "wine val")
    assert first["batches"] == list(again.batches[: len(first["batches"])])


def test_figures_count_what_is_said() -> None:
    training = next(one for one in trainings() if one.name == "sums sgd")
    said = [one for one in stops(training) if one.part >= 0.3]
    assert [one.part for one in said] == [0.3, 0.6]
    truth = said[0].truth

    def stop(number: float) -> Stop:
        return said[0]._replace(said=number, left=np.full(20, truth), verdict=Verdict.INFEASIBLE)

    found = figures([stop(truth), stop(3 * truth), stop(np.nan), stop(np.nan)])
    assert (found["said_part"], found["said_within_2"], found["said_never_false"]) == (0.5, 0.5, 1.0)
    assert found["median_ln_error_30"] == pytest.approx(0.0)
