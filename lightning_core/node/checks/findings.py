"""What a check of the machine has found."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """What a finding means for a pool."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing fails."""
    WARNING = "warning"
    """Something is slower, less safe or other than expected, or fails under load."""
    ERROR = "error"
    """A pool or a training cannot run."""


class Finding(NamedTuple):
    """One fact about this machine."""

    name: str
    """Name of the check, which stays the same over versions."""
    severity: Severity
    found: str
    """What was found, with its value."""
    remedy: str = ""
    """What to do; empty if nothing is to be done."""

    def __str__(self) -> str:
        """Return what was found and what to do, as one line."""
        return "; ".join(filter(None, (self.found, self.remedy)))


def ok(name: str, found: str) -> Finding:
    """Return a finding about which nothing is to be done."""
    return Finding(name, Severity.OK, found)


def note(name: str, found: str, remedy: str) -> Finding:
    """Return a finding that is good to know."""
    return Finding(name, Severity.NOTE, found, remedy)


def warning(name: str, found: str, remedy: str) -> Finding:
    """Return a finding about which something should be done."""
    return Finding(name, Severity.WARNING, found, remedy)


def error(name: str, found: str, remedy: str) -> Finding:
    """Return a finding because of which a pool or a training cannot run."""
    return Finding(name, Severity.ERROR, found, remedy)
