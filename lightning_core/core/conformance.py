"""What the conformance suites of all families share."""

from __future__ import annotations


def require(holds: bool, rule: str) -> None:
    """Fail with a rule that does not hold.

    Raises:
        AssertionError: If ``holds`` is false; the message is the rule.
    """
    if not holds:
        raise AssertionError(rule)
