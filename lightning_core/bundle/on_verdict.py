"""Whom to tell when what is believed of a job changes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from lightning_core.bundle.problems import Problems


def read_on_verdict(value: Any, found: Problems) -> dict[str, Any]:
    """``{command: "notify-send ...", webhook: "https://..."}``, the command in words; empty for none.

    Args:
        value: what the file says.
        found: takes what is wrong.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not value:
        found.add(f"expected a mapping with command or webhook, got {value!r}")
        return {}
    parsers: dict[str, Callable[[Any], Any]] = {"command": _command, "webhook": _webhook}
    found.check_keys(value, parsers)
    return {key: found.at(key).read(parse, value[key]) for key, parse in parsers.items() if key in value}


def _command(value: Any) -> list[str]:
    words = value
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words ({error}), got {value!r}") from None
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f"must be a command, as one text or as a list of words, got {value!r}")
    if not words[0] or any("\0" in word for word in words):
        raise ValueError(f"must begin with a program and have no NUL, got {value!r}")
    return list(words)


def _webhook(value: Any) -> str:
    try:
        parts = urlsplit(value) if isinstance(value, str) and value.isprintable() and " " not in value else None
        sound = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        sound = sound and parts is not None and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, an address in broken brackets
        sound = False
    if not sound:
        raise ValueError(f"must be an http or https address, got {value!r}")
    return str(value)
