"""The section ``on_verdict`` of a bundle file: what to run when the verdict of a job changes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning_core.bundle.problems import Problems
from lightning_core.server.webhook import read_secret


def read_on_verdict(section: Any, folder: Path, problems: Problems) -> dict[str, Any]:
    """Read ``{command: "notify-send ...", webhook: "https://...", secret_file: hook.secret}``.

    Args:
        section: Value in the file.
        folder: Folder to which the path of the secret is relative.
        problems: Collector at the section.

    Returns:
        The same, with the command as a list of words; empty if nothing is to run.
    """
    if section is None:
        return {}
    if not isinstance(section, Mapping) or not section:
        problems.add(f"expected a mapping with command or webhook, got {section!r}")
        return {}
    parsers: dict[str, Callable[[Any], Any]] = {
        "command": _read_command, "webhook": _read_webhook, "secret_file": partial(_read_secret_file, folder),
    }  # fmt: skip
    problems.check_keys(section, parsers)
    if "secret_file" in section and "webhook" not in section:
        problems.at("secret_file").add("signs what is posted to a webhook: say which, or leave it out")
    return {key: problems.at(key).read(parse, section[key]) for key, parse in parsers.items() if key in section}


def _read_command(value: Any) -> list[str]:
    command = value
    if isinstance(value, str):
        try:
            command = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words ({error}), got {value!r}") from None
    if not isinstance(command, list | tuple) or not command or not all(isinstance(word, str) for word in command):
        raise ValueError(f"must be a command, as one text or as a list of words, got {value!r}")
    if not command[0] or any("\0" in word for word in command):
        raise ValueError(f"must begin with a program and have no NUL, got {value!r}")
    return list(command)


def _read_webhook(value: Any) -> str:
    try:
        parts = urlsplit(value) if isinstance(value, str) and value.isprintable() and " " not in value else None
        valid = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and parts is not None and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, an IPv6 address with a missing bracket
        valid = False
    if not valid:
        raise ValueError(f"must be an http or https address, got {value!r}")
    return str(value)


def _read_secret_file(folder: Path, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"must be the path of a file, got {value!r}")
    path = folder / Path(value).expanduser()
    try:
        read_secret(path)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}: {path}") from None
    return str(path)
