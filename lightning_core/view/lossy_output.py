"""Output that cannot fail: a terminal that is closed, or a disk that is full, costs lines and nothing else."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class _Lossy(io.FileIO):
    """A file that drops output that cannot be written."""

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


@contextmanager
def lossy_output() -> Iterator[None]:
    """Make printing never raise, whatever happens to standard output and standard error."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_lossy, kept)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # it may have been replaced in turn
                stream.flush()
        sys.stdout, sys.stderr = kept


def _lossy(stream: Any) -> Any:
    """Return a stream to the same file that never raises; one that is no file is its owner's business."""
    try:
        with suppress(OSError):
            stream.flush()
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return stream
    buffered = io.BufferedWriter(_Lossy(descriptor, "w"))
    return io.TextIOWrapper(buffered, stream.encoding, "backslashreplace", write_through=True,
                            line_buffering=getattr(stream, "line_buffering", True))  # fmt: skip
