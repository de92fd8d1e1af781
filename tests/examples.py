"""How many random examples the tests try: one setting, so that a night tries more of them than each change does."""

from __future__ import annotations

import math
import os

# Factor on all numbers of random examples: 0.5 in `make test`, 4 in `make test-nightly` and `make reliability`.
FACTOR = float(os.environ.get("LC_EXAMPLES", "1"))


def examples(number: int, factor: float = FACTOR) -> int:
    """Return how many examples to try where a run with a factor of 1 tries ``number``.

    >>> examples(40, 1.0), examples(40, 4.0), examples(3, 0.1)
    (40, 160, 1)
    """
    return max(1, math.ceil(number * factor))
