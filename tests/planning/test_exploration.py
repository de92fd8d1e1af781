"""Which jobs are waited for until their curves have shown enough."""

from __future__ import annotations

import pytest

from lightning_core.planning.exploration import Exploration, has_shown_nothing, may_show_more
from tests.views import view


@pytest.mark.parametrize(
    ("batches", "shown", "threshold", "more"),
    [
        (500, 0, 5, True),  # a hundred batches for each cell of the threshold
        (501, 0, 5, False),  # it may never show a loss
        (501, 1, 5, True),  # ... but this one does, now and then
        (501, 5, 5, False),
        (100, 0, 0, True),  # a threshold of none counts as one cell
        (101, 0, 0, False),
        (101, 1, 0, False),
    ],
)
def test_a_job_that_shows_no_loss_is_waited_for_some_batches_only(
    batches: int, shown: int, threshold: int, more: bool
) -> None:
    jobs = view([5.0], [100.0], batches=[batches], cells=[0], shown=[shown])
    assert may_show_more(jobs, threshold).tolist() == [more]


def test_a_job_of_known_work_need_not_show_a_loss() -> None:
    jobs = view([5.0] * 3, [100.0] * 3, cells=[0] * 3, shown=[0, 0, 1], exact=[False, True, False])
    assert has_shown_nothing(jobs).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((-1, 0), "explore must be at least 0 cells, got -1"), ((0, -1), "explore_batches must be at least 0 batches")],
)
def test_negative_thresholds_are_refused(numbers: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Exploration(*numbers)
    assert Exploration(0, 0).cells == 0
