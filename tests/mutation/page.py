"""The record of the mutants, docs/mutants.json, and the page that is made of it, docs/mutants.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lightning_core.storage.atomic_files import write_whole

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORD, PAGE = DOCS / "mutants.json", DOCS / "mutants.md"
# Modules that compute what a paper states, and where: no mutant may survive there.
PUBLISHED = {
    "lightning_core/estimators/kalman.py": "LaiRA's forecast",
    "lightning_core/estimators/least_squares.py": "LARA, eqs. 3.1 to 3.6",
    "lightning_core/estimators/ridge.py": "LaiRA's line and its bound, eq. 9",
    "lightning_core/parts/edge_cloud/placement/demands.py": "cost of a task, eq. 2",
    "lightning_core/parts/edge_cloud/placement/milp_model.py": "the integer program",
    "lightning_core/parts/edge_cloud/placement/plan.py": "cost, accuracy and use of a placement, eqs. 1 to 11",
    "lightning_core/parts/edge_cloud/placement/planner.py": "the integer program",
    "lightning_core/parts/edge_cloud/placement/predictor.py": "errors of predictors",
    "lightning_core/parts/edge_cloud/placement/reconfigurer.py": "reconfiguration",
    "lightning_core/parts/market/backtest.py": "utility of the spot paper",
    "lightning_core/parts/market/changeover.py": "time that changes of nodes take, eq. 2 of the spot paper",
    "lightning_core/parts/market/ledger.py": "utility of the spot paper, eq. 9",
    "lightning_core/parts/market/observation.py": "even progress, eq. 6 of the spot paper",
    "lightning_core/parts/market/programs/node_pairs.py": "value after the deadline, eq. 9 of the spot paper",
    "lightning_core/parts/market/programs/optimum.py": "optimum of the spot paper, eq. 5",
    "lightning_core/parts/market/programs/window_planner.py": "windows of AHAP, eq. 10 of the spot paper",
    "lightning_core/parts/market/selector.py": "online policy selection, algorithm 2",
    "lightning_core/parts/market/spot_job.py": "the job of the spot paper, eqs. 1 to 9",
    "lightning_core/parts/market/spot_policies/ahanp.py": "AHANP",
    "lightning_core/parts/market/spot_policies/ahap.py": "AHAP",
    "lightning_core/parts/market/spot_policies/next_lifetime.py": "next spot lifetime",
    "lightning_core/parts/market/spot_policies/uniform_progress.py": "Uniform Progress",
    "lightning_core/planning/ramp.py": "Decor's controller, eqs. 3 to 5",
    "lightning_core/planning/time_slices.py": "LaiRA's adaptive time slices",
    "lightning_core/policies/decor.py": "Decor's control",
    "lightning_core/policies/laira.py": "LaiRA",
    "lightning_core/policies/lara.py": "LARA, eqs. 3.8 and 3.10",
}
# At most this part of the mutants may survive elsewhere.
LIMIT = 0.15
# Mutants that compute the same, with the reason, by module.
EQUIVALENT = Path(__file__).with_name("equivalent.json")
HEAD = """# Mutants

How much the tests of the pure rooms notice. A mutant is a module with one change, such as `<` for `<=` or an argument
left out. Those tests of its room run on it that reach it and take at most half a second; if none fails, those of other
folders that import its module, twelve files at most. If none of them fails either, it has survived. `make mutants`
measures one module after the other with [mutmut](https://mutmut.readthedocs.io) and writes this page. None may survive
in a module that computes a published formula, and at most 15 % elsewhere. Modules that are not here have not been
measured, or are not there yet.

Of each module a random sample is tried, the same one each time. Where mutants survived, tests were written that kill
them, and they were tried again: of mutants that are not in the sample, more survive (`OPTIONS="--seed 2"` tries others,
`OPTIONS="--most 0"` all).

Not tried: constants of modules and classes, defaults of dataclasses, properties, error messages, `strict=` of `zip`. A
mutant that runs 30 times as long as its tests is killed. *Equivalent* ones compute the same, and do not count as
survivors.
"""

Reasons = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True, order=True)
class Survivor:
    """A mutant that no test notices: line of the module, what stands there, and what it was changed to."""

    line: int
    old: str
    new: str


@dataclass(frozen=True)
class Measured:
    """What became of the mutants of a module: how many there are, how many were tried, and which survived."""

    day: str
    found: int
    tried: int
    survivors: list[Survivor]


def read() -> dict[str, Measured]:
    """Return the record, by module."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {
        module: Measured(**{**row, "survivors": [Survivor(**each) for each in row["survivors"]]})
        for module, row in rows.items()
    }


def save(new: Mapping[str, Measured]) -> None:
    """Put modules into the record; the others there stay."""
    rows = {module: asdict(row) for module, row in sorted({**read(), **new}.items())}
    write_whole(RECORD, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def equivalent() -> Reasons:
    """Return why mutants compute the same, by module, line as it is, and line as it was changed."""
    known = json.loads(EQUIVALENT.read_text())
    return {(module, one["old"], one["new"]): one["why"] for module, every in known.items() for one in every}


def written(record: Mapping[str, Measured], why: Reasons) -> str:
    """Return the page as Markdown, from what was measured and why mutants compute the same."""
    parts = [HEAD]
    for title, chosen in (
        ("Published formulas", {module: row for module, row in record.items() if module in PUBLISHED}),
        ("Others", {module: row for module, row in record.items() if module not in PUBLISHED}),
    ):
        if not chosen:
            continue
        parts += [
            f"\n## {title}\n",
            "| module | mutants | tried | killed | equivalent | survived | | day |",
            "|---|---|---|---|---|---|---|---|",
        ]
        parts += [_row(module, row, why) for module, row in chosen.items()]
        for module, row in chosen.items():
            if row.survivors:
                parts += [f"\n### {module}\n", "| line | is | changed to | |", "|---|---|---|---|"]
                parts += [_survivor(one, why.get((module, one.old, one.new), "")) for one in row.survivors]
    return "\n".join(parts) + "\n"


def survived(module: str, row: Measured, why: Reasons) -> int:
    """Return how many mutants of a module survived, without the equivalent ones."""
    return sum((module, one.old, one.new) not in why for one in row.survivors)


def _row(module: str, row: Measured, why: Reasons) -> str:
    alive = survived(module, row, why)
    same = len(row.survivors) - alive
    killed = row.tried - len(row.survivors)
    part = f"{alive / max(row.tried, 1):.0%}".replace("%", " %")
    return f"| [{module}](../{module}) | {row.found} | {row.tried} | {killed} | {same} | {alive} | {part} | {row.day} |"


def _survivor(one: Survivor, why: str) -> str:
    old, new = (f"`{text.replace('|', chr(92) + '|')}`" if text else "" for text in (one.old, one.new))
    return f"| {one.line} | {old} | {new} | {why and 'equivalent: ' + why} |"
