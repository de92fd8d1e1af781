"""How many random examples the tests try, and which cases of a family: a night tries more than each change does."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# Factor on all numbers of random examples: 0.25 in `make test`, 4 in `make test-nightly` and `make reliability`.
FACTOR = float(os.environ.get("LC_EXAMPLES", "1"))


def examples(number: int, factor: float = FACTOR) -> int:
    """Return how many examples to try where a run with a factor of 1 tries ``number``.

    >>> examples(40, 1.0), examples(40, 4.0), examples(3, 0.1)
    (40, 160, 1)
    """
    return max(1, math.ceil(number * factor))


def day_and_night(cases: Iterable[Any], by_day: Collection[Any]) -> list[Any]:
    """Return the parameters of a family of tests: those that stand for the others by day, all of them each night.

    A case of several arguments is a tuple.

    >>> [type(case).__name__ for case in day_and_night(["plain", "late"], ["late"])]
    ['ParameterSet', 'str']
    """
    cases = list(cases)
    if strange := [case for case in by_day if case not in cases]:
        raise ValueError(f"by_day must name cases, got {strange}")
    return [
        case
        if case in by_day
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
        for case in cases
    ]
