"""Names, and help with those that are not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# A job's name is a folder, a line in a terminal and a word in a web page: plain ASCII, no path, no option.
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(name: object) -> str:
    """A job's name.

    Raises:
        ValueError: if it is none.
    """
    if not isinstance(name, str) or not JOB_NAME.fullmatch(name):
        shown = repr(name if len(str(name)) <= 80 else f"{str(name)[:77]}...")
        raise ValueError(
            f"invalid job name {shown}: 1 to 63 letters, digits, '.', '_', '-', the first a letter or digit"
        )
    return name


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'deadline'?`` if a known word is close, else what is known."""
    known = sorted(known)
    close = difflib.get_close_matches(str(word)[:100], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known) or 'none'}"
