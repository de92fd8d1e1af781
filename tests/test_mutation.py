"""docs/mutants.md agrees with its record, and few mutants are left."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.mutation import __main__ as mutation
from tests.mutation.elsewhere import mutated, users_of
from tests.mutation.mutants import Mutant, sample
from tests.mutation.page import LIMIT, PAGE, PUBLISHED, Measured, Survivor, equivalent, read, survived, written


def test_the_page_agrees_with_the_record() -> None:
    assert PAGE.read_text() == written(read(), equivalent())


@pytest.mark.parametrize("module", read())
def test_no_more_mutants_survive_than_may(module: str) -> None:
    row = read()[module]
    assert survived(module, row, equivalent()) <= (0 if module in PUBLISHED else LIMIT * row.tried)


def test_every_module_named_exists() -> None:
    named = {*PUBLISHED, *read(), *(module for module, _, _ in equivalent())}
    assert [module for module in sorted(named) if not (ROOT / module).exists()] == []


def test_every_module_has_a_room_with_tests() -> None:
    made = (ROOT / "Makefile").read_text()
    [rooms] = re.findall(r"addprefix lightning_core/,([\w/ ]+)\)", made)
    assert [room for room in rooms.split() if not (ROOT / "lightning_core" / room).is_dir()] == []
    tested = {path for room in {*map(mutation.room_of, read()), *mutation.TESTS} for path in mutation.tests_of(room)}
    assert [path for path in sorted(tested) if not (ROOT / path).exists()] == []


def test_every_module_that_computes_an_equation_counts_as_published() -> None:
    cited = {module for module in read() if re.search(r"\beqs?\. \d", (ROOT / module).read_text())}
    cited -= {"lightning_core/estimators/posterior.py"}  # it says what it does in place of one
    assert sorted(cited - PUBLISHED.keys()) == []


def test_an_equivalent_mutant_is_no_survivor() -> None:
    row = Measured("2026-01-01", 9, 4, [Survivor(3, "a < b", "a <= b"), Survivor(5, "x = 1", "x = 2")])
    why = {("room/module.py", "a < b", "a <= b"): "a is never b"}
    assert survived("room/module.py", row, why) == 1
    page = written({"room/module.py": row}, why)
    assert "| 9 | 4 | 2 | 1 | 1 | 25 % | 2026-01-01 |" in page
    assert "equivalent: a is never b" in page


def test_the_sample_is_the_same_whatever_the_order() -> None:
    mutants = [Mutant(f"m.x_f__mutmut_{number}", number, "", "") for number in range(50)]
    chosen = sample(mutants, 10)
    assert len(chosen) == 10
    assert sample(mutants[::-1], 10) == chosen
    assert sorted(sample(mutants, 0), key=lambda mutant: mutant.line) == mutants


def test_survivors_are_shown_to_those_who_use_their_module() -> None:
    every, elsewhere = (users_of("lightning_core/core/durations.py", tested) for tested in ([], ["tests/core"]))
    assert "tests/core/test_durations.py" in every
    assert elsewhere
    assert not any(path.startswith("tests/core/") for path in elsewhere)
    assert users_of("lightning_core/core/nothing_of_that_name.py", ["tests"]) == []


def test_a_survivor_is_one_changed_line() -> None:
    source = "a = 1\nif a:\n    b = 2\nif b:\n    b = 2\n"
    assert mutated(source, Survivor(5, "b = 2", "b = 3")) == "a = 1\nif a:\n    b = 2\nif b:\n    b = 3\n"
    assert mutated(source, Survivor(5, "if b: b = 2", "if b: b = 3")) is None
