"""Trainings of all kinds are the same to the bit with the callback and without it, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import day_and_night
from tests.matrix.collectives import difference
from tests.matrix.factors import Row, covering_rows, name_of, night_rows
from tests.matrix.forks import Forks
from tests.socket_servers import found_pool

TRAIN = "tests.matrix.training:train"
ROWS = covering_rows(2)
# Rows of `make test`: the first ones, which add the most pairs. They hold all values and 72 % of the pairs.
BY_DAY = ROWS[:20]
# Tests among which the rows of a night are divided.
PARTS = 20


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    """A pool with four devices, in a folder by which scripts find it."""
    with found_pool(devices=4) as made:
        yield str(made.path.parent)


def compare(row: Row, forks: Forks, pool: str, folder: Path) -> str:
    """Train with the callback and without it; return what is not the same, empty if all is."""
    ranks = 2 if row["ranks"] == "ddp" else 1
    without = forks.run(TRAIN, row, str(folder / "without"), False, ranks=ranks)
    seen = forks.run(TRAIN, row, str(folder / "with"), True, pool, ranks=ranks)
    codes = [[one.code for one in some] for some in (without, seen)]
    if codes[0] != codes[1] or None in codes[0]:
        return f"exit codes without and with it are {codes}:\n{without[0].output[-3000:]}\n{seen[0].output[-6000:]}"
    if found := difference([one.collectives for one in seen]):
        return found
    for rank in range(ranks):
        old, new = without[rank].value, seen[rank].value
        if old != new:
            differ = [name for name in old if old[name] != new[name]] if old and new else [old, new]
            return f"{differ} of rank {rank} are not the same:\n{seen[rank].output[-3000:]}"
    return ""


@pytest.mark.promise("R30", "R31")
@pytest.mark.parametrize("row", day_and_night(ROWS, BY_DAY), ids=name_of)
def test_a_training_is_the_same_with_the_callback(row: Row, forks: Forks, pool: str, tmp_path: Path) -> None:
    assert not compare(row, forks, pool, tmp_path)


@pytest.mark.nightly
@pytest.mark.promise("R30", "R31")
@pytest.mark.parametrize("part", range(PARTS))
def test_all_triples_of_options_train_the_same(part: int, forks: Forks, pool: str, tmp_path: Path) -> None:
    """All combinations of three values, and the values that are too slow for a day."""
    differ = {}
    for number, row in enumerate([*covering_rows(3), *night_rows()][part::PARTS]):
        if found := compare(row, forks, pool, tmp_path / str(number)):
            differ[name_of(row)] = found
    assert not differ, "\n\n".join(f"{name}:\n{found}" for name, found in differ.items())
