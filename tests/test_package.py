"""Rules of the package as a whole: rooms, imports, sizes and errors."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Allowed imports: a room may import those of the lines above it, whether at the top of a module, in a function or for
# types alone. Folders are rooms, and so is each file beside them.
ROOMS = (
    "errors",
    "regular_files",
    "core name_conflict",
    "variables planning estimators",
    "policies",
    "controllers",
    "scheduler",
    "storage node",
    "history server",
    "view",
    "report",
    "agent.user_code",
    "agent.reporting",
    "agent.steering",
    "agent",
    "callbacks.reading callbacks.elastic",
    "callbacks.checkpointing",
    "callbacks integrations",
    "bundle",
    "simulation worker run",
    "cluster",
    "pool",
    "autojoin",
    "testing",
    "cli",
    "parts.assistants parts.edge_cloud parts.market parts.owners parts.search parts.web",
    "parts",
    "__main__",
)
PACKAGE = "lightning_core"


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a module. Most tests here walk all of them."""
    return ast.parse(path.read_text())


def sources() -> dict[str, Path]:
    """Every module of the library by its name, ``callbacks/`` among them."""
    found = {}
    for top, prefix in ((ROOT / "lightning_core", PACKAGE), (ROOT / "callbacks", f"{PACKAGE}.callbacks")):
        for path in top.rglob("*.py"):
            parts = path.relative_to(top).with_suffix("").parts
            # The files that `init` copies belong to the user, and the entry point is a package of its own.
            if parts[0] not in ("template", "entry_point"):
                found[".".join((prefix, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def imported(name: str, path: Path, modules: Collection[str]) -> Iterator[tuple[str, int]]:
    """Modules of the library that one imports anywhere in it, each with its line."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in modules)
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                found = f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                if found in modules and found != name:
                    yield found, node.lineno


def graph() -> dict[str, set[str]]:
    modules = sources()
    return {name: {other for other, _ in imported(name, path, modules)} for name, path in modules.items()}


def test_rooms_import_those_above_them_alone() -> None:
    line = {room: number for number, rooms in enumerate(ROOMS) for room in rooms.split()}
    modules = sources()

    def room(name: str) -> str:
        inner = name.removeprefix(PACKAGE).lstrip(".")
        if not inner:
            return ""
        longest = max((r for r in line if inner == r or inner.startswith(f"{r}.")), key=len, default=None)
        assert longest is not None, f"{name} is in no room: tests/test_package.py lists them"
        return longest

    wrong = [
        f"{path}:{number}: {room(name)} may not import {room(other)}"
        for name, path in modules.items()
        for other, number in imported(name, path, modules)
        if room(name) and room(other) and room(other) != room(name) and not line[room(other)] < line[room(name)]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_agent_knows_no_lightning() -> None:
    """Neither a module of it nor one that it stands on imports Lightning, not even in a function or for types alone."""
    modules, arrows = sources(), graph()
    closure, waiting = set[str](), [name for name in modules if name.startswith(f"{PACKAGE}.agent")]
    while waiting:
        name = waiting.pop()
        if name not in closure:
            closure.add(name)
            waiting += arrows[name]
    packages = {"lightning", "pytorch_lightning", "lightning_fabric"}
    wrong = []
    for name in closure:
        for node in ast.walk(parsed(modules[name])):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{modules[name]}:{one}" for one in names if one.partition(".")[0] in packages]
    assert not wrong, "\n".join(wrong)


def test_the_wheel_has_every_package() -> None:
    """Packages are listed one by one; a package that is not listed would be missing from the wheel without an error."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {name for name, path in sources().items() if path.name == "__init__.py"}
    data = {
        f"{PACKAGE}.{name}"
        for name in (
            "recorded",
            "template",
            "template.curves",
            "template.part",
            "template.part.tests",
            "parts.market.data",
            "parts.web.monitoring",
            "parts.web.static",
        )
    }
    assert set(listed) == folders | data | {"lightning_core_entry_point"}


def test_no_import_cycles() -> None:
    assert list(TopologicalSorter(graph()).static_order())


def test_the_parts_of_a_room_have_no_import_cycles() -> None:
    """A folder counts as one part: nothing in it is imported by what it imports. Imports for types alone count too."""
    modules, arrows = sources(), graph()
    for room in (name for name, path in modules.items() if path.name == "__init__.py"):
        parts: dict[str, set[str]] = {}
        for name, others in arrows.items():
            for other in others:
                one, another = (of.removeprefix(f"{room}.").split(".")[0] for of in (name, other))
                if name.startswith(f"{room}.") and other.startswith(f"{room}.") and one != another:
                    parts.setdefault(one, set()).add(another)
        assert list(TopologicalSorter(parts).static_order()) or not parts, room


def benchmarks() -> dict[str, Path]:
    """Every module of the benchmarks by its name."""
    found = {}
    for path in (ROOT / "benchmarks").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_benchmarks_have_no_import_cycles() -> None:
    """Neither their modules nor their parts."""
    modules = benchmarks()
    inner = {name: {other for other, _ in imported(name, path, modules)} for name, path in modules.items()}
    assert list(TopologicalSorter(inner).static_order())
    # `common` and `results` stand beside the parts.
    part = {name: ".".join(name.split(".")[:2]) for name in modules}
    parts: dict[str, set[str]] = {part[name]: set() for name in modules}
    for name, others in inner.items():
        parts[part[name]] |= {part[other] for other in others} - {part[name]}
    assert list(TopologicalSorter(parts).static_order())


def test_no_two_benchmarks_share_a_name() -> None:
    """Results and headings know a benchmark by the last part of its name."""
    count = Counter(name.rpartition(".")[2] for name in benchmarks())
    assert [name for name, number in count.items() if number > 1] == []


def test_no_two_modules_share_a_name() -> None:
    """Nor do two folders: a name says what is in one wherever it is imported.

    The room ``market`` is on its way into the part of this name.
    """
    for of_folders in (True, False):
        modules: dict[str, list[str]] = {}
        for name, path in sources().items():
            if (path.name == "__init__.py") is of_folders:
                modules.setdefault(name.rpartition(".")[2], []).append(name)
        modules.pop("market", None)
        assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def test_no_two_classes_share_a_name() -> None:
    """A name says what a class is wherever it is read: a leading underscore does not tell two apart."""
    classes: dict[str, list[str]] = {}
    for name, path in sources().items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name.lstrip("_"), []).append(f"{name}:{node.lineno}")
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


# Where the wall clock is read: dates that users give and see, ends that Slurm and Ray give as dates, ages
# of files, how long no scheduler ran, and deadlines of searches, whose trials Optuna and Tune date. All else is
# measured on the monotonic clock, which cannot be set.
WALL_CLOCK = {
    "lightning_core/agent/job_record.py",
    "lightning_core/agent/options.py",
    "lightning_core/agent/participant.py",
    "lightning_core/bundle/job_section.py",
    "lightning_core/cli/history_commands.py",
    "lightning_core/cli/job_commands.py",
    "lightning_core/cli/run_in_pool.py",
    "lightning_core/cli/simulate.py",
    "lightning_core/cluster/bundle_runner.py",
    "lightning_core/cluster/head.py",
    "lightning_core/parts/market/cloud/provisioner.py",
    "lightning_core/parts/owners/token_commands.py",
    "lightning_core/parts/owners/tokens.py",
    "lightning_core/parts/search/lightning_search.py",
    "lightning_core/parts/search/optuna.py",
    "lightning_core/parts/search/pool_search.py",
    "lightning_core/parts/search/search_commands.py",
    "lightning_core/parts/search/tune.py",
    "lightning_core/parts/web/pool_watch.py",
    "lightning_core/pool/http_client.py",
    "lightning_core/pool/pool.py",
    "lightning_core/run/ageing.py",
    "lightning_core/run/run_folder.py",
    "lightning_core/server/clocks.py",
    "lightning_core/server/webhook.py",
    "lightning_core/storage/journals/anchor.py",
    "lightning_core/storage/journals/recovery.py",
    "lightning_core/storage/runs/pool_history.py",
    "lightning_core/storage/runs/run_store.py",
}  # fmt: skip


@pytest.mark.promise("R18")
def test_the_clock_on_the_wall_is_read_for_dates_only() -> None:
    calls = {"time.time", "datetime.now", "datetime.utcnow", "datetime.today"}
    found = {
        str(path.relative_to(ROOT))
        for path in sources().values()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in calls
    }
    assert found == WALL_CLOCK


# Control flow rather than errors: by the first three a launched job leaves Trainer.fit on purpose, which no built-in
# error fits; the last is a KeyboardInterrupt, so that `except Exception` does not swallow it.
SIGNALS = {"JobEnded", "JobFenced", "JobReleased", "ScriptEnded", "ScriptReleased", "SignalReceivedError"}


def test_every_error_has_one_root_and_a_built_in_that_fits() -> None:
    bases: dict[str, list[str]] = {}
    for path in sources().values():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    def ancestors(name: str) -> set[str]:
        return {name}.union(*(ancestors(base) for base in bases.get(name, [])))

    def is_built_in_error(name: str) -> bool:
        kind = getattr(builtins, name, None)
        return isinstance(kind, type) and issubclass(kind, BaseException)

    errors = {name for name in bases if any(map(is_built_in_error, ancestors(name)))}
    wrong = {
        name
        for name in errors - {"LightningCoreError"}
        if not name.endswith("Error")
        or "LightningCoreError" not in ancestors(name)
        or not any(is_built_in_error(base) for base in ancestors(name) - {"Exception"})
    }
    assert wrong == SIGNALS


@pytest.mark.parametrize("name", sorted(name for name in sources() if name.startswith(f"{PACKAGE}.callbacks.")))
def test_examples_in_the_callbacks_run(name: str) -> None:
    # Collected by path they would be `callbacks.core`, which the package refuses to be.
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_folder_callbacks_is_not_importable_by_itself() -> None:
    code = "import callbacks"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "import lightning_core.callbacks" in done.stderr


def test_the_core_imports_nothing_heavy() -> None:
    code = (
        "import sys, lightning_core, lightning_core.storage.journals.journal;"
        "heavy = {'ray', 'torch', 'lightning', 'scipy', 'filterpy', 'matplotlib', 'rich', 'yaml'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, cwd="/")
