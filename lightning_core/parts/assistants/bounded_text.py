"""Texts of an answer, made safe for an assistant: without what is not seen, and of bounded length.

Names, notes, reasons and lines of logs come from jobs, so from strangers. Control characters and characters without a
shape could hide text from the user who reads along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_core.view.text import clean, clean_lines

# Characters of a text, such as a line of a log or the end of a traceback, and of a key; and what stands in place of the
# rest.
MAX_CHARACTERS, MAX_KEY, CUT = 4000, 200, " [cut]"
# Significant figures of a number: an assistant pays by the character.
DIGITS = 9


def bounded(value: Any, most: int = MAX_CHARACTERS) -> Any:
    """Return values of an answer with all texts in them made safe, and numbers of few digits.

    Numbers that JSON cannot hold are None.

    Args:
        value: Values of JSON; enumerations are texts.
        most: Characters of a text.

    Example::

        >>> bounded({"a\\x1b[2Jb": ["x" * 9, "\\u202eb\\U000e0041", float("inf")]}, most=8)
        {'a[2Jb': ['xxxxxxxx [cut]', 'b', None]}
    """
    if isinstance(value, str):
        text = clean_lines(value)
        return text if len(text) <= most else text[:most] + CUT
    if isinstance(value, Mapping):
        return {clean(str(key))[:MAX_KEY]: bounded(one, most) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [bounded(one, most) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
