"""The lines of a training's log as a terminal would show them in the end: progress bars draw over themselves."""

from __future__ import annotations

import codecs
import re

from lightning_core.view.text import clean_lines

# Colours, and moves of the cursor.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")
# tqdm's bar, as in "34%|###   | 34/100 [00:01<00:02, 30.1it/s, loss=0.1]", with something else right behind it.
_GLUED = re.compile(r"(\d+%\|[^|\n]*\| *[\d.?]+\w?/[\d.?]+\w? \[[^\]\n]*\])(?=[^\s])", re.ASCII)
# Of a line without an end so much is kept.
LONGEST = 2**20


class LogLines:
    """Makes lines of what a log holds, which may come in pieces.

    Example::

        >>> log = LogLines()
        >>> log.feed(b"1%|#  | 1/9 [00:01]\\r2%|#  | 2/9 [00:02]saved\\nepo")
        ['2%|#  | 2/9 [00:02]', 'saved']
        >>> log.feed(b"ch 1\\n"), log.rest()
        (['epoch 1'], [])
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are whole now."""
        text = self._open + self._decoder.decode(data)
        *whole, self._open = text.replace("\r\n", "\n").split("\n")
        self._open = self._open[-LONGEST:]
        return [line for raw in whole for line in _lines(raw)]

    def rest(self) -> list[str]:
        """Return what stands in the line that is not whole; it is not told again."""
        text, self._open = self._open, ""
        return _lines(text) if text.strip() else []


def _lines(raw: str) -> list[str]:
    """Return what is left of what was written between two ends of lines: of what was drawn over, the last."""
    drawn = [_GLUED.sub(r"\1\n", part).split("\n") for part in _ESCAPE.sub("", raw).split("\r") if part.strip()]
    *over, last = drawn or [[""]]
    said = [piece for parts in over for piece in parts[1:]]  # behind a bar that was drawn over
    return [clean_lines(line).rstrip() for line in (*said, *last)]
