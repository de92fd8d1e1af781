"""Values that are computed again only where the arguments of a row have changed."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from lightning_core.core.arrays import FloatArray
from lightning_core.core.row_cache import RowCache


def test_values_are_computed_only_for_rows_whose_arguments_have_changed() -> None:
    computed: list[list[float]] = []

    def double(arguments: FloatArray) -> FloatArray:
        computed.append(arguments[:, 0].tolist())
        return 2.0 * arguments

    cache, rows = RowCache(double, 1, 1), np.array([0, 3, 700])
    for some in ([1.0, nan, 5.0], [1.0, nan, 5.0], [1.0, 4.0, 6.0]):
        values = cache(rows, np.array(some)[:, None])[:, 0]
        assert values.tolist() == pytest.approx([2 * x for x in some], nan_ok=True)
    assert cache(rows[::-1], np.array([[6.0], [4.0], [1.0]])).tolist() == [[12.0], [8.0], [2.0]]
    assert cache(np.array([5000]), np.array([[1.0]])).tolist() == [[2.0]]
    assert computed == [pytest.approx(x, nan_ok=True) for x in ([1, nan, 5], [nan], [4, 6], [1])]
