"""What is promised of the package as a whole."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Who may import whom: a room those of the lines above its own. Folders are one room, and so is each file beside them.
ROOMS = (
    "durations words failpoints speedup targets",
    "variables namesake",
    "reasons",
    "types",
    "protocols curves planning dealing faults series",
    "estimators",
    "policies market placement",
    "settings table",
    "invariants forecasting granting",
    "endings alerts",
    "scheduler",
    "codec summary market_jobs downtime",
    "journal",
    "excerpt",
    "drivers",
    "callbacks view",
    "launch",
    "replications",
    "arguments",
    "simulate steering market_commands place_commands init_command",
    "pool_run",
    "autojoin cli",
    "__main__",
)


def test_rooms_import_those_below_them_alone() -> None:
    line = {room: number for number, rooms in enumerate(ROOMS) for room in rooms.split()}
    package = ROOT / "lightning_core"
    for path in package.glob("**/*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room in ("__init__", "template"):  # what `init` copies is its user's
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("lightning_core"):
                continue
            above = str(node.module).split(".")[1:2]
            for other in above or [alias.name for alias in node.names]:
                if other != room:
                    assert line[other] < line[room], f"{path}:{node.lineno}"


@pytest.mark.parametrize("name", sorted(path.stem for path in ROOT.glob("callbacks/[!_]*.py")))
def test_examples_in_the_callbacks_run(name: str) -> None:
    # Collected by path they would be `callbacks.core`, which the package refuses to be.
    assert doctest.testmod(importlib.import_module(f"lightning_core.callbacks.{name}")).failed == 0


def test_the_folder_callbacks_is_not_importable_by_itself() -> None:
    code = "import callbacks"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "import lightning_core.callbacks" in done.stderr


def test_the_core_imports_nothing_heavy() -> None:
    code = (
        "import sys, lightning_core, lightning_core.storage.journal;"
        "heavy = {'ray', 'torch', 'lightning', 'scipy', 'filterpy', 'matplotlib', 'rich', 'yaml'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd="/")
