"""Text from outside, for people to read."""

from __future__ import annotations


def clean(text: str) -> str:
    """Without control characters: what comes from outside must not steer a terminal, nor turn the line around.

    Example::

        >>> clean("a\\x1b[2Jb\\n")
        'a[2Jb '
    """
    return "".join(" " if c in "\n\t" else c for c in text if c.isprintable() or c in "\n\t")


def clean_lines(text: str) -> str:
    """Lines of a log, without what steers a terminal: a progress bar that overwrote itself is a line a step.

    Example::

        >>> clean_lines("epoch 1\\repoch 2\\x1b[2J\\n\\tdone\\n")
        'epoch 1\\nepoch 2[2J\\n\\tdone\\n'
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c for c in lines if c.isprintable() or c in "\n\t")
