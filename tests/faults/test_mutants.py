"""Each promise's test is red when its guard is gone. Rows without a mutant are told in the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.mutants import MUTANTS, Mutant, is_there, names, without_guard


def test_every_mutant_names_an_existing_guard_and_test() -> None:
    """Guards and tests are where it says: otherwise it would prove nothing."""
    assert [wrong for mutant in MUTANTS if (wrong := is_there(mutant))] == []


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=names())
def test_a_test_fails_without_its_guard(mutant: Mutant, tmp_path: Path) -> None:
    code, said = without_guard(mutant, tmp_path)
    assert code == 1, f"{mutant.test} passes without its guard:\n{said}"
