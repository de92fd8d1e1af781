"""Output of commands that act: a terminal that is closed or full costs them lines, and nothing else."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

from typing_extensions import override


class _Lossy(io.FileIO):
    """A file that forgets what cannot be written to it."""

    @override
    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(memoryview(data).cast("B"))


def fill_streams() -> None:
    """Open nothing in place of standard streams that are closed, so that no file of ours gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def lose_what_cannot_be_written() -> None:
    """Let standard output and standard error never raise."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper:
            continue  # it has been replaced, and is its owner's business
        with suppress(OSError):
            stream.flush()
        made = io.BufferedWriter(_Lossy(os.dup(stream.fileno()), "w"))
        how: dict[str, Any] = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        setattr(sys, name, io.TextIOWrapper(made, stream.encoding, "backslashreplace", **how))
