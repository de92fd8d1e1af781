"""Other users of the machine, for tests of what they may not do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_core.storage import private_files as ownership

# A user that no machine has, and its group.
OTHER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file or folder, and all in it, another user's; without root, make this process another user's instead."""
    if os.geteuid() == 0:
        for found in (path, *path.rglob("*")):
            os.chown(found, OTHER, OTHER, follow_symlinks=False)
    else:
        monkeypatch.setattr(ownership, "this_user", lambda: OTHER)


@contextmanager
def without_waiting(seconds: int = 10) -> Iterator[None]:
    """Fail what waits for ever, as a reader of a pipe does."""

    def waited(*_: object) -> None:
        raise AssertionError(f"it waited for {seconds} s")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def as_other(act: Callable[[], Any], groups: Sequence[int] = ()) -> Any:
    """Return what a function returns in a process of another user, which only root can start.

    The process is a fork, since another user may not be able to read the package where it lies.

    Args:
        act: Function; its value is sent as JSON, and an error as its class and message.
        groups: Groups that the user is in.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(OTHER)
            os.setuid(OTHER)
            try:
                told = json.dumps([True, act()])
            except Exception as error:
                told = json.dumps([False, f"{type(error).__name__}: {error}"])
            os.write(writing, told.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer, without_waiting(30):
        worked, value = json.loads(answer.read())
    os.waitpid(child, 0)
    if not worked:
        raise OtherUserError(value)
    return value


class OtherUserError(Exception):
    """What the other user's process has raised."""
