"""Specs, a name with arguments such as ``ahap:omega=5,commitment=2``, and the families of parts that they select."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning_core.core.names import closest, did_you_mean, listed
from lightning_core.core.parts import (
    AbsentPartError,
    Later,
    broken_words,
    brought,
    import_class,
    is_own,
    names_of,
    package_of,
)
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

    The dictionary holds the library's own. A name that is not among them is looked for among the parts of other
    packages (:mod:`lightning_core.core.parts`), and one with a dot is the path of a class.

    Args:
        kind: Kind of the parts, for messages.
        members: The library's own factories, or what :func:`later` returns.
        outside: Field of :class:`~lightning_core.core.parts.Part` with those of other packages; empty for none.
        methods: Methods that a class must have to be named by its path.

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
        >>> family.make("windows")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        lightning_core.core.parts.AbsentPartError: spot policy must be one of window, got 'windows'; did you mean...
    """

    def __init__(
        self, kind: str, members: Mapping[str, Callable[..., T]], outside: str = "", methods: Sequence[str] = ()
    ) -> None:
        super().__init__(members)
        self.kind, self._outside, self._methods = kind, outside, methods
        self._given: dict[str, Callable[..., T]] = {}

    def make(self, text: str) -> T:
        """Return a new part by its spec (:func:`~lightning_core.core.specs.parse_spec`).

        Raises:
            ValueError: If there is no such part, or an argument is unknown, of another type or out of range.
        """
        name, arguments = parse_spec(text, self.kind)
        factory = self.factory(name)
        self._check_arguments(name, factory, arguments)
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
        for key, value in arguments.items():
            try:
                _check_argument(value, hints.get(key))
            except ValueError as error:
                raise ValueError(f"{self.kind} {name}: {key}: {error}") from None
        return self.build(name, arguments)

    def _check_types(self, name: str, factory: Any, arguments: Mapping[str, Any]) -> None:
        """Check arguments against their annotations, as far as these are texts, numbers, booleans or choices."""
        try:
            hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
        except Exception:  # annotations of code from outside may be anything
            return
        for key, value in arguments.items():
            try:
                if _is_plain(hints.get(key)):
                    _check_argument(value, hints[key])
            except ValueError as error:
                raise ValueError(f"{self.kind} {name} of {self.package(name)}: {key}: {error}") from None

    def build(self, name: str, arguments: Mapping[str, Any]) -> T:
        """Return a new part by its name and arguments, which it checks itself.

        Raises:
            ValueError: If there is no such part, or an argument is unknown or out of range. One that is not installed
                is an :class:`~lightning_core.core.parts.AbsentPartError`.
        """
        factory = self.factory(name)
        if self.package(name):  # the library's own check them
            self._check_types(name, factory, arguments)
        try:
            return factory(**arguments)
        except TypeError as error:
            self._check_arguments(name, factory, arguments)
            raise ValueError(f"{self.kind} {name}: {error}") from None
        except Exception as error:
            if not self.package(name):
                raise
            words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.kind} {name} of {self.package(name)}: {words}") from error

    def factory(self, name: str) -> Callable[..., T]:
        """Return the factory of a name.

        Raises:
            AbsentPartError: If there is no such part.
        """
        if (own := self.get(name) or self._given.get(name)) is not None:
            if isinstance(own, Later):
                self[name] = own = own.load()
            return own
        if self._outside and (outside := brought(self._outside, name)) is not None:
            return outside[0]  # type: ignore[no-any-return]
        if self._outside and "." in name:
            return import_class(name, self.kind, self._methods)
        names = self.names()
        close = closest(name, names)
        hint = "" if close is None else f"; did you mean {close!r}?"
        hint += broken_words() if self._outside else ""
        raise AbsentPartError(f"{self.kind} must be one of {listed(sorted(names))}, got {name!r}{hint}")

    def has(self, name: str) -> bool:
        """Return whether there is a part of a name here."""
        try:
            return self.factory(name) is not None
        except AbsentPartError:
            return False

    def package(self, name: str) -> str:
        """Return the package, with its version, from which a part is; empty for the library's own, and if absent."""
        if name in self:
            return ""
        try:
            found = brought(self._outside, name) if self._outside and name not in self._given else None
            package = package_of(self.factory(name)) if found is None else found[1]
        except ValueError:
            return ""
        return "" if is_own(package) else package

    def names(self) -> list[str]:
        """Return the names of the library's own and of those that other packages bring."""
        return list(dict.fromkeys([*self, *(names_of(self._outside) if self._outside else ())]))

    def name_of(self, given: Any) -> str:
        """Return the name under which this process finds a part that was given as itself.

        Args:
            given: A name, which is returned; a class; or an object, each part being a copy of it.

        Raises:
            ValueError: If it is neither, or lacks a method.

        Example::

            >>> from lightning_core.policies import POLICIES, Fifo, Laira
            >>> POLICIES.name_of(Fifo), POLICIES.name_of(Laira(look_ahead=False))
            ('fifo', 'lightning_core.policies.laira.Laira (an object)')
        """
        if isinstance(given, str):
            return given
        kind = given if isinstance(given, type) else type(given)
        missing = [method for method in self._methods if not callable(getattr(kind, method, None))]
        if missing or not self._outside:
            raise ValueError(f"{self.kind} must have the method {missing[0]}, and {kind.__name__} has none"
                             if missing else f"{self.kind} must be a name, got {kind.__name__}")  # fmt: skip
        own = next((name for name, member in self.items() if member is given), None)
        if own is not None:
            return own
        name = f"{kind.__module__}.{kind.__qualname__}"
        if given is not kind:
            name += " (an object)"  # no other process can make one like it
        self._given[name] = given if isinstance(given, type) else partial(deepcopy, given)
        return name

    def _check_arguments(self, name: str, factory: Callable[..., T], arguments: Mapping[str, Any]) -> None:
        """Check that a factory takes arguments of these names, and needs no others."""
        takes = (
            {} if isinstance(factory, partial) and factory.func is deepcopy else inspect.signature(factory).parameters
        )
        for needed, one in takes.items():
            is_named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            if is_named and one.default is one.empty and needed not in arguments:
                raise ValueError(f"{self.kind} {name}: {needed} must be given")
        for argument in arguments:
            if argument not in takes:
                hint = did_you_mean(argument, takes) if takes else "; it takes none"
                raise ValueError(f"{self.kind} {name}: unknown argument {argument!r}{hint}")


def _is_plain(hint: Any) -> bool:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return all(kind in (int, float, bool, str, NoneType) or get_origin(kind) is Literal for kind in kinds)


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
