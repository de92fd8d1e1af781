"""Text from outside, made safe to print."""

from __future__ import annotations


def clean(text: str) -> str:
    """Return text without control characters, so that it can neither control a terminal nor reverse the line.

    Example::

        >>> clean("a\\x1b[2Jb\\n")
        'a[2Jb '
    """
    return "".join(" " if c in "\n\t" else c for c in text if c.isprintable() or c in "\n\t")


def clean_lines(text: str) -> str:
    """Return lines of a log without control characters: a progress bar that overwrote itself becomes a line a step.

    Example::

        >>> clean_lines("epoch 1\\repoch 2\\x1b[2J\\n\\tdone\\n")
        'epoch 1\\nepoch 2[2J\\n\\tdone\\n'
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in lines if c.isprintable() or c in "\n\t")
