"""Progress of the workers' start: importing torch takes seconds, and the user should see why."""

from __future__ import annotations

from typing import TextIO


class WarmingView:
    """Prints how many workers are warm, on one line if the stream is a terminal.

    Args:
        stream: Stream to print to.

    Example::

        >>> import sys
        >>> shown = WarmingView(sys.stdout)
        >>> for warm in (0, 0, 1, 2):
        ...     shown(warm, 2)
        0 of 2 workers warm, importing torch and Lightning ...
        1 of 2 workers warm, importing torch and Lightning ...
        2 of 2 workers warm
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: tuple[int, int] | None = None

    def __call__(self, warm: int, wanted: int) -> None:
        """Show how many of the wanted workers are warm."""
        if (warm, wanted) == self._shown:
            return
        done = warm >= wanted
        words = f"{warm} of {wanted} workers warm" + ("" if done else ", importing torch and Lightning ...")
        if self._stream.isatty():
            clear = "\r\x1b[K" if self._shown is not None else ""
            print(clear + words, end="\n" if done else "", file=self._stream, flush=True)
        else:
            print(words, file=self._stream, flush=True)
        self._shown = warm, wanted
