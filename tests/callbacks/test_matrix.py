"""Trainings of all kinds are the same to the bit with the callback and without it, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.matrix.collectives import difference
from tests.matrix.factors import Row, name_of, pairwise_rows
from tests.matrix.forks import Forks
from tests.socket_servers import found_pool

TRAIN = "tests.matrix.training:train"


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    """A pool with four devices, in a folder by which scripts find it."""
    with found_pool(devices=4) as made:
        yield str(made.path.parent)


@pytest.mark.promise("R30", "R31")
@pytest.mark.parametrize("row", pairwise_rows(), ids=name_of)
def test_a_training_is_the_same_with_the_callback(row: Row, forks: Forks, pool: str, tmp_path: Path) -> None:
    ranks = 2 if row["ranks"] == "ddp" else 1
    without = forks.run(TRAIN, row, str(tmp_path / "without"), False, ranks=ranks)
    seen = forks.run(TRAIN, row, str(tmp_path / "with"), True, pool, ranks=ranks)
    assert [one.code for one in seen] == [one.code for one in without], seen[0].output[-6000:]
    assert None not in [one.code for one in without], without[0].output[-3000:]
    assert not difference([one.collectives for one in seen])
    for rank in range(ranks):
        assert seen[rank].value == without[rank].value, seen[rank].output[-3000:]
