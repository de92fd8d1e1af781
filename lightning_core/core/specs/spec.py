"""The text of a spec: ``NAME`` or ``NAME:KEY=VALUE,...``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Spec(NamedTuple):
    """A name with arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        """Return its text, which :func:`parse_spec` reads."""
        given = ",".join(f"{key}={_to_text(value)}" for key, value in self.arguments.items())
        return f"{self.name}:{given}" if given else self.name


def parse_spec(text: str, kind: str = "spec") -> Spec:
    """Parse a spec as written on a command line or in a file.

    Values are read as YAML reads them: numbers, ``true`` and ``false``, and else text.

    Args:
        text: The text.
        kind: What it names, for messages.

    Raises:
        ValueError: If it does not have that form, or gives an argument twice.

    Example::

        >>> name, arguments = parse_spec("lara:order=edf,explore=5")
        >>> name, arguments
        ('lara', {'order': 'edf', 'explore': 5})
        >>> str(parse_spec("laira:look_ahead=false,gamma=0.95"))
        'laira:look_ahead=false,gamma=0.95'
    """
    name, _, rest = text.partition(":")
    arguments: dict[str, Any] = {}
    for argument in filter(None, rest.split(",")):
        key, equals, value = argument.partition("=")
        if not (key and equals and value):
            raise ValueError(f"{kind} must be NAME or NAME:KEY=VALUE,..., got {text!r}")
        if key in arguments:
            raise ValueError(f"{kind} {name}: argument {key!r} must be given once, got {text!r}")
        arguments[key] = _parse_scalar(value)
    return Spec(name, arguments)


def _parse_scalar(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            pass
    return text


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
