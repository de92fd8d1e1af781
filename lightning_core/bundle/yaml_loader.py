"""Strict YAML: what a person did not mean is not read in silence, and no file costs more than it is worth.

Rules

1. Every YAML file comes in by :func:`load_yaml`: bundles, and the configs that they name. A worker parses what was read
   here, as JSON, and text in it is not read as YAML again
   (:func:`lightning_core.bundle.lightning_config.read_scalar`).
2. Every problem names file, line and column, and all are told at once. What makes reading on pointless or costly
   (broken syntax, too deep, too much) ends it there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lightning_core.bundle.problems import BundleError, Position, Problems

LARGEST = 2**20
DEEPEST = 50
MAX_ALIASES = 100
# Keys and values, with what aliases stand for: a few hundred bytes of aliases of aliases stand for billions.
MAX_VALUES = 20_000

_MERGE = "tag:yaml.org,2002:merge"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_DATE, _TEXT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:str"


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without silent surprises: of two equal keys the last one wins, 12:30 is 750, 010 is 8.

    Args:
        text: of the file.
        path: of the file.
        problems: takes what is wrong.
    """

    def __init__(self, text: str, path: Path, problems: list[str]) -> None:
        self._path, self._problems = path, problems
        self._depth = self._aliases = 0
        self.nodes = 0
        self._sizes: dict[str, int] = {}
        super().__init__(text)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node with all that is in it; refused as soon as a limit is passed."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > MAX_ALIASES:
                raise _refused(f"too many aliases (limit {MAX_ALIASES})", event)
            if anchor in self.anchors and anchor not in self._sizes:
                raise _refused(f"alias *{anchor} is a part of what it stands for", event)
            self._count(self._sizes.get(anchor, 0), event)
            return super().compose_node(parent, index)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._complain(event.start_mark, f"YAML tags are not allowed, got {tag}")
            event.tag = None  # read on as if it were not there: there may be more to tell
            if isinstance(event, yaml.ScalarEvent):
                event.implicit = (event.style is None, event.style is not None)
        before = self.nodes
        self._count(1, event)
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"nested too deeply (limit {DEEPEST})", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes[anchor] = self.nodes - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool | None) and key in seen:
                self._complain(key_node.start_mark, f"duplicate key {key!r} (first on line {seen[key]})")
            else:
                seen[key if isinstance(key, str | int | float | bool | None) else id(key)] = (
                    key_node.start_mark.line + 1
                )
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float | str:
        """What only looks like one is told, and stays text."""
        text = node.value
        value: int | float
        try:
            value = self.construct_yaml_int(node) if node.tag == _INT else self.construct_yaml_float(node)
        except ValueError as error:  # 0x_, or a number of thousands of digits
            self._complain(node.start_mark, f"cannot be read ({error}); quote it if it is text, got {text!r}")
            return str(text)
        if ":" in text:
            words = f'YAML reads {text} as {value} (base 60); quote it, "{text}", or write a duration such as 1h30m'
            self._complain(node.start_mark, words)
        elif node.tag == _INT and re.fullmatch(r"[-+]?0[0-7_]+", text):
            self._complain(node.start_mark, f"YAML reads {text} as {value} (base 8); remove the leading 0, or quote it")
        return value

    def _count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > MAX_VALUES:
            raise _refused(f"too many values (limit {MAX_VALUES:,}, aliases counted as what they stand for)", event)

    def _complain(self, mark: yaml.Mark, words: str) -> None:
        self._problems.append(Position(f"{self._path}:{mark.line + 1}:{mark.column + 1}").problem(words))


_StrictLoader.add_constructor(_INT, _StrictLoader.construct_number)
_StrictLoader.add_constructor(_FLOAT, _StrictLoader.construct_number)
# A config travels as JSON, and LightningCLI has dates as text, too.
_StrictLoader.add_constructor(_DATE, _StrictLoader.yaml_constructors[_TEXT])


def _refused(words: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=words, problem_mark=event.start_mark)


def load_yaml(path: Path, empty: str = "file is empty") -> tuple[Any, Problems]:
    """The content of a YAML file, and what is wrong with it so far.

    Args:
        path: of the file.
        empty: what to say of an empty file.

    Raises:
        BundleError: if it cannot be read or parsed, is empty, or passes a limit.
    """
    text = _text(path)
    problems: list[str] = []
    try:
        loader = _StrictLoader(text, path, problems)
        try:
            root = loader.get_single_node()
            content = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise BundleError([*problems, Position(place).problem(error.problem or str(error))]) from None
    except yaml.reader.ReaderError as error:  # a character that YAML does not allow
        line, column = text.count("\n", 0, error.position), error.position - text.rfind("\n", 0, error.position)
        words = f"{error.reason}, got {chr(error.character)!r}"
        raise BundleError([Position(f"{path}:{line + 1}:{column}").problem(words)]) from None
    if content is None:
        raise BundleError([f"{path}: {empty}", *problems])
    return content, Problems(Position(str(path), root), problems)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)  # a device or a pipe has no size to be asked for
        if len(data) > LARGEST:
            raise BundleError([f"{path}: larger than {LARGEST:,} bytes"])
        return data.decode("utf-8")
    except FileNotFoundError:
        raise BundleError([f"{path}: not found"]) from None
    except UnicodeDecodeError as error:
        raise BundleError([f"{path}: cannot be read: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise BundleError([f"{path}: cannot be read: {error.strerror or error}"]) from None
