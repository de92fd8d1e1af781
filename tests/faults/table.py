"""Write docs/reliability.md from the record of the tests: ``python -m tests.faults.table``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.faults.promises import Outcome, read
from tests.faults.rows import FAULTS, PROMISES, Row

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORD, TABLE = DOCS / "reliability.json", DOCS / "reliability.md"
HEAD = """# Reliability

What holds when things fail. This page is written from the record of the tests (`make reliability`). A row is *held* if
every test that names it passed on the day in the last column, *held in part* if the text says what is missing, and *not
tested* if no test names it; nightly tests are among them. Every promise has a mutant as well: its guard is removed, and
its test must then fail (`tests/faults/mutants.py`).
"""


def result_of(row: Row, outcomes: Iterable[Outcome]) -> str:
    """Return the result of a row from the outcomes of its tests."""
    results = {outcome["result"] for outcome in outcomes}
    if not row.applies:
        return "does not apply"
    if not results:
        return "not tested"
    if "failed" in results:
        return "not held"
    if results == {"skipped"}:
        return "not tested here"
    return "held in part" if row.open else "held"


def written(outcomes: Mapping[str, Outcome]) -> str:
    """Return the table as Markdown."""
    parts = [HEAD]
    for title, rows in (("Promises", PROMISES), ("Faults", FAULTS)):
        parts += [
            f"\n## {title}\n",
            "| | what must hold | result | measured | tests | day |",
            "|---|---|---|---|---|---|",
        ]
        for name, row in rows.items():
            said = {test: outcome for test, outcome in outcomes.items() if name in outcome["rows"]}
            words = f"{row.words} ({row.open})" if row.open else row.words
            figures = "; ".join(sorted({outcome["figure"] for outcome in said.values() if outcome["figure"]}))
            tests = "<br>".join(_link(test, outcome["result"]) for test, outcome in sorted(said.items()))
            days = max((outcome["day"] for outcome in said.values()), default="")
            cells = (name, words, result_of(row, said.values()), figures, tests, days)
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def _link(test: str, result: str) -> str:
    path, _, name = test.partition("::")
    failed = "" if result == "passed" else f" ({result})"
    return f"[`{name}`](../{path}){failed}"


if __name__ == "__main__":
    TABLE.write_text(written(read(RECORD)))
