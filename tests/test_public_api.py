"""The names that users import from ``lightning_core``: there, typed, and imported only when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lightning_core
from tests.conftest import ROOT

NAMES = sorted(set(lightning_core.__all__) - {"__version__"})
HEAVY = ("ray", "torch", "lightning")
# What a client of a pool needs nothing of, and how much of the library it loads at most.
NOT_A_CLIENTS = ("parts", "controllers", "planning", "policies", "estimators", "scheduler.tables")
CLIENT_MODULES, CLIENT_LINES = 72, 10_800
# The same of a scheduler with the default policy, estimator and no controllers.
SCHEDULER_MODULES, SCHEDULER_LINES = 112, 20_300


def loaded(code: str) -> set[str]:
    """Return the modules that a fresh process has loaded after some code."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return set(told.stdout.split())


def test_the_public_names_exist() -> None:
    targets = ["BatchTarget", "EpochTarget", "LossTarget"]
    jobs = ["Bundle", "CoreCallback", "Job", "JobHandle", "Pool", "Settings", "Training", "Verdict"]
    assert set(NAMES) == {*jobs, "LightningCoreError", "Part", "register", "track", *targets}
    assert set(NAMES) <= set(dir(lightning_core))
    assert all(getattr(lightning_core, name).__name__ == name for name in NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lightning_core' has no attribute 'Bundel'"):
        lightning_core.Bundel  # type: ignore[attr-defined]  # noqa: B018


def test_the_package_alone_imports_nothing_heavy() -> None:
    modules = loaded("import lightning_core; dir(lightning_core)")
    assert not modules & {"numpy", *HEAVY}
    assert {name for name in modules if name.startswith("lightning_core.")} == set()


def closure(code: str) -> tuple[set[str], int]:
    """Return the modules of the library that some code loads, and their lines."""
    own = {name for name in loaded(code) if name.partition(".")[0] == "lightning_core"}
    origins = (find_spec(name).origin for name in own)  # type: ignore[union-attr]
    return own, sum(len(Path(origin).read_text().splitlines()) for origin in origins if origin)


def test_a_client_of_a_pool_loads_little() -> None:
    modules, lines = closure("from lightning_core import Pool")
    assert (len(modules) <= CLIENT_MODULES, lines <= CLIENT_LINES) == (True, True), (len(modules), lines)
    assert not {name for name in modules if name.removeprefix("lightning_core.").startswith(NOT_A_CLIENTS)}


def test_a_scheduler_loads_no_part_and_little_else() -> None:
    modules, lines = closure("from lightning_core.scheduler.scheduler import Scheduler; Scheduler()")
    rooms = {name.split(".")[1] for name in modules if name.startswith("lightning_core.")}
    assert rooms.isdisjoint({"cluster", "parts", "callbacks", "agent", "server", "cli"})
    assert (len(modules) <= SCHEDULER_MODULES, lines <= SCHEDULER_LINES) == (True, True), (len(modules), lines)


def test_no_name_imports_ray_torch_or_lightning() -> None:
    """All in one process: what one alone imports, it imports among the others, too."""
    names = sorted({*NAMES} - {"CoreCallback"})
    assert not loaded(f"from lightning_core import {', '.join(names)}") & set(HEAVY)


def test_type_checkers_see_the_same_modules() -> None:
    tree = ast.parse(Path(lightning_core.__file__).read_text())
    told = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name: told[name] for name in NAMES} == lightning_core._MODULES
