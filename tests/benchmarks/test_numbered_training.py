"""The check that resizes left the order of samples alone."""

from __future__ import annotations

import pytest

from benchmarks.live.numbered_training import SAMPLES, check_order

Seen = dict[tuple[int, int], list[int]]
HALF = SAMPLES // 2


def steps() -> Seen:
    """Two epochs and a half, of two steps each."""
    samples = list(range(SAMPLES))
    return {(k // 2, k): samples[k % 2 * HALF :][:HALF] for k in range(5)}


def test_a_step_in_the_middle_of_which_a_training_was_cancelled_is_left_out() -> None:
    seen = steps()
    assert check_order(seen, steps()) == 4
    del seen[2, 4][5:]
    assert check_order(seen, steps()) == 4


def test_other_samples_and_epochs_that_are_not_whole_are_refused() -> None:
    short, other, twice = steps(), steps(), steps()
    del short[1, 3][5:]
    other[1, 3][0], other[1, 2][0] = other[1, 2][0], other[1, 3][0]
    twice[0, 1].append(0)
    for wrong in (short, other, twice):
        with pytest.raises(RuntimeError, match=r"epoch and step .* must see the 2048 samples"):
            check_order(wrong, steps())
    with pytest.raises(RuntimeError, match="epoch 0 must see every sample once"):
        check_order(twice, {})
