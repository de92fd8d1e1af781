"""Specs, a name with arguments such as ``ahap:omega=5,commitment=2``, and the families of parts that they select."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning_core.core.names import closest, did_you_mean, listed
from lightning_core.core.validation import checked

T = TypeVar("T")


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
        kind: Kind of the named part, for messages.

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


class Family(dict[str, Callable[..., T]], Generic[T]):
    """Factories of the parts of a family, by name; their arguments are keywords.

    Args:
        kind: Kind of the parts, for messages.
        members: The factories.

    Example::

        >>> class Window:
        ...     def __init__(self, omega: int = 2) -> None:
        ...         self.omega = omega
        >>> family = Family("spot policy", {"window": Window})
        >>> family.make("window:omega=5").omega
        5
        >>> family.make("window:omega=5.5")
        Traceback (most recent call last):
        ...
        ValueError: spot policy window: omega: expected int, got 5.5
        >>> family.make("windows")
        Traceback (most recent call last):
        ...
        ValueError: spot policy must be one of window, got 'windows'; did you mean 'window'?
    """

    def __init__(self, kind: str, members: Mapping[str, Callable[..., T]]) -> None:
        super().__init__(members)
        self.kind = kind

    def make(self, text: str) -> T:
        """Return a new part by its spec (:func:`~lightning_core.core.specs.parse_spec`).

        Raises:
            ValueError: If there is no such part, or an argument is unknown, of another type or out of range.
        """
        name, arguments = parse_spec(text, self.kind)
        self._check_known(name, arguments)
        factory = self[name]
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
        for key, value in arguments.items():
            try:
                _check_argument(value, hints.get(key))
            except ValueError as error:
                raise ValueError(f"{self.kind} {name}: {key}: {error}") from None
        return self.build(name, arguments)

    def build(self, name: str, arguments: Mapping[str, Any]) -> T:
        """Return a new part by its name and arguments, which it checks itself.

        Raises:
            ValueError: If there is no such part, or an argument is unknown or out of range.
        """
        self._check_known(name, {})
        try:
            return self[name](**arguments)
        except TypeError as error:
            self._check_known(name, arguments)
            raise ValueError(f"{self.kind} {name}: {error}") from None

    def _check_known(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Check that a part of this name exists and accepts these arguments."""
        if name not in self:
            close = closest(name, self)
            hint = "" if close is None else f"; did you mean {close!r}?"
            raise ValueError(f"{self.kind} must be one of {listed(sorted(self))}, got {name!r}{hint}")
        takes = list(inspect.signature(self[name]).parameters)
        for argument in arguments:
            if argument not in takes:
                hint = did_you_mean(argument, takes) if takes else "; it takes none"
                raise ValueError(f"{self.kind} {name}: unknown argument {argument!r}{hint}")


def _check_argument(value: Any, hint: Any) -> None:
    """Check an argument that was given as text against the annotation of its parameter."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        if get_origin(kind) is Literal:
            if value not in (choices := get_args(kind)):
                raise ValueError(f"expected one of {listed(map(str, choices))}, got {value!r}")
            return
    if not set(kinds) <= {int, float, bool, str, NoneType}:
        raise ValueError("it cannot be given as text")
    checked(value, hint)
