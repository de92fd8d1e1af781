"""What a training of ten million batches takes of memory, descriptors and threads stays the same."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from benchmarks.live.endurance import LOOKS, looks


@pytest.mark.nightly
@pytest.mark.promise("R30")
def test_ten_million_batches_take_no_more_than_one_million(record_property: Callable[[str, object], None]) -> None:
    """LC_ENDURANCE_BATCHES: number of batches (default ten million, which take an hour and a half)."""
    batches = int(os.environ.get("LC_ENDURANCE_BATCHES", "10000000"))
    found = looks(batches)
    early, late = found[LOOKS // 10], found[-1]
    growth = late.memory - early.memory
    more = late.descriptors - early.descriptors, late.threads - early.threads
    record_property(
        "figure",
        f"{batches:,} batches: {growth:.1f} MiB, {more[0]} descriptors and {more[1]} threads more than after a tenth",
    )
    assert len(found) == LOOKS
    assert growth < 16.0
    assert (late.descriptors, late.threads) == (early.descriptors, early.threads)
