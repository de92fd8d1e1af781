"""What users were told of the end of recorded trainings, held against when they ended."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.curves.bundles import Recording, smoothed
from benchmarks.forecasts.ordinary import replayed, trainings
from benchmarks.forecasts.task_kinds import LARGE, PARTS, SMALL, Look, figures, looks, published
from benchmarks.labels import KINDS
from lightning_core.simulation.recorded_curves import Curve


def test_every_small_training_is_of_one_kind_and_every_kind_is_on_the_page() -> None:
    tasks = [task for words in SMALL.values() for task in words.split()]
    assert len(tasks) == len(set(tasks))
    assert set(tasks) == {one.name.split()[0] for one in trainings()}
    assert set(KINDS) == {f"small_{kind}" for kind in SMALL} | {f"large_{kind}" for kind in LARGE.values()}


def test_a_published_curve_has_a_target_where_it_has_come_down() -> None:
    position = np.arange(10.0, 2010.0, 10.0)
    loss = 2.0 * np.exp(-position / 400.0) + 0.1
    falls, flat = (
        Recording(Curve("a", "cv", "a", "a", position, y), position, y, smoothed(y)) for y in (loss, loss**0)
    )
    near, far = published(falls)
    assert (near.reached, far.reached) == (400, 1800)
    assert list(published(flat)) == []


def test_what_is_told_is_that_of_the_scheduler_at_that_moment() -> None:
    training = next(one for one in trainings() if one.name == "digits linear")
    found = looks(training)
    assert [look.part for look in found] == list(PARTS)
    last = [now.scheduler.job_forecast("job") for now in replayed(training, PARTS)][-1]  # the scheduler goes on
    assert last is not None
    assert found[-1].likely == last.left is not None
    assert found[-1].factor < 4
    assert found[-1].truth == pytest.approx((training.reached - 0.5 * training.way) * 600 / training.length, rel=0.05)
    assert looks(training._replace(reached=np.inf)) == []


def test_figures_count_looks_with_an_end() -> None:
    good, late, none = (
        Look(0.1, 10.0, 5.0, 20.0, 30.0),
        Look(0.1, 10.0, 11.0, 40.0, None),
        Look(0.1, 1.0, 0.5, None, None),
    )
    assert [good.factor, late.factor, none.factor] == pytest.approx([2.0, 4.0, np.inf])
    assert (good.within, late.within, none.within) == (True, False, True)
    found = figures("x", [[good, late], [none, good._replace(part=0.2)]])
    assert (found["x_trainings"], found["x_told_10"], found["x_told_20"], found["x_told_50"]) == (2, 2 / 3, 1, 0)
    assert found["x_factor_10"] == pytest.approx(3.0)
    assert found["x_factor_50"] is None
    assert found["x_within"] == pytest.approx(2 / 3)
