"""docs/reliability.md agrees with the outcomes of the tests, and its tests exist."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.conftest import ROOT
from tests.faults.promises import Outcome, Promises, read
from tests.faults.rows import ROWS, Row
from tests.faults.table import RECORD, TABLE, result_of, written


@functools.cache
def promised() -> frozenset[tuple[str, str]]:
    """Return every test that names rows, with its rows."""
    return frozenset(_promised())


def _promised() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "tests").glob("**/test_*.py"):
        if "promise" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        every = [node.value for node in tree.body if isinstance(node, ast.Assign)
                 and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "pytestmark"]  # fmt: skip
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            for mark in (sub for holder in (*node.decorator_list, *every) for sub in ast.walk(holder)):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                    for row in mark.args:
                        yield f"{path.relative_to(ROOT)}::{node.name}", ast.literal_eval(row)


def test_every_promise_named_by_a_test_is_described() -> None:
    assert {row for _, row in promised()} <= ROWS.keys()


def test_the_table_agrees_with_the_record() -> None:
    assert TABLE.read_text() == written(read(RECORD))


def test_every_recorded_test_exists_and_names_its_rows() -> None:
    there = promised()
    for test, outcome in read(RECORD).items():
        for row in outcome["rows"]:
            assert (test, row) in there, "gone or renamed; make reliability writes the record anew"


def outcome(result: str) -> Outcome:
    return Outcome(rows=["R1"], result=result, figure="", day="2026-01-01")


@pytest.mark.parametrize(
    ("row", "results", "word"),
    [
        (Row("w"), [], "not tested"),
        (Row("w"), ["passed", "passed"], "held"),
        (Row("w"), ["passed", "failed"], "not held"),
        (Row("w"), ["passed", "skipped"], "held"),
        (Row("w"), ["skipped"], "not tested here"),
        (Row("w", "but"), ["passed"], "held in part"),
        (Row("w", "no", applies=False), ["passed"], "does not apply"),
    ],
)
def test_the_result_of_a_row(row: Row, results: list[str], word: str) -> None:
    assert result_of(row, [outcome(result) for result in results]) == word


def test_the_worst_result_of_a_test_s_parameters_counts(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"tests/old.py::test_old": outcome("passed")}))
    plugin = Promises(record)
    for parameter, result in (("a", "passed"), ("b", "failed"), ("c", "passed")):
        properties = [("promise", "R2"), ("promise", "F3"), ("figure", f"{parameter} s")]
        plugin.pytest_runtest_logreport(
            pytest.TestReport(
                f"tests/new.py::test_new[{parameter}]", ("", 0, ""), {}, result, None, "call",  # type: ignore[arg-type]
                user_properties=properties,
            )
        )  # fmt: skip
    plugin.pytest_sessionfinish(cast(pytest.Session, SimpleNamespace(config=None)))
    found = read(record)
    assert found["tests/old.py::test_old"] == outcome("passed")
    new = found["tests/new.py::test_new"]
    assert (new["rows"], new["result"], new["figure"]) == (["F3", "R2"], "failed", "a s; b s; c s")
