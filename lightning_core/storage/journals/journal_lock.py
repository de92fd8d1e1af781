"""The lock that keeps a second scheduler from writing a pool's journal."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from lightning_core.storage.journals.journal_errors import JournalError
from lightning_core.storage.private_files import NotOursError, check_ours

with suppress(ImportError):  # Windows, where no scheduler has a journal
    import fcntl

# Seconds that the previous scheduler has to exit and release the lock.
RELEASE_TIMEOUT = 10.0
POLL_INTERVAL = 0.1


def lock_journal(path: Path) -> int:
    """Lock a file and return its descriptor; closing it releases the lock.

    A scheduler's actor may outlive its head, and users start a pool twice.

    Raises:
        JournalError: If another scheduler holds the lock, or another user can change the folder.
    """
    try:
        check_ours(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except NotOursError as error:
        raise JournalError(str(error)) from None
    until = time.monotonic() + RELEASE_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(lock)
                raise JournalError(f"{path.parent}: another scheduler is writing the journal here") from None
            time.sleep(POLL_INTERVAL)
