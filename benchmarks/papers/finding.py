"""A statement of a paper beside what was measured, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

YES, NO = "replicates", "does not replicate"


class Finding(NamedTuple):
    """A statement and what became of it.

    Attributes:
        says: What the paper says.
        where: Section or figure.
        measured: Our figures, in words.
        verdict: Whether it replicates.
    """

    says: str
    where: str
    measured: str
    verdict: str


def verdict(holds: Sequence[bool], where: Sequence[str]) -> str:
    """Return the verdict on a statement that holds in some cases.

    Example::

        >>> verdict([True, True], ["at 1 %", "at 2 %"]), verdict([False, False], ["at 1 %", "at 2 %"])
        ('replicates', 'does not replicate')
        >>> verdict([True, False], ["at 1 %", "at 2 %"])
        'holds only at 1 %'
    """
    if all(holds):
        return YES
    if not any(holds):
        return NO
    return f"holds only {listed([case for case, held in zip(where, holds, strict=True) if held])}"


def listed(words: Sequence[str]) -> str:
    """Return words as one text.

    Example::

        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
