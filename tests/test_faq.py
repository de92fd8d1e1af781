"""Every answer of docs/faq.md names tests that exist or figures that the record has, and says what they say."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from benchmarks import faq_page, results
from benchmarks.labels import HEADINGS, KINDS, LABELS
from lightning_core.agent.reporting.joining import POOL_TIMEOUT
from lightning_core.server.sessions import RESTART_GRACE
from lightning_core.storage.job_specs import SAVE_EVERY
from tests.conftest import ROOT

TEXT = results.FAQ.read_text()
ANSWERS = {
    part.partition("\n")[0]: part.partition("\n")[2].partition("\n## ")[0].strip() for part in TEXT.split("\n### ")[1:]
}
# A test as the small print names it: file and function, a link to the file, and whether it runs at night only.
TEST = re.compile(
    r"\[`(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)`\]\(\.\./(?P<link>[^)]+)\)(?P<after>\s*\([^)]*\))?"
)


def small_print(answer: str) -> str:
    """Return the last paragraph of an answer, in which its evidence stands."""
    return answer.rpartition("\n\n")[2]


@cache
def functions_of(file: str) -> dict[str, bool]:
    """Return the tests of a file, and whether each of them runs at night only."""
    tree = ast.parse((ROOT / file).read_text())
    marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    all_night = any(mark.startswith("pytestmark") and "pytest.mark.nightly" in mark for mark in marks)
    return {
        node.name: all_night or "pytest.mark.nightly" in map(ast.unparse, node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_page_has_questions() -> None:
    assert len(ANSWERS) >= 15
    assert all(question.endswith("?") for question in ANSWERS)


@pytest.mark.parametrize("question", ANSWERS)
def test_every_answer_is_short_and_ends_with_what_it_rests_on(question: str) -> None:
    answer = ANSWERS[question]
    printed = small_print(answer)
    assert printed.startswith("<small>")
    assert printed.endswith("</small>")
    assert TEST.search(printed) or "<!-- source: " in printed, question
    prose = [part for part in answer.split("\n\n")[:-1] if not part.startswith(("|", "```", "<!--"))]
    assert sum(part.count("\n") + 1 for part in prose) <= 16, question


@pytest.mark.parametrize("question", ANSWERS)
def test_each_test_that_is_named_exists_and_says_if_it_runs_at_night(question: str) -> None:
    printed = small_print(ANSWERS[question])
    found = list(TEST.finditer(printed))
    assert printed.count("::") == len(found), "a test that is not named as file::function with a link"
    for match in found:
        assert match["link"] == match["file"]
        known = functions_of(match["file"])
        assert match["name"] in known, match["name"]
        assert ("at night" in (match["after"] or "")) == known[match["name"]], match["name"]


def test_figures_are_those_of_the_record() -> None:
    assert not re.search(r"^<!-- (figure|source)", TEXT, re.MULTILINE), "ends a paragraph"
    assert faq_page.filled(TEXT, results.read()) == TEXT, "make results"


@pytest.mark.parametrize("question", ANSWERS)
def test_each_figure_has_the_command_that_measured_it(question: str) -> None:
    """Figures of a benchmark that has not been run yet are filled in by `make results` once it has."""
    runs, found = results.read(), [faq_page.quoted(match) for match in faq_page.FIGURE.finditer(ANSWERS[question])]
    assert ANSWERS[question].count("<!-- figure") + ANSWERS[question].count("<!-- source") == len(found)
    sources = [asked for asked in found if asked.what == "source"]
    assert all(small_print(ANSWERS[question]).count(f"<!-- source: {asked.benchmark} ") for asked in sources)
    for asked in found:
        assert asked.benchmark in HEADINGS
        assert (asked.what == "figure") == bool(asked.form)
        known = {name for run in runs if run["benchmark"] == asked.benchmark for name in run["figures"]}
        assert set(asked.figures) <= (known or LABELS[asked.benchmark].keys()), asked
        if known:  # the source that is named is that of the figure
            run = faq_page.newest(runs, asked.benchmark, asked.figures)
            assert run is not None, asked
            same = [faq_page.newest(runs, one.benchmark, one.figures) for one in sources]
            assert run in [one for one in same if one is not None], f"no source of {asked.figures}"


def test_what_is_said_of_the_forecasts_by_kind_is_so() -> None:
    run = faq_page.newest(results.read(), "task_kinds", ["small_images_trainings"])
    assert run is not None
    of = run["figures"]
    kinds = [kind for kind in KINDS if of.get(f"{kind}_factor_10") is not None]
    told = [of[f"{kind}_told_10"] for kind in kinds]
    assert max(told) <= 0.55  # "at first nothing is shown for half of the trainings or more"
    factors = sorted(of[f"{kind}_factor_{part}"] for kind in kinds for part in (10, 20))
    assert 1.5 <= factors[len(factors) // 2] <= 2.5  # "often wrong by a factor of two"
    small = [of[f"{kind}_within"] for kind in kinds if kind.startswith("small_")]
    large = [of[f"{kind}_within"] for kind in kinds if kind.startswith("large_")]
    assert all(0.6 <= part <= 0.8 for part in small)  # "the range is honest about that"
    assert all(part > 0.8 for part in large)  # "and wider than it need be on the published curves"
    assert of["small_control_told_50"] == 0  # "for rewards no end was shown"


@pytest.mark.parametrize(
    ("question", "words", "constant", "seconds"),
    [
        ("What happens if the pool dies?", "After 15 s one that was held goes on too", POOL_TIMEOUT, 15),
        ("What happens if the pool dies?", "if they do so within 20 s", RESTART_GRACE, 20),
        ("Does it run on preemptible nodes?", "five minutes by default", SAVE_EVERY, 300),
    ],
)
def test_times_are_those_of_the_code(question: str, words: str, constant: float, seconds: float) -> None:
    assert words in " ".join(ANSWERS[question].split())
    assert constant == seconds


def test_what_others_do_has_its_source() -> None:
    """Each cell about another project links to that project's own pages, but for what "nothing" does."""
    table = TEXT.split("## Compared with\n")[1].split("\n### ")[0]
    _, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    homes = ("https://slurm.schedmd.com/", "https://docs.ray.io/", "https://docs.skypilot.co/")
    assert len(rows) >= 6
    for row in rows:
        assert len(row) == 6, row[0]
        for cell, home in zip(row[2:5], homes, strict=True):
            links = re.findall(r"\]\(([^)]+)\)", cell)
            assert links, f"{row[0]}: {cell}"
            assert all(link.startswith(home) for link in links), cell


def test_a_page_is_filled_in_from_the_largest_run_and_its_newest() -> None:
    measured = (("quick", "2026-03-01", 0.1), ("full", "2026-01-01", 0.2), ("full", "2026-02-01", 0.3))
    runs = [
        {"benchmark": "beside", "size": size, "command": f"b --{size}", "day": day, "figures": {"x": number}}
        for size, day, number in measured
    ]
    text = "a <!-- figure: beside x | {:.0%} -->?<!-- end -->, <!-- source: beside x -->?<!-- end -->."
    shown = faq_page.filled(text, runs)
    assert "-->30 %<!-- end -->" in shown
    assert "-->`b --full`, 2026-02-01<!-- end -->" in shown
    assert faq_page.filled(shown, runs) == shown
    assert faq_page.filled(shown, []).count(faq_page.MISSING) == 2
