"""Look up figures in the record of all benchmarks, of the largest and newest run that has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.labels import SIZES

Run = Mapping[str, Any]


class MissingFigureError(LookupError):
    """No run of a benchmark has a figure."""


class Record:
    """The figures of ``docs/results.json``.

    Args:
        runs: All runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def run(self, benchmark: str, figure: str) -> Run:
        """Return the run that is quoted for a figure: on published curves rather than others, then the largest.

        Raises:
            MissingFigureError: If there is none.
        """
        known = [run for run in self._runs if run["benchmark"] == benchmark and run["figures"].get(figure) is not None]
        if not known:
            raise MissingFigureError(f"docs/results.json has no figure {figure} of {benchmark}")
        return max(known, key=lambda run: ("--curves" in run["command"], SIZES.index(run["size"]), run["day"]))

    def __call__(self, benchmark: str, figure: str) -> float:
        """Return a number.

        Raises:
            MissingFigureError: If it was not measured.
        """
        return float(self.run(benchmark, figure)["figures"][figure])

    def numbers(self, benchmark: str, figure: str) -> list[float]:
        """Return the numbers of a figure that is recorded as text, in order.

        Raises:
            MissingFigureError: If it was not measured.
        """
        return [
            float(number) for number in re.findall(r"\d+(?:\.\d+)?", self.run(benchmark, figure)["figures"][figure])
        ]

    def known(self, benchmark: str, figures: Sequence[str]) -> bool:
        """Return whether all figures were measured."""
        try:
            return all(self.run(benchmark, figure) for figure in figures)
        except MissingFigureError:
            return False
