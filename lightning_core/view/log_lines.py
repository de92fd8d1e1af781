"""The lines of a log as a terminal would finally show them: progress bars overwrite themselves."""

from __future__ import annotations

import codecs
import re

from lightning_core.view.text import clean_lines

# Colours and cursor movements.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")
# tqdm's bar, as in "34%|###   | 34/100 [00:01<00:02, 30.1it/s, loss=0.1]", with other text directly after it.
_GLUED = re.compile(r"(\d+%\|[^|\n]*\| *[\d.?]+\w?/[\d.?]+\w? \[[^\]\n]*\])(?=[^\s])", re.ASCII)
# Characters kept of a line that does not end.
MAX_OPEN_LINE = 2**20


class LogLines:
    """Splits a log, which may arrive in pieces, into lines.

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
        """Return the lines that are complete now."""
        text = self._open + self._decoder.decode(data)
        *whole, self._open = text.replace("\r\n", "\n").split("\n")
        self._open = self._open[-MAX_OPEN_LINE:]
        return [line for raw in whole for line in _lines(raw)]

    def rest(self) -> list[str]:
        """Return the line that is not complete yet; it will not be returned again."""
        text, self._open = self._open, ""
        return _lines(text) if text.strip() else []


def _lines(raw: str) -> list[str]:
    """Return a raw line as a terminal would show it, with overwritten text in its last version."""
    drawn = [_GLUED.sub(r"\1\n", part).split("\n") for part in _ESCAPE.sub("", raw).split("\r") if part.strip()]
    *over, last = drawn or [[""]]
    said = [piece for parts in over for piece in parts[1:]]  # after a bar that was overwritten
    return [clean_lines(line).rstrip() for line in (*said, *last)]
