"""Survivors of a room's tests, shown to the tests of other folders: the core is tested by all that stands on it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.mutation.mutants import ROOT
from tests.mutation.page import Survivor

COPIED = ("lightning_core", "tests", "pyproject.toml", "callbacks", "benchmarks", "examples", "docs", "README.md",
          "ARCHITECTURE.md", "Makefile")  # fmt: skip
# Test files that survivors are shown to, and seconds that they have: who takes longer has not failed.
MOST_FILES, PATIENCE = 12, 600.0
# What pytest returns if a test failed, or could not be imported.
FAILED = (1, 2)


def survive_elsewhere(
    module: str, survivors: Sequence[Survivor], tested: Iterable[str], folder: Path, marked: str
) -> Iterator[Survivor]:
    """Yield the survivors that no test of another folder fails on either.

    Args:
        module: Path of the module from the root of the repository.
        survivors: Its survivors.
        tested: Paths of the tests that have run on them.
        folder: Folder for a copy of the repository.
        marked: Expression of pytest's marks that chooses tests.
    """
    files = users_of(module, tested)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marked, *files]

    def fails(text: str) -> bool:
        (folder / module).write_text(text)
        try:
            return subprocess.run(command, cwd=folder, capture_output=True, timeout=PATIENCE).returncode in FAILED
        except subprocess.TimeoutExpired:
            return False

    source = (ROOT / module).read_text()
    texts = {one: mutated(source, one) for one in survivors}
    if files and any(texts.values()):
        copy_to(folder)
        if fails(source):
            raise SystemExit(f"{module}: tests fail without a mutant: {' '.join(files)}")
    for one, text in texts.items():
        if text is None or not files or not fails(text):
            yield one


def copy_to(folder: Path) -> None:
    """Copy what tests need of the repository: links would lead them to the module as it is."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)


def users_of(module: str, tested: Iterable[str]) -> list[str]:
    """Return the test files that import a module, then those that import from its package, but those tested already."""
    name = module.removesuffix(".py").replace("/", ".")
    package, _, last = name.rpartition(".")
    imports = re.compile(rf"(from|import) {re.escape(name)}\b|from {re.escape(package)} import .*\b{last}\b")
    exports = re.compile(rf"from {re.escape(package)} import ")
    done = [ROOT / one for one in tested]
    texts = {
        path: path.read_text()
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        if not any(path.is_relative_to(one) for one in done)
    }
    found = [path for path, text in texts.items() if imports.search(text)]
    found += [path for path, text in texts.items() if exports.search(text) and path not in found]
    return [str(path.relative_to(ROOT)) for path in found[:MOST_FILES]]


def mutated(source: str, survivor: Survivor) -> str | None:
    """Return the text of a module with one change; None where it is not one line that changes."""
    old, lines = survivor.old.strip(), source.split("\n")
    at = [number for number, line in enumerate(lines) if line.strip() == old]
    if not at:
        return None
    number = min(at, key=lambda number: abs(number + 1 - survivor.line))
    lines[number] = lines[number].replace(old, survivor.new.strip())
    return "\n".join(lines)
