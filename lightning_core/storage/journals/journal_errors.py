"""Errors of journals, and how anything that is wrong in one becomes such an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_core.core.parts import AbsentPartError
from lightning_core.errors import LightningCoreError

# Errors raised by code that parses arbitrary content.
_DAMAGE = (
    sqlite3.DatabaseError, AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip

# Maximum characters of a message: SQLite repeats the content that it cannot read.
MAX_WORDS = 500


class JournalError(LightningCoreError, RuntimeError):
    """The journal is missing, damaged, of another version, or does not replay."""


class DamagedJournalError(JournalError):
    """Content of a journal is damaged, or events are missing.

    Args:
        path: Path of the journal.
        words: The problem.
    """

    def __init__(self, path: Path, words: str) -> None:
        self.words = words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 3]}..."
        super().__init__(f"{path}: damaged journal: {self.words}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a journal's content into one that names the file.

    Raises:
        DamagedJournalError: If the block raises an error of damaged content.
        AbsentPartError: If it needs a part that is not installed here.
    """
    try:
        yield
    except AbsentPartError as error:
        raise AbsentPartError(f"{path}: {error}") from None
    except _DAMAGE as error:
        kind = "" if isinstance(error, (sqlite3.Error, ValueError)) else f"{type(error).__name__}: "
        raise DamagedJournalError(path, f"{kind}{error}") from error
