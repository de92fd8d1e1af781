"""A test of a promise without the guard that it is about."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# Copied because they are imported or changed; the other folders are only read.
COPIED = ("lightning_core", "tests", "examples")
LOOKED_AT = ("benchmarks", "docs", "callbacks", "README.md", "ARCHITECTURE.md", "SECURITY.md", "Makefile",
             "pyproject.toml", "constraints.txt", "requirements.lock", "CHANGELOG.md", "LICENSE")  # fmt: skip
PATIENCE = 300.0


class Mutant(NamedTuple):
    """A guard, and a test that must fail without it."""

    row: str
    file: str
    guard: str
    """Text that stands once in the file."""
    gone: str
    """Code in its place."""
    test: str
    more: str = ""
    """Parameters of the test that show it (pytest's ``-k``)."""


def is_there(mutant: Mutant) -> str:
    """Return what is wrong with an entry of the list; empty if nothing is."""
    found = (ROOT / mutant.file).read_text().count(mutant.guard)
    if found != 1:
        return f"{mutant.row}: the guard stands {found} times in {mutant.file}, expected once: {mutant.guard!r}"
    path, _, test = mutant.test.partition("::")
    if not (ROOT / path).exists() or f"def {test}(" not in (ROOT / path).read_text():
        return f"{mutant.row}: no test {mutant.test}"
    return ""


def without_guard(mutant: Mutant, folder: Path) -> tuple[int, str]:
    """Run a mutant's test on a copy of the package without the guard; return exit code and output."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    # As it is installed.
    shutil.copytree(ROOT / "callbacks", folder / "lightning_core" / "callbacks")
    for name in LOOKED_AT:
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    file = folder / mutant.file.replace("callbacks/", "lightning_core/callbacks/")
    file.write_text(file.read_text().replace(mutant.guard, mutant.gone))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", mutant.test]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command += ["-k", mutant.more] if mutant.more else []
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        try:
            said, _ = running.communicate(timeout=PATIENCE)
        finally:
            with suppress(ProcessLookupError):  # nothing that the test has started outlives it
                os.killpg(running.pid, signal.SIGKILL)
    return running.returncode, said
