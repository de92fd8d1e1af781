"""The earlier times of a pool: journals that an ``up`` has put aside because all their jobs had ended.

Their times count from their own beginning, so each is a history by itself. One is read when it is asked for, in a
thread, and the newest ones that were asked for are kept.
"""

from __future__ import annotations

import re
import threading
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lightning_core.history.forecasts import fill_in, seconds_again
from lightning_core.history.history import History
from lightning_core.storage.journals.journal import Journal

# Histories that are kept, and seconds that their forecasts may take to be computed again.
MAX_KEPT, AGAIN_SECONDS = 2, 2.0
_NAME = re.compile(r"journal-(\d{8}-\d{6}-\d{6})\.db")


class Earlier(NamedTuple):
    """An earlier time of a pool."""

    stamp: str
    """How its journal is named: when it was put aside, in this machine's time zone."""
    ended: datetime
    """When it was put aside."""


class Archive:
    """The journals that a pool has put aside.

    Args:
        folder: Folder of the pool.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder / "old", threading.Lock()
        self._read = lru_cache(MAX_KEPT)(self._read_one)

    def all(self) -> list[Earlier]:
        """Return the earlier times, the newest first."""
        if not self._folder.is_dir():
            return []
        found = [named for path in self._folder.iterdir() if (named := _named(path.name)) is not None]
        return sorted(found, reverse=True)

    def history(self, stamp: str) -> History:
        """Return the history of an earlier time. It is shared: no one may change it.

        Raises:
            FileNotFoundError: If there is none of that name.
            JournalError: If its journal is damaged.
        """
        if not any(one.stamp == stamp for one in self.all()):
            raise FileNotFoundError("There is no such earlier time of this pool.")
        with self._lock:  # one is read at a time: it may be long
            return self._read(stamp)

    def _read_one(self, stamp: str) -> History:
        with Journal.open(self._folder / f"journal-{stamp}.db", read_only=True) as journal:
            history = History.read(journal)
            if seconds_again(history) <= AGAIN_SECONDS:
                fill_in(journal, history)
            return history


def _named(name: str) -> Earlier | None:
    if (found := _NAME.fullmatch(name)) is None:
        return None
    try:
        return Earlier(found[1], datetime.strptime(found[1], "%Y%m%d-%H%M%S-%f"))
    except ValueError:
        return None
