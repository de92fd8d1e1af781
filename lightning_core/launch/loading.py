"""Strict YAML: what a person did not mean is not read in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lightning_core.launch.problems import BundleError, Findings, Source

_MERGE = "tag:yaml.org,2002:merge"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without silent surprises: of two equal keys the last one wins, 12:30 is 750, 010 is 8."""

    path: Path
    problems: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool | None) and key in seen:
                self._complain(key_node, f"duplicate key {key!r} (first on line {seen[key]})")
            else:
                seen[key if isinstance(key, str | int | float | bool | None) else id(key)] = (
                    key_node.start_mark.line + 1
                )
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = node.value
        octal = node.tag == _INT and re.fullmatch(r"[-+]?0[0-7_]+", text)
        number: int | float = self.construct_yaml_int(node) if node.tag == _INT else self.construct_yaml_float(node)
        if ":" in text:
            self._complain(node, f"YAML reads {text} as {number} (base 60); quote it, or write 12h30m for a duration")
        elif octal:
            self._complain(node, f"YAML reads {text} as {number} (base 8); remove the leading 0, or quote it")
        return number

    def _complain(self, node: yaml.Node, words: str) -> None:
        mark = node.start_mark
        self.problems.append(Source(f"{self.path}:{mark.line + 1}:{mark.column + 1}").problem(words))


_StrictLoader.add_constructor(_INT, _StrictLoader.construct_number)
_StrictLoader.add_constructor(_FLOAT, _StrictLoader.construct_number)


def load_yaml(path: Path, empty: str = "file is empty") -> tuple[Any, Findings]:
    """The content of a YAML file, and what is wrong with it so far.

    Args:
        path: of the file.
        empty: what to say of an empty file.

    Raises:
        BundleError: if it cannot be read or parsed, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BundleError([f"{path}: not found"]) from None
    except UnicodeDecodeError as error:
        raise BundleError([f"{path}: cannot be read: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise BundleError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    problems: list[str] = []
    try:
        loader = _StrictLoader(text)
        loader.path, loader.problems = path, problems
        try:
            root = loader.get_single_node()
            content = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise BundleError([Source(place).problem(error.problem or str(error))]) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise BundleError([Source(str(path)).problem(str(error))]) from None
    except RecursionError:
        raise BundleError([f"{path}: nested too deeply"]) from None
    if content is None:
        raise BundleError([f"{path}: {empty}", *problems])
    return content, Findings(Source(str(path), root), problems)
