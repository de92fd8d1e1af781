"""Other users of the machine, for tests of what they may not do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
