"""Problems of a bundle: all of a file are collected, each with its file, line and the path of its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lightning_core.core.names import did_you_mean, is_secret
from lightning_core.errors import LightningCoreError

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Keys and indices that lead from the top of a file to a value."""

# A wrong value may be a megabyte long, and a file may hold ten thousand of them.
MAX_PROBLEM_LENGTH = 600
MAX_PROBLEMS_SHOWN = 100


class BundleError(LightningCoreError, ValueError):
    """A bundle is wrong; the message has one line for each problem, and no line twice.

    Attributes:
        problems: All problems, also those beyond the first hundred, which the message leaves out.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))  # jobs that share a part share its problems
        more = len(self.problems) - MAX_PROBLEMS_SHOWN
        hidden = [f"... and {more:,} more problems"] if more > 0 else []
        super().__init__("\n".join([*self.problems[:MAX_PROBLEMS_SHOWN], *hidden]))


def require(*modules: str, extra: str = "launch") -> None:
    """Check that modules are installed, without importing them.

    Raises:
        BundleError: If one is not; the message has the command that installs it.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        are = "are" if len(missing) > 1 else "is"
        install = f"pip install -c constraints.txt '.[{extra}]' in the clone"
        raise BundleError([f"{', '.join(missing)} {are} not installed; run {install}"])


@dataclass(frozen=True)
class Position:
    """Position of a value in a file, or in a Python object.

    Args:
        name: Name of the file, or of the object.
        root: Root node of the parsed YAML, which has the line of each key; None for a Python object.
        path: Keys and indices that lead from the root to the value.

    Example::

        >>> Position("bundle").at("jobs", "a", "callbacks", 0).problem("is missing")
        'bundle: jobs.a.callbacks[0]: is missing'
    """

    name: str
    root: yaml.Node | None = None
    path: KeyPath = ()

    def at(self, *path: str | int) -> Self:
        """Return the position of a value inside this one."""
        return type(self)(self.name, self.root, self.path + path)

    @property
    def mark(self) -> str:
        """``:LINE:COLUMN`` of the last key of the path that the file has, counted from 1; empty if it has none."""
        node, found = self.root, None
        for part in self.path:
            inner: Any = node.value if node is not None else None
            if not isinstance(inner, list):
                break
            if isinstance(part, int):
                found = node = inner[part]
            else:  # a merge (<<) may bring in a key twice; the last one counts
                pairs = [pair for pair in inner if isinstance(pair, tuple) and pair[0].value == part]
                if not pairs:
                    break
                found, node = pairs[-1]
        return "" if found is None else f":{found.start_mark.line + 1}:{found.start_mark.column + 1}"

    def problem(self, message: str) -> str:
        """Return ``FILE:LINE:COLUMN: PATH: message`` in one printable line, without the value if the key is secret."""
        if is_secret(self.path):
            message = re.sub(r"\bgot\b.*", "got what is not shown here", message, flags=re.DOTALL)
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).lstrip(".")
        where = f"{self.name}{self.mark}"
        text = " ".join(f"{where}: {path}: {message}".split() if path else f"{where}: {message}".split())
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        return text if len(text) <= MAX_PROBLEM_LENGTH else text[:MAX_PROBLEM_LENGTH] + " ..."


@dataclass(frozen=True)
class Problems:
    """Collector of problems, with the position that is being checked.

    Args:
        position: Position to which new problems refer.
        messages: Problems found so far; shared by all collectors made from this one.
    """

    position: Position
    messages: list[str] = field(default_factory=list)

    def at(self, *path: str | int) -> Self:
        """Return a collector for a value inside this one."""
        return self.within(self.position.at(*path))

    def within(self, position: Position) -> Self:
        """Return a collector for another position, such as one in another file."""
        return type(self)(position, self.messages)

    def add(self, message: str) -> None:
        """Add a problem at this position."""
        self.messages.append(self.position.problem(message))

    def check_keys(self, value: Mapping[Any, Any], known: Iterable[str]) -> None:
        """Add a problem for each unknown key of a mapping."""
        known = list(known)
        for key in value:
            if key not in known:
                self.at(str(key)).add(f"unknown key {key!r}{did_you_mean(key, known)}")

    def read(self, parse: Callable[[Any], T], value: Any) -> T | None:
        """Parse a value; if that fails, add a problem and return None."""
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            self.add(str(error))
            return None
