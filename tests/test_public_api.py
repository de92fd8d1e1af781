"""The names that users import from ``lightning_core``: there, typed, and imported only when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_core
from tests.conftest import ROOT

NAMES = sorted(set(lightning_core.__all__) - {"__version__"})
HEAVY = ("ray", "torch", "lightning")


def loaded(code: str) -> set[str]:
    """Return the modules that a fresh process has loaded after some code."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return set(told.stdout.split())


def test_the_public_names_exist() -> None:
    targets = ["BatchTarget", "EpochTarget", "LossTarget"]
    assert set(NAMES) == {"Bundle", "Job", "LightningCoreError", "Pool", "Verdict", *targets}
    assert set(NAMES) <= set(dir(lightning_core))
    assert all(getattr(lightning_core, name).__name__ == name for name in NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lightning_core' has no attribute 'Bundel'"):
        lightning_core.Bundel  # type: ignore[attr-defined]  # noqa: B018


def test_the_package_alone_imports_nothing_heavy() -> None:
    modules = loaded("import lightning_core; dir(lightning_core)")
    assert not modules & {"numpy", *HEAVY}
    assert {name for name in modules if name.startswith("lightning_core.")} == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_imports_neither_ray_nor_torch_nor_lightning(name: str) -> None:
    assert not loaded(f"from lightning_core import {name}") & set(HEAVY)


def test_type_checkers_see_the_same_modules() -> None:
    tree = ast.parse(Path(lightning_core.__file__).read_text())
    told = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert {name: told[name] for name in NAMES} == lightning_core._MODULES
