"""Figures within the text of ``docs/faq.md``, which ``make results`` fills in from the record.

A figure stands between two comments. The first names the benchmark, the figures and their format:
``<!-- figure: overhead paid_us | {:.0f} µs -->38 µs<!-- end -->``. ``<!-- source: overhead paid_us -->`` is followed by
the command and the day of the same run, and the table of forecasts by kind of training stands between
``<!-- kinds: begin -->`` and ``<!-- kinds: end -->``. A comment within a paragraph may not begin a line: it would end
the paragraph there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.labels import KINDS, SIZES

FIGURE = re.compile(r"<!-- (?P<what>figure|source): (?P<of>[^|>]*?)(?: \| (?P<form>[^>]*?))? -->[^<]*<!-- end -->")
BEGIN, END = "<!-- kinds: begin -->", "<!-- kinds: end -->"
# What stands where a benchmark has not been run yet.
MISSING = "not measured yet"
Run = dict[str, Any]


class Quoted(NamedTuple):
    """What a comment asks for.

    Attributes:
        what: ``figure`` or ``source``.
        benchmark: Name of the benchmark.
        figures: Names of figures of one run.
        form: Format of their numbers; empty for a source.
    """

    what: str
    benchmark: str
    figures: tuple[str, ...]
    form: str


def quoted(match: re.Match[str]) -> Quoted:
    """Return what a comment asks for.

    Example::

        >>> quoted(FIGURE.match("<!-- figure: late ours_52, up_52 | {:.2f}; {:.2f} -->0.78; 0.82<!-- end -->"))
        Quoted(what='figure', benchmark='late', figures=('ours_52', 'up_52'), form='{:.2f}; {:.2f}')
    """
    benchmark, _, names = match["of"].partition(" ")
    return Quoted(match["what"], benchmark, tuple(name.strip() for name in names.split(",")), match["form"] or "")


def newest(runs: Sequence[Run], benchmark: str, figures: Sequence[str]) -> Run | None:
    """Return the newest of the largest runs that have some figures; None if there is none.

    Runs with earlier runs of each job's task are left out, as in the README: they are of fewer recordings.
    """
    known = [run for run in runs if run["benchmark"] == benchmark and "--history" not in run["command"]
             and all(isinstance(run["figures"].get(name), float | int) for name in figures)]  # fmt: skip
    return max(known, key=lambda run: (SIZES.index(run["size"]), run["day"]), default=None)


def filled(text: str, runs: Sequence[Run]) -> str:
    """Return a page with its figures brought up to date."""

    def value(match: re.Match[str]) -> str:
        asked = quoted(match)
        run = newest(runs, asked.benchmark, asked.figures)
        if run is None:
            shown = MISSING if asked.what == "figure" else f"`python -m benchmarks.{asked.benchmark}`, {MISSING}"
        elif asked.what == "source":
            shown = f"`{run['command']}`, {run['day']}"
        else:
            shown = spaced(asked.form.format(*(run["figures"][name] for name in asked.figures)))
        return match[0].partition("-->")[0] + f"-->{shown}<!-- end -->"

    text = FIGURE.sub(value, text)
    before, begin, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{kinds(runs)}\n{END}{after}" if begin else text


def spaced(text: str) -> str:
    """Return a text with a space before each percent sign, as the pages are written.

    Example::

        >>> spaced(f"{0.017:.1%}; 2 %")
        '1.7 %; 2 %'
    """
    return re.sub(r"(?<=\d)%", " %", text)


def kinds(runs: Sequence[Run]) -> str:
    """Return the table of forecasts by kind of training."""
    lines = [
        "| trainings | number | end shown at 10; 20; 50 % of the way | times too long or too short | truth within |",
        "|---|---|---|---|---|",
    ]
    for kind, name in KINDS.items():
        if (run := newest(runs, "task_kinds", [f"{kind}_trainings"])) is None:
            continue
        of = {what.removeprefix(f"{kind}_"): number for what, number in run["figures"].items() if what.startswith(kind)}
        told = spaced("; ".join(f"{of[f'told_{part}']:.0%}" for part in (10, 20, 50)))
        factors = [of.get(f"factor_{part}") for part in (10, 20, 50)]
        shown = "; ".join("-" if factor is None else f"{factor:.1f}" for factor in factors)
        within = "-" if of.get("within") is None else spaced(f"{of['within']:.0%}")
        lines.append(f"| {name} | {of['trainings']:.0f} | {told} | {shown} | {within} |")
    return "\n".join(lines)
