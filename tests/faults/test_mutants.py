"""The test of each promise fails without its guard. The table names the rows that have no mutant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.guards import Mutant, is_there, without_guard
from tests.faults.mutants import MUTANTS, names


def test_every_mutant_names_an_existing_guard_and_test() -> None:
    """A mutant without its guard or its test would prove nothing."""
    assert [wrong for mutant in MUTANTS if (wrong := is_there(mutant))] == []


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=names())
def test_a_test_fails_without_its_guard(mutant: Mutant, tmp_path: Path) -> None:
    code, said = without_guard(mutant, tmp_path)
    assert code == 1, f"{mutant.test} passes without its guard:\n{said}"
