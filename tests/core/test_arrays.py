"""Rows that leave: what stays is found under its new number."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.arrays import kept_by_row, renumbered

STAYS = np.array([False, True, True, False, False, True])


def test_values_of_rows_that_stay_have_their_new_numbers() -> None:
    assert kept_by_row(dict(enumerate("abcdef")), STAYS) == {0: "b", 1: "c", 2: "f"}


@pytest.mark.parametrize(
    ("row", "new"),
    [(-1, -1), (0, -0.5), (1, 0), (2, 1), (3, 1.5), (4, 1.5), (5, 2), (1.5, 0.5), (0.5, -0.5), (4.5, 1.5)],
)
def test_a_row_that_has_left_is_between_its_neighbours(row: float, new: float) -> None:
    assert renumbered(row, STAYS) == new
