"""Text from outside, for people to read."""

from __future__ import annotations


def clean(text: str) -> str:
    """Without control characters: what comes from outside must not steer a terminal, nor turn the line around.

    Example::

        >>> clean("a\\x1b[2Jb\\n")
        'a[2Jb '
    """
    return "".join(" " if c in "\n\t" else c for c in text if c.isprintable() or c in "\n\t")
