"""Checks of Python and of the installed packages, of which none is imported: that would take seconds."""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.name_conflict import describe_namesake
from lightning_core.node.checks.findings import Finding, error, note, ok, warning
from lightning_core.regular_files import read_text

PROJECT = "lightning-core-learning"
# Newest Python that the project is tested with.
NEWEST_PYTHON = (3, 13)
INSTALL = "run pip install -c constraints.txt '.[launch,view]' in the clone"
# Extras without which no pool can be brought up, empty for none; and packages that are shown where all is well.
NEEDED_EXTRAS = ("", "lightning", "ray")
SHOWN = ("torch", "lightning", "ray")
# Releases that must not run, whatever else is installed.
KNOWN_BAD = {("lightning", "2.6.2"): "was a malicious upload", ("lightning", "2.6.3"): "was a malicious upload"}
MAX_VERSION_FILE_BYTES = 2**16
COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "!=": operator.ne,
               "==": operator.eq}  # fmt: skip
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[^\]]*\])?\s*(?P<versions>[^;]*?)\s*(;.*extra == [\"'](?P<extra>[^\"']+)[\"'])?"
)


class TorchBuild(NamedTuple):
    """For what torch was built."""

    version: str
    cuda: str
    """Version of CUDA, such as ``12.8``; empty for none."""
    hip: str = ""
    """Version of ROCm; empty for none."""


@cache
def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """Return what the installed project requires; empty if it was not installed."""
    try:
        return requires(PROJECT) or []
    except PackageNotFoundError:
        return []


def python_wanted() -> str:
    """Return the versions of Python that the installed project accepts; empty if it was not installed."""
    try:
        return metadata(PROJECT)["Requires-Python"] or ""
    except (PackageNotFoundError, KeyError):
        return ""


def check_python(found: Sequence[int], wanted: str) -> Finding:
    """Check the version of Python.

    Args:
        found: Major, minor and micro version.
        wanted: Accepted versions, such as ``>=3.11``; empty if unknown.
    """
    text, newest = (".".join(map(str, numbers)) for numbers in (found, NEWEST_PYTHON))
    if failed(wanted, text):
        return error("python", f"Python {text}, and the project needs {wanted}", f"use Python {newest}")
    if tuple(found[:2]) > NEWEST_PYTHON:
        words = f"Python {text}, which is newer than what the project is tested with"
        return note("python", words, f"nothing, or use Python {newest} if a package cannot be installed")
    return ok("python", f"Python {text}, {sys.executable}")


def check_packages(required: Iterable[str], installed: Callable[[str], str | None] = version_of) -> Finding:
    """Check that what a pool needs is installed, in versions that the project accepts.

    Args:
        required: Requirements of the project, in the form of PEP 508.
        installed: Function of the name of a package that returns its version, None if it is not installed.
    """
    missing, wrong, newer = list[str](), list[str](), list[str]()
    for one in required:
        if (read := _REQUIREMENT.fullmatch(one)) is None or (read["extra"] or "") not in NEEDED_EXTRAS:
            continue
        name, wanted = read["name"], read["versions"]
        if (found := installed(name)) is None:
            missing.append(name)
        elif (name, found) not in KNOWN_BAD and (broken := failed(wanted, found)):
            where = newer if all(rule.startswith("<") for rule in broken) else wrong
            where.append(f"{name} {found} is installed, and the project needs {wanted}")
    if missing:
        wrong.insert(0, f"not installed, and needed for pools and `run`: {', '.join(missing)}")
    if wrong:
        return error("packages", "; ".join([*wrong, *newer]), INSTALL)
    if newer:
        return warning("packages", f"newer than what is tested: {'; '.join(newer)}", INSTALL)
    versions = ((name, installed(name)) for name in SHOWN)
    return ok("packages", ", ".join(f"{name} {found}" for name, found in versions if found))


def failed(wanted: str, found: str) -> list[str]:
    """Return the rules that a version breaks; none if versions cannot be compared here.

    Args:
        wanted: Rules with commas between them, each a comparison with a version.
        found: The version.

    Example::

        >>> failed("!=2.6.2,<2.7,>=2.5", "2.4.1"), failed("!=2.6.2,<2.7,>=2.5", "2.6.6+cu128")
        (['>=2.5'], [])
    """
    try:
        from packaging.version import InvalidVersion, Version
    except ModuleNotFoundError:  # Ray and Lightning bring it along
        return []
    rules = re.findall(r"([<>!=]=?)\s*([^,\s]+)", wanted)
    try:
        return [f"{sign}{than}" for sign, than in rules if not COMPARISONS[sign](Version(found), Version(than))]
    except InvalidVersion:
        return []


def check_known_bad(installed: Callable[[str], str | None] = version_of) -> Finding | None:
    """Check that no release is installed that must not run; None if there is none."""
    for name in {name for name, _ in KNOWN_BAD}:
        found = installed(name)
        if found is not None and (why := KNOWN_BAD.get((name, found))):
            return error(
                "known-bad",
                f"{name} {found} {why}",
                f"import nothing of this environment; pip uninstall {name}; make a new environment, and change every "
                "password and token that this account could read",
            )
    return None


def check_namesake(words: str | None = None) -> Finding | None:
    """Check that the other project of this name is not installed too; None if it is not.

    Args:
        words: What :func:`~lightning_core.name_conflict.describe_namesake` says; None to ask it.
    """
    if words is None and (words := describe_namesake()) is None:
        return None
    found, _, remedy = words.rpartition("; ")
    return warning("namesake", found, remedy)


def torch_build(folder: Path | None = None) -> TorchBuild | None:
    """Return for what the installed torch was built, by its file ``version.py``; None if there is none.

    Args:
        folder: Folder of the package; None for that of the installed one.
    """
    if folder is None:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
    try:
        tree = ast.parse(read_text(folder / "version.py", MAX_VERSION_FILE_BYTES))
    except (OSError, ValueError, SyntaxError):
        return None
    named: dict[str, Any] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            named |= {target.id: line.value.value for target in targets if isinstance(target, ast.Name)}
    return TorchBuild(*(str(named[key]) if named.get(key) else "" for key in ("__version__", "cuda", "hip")))
