"""Strict YAML, and errors that name the place: what a person writes by hand is checked before anything starts."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


class BundleError(ValueError):
    """What is wrong with a bundle: every problem found, one a line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that does not let the last of two equal keys win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, str | int | float | bool | None) and key in seen:
                place = f"{key_node.start_mark.name}:{line}:{key_node.start_mark.column + 1}"
                raise BundleError([f"{place}: duplicate key {key!r} (first on line {seen[key]})"])
            seen[key] = line
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        BundleError: if it cannot be read or parsed, is empty, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BundleError([f"{path}: not found"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError([f"{path}: cannot be read: {error}"]) from None
    loader = _StrictLoader(text)
    loader.name = str(path)
    try:
        content = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise BundleError([f"{place}: {error.problem}"]) from None
    finally:
        loader.dispose()
    if content is None:
        raise BundleError([f"{path}: file is empty"])
    return content


def unknown_keys(value: Mapping[Any, Any], known: Iterable[str], where: str) -> list[str]:
    """A problem for each key that is not known."""
    known = list(known)
    return [f"{where}: unknown key {key!r}{did_you_mean(key, known)}" for key in value if key not in known]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'deadline'?`` if a known word is close, else what is known."""
    known = sorted(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"


def class_path_problems(value: Any, where: str) -> list[str]:
    """A problem for each ``class_path`` anywhere in a configuration that does not lead to a class."""
    problems = []
    if isinstance(value, Mapping):
        if "class_path" in value and (problem := _import_problem(value["class_path"])):
            problems.append(f"{where}.class_path: {problem}")
        for key, inner in value.items():
            problems += class_path_problems(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            problems += class_path_problems(inner, f"{where}[{index}]")
    return problems


def _import_problem(path: Any) -> str | None:
    if not isinstance(path, str) or not path:
        return f"must be the dotted path of a class, got {path!r}"
    if "." not in path:
        return None  # a short name, which the configuration's own parser looks up among the classes it knows
    module_name, _, class_name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module raises while it is imported is the person's to read
        return f"{path!r} does not import: {type(error).__name__}: {error}"
    found = getattr(module, class_name, None)
    if found is None:
        classes = [name for name, member in vars(module).items() if isinstance(member, type)]
        return f"module {module_name!r} has no {class_name!r}{did_you_mean(class_name, classes)}"
    return None if callable(found) else f"{path!r} is not a class"
