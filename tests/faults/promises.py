"""Collects the outcomes of tests of promises: which promises, whether they passed, and what they measured.

A test names its rows with ``@pytest.mark.promise("R6", "F6")`` and its figure with
``record_property("figure", "50 kills, the newest verified checkpoint loaded 50 times")``. With ``--record=FILE`` the
outcomes go into that file; those of tests that did not run this time stay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import pytest


class Outcome(TypedDict):
    """Outcome of one test: the worst over its parameters."""

    rows: list[str]
    result: str
    figure: str
    day: str


WORST = ("failed", "skipped", "passed")


class Promises:
    """The plugin. Under xdist it records in the process that gets the reports of all tests."""

    def __init__(self, record: Path | None) -> None:
        self._record = record
        self._seen: dict[str, Outcome] = {}

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("promise"):
                item.user_properties += [("promise", row) for row in mark.args]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = [str(value) for name, value in report.user_properties if name == "promise"]
        if not rows or (report.when != "call" and report.passed):
            return
        test = report.nodeid.partition("[")[0]
        figures = [str(value) for name, value in report.user_properties if name == "figure"]
        before = self._seen.get(test)
        result = min((report.outcome, *([before["result"]] if before else [])), key=WORST.index)
        figures += [before["figure"]] if before and before["figure"] else []
        self._seen[test] = Outcome(
            rows=sorted(set(rows + (before["rows"] if before else [])), key=_place),
            result=result,
            figure="; ".join(dict.fromkeys(reversed(figures))),
            day=datetime.now(UTC).date().isoformat(),
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._record is None or hasattr(session.config, "workerinput"):
            return
        outcomes = read(self._record) | self._seen
        self._record.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n")


def read(path: Path) -> dict[str, Outcome]:
    """Return the outcomes in a file, by test; none if there is no file."""
    outcomes: dict[str, Outcome] = json.loads(path.read_text()) if path.exists() else {}
    return outcomes


def _place(row: str) -> tuple[str, int]:
    return row[0], int(row[1:])
