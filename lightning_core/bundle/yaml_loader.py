"""Strict YAML: surprising values are refused, and the size of a file is limited.

Rules

1. Every YAML file is read by :func:`load_yaml`: bundles, and the configs that they name. A worker gets what was read
   here, as JSON, and does not read text in it as YAML again
   (:func:`lightning_core.bundle.lightning_config.read_scalar`).
2. Every problem names file, line and column, and all are reported together. Reading stops only where it would be
   pointless or costly to continue: broken syntax, too many levels, too many values.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.regular_files import read_text

MAX_FILE_BYTES = 2**20
MAX_DEPTH = 50
MAX_ALIASES = 100
# Keys and values, with aliases expanded: a few hundred bytes of nested aliases stand for billions.
MAX_VALUES = 20_000

_MERGE = "tag:yaml.org,2002:merge"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_DATE, _TEXT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:str"

# What PyYAML's messages and ours quote of a file: not the names of YAML's own tokens, nor single characters.
_QUOTES = re.compile(r" (\*\S+|'(?!<)[^']{2,}')")


# What PyYAML finds, and what to write instead; %s is what it quotes.
_RULES = (
    (r"mapping values are not allowed", "write 'key: value', a line each, with a space; quote a text that holds ': '"),
    (r"could not find expected ':'", "a key needs ': ' behind it"),
    (r"found character '\\t'", "indent with spaces, not with tabs"),
    (r"found character ('.+')", "no value begins with %s; quote it"),
    (r"expected ',' or ('.'), but got", "a bracket is open: a comma or %s is missing before this"),
    (r"expected <block end>", "begin the keys of a mapping, and the items of a list, in the same column, one a line"),
    (r"sequence entries are not allowed|block sequence", "begin a list on a line of its own"),
    (r"found unexpected end of stream", "a quote is not closed"),
    (r"found undefined alias", "no such alias; quote a text that begins with *"),
    (r"expected the node content, but found ('.+')", "a value is missing before %s"),
    (r"another document|expected '<document start>'", "a file holds one document; remove '---', '...' or what follows"),
    (r"second occurrence", "an anchor, &name, is there twice"),
    (r"found unhashable key", "a key must be a text or a number"),
    (r"2002:value'", "'=' alone is no value; quote it"),
    (r"for merging", "'<<' needs a mapping"),
    (r"chomping or indentation", "quote a text that begins with '|' or '>'"),
    (r"expected alphabetic or numeric", "quote a text that begins with '&' or '*'"),
    (r"found unknown escape character|escape sequence", "double quotes need \\\\ for each \\; use single quotes"),
)


class _StrictLoader(yaml.SafeLoader):
    """Loader of safe YAML that reports surprises: duplicate keys, of which the last would win, 12:30 as 750, 010 as 8.

    Args:
        text: Content of the file.
        path: Path of the file.
        problems: List to which problems are added.
    """

    def __init__(self, text: str, path: Path, problems: list[str]) -> None:
        self._path, self._problems = path, problems
        self._depth = self._aliases = 0
        self.nodes = 0
        self._sizes: dict[str, int] = {}
        super().__init__(text)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; refuse it as soon as a limit is exceeded."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > MAX_ALIASES:
                raise _refused(f"too many aliases (limit {MAX_ALIASES})", event)
            if anchor in self.anchors and anchor not in self._sizes:
                raise _refused(f"alias *{anchor} refers to itself", event)
            self._count(self._sizes.get(anchor, 0), event)
            return super().compose_node(parent, index)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._complain(event.start_mark, f"YAML tags are not allowed, got {tag}")
            event.tag = None  # continue without the tag, to find further problems
            if isinstance(event, yaml.ScalarEvent):
                event.implicit = (event.style is None, event.style is not None)
        before = self.nodes
        self._count(1, event)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"nested too deeply (limit {MAX_DEPTH})", event)
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
        """Construct a number; text that only looks like one is reported."""
        text = node.value
        value: int | float
        try:
            value = self.construct_yaml_int(node) if node.tag == _INT else self.construct_yaml_float(node)
        except ValueError as error:  # 0x_, or thousands of digits
            self._complain(node.start_mark, f"cannot be read ({error}); quote it if it is text, got {text!r}")
            return str(text)
        if ":" in text:
            message = f'YAML reads {text} as {value} (base 60); quote it, "{text}", or write a duration such as 1h30m'
            self._complain(node.start_mark, message)
        elif node.tag == _INT and re.fullmatch(r"[-+]?0[0-7_]+", text):
            self._complain(node.start_mark, f"YAML reads {text} as {value} (base 8); remove the leading 0, or quote it")
        return value

    def _count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > MAX_VALUES:
            raise _refused(f"too many values (limit {MAX_VALUES:,}, with aliases expanded)", event)

    def _complain(self, mark: yaml.Mark, message: str) -> None:
        self._problems.append(Position(f"{self._path}:{mark.line + 1}:{mark.column + 1}").problem(message))


_StrictLoader.add_constructor(_INT, _StrictLoader.construct_number)
_StrictLoader.add_constructor(_FLOAT, _StrictLoader.construct_number)
# A config is sent as JSON, and LightningCLI, too, takes dates as text.
_StrictLoader.add_constructor(_DATE, _StrictLoader.yaml_constructors[_TEXT])


class _LimitError(yaml.MarkedYAMLError):
    """A file that could be parsed, at a cost."""


def _refused(message: str, event: Any) -> yaml.MarkedYAMLError:
    return _LimitError(problem=message, problem_mark=event.start_mark)


def _rule(found: str) -> str:
    """Return what to write instead of what PyYAML complains about.

    Example::

        >>> _rule("found character '@' that cannot start any token")
        "not YAML: no value begins with '@'; quote it"
        >>> _rule("found duplicate YAML directive")
        'not YAML: found duplicate YAML directive'
    """
    for pattern, rule in _RULES:
        if match := re.search(pattern, found):
            return f"not YAML: {rule % match.groups() if match.groups() else rule}"
    return f"not YAML: {found}"


def load_yaml(path: Path, empty: str = "file is empty", *, quoting: bool = True) -> tuple[Any, Problems]:
    """Read a YAML file.

    Args:
        path: Path of the file.
        empty: Message for an empty file.
        quoting: Whether the error for a file that cannot be parsed may quote it; a file that is no YAML of ours may
            hold anything.

    Returns:
        The content, and a collector with the problems found so far.

    Raises:
        BundleError: If the file cannot be read or parsed, is empty, or exceeds a limit.
    """
    return parse_yaml(_text(path), path, empty, quoting=quoting)


def parse_yaml(text: str, path: Path, empty: str = "file is empty", *, quoting: bool = True) -> tuple[Any, Problems]:
    """Read a text of YAML, as :func:`load_yaml` does a file.

    Args:
        text: The text.
        path: Its name in messages.
        empty: Message for an empty text.
        quoting: Whether the error for a text that cannot be parsed may quote it.
    """
    if len(text) > MAX_FILE_BYTES:
        raise BundleError([f"{path}: must be at most {MAX_FILE_BYTES:,} bytes, got {len(text):,} characters"])
    problems: list[str] = []
    try:
        loader = _StrictLoader(text, path, problems)
        try:
            root = loader.get_single_node()
            content = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        found = error.problem or "cannot be parsed"
        # A quote that is not closed ends with the file: it is looked for where it begins.
        mark = error.context_mark if "end of stream" in found else error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        message = found if quoting else _QUOTES.sub("", found)
        if not isinstance(error, _LimitError):
            message = _rule(message)
        raise BundleError([*(problems if quoting else ()), Position(where).problem(message)]) from None
    except yaml.reader.ReaderError as error:  # a character that YAML does not allow
        line, column = text.count("\n", 0, error.position), error.position - text.rfind("\n", 0, error.position)
        message = f"{error.reason}, got {chr(error.character)!r}"
        raise BundleError([Position(f"{path}:{line + 1}:{column}").problem(message)]) from None
    if content is None:
        raise BundleError([f"{path}: {empty}", *problems])
    return content, Problems(Position(str(path), root), problems)


def _text(path: Path) -> str:
    try:
        return read_text(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise BundleError([f"{path}: not found"]) from None
    except UnicodeDecodeError as error:
        raise BundleError([f"{path}: cannot be read: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise BundleError([f"{path}: cannot be read: {error.strerror or error}"]) from None
