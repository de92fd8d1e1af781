"""What is wrong, and where: all problems of a file are gathered, each with file, line and path of its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lightning_core.core.names import did_you_mean, is_secret

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")
Parts = tuple[str | int, ...]

# A value that is wrong may be a megabyte long, and ten thousand of them may be wrong.
LONGEST = 600
MOST_SHOWN = 100


class BundleError(ValueError):
    """What is wrong with a bundle: every problem found, one a line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        more = len(self.problems) - MOST_SHOWN
        hidden = [f"... and {more:,} problems more"] if more > 0 else []
        super().__init__("\n".join([*self.problems[:MOST_SHOWN], *hidden]))


def require(*modules: str, extra: str = "launch") -> None:
    """Sees to it that modules can be imported, without importing them.

    Raises:
        BundleError: with the command that installs them.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        are = "are" if len(missing) > 1 else "is"
        install = f"pip install 'lightning-core-learning[{extra}]'"
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
    def mark(self) -> str:
        """``:LINE:COLUMN`` of the last key on the way that the file has, counted from 1; empty without one."""
        node, found = self.root, None
        for part in self.parts:
            inner: Any = node.value if node is not None else None
            if not isinstance(inner, list):
                break
            if isinstance(part, int):
                found = node = inner[part]
            else:  # of keys that a merge (<<) has brought in twice, the last one holds
                pairs = [pair for pair in inner if isinstance(pair, tuple) and pair[0].value == part]
                if not pairs:
                    break
                found, node = pairs[-1]
        return "" if found is None else f":{found.start_mark.line + 1}:{found.start_mark.column + 1}"

    def problem(self, words: str) -> str:
        """``FILE:LINE:COLUMN: PATH: words``, one printable line; without the value of what is a secret by its name."""
        if is_secret(self.parts):
            words = re.sub(r"\bgot\b.*", "got what is not shown here", words, flags=re.DOTALL)
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.parts).lstrip(".")
        place = f"{self.name}{self.mark}"
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
