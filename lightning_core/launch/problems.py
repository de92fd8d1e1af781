"""What is wrong, and where: all problems of a file are gathered, each with file, line and path of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lightning_core.words import did_you_mean

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")
Parts = tuple[str | int, ...]

# A value that is wrong may be a megabyte long.
LONGEST = 600


class BundleError(ValueError):
    """What is wrong with a bundle: every problem found, one a line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def require(*modules: str) -> None:
    """Sees to it that modules can be imported, without importing them.

    Raises:
        BundleError: with the command that installs them.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        are = "are" if len(missing) > 1 else "is"
        install = "pip install 'lightning-core-learning[launch]'"
        raise BundleError([f"{', '.join(missing)} {are} not installed; run {install}"])


@dataclass(frozen=True)
class Source:
    """Where values come from.

    Args:
        name: of the file, or how Python objects are called.
        root: what the YAML parser made of the file, with the line of each key; None for Python objects.
        parts: keys and indices that lead from the root to the values.

    Example::

        >>> Source("bundle").at("jobs", "a", "callbacks", 0).problem("is missing")
        'bundle: jobs.a.callbacks[0]: is missing'
    """

    name: str
    root: yaml.Node | None = None
    parts: Parts = ()

    def at(self, *parts: str | int) -> Self:
        """Further down."""
        return type(self)(self.name, self.root, self.parts + parts)

    @property
    def line(self) -> int | None:
        """Of the last key on the way that the file has, counted from 1."""
        node, line = self.root, None
        for part in self.parts:
            inner: Any = node.value if node is not None else None
            if not isinstance(inner, list):
                break
            if isinstance(part, int):
                node = inner[part]
                line = node.start_mark.line + 1
            else:  # of keys that a merge (<<) has brought in twice, the last one holds
                pairs = [pair for pair in inner if isinstance(pair, tuple) and pair[0].value == part]
                if not pairs:
                    break
                key, node = pairs[-1]
                line = key.start_mark.line + 1
        return line

    def problem(self, words: str) -> str:
        """``FILE:LINE: PATH: words``, one printable line."""
        place = self.name if (line := self.line) is None else f"{self.name}:{line}"
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.parts).lstrip(".")
        text = " ".join(f"{place}: {path}: {words}".split() if path else f"{place}: {words}".split())
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


@dataclass(frozen=True)
class Findings:
    """The problems found so far, and the place that is looked at now."""

    source: Source
    problems: list[str] = field(default_factory=list)

    def at(self, *parts: str | int) -> Self:
        """Further down."""
        return self.within(self.source.at(*parts))

    def within(self, source: Source) -> Self:
        """Elsewhere, such as in another file."""
        return type(self)(source, self.problems)

    def add(self, words: str) -> None:
        """This value is wrong."""
        self.problems.append(self.source.problem(words))

    def keys(self, value: Mapping[Any, Any], known: Iterable[str]) -> None:
        """Adds a problem for each key that is not known."""
        known = list(known)
        for key in value:
            if key not in known:
                self.at(str(key)).add(f"unknown key {key!r}{did_you_mean(key, known)}")

    def read(self, parse: Callable[[Any], T], value: Any) -> T | None:
        """The parsed value; None, and one problem more, if it is wrong."""
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            self.add(str(error))
            return None
