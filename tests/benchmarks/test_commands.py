"""How benchmarks are run: by a short name, with their figures in a file or on the screen."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.common import Figures, Size, command_line, main
from benchmarks.results import ROOT


def test_a_benchmark_runs_by_its_name_alone() -> None:
    """Each module that runs as a program is found without its folder, and is the same file."""
    files = (ROOT / "benchmarks").rglob("*.py")
    programs = [path for path in files if re.search('^if __name__ == "__main__"', path.read_text(), re.M)]
    assert len(programs) > 25
    for path in programs:
        module = path.parent if path.name == "__main__.py" else path.with_suffix("")
        spec = find_spec(f"benchmarks.{module.name}")
        assert spec is not None
        assert spec.origin == str(path if path.name != "__main__.py" else path.parent / "__init__.py")


def measure(size: Size) -> Figures:
    print("a table")
    return {"answer": 42.0, "not_measured": None}


def test_figures_without_a_file_are_all_of_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = {"figures": {"answer": 42.0, "not_measured": None}}
    monkeypatch.setattr(sys, "argv", ["late", "--quick", "--json"])
    main("market.late", "", measure)
    said = capsys.readouterr()
    assert (json.loads(said.out), said.err) == (figures, "a table\n")
    monkeypatch.setattr(sys, "argv", ["late", "--json", str(tmp_path / "file")])
    main("market.late", "", measure)
    assert (json.loads((tmp_path / "file").read_text()), capsys.readouterr().out) == (figures, "a table\n")


def test_a_recorded_command_has_no_output_and_no_folder_of_this_machine() -> None:
    words = ["--json", "--quick", "--traces", "/data", "--json", "/out", "--seed", "1", "--results=/there", "--data=/d"]
    assert command_line("late", words) == "python -m benchmarks.late --quick --traces DIR --seed 1 --data DIR"
