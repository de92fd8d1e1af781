"""Results of a training in spawned processes, for the process that has called ``fit``.

Lightning brings back the weights and the metrics, and nothing of a callback. So rank 0 writes forecast and best model
into a file whose name the callback has had since it was made, and which only this user can read.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl

from lightning_core.core.answers import JobForecast, Verdict
from lightning_core.regular_files import read_regular

# Bytes that are read of such a file.
MAX_BYTES = 2**16


class Left(NamedTuple):
    """What a fit has left."""

    forecast: JobForecast | None
    best_model: str


class ForParent:
    """The file of one callback; there is none while its fits are in its own process."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir()) / f"lightning_core-{secrets.token_hex(16)}.json"
        self._pid = os.getpid()
        self._read: Left | None = None
        self._clean_up = weakref.finalize(self, _remove, self._path, self._pid)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_pid": self._pid, "_read": None}  # who spawns a process removes the file

    def leave(self, trainer: pl.Trainer, left: Left) -> None:
        """Write what is left of a fit, if the Trainer has spawned this process for it."""
        spawned = any(kind.__name__ == "_MultiProcessingLauncher" for kind in type(trainer.strategy.launcher).__mro__)
        if os.getpid() == self._pid or not spawned:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with suppress(OSError), os.fdopen(os.open(self._path, flags, 0o600), "w") as file:
            json.dump([left.forecast, left.best_model], file)

    def look(self) -> Left:
        """Return what the last fit in other processes has left."""
        with suppress(OSError, ValueError, TypeError):
            forecast, best_model = json.loads(read_regular(self._path, MAX_BYTES, follow_links=False))
            _remove(self._path, os.getpid())
            verdict, *rest = forecast or (None, None)
            known = None if not forecast else JobForecast(None if verdict is None else Verdict(verdict), *rest)
            self._read = Left(known, best_model)
        return self._read or Left(None, "")


def _remove(path: Path, pid: int) -> None:
    if pid == os.getpid():
        with suppress(OSError):
            path.unlink()
