"""What a training is trained with, as people read it: names and values, without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lightning_core.core.limits import MAX_HYPER_PARAMETERS, MAX_SHOWN_VALUE
from lightning_core.core.names import is_secret

HyperParameters = tuple[tuple[str, str], ...]
"""Names, with a dot between the keys that lead to a value, each with its value in words."""

HIDDEN = "(not shown)"
"""Stands for a value whose name is like that of a secret."""


def hyper_parameters(config: Mapping[Any, Any], *, is_config: bool = False) -> HyperParameters:
    """Return what a config holds: numbers, texts and flags, and lists of them; of anything else its type.

    Args:
        config: Arguments by name, nested at will; a key may be anything.
        is_config: Whether arguments are those below ``init_args`` alone, as in the config of a launched job.

    Returns:
        At most :data:`~lightning_core.core.limits.MAX_HYPER_PARAMETERS`, each value shortened.

    Example::

        >>> hyper_parameters({"lr": 0.1, "sizes": [8, 8], "opt": {"name": "sgd"}, "api_key": "abc", "net": object()})
        (('lr', '0.1'), ('sizes', '8, 8'), ('opt.name', 'sgd'), ('api_key', '(not shown)'), ('net', '<object>'))
    """
    root = () if is_config else ("init_args",)
    return bounded(_flat(config, root, root))


def bounded(rows: Iterable[Sequence[Any]]) -> HyperParameters:
    """Return rows of names and values as texts, bounded in number and length.

    Raises:
        ValueError: If a row is not a name and a value.
    """
    found: list[tuple[str, str]] = []
    for name, value in rows:
        if len(found) == MAX_HYPER_PARAMETERS:
            break
        found.append((_short(str(name)), _short(str(value))))
    return tuple(found)


def _short(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # half of a pair is no text that can be sent
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 1] + "…"


def _flat(value: Any, path: tuple[Any, ...], root: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    name = ".".join(str(part) for part in path[len(root) :] if part != "init_args")
    if path != root and is_secret(path):
        yield name, HIDDEN
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, (*path, key), root)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping | list | tuple) for inner in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, (*path, index), root)
    elif isinstance(value, list | tuple):
        yield name, ", ".join(map(_words, value))
    else:
        yield name, _words(value)


def _words(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return str(value) if plain else f"<{type(value).__name__}>"
