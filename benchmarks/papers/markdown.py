"""Paragraphs and tables of the generated pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence


def wrapped(text: str) -> list[str]:
    """Return the lines of a paragraph; code stays on one."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    return [line.replace("\0", " ") for line in textwrap.wrap(whole, 118, break_on_hyphens=False)]


def head(columns: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    return [row(columns), "|" + "---|" * len(columns)]


def row(cells: Sequence[str]) -> str:
    """Return a line of a table.

    Example::

        >>> row(["a", "b"])
        '| a | b |'
    """
    return f"| {' | '.join(cells)} |"
